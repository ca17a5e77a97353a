"""S16: propose-test-release in general; M_stab is the case in which the bound is 0."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import pytest

from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.mechanisms import (
    FAIL,
    StableFunction,
    StableVector,
    median,
    propose_test_release,
    release_if_stable,
    stability_test,
)
from mechanisms.exact_runs import at_least, pmf

LOW, HIGH = 0, 4
Rows = tuple[int, ...]


def worlds(records: int) -> list[Rows]:
    return list(combinations_with_replacement(range(LOW, HIGH + 1), records))


@cache
def neighbours(rows: Rows) -> frozenset[Rows]:
    """All data sets that differ in one replaced record."""
    return frozenset(
        tuple(sorted((*rows[:k], new, *rows[k + 1 :])))
        for k in range(len(rows))
        for new in range(LOW, HIGH + 1)
    )


def middle(bound: int) -> StableFunction[object, int]:
    return median(relation="replace", lower=LOW, upper=HIGH, integer=True, bound=bound)


@cache
def jumpy(records: int, bound: int) -> list[Rows]:
    """The data sets of which a neighbour's median is more than the bound away."""
    middles = {rows: middle(0).value(rows) for rows in worlds(records)}
    return [
        rows
        for rows in middles
        if any(abs(middles[rows] - middles[other]) > bound for other in neighbours(rows))
    ]


def distance_by_search(rows: Rows, bound: int) -> int:
    """The fewest changes to such data."""
    mine = Counter(rows)
    found = ((mine - Counter(other)).total() for other in jumpy(len(rows), bound))
    return min(found, default=len(rows))


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_the_distance_of_the_median_is_the_one_found_by_trying_everything(bound: int) -> None:
    function, compared = middle(bound), 0
    for records in (1, 2, 3, 4):
        for rows in worlds(records):
            found, expected = function.distance(rows), distance_by_search(rows, bound)
            assert found == expected, rows
            # Planted: j - i in place of j - i - 1 would be wrong everywhere.
            assert found + 1 != expected
            compared += 1
    assert compared == 125


def law(value: int, distance: int, *, scale: float, threshold: int) -> np.ndarray:
    """P(outcome): a refusal, then the answer plus discrete Laplace noise, at -30 .. 34."""
    passed = float(at_least(2.0, np.array(threshold - distance)))
    noisy = np.zeros(65)
    noisy[value : value + 61] = passed * pmf(scale, 30)
    return np.append(1 - passed, noisy)


def worst_excess(distance: Callable[[Rows], int], bound: int, *, scale: float) -> float:
    """By how much delta at several epsilons passes the stated one, over all neighbours."""
    budget = {"epsilon": "1/2", "delta": 0.2}
    function = middle(bound)
    threshold = stability_test(**budget).threshold
    loss = propose_test_release(
        [0, 0, 0], function, noise_epsilon=4, relation="replace", insecure_seed=1, **budget
    ).loss
    facts = {"scale": scale, "threshold": threshold}
    laws = {rows: law(function.value(rows), distance(rows), **facts) for rows in worlds(3)}
    excesses = []
    for at in (0.0, 0.5, 4.0, 4.5):
        stated = loss.delta_bounds(epsilon=at).upper
        for rows, here in laws.items():
            for other in neighbours(rows):
                found = np.maximum(0.0, here - math.exp(at) * laws[other]).sum()
                excesses.append(float(found) - stated)
    return max(excesses)


@pytest.mark.parametrize("bound", [1, 2])
def test_the_exact_loss_is_within_the_stated_one(bound: int) -> None:
    right = middle(bound).distance
    assert worst_excess(right, bound, scale=bound / 4) <= 1e-9
    # Planted: the distance without its "- 1", noise for half the bound, and no test at all.
    assert worst_excess(lambda rows: right(rows) + 1, bound, scale=bound / 4) > 0.01
    assert worst_excess(right, bound, scale=bound / 8) > 0.01
    assert worst_excess(lambda rows: 99, bound, scale=bound / 4) > 0.1


def test_stability_is_the_case_of_bound_zero() -> None:
    """M_stab and propose-test-release with bound 0: the same outcome, distance and loss."""
    budget = {"epsilon": "1/2", "delta": 0.1, "relation": "replace"}
    function = middle(0)
    for rows in worlds(4)[::5]:
        assert function.distance(rows) == distance_by_search(rows, 0)
        for seed in range(3):
            general = propose_test_release(
                rows, function, noise_epsilon=1, insecure_seed=seed, **budget
            )
            special = release_if_stable(rows, function, insecure_seed=seed, **budget)
            assert (general.value, general.loss) == (special.value, special.loss)


def test_where_no_record_repeats_the_median_comes_out_with_noise_only() -> None:
    """What M_stab cannot do: its distance is 0, so that it refuses nearly always."""
    rows = list(range(0, 100_000, 50))
    budget = {"epsilon": 1, "delta": 1e-6, "relation": "replace"}
    exact = median(relation="replace", lower=0, upper=10**6, integer=True)
    near = median(relation="replace", lower=0, upper=10**6, integer=True, bound=2000)
    assert exact.evaluate(rows) == (49_950, 0)
    assert near.evaluate(rows) == (49_950, 40)
    assert release_if_stable(rows, exact, insecure_seed=1, **budget).value is FAIL
    out = propose_test_release(rows, near, noise_epsilon=1, insecure_seed=1, **budget)
    assert abs(out.value - 49_950) < 60_000
    low, high = out.interval(confidence=0.999)
    assert low < 49_950 < high
    refused = propose_test_release([0] * 5, near, noise_epsilon=1, insecure_seed=1, **budget)
    assert refused.value is FAIL
    assert refused.loss == out.loss
    with pytest.raises(NotApplicable):
        refused.interval(confidence=0.9)


def test_a_function_with_a_bound_is_not_released_without_noise() -> None:
    with pytest.raises(InvalidValue, match="propose_test_release"):
        release_if_stable([1, 2], middle(1), epsilon=1, delta=0.1, relation="replace")
    run = StableVector(fails=1, epsilon=1, delta=0.1, relation="replace", insecure_seed=1)
    with pytest.raises(InvalidValue, match="propose_test_release"):
        run.ask([1, 2], middle(1))


def test_bad_input_is_named_before_anything_is_drawn() -> None:
    good = {"epsilon": 1, "delta": 0.1, "noise_epsilon": 1, "relation": "replace"}
    for change, argument in (
        ({"noise_epsilon": 0}, "epsilon"),
        ({"delta": 0}, "delta"),
        ({"epsilon": -1}, "epsilon"),
    ):
        with pytest.raises(InvalidValue, match=argument):
            propose_test_release([1, 2], middle(1), **{**good, **change})
    with pytest.raises(RelationMismatch):
        propose_test_release([1, 2], middle(1), **{**good, "relation": "add_remove"})
    words = StableFunction(lambda _: "secret", lambda _: 5, "replace", bound=1)
    with pytest.raises(InvalidValue, match="value") as caught:
        propose_test_release([1, 2], words, **good)
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidValue, match="bound"):
        median(relation="add_remove", lower=0, upper=1, integer=True, bound=1)
    with pytest.raises(InvalidValue, match="bound"):
        median(relation="replace", lower=0, upper=1, bound=1)
