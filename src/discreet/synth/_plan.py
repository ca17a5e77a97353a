"""Plan a synthesis from public facts, then run it: charge, count, add noise, fit, certify."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.certificate import Certificate
from discreet.data import Schema
from discreet.engines import Table, open_table
from discreet.errors import InvalidValue, NotApplicable, RelationMismatch, SchemaError
from discreet.learn import charged, default_delta, stated_unit
from discreet.privacy import GDP, Loss, Relation
from discreet.randomness import source as random_source
from discreet.synth._budget import GaussianBudget
from discreet.synth._cells import FineCells, Groups, fine_cells, group_cells, project
from discreet.synth._constraints import Forbidden
from discreet.synth._counting import count_tables
from discreet.synth._fitting import Measurement, fit_tree
from discreet.synth._model import SyntheticModel, finish, measured_columns
from discreet.synth._selection import (
    Choice,
    choose_tables,
    distance_in_steps,
    independent_table,
    list_candidates,
    workload_weights,
)
from discreet.synth._tree import Columns, DecomposableGraph, JunctionTree, count_cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Ledger
    from discreet.randomness import Source

_ORDER = 3
_MOST_SCORES = 5_000
_DROWNED = 0.1
_MOST_CELLS = 1 << 26
_COLUMN_SHARE, _SCORE_SHARE = 0.2, 0.05


@final
@dataclass(frozen=True)
class OneShot:
    """The default method: all choices in one step, from one look at noisy distances.

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

    """

    target: str | None = None
    groups: int = 32
    max_cells: int = 8_000
    strength: float = 0.01
    evaluations: int = 2_000
    bins: Mapping[str, Any] = field(default_factory=dict)
    forbid: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        _validate.integer("groups", self.groups, at_least=2, at_most=1 << 12)
        _validate.integer("max_cells", self.max_cells, at_least=4, at_most=1 << 24)
        _validate.real("strength", self.strength, at_least=1e-9, at_most=1)
        _validate.integer("evaluations", self.evaluations, at_least=1, at_most=1 << 20)
        if not isinstance(self.bins, Mapping):
            raise InvalidValue("bins", self.bins, "names of columns with their bins")

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
            What is public about the table; complete.
        epsilon, delta
            The budget. Without a delta it follows from ``expected_rows`` of the schema.
        relation
            What neighbours are.

        Returns
        -------
        SynthesisPlan
            Its ``loss`` is one Gaussian.

        Raises
        ------
        InvalidValue, NotApplicable
            If the schema or a parameter does not do.

        """
        if not isinstance(schema, Schema):
            raise InvalidValue("schema", type(schema).__name__, "a Schema: domains are public")
        schema.require_complete()
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
        cells = fine_cells(schema, self.bins)
        Forbidden.read(self.forbid, schema, cells)
        if sum(one.size for one in cells) > _MOST_CELLS:
            raise InvalidValue("schema", "its columns", f"at most {_MOST_CELLS} cells in all")
        candidates, budget, why = _affordable(
            cells,
            schema,
            target,
            float(_validate.real("epsilon", epsilon, above=0)),
            float(delta),
            kind,
        )
        return SynthesisPlan(
            self, schema, float(epsilon), float(delta), target, candidates, budget, why
        )


def _affordable(
    cells: tuple[FineCells, ...],
    schema: Schema,
    target: str | None,
    epsilon: float,
    delta: float,
    relation: Relation,
) -> tuple[int, GaussianBudget, str]:
    """Return up to how many columns a candidate has, the budget, and why not more."""
    columns = len(cells)
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


@final
@dataclass(frozen=True)
class SynthesisPlan:
    """What a synthesis will do and cost; made by :meth:`OneShot.plan` from public facts.

    ``order`` is the most columns of a table that may be compared: 3, or 2 where there are too many
    columns, or 1 where only tables with the target are measured, without a choice;
    ``reason`` says why it is not 3.
    """

    method: OneShot
    schema: Schema
    epsilon: float
    delta: float
    target: str | None
    order: int
    budget: GaussianBudget
    reason: str = ""

    @property
    def loss(self) -> GDP:
        """What the whole synthesis reveals about one unit: one Gaussian."""
        return self.budget.loss

    def whole_loss(self) -> Loss:
        """Return the loss of a run: that of the plan and, if unpaid, of learning the schema."""
        unpaid = self.schema.unpaid_loss()
        if unpaid is None:
            return self.loss
        if unpaid.relation is not self.loss.relation:
            raise RelationMismatch(
                f"the schema was learned under {unpaid.relation.value}, and this plan speaks of "
                f"{self.loss.relation.value}: learn it under the same, or charge it to a ledger"
            )
        return self.loss + unpaid

    @property
    def cells(self) -> tuple[FineCells, ...]:
        """The fine cells of all columns."""
        return fine_cells(self.schema, self.method.bins)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "method": "oneshot",
            "target_epsilon": self.epsilon,
            "target": self.target,
            "order": self.order,
            "reason": self.reason,
            "groups": int(self.method.groups),
            "max_cells": int(self.method.max_cells),
            "strength": float(self.method.strength),
            "evaluations": int(self.method.evaluations),
            "bins": {
                name: [float(cut) for cut in one] if isinstance(one, list | tuple) else int(one)
                for name, one in self.method.bins.items()
            },
            "forbid": [dict(one) for one in self.method.forbid],
            **self.budget.to_json(),
        }

    @classmethod
    def from_json(
        cls, document: Mapping[str, Any], schema: Schema, delta: float, relation: Relation
    ) -> SynthesisPlan:
        """Return what :meth:`to_json` wrote; a damaged document raises SchemaError."""
        try:
            if document["method"] != "oneshot":
                raise SchemaError(f"a plan of the method {document['method']!r}, not known here")
            method = OneShot(
                document["target"],
                document["groups"],
                document["max_cells"],
                document["strength"],
                document["evaluations"],
                dict(document["bins"]),
                list(document["forbid"]),
            )
            budget = GaussianBudget.from_json(document, relation)
            return cls(
                method,
                schema,
                float(document["target_epsilon"]),
                delta,
                document["target"],
                int(document["order"]),
                budget,
                str(document["reason"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"the plan of a synthesis cannot be read: {error}") from None

    def explain(self) -> list[str]:
        """Return, in sentences, what the noise will do before anything is paid."""
        budget, rows = self.budget, self.schema.expected_rows
        unit = "person" if self.schema.person is not None else "row"
        lines = [
            f"{len(self.cells)} columns; {self.loss!r} for one {unit}",
            f"epsilon {self.epsilon:g} at delta {self.delta:g}",
            f"histograms: a noise of {budget.column_stddev:.1f} rows in each cell",
        ]
        if budget.scores:
            lines.append(
                f"choice: {budget.scores} tables of up to {self.order} columns are compared, each "
                f"with a noise of {budget.score_stddev:.0f} rows"
            )
        if self.reason:
            lines.append(self.reason)
        if len(self.cells) > 1:
            one = budget.table_stddevs([0.05])[0]
            lines.append(f"tables: a noise of {one:.1f} rows a cell if 20 are measured alike")
        if rows is not None:
            for cells in self.cells:
                share = min(
                    2.0, cells.size * budget.column_stddev * math.sqrt(2.0 / math.pi) / rows
                )
                lines.append(
                    f"{cells.name}: {cells.size} cells, L1 error of the histogram below {share:.3f}"
                )
        return lines

    def run(
        self,
        source: Any,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        engine: str = "arrow",
        insecure_seed: int | None = None,
        watch: Callable[[str, int, int], None] | None = None,
        **options: Any,
    ) -> SyntheticModel:
        """Charge, read and release the model of a table.

        Parameters
        ----------
        source
            A table of :func:`discreet.engines.open_table`, or anything that it opens.
        ledger, dataset
            The ledger to charge, and the dataset in it.
        unit
            Whom the guarantee protects, where the ledger has another word than row or person.
        engine, options
            For :func:`discreet.engines.open_table`, where ``source`` is not opened yet.
        insecure_seed
            For tests only: the noise can be computed from it.
        watch
            Called with the name of a step, how far it is and how long it may take.

        Returns
        -------
        SyntheticModel
            The released model with its certificate.

        Raises
        ------
        InvalidValue, FileUnusable
            If the source does not fit; nothing was charged.
        BudgetExceeded
            If the budget is too small; nothing was charged.

        """
        stated = stated_unit(unit, persons=self.schema.person is not None)
        loss = self.whole_loss()
        bits = random_source(insecure_seed=insecure_seed)
        opened = None
        table = source
        if not isinstance(source, Table):
            table = opened = open_table(source, self.schema, engine=engine, **options)
        elif table.schema != self.schema:
            raise InvalidValue("source", "a table", "a table of the schema of this plan")
        try:
            with charged(
                ledger, dataset, loss=loss, delta=self.delta, purpose="synthesis", unit=stated
            ) as charge:
                model = _synthesise(self, table, bits, watch or (lambda *_: None))
                certificate = self._certificate(loss, stated, bits, model)
                return finish(model, certificate, charge)
        finally:
            if opened is not None:
                opened.close()

    def _certificate(
        self, loss: Loss, unit: str, bits: Source, model: SyntheticModel
    ) -> Certificate:
        learned = self.schema.learned
        cost: dict[str, Any] = {}
        assumptions: tuple[str, ...] = ()
        if learned is not None:
            cost = {"schema_cost": {**learned.to_json(), "counted": learned.receipt is None}}
        return Certificate.of(
            loss,
            delta=self.delta,
            learner="SyntheticModel",
            plan={
                **self.to_json(),
                "unit": unit,
                "schema_hash": self.schema.content_hash,
                **cost,
            },
            run={"noisy_rows": round(model.total), "tables_measured": len(model.measured)},
            unit=unit,
            randomness=bits.provenance,
            assumptions=assumptions,
        )


def _synthesise(
    plan: SynthesisPlan, table: Table, bits: Source, watch: Callable[[str, int, int], None]
) -> SyntheticModel:
    """Run the three releases and the fit; what is not noisy stays in here."""
    cells, budget, method = plan.cells, plan.budget, plan.method
    count = len(cells)
    watch("histograms", 0, 1)
    exact = count_tables(table, cells, [None] * count, [(at,) for at in range(count)])
    noisy = budget.add_to_columns([counts for _, counts in exact], bits)
    total = _noisy_total(noisy)
    forbidden = Forbidden.read(method.forbid, plan.schema, cells)
    groups = [
        group_cells(
            one,
            histogram,
            budget.column_stddev,
            total,
            most=method.groups,
            alone=forbidden.alone(at),
        )
        for at, (one, histogram) in enumerate(zip(cells, noisy, strict=True))
    ]
    joined = [held.join(histogram) for held, histogram in zip(groups, noisy, strict=True)]
    watch("choice", 0, 1)
    choice = _choose(plan, table, groups, joined, total, bits, list(forbidden.pairs))
    stddevs = budget.table_stddevs(choice.shares)
    watch("tables", 0, 1)
    measured = measured_columns(groups, noisy, budget.column_stddev)
    tables = count_tables(table, cells, groups, choice.tables)
    for (columns, counts), stddev in zip(tables, stddevs, strict=True):
        values = budget.add_to_table(counts, stddev, bits)
        measured.append(Measurement(columns, values, np.full(counts.shape, stddev**2)))
    tree = JunctionTree([held.size for held in groups], choice.cliques)
    conditionals, _ = fit_tree(
        tree,
        measured,
        total,
        strength=method.strength,
        evaluations=method.evaluations,
        impossible=forbidden.masks(groups, tree.sizes),
        watch=lambda at: watch("fit", at, method.evaluations),
    )
    return SyntheticModel(
        plan=plan,
        total=total,
        groups=tuple(groups),
        histograms=tuple(noisy),
        tree=tree,
        conditionals=tuple(conditionals),
        measured=tuple(measured[count:]),
    )


def _noisy_total(noisy: list[NDArray[np.float64]]) -> float:
    """Return the number of rows by all histograms, weighted by inverse variances; at least 1."""
    weights = np.array([1.0 / one.size for one in noisy])
    sums = np.array([one.sum() for one in noisy])
    return max(1.0, float((weights * sums).sum() / weights.sum()))


def _choose(
    plan: SynthesisPlan,
    table: Table,
    groups: list[Groups],
    joined: list[NDArray[np.float64]],
    total: float,
    bits: Source,
    needed: list[Columns],
) -> Choice:
    """Return which tables to measure; where nothing is compared, those with the target."""
    sizes = [held.size for held in groups]
    count, most = len(sizes), plan.method.max_cells
    names = [one.name for one in plan.cells]
    target = None if plan.target is None else names.index(plan.target)
    if plan.budget.scores == 0:
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
    parts = [project(one, total) for one in joined]
    candidates = list_candidates(count, plan.order)
    fitting = [one for one in candidates if count_cells(sizes, one) <= most]
    exact = dict.fromkeys(candidates, 0)
    for columns, counts in count_tables(table, plan.cells, groups, fitting):
        expected = independent_table([parts[at] for at in columns], total)
        exact[columns] = distance_in_steps(counts, expected)
    scores = np.array([exact[one] for one in candidates], dtype=np.int64)
    noisy = dict(zip(candidates, plan.budget.add_to_scores(scores, bits).tolist(), strict=True))
    return choose_tables(
        sizes,
        {one: noisy[one] for one in fitting},
        workload_weights(count, _ORDER, target),
        unit_stddev=plan.budget.table_stddevs([1.0])[0],
        most_cells=most,
        needed=needed,
    )
