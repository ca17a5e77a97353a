"""What ``discreet train`` makes sure of before it charges: that what it needs is there."""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from discreet.errors import NotApplicable

if TYPE_CHECKING:
    from discreet.data import Column, Schema

__all__ = ["check_completions", "check_installed"]

_TABLES, _TORCH = ("pyarrow", "sklearn"), ("torch", "safetensors")


def check_installed(learner: str) -> None:
    """Raise unless the packages are installed that reading, training and writing need."""
    for package in (*_TABLES, *(_TORCH if learner == "mlp" else ())):
        try:
            importlib.import_module(package)
        except ImportError as error:
            extra = "torch" if package in _TORCH else "tables"
            raise NotApplicable(
                f"training needs {package}: pip install 'discreet[{extra}]' ({error})"
            ) from None


def check_completions(schema: Schema, possible: Callable[[Schema], None]) -> None:
    """Call ``possible``, which raises, for made-up completions of a schema, the emptiest included.

    How many categories come out depends on the records, and none of them may make it impossible
    to go on: that would be an error after the charge, and one that tells of the records.
    """
    from discreet.data.private_schema import MOST_LEARNED

    # None, the usual, and the most that a column can come out with.
    for count in (0, 2, MOST_LEARNED):
        possible(_made_up(schema, count))


def _made_up(schema: Schema, count: int) -> Schema:
    from discreet.data import Categorical, Date, Integer, Real
    from discreet.data.private_schema import learned_categories

    spare: dict[str, Column] = {}
    for name in schema.incomplete:
        column = schema.columns[name]
        if isinstance(column, Categorical):
            found = tuple(f"category {number}" for number in range(count))
            spare[name] = learned_categories(schema, name, found)
        elif isinstance(column, Date):
            spare[name] = Date(dt.date(1970, 1, 1), dt.date(2070, 1, 1))
        else:
            spare[name] = Integer(0, 1) if isinstance(column, Integer) else Real(0, 1)
    return schema.with_columns(spare)
