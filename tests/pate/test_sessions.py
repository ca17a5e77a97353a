"""S23, S24: plans, sessions, refusals and bad input of every aggregator."""

import copy
import json
import math
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from discreet.errors import BudgetExceeded, InvalidValue, NotApplicable
from discreet.ledger import Ledger
from discreet.mechanisms import MechanismHalted
from discreet.pate import (
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LaplaceMax,
    SampledVotes,
    SparseVotes,
    StableVotes,
    count_votes,
)
from discreet.pate._aggregator import most_queries
from discreet.privacy import GDP, ApproxDP, PureDP, to_json
from discreet.privacy.theorems import gaussian_epsilon

ENSEMBLE = {"classes": 3, "teachers": 60}
SELECTIVE = {"threshold": 40, "selection_noise": 8, "answer_noise": 4}
EVERY = [
    LaplaceMax(**ENSEMBLE, scale=10),
    GNMax(**ENSEMBLE, noise=8),
    ConfidentGNMax(**ENSEMBLE, **SELECTIVE),
    InteractiveGNMax(**ENSEMBLE, **SELECTIVE),
    StableVotes(**ENSEMBLE, epsilon="1/2", delta=1e-6),
    SampledVotes(**ENSEMBLE, epsilon="1/2", delta=1e-6),
    SparseVotes(**ENSEMBLE, fails=3, epsilon=2, delta=1e-5),
]
names = [type(one).__name__ for one in EVERY]
every = pytest.mark.parametrize("aggregator", EVERY, ids=names)
AGREED, SPLIT = [58, 1, 1], [20, 20, 20]


def opened(aggregator, queries=4, **how):
    budget = {} if isinstance(aggregator, SparseVotes) else {"queries": queries}
    return aggregator.open(**budget, **({"insecure_seed": 5} | how))


def ask(session, votes):
    interactive = session.provenance["aggregator"] == "InteractiveGNMax"
    return session.answer(votes, prediction=[0, 0, 1] if interactive else None)


@every
def test_a_session_ends_by_its_plan_and_never_answers_again(aggregator) -> None:
    session = opened(aggregator)
    asked = 0
    while not session.halted:
        assert ask(session, SPLIT) in (0, 1, 2, None)
        asked += 1
        assert asked < 100
    assert session.asked == asked
    assert asked == (3 if isinstance(aggregator, SparseVotes) else 4)
    for _ in range(20):
        with pytest.raises(MechanismHalted):
            ask(session, AGREED)
    assert session.asked == asked


@every
def test_refusal_does_not_depend_on_the_votes(aggregator) -> None:
    """Given equal answers, two sessions on different votes end at the same query."""
    if isinstance(aggregator, SparseVotes):
        plan = aggregator.plan()
        assert plan.has_room(queries=50, answers=48)
        assert not plan.has_room(queries=50, answers=47)
        return
    plan = aggregator.plan(epsilon=3.0, delta=1e-5)
    lengths = set()
    for votes in (AGREED, SPLIT):
        session = aggregator.open(epsilon=3.0, delta=1e-5, insecure_seed=1)
        answers = []
        while not session.halted:
            before = session.answers
            ask(session, votes)
            answers.append(session.answers > before)
            room = plan.has_room(queries=len(answers), answers=sum(answers))
            assert room != session.halted
        lengths.add(len(answers))
    if aggregator.costs.answer is None:
        assert len(lengths) == 1


@every
def test_the_loss_is_known_before_and_charged_first(aggregator) -> None:
    seen = []
    session = opened(aggregator, charge=seen.append)
    assert seen == [session.loss] == [session.plan.loss]
    to_json(session.loss)

    def broke(loss):
        raise BudgetExceeded("nothing left")

    with pytest.raises(BudgetExceeded):
        opened(aggregator, charge=broke)


@every
def test_the_loss_composes_and_a_ledger_takes_it(aggregator, tmp_path: Path) -> None:
    session = opened(aggregator)
    both = session.loss + PureDP("0.1")
    assert both.epsilon(delta=1e-4) > session.loss.epsilon(delta=1e-4)
    with Ledger.create(tmp_path / "budget.ledger") as ledger:
        ledger.create_dataset("patients", epsilon=100, delta=1e-3)
        opened(aggregator, charge=lambda loss: ledger.charge("patients", loss, delta=1e-5))


@every
def test_provenance_is_public_and_records_the_seed(aggregator) -> None:
    session = opened(aggregator, insecure_seed=77)
    text = json.dumps(session.provenance)
    assert "INSECURE seed 77" in text
    assert type(aggregator).__name__ in text
    assert "operating system" in json.dumps(opened(aggregator, insecure_seed=None).provenance)
    again = [ask(opened(aggregator, insecure_seed=9), SPLIT) for _ in range(2)]
    assert again[0] == again[1]


@every
def test_sessions_are_not_copied(aggregator) -> None:
    session = opened(aggregator)
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NotApplicable):
            copying(session)


BAD_VOTES = {
    "fewer classes": [30, 30],
    "more classes": [20, 20, 10, 10],
    "too few votes": [20, 20, 19],
    "too many votes": [20, 20, 21],
    "negative": [-1, 31, 30],
    "out of range": [61, 0, -1],
    "not integers": [20.0, 20.0, 20.0],
    "booleans": [True, True, True],
    "text": ["20", "20", "20"],
    "a table": [[20, 20, 20]],
    "overflow": np.array([2**63 - 1, 2**63 - 1, 62], dtype=np.int64),
    "nothing": [],
    "ragged": [[1], [1, 2], 3],
}


@every
@pytest.mark.parametrize("kind", BAD_VOTES)
def test_bad_votes_are_refused_without_a_word_about_them(aggregator, kind) -> None:
    session = opened(aggregator)
    with pytest.raises(InvalidValue, match="votes = 'withheld': expected") as caught:
        ask(session, BAD_VOTES[kind])
    assert "3 counts" in str(caught.value)
    assert session.asked == 0
    assert not session.halted


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: LaplaceMax(classes=1, teachers=9, scale=1), "classes"),
        (lambda: LaplaceMax(classes=3, teachers=0, scale=1), "teachers"),
        (lambda: LaplaceMax(classes=3, teachers=9.0, scale=1), "teachers"),
        (lambda: LaplaceMax(classes=3, teachers=9), "epsilon"),
        (lambda: LaplaceMax(classes=3, teachers=9, epsilon=1, scale=1), "epsilon"),
        (lambda: LaplaceMax(classes=3, teachers=9, epsilon=0), "epsilon"),
        (lambda: LaplaceMax(classes=3, teachers=9, epsilon=100), "epsilon"),
        (lambda: LaplaceMax(classes=3, teachers=9, scale=-1), "scale"),
        (lambda: GNMax(classes=3, teachers=9, noise=0.01), "noise"),
        (lambda: GNMax(classes=3, teachers=9, noise=math.nan), "noise"),
        (lambda: GNMax(classes=3, teachers=9, noise=1, relation="swap"), "relation"),
        (lambda: ConfidentGNMax(**ENSEMBLE, **(SELECTIVE | {"threshold": 10**9})), "threshold"),
        (
            lambda: ConfidentGNMax(**ENSEMBLE, **(SELECTIVE | {"selection_noise": 0})),
            "selection_noise",
        ),
        (lambda: InteractiveGNMax(**ENSEMBLE, **SELECTIVE, confidence=2), "confidence"),
        (lambda: StableVotes(**ENSEMBLE, epsilon=0, delta=1e-5), "epsilon"),
        (lambda: StableVotes(**ENSEMBLE, epsilon=1, delta=1), "delta"),
        (lambda: SampledVotes(**ENSEMBLE, epsilon=1, delta=1e-5, cap=0), "cap"),
        (lambda: SparseVotes(**ENSEMBLE, fails=0, epsilon=1, delta=1e-5), "fails"),
        (lambda: EVERY[1].plan(), "queries"),
        (lambda: EVERY[1].plan(queries=0), "queries"),
        (lambda: EVERY[1].plan(queries=3, delta=1e-5), "delta"),
        (lambda: EVERY[1].plan(epsilon=1), "delta"),
        (lambda: EVERY[1].plan(epsilon=0.01, delta=1e-9), "epsilon"),
        (lambda: EVERY[0].plan(epsilon=0.01, delta=0), "epsilon"),
        (lambda: EVERY[2].plan(queries=3, answers=4), "answers"),
        (lambda: count_votes([[0, 3]], classes=3), "predictions"),
        (lambda: count_votes([[0.5]], classes=3), "predictions"),
    ],
)
def test_bad_parameters_name_themselves(make, argument) -> None:
    with pytest.raises(InvalidValue, match=argument):
        make()


@pytest.mark.parametrize(
    "prediction", [None, [1, 0], [0.5, 0.4, 0.3], [2, -1, 0], ["a", "b", "c"], [math.nan, 0, 1]]
)
def test_bad_predictions_are_refused(prediction) -> None:
    session = opened(EVERY[3])
    with pytest.raises(InvalidValue, match="prediction"):
        session.answer(AGREED, prediction=prediction)
    assert session.asked == 0


def test_a_prediction_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(InvalidValue, match="does not look at it"):
        opened(EVERY[1]).answer(AGREED, prediction=[1, 0, 0])


def test_an_interrupted_query_ends_the_session() -> None:
    session = opened(EVERY[2])

    def interrupted(counts, prediction):
        raise KeyboardInterrupt

    session._decide = interrupted
    with pytest.raises(KeyboardInterrupt):
        session.answer(AGREED)
    assert session.halted


def test_losses_are_the_stated_ones() -> None:
    assert LaplaceMax(**ENSEMBLE, epsilon="0.1").costs.query == 2 * PureDP("0.05")
    assert LaplaceMax(**ENSEMBLE, epsilon="0.1").loss(queries=10).epsilon(delta=0) == 1.0
    mu = GNMax(**ENSEMBLE, noise=40).costs.query.mu
    assert math.sqrt(2) / 40 <= mu <= math.sqrt(2) / 40 * (1 + 1e-11)
    costs = ConfidentGNMax(**ENSEMBLE, **SELECTIVE).costs
    assert 1 / 8 <= costs.query.mu <= 1 / 8 * (1 + 1e-11)
    assert math.sqrt(2) / 4 <= costs.answer.mu <= math.sqrt(2) / 4 * (1 + 1e-11)
    total = ConfidentGNMax(**ENSEMBLE, **SELECTIVE).loss(queries=50, answers=5)
    exact = gaussian_epsilon(math.sqrt(50 / 64 + 5 * 2 / 16), 1e-5)
    assert exact <= total.epsilon(delta=1e-5) <= exact * (1 + 1e-6)
    one = StableVotes(**ENSEMBLE, epsilon=1, delta=1e-5).costs.query
    assert isinstance(one, ApproxDP)
    assert one.claimed_epsilon == 1
    assert one.claimed_delta < Fraction(1, 10**5)


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_every_loss_speaks_of_the_relation_asked_for(relation) -> None:
    for one in EVERY:
        settings = {f: getattr(one, f) for f in one.__dataclass_fields__ if f != "relation"}
        if isinstance(one, LaplaceMax):
            settings.pop("epsilon")
        other = type(one)(**settings, relation=relation)
        plan = other.plan(queries=2)
        assert plan.loss.relation.value == relation


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_a_budget_is_used_up_and_not_exceeded(epsilon) -> None:
    for aggregator in EVERY[:6]:
        plan = aggregator.plan(epsilon=epsilon, delta=1e-5)
        assert plan.loss.epsilon(delta=1e-5) <= epsilon
        queries = plan.queries
        if plan.mu_squared is not None:
            each = plan.query_mu_squared + plan.answer_mu_squared
            queries = plan.mu_squared // each
            assert plan.has_room(queries=queries - 1, answers=queries - 1)
            assert not plan.has_room(queries=queries, answers=queries)
            assert isinstance(plan.loss, GDP)
            assert plan.loss.epsilon(delta=1e-5) > epsilon * (1 - 1e-6)
        more = aggregator.loss(queries=int(queries) + 1)
        assert more.epsilon(delta=1e-5) > epsilon


def test_unanswered_queries_cost_less_than_answered_ones() -> None:
    aggregator = ConfidentGNMax(**ENSEMBLE, **SELECTIVE)
    lengths = []
    for votes in (AGREED, SPLIT):
        session = aggregator.open(epsilon=4.0, delta=1e-5, insecure_seed=2)
        while not session.halted:
            session.answer(votes)
        lengths.append(session.asked)
        spent = session.spent
        assert spent is not None
        assert spent.epsilon(delta=1e-5) <= 4.0
    assert lengths[1] > 2 * lengths[0]


def test_spent_follows_the_path() -> None:
    session = EVERY[2].open(queries=9, answers=2, insecure_seed=1)
    assert session.spent is None
    label = session.answer(AGREED)
    costs = EVERY[2].costs
    assert label == 0
    assert session.spent == costs.query + costs.answer
    while session.answers < 2:
        session.answer(AGREED)
    assert session.halted


def test_most_queries_is_the_largest_number() -> None:
    each = 2 * PureDP("1/50")
    most = most_queries(each, epsilon=1.0, delta=1e-5)
    assert (most * each).epsilon(delta=1e-5) <= 1.0 < ((most + 1) * each).epsilon(delta=1e-5)
    assert most_queries(each, epsilon=1.0, delta=1e-5, at_most=7) == 7


def test_interactive_asks_where_teachers_object() -> None:
    session = InteractiveGNMax(**ENSEMBLE, **SELECTIVE, confidence=0.8).open(
        queries=200, insecure_seed=3
    )
    objecting = [session.answer([0, 60, 0], prediction=[1, 0, 0]) for _ in range(40)]
    assert objecting.count(1) > 30  # 20 votes above the threshold, noise 8
    before = session.answers
    agreeing = [session.answer([0, 60, 0], prediction=[0.1, 0.9, 0]) for _ in range(40)]
    assert set(agreeing) == {1}
    assert session.answers - before < 5
    doubtful = [session.answer([20, 20, 20], prediction=[0.4, 0.3, 0.3]) for _ in range(40)]
    assert doubtful.count(None) > 35


def test_votes_are_counted() -> None:
    rng = np.random.default_rng(4)
    predictions = rng.integers(0, 5, size=(30, 40))
    table = count_votes(predictions, classes=5)
    for query in range(40):
        assert table[query].tolist() == [int((predictions[:, query] == c).sum()) for c in range(5)]


@every
def test_asking_many_is_asking_one_after_the_other(aggregator) -> None:
    """Up to the order of draws: the same ends, the same counts, and nothing after the end."""
    interactive = isinstance(aggregator, InteractiveGNMax)
    table = [AGREED, SPLIT, [55, 4, 1]] * 10
    public = [[0, 0, 1]] * 30 if interactive else None
    session = opened(aggregator, queries=7)
    labels = session.answer_many(table, predictions=public)
    assert len(labels) == session.asked
    assert session.halted
    assert session.asked <= 7 or isinstance(aggregator, SparseVotes)
    assert sum(label is not None for label in labels) >= session.answers
    with pytest.raises(MechanismHalted):
        session.answer_many(table, predictions=public)
    bad = [AGREED, [1, 2, 3]]
    fresh = opened(aggregator)
    with pytest.raises(InvalidValue, match="votes"):
        fresh.answer_many(bad)
    if interactive:
        with pytest.raises(InvalidValue, match="prediction"):
            fresh.answer_many(table, predictions=public[:3])
    assert fresh.asked == 0


@every
def test_nothing_is_computed_from_votes_that_are_not_paid_for(aggregator) -> None:
    """Not even thrown away: how long it takes would follow from votes beyond the budget."""
    interactive = isinstance(aggregator, InteractiveGNMax)
    budget = {} if isinstance(aggregator, SparseVotes) else {"epsilon": 6.0, "delta": 1e-5}
    session = aggregator.open(**budget, insecure_seed=3)
    right, seen = session._decide, []

    def watched(table, predictions):
        paid = session.plan.queries_covered(
            queries=session.asked, answers=session.answers, at_most=10**6
        )
        assert 1 <= len(table) <= paid
        seen.append(len(table))
        return right(table, predictions)

    session._decide = watched
    table = [AGREED, SPLIT] * 2_000
    public = [[0, 0, 1]] * 4_000 if interactive else None
    labels = session.answer_many(table, predictions=public)
    assert session.halted
    assert sum(seen) == session.asked == len(labels) < 4_000


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_what_is_covered_has_room_for_every_outcome(answers) -> None:
    for plan in (
        EVERY[2].plan(queries=12, answers=5),
        EVERY[2].plan(epsilon=5.0, delta=1e-5),
        EVERY[6].plan(),
    ):
        queries = answers + 1
        sure = plan.queries_covered(queries=queries, answers=answers, at_most=100)
        for given in range(sure + 1):
            outcomes = [True] * given + [False] * (sure - given)
            for order in (outcomes, outcomes[::-1]):
                asked, said = queries, answers
                for outcome in order:
                    assert plan.has_room(queries=asked, answers=said)
                    asked, said = asked + 1, said + outcome
        # One more is not sure: some outcome ends the stream before it.
        ends = [
            not plan.has_room(queries=queries + sure, answers=answers + given)
            for given in range(sure + 1)
        ]
        assert any(ends)
