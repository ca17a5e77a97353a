"""Two linked tables: persons, and their visits, of which each person has at most k.

A person is one row of the first table and up to k rows of the second. Adding or removing a person
moves a table of persons by 1 and a table of visits, or of a column of persons with one of visits,
by at most k. The releases are:

1. the table of persons, with the number of visits as one more column (:class:`OneShot`);
2. the histogram of every column of visits, at sensitivity k;
3. the table of every column of persons with every column of visits, and of every two columns of
   visits, at sensitivity k.

All noise is Gaussian, so the whole is one Gaussian. Synthetic persons come from the first model,
with a number of visits each. Column after column, the visits then follow P(v | person, earlier
columns), the most even distribution whose tables with each of the others are the measured ones: a
multinomial regression with one weight for each cell of these tables, fitted to synthetic persons.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import sparse

from discreet import _validate
from discreet.certificate import Certificate
from discreet.data import Date, Integer, Labelled, Schema, import_arrow, open_input
from discreet.engines import open_table, stored_columns
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import charged, default_delta, stated_unit
from discreet.privacy import GDP, Relation
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import source as random_source
from discreet.synth._budget import GaussianBudget
from discreet.synth._cells import FineCells, Groups, fine_cells, group_cells, uniforms
from discreet.synth._counting import count_tables
from discreet.synth._fitting import Point, minimise
from discreet.synth._methods import MOST_EPSILON, OneShot
from discreet.synth._model import SyntheticModel, finish
from discreet.synth._plan import SynthesisPlan, synthesise
from discreet.synth._released import Released
from discreet.synth._sampling import sample_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Ledger
    from discreet.randomness import Source

_PERSONS_SHARE, _HISTOGRAM_SHARE = 0.3, 0.15
_BATCH = 1 << 16
_FIT_ROWS, _FIT_EVALUATIONS = 20_000, 150
_ATTEMPTS = 40


@final
@dataclass(frozen=True)
class LinkedTables:
    """A synthesis of a table of persons and a table of their visits.

    Parameters
    ----------
    persons
        How the table of persons is learned.
    groups
        About how many groups a column of numbers of visits is cut into.
    strength
        How strongly the fit of the visits is pulled towards uniform cells.

    """

    persons: OneShot = field(default_factory=OneShot)
    groups: int = 16
    strength: float = 0.01

    def __post_init__(self) -> None:
        how: Any = self.persons
        if not isinstance(how, OneShot) or how.missing:
            expected = "a OneShot without missing, because cells are read before persons are joined"
            raise InvalidValue("persons", self.persons, expected)
        _validate.integer("groups", self.groups, at_least=2, at_most=1 << 12)
        _validate.real("strength", self.strength, at_least=1e-9, at_most=1)

    def plan(
        self, persons: Schema, visits: Schema, *, epsilon: float, delta: float | None = None
    ) -> LinkedPlan:
        """Return the plan for two tables; nothing is read.

        Parameters
        ----------
        persons
            The schema of the persons; ``person`` names their key, and ``rows_per_person`` is 1.
        visits
            The schema of the visits; ``person`` names the key of their person, and at most
            ``rows_per_person`` visits of each are used.
        epsilon, delta
            The budget. Without a delta it follows from ``expected_rows`` of the persons.

        Raises
        ------
        InvalidValue, NotApplicable
            If a schema or a parameter does not do.

        """
        given: dict[str, Any] = {"persons": persons, "visits": visits}
        for name, one in given.items():
            if not isinstance(one, Schema) or one.person is None:
                raise InvalidValue(name, type(one).__name__, "a Schema that names its person")
            one.require_complete()
            stored_columns(one)
            if one.learned is not None:
                raise NotApplicable("linked tables do not count what it cost to learn a schema")
        if persons.rows_per_person != 1:
            raise InvalidValue("persons", persons.rows_per_person, "one row for each person")
        if delta is None:
            if persons.expected_rows is None:
                raise InvalidValue("delta", None, "a delta, or expected_rows of the persons")
            delta = default_delta(persons.expected_rows)
        most = visits.rows_per_person or 1
        counted = "visits" if "visits" not in persons.columns else "number of visits"
        whole = Schema(
            {**persons.columns, counted: Integer(0, most)},
            target=persons.target,
            expected_rows=persons.expected_rows,
        )
        _validate.real("epsilon", epsilon, above=0, at_most=MOST_EPSILON)
        mu = gaussian_mu(epsilon, delta)
        for attempt in range(_ATTEMPTS):
            # Where delta alone would pay for the persons, their epsilon is read at a smaller one.
            share, point = GDP(math.sqrt(_PERSONS_SHARE) * mu), delta
            while (part := share.epsilon(delta=point)) <= 0.0:
                point /= 2.0
            first = self.persons.plan(whole, epsilon=part, delta=point)
            budget = GaussianBudget.of_mu(
                len(visits.columns),
                math.sqrt(_HISTOGRAM_SHARE) * mu,
                math.sqrt(1.0 - _PERSONS_SHARE - _HISTOGRAM_SHARE) * mu,
                Relation.ADD_REMOVE,
                most,
            )
            budget.check_tables()
            plan = LinkedPlan(self, persons, visits, epsilon, delta, counted, first, budget)
            if plan.loss.epsilon(delta=delta) <= epsilon:
                return plan
            mu *= 1.0 - 2.0 ** (attempt - 40)
        raise NotApplicable(f"no noise was certified for epsilon {epsilon} and delta {delta}")


@final
@dataclass(frozen=True)
class LinkedSpending:
    """What a synthesis of two tables costs: the noise of persons, and that of visits."""

    persons: GaussianBudget
    visits: GaussianBudget

    @property
    def loss(self) -> GDP:
        """The sum of both: one Gaussian."""
        return GDP(math.hypot(self.persons.loss.mu, self.visits.loss.mu) * (1.0 + 2.0**-48))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LinkedSpending:
        """Return what a certificate states; a damaged document raises SchemaError."""
        try:
            return cls(
                *(
                    GaussianBudget.from_json(document[name], Relation.ADD_REMOVE)
                    for name in ("persons", "visits")
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"the plan of a synthesis cannot be read: {error}") from None


@final
@dataclass(frozen=True)
class LinkedPlan:
    """What a synthesis of two tables will do and cost; made by :meth:`LinkedTables.plan`."""

    method: LinkedTables
    persons: Schema
    visits: Schema
    epsilon: float
    delta: float
    counted: str
    first: SynthesisPlan
    budget: GaussianBudget

    @property
    def loss(self) -> GDP:
        """What both tables reveal about one person: one Gaussian."""
        return LinkedSpending(self.first.gaussian, self.budget).loss

    @property
    def tables(self) -> list[tuple[int, int]]:
        """The pairs of columns to measure: persons come first, then visits, in one numbering."""
        known, count = len(self.persons.columns), len(self.visits.columns)
        visits = range(known, known + count)
        return [*itertools.product(range(known), visits), *itertools.combinations(visits, 2)]

    def run(
        self,
        persons: Any,
        visits: Any,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        insecure_seed: int | None = None,
    ) -> LinkedModel:
        """Charge, read and release the model of two tables.

        Parameters
        ----------
        persons, visits
            Files, data frames or mappings of columns. Of several rows with the key of one person
            the first is taken; a visit of somebody who is not among the persons is left out.
        ledger, dataset
            The ledger to charge, and the dataset in it.
        unit
            Whom the guarantee protects, where the ledger has another word than person.
        insecure_seed
            For tests only: the noise can be computed from it.

        Returns
        -------
        LinkedModel
            The released model with its certificate.

        Raises
        ------
        InvalidValue, FileUnusable
            If a table does not fit; nothing was charged.
        BudgetExceeded
            If the budget is too small; nothing was charged.

        """
        stated = stated_unit(unit, persons=True)
        bits = random_source(insecure_seed=insecure_seed)
        first_input = open_input(persons, self.persons)
        second_input = open_input(visits, self.visits)
        with charged(
            ledger, dataset, loss=self.loss, delta=self.delta, purpose="synthesis", unit=stated
        ) as charge:
            first, second = join_tables(first_input, second_input, self)
            key = bits.read(32)
            with_visits = open_table(first, self.first.schema, engine="arrow")
            model = synthesise(self.first, with_visits, bits, lambda *_: None)
            released = self._measure(model, second, key, bits)
            return finish(released, self._certificate(released, stated, bits), charge)

    def joined_schema(self) -> Schema:
        """Return the schema of the visits with the columns of their persons."""
        return Schema(
            {
                **{f"p{at}": one for at, one in enumerate(self.persons.columns.values())},
                **{f"v{at}": one for at, one in enumerate(self.visits.columns.values())},
            },
            person="key",
            rows_per_person=self.visits.rows_per_person,
        )

    def _measure(
        self, model: SyntheticModel, visits: Mapping[str, Any], key: bytes, bits: Source
    ) -> LinkedModel:
        table = open_table(visits, self.joined_schema(), engine="arrow", key=key)
        cells = fine_cells(self.joined_schema())
        known = len(self.persons.columns)
        places = [(at,) for at in range(known, len(cells))]
        exact = count_tables(table, cells, [None] * len(cells), places)
        noisy = self.budget.add_to_columns([counts for _, counts in exact], bits)
        stddev = self.budget.column_stddev
        total = max(1.0, float(np.mean([one.sum() for one in noisy])))
        groups = [
            *model.groups[:known],
            *(
                group_cells(cells[at], one, stddev, total, most=self.method.groups)
                for (at,), one in zip(places, noisy, strict=True)
            ),
        ]
        sizes = [one.size for one in groups]
        cost = np.array([float(sizes[a] * sizes[b]) for a, b in self.tables]) ** (2.0 / 3.0)
        shares = np.exp(np.rint(4.0 * np.log(cost)) / 4.0)
        stddevs = self.budget.table_stddevs((shares / shares.sum()).tolist())
        measured = {
            (pair[0], pair[1]): (self.budget.add_to_table(counts, one, bits), one)
            for (pair, counts), one in zip(
                count_tables(table, cells, groups, self.tables), stddevs, strict=True
            )
        }
        histograms = [held.join(one) for held, one in zip(groups[known:], noisy, strict=True)]
        weights = _fit(self, model, sizes, histograms, measured)
        return LinkedModel(self, model, tuple(groups[known:]), tuple(weights))

    def _certificate(self, model: LinkedModel, unit: str, bits: Source) -> Certificate:
        return Certificate.of(
            self.loss,
            delta=self.delta,
            learner="LinkedModel",
            plan={
                "method": "linked",
                "persons_hash": self.persons.content_hash,
                "visits_hash": self.visits.content_hash,
                "persons": self.first.to_json(),
                "visits": self.budget.to_json(),
                "unit": unit,
            },
            run={"noisy_persons": round(model.persons.total), "tables_measured": len(self.tables)},
            unit=unit,
            randomness=bits.provenance,
        )


@final
@dataclass(frozen=True, eq=False)
class LinkedModel(Released):
    """A distribution over persons with their visits, learned privately.

    ``persons`` is the model of the persons; it answers tables with error bars.
    """

    plan: LinkedPlan
    persons: SyntheticModel
    groups: tuple[Groups, ...]
    weights: tuple[NDArray[np.float64], ...]
    certificate: Certificate | None = None
    schema = None

    def sample(self, n: int | None = None, *, seed: int | None = None) -> tuple[Any, Any]:
        """Return synthetic persons and their visits; it costs nothing, however often.

        Parameters
        ----------
        n
            How many persons; by default the noisy number of them.
        seed
            Makes the rows repeatable. The model is public, so this hides nothing.

        Returns
        -------
        tuple of pyarrow.Table
            The persons, whose keys are made up, and the visits, each with the key of its person.

        """
        pa = import_arrow("pyarrow")
        bits = random_source(insecure_seed=seed)
        rows = _validate.integer("n", round(self.persons.total) if n is None else n, at_least=0)
        codes, stored, counts = _draw_persons(self.plan, self.persons, rows, bits)
        owner = np.repeat(np.arange(rows), counts)
        plan = self.plan
        made = {cells.name: cells.decode(stored[at]) for at, cells in enumerate(self._cells(True))}
        persons = pa.table({str(plan.persons.person): pa.array(np.arange(rows)), **made})
        known = [one[owner] for one in codes]
        visits: dict[str, Any] = {str(plan.visits.person): pa.array(owner)}
        for cells, held, weight in zip(self._cells(False), self.groups, self.weights, strict=True):
            sizes = [*self.persons.tree.sizes[: len(codes)], *(one.size for one in self.groups)]
            chances = _chances(_design(known, sizes[: len(known)]) @ weight)
            ends = np.cumsum(chances, axis=1)
            ends[:, -1] = 1.0
            drawn = (uniforms(owner.size, bits)[:, None] >= ends).sum(axis=1)
            known.append(drawn)
            visits[cells.name] = cells.decode(cells.draw(held.draw(drawn, bits), bits))
        return persons, pa.table(visits)

    def _cells(self, persons: bool) -> Sequence[FineCells]:
        return fine_cells(self.plan.persons if persons else self.plan.visits)

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the head and the arrays of the file."""
        plan = self.plan
        first, held = self.persons._contents()
        head = {
            "persons": first,
            "schemas": [plan.persons.to_toml(), plan.visits.to_toml()],
            "groups": int(plan.method.groups),
            "strength": float(plan.method.strength),
            "epsilon": float(plan.epsilon),
            "delta": float(plan.delta),
            "counted": plan.counted,
            "visits": plan.budget.to_json(),
        }
        arrays = {f"persons_{name}": one for name, one in held.items()}
        for at, (groups, weight) in enumerate(zip(self.groups, self.weights, strict=True)):
            arrays |= {f"group_{at}": groups.group_of, f"share_{at}": groups.share}
            arrays[f"weight_{at}"] = weight
        return head, arrays

    @classmethod
    def _restore(cls, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> LinkedModel:
        held = {
            name.removeprefix("persons_"): one
            for name, one in arrays.items()
            if name.startswith("persons_")
        }
        first = SyntheticModel._restore(head["persons"], held)
        persons, visits = (Schema.from_toml(one) for one in head["schemas"])
        how: Any = first.plan.method
        plan = LinkedPlan(
            LinkedTables(how, head["groups"], head["strength"]),
            persons,
            visits,
            float(head["epsilon"]),
            float(head["delta"]),
            str(head["counted"]),
            first.plan,
            GaussianBudget.from_json(head["visits"], Relation.ADD_REMOVE),
        )
        count = len(visits.columns)
        groups = tuple(Groups(arrays[f"group_{at}"], arrays[f"share_{at}"]) for at in range(count))
        weights = tuple(arrays[f"weight_{at}"] for at in range(count))
        known = 1 + sum(first.tree.sizes[: len(persons.columns)])
        for cells, one, weight in zip(fine_cells(visits), groups, weights, strict=True):
            if not one.group_of.shape == one.share.shape == (cells.size,):
                raise ValueError("groups that are not those of the schema")
            if weight.shape != (known, one.size):
                raise ValueError("weights that are not those of the columns")
            known += one.size
        return cls(plan, first, groups, weights)

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> LinkedSpending:
        """Return what has the loss that a certificate's plan states, computed again."""
        return LinkedSpending.from_json(certificate.plan)


def join_tables(
    persons: Any, visits: Any, plan: LinkedPlan
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table of persons with their number of visits, and that of visits with persons.

    What a person adds to either depends on the rows with the key of that person alone. So does
    the name by which a person's visits are put in line: a digest of the key, not a place.
    """
    keys, columns = _read(persons, plan.persons)
    place: dict[bytes, int] = {}
    rows = []
    for at, key in enumerate(keys):
        if key and key not in place:
            place[key] = len(place)
            rows.append(at)
    known = {name: values[np.array(rows, dtype=np.int64)] for name, values in columns.items()}
    owners, others = _read(visits, plan.visits)
    owner = np.array([place.get(one, -1) for one in owners], dtype=np.int64)
    there = owner >= 0
    owner = owner[there]
    counts = np.bincount(owner, minlength=len(place))
    joined = {f"p{at}": values[owner] for at, values in enumerate(known.values())}
    joined |= {f"v{at}": values[there] for at, values in enumerate(others.values())}
    names = np.array([hashlib.sha256(key).hexdigest() for key in place], dtype=object)
    return {**known, plan.counted: counts}, {**joined, "key": names[owner]}


def _read(source: Any, schema: Schema) -> tuple[list[bytes], dict[str, NDArray[Any]]]:
    """Return the key of every row, and its values in the domain of the schema."""
    keys: list[bytes] = []
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in schema.columns}
    for batch in source.batches(schema.file_columns, _BATCH):
        codes, names = batch.texts(str(schema.person))
        keys += [names[at] for at in codes.tolist()]
        for name, column in schema.columns.items():
            parts[name].append(column.to_domain(batch.numbers(name, column)))
    found: dict[str, NDArray[Any]] = {}
    for name, column in schema.columns.items():
        values = np.concatenate([np.zeros(0), *parts[name]])
        if isinstance(column, Labelled):
            labels = np.array([*column.labels, ""], dtype=object)
            found[name] = labels[values.astype(np.int64)]
        elif isinstance(column, Date):
            found[name] = values.astype(np.int64).astype("datetime64[D]")
        else:
            found[name] = values
    return keys, found


def _draw_persons(
    plan: LinkedPlan, model: SyntheticModel, rows: int, bits: Source
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]], NDArray[np.int64]]:
    """Return the groups, the stored values and the number of visits of synthetic persons."""
    codes = sample_rows(model.tree, model.conditionals, rows, bits)
    stored = [
        cells.draw(held.draw(code, bits), bits)
        for cells, held, code in zip(model.plan.cells, model.groups, codes, strict=True)
    ]
    known = len(plan.persons.columns)
    return codes[:known], stored[:known], stored[known]


def _design(codes: Sequence[NDArray[np.int64]], sizes: Sequence[int]) -> Any:
    """Return rows of zeros and ones, a block of columns for each code and one for all rows."""
    rows = codes[0].size
    starts = np.cumsum([1, *sizes[: len(codes)]])
    places = np.column_stack(
        [
            np.zeros(rows, dtype=np.int64),
            *(code + at for code, at in zip(codes, starts, strict=False)),
        ]
    )
    ends = np.arange(rows + 1) * places.shape[1]
    ones = np.ones(places.size)
    return sparse.csr_matrix((ones, places.ravel(), ends), shape=(rows, int(starts[-1])))


def _chances(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _fit(
    plan: LinkedPlan,
    model: SyntheticModel,
    sizes: Sequence[int],
    histograms: Sequence[NDArray[np.float64]],
    measured: Mapping[tuple[int, int], tuple[NDArray[np.float64], float]],
) -> list[NDArray[np.float64]]:
    """Return the weights of each column of visits; all of it is public."""
    bits = random_source(insecure_seed=0)  # nothing hangs on these rows being secret
    known = len(plan.persons.columns)
    codes, _, counts = _draw_persons(plan, model, min(round(model.total), _FIT_ROWS), bits)
    owner = np.repeat(np.arange(codes[0].size), counts)[:_FIT_ROWS]
    if not owner.size:
        owner = np.arange(codes[0].size)
    rows = [one[owner] for one in codes]
    found: list[NDArray[np.float64]] = []
    for at, histogram in enumerate(histograms, known):
        design = _design(rows, sizes[: len(rows)])
        target = [histogram[None, :]]
        variance = [np.full((1, sizes[at]), plan.budget.column_stddev**2)]
        for other in range(len(rows)):
            values, stddev = measured[(other, at)]
            target.append(values)
            variance.append(np.full(values.shape, stddev**2))
        weight = _regress(design, np.vstack(target), np.vstack(variance), plan.method.strength)
        found.append(weight)
        ends = np.cumsum(_chances(design @ weight), axis=1)
        ends[:, -1] = 1.0
        rows.append((uniforms(owner.size, bits)[:, None] >= ends).sum(axis=1))
    return found


def _regress(
    design: Any, counts: NDArray[np.float64], variance: NDArray[np.float64], strength: float
) -> NDArray[np.float64]:
    """Return weights for which the expected counts are the noisy ones, given the design.

    Every row of ``counts`` is scaled to as many rows as the design has of its kind.
    """
    rows = design.shape[0]
    there = np.asarray(design.sum(axis=0)).ravel()
    noise = np.sqrt(variance.sum(axis=1))
    scale = (there / np.maximum(counts.sum(axis=1), noise))[:, None]
    target, pull = counts * scale / rows, strength * variance * scale**2 / rows
    shape = counts.shape
    done = [0]

    def evaluate(theta: NDArray[np.float64]) -> Point:
        done[0] += 1
        weight = theta.reshape(shape)
        scores = design @ weight
        top = scores.max(axis=1, keepdims=True)
        raised = np.exp(scores - top)
        total = raised.sum(axis=1, keepdims=True)
        expected = np.asarray(design.T @ (raised / total)) / rows
        value = float((top + np.log(total)).mean() - (weight * target).sum())
        value += 0.5 * float((pull * weight**2).sum())
        gradient = expected - target + pull * weight
        return Point(theta, value, gradient.ravel(), (expected + pull + 1e-9).ravel(), [])

    best = minimise(evaluate, np.zeros(counts.size), lambda: done[0] >= _FIT_EVALUATIONS)
    return best.theta.reshape(shape)
