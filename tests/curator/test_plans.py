"""Noise, losses and error bars of plans, and mutants of them that must be caught."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from curator.worlds import AGE, CITY, INCOME, PERSONS, dataset, exact, queries
from discreet.curator import (
    Count,
    GroupBy,
    Histogram,
    Mean,
    Quantile,
    Query,
    Sum,
    ThresholdStream,
    TopK,
    Variance,
    Workload,
    _groups,
    _plan,
)
from discreet.curator._groups import least_count, release_threshold
from discreet.curator._plan import Noise, QueryPlan, make_plan, quote
from discreet.engines import Compare, Field, Value
from discreet.errors import InvalidValue
from discreet.mechanisms import laplace_quantile
from discreet.randomness import source

ROWS = [
    (f"p{at}", at % 90, 500.0 * (at % 7), ["Oslo", "Bergen", "3"][at % 3], at % 2 == 0,
     "2020-05-01", ["x", "y"][at % 2])
    for at in range(400)
]  # fmt: skip


@pytest.fixture(scope="module")
def people() -> Any:
    return dataset(ROWS)


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.tag)
def test_the_loss_is_the_epsilon_that_was_asked_for(query: Query) -> None:
    cost = quote(query, PERSONS)
    delta = float(getattr(query, "delta", None) or 0)
    found = cost.loss.epsilon(delta=delta * (1 + 1e-9))
    assert found <= float(query.epsilon) * (1 + 1e-9)
    assert found >= float(query.epsilon) * 0.5
    assert make_plan(query, PERSONS) is make_plan(query, PERSONS)


def test_noise_follows_the_cap_and_the_range() -> None:
    plan: Any = make_plan(Count(epsilon="1/2"), PERSONS)
    assert plan.noise.scale == 4
    plan = make_plan(Count(epsilon="1/2", rows_per_person=1), PERSONS)
    assert plan.noise.scale == 2
    plan = make_plan(Sum(of=AGE, epsilon=1), PERSONS)
    assert plan.noise.scale == 240
    plan = make_plan(Sum(of=AGE, epsilon=1, upper=50), PERSONS)
    assert plan.noise.scale == 100
    plan = make_plan(Mean(of=AGE, epsilon=1), PERSONS)
    assert (plan.count_noise.scale, plan.sum_noise.scale) == (4, 240)


def test_counts_are_released_with_discrete_laplace_noise_of_their_scale(people: Any) -> None:
    """Chi-square at a false alarm of 1e-9; noise of half the scale is caught."""
    query = Count(epsilon="1/2")
    plan, rows = exact(query, people)
    bits = source(insecure_seed=5)
    noise = [plan.release(rows, bits).value - rows[()][0] for _ in range(3000)]
    assert fits(noise, float(plan.noise.scale)) > 1e-9
    mutant: Any = type(plan)(Count(epsilon=1), plan.facts)
    halved = [mutant.release(rows, bits).value - rows[()][0] for _ in range(3000)]
    assert fits(halved, float(plan.noise.scale)) < 1e-9


def fits(noise: list[int], scale: float) -> float:
    ratio = math.exp(-1 / scale)
    cells = np.arange(-12, 13)
    inner = (1 - ratio) / (1 + ratio) * ratio ** np.abs(cells)
    tail = (1 - inner.sum()) / 2
    shares = np.concatenate([[tail], inner, [tail]])
    seen = np.bincount(np.clip(np.array(noise), -13, 13) + 13, minlength=27)
    return float(stats.chisquare(seen, shares * len(noise)).pvalue)


RUNS = 300
# P(more misses than this | each run misses with probability 5 %) < 1e-9.
MOST_MISSES = int(stats.binom.isf(1e-9, RUNS, 0.05))

COVERED: list[Query] = [
    Count(epsilon=1, where=Compare("<", AGE, Value(30))),
    Sum(of=INCOME, epsilon=1),
    Mean(of=AGE, epsilon=1),
    Variance(of=AGE, epsilon=2),
    Histogram(of=AGE, edges=(20, 40, 60), epsilon=1),
    GroupBy(by=(CITY,), epsilon=1),
    GroupBy(by=(CITY,), statistic="sum", of=AGE, epsilon=1),
    GroupBy(by=(CITY,), statistic="mean", of=AGE, epsilon=2),
    GroupBy(by=(Field("age"),), delta="1/100", epsilon=2),
    Quantile(of=AGE, share="1/2", epsilon=1),
    TopK(by=CITY, k=2, epsilon=1),
    ThresholdStream(
        questions=[Compare("<", AGE, Value(limit)) for limit in (10, 50, 5)],
        threshold=150,
        epsilon=2,
    ),
    Workload(questions=[Compare("<", AGE, Value(limit)) for limit in (10, 50, 5)], epsilon=1),
]


def truths(plan: Any, rows: Any, released: Any) -> list[Any]:
    """What the error bars of a release speak of, exactly."""
    query = plan.query
    match query:
        case Count():
            return [rows[()][0]]
        case Sum():
            return [rows[()][1] * plan.grid.step]
        case Mean():
            count, total = plan.parts(rows)
            return [(plan.middle + Fraction(total, count)) * plan.grid.step]
        case Variance():
            count, total, squares = plan.parts(rows)
            exactly = Fraction(squares, count) - Fraction(total, count) ** 2
            return [exactly * plan.square.step]
        case GroupBy():
            found = plan.parts(rows)
            named = {
                tuple(key.show(one) for key, one in zip(plan.keys, group, strict=True)): parts
                for group, parts in found.items()
            }
            values = []
            for cell in released.value:
                count, total = named.get(tuple(cell["group"]), (0, 0))
                if query.statistic == "count":
                    values.append(count)
                elif query.statistic == "sum":
                    values.append(total * plan.grid.step)
                else:
                    mean = Fraction(total, count) if count else Fraction(0)
                    values.append((plan.middle + mean) * plan.grid.step)
            return values
        case Quantile():
            scores = plan.scores(rows)
            cell = released.value - plan.grid.low
            return [Fraction(-int(scores[cell]), query.share.denominator)]
        case TopK():
            counts = dict(zip(plan.candidates, plan.parts(rows), strict=True))
            short = []
            for name in released.value:
                code = plan.key.labels.index(name)
                short.append(max(counts.values()) - counts[code])
                del counts[code]
            return short
    return list(plan.parts(rows))


def misses(plan: Any, rows: Any, seed: int) -> int:
    bits = source(insecure_seed=seed)
    missed = 0
    for _ in range(RUNS):
        released = plan.release(rows, bits)
        inside = [
            (bar.low is None or bar.low <= true) and (bar.high is None or true <= bar.high)
            for bar, true in zip(released.bars, truths(plan, rows, released), strict=True)
        ]
        missed += not all(inside)
    return missed


@pytest.mark.slow
@pytest.mark.parametrize("query", COVERED, ids=lambda query: query.tag)
def test_error_bars_cover_at_their_confidence(query: Query, people: Any) -> None:
    """A false alarm has a probability below 1e-9 for each query."""
    plan, rows = exact(query, people)
    assert misses(plan, rows, 9) <= MOST_MISSES


def test_error_bars_of_too_little_noise_are_caught(
    people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, rows = exact(Count(epsilon="1/10"), people)
    assert misses(plan, rows, 9) <= MOST_MISSES
    true = Noise.reach
    monkeypatch.setattr(Noise, "reach", lambda self, **given: true(self, **given) // 2)
    assert misses(plan, rows, 9) > MOST_MISSES


@pytest.mark.parametrize("scale", ["1/200", "1/3", "1", "20/7", "1000.5", "2199023255552", "1e15"])
def test_the_reach_of_noise_is_exact(scale: str) -> None:
    for risk in (0.5, 0.05, 1e-6):
        slow = laplace_quantile(Fraction(scale))(risk)
        assert _plan._reach(Fraction(scale), risk) == slow


def groups_shown(plan: QueryPlan, rows: Any) -> list[Any]:
    released = plan.release(rows, source(insecure_seed=1))
    return [cell["group"] for cell in released.value]


def test_public_groups_do_not_depend_on_the_data(
    people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = GroupBy(by=(CITY, Field("member")), epsilon=1)
    empty = dataset([])
    plan, rows = exact(query, people)
    assert groups_shown(plan, rows) == groups_shown(plan, exact(query, empty)[1])
    assert len(groups_shown(plan, rows)) == 10

    def off_the_data(self: Any, found: Any, bits: Any) -> Any:
        self.groups = sorted(self.parts(found))
        return true(self, found, bits)

    true = _groups.GroupByPlan.release
    monkeypatch.setattr(_groups.GroupByPlan, "release", off_the_data)
    mutant: Any = _groups.GroupByPlan(query, plan.facts)
    assert groups_shown(mutant, rows) != groups_shown(mutant, exact(query, empty)[1])


def test_a_group_of_one_person_is_hardly_ever_shown() -> None:
    """delta bounds it: at 1/1000 in 2000 runs more than 20 has probability below 1e-9."""
    query = GroupBy(by=(Field("note"),), delta="1/1000", epsilon=1)
    rows = [("me", 30, 0.0, "Oslo", True, "2020-05-01", "mine")] * 2
    plan, found = exact(query, dataset(rows))
    assert found == {("mine",): (2,)}
    bits = source(insecure_seed=2)
    seen = sum(bool(plan.release(found, bits).value) for _ in range(2000))
    limit = stats.binom.isf(1e-9, 2000, 1e-3)
    assert seen <= limit
    mutant: Any = _groups.GroupByPlan(query, plan.facts)
    mutant.threshold -= 10
    assert sum(bool(mutant.release(found, bits).value) for _ in range(2000)) > limit


def tail(steps: int, scale: float) -> float:
    """P(discrete Laplace >= steps), summed."""
    ratio = math.exp(-1 / scale)
    far = np.arange(steps, steps + 4000)
    return float((1 - ratio) / (1 + ratio) * np.sum(ratio ** np.abs(far)))


@pytest.mark.parametrize(("cap", "epsilon"), [(1, "1"), (2, "1/2"), (5, "2"), (7, "1/3")])
def test_the_threshold_is_the_least_that_keeps_delta(cap: int, epsilon: str) -> None:
    """Against all ways in which one unit can spread its rows over new groups."""
    scale = Fraction(cap) / Fraction(epsilon)
    delta = Fraction(1, 1000)
    threshold = release_threshold(cap=cap, scale=scale, epsilon=Fraction(epsilon), delta=delta)

    def worst(at: int) -> float:
        def spread(left: int, largest: int) -> float:
            sizes = range(1, min(left, largest) + 1)
            ways = [tail(at - one, float(scale)) + spread(left - one, one) for one in sizes]
            return max([0.0, *ways])

        return spread(cap, cap)

    assert worst(threshold) <= float(delta) * (1 + 1e-9)
    assert worst(threshold - 1) > float(delta)
    with pytest.raises(InvalidValue):
        release_threshold(cap=cap, scale=scale, epsilon=Fraction(1, 10**6), delta=delta)


def test_the_lower_end_of_a_shown_count_knows_of_the_selection() -> None:
    scale, threshold = Fraction(4), 40
    for shown in (40, 45, 60, 90):
        least = least_count(shown, threshold=threshold, scale=scale, risk=0.025)
        given = tail(shown - least, 4.0) / tail(threshold - least, 4.0)
        assert given >= 0.025 * (1 - 1e-6)
        if least > 1:
            below = tail(shown - least + 1, 4.0) / tail(threshold - least + 1, 4.0)
            assert below < 0.025
    assert least_count(40, threshold=40, scale=scale, risk=0.025) == 1


def test_released_numbers_lie_on_a_grid(people: Any) -> None:
    plan, rows = exact(Sum(of=INCOME, epsilon="1/7"), people)
    for seed in range(20):
        value = plan.release(rows, source(insecure_seed=seed)).value
        assert (Fraction(value) / plan.grid.step).denominator == 1


def test_an_empty_table_is_answered_like_any_other() -> None:
    empty = dataset([])
    for query in queries():
        plan, rows = exact(query, empty)
        released = plan.release(rows, source(insecure_seed=3))
        assert len(released.bars) == (
            len(released.value) if isinstance(released.value, list) else 1
        )


def test_columns_are_named_in_the_order_of_the_query() -> None:
    query = GroupBy(by=(CITY,), statistic="mean", of=AGE, epsilon=1)
    assert quote(query, PERSONS).columns == ("city", "age")
    assert _plan.CONFIDENCE == 0.95
