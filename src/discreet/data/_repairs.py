"""List which cells may need repair, for free, and count those that do, for a price.

A cell that breaks its declaration is repaired and never an error (:func:`read_table`).
So a mistake such as a wrong separator or misspelled labels shows in no message: a message would
tell of records. :func:`possible_mistakes` looks at names and declared types only, costs nothing,
and says where such a mistake *could* hide. :func:`plan_repairs` counts, with noise, for a small
epsilon.

**Guarantee** of the counts: one row, or one random row of a person, adds at most 1 to the count of
each of p columns and 1 to the number of rows, so the p + 1 counts have L1 sensitivity p + 1, and
2 (p + 1) under ``replace``. The noise is the discrete Laplace, on whole numbers; shares are
post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.data._columns import Boolean, Bounded, Categorical, Column
from discreet.data._readers import CsvInput, TableInput, open_input
from discreet.data._schema import Schema
from discreet.data._table import raw_rows
from discreet.errors import InvalidValue
from discreet.mechanisms import Release, laplace_integers, read_epsilon, round_up
from discreet.privacy import DiscreteLaplace, Loss, Relation
from discreet.randomness import choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.data._cells import RawBatch
    from discreet.randomness import Source

_SEPARATORS = ",;\t|"


@final
@dataclass(frozen=True)
class PossibleMistake:
    """Something that may be wrong with a column and raises no error."""

    column: str
    what: str

    def __str__(self) -> str:
        return f"{self.column}: {self.what}"


def possible_mistakes(data: object, schema: Schema) -> tuple[PossibleMistake, ...]:
    """Return possible mistakes in a table, from its names and declared types; no cell is read.

    >>> from discreet.data import Real
    >>> table = {"age": ["38", "41"], "size": np.array([1.5, 1.8])}
    >>> for mistake in possible_mistakes(table, Schema({"age": Real(0, 99), "size": Real(0, 3)})):
    ...     print(mistake)
    age: every cell could be no number (a decimal comma, a unit) and would be repaired to 49.5
    age: numbers out of [0.0, 99.0] would be clipped (another unit, a code such as 999)
    size: numbers out of [0.0, 3.0] would be clipped (another unit, a code such as 999)
    """
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema")
    table = open_input(data, schema)
    found = [] if not isinstance(table, CsvInput) else _separators(table, schema)
    kinds = table._kinds(list(schema.columns))
    for name, column in schema.columns.items():
        found += [
            PossibleMistake(name, what)
            for what in _find_doubts(column, kinds.get(name), target=name == schema.target)
        ]
    return tuple(found)


def _separators(table: CsvInput, schema: Schema) -> list[PossibleMistake]:
    """Names that hold another separator were probably not cut where they should be."""
    own = schema.csv.delimiter
    return [
        PossibleMistake(
            "the heading",
            f"a name holds {mark!r}, and the declared separator is {own!r}: is it the right one?",
        )
        for mark in _SEPARATORS
        if mark != own and any(mark in name for name in table.names() or ())
    ]


def _find_doubts(column: Column, kind: str | None, *, target: bool) -> list[str]:
    doubts = []
    if isinstance(column, Bounded) and column.complete:
        if kind is None:
            reason = "no date" if column.kind == "date" else "no number (a decimal comma, a unit)"
            doubts.append(f"every cell could be {reason} and would be repaired to {_fill(column)}")
        doubts.append(
            f"{'dates' if column.kind == 'date' else 'numbers'} out of "
            f"[{column.lower}, {column.upper}] would be clipped (another unit, a code such as 999)"
        )
    elif isinstance(column, Boolean) and column.rule is not None:
        doubts.append(f"cells that are no number would be {column.missing!s}")
    elif isinstance(column, Boolean) and kind != "truth values":
        doubts.append(f"cells other than yes, no, true, false, 1 and 0 would be {column.missing!s}")
    elif isinstance(column, Categorical) and column.complete and column.hashed is None:
        what = "labels" if target else "texts"
        known = ", ".join(column.labels[:8]) + (", ..." if len(column.labels) > 8 else "")
        doubts.append(
            f"{what} that were not declared (another spelling, case, a code) would all be "
            f"{column.other!r}; declared are {known}"
        )
    return doubts


def _fill(column: Bounded) -> str:
    if column.missing is not None:
        return str(column.missing)
    return "the middle" if column.kind == "date" else f"{column.fill:g}"


@final
@dataclass(frozen=True)
class RepairPlan:
    """Noisy counts of repaired cells, planned; ``loss`` is what they cost."""

    schema: Schema
    relation: Relation
    scale: float
    loss: Loss

    def run(
        self, data: object, *, source: Source | None = None, insecure_seed: int | None = None
    ) -> Release[dict[str, float]]:
        """Read the data and release for each column the noisy share of cells that are repaired."""
        bits = choose_source(source, insecure_seed)
        table = open_input(data, self.schema)
        exact = self._count(table, bits)
        released = laplace_integers(
            exact,
            sensitivity=_count_changed(self.schema, self.relation),
            scale=self.scale,
            relation=self.relation,
            source=bits,
        )
        rows = max(1.0, float(released.value[-1]))
        shares = {
            name: min(1.0, max(0.0, float(count) / rows))
            for name, count in zip(self.schema.columns, released.value[:-1], strict=True)
        }
        provenance = {
            "mechanism": "repaired_cells",
            "unit": self.schema.unit,
            "relation": self.relation.value,
            "scale": self.scale,
            "noisy_rows": rows,
            **bits.provenance,
        }
        return Release(shares, self.loss, provenance)

    def _count(self, table: TableInput, bits: Source) -> NDArray[np.int64]:
        cap = None if self.schema.person is None else 1
        counts = np.zeros(len(self.schema.columns) + 1, dtype=np.int64)
        for batch, used in raw_rows(table, self.schema, cap=cap, choose="random", source=bits):
            rows = np.arange(batch.rows) if used is None else used.rows
            for place, (name, column) in enumerate(self.schema.columns.items()):
                counts[place] += int(np.sum(_find_repaired(batch, name, column)[rows]))
            counts[-1] += rows.size
        return counts


def plan_repairs(
    schema: Schema, *, epsilon: object, relation: Relation | str = Relation.ADD_REMOVE
) -> RepairPlan:
    """Plan to tell, for ``epsilon``, which share of the cells of each column is repaired.

    Charge ``plan.loss`` first where there is a ledger, then ``plan.run(data).value``.

    >>> from discreet.data import Real
    >>> plan = plan_repairs(Schema({"age": Real(0, 99)}), epsilon="0.1")
    >>> plan.loss
    2 * DiscreteLaplace(scale=20.0)
    >>> shares = plan.run({"age": ["38", "41 years"] * 5000}, insecure_seed=1).value
    >>> round(shares["age"], 1)
    0.5
    """
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema")
    schema.require_complete()
    neighbours = Relation.parse(relation)
    changed = _count_changed(schema, neighbours)
    scale = round_up("epsilon", epsilon, changed / read_epsilon(epsilon)[0])
    return RepairPlan(schema, neighbours, scale, changed * DiscreteLaplace(scale, 1, neighbours))


def _count_changed(schema: Schema, relation: Relation) -> int:
    return (len(schema.columns) + 1) * (2 if relation is Relation.REPLACE else 1)


def _find_repaired(batch: RawBatch, name: str, column: Column) -> NDArray[np.bool_]:
    """Return which cells of a batch do not stand for what they say."""
    if isinstance(column, Categorical):
        codes, distinct = batch.texts(name)
        known = np.array([column.declares(text) for text in distinct], dtype=np.bool_)
        return ~known[codes] if known.size else np.zeros(0, dtype=np.bool_)
    raw = batch.numbers(name, column)
    odd = np.isnan(raw)
    if isinstance(column, Bounded):
        lower, upper = column.bounds
        odd |= (raw < lower) | (raw > upper)
    return odd
