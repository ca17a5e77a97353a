"""Finite distributions and channels against definitions and exact twins (S3, S27)."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain, combinations, pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.privacy.theorems import (
    channel_epsilon,
    contraction,
    dobrushin,
    e_gamma,
    hockey_stick,
    renyi,
    total_variation,
)

HALF = Fraction(1, 2)
LECTURE_P, LECTURE_Q = (0.6, 0.4), (0.5, 0.5)


@st.composite
def rows(draw: st.DrawFn, *, count: int, positive: bool = False) -> list[list[Fraction]]:
    width = draw(st.integers(2, 5))
    entry = st.integers(1 if positive else 0, 40)
    result = []
    for _ in range(count):
        weights = draw(st.lists(entry, min_size=width, max_size=width).filter(any))
        result.append([Fraction(weight, sum(weights)) for weight in weights])
    return result


def as_floats(row: list[Fraction]) -> list[float]:
    return [float(value) for value in row]


def every_event(size: int) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(range(size), r) for r in range(size + 1)))


# The worked example of lecture 003.


def test_the_lectures_worked_numbers() -> None:
    assert renyi(LECTURE_P, LECTURE_Q, order=1) == pytest.approx(0.0201, abs=5e-5)
    assert renyi(LECTURE_P, LECTURE_Q, order=2) == pytest.approx(math.log(1.04), rel=1e-14)
    assert renyi(LECTURE_P, LECTURE_Q, order=math.inf) == pytest.approx(math.log(1.2), rel=1e-14)


def test_the_slip_of_the_lecture_is_not_ours() -> None:
    """The source drops Q^(1-2) and prints log(0.36 + 0.16) = -0.653."""
    printed = math.log(0.36 + 0.16)
    assert printed == pytest.approx(-0.654, abs=1e-3)
    assert renyi(LECTURE_P, LECTURE_Q, order=2) > 0 > printed


# Renyi


@given(pair=rows(count=2), order=st.floats(0.01, 80.0))
def test_renyi_is_never_negative_and_zero_for_equals(
    pair: list[list[Fraction]], order: float
) -> None:
    p, q = pair
    assert renyi(p, q, order=order) >= 0.0
    assert renyi(as_floats(p), as_floats(q), order=order) >= 0.0
    assert renyi(p, p, order=order) == pytest.approx(0.0, abs=1e-13)


@given(pair=rows(count=2, positive=True), order=st.floats(0.05, 60.0))
def test_renyi_is_its_definition(pair: list[list[Fraction]], order: float) -> None:
    assume(abs(order - 1) > 1e-3)
    p, q = pair
    with mpmath.workdps(50):
        a = mpmath.mpf(order)
        total = mpmath.fsum(
            (mpmath.mpf(x.numerator) / x.denominator) ** a
            * (mpmath.mpf(y.numerator) / y.denominator) ** (1 - a)
            for x, y in zip(p, q, strict=True)
        )
        expected = float(mpmath.log(total) / (a - 1))
    assert renyi(p, q, order=order) == pytest.approx(expected, rel=1e-9, abs=1e-11)
    assert renyi(as_floats(p), as_floats(q), order=order) == pytest.approx(
        expected, rel=1e-9, abs=1e-11
    )


@given(pair=rows(count=2, positive=True))
def test_renyi_grows_with_the_order_from_below_one_to_infinity(pair: list[list[Fraction]]) -> None:
    values = [renyi(*pair, order=order) for order in (0.2, 0.9, 1, 1.1, 2, 3, 50, math.inf)]
    assert all(a <= b + 1e-12 for a, b in pairwise(values))
    for distance in (-1e-9, 1e-9, 2.0**-52):
        near_one = renyi(*pair, order=1 + distance)
        assert near_one == pytest.approx(renyi(*pair, order=1), rel=1e-6, abs=1e-12)


def test_renyi_with_zeros() -> None:
    for order in (1, 1.5, 2, math.inf):
        assert renyi((0.5, 0.5), (1.0, 0.0), order=order) == math.inf
    assert renyi((1.0, 0.0), (0.5, 0.5), order=1) == pytest.approx(math.log(2))
    assert renyi((1.0, 0.0), (0.5, 0.5), order=math.inf) == pytest.approx(math.log(2))
    assert renyi((1.0, 0.0), (0.0, 1.0), order=0.5) == math.inf
    assert renyi((0.5, 0.5), (1.0, 0.0), order=0.5) == pytest.approx(math.log(2))
    assert renyi((0.5, 0.5), (0.999, 0.001), order=1e-9) == pytest.approx(0.0, abs=1e-8)
    assert renyi((0.5, 0.5, 0.0), (0.5, 0.5, 0.0), order=3) == 0.0


def test_exact_input_keeps_relative_accuracy_where_floats_cannot() -> None:
    tiny = Fraction(1, 10**12)
    p, q = (HALF + tiny, HALF - tiny), (HALF, HALF)
    assert renyi(p, q, order=2) == pytest.approx(4e-24, rel=1e-12)
    assert renyi(p, q, order=math.inf) == pytest.approx(2e-12, rel=1e-11)


def test_renyi_survives_extreme_orders_and_ratios() -> None:
    p, q = (1 - 1e-12, 1e-12), (1e-12, 1 - 1e-12)
    assert renyi(p, q, order=1e6) == pytest.approx(math.log(1e12), rel=1e-4)
    assert renyi((1e-300, 1.0), (1e-10, 1 - 1e-10), order=5) >= 0.0


# Hockey stick


@given(pair=rows(count=2), numerator=st.integers(10, 60))
def test_hockey_stick_is_the_best_event(pair: list[list[Fraction]], numerator: int) -> None:
    """max over all events of P(E) - gamma Q(E), exactly."""
    p, q = pair
    gamma = Fraction(numerator, 10)
    best = max(
        sum((p[i] - gamma * q[i] for i in event), Fraction()) for event in every_event(len(p))
    )
    assert e_gamma(p, q, gamma=gamma) == best
    assert isinstance(e_gamma(p, q, gamma=gamma), Fraction)
    assert hockey_stick(as_floats(p), as_floats(q), math.log(gamma)) == pytest.approx(
        float(best), abs=1e-12
    )


@given(pair=rows(count=2))
def test_total_variation_is_symmetric_and_exact(pair: list[list[Fraction]]) -> None:
    p, q = pair
    distance = total_variation(p, q)
    assert distance == total_variation(q, p)
    assert distance == sum((abs(a - b) for a, b in zip(p, q, strict=True)), Fraction()) / 2
    assert hockey_stick(p, q, 0.0) == float(distance)


def test_hockey_stick_beyond_the_range_of_exp_counts_only_lacking_mass() -> None:
    assert hockey_stick((0.25, 0.75), (0.0, 1.0), 5000.0) == 0.25
    assert hockey_stick((0.25, 0.75), (1e-9, 1 - 1e-9), 5000.0) == 0.0


def test_s9a_adaptive_choice_is_worse_than_every_fixed_sequence() -> None:
    """RR(0.5), then RR(0.6) after a telling answer and a (0, 0.0382) release otherwise."""
    first, second = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(-0.6))
    fixed_p = [
        first * second,
        first * (1 - second),
        (1 - first) * second,
        (1 - first) * (1 - second),
    ]
    fixed_q = fixed_p[::-1]
    fixed = hockey_stick(fixed_p, fixed_q, 1.0)
    assert fixed == pytest.approx(0.0382, abs=5e-5)
    reveal = fixed
    p = [first * second, first * (1 - second), (1 - first) * reveal, (1 - first) * (1 - reveal), 0]
    q = [(1 - first) * (1 - second), (1 - first) * second, 0, first * (1 - reveal), first * reveal]
    assert hockey_stick(p, q, 1.0) == pytest.approx(0.0527, abs=5e-5)


# Channels


def k_ary(epsilon: float, k: int) -> list[list[float]]:
    rest = 1 / (math.exp(epsilon) + k - 1)
    return [[math.exp(epsilon) * rest if i == j else rest for j in range(k)] for i in range(k)]


@pytest.mark.parametrize("k", [2, 3, 17])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, math.log(3), 6.0])
def test_k_ary_response_has_its_epsilon_and_contraction_zero(epsilon: float, k: int) -> None:
    channel = k_ary(epsilon, k)
    assert channel_epsilon(channel) == pytest.approx(epsilon, rel=1e-12)
    assert contraction(channel, epsilon + 1e-9) == 0.0
    assert contraction(channel, epsilon * 0.99) > 0.0


def test_two_coins_exactly() -> None:
    channel = ((Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4)))
    assert math.log(3) < channel_epsilon(channel) < math.log(3) * (1 + 3e-15)
    assert dobrushin(channel) == HALF
    assert channel_epsilon(channel, delta=Fraction(1, 4)) == pytest.approx(math.log(2), rel=3e-15)
    assert channel_epsilon(channel, delta=HALF) == 0.0
    assert channel_epsilon(channel, delta=1) == 0.0


@given(channel=rows(count=3))
def test_channel_epsilon_is_the_largest_ratio(channel: list[list[Fraction]]) -> None:
    epsilon = channel_epsilon(channel)
    largest = max(renyi(a, b, order=math.inf) for a in channel for b in channel)
    if math.isinf(largest):
        assert epsilon == math.inf
    else:
        assert epsilon >= largest
        assert epsilon == pytest.approx(largest, rel=1e-14)


@settings(max_examples=200)
@given(channel=rows(count=3), percent=st.integers(1, 99))
def test_channel_epsilon_at_delta_is_least_and_sufficient(
    channel: list[list[Fraction]], percent: int
) -> None:
    delta = Fraction(percent, 100)
    epsilon = channel_epsilon(channel, delta=delta)
    if math.isinf(epsilon):
        assert contraction(channel, 800.0) > delta
        return
    with mpmath.workdps(40):
        gamma = Fraction(str(mpmath.exp(mpmath.mpf(epsilon))))
        below = max(Fraction(1), Fraction(str(mpmath.exp(mpmath.mpf(epsilon) * (1 - 1e-12)))))
    pairs = [(a, b) for a in channel for b in channel]
    assert max(e_gamma(a, b, gamma=gamma) for a, b in pairs) <= delta
    if epsilon > 1e-9:
        assert max(e_gamma(a, b, gamma=below) for a, b in pairs) > delta


@given(data=st.data(), numerator=st.integers(10, 40))
def test_no_input_pair_is_contracted_less_than_the_coefficient(data, numerator: int) -> None:
    channel = data.draw(rows(count=3))
    weights = st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)
    p, q = ([Fraction(w, sum(ws)) for w in ws] for ws in (data.draw(weights), data.draw(weights)))
    gamma = Fraction(numerator, 10)

    def push(row: list[Fraction]) -> list[Fraction]:
        return [
            sum(m * k[j] for m, k in zip(row, channel, strict=True)) for j in range(len(channel[0]))
        ]

    rate = max(e_gamma(a, b, gamma=gamma) for a in channel for b in channel)
    assert e_gamma(push(p), push(q), gamma=gamma) <= rate * e_gamma(p, q, gamma=gamma)
    assert contraction(channel, math.log(gamma)) == pytest.approx(float(rate), abs=1e-12)
    assert dobrushin(channel) == max(total_variation(a, b) for a in channel for b in channel)


def test_a_channel_that_reveals_has_no_epsilon_until_delta_pays() -> None:
    channel = ((0.875, 0.125, 0.0), (0.875, 0.0, 0.125))
    assert channel_epsilon(channel) == math.inf
    assert channel_epsilon(channel, delta=0.1) == math.inf
    assert channel_epsilon(channel, delta=0.125) == 0.0


def test_degenerate_channels() -> None:
    assert channel_epsilon([[0.3, 0.7]]) == 0.0
    assert contraction([[0.3, 0.7]], 1.0) == 0.0
    assert dobrushin([[1, 0], [1, 0]]) == 0
    assert channel_epsilon([[0.3, 0.7], [0.3, 0.7]]) == 0.0
    # A column that never occurs is no evidence.
    assert channel_epsilon([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]]) == pytest.approx(math.log(2))


def test_arrays_are_read_like_lists() -> None:
    channel = np.array([[0.75, 0.25], [0.25, 0.75]])
    assert channel_epsilon(channel) == channel_epsilon(channel.tolist())
    assert renyi(channel[0], channel[1], order=2) == renyi((0.75, 0.25), (0.25, 0.75), order=2)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: renyi((0.5, 0.6), (0.5, 0.5), order=2), "p"),
        (lambda: renyi((0.5, 0.5), (0.5, 0.5 + 1e-6), order=2), "q"),
        (lambda: renyi((1.5, -0.5), (0.5, 0.5), order=2), "p[1]"),
        (lambda: renyi((0.5, math.nan), (0.5, 0.5), order=2), "p[1]"),
        (lambda: renyi((Fraction(3, 2), -HALF), (HALF, HALF), order=2), "p"),
        (lambda: renyi((HALF, Fraction(1, 3)), (HALF, HALF), order=2), "p"),
        (lambda: renyi((), (), order=2), "p"),
        (lambda: renyi("01", (0.5, 0.5), order=2), "p"),
        (lambda: renyi(0.5, (0.5, 0.5), order=2), "p"),
        (lambda: renyi((True, False), (0.5, 0.5), order=2), "p[0]"),
        (lambda: renyi((1.0,), (0.5, 0.5), order=2), "q"),
        (lambda: renyi((0.5, 0.5), (0.5, 0.5), order=0), "order"),
        (lambda: renyi((0.5, 0.5), (0.5, 0.5), order=math.nan), "order"),
        (lambda: e_gamma((0.5, 0.5), (0.5, 0.5), gamma=0.9), "gamma"),
        (lambda: e_gamma((0.5, 0.5), (0.5, 0.5), gamma=HALF), "gamma"),
        (lambda: hockey_stick((0.5, 0.5), (0.5, 0.5), -0.1), "epsilon"),
        (lambda: contraction([], 1.0), "channel"),
        (lambda: contraction(3, 1.0), "channel"),
        (lambda: contraction([[0.5, 0.5], [1.0]], 1.0), "channel[1]"),
        (lambda: dobrushin([[0.5, 0.5], [0.9, 0.0]]), "channel[1]"),
        (lambda: channel_epsilon([[0.5, 0.5]], delta=1.5), "delta"),
        (lambda: channel_epsilon([[0.5, 0.5]], delta=Fraction(-1, 2)), "delta"),
    ],
)
def test_bad_input_names_the_argument(call, name) -> None:
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.argument == name
