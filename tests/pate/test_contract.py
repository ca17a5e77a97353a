"""The contract of an aggregator: one plan for all, chances that come true, one of one's own."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.errors import InvalidValue, NotApplicable
from discreet.pate import (
    Aggregator,
    ConfidentGNMax,
    Costs,
    GNMax,
    InteractiveGNMax,
    LaplaceMax,
    Outcome,
    PATEClassifier,
    Prospect,
    SampledVotes,
    SparseVotes,
    StableVotes,
    VoteProfile,
    compare_aggregators,
    data_dependent_rdp,
    plan_votes,
    stated_plan,
)
from discreet.privacy import ApproxDP
from discreet.randomness import Source, uniform_integers

SHAPE: dict[str, Any] = {"classes": 3, "teachers": 60}
ALL = [
    LaplaceMax(**SHAPE, scale=20),
    GNMax(**SHAPE, noise=15),
    ConfidentGNMax(**SHAPE, threshold=30, selection_noise=12, answer_noise=15),
    InteractiveGNMax(**SHAPE, threshold=10, selection_noise=12, answer_noise=15),
    StableVotes(**SHAPE, epsilon=1, delta=1e-3),
    SampledVotes(**SHAPE, epsilon=1, delta=1e-3),
    SparseVotes(**SHAPE, fails=1, epsilon=4, delta=1e-2),
]
VOTES = np.array([[40, 15, 5], [25, 25, 10], [30, 18, 12], [5, 10, 45]])
LABELS = np.array([0, 1, 0, 2])
PREDICTION = [0.5, 0.3, 0.2]
EXPECTED = np.tile(np.rint(60 * np.array(PREDICTION)).astype(np.int64), (len(VOTES), 1))
ROUNDS = 400
every = pytest.mark.parametrize("one", ALL, ids=lambda one: type(one).__name__)


@every
def test_one_plan_for_all(one: Aggregator) -> None:
    assert one.plan(queries=7).queries == 7
    needed = one.plan(queries=7).loss.epsilon(delta=0.02)
    within = one.plan(queries=7, epsilon=needed * 1.001, delta=0.02)
    assert within.queries == 7
    assert within.loss.epsilon(delta=0.02) <= needed * 1.001
    with pytest.raises(InvalidValue, match="delta"):
        one.plan(queries=7, delta=0.02)
    with pytest.raises(InvalidValue, match="epsilon"):
        one.plan(queries=7, epsilon=1e-9, delta=1e-12)
    session = one.open(queries=7, insecure_seed=1)
    assert session.plan == one.plan(queries=7)


def outcomes(one: Aggregator) -> tuple[np.ndarray, np.ndarray]:
    """How often each histogram was answered, and answered rightly."""
    table = np.repeat(VOTES, ROUNDS, axis=0)
    extra = {"predictions": [PREDICTION] * len(table)} if one.reads_predictions else {}
    if isinstance(one, SparseVotes):  # a session of its own for each: queries share noise
        labels = [one.open(insecure_seed=k).answer(row) for k, row in enumerate(table)]
    else:
        labels = one.open(queries=len(table), insecure_seed=11).answer_many(table, **extra)
    assert len(labels) == len(table)
    found = np.array([-1 if label is None else label for label in labels]).reshape(-1, ROUNDS)
    return (found >= 0).sum(axis=1), (found == LABELS[:, None]).sum(axis=1)


def deviations(chances: np.ndarray, trials: np.ndarray, hits: np.ndarray) -> float:
    """The largest distance from the expected count, in standard deviations (at least one count)."""
    spread = np.sqrt(np.maximum(trials * chances * (1 - chances), 1.0))
    return float(np.max(np.abs(hits - trials * chances) / spread))


@pytest.mark.slow
@every
def test_chances_come_true(one: Aggregator) -> None:
    """Seeded; six deviations in eight counts: a false alarm in 6e7 seeds."""
    answered, right = one.chances(VOTES, LABELS, EXPECTED)
    seen, hits = outcomes(one)
    assert deviations(answered, np.full(4, ROUNDS), seen) < 6
    assert deviations(right, seen, hits) < 6


def test_chances_of_other_noise_are_told_apart() -> None:
    seen, hits = outcomes(GNMax(**SHAPE, noise=15))
    _, wrong = GNMax(**SHAPE, noise=30).chances(VOTES, LABELS)
    assert deviations(wrong, seen, hits) > 6
    seen, _ = outcomes(StableVotes(**SHAPE, epsilon=1, delta=1e-3))
    rarely, _ = StableVotes(**SHAPE, epsilon=0.5, delta=1e-3).chances(VOTES, LABELS)
    assert deviations(rarely, np.full(4, ROUNDS), seen) > 6


def test_answers_of_a_sparse_session_have_no_price_of_their_own() -> None:
    with pytest.raises(NotApplicable, match="one loss for all"):
        _ = ALL[6].costs
    with pytest.raises(InvalidValue, match="answers"):
        ALL[6].plan(queries=7, answers=3)


# --- an aggregator from outside: one class, and nothing else to change -------------------------


@dataclass(frozen=True, kw_only=True)
class RandomTeacher(Aggregator):
    """The vote of a teacher that is drawn anew for each query.

    One moved vote changes the label's distribution by 1 / teachers: (0, 1 / teachers)-DP.
    """

    @property
    def costs(self) -> Costs:
        return Costs(ApproxDP(0, Fraction(1, self.teachers), self.neighbours), None)

    def decide(self, table: Any, predictions: Any, source: Source) -> Iterator[Outcome]:
        drawn = uniform_integers(self.teachers, len(table), source=source)
        for counts, teacher in zip(table, drawn, strict=True):
            label = int(np.searchsorted(np.cumsum(counts), int(teacher), side="right"))
            yield Outcome(label, True)


def test_an_aggregator_of_ones_own_runs_sessions() -> None:
    own = RandomTeacher(classes=3, teachers=60)
    assert own.parameters == {
        "aggregator": "RandomTeacher",
        "classes": 3,
        "teachers": 60,
        "relation": "add_remove",
    }
    plan = own.plan(epsilon=0.1, delta=0.5)
    assert (plan.queries, plan.loss.epsilon(delta=0.5)) == (41, 0.0)  # 1 - (59/60)^41 < 1/2
    session = own.open(queries=3000, insecure_seed=3)
    labels = session.answer_many([[30, 20, 10]] * 3000)
    shares = np.bincount(np.array(labels), minlength=3) / 3000
    assert np.abs(shares - np.array([30, 20, 10]) / 60).max() < 6 * 0.5 / np.sqrt(3000)
    with pytest.raises(NotApplicable, match="data-dependent"):
        data_dependent_rdp(own, [[30, 20, 10]])
    with pytest.raises(NotApplicable, match="would answer"):
        own.chances(VOTES, LABELS)
    assert RandomTeacher.__name__ not in {
        found.name
        for found in compare_aggregators(VOTES, epsilon=1, delta=1e-5, classes=3, teachers=60)
    }


def test_an_aggregator_of_ones_own_labels_for_a_student() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(900, 2))
    model = PATEClassifier(
        classes=[0, 1],
        epsilon=0.1,
        delta=0.5,
        teachers=60,
        aggregator=RandomTeacher(classes=2, teachers=60),
        insecure_seed=1,
    )
    model.fit(rows, (rows[:, 0] > 0).astype(int), public=rng.normal(size=(80, 2)))
    assert len(model.labels_) == 41
    assert model.certificate_.plan["aggregator"]["aggregator"] == "RandomTeacher"
    assert model.certificate_.epsilon <= 0.1


def test_an_aggregator_without_decisions_says_so() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Silent(Aggregator):
        """Has a cost and nothing else."""

        @property
        def costs(self) -> Costs:
            return Costs(ApproxDP(0, Fraction(1, self.teachers), self.neighbours), None)

    session = Silent(**SHAPE).open(queries=1, insecure_seed=1)
    with pytest.raises(NotImplementedError, match="neither decide nor start"):
        session.answer([60, 0, 0])


@pytest.mark.slow
def test_planning_knows_the_contract_only() -> None:
    """A kind from outside is planned by its name, read from a certificate, and proposed."""

    @dataclass(frozen=True, kw_only=True)
    class EagerTeacher(RandomTeacher):
        share: int = 1

        @classmethod
        def for_queries(cls, queries: int, *, epsilon: float, delta: float, **common: Any) -> Any:
            return cls(**common, share=queries)

        @classmethod
        def propose(cls, profile: VoteProfile) -> Prospect | None:
            if profile.teachers != 10_007:  # a class may outlive its test
                return None
            made = cls(**profile.common)
            return Prospect(cls.__name__, 1e9, 1.0, 1.0, made, {"queries": 1})

    shape: dict[str, Any] = {"classes": 3, "teachers": 10_007}
    budget = {"epsilon": 1.0, "delta": 0.1, "public_rows": 50}
    plan = plan_votes("eagerteacher", **shape, **budget, queries=20)
    assert plan.aggregator == EagerTeacher(**shape, share=20)
    assert plan_votes("auto", **shape, **budget).aggregator == EagerTeacher(**shape)
    stated = {
        "aggregator": plan.aggregator.parameters,
        "budget": plan.budget,
        "queries_planned": 20,
        "chosen_because": plan.reason,
    }
    assert stated_plan(stated) == plan
    with pytest.raises(NotApplicable, match="SparseVotes does not choose"):
        plan_votes("sparsevotes", **shape, **budget)
    with pytest.raises(InvalidValue, match="gnmax"):
        plan_votes("gnmaxx", **shape, **budget)
    source = Path(inspect.getsourcefile(plan_votes) or "").read_text(encoding="utf-8")
    code = ast.parse(source)
    names = {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}
    assert not names & {type(one).__name__ for one in ALL}


@pytest.mark.parametrize("one", ALL, ids=lambda one: type(one).__name__)
def test_an_aggregator_is_made_again_from_its_parameters(one: Aggregator) -> None:
    fields = dict(one.parameters)
    kind = Aggregator.kinds()[fields.pop("aggregator")]
    assert kind.from_parameters(fields) == one


def test_nobody_takes_the_name_of_an_aggregator_of_the_package() -> None:
    class GNMax(RandomTeacher):
        """An impostor: cheaper than the real one."""

    assert Aggregator.kinds()["GNMax"] is type(ALL[1])
    assert issubclass(GNMax, Aggregator)
