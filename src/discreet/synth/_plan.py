"""Plan a synthesis from public facts, then run it: charge, count, add noise, fit, certify."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._rounding import at_most
from discreet.certificate import Certificate
from discreet.data import Schema
from discreet.engines import Table, open_table
from discreet.errors import InvalidValue, RelationMismatch, SchemaError
from discreet.learn import charged, stated_unit
from discreet.privacy import Loss, Relation
from discreet.randomness import source as random_source
from discreet.synth._budget import GaussianBudget
from discreet.synth._categories import OpenCategories
from discreet.synth._cells import FineCells, Groups, fine_cells, group_cells, schema_to_read
from discreet.synth._constraints import Constraints
from discreet.synth._counting import count_tables
from discreet.synth._fitting import Measurement, fit_tree
from discreet.synth._model import SyntheticModel, finish, measured_columns
from discreet.synth._spending import Budget, Spending
from discreet.synth._tree import Columns, JunctionTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Ledger
    from discreet.randomness import Source
    from discreet.synth._methods import TreeMethod

_MOST_LINES = 40


@final
@dataclass(frozen=True)
class SynthesisPlan:
    """What a synthesis will do and cost; made by :meth:`OneShot.plan` from public facts.

    ``order`` is the most columns of a table that may be compared: 3, or 2 where there are too many
    columns, or 1 where only tables with the target are measured, without a choice;
    ``reason`` says why it is not 3. ``open`` says what learning open categories costs.
    """

    method: TreeMethod
    schema: Schema
    epsilon: float
    delta: float
    target: str | None
    order: int
    budget: Budget
    reason: str = ""
    open: OpenCategories | None = None

    @property
    def loss(self) -> Loss:
        """What the whole synthesis reveals about one unit.

        With :class:`OneShot` it is one Gaussian; each open column adds an ApproxDP.
        """
        return Spending(self.budget, self.open).loss

    @property
    def gaussian(self) -> GaussianBudget:
        """The Gaussian noise in the budget."""
        return self.budget if isinstance(self.budget, GaussianBudget) else self.budget.gaussian

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

    @cached_property
    def cells(self) -> tuple[FineCells, ...]:
        """The fine cells of all columns."""
        return fine_cells(self.schema, self.method.bins, self.method.missing)

    @cached_property
    def constraints(self) -> Constraints:
        """What no row has."""
        return Constraints.read(self.method.forbid, self.method.ordered, self.schema, self.cells)

    @property
    def table_schema(self) -> Schema:
        """The schema by which a table is opened for this plan (:func:`open_table`)."""
        return schema_to_read(self.schema, self.method.missing)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            **self.method.to_json(),
            "target_epsilon": self.epsilon,
            "target": self.target,
            "order": self.order,
            "reason": self.reason,
            **Spending(self.budget, self.open).to_json(),
        }

    @classmethod
    def from_json(
        cls, document: Mapping[str, Any], schema: Schema, delta: float, relation: Relation
    ) -> SynthesisPlan:
        """Return what :meth:`to_json` wrote; a damaged document raises SchemaError."""
        from discreet.synth._adaptive import METHODS

        try:
            if document["method"] not in METHODS:
                raise SchemaError(f"a plan of the method {document['method']!r}, not known here")
            spent = Spending.from_json(document, relation)
            return cls(
                METHODS[document["method"]].from_json(document),
                schema,
                float(document["target_epsilon"]),
                delta,
                document["target"],
                int(document["order"]),
                spent.budget,
                str(document["reason"]),
                spent.open,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"the plan of a synthesis cannot be read: {error}") from None

    def explain(self) -> list[str]:
        """Return, in sentences, what the noise will do before anything is paid."""
        unit = "person" if self.schema.person is not None else "row"
        lines = [
            f"{len(self.schema.columns)} columns; {self.loss!r} for one {unit}",
            f"epsilon {self.epsilon:g} at delta {self.delta:g}",
            *self._explain_schema(),
            f"histograms: a noise of {self.gaussian.column_stddev:.1f} rows in each cell",
        ]
        if self.open is not None:
            lines += [
                f"{name}: categories with a noisy count of at least {self.open.step.threshold} are "
                "found, all others are one"
                for name in self.open.columns
            ]
        lines += self.method.explain(self)
        if self.reason:
            lines.append(self.reason)
        if self.schema.expected_rows is not None and self.open is None:
            lines += self._explain_tables(self.schema.expected_rows)
        return lines

    def _explain_schema(self) -> list[str]:
        """Return what the run costs with the learning of the schema, if that was not charged."""
        if self.schema.unpaid_loss() is None:
            return []
        whole = at_most(self.whole_loss().epsilon(delta=self.delta), digits=6)
        return [f"with the learning of the schema, which was not charged: epsilon {whole}"]

    def _explain_tables(self, rows: int) -> list[str]:
        """Return the error that the noise alone makes in each histogram, and in pairs of columns.

        Pairs are those with the target, or all of them; of very many the first.
        """

        def share(cells: int, stddev: float) -> float:
            return min(2.0, cells * stddev * math.sqrt(2.0 / math.pi) / rows)

        lines = [
            f"{one.name}: {one.size} cells, L1 error of the histogram about "
            f"{share(one.size, self.gaussian.column_stddev):.3f}"
            for one in self.cells
        ]
        if len(self.cells) < 2 or (self.order < 2 and self.target is None):
            return lines
        pairs = [
            pair
            for pair in itertools.combinations(self.cells, 2)
            if self.target is None or self.target in {one.name for one in pair}
        ]
        stddev = self.method.table_noise(self)
        for pair in pairs[:_MOST_LINES]:
            sizes = [
                one.size if one.labels is not None else min(one.size, self.method.groups)
                for one in pair
            ]
            cells = math.prod(sizes)
            lines.append(
                f"{pair[0].name} x {pair[1].name}: about {cells} cells, L1 error of the table "
                f"about {share(cells, stddev):.3f} if it is measured"
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
            table = opened = open_table(source, self.table_schema, engine=engine, **options)
        elif table.schema != self.table_schema:
            raise InvalidValue("source", "a table", "a table opened with plan.table_schema")
        try:
            with charged(
                ledger, dataset, loss=loss, delta=self.delta, purpose="synthesis", unit=stated
            ) as charge:
                model = synthesise(self, table, bits, watch or (lambda *_: None))
                certificate = model.plan._certificate(loss, stated, bits, model)
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


@final
@dataclass(frozen=True, eq=False)
class Beginning:
    """What all methods begin with: noisy histograms, the groups of cells, and the noisy total."""

    histograms: list[NDArray[np.float64]]
    groups: list[Groups]
    total: float
    rules: Constraints

    @property
    def sizes(self) -> list[int]:
        """How many groups each column has."""
        return [held.size for held in self.groups]

    @property
    def join(self) -> list[NDArray[np.float64]]:
        """The histograms by groups."""
        return [
            held.join(histogram)
            for held, histogram in zip(self.groups, self.histograms, strict=True)
        ]


@final
@dataclass(frozen=True, eq=False)
class Measured:
    """What a method measured: the cliques of the tree, the noisy tables, and a first fit."""

    cliques: Sequence[Columns]
    tables: list[Measurement]
    potentials: dict[Columns, NDArray[np.float64]] | None = None


def synthesise(
    plan: SynthesisPlan, table: Table, bits: Source, watch: Callable[[str, int, int], None]
) -> SyntheticModel:
    """Run all releases and the fit of a plan that was charged for.

    Parameters
    ----------
    plan
        What to do.
    table
        The bounded table.
    bits
        Where the noise comes from.
    watch
        Called with the name of a step, how far it is and how long it may take.

    Returns
    -------
    SyntheticModel
        The model, without a certificate.

    """
    if plan.open is not None:
        watch("categories", 0, 1)
        plan = replace(plan, schema=plan.open.learn(table, plan.schema, bits))
    watch("histograms", 0, 1)
    begun = _begin(plan, table, bits)
    made = plan.method.measure(plan, table, begun, bits, watch)
    singles = measured_columns(begun.groups, begun.histograms, plan.gaussian.column_stddev)
    tree = JunctionTree(begun.sizes, made.cliques)
    most = plan.method.evaluations
    conditionals, _ = fit_tree(
        tree,
        [*singles, *made.tables],
        begun.total,
        strength=plan.method.strength,
        evaluations=most,
        impossible=begun.rules.masks(begun.groups, tree.sizes),
        start=made.potentials,
        watch=lambda at: watch("fit", at, most),
    )
    return SyntheticModel(
        plan=plan,
        total=begun.total,
        groups=tuple(begun.groups),
        histograms=tuple(begun.histograms),
        tree=tree,
        conditionals=tuple(conditionals),
        measured=tuple(made.tables),
    )


def _begin(plan: SynthesisPlan, table: Table, bits: Source) -> Beginning:
    """Return the noisy histograms of all columns, and what follows from them."""
    cells, budget, rules = plan.cells, plan.gaussian, plan.constraints
    exact = count_tables(table, cells, [None] * len(cells), [(at,) for at in range(len(cells))])
    noisy = budget.add_to_columns([counts for _, counts in exact], bits)
    total = _noisy_total(noisy)
    groups = [
        group_cells(
            one,
            histogram,
            budget.column_stddev,
            total,
            most=plan.method.groups,
            alone=rules.find_lone_cells(at),
        )
        for at, (one, histogram) in enumerate(zip(cells, noisy, strict=True))
    ]
    return Beginning(noisy, groups, total, rules)


def _noisy_total(noisy: list[NDArray[np.float64]]) -> float:
    """Return the number of rows by all histograms, weighted by inverse variances; at least 1."""
    weights = np.array([1.0 / one.size for one in noisy])
    sums = np.array([one.sum() for one in noisy])
    return max(1.0, float((weights * sums).sum() / weights.sum()))
