"""S16: the exact (epsilon, delta) of M_stab by summation, and its behaviour."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations_with_replacement

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.errors import InvalidValue, RelationMismatch
from discreet.mechanisms import (
    FAIL,
    StableFunction,
    mode,
    release_if_stable,
    stability_test,
    votes_distance,
)
from discreet.privacy import ApproxDP
from discreet.randomness import source
from mechanisms.exact_runs import exact_tail
from randomness.scripted_source import ScriptedSource

REJECT = 1e-9
epsilons = st.fractions(Fraction(1, 20), 6, max_denominator=40)
deltas = st.sampled_from([Fraction(1, 2), Fraction(1, 50), Fraction(1, 10**5), Fraction(1, 10**12)])


def exact_delta(
    epsilon: Fraction, threshold: int, first: tuple[object, int], second: tuple[object, int]
) -> mpmath.mpf:
    """The hockey-stick divergence at epsilon of the two output distributions, both directions."""

    def outcomes(value: object, distance: int) -> dict[object, mpmath.mpf]:
        passed = exact_tail(epsilon, threshold - distance)
        return {value: passed, FAIL: 1 - passed}

    with mpmath.workdps(60):
        p, q = outcomes(*first), outcomes(*second)
        factor = mpmath.exp(mpmath.mpf(epsilon.numerator) / epsilon.denominator)
        zero = mpmath.mpf(0)
        return max(
            mpmath.fsum(max(zero, a.get(o, zero) - factor * b.get(o, zero)) for o in a)
            for a, b in ((p, q), (q, p))
        )


@given(epsilons, deltas)
def test_delta_is_exact_and_attained(epsilon: Fraction, delta: Fraction) -> None:
    test = stability_test(epsilon=epsilon, delta=delta)
    attained = exact_delta(epsilon, test.threshold, ("f", 0), ("g", 0))
    claimed = mpmath.mpf(test.delta.numerator) / test.delta.denominator
    assert attained <= claimed <= attained * (1 + mpmath.mpf(10) ** -10)
    assert test.delta < delta


@given(epsilons, deltas, st.integers(0, 60), st.sampled_from([-1, 0, 1]))
def test_equal_answers_cost_no_delta(
    epsilon: Fraction, delta: Fraction, distance: int, change: int
) -> None:
    threshold = stability_test(epsilon=epsilon, delta=delta).threshold
    other = max(0, distance + change)
    loss = exact_delta(epsilon, threshold, ("f", distance), ("f", other))
    assert loss <= mpmath.mpf(10) ** -50


def test_the_lower_threshold_is_refuted() -> None:
    # Planted: a threshold one lower would not be above ln(1/delta) / epsilon.
    for epsilon in (Fraction(1, 4), Fraction(1), Fraction(3)):
        test = stability_test(epsilon=epsilon, delta=1e-5)
        worse = exact_delta(epsilon, test.threshold - 1, ("f", 0), ("g", 0))
        assert worse > float(test.delta) * 1.2
        continuous = math.exp(-float(epsilon) * test.threshold) / 2
        assert continuous < float(test.delta)


def worst_delta(distance: object, epsilon: Fraction, threshold: int) -> float:
    """The largest delta over all replaced records of small two-candidate votes."""
    worst = 0.0
    answer = mode([0, 1], relation="replace").value
    for first in combinations_with_replacement([0, 1], 8):
        votes = np.bincount(first, minlength=2)
        for move in (-1, 1):
            other = votes + [move, -move]
            if other.min() < 0:
                continue
            pair = [
                (answer([0] * v[0] + [1] * v[1]), distance(v)) for v in (votes, other)
            ]  # fmt: skip
            worst = max(worst, float(exact_delta(epsilon, threshold, *pair)))
    return worst


def test_wrong_ties_are_refuted_by_the_exact_loss() -> None:
    test = stability_test(epsilon=1, delta=Fraction(1, 100))

    def right(votes: np.ndarray) -> int:
        return votes_distance(votes, moved=True)

    def wrong(votes: np.ndarray) -> int:  # forgets that ties go to the lower index
        return int(abs(votes[0] - votes[1])) // 2

    assert worst_delta(right, test.epsilon, test.threshold) <= float(test.delta) * (1 + 1e-9)
    assert worst_delta(wrong, test.epsilon, test.threshold) > 2 * float(test.delta)


def constant(distance: int, relation: str = "add_remove") -> StableFunction[object, str]:
    return StableFunction(lambda _: "answer", lambda _: distance, relation)


@pytest.mark.parametrize("distance", [0, 2, 4, 7])
def test_the_answer_comes_out_as_often_as_it_should(distance: int) -> None:
    test = stability_test(epsilon="1/2", delta=0.1)
    bits = source(insecure_seed=201 + distance)
    expected = float(exact_tail(test.epsilon, test.threshold - distance))
    assert test.passes(distance) == pytest.approx(expected, rel=1e-9)
    out = [
        release_if_stable(None, constant(distance), epsilon="1/2", delta=0.1, source=bits).value
        for _ in range(1500)
    ]
    passed = out.count("answer")
    assert passed + out.count(FAIL) == 1500
    assert stats.binomtest(passed, 1500, expected).pvalue > REJECT
    wrong = float(exact_tail(test.epsilon, test.threshold - distance + 2))
    assert stats.binomtest(passed, 1500, wrong).pvalue < REJECT


@given(epsilons, deltas, st.sampled_from([0.3, 0.05, 1e-6]))
def test_the_distance_needed_is_the_least(epsilon: Fraction, delta: Fraction, beta: float) -> None:
    test = stability_test(epsilon=epsilon, delta=delta)
    needed = test.distance_needed(beta)
    assert 1 - test.passes(needed) <= beta * (1 + 1e-9)
    # passes() of one less fails more often, unless no noise had to be overcome at all
    assert 1 - test.passes(needed - 1) > beta or needed == test.threshold - 1
    lecture = (math.log(1 / delta) + math.log(1 / beta)) / float(epsilon)
    assert needed <= lecture + 1


def test_loss_and_provenance() -> None:
    out = release_if_stable(
        None, constant(10**6, "replace"), epsilon=0.1, delta=1e-9, relation="replace",
        insecure_seed=4,
    )  # fmt: skip
    test = stability_test(epsilon=0.1, delta=1e-9)
    assert out.value == "answer"
    assert out.loss == ApproxDP(0.1, test.delta, "replace")
    assert out.loss.epsilon(delta=1e-9) <= 0.1
    assert out.provenance["randomness"] == "INSECURE seed 4"
    assert out.provenance["threshold"] == test.threshold
    assert "distance" not in out.provenance
    failed = release_if_stable(None, constant(-(10**6)), epsilon=1, delta=1e-9)
    assert failed.value is FAIL
    assert repr(failed.value) == "FAIL"
    assert failed.provenance["randomness"] == "operating system"


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"relation": "none"}, "relation"),
        ({"insecure_seed": 3}, "insecure_seed"),
        ({"function": len}, "function"),
        ({"function": StableFunction(len, lambda _: 0.5, "add_remove")}, "distance"),
        ({"function": StableFunction(len, lambda _: math.nan, "add_remove")}, "distance"),
    ],
)
def test_bad_input_is_named_before_anything_is_drawn(
    change: dict[str, object], argument: str
) -> None:
    nothing = ScriptedSource()
    good = {"function": constant(3), "epsilon": 1, "delta": 0.1, "source": nothing}
    with pytest.raises(InvalidValue) as caught:
        release_if_stable([], **{**good, **change})
    assert caught.value.argument == argument
    assert nothing.used == 0


def test_relations_are_not_mixed() -> None:
    with pytest.raises(RelationMismatch, match="counts changes under replace"):
        release_if_stable([], constant(1, "replace"), epsilon=1, delta=0.1)
    with pytest.raises(InvalidValue, match="a function of the data"):
        StableFunction(len, 3, "replace")
