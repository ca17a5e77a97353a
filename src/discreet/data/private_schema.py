"""What a schema leaves open, learned privately for a share of the budget.

Bounds that nobody knows come from noisy counts of cells on a public grid
(:mod:`discreet.data.noisy_cells`), unknown categories from a stable histogram
(:mod:`discreet.data.private_categories`). The plan states its loss before any record is read, so
that it can be charged first::

    plan = plan_schema(schema, epsilon=0.2, delta=1e-7)
    with ledger.charge("patients", plan.loss, purpose="schema") as charge:
        completed = plan.run("patients.csv", receipt=charge.receipt()).value

The schema remembers what it cost and who paid (:class:`~discreet.data.Learned`), so that what is
learned by it later can count it.

Every column gets the same share of epsilon. Half of delta is for the counts, if their noise is
Gaussian, and every column of categories gets the same share of the rest. One row of each unit is
looked at: where the schema has persons, one row of each person, chosen at random, so that a
person changes no more than a row does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Any, final

import numpy as np

from discreet import _validate
from discreet.data.columns import Bounded, Categorical, Column
from discreet.data.inputs import open_table
from discreet.data.noisy_cells import CellCounts, CellPlan, bounded_by, grid_of, plan_cells
from discreet.data.private_categories import StableCategories, TextCounts
from discreet.data.schema import Learned, Schema
from discreet.data.tables import raw_rows
from discreet.errors import InvalidValue
from discreet.mechanisms import Release, read_epsilon
from discreet.privacy import Loss, Relation
from discreet.randomness import Source, choose_source

__all__ = ["MOST_LEARNED", "SchemaPlan", "complete_schema", "learned_categories", "plan_schema"]

MOST_LEARNED = 1000
"""How many categories of one column are kept, those with the largest noisy counts.

What follows needs memory for each of them, and must not run out of it because of the records.
"""

_SPARE_CLASSES = ("other", "none", "neither")


@final
@dataclass(frozen=True)
class SchemaPlan:
    """What will be learned about which columns, and what it costs; nothing has been read."""

    schema: Schema
    relation: Relation
    cells: CellPlan | None
    categories: Mapping[str, StableCategories]

    @property
    def loss(self) -> Loss:
        """The loss of the whole plan, for the unit of privacy of the schema."""
        losses = [] if self.cells is None else [self.cells.loss]
        losses += [step.loss for step in self.categories.values()]
        return reduce(add, losses)

    def run(
        self,
        data: object,
        *,
        receipt: Mapping[str, Any] | None = None,
        source: Source | None = None,
        insecure_seed: int | None = None,
    ) -> Release[Schema]:
        """Read the data once, or twice with persons, and release the completed schema.

        Parameters
        ----------
        data
            Whatever :func:`~discreet.data.read_table` takes.
        receipt
            The receipt of the charge that paid (``charge.receipt()``); the schema keeps it.
        source, insecure_seed
            The randomness, if not that of the operating system.

        Returns
        -------
        Release[Schema]
            The completed schema, which remembers its loss and the receipt.

        """
        bits = choose_source(source, insecure_seed)
        numbers = {} if self.cells is None else self.cells.counts()
        texts = {name: TextCounts() for name in self.categories}
        self._count(data, numbers, texts, bits)
        learned: dict[str, Column] = {}
        told: dict[str, Any] = {}
        noisy = {} if self.cells is None else self.cells.release(numbers, bits)
        for name, cells in noisy.items():
            learned[name] = bounded_by(_bounded(self.schema, name), cells.bounds())
            told[name] = [{"noise": cells.kind, "scale": cells.scale, "noisy_rows": cells.rows}]
        for name, step in self.categories.items():
            release = step.choose(texts[name].counts, bits)
            learned[name] = learned_categories(self.schema, name, tuple(release.value))
            told[name] = [dict(release.provenance)]
        provenance = {
            "mechanism": "complete_schema",
            "unit": self.schema.unit,
            "relation": self.relation.value,
            "columns": told,
            **bits.provenance,
        }
        cost = Learned(self.loss, self.schema.unit, receipt)
        completed = replace(self.schema.with_columns(learned), learned=cost)
        return Release(completed, self.loss, provenance)

    def _count(
        self,
        data: object,
        numbers: Mapping[str, CellCounts],
        texts: Mapping[str, TextCounts],
        bits: Source,
    ) -> None:
        table = open_table(data, self.schema)
        cap = None if self.schema.person is None else 1
        parts = raw_rows(
            table,
            self.schema,
            cap=cap,
            choose="random",
            source=bits,
            names=[*numbers, *texts],
        )
        for batch, used in parts:
            rows = np.arange(batch.rows) if used is None else used.rows
            for name, counts in numbers.items():
                counts.add(batch.numbers(name, self.schema.columns[name])[rows])
            for name, occurring in texts.items():
                codes, distinct = batch.texts(name)
                occurring.add(codes[rows], distinct)


def plan_schema(
    schema: Schema,
    *,
    epsilon: object,
    delta: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    grids: Mapping[str, Sequence[Any]] | None = None,
) -> SchemaPlan:
    """Plan to learn all bounds and categories that ``schema`` leaves open.

    ``delta`` is needed where categories are missing, and sharpens the bounds of many columns.
    ``grids`` gives public candidates for the bounds of some columns; the others use a wide default
    grid. The declared number of rows is not used: its order of magnitude may be wrong.

    >>> from discreet.data.columns import Real
    >>> plan_schema(Schema({"height": Real()}), epsilon=0.5).loss
    2 * DiscreteLaplace(scale=4.0)
    """
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema")
    neighbours = Relation.parse(relation)
    names = schema.incomplete
    if not names:
        raise InvalidValue("schema", "complete", "a schema that leaves bounds or categories open")
    if schema.learned is not None:
        expected = "one of which nothing was learned before: learn all that is open in one plan"
        raise InvalidValue("schema", "learned in part", expected)
    budget = read_epsilon(epsilon)[0]
    labelled = [name for name in names if isinstance(schema.columns[name], Categorical)]
    bounded = [name for name in names if isinstance(schema.columns[name], Bounded)]
    _known_grids(grids, bounded)
    chosen = {
        name: grid_of(name, _bounded(schema, name), (grids or {}).get(name)) for name in bounded
    }
    one = _share("epsilon", epsilon, budget, len(names))
    slack = Fraction(0) if delta is None else _validate.fraction("delta", delta, above=0, below=1)
    if labelled and not slack:
        expected = f"a delta, as the categories of {labelled[0]!r} are to be learned"
        raise InvalidValue("delta", delta, expected)
    cells = None
    if bounded:
        part = slack / 2 if labelled else slack
        cells = plan_cells(
            chosen, epsilon=one * len(bounded), delta=part or None, relation=neighbours
        )
        slack -= part if cells.kind == "gaussian" else 0
    categories = {
        name: StableCategories.planned(
            epsilon=one, delta=slack / len(labelled), relation=neighbours
        )
        for name in labelled
    }
    return SchemaPlan(schema, neighbours, cells, MappingProxyType(categories))


def complete_schema(
    data: object,
    schema: Schema,
    *,
    epsilon: object,
    delta: object = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    grids: Mapping[str, Sequence[Any]] | None = None,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Schema]:
    """Learn what ``schema`` leaves open; the value is the completed schema.

    It is :func:`plan_schema` and :meth:`SchemaPlan.run` in one; charge the loss first where
    there is a ledger.

    >>> from discreet.data.columns import Real
    >>> heights = {"height": [150 + i % 50 for i in range(5000)]}
    >>> done = complete_schema(heights, Schema({"height": Real()}), epsilon=2, insecure_seed=1)
    >>> done.value.columns["height"]
    Real(lower=100.0, upper=200.0, missing=None)
    >>> done.loss.epsilon(delta=0)
    2.0
    """
    plan = plan_schema(schema, epsilon=epsilon, delta=delta, relation=relation, grids=grids)
    return plan.run(data, source=source, insecure_seed=insecure_seed)


def _share(argument: str, value: object, budget: Fraction, parts: int) -> Fraction:
    """Return the largest double that fits ``parts`` times into the budget, exactly."""
    share = float(budget / parts)
    while share * parts > 0 and Fraction(share) * parts > budget:
        share = math.nextafter(share, 0.0)
    if share <= 0.0:
        raise InvalidValue(argument, value, "a budget large enough to be shared")
    return Fraction(share)


def _known_grids(grids: object, bounded: Sequence[str]) -> None:
    if grids is None:
        return
    if not isinstance(grids, Mapping):
        raise InvalidValue("grids", grids, "a mapping of column names to grids")
    for name in grids:
        if name not in bounded:
            raise InvalidValue("grids", name, "names of columns whose bounds are to be learned")


def _bounded(schema: Schema, name: str) -> Bounded:
    column = schema.columns[name]
    if not isinstance(column, Bounded):
        raise InvalidValue(f"columns.{name}", column, "a column with bounds")
    return column


def learned_categories(schema: Schema, name: str, categories: tuple[str, ...]) -> Categorical:
    """Return an open column with the categories that came out, largest first, be they none."""
    categories = categories[:MOST_LEARNED]
    column = schema.columns[name]
    if not isinstance(column, Categorical):
        raise InvalidValue(f"columns.{name}", column, "a column with categories")
    other, missing = column.other, column.missing
    if name == schema.target:
        # How many classes come out may turn on a single record, so one or none is no error: the
        # classes are filled up to two, and a model of them is as good as constant.
        spare = [
            label for label in dict.fromkeys((other, *_SPARE_CLASSES)) if label not in categories
        ]
        categories = (*categories, *spare[: max(0, 2 - len(categories))])
        # A class must be one of the categories: the most frequent one, by its noisy count.
        other = other if other in categories else categories[0]
        missing = missing if missing is None or missing in categories else categories[0]
    return Categorical(categories, other=other, missing=missing)
