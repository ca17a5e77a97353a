"""Data: what is public about a table, and public data sets.

Nothing is imported before it is used: naming a schema does not load an image reader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet.data.columns import Boolean, Categorical, Column, Date, Integer, Real
    from discreet.data.encoding import Encoding
    from discreet.data.images import (
        LabelledImages,
        SplitImages,
        cifar10,
        digits,
        faces,
        fashion_mnist,
        mnist,
    )
    from discreet.data.noisy_cells import CellPlan, NoisyCells, plan_cells
    from discreet.data.private_schema import SchemaPlan, complete_schema, plan_schema
    from discreet.data.records import (
        Census,
        LabelledRecords,
        Sentences,
        adult,
        location30,
        sst2,
    )
    from discreet.data.repairs import RepairPlan, plan_repairs, possible_mistakes
    from discreet.data.schema import CsvFormat, Learned, Schema
    from discreet.data.sources import DataCorrupt, DataUnavailable, cache_directory
    from discreet.data.tables import Table, check_columns, read_table, table_batches

__all__ = [
    "Boolean",
    "Categorical",
    "CellPlan",
    "Census",
    "Column",
    "CsvFormat",
    "DataCorrupt",
    "DataUnavailable",
    "Date",
    "Encoding",
    "Integer",
    "LabelledImages",
    "LabelledRecords",
    "Learned",
    "NoisyCells",
    "Real",
    "RepairPlan",
    "Schema",
    "SchemaPlan",
    "Sentences",
    "SplitImages",
    "Table",
    "adult",
    "cache_directory",
    "check_columns",
    "cifar10",
    "complete_schema",
    "digits",
    "faces",
    "fashion_mnist",
    "location30",
    "mnist",
    "plan_cells",
    "plan_repairs",
    "plan_schema",
    "possible_mistakes",
    "read_table",
    "sst2",
    "table_batches",
]

_HOMES = {
    "columns": ("Boolean", "Categorical", "Column", "Date", "Integer", "Real"),
    "encoding": ("Encoding",),
    "images": (
        "LabelledImages",
        "SplitImages",
        "cifar10",
        "digits",
        "faces",
        "fashion_mnist",
        "mnist",
    ),
    "noisy_cells": ("CellPlan", "NoisyCells", "plan_cells"),
    "private_schema": ("SchemaPlan", "complete_schema", "plan_schema"),
    "records": ("Census", "LabelledRecords", "Sentences", "adult", "location30", "sst2"),
    "repairs": ("RepairPlan", "plan_repairs", "possible_mistakes"),
    "schema": ("CsvFormat", "Learned", "Schema"),
    "sources": ("DataCorrupt", "DataUnavailable", "cache_directory"),
    "tables": ("Table", "check_columns", "read_table", "table_batches"),
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
