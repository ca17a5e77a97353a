"""The curator: a trusted service that holds the data, answers analysts, and keeps to the budget.

Nothing is imported before it is used: naming the package loads no engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet.curator._answers import Answer
    from discreet.curator._curator import Curator
    from discreet.curator._queries import (
        Count,
        CountPersons,
        GroupBy,
        Histogram,
        Mean,
        Quantile,
        Query,
        Sum,
        ThresholdStream,
        TopK,
        Variance,
        Workload,
        query_from_json,
    )
    from discreet.curator.dataset import CuratedDataset
    from discreet.curator.plans import Quote, quote

__all__ = [
    "Answer",
    "Count",
    "CountPersons",
    "CuratedDataset",
    "Curator",
    "GroupBy",
    "Histogram",
    "Mean",
    "Quantile",
    "Query",
    "Quote",
    "Sum",
    "ThresholdStream",
    "TopK",
    "Variance",
    "Workload",
    "query_from_json",
    "quote",
]

_HOMES = {
    "_answers": ("Answer",),
    "dataset": ("CuratedDataset",),
    "_curator": ("Curator",),
    "plans": ("Quote", "quote"),
    "_queries": (
        "Count",
        "CountPersons",
        "GroupBy",
        "Histogram",
        "Mean",
        "Quantile",
        "Query",
        "Sum",
        "ThresholdStream",
        "TopK",
        "Variance",
        "Workload",
        "query_from_json",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
