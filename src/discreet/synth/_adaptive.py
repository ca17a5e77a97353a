"""Methods that choose one table after the other: a spanning tree (MST), and rounds (AIM)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from discreet import _validate
from discreet.data import Schema
from discreet.errors import InvalidValue
from discreet.mechanisms import exponential_choice
from discreet.privacy import Relation
from discreet.synth._budget import STEPS
from discreet.synth._cells import project
from discreet.synth._counting import count_tables
from discreet.synth._fitting import Measurement, fit_tree
from discreet.synth._methods import OneShot, TreeMethod
from discreet.synth._model import measured_columns
from discreet.synth._plan import Beginning, Measured, SynthesisPlan
from discreet.synth._selection import (
    distance_in_steps,
    independent_table,
    list_candidates,
    workload_weights,
)
from discreet.synth._spending import Budget, RoundsBudget, SpanningBudget, score_change
from discreet.synth._tree import Columns, DecomposableGraph, JunctionTree, count_cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.engines import Table
    from discreet.randomness import Source

_ROUNDS_A_COLUMN = 16
_TABLE_PART = 0.9
_ROUND_EVALUATIONS = 80
_NOISE = math.sqrt(2.0 / math.pi)
_MOST_CANDIDATES = 5_000


@final
@dataclass(frozen=True)
class MST(TreeMethod):
    """A spanning tree of pairs (McKenna, Miklau and Sheldon 2021).

    A third of the budget each, by zCDP, is for the histograms, for choosing d - 1 pairs that join
    all columns by the exponential mechanism, and for measuring them. The loss is the sum of a
    Gaussian and d - 1 exponential mechanisms, and the noise is as small as the algebra allows.

    The parameters are those of :class:`OneShot`; the target plays no part.
    """

    name: ClassVar[str] = "mst"

    def _divide(
        self,
        columns: int,
        schema: Schema,
        target: str | None,
        epsilon: float,
        delta: float,
        relation: Relation,
    ) -> tuple[int, Budget, str]:
        budget = SpanningBudget.make(
            columns=columns,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            rows_per_person=schema.rows_per_person or 1,
        )
        budget.gaussian.check_tables()
        return min(2, columns), budget, ""

    def table_noise(self, plan: SynthesisPlan) -> float:
        """Return the noise of a cell of each pair."""
        pairs = plan.gaussian.columns - 1
        return plan.gaussian.table_stddevs([1.0 / pairs])[0]

    def explain(self, plan: SynthesisPlan) -> list[str]:
        """Return, in sentences, how tables are chosen and what their noise will be."""
        budget = plan.budget
        if not isinstance(budget, SpanningBudget) or not budget.choices:
            return []
        return [
            f"choice: {budget.choices} pairs, each at epsilon {budget.choice_epsilon:.3g}",
            f"tables: a noise of {self.table_noise(plan):.1f} rows a cell",
        ]

    def measure(
        self,
        plan: SynthesisPlan,
        table: Table,
        begun: Beginning,
        bits: Source,
        watch: Callable[[str, int, int], None],
    ) -> Measured:
        """Choose pairs until all columns hang together, and return them with their noise."""
        budget = plan.budget
        assert isinstance(budget, SpanningBudget)
        sizes, count = begun.sizes, len(begun.groups)
        parts = [project(one, begun.total) for one in begun.join]
        pairs = [
            one
            for one in list_candidates(count, 2)
            if count_cells(sizes, one) <= plan.method.max_cells
        ]
        exact: dict[Columns, NDArray[np.int64]] = {}
        scores: dict[Columns, int] = {}
        for pair, counts in count_tables(table, plan.cells, begun.groups, pairs):
            exact[pair] = counts
            expected = independent_table([parts[at] for at in pair], begun.total)
            scores[pair] = distance_in_steps(counts, expected)
        part_of = list(range(count))
        chosen: list[Columns] = []
        for pair in begun.rules.needed:
            _join(part_of, pair)
        for at in range(budget.choices):
            watch("choice", at, budget.choices)
            joining = [one for one in pairs if part_of[one[0]] != part_of[one[1]]]
            if not joining:
                break
            picked = exponential_choice(
                [scores[one] for one in joining],
                sensitivity=score_change(budget.gaussian),
                epsilon=budget.choice_epsilon,
                relation=budget.gaussian.relation,
                source=bits,
            )
            chosen.append(joining[picked.value])
            _join(part_of, chosen[-1])
        watch("tables", 0, 1)
        stddevs = budget.gaussian.table_stddevs([1.0 / max(1, len(chosen))] * len(chosen))
        found = []
        for one, stddev in zip(chosen, stddevs, strict=True):
            values = budget.gaussian.add_to_table(exact[one], stddev, bits)
            found.append(Measurement(one, values, np.full(values.shape, stddev**2)))
        graph = DecomposableGraph(sizes)
        graph.grow([*begun.rules.needed, *chosen], most_cells=1 << 62)
        return Measured(graph.cliques(), found)


def _join(part_of: list[int], pair: Columns) -> None:
    first, second = part_of[pair[0]], part_of[pair[1]]
    part_of[:] = [first if one == second else one for one in part_of]


@final
@dataclass(frozen=True)
class AIM(TreeMethod):
    """Rounds of choosing a table that the model gets wrong, and measuring it (McKenna 2022).

    A round chooses by the exponential mechanism among all tables of up to ``order`` columns, by how
    far the model is off less what the noise will be, measures the table and fits again. Where a
    round changed the model by less than its noise, the next ones have half the noise. Every step
    is zCDP, and a filter ends the rounds when rho is used up.

    The parameters are those of :class:`OneShot`, and:

    Parameters
    ----------
    order
        The most columns of a table, 2 or 3.
    rounds
        The most rounds at the first size of the noise; 16 for each column by default.

    """

    name: ClassVar[str] = "aim"

    order: int = 3
    rounds: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer("order", self.order, at_least=2, at_most=3)
        if self.rounds is not None:
            _validate.integer("rounds", self.rounds, at_least=2, at_most=1 << 20)

    def _divide(
        self,
        columns: int,
        schema: Schema,
        target: str | None,
        epsilon: float,
        delta: float,
        relation: Relation,
    ) -> tuple[int, Budget, str]:
        rounds = _ROUNDS_A_COLUMN * columns if self.rounds is None else self.rounds
        if rounds <= columns:
            raise InvalidValue("rounds", rounds, f"more than there are columns, {columns}")
        order, why = min(self.order, columns), ""
        while (
            candidates := sum(math.comb(columns, size) for size in range(2, order + 1))
        ) > _MOST_CANDIDATES and order > 2:
            why = f"tables of {order} columns are too many to compare ({candidates})"
            order -= 1
        budget = RoundsBudget.make(
            columns=columns,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            rows_per_person=schema.rows_per_person or 1,
        )
        if columns > 1:
            # Half of the least noise that rho pays for is the least that a round may ask for.
            least = budget.gaussian.stddev_of_mu(math.sqrt(2.0 * _TABLE_PART * budget.rho))
            budget.rho_of_table(least / 2.0)
        return order, budget, why

    def to_json(self) -> dict[str, Any]:
        """Return what was declared as JSON values."""
        return {**super().to_json(), "rounds": self.rounds}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TreeMethod:
        """Return what :meth:`to_json` wrote, with the target and the order of the plan."""
        known = super().from_json(document)
        assert isinstance(known, AIM)
        return replace(known, order=max(2, int(document["order"])), rounds=document["rounds"])

    def table_noise(self, plan: SynthesisPlan) -> float:
        """Return the noise of a cell of a table in the first rounds."""
        return plan.gaussian.column_stddev

    def explain(self, plan: SynthesisPlan) -> list[str]:
        """Return, in sentences, how tables are chosen and what their noise will be."""
        if plan.gaussian.columns < 2:
            return []
        noise = f"{self.table_noise(plan):.1f} rows a cell, later with less"
        return [
            f"rounds: one table of up to {plan.order} columns each, at first a noise of {noise}"
        ]

    def measure(
        self,
        plan: SynthesisPlan,
        table: Table,
        begun: Beginning,
        bits: Source,
        watch: Callable[[str, int, int], None],
    ) -> Measured:
        """Choose, measure and fit in rounds, and return the noisy tables."""
        run = _Rounds.begin(plan, begun)
        if len(begun.sizes) == 1:
            return Measured([], [])
        fitting = [
            one
            for one in list_candidates(len(begun.sizes), plan.order)
            if count_cells(begun.sizes, one) <= self.max_cells
        ]
        exact = dict(count_tables(table, plan.cells, begun.groups, fitting))
        while run.next_round():
            watch("rounds", round(1000 * run.used / run.budget.rho), 1000)
            if not run.choose_and_measure(exact, bits):
                break
        return Measured(run.graph.cliques(), run.tables, run.potentials)


METHODS: dict[str, type[TreeMethod]] = {one.name: one for one in (OneShot, MST, AIM)}
"""The methods that fit a tree, by their names."""


@dataclass
class _Rounds:
    """The state of AIM: what was measured, the model, and how much of rho is used."""

    plan: SynthesisPlan
    begun: Beginning
    budget: RoundsBudget
    graph: DecomposableGraph
    tables: list[Measurement]
    weights: NDArray[np.float64]
    used: float
    stddev: float
    epsilon: float
    last: bool = False
    potentials: dict[Columns, NDArray[np.float64]] | None = None

    @classmethod
    def begin(cls, plan: SynthesisPlan, begun: Beginning) -> _Rounds:
        budget = plan.budget
        assert isinstance(budget, RoundsBudget)
        names = [one.name for one in plan.cells]
        graph = DecomposableGraph(begun.sizes)
        graph.grow(begun.rules.needed, most_cells=1 << 62)
        used = budget.rho_of_columns
        each = used / budget.gaussian.columns / _TABLE_PART
        found = cls(
            plan,
            begun,
            budget,
            graph,
            [],
            workload_weights(
                len(names), plan.order, None if plan.target is None else names.index(plan.target)
            ),
            used,
            budget.gaussian.column_stddev,
            math.sqrt(8.0 * (1.0 - _TABLE_PART) * each),
        )
        found.fit()
        return found

    def fit(self) -> None:
        """Fit the model to all that was measured, from where it was."""
        self.tree = JunctionTree(self.begun.sizes, self.graph.cliques())
        singles = measured_columns(
            self.begun.groups, self.begun.histograms, self.budget.gaussian.column_stddev
        )
        self.conditionals, self.potentials = fit_tree(
            self.tree,
            [*singles, *self.tables],
            self.begun.total,
            strength=self.plan.method.strength,
            evaluations=_ROUND_EVALUATIONS,
            impossible=self.begun.rules.masks(self.begun.groups, self.tree.sizes),
            start=self.potentials,
        )

    def expected(self, columns: Columns) -> NDArray[np.float64]:
        """Return the model's table of some columns, in rows."""
        return self.tree.marginal(self.conditionals, columns) * self.begun.total

    def next_round(self) -> bool:
        """Set the noise of the next round, the last one if little is left; False if none is."""
        if self.last:
            return False
        left = (self.budget.rho - self.used) * (1.0 - 2.0**-30)
        if left <= 0.0:
            return False
        if left < 2.0 * self._cost():
            self.last = True
            self.epsilon = math.sqrt(8.0 * (1.0 - _TABLE_PART) * left)
            self.stddev = self.budget.gaussian.stddev_of_mu(math.sqrt(2.0 * _TABLE_PART * left))
        if self._cost() > self.budget.rho - self.used:
            return False
        self.used += self._cost()
        return True

    def _cost(self) -> float:
        return self.budget.rho_of_table(self.stddev) + self.budget.rho_of_choice(self.epsilon)

    def choose_and_measure(self, exact: Mapping[Columns, NDArray[np.int64]], bits: Source) -> bool:
        """Run one round that is paid for; False if no table fits any more."""
        grown = self._fitting(exact)
        if not grown:
            return False
        listed = list(grown)
        scores = []
        for one in listed:
            weight = int(self.weights[list(one)].sum())
            noise = round(_NOISE * self.stddev * exact[one].size * STEPS)
            distance = distance_in_steps(exact[one], self.expected(one))
            scores.append(weight * (distance - noise))
        largest = max(int(self.weights[list(one)].sum()) for one in exact)
        gaussian = self.budget.gaussian
        picked = exponential_choice(
            scores,
            sensitivity=largest * score_change(gaussian),
            epsilon=self.epsilon,
            relation=gaussian.relation,
            source=bits,
        )
        chosen = listed[picked.value]
        values = gaussian.add_to_table(exact[chosen], self.stddev, bits)
        self.tables.append(Measurement(chosen, values, np.full(values.shape, self.stddev**2)))
        before = self.expected(chosen)
        self.graph = grown[chosen]
        self.fit()
        moved = float(np.abs(self.expected(chosen) - before).sum())
        if moved <= _NOISE * self.stddev * values.size:
            self.stddev /= 2.0
            self.epsilon *= 2.0
        return True

    def _fitting(self, exact: Mapping[Columns, Any]) -> dict[Columns, DecomposableGraph]:
        """Return the tables that fit the present size of the model, with the graph after each."""
        most = self.plan.method.max_cells
        for limit in (int(most * self.used / self.budget.rho), most):
            found = {one: self.graph.join(one, most_cells=limit) for one in exact}
            fitting = {one: graph for one, graph in found.items() if graph is not None}
            if fitting:
                return fitting
        return {}
