"""Methods of synthesis: what is declared, how the budget is divided, which tables are measured."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from discreet import _validate
from discreet.data import Categorical, Schema
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import default_delta
from discreet.privacy import Relation
from discreet.synth._budget import GaussianBudget
from discreet.synth._categories import OpenCategories
from discreet.synth._cells import FineCells, fine_cells, project
from discreet.synth._constraints import Constraints
from discreet.synth._counting import count_tables
from discreet.synth._fitting import Measurement
from discreet.synth._plan import Beginning, Measured, SynthesisPlan
from discreet.synth._selection import (
    Choice,
    choose_tables,
    distance_in_steps,
    independent_table,
    list_candidates,
    workload_weights,
)
from discreet.synth._spending import Budget, Spending
from discreet.synth._tree import Columns, DecomposableGraph, count_cells

if TYPE_CHECKING:
    from discreet.engines import Table
    from discreet.randomness import Source

_ORDER = 3
_MOST_SCORES = 5_000
_DROWNED = 0.1
_MOST_CELLS = 1 << 26
_BYTES_A_CELL = 64
_COLUMN_SHARE, _SCORE_SHARE = 0.2, 0.05
MOST_EPSILON = 1e9


@dataclass(frozen=True)
class TreeMethod(ABC):
    """What all methods have in common that fit a tree of small noisy tables.

    Parameters
    ----------
    target
        The column that matters most; tables with it count four times. None takes the target of the
        schema.
    groups
        About how many groups a column of numbers is cut into, where the noise allows.
    max_cells
        The most cells of a table of the model.
    strength
        How strongly the fit is pulled towards uniform cells.
    evaluations
        The most evaluations of the fit.
    bins
        For some columns of numbers, the number of public fine cells, or where they begin.
    forbid
        Pairs of values that no row has, such as ``{"sex": "Male", "relationship": "Wife"}``.
    ordered
        Pairs of columns of numbers or dates, such as ``("born", "died")``: in every row the first
        is at most the second.
    missing
        Columns in which cells may be missing; synthetic rows then have missing cells too.

    """

    name: ClassVar[str]

    target: str | None = None
    groups: int = 32
    max_cells: int = 8_000
    strength: float = 0.01
    evaluations: int = 2_000
    bins: Mapping[str, Any] = field(default_factory=dict)
    forbid: Sequence[Mapping[str, Any]] = ()
    ordered: Sequence[Sequence[str]] = ()
    missing: Sequence[str] = ()

    def __post_init__(self) -> None:
        _validate.integer("groups", self.groups, at_least=2, at_most=1 << 12)
        _validate.integer("max_cells", self.max_cells, at_least=4, at_most=1 << 24)
        _validate.real("strength", self.strength, at_least=1e-9, at_most=1)
        _validate.integer("evaluations", self.evaluations, at_least=1, at_most=1 << 20)
        if not isinstance(self.bins, Mapping):
            raise InvalidValue("bins", self.bins, "names of columns with their bins")
        for name in ("forbid", "ordered", "missing"):
            if not isinstance(getattr(self, name), list | tuple):
                raise InvalidValue(name, getattr(self, name), "a list")

    def plan(
        self,
        schema: Schema,
        *,
        epsilon: float,
        delta: float | None = None,
        relation: Relation | str = Relation.ADD_REMOVE,
    ) -> SynthesisPlan:
        """Return the plan for tables of a schema; nothing is read.

        Parameters
        ----------
        schema
            What is public about the table. Categories may be left open: a tenth of epsilon and
            half of delta are then for learning them.
        epsilon, delta
            The budget. Without a delta it follows from ``expected_rows`` of the schema.
        relation
            What neighbours are.

        Returns
        -------
        SynthesisPlan
            What will be done, and its ``loss``.

        Raises
        ------
        InvalidValue, NotApplicable
            If the schema or a parameter does not do.

        """
        if not isinstance(schema, Schema):
            raise InvalidValue("schema", type(schema).__name__, "a Schema: domains are public")
        kind = Relation.parse(relation)
        if kind is Relation.REPLACE and schema.person is not None:
            raise NotApplicable(
                "replace says nothing about persons with several rows: use add_remove"
            )
        target = schema.target if self.target is None else self.target
        if target is not None and target not in schema.columns:
            raise InvalidValue("target", target, "a column of the schema, or None")
        if delta is None:
            if schema.expected_rows is None:
                raise InvalidValue("delta", None, "a delta, or expected_rows in the schema")
            delta = default_delta(schema.expected_rows)
        whole = float(_validate.real("epsilon", epsilon, above=0, at_most=MOST_EPSILON))
        point = float(_validate.real("delta", delta, above=0, below=1))
        left = OpenCategories.share(schema, whole, point, kind)
        # Open columns have no cells yet; here each stands for the label that it has in any case.
        closed = schema if left is None else _close(schema, left)
        closed.require_complete()
        cells = fine_cells(closed, self.bins, self.missing)
        _check_memory(cells)
        Constraints.read(self.forbid, self.ordered, closed, cells)
        order, budget, why = self._divide(
            len(cells),
            schema,
            target,
            whole if left is None else whole - float(left.whole_epsilon),
            point if left is None else point - float(left.whole_delta),
            kind,
        )
        if left is not None and Spending(budget, left).loss.epsilon(delta=point) > whole:
            raise NotApplicable("the budget is too small to be shared with open categories")
        return SynthesisPlan(self, schema, whole, point, target, order, budget, why, left)

    @abstractmethod
    def _divide(
        self,
        columns: int,
        schema: Schema,
        target: str | None,
        epsilon: float,
        delta: float,
        relation: Relation,
    ) -> tuple[int, Budget, str]:
        """Return up to how many columns a table has, the budget, and why not more."""

    @abstractmethod
    def measure(
        self,
        plan: SynthesisPlan,
        table: Table,
        begun: Beginning,
        bits: Source,
        watch: Callable[[str, int, int], None],
    ) -> Measured:
        """Choose tables, and return them with their noise."""

    @abstractmethod
    def explain(self, plan: SynthesisPlan) -> list[str]:
        """Return, in sentences, how tables are chosen and what their noise will be."""

    def table_noise(self, plan: SynthesisPlan) -> float:
        """Return about the noise of a cell of a table."""
        return plan.gaussian.table_stddevs([0.05])[0]

    def to_json(self) -> dict[str, Any]:
        """Return what was declared as JSON values."""
        known: dict[str, Any] = {
            "method": self.name,
            "groups": int(self.groups),
            "max_cells": int(self.max_cells),
            "strength": float(self.strength),
            "evaluations": int(self.evaluations),
            "bins": {
                name: [float(cut) for cut in one] if isinstance(one, list | tuple) else int(one)
                for name, one in self.bins.items()
            },
            "forbid": [dict(one) for one in self.forbid],
        }
        if self.ordered:
            known["ordered"] = [list(one) for one in self.ordered]
        if self.missing:
            known["missing"] = list(self.missing)
        return known

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TreeMethod:
        """Return what :meth:`to_json` wrote, with the target of the plan."""
        return cls(
            target=document["target"],
            groups=document["groups"],
            max_cells=document["max_cells"],
            strength=document["strength"],
            evaluations=document["evaluations"],
            bins=dict(document["bins"]),
            forbid=list(document["forbid"]),
            ordered=[tuple(one) for one in document.get("ordered", ())],
            missing=tuple(document.get("missing", ())),
        )


def _close(schema: Schema, left: OpenCategories) -> Schema:
    """Return the schema with no category where they are still to be learned."""
    columns = {}
    for name in left.columns:
        column = schema.columns[name]
        assert isinstance(column, Categorical)
        columns[name] = Categorical([], other=column.other, missing=column.missing)
    return schema.with_columns(columns)


def _check_memory(cells: Sequence[FineCells]) -> None:
    """Raise if the histograms have more cells than there is room for, and say what would fit."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = min(_MOST_CELLS, memory // _BYTES_A_CELL)
    found = sum(one.size for one in cells)
    if found <= most:
        return
    largest = max(cells, key=lambda one: one.size)
    room = max(most - (found - largest.size), 0)
    raise InvalidValue(
        "schema",
        f"{found} cells",
        f"at most {most} cells in all: they fit into memory; {largest.name!r} has {largest.size}, "
        f"and would have to have {room} (fewer labels or bins)",
    )


@final
@dataclass(frozen=True)
class OneShot(TreeMethod):
    """The default method: all choices in one step, from one look at noisy distances.

    The parameters are those of all methods that fit a tree: ``target`` is the column that matters
    most, ``groups`` about how many groups numbers get, ``max_cells`` the most cells of a table,
    ``strength`` and ``evaluations`` steer the fit, ``bins`` are public fine cells, ``forbid`` are
    pairs of values that no row has, ``ordered`` pairs of columns of which the first is at most the
    second in every row, and ``missing`` columns in which cells may be missing.
    """

    name: ClassVar[str] = "oneshot"

    def _divide(
        self,
        columns: int,
        schema: Schema,
        target: str | None,
        epsilon: float,
        delta: float,
        relation: Relation,
    ) -> tuple[int, Budget, str]:
        """Return up to how many columns a candidate has, the budget, and why not more."""
        reason = ""
        order = min(_ORDER, columns)
        while True:
            scores = sum(math.comb(columns, size) for size in range(2, order + 1))
            if scores > _MOST_SCORES:
                reason = f"tables of {order} columns are too many to compare ({scores})"
                order -= 1
                continue
            budget = GaussianBudget.make(
                columns=columns,
                scores=scores,
                epsilon=epsilon,
                delta=delta,
                relation=relation,
                rows_per_person=schema.rows_per_person or 1,
                column_share=_COLUMN_SHARE,
                score_share=_SCORE_SHARE,
                tables=order > 1 or (columns > 1 and target is not None),
            )
            rows = schema.expected_rows
            if order > 1 and rows is not None and budget.score_stddev > _DROWNED * rows:
                reason = (
                    f"{columns} columns are too many for about {rows} rows: the noise of comparing "
                    f"tables of {order} columns would be {budget.score_stddev:.0f} rows"
                )
                order -= 1
                continue
            return order, budget, reason

    def explain(self, plan: SynthesisPlan) -> list[str]:
        """Return, in sentences, how tables are chosen and what their noise will be."""
        budget = plan.gaussian
        lines = []
        if budget.scores:
            lines.append(
                f"choice: {budget.scores} tables of up to {plan.order} columns are compared, each "
                f"with a noise of {budget.score_stddev:.0f} rows"
            )
        if budget.columns > 1 and budget.table_mu:
            one = self.table_noise(plan)
            lines.append(f"tables: a noise of {one:.1f} rows a cell if 20 are measured alike")
        return lines

    def measure(
        self,
        plan: SynthesisPlan,
        table: Table,
        begun: Beginning,
        bits: Source,
        watch: Callable[[str, int, int], None],
    ) -> Measured:
        """Choose tables by one look at noisy distances, and return them with their noise."""
        watch("choice", 0, 1)
        choice = _choose(plan, table, begun, bits)
        watch("tables", 0, 1)
        budget = plan.gaussian
        stddevs = budget.table_stddevs(choice.shares)
        found = []
        tables = count_tables(table, plan.cells, begun.groups, choice.tables)
        for (columns, counts), stddev in zip(tables, stddevs, strict=True):
            values = budget.add_to_table(counts, stddev, bits)
            found.append(Measurement(columns, values, np.full(counts.shape, stddev**2)))
        return Measured(choice.cliques, found)


def _choose(plan: SynthesisPlan, table: Table, begun: Beginning, bits: Source) -> Choice:
    """Return which tables to measure; where nothing is compared, those with the target."""
    groups, total, needed = begun.groups, begun.total, begun.rules.needed
    sizes = begun.sizes
    count, most = len(sizes), plan.method.max_cells
    names = [one.name for one in plan.cells]
    target = None if plan.target is None else names.index(plan.target)
    if plan.gaussian.scores == 0:
        pairs: list[Columns] = [
            (min(at, target), max(at, target))
            for at in range(count)
            if target is not None and at != target
        ]
        graph = DecomposableGraph(sizes)
        graph.grow(needed, most_cells=1 << 62)
        graph.grow(pairs, most_cells=most)
        cliques = tuple(graph.cliques())
        held = [one for one in pairs if any(set(one) <= set(two) for two in cliques)]
        share = [1.0 / len(held)] * len(held) if held else []
        return Choice(cliques, tuple(held), tuple(share))
    parts = [project(one, total) for one in begun.join]
    candidates = list_candidates(count, plan.order)
    fitting = [one for one in candidates if count_cells(sizes, one) <= most]
    exact = dict.fromkeys(candidates, 0)
    for columns, counts in count_tables(table, plan.cells, groups, fitting):
        expected = independent_table([parts[at] for at in columns], total)
        exact[columns] = distance_in_steps(counts, expected)
    scores = np.array([exact[one] for one in candidates], dtype=np.int64)
    noisy = dict(zip(candidates, plan.gaussian.add_to_scores(scores, bits).tolist(), strict=True))
    return choose_tables(
        sizes,
        {one: noisy[one] for one in fitting},
        workload_weights(count, _ORDER, target),
        unit_stddev=plan.gaussian.table_stddevs([1.0])[0],
        most_cells=most,
        needed=needed,
    )
