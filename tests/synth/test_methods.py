"""S33: the methods mst and aim: what they cost, and that no neighbour moves a score further."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from discreet.data import Categorical, Integer, Schema
from discreet.engines import open_table
from discreet.errors import InvalidValue, NotApplicable
from discreet.ledger import Ledger
from discreet.mechanisms import exponential_choice, multiplicative_weights
from discreet.privacy import GDP, ZCDP, Exponential, Relation
from discreet.randomness import source
from discreet.report import verify_certificate
from discreet.synth import AIM, MST, OneShot, SynthesisPlan, SyntheticModel, canary_scores
from discreet.synth import _adaptive as adaptive
from discreet.synth._counting import count_tables
from discreet.synth._plan import _begin
from discreet.synth._selection import list_candidates
from discreet.synth._spending import RoundsBudget, SpanningBudget
from synth.worlds import ODD_TABLES, SCHEMA, some_rows

SMALL = Schema({"a": Integer(0, 2), "b": Categorical(["x", "y"], other="y"), "c": Integer(0, 1)})
DOMAIN = list(itertools.product([0, 1, 2], ["x", "y"], [0, 1]))


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_loss_of_each_method_comes_from_the_algebra(epsilon: float, relation: str) -> None:
    spanning = MST().plan(SCHEMA, epsilon=epsilon, delta=1e-9, relation=relation)
    assert isinstance(spanning.budget, SpanningBudget)
    pick = Exponential(spanning.budget.choice_epsilon, Relation.parse(relation))
    assert isinstance(spanning.gaussian.loss, GDP)
    assert spanning.loss == spanning.gaussian.loss + 4 * pick
    assert 0.97 * epsilon < spanning.loss.epsilon(delta=1e-9) <= epsilon
    rounds = AIM().plan(SCHEMA, epsilon=epsilon, delta=1e-9, relation=relation)
    assert isinstance(rounds.budget, RoundsBudget)
    assert rounds.loss == ZCDP(rounds.budget.rho, Relation.parse(relation))
    assert 0.999 * epsilon < rounds.loss.epsilon(delta=1e-9) <= epsilon


def spy(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], dict[str, Any], Any]]:
    """Record the scores of every choice, how it was asked for, and what came out."""
    seen: list[tuple[list[int], dict[str, Any], Any]] = []

    def choose(scores: list[int], **asked: Any) -> Any:
        picked = exponential_choice(scores, **asked)
        seen.append((scores, asked, picked))
        return picked

    monkeypatch.setattr(adaptive, "exponential_choice", choose)
    return seen


def test_every_choice_costs_what_was_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy(monkeypatch)
    plan = MST(evaluations=3).plan(SCHEMA, epsilon=1.0, delta=1e-6)
    assert isinstance(plan.budget, SpanningBudget)
    model = plan.run(some_rows(300), insecure_seed=1)
    assert len(seen) == len(model.measured) == 4
    for _, asked, picked in seen:
        assert picked.loss == Exponential(plan.budget.choice_epsilon)
        assert "monotone" not in asked  # distances move up or down: the rate is epsilon / 2
    spent = sum(1.0 / one.variance.flat[0] for one in model.measured)
    assert spent <= plan.gaussian.table_mu**2


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_rounds_end_when_rho_is_used_up(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: d / (2 s^2) of the histograms, 1 / (2 s^2) a table, epsilon^2 / 8 a choice."""
    seen = spy(monkeypatch)
    plan = AIM(order=2, rounds=40, evaluations=3).plan(SCHEMA, epsilon=1.0, delta=1e-6)
    assert isinstance(plan.budget, RoundsBudget)
    model = plan.run(some_rows(300), insecure_seed=seed)
    spent = 5 / (2 * plan.gaussian.column_stddev**2)
    spent += sum(1 / (2 * one.variance.flat[0]) for one in model.measured)
    spent += sum(float(picked.loss.epsilon(delta=0)) ** 2 / 8 for _, _, picked in seen)
    assert len(seen) == len(model.measured) > 2
    assert 0.99 * plan.budget.rho < spent <= plan.budget.rho


class Stopped(Exception):
    """A run that has shown its scores."""


def shown_scores(
    plan: SynthesisPlan, rows: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, int]:
    """The first scores of a run on some rows, after histograms that are the same for all rows."""
    found: list[tuple[list[int], int]] = []

    def stop(scores: list[int], *, sensitivity: int, **_: Any) -> Any:
        found.append((scores, sensitivity))
        raise Stopped

    names = plan.schema.file_columns
    data = {
        name: np.array([row[at] for row in rows], dtype=object) for at, name in enumerate(names)
    }
    fixed = open_table({name: [] for name in names}, plan.schema, engine="arrow", key=bytes(32))
    table = open_table(data, plan.schema, engine="arrow", key=bytes(32))
    begun = _begin(plan, fixed, source(insecure_seed=1))
    monkeypatch.setattr(adaptive, "exponential_choice", stop)
    with pytest.raises(Stopped):
        plan.method.measure(plan, table, begun, source(insecure_seed=1), lambda *_: None)
    return np.array(found[0][0]), found[0][1]


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(MST(), id="mst"),
        pytest.param(AIM(target="a", rounds=9), id="aim", marks=pytest.mark.slow),
    ],
)
def test_no_row_moves_a_score_further_than_charged(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tables of up to 1 row of a small domain, and all of their neighbours."""
    plan = method.plan(SMALL, epsilon=1.0, delta=1e-6)
    empty, most = shown_scores(plan, [], monkeypatch)
    single = {row: shown_scores(plan, [row], monkeypatch)[0] for row in DOMAIN}
    worst = max(np.abs(one - empty).max() for one in single.values())
    for row, here in single.items():
        for other in DOMAIN[::3]:
            there = shown_scores(plan, [row, other], monkeypatch)[0]
            worst = max(worst, np.abs(there - here).max())
    assert worst == most  # attained, and no more
    swapped = method.plan(SMALL, epsilon=1.0, delta=1e-6, relation="replace")
    _, twice = shown_scores(swapped, [], monkeypatch)
    assert twice == 2 * most
    assert max(np.abs(a - b).max() for a in single.values() for b in single.values()) <= twice


@pytest.mark.parametrize("method", [MST(), AIM(rounds=9)], ids=["mst", "aim"])
def test_no_person_moves_a_score_further_than_charged(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = Schema(dict(SMALL.columns), person="who", rows_per_person=2)
    plan = method.plan(owned, epsilon=1.0, delta=1e-6)
    others = [(0, "x", 1, "ann"), (1, "y", 0, "ben"), (1, "y", 0, "ben")]
    here, most = shown_scores(plan, others, monkeypatch)
    worst = 0
    for row in DOMAIN:
        there, _ = shown_scores(plan, [*others, *[(*row, "cat")] * 5], monkeypatch)
        worst = max(worst, np.abs(there - here).max())
    assert worst == most


@pytest.mark.slow
@pytest.mark.parametrize("method", [MST, AIM])
@pytest.mark.parametrize("name", ODD_TABLES)
def test_odd_tables_run_and_cost_the_same(name: str, method: Any, tmp_path: object) -> None:
    plan = method(evaluations=50).plan(SCHEMA, epsilon=1.0, delta=1e-6)
    with Ledger.create(f"{tmp_path}/book") as ledger:
        ledger.create_dataset("rows", epsilon=1.2, delta="1e-5", unit="row")
        model = plan.run(ODD_TABLES[name], ledger=ledger, dataset="rows")
        assert model.certificate_.loss == plan.loss
        model.save_directory(f"{tmp_path}/out")
        found = verify_certificate(f"{tmp_path}/out/certificate.json", ledger=ledger)
        assert {one.ok for one in found} == {True}
    again = SyntheticModel.load(f"{tmp_path}/out/model.npz").plan
    assert (again.to_json(), again.loss) == (plan.to_json(), plan.loss)
    assert model.sample(7).num_rows == 7


@pytest.mark.parametrize("method", [MST, AIM])
def test_one_column_is_enough(method: Any) -> None:
    plan = method().plan(Schema({"a": Integer(0, 3)}), epsilon=1.0, delta=1e-6)
    model = plan.run({"a": [0, 1, 1, 3] * 50}, insecure_seed=1)
    assert not model.measured
    assert model.sample(9).num_rows == 9
    assert plan.explain()
    with pytest.raises(NotApplicable, match="Gaussian"):
        canary_scores(plan, runs=3)


def test_rounds_and_orders_that_do_not_fit_are_refused() -> None:
    for bad in ({"order": 4}, {"order": 1}, {"rounds": 1}):
        with pytest.raises(InvalidValue):
            AIM(**bad)
    with pytest.raises(InvalidValue, match="rounds"):
        AIM(rounds=5).plan(SCHEMA, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("method", [OneShot, MST, AIM])
def test_budgets_at_the_ends_are_planned_or_refused_with_words(method: Any) -> None:
    schema = Schema({"a": Integer(0, 9), "b": Integer(0, 3)}, expected_rows=20)
    for epsilon in (1e-9, 50.0):
        plan = method().plan(schema, epsilon=epsilon, delta=1e-6)
        assert plan.loss.epsilon(delta=1e-6) <= epsilon
    plan.run({"a": [1], "b": [1]})
    for epsilon in (0, -1, math.nan, math.inf, 1e300, 1e5, "1"):
        with pytest.raises(InvalidValue, match="epsilon"):
            method().plan(schema, epsilon=epsilon, delta=1e-6)
    refused = 0
    for epsilon in np.geomspace(100.0, 6_000.0, 4):  # what is planned runs: it is charged by then
        try:
            plan = method().plan(schema, epsilon=float(epsilon), delta=1e-6)
        except InvalidValue:
            refused += 1
            continue
        for rows in ({"a": [1] * 20, "b": [0, 1] * 10}, {"a": [], "b": []}):
            plan.run(rows, insecure_seed=1)
    assert 0 < refused < 4


@pytest.mark.slow
def test_multiplicative_weights_are_the_oracle_on_a_tiny_domain() -> None:
    """S19 sees every cell of the domain. The seeds are fixed, and the budgets the same.

    No tree may be worse on the pairs than the oracle by more than a fiftieth of the rows.
    """
    rng = np.random.default_rng(3)
    weight = rng.dirichlet(np.full(12, 0.5))
    rows = [DOMAIN[at] for at in rng.choice(12, 2000, p=weight)]
    data = {name: [row[at] for row in rows] for at, name in enumerate("abc")}
    truth = np.array([rows.count(one) for one in DOMAIN])
    queries = [
        [int(all(one[at] == value for at, value in zip(pair, cell, strict=True))) for one in DOMAIN]
        for pair in itertools.combinations(range(3), 2)
        for cell in sorted({tuple(one[at] for at in pair) for one in DOMAIN})
    ]
    right = np.array(queries) @ truth / 2000
    oracle = multiplicative_weights(
        truth,
        queries,
        rounds=12,
        epsilon=4,
        relation="add_remove",
        public_size=2000,
        insecure_seed=1,
    )
    least = float(np.abs(oracle.value.answers(queries) - right).max())
    for method in (OneShot(), MST(), AIM(rounds=12)):
        plan = method.plan(SMALL, epsilon=4.0, delta=1e-6)
        model = plan.run(data, insecure_seed=1)
        found = np.concatenate(
            [
                (model.marginal(*pair).counts / model.total).ravel()
                for pair in itertools.combinations("abc", 2)
            ]
        )
        assert float(np.abs(found - right).max()) <= least + 0.02


def test_counts_of_candidates_are_those_of_the_table() -> None:
    """The tables that a method scores are the tables of the rows, by a slow twin."""
    data = {"a": [0, 1, 2, 2], "b": ["x", "y", "y", "y"], "c": [0, 0, 1, 1]}
    plan = MST().plan(SMALL, epsilon=1.0, delta=1e-6)
    table = open_table(data, SMALL, engine="arrow")
    for pair, counts in count_tables(table, plan.cells, [None] * 3, list_candidates(3, 2)):
        names = ["abc"[at] for at in pair]
        codes = [[{"x": 0, "y": 1}.get(one, one) for one in data[name]] for name in names]
        slow = np.zeros(counts.shape, dtype=int)
        for cell in zip(*codes, strict=True):
            slow[cell] += 1
        assert np.array_equal(counts, slow)
