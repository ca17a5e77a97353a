"""Finite pairs and randomized response: brackets and Renyi curves against every outcome."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from discreet.privacy import (
    ApproxDP,
    PureDP,
    RandomizedResponse,
    from_pair,
)
from discreet.privacy._finite import worst_order
from discreet.privacy._renyi import (
    rdp,
    rdp_epsilon,
)
from oracles import exact_compositions as exact
from oracles.brackets import BRACKET_DELTAS, contains, contains_delta
from oracles.renyi_curves import RENYI_ORDERS, finite_divergence, near, without_replacement


@pytest.mark.parametrize("delta", BRACKET_DELTAS)
@pytest.mark.parametrize(
    ("epsilon_step", "count", "categories"),
    [(0.1, 60, 2), (1.0, 13, 2), (4.0, 5, 2), (0.5, 25, 3), (1.0, 12, 10)],
)
def test_randomized_response_is_a_trinomial_sum(epsilon_step, count, categories, delta):
    contains(
        count * RandomizedResponse(epsilon_step, categories),
        lambda e: exact.response_delta(epsilon_step, count, e, categories=categories),
        delta=delta,
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 5.0])
def test_delta_of_randomized_response(epsilon):
    contains_delta(
        20 * RandomizedResponse(0.4),
        lambda e: exact.response_delta(0.4, 20, e),
        epsilon=epsilon,
    )


PAIRS = [
    ([0.6, 0.4], [0.5, 0.5], 9),
    ([0.7, 0.2, 0.1], [0.2, 0.3, 0.5], 4),
    ([0.5, 0.25, 0.25, 0.0], [0.25, 0.5, 0.125, 0.125], 3),
    ([0.001, 0.999], [0.01, 0.99], 6),
]


@pytest.mark.parametrize("delta", [1e-4, 0.02, 0.3])
@pytest.mark.parametrize("pair", PAIRS)
def test_finite_pairs_against_every_outcome(pair, delta):
    p, q, count = pair
    total = exact.pair_delta([pair], 60.0)
    plan = count * from_pair(p, q, oriented=True)
    if delta <= total:
        assert plan.epsilon(delta=delta) == math.inf
        return
    contains(plan, lambda e: exact.pair_delta([pair], e), delta=delta)


def test_different_finite_pairs_may_be_given_in_different_orders():
    pairs = [(p, q, min(count, 2)) for p, q, count in PAIRS[:2]] + [(*PAIRS[3][:2], 2)]
    plan = sum((count * from_pair(p, q) for p, q, count in pairs), start=0)
    orders = itertools.product(*([(p, q, n), (q, p, n)] for p, q, n in pairs))
    outcomes = [exact.composed_pairs(order) for order in orders]  # each way around is among them
    for epsilon in (0.0, 0.3, 1.0):
        bounds = plan.delta_bounds(epsilon=epsilon)
        values = [exact.outcomes_delta(one, epsilon) for one in outcomes]
        assert bounds.lower <= max(values) <= bounds.upper


UNEVEN = [
    ([0.7, 0.2, 0.1], [0.2, 0.3, 0.5]),
    ([0.01, 0.99], [0.2, 0.8]),
    ([0.11905782, 0.83495151, 0.04599067], [0.3174224, 0.67446016, 0.00811744]),
    ([0.5, 0.5, 0.0], [0.4, 0.3, 0.3]),
]


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.7, 1.5])
@pytest.mark.parametrize("relation", ["replace", "add_remove"])
@pytest.mark.parametrize("pair", UNEVEN)
def test_a_pair_may_turn_around_in_every_release(pair, relation, epsilon):
    for p, q in (pair, pair[::-1]):
        for count in (1, 2):
            bounds = (count * from_pair(p, q, relation=relation)).delta_bounds(epsilon=epsilon)
            turned = [
                exact.outcomes_delta(exact.composed_pairs([(a, b, 1) for a, b in order]), epsilon)
                for order in itertools.product([(p, q), (q, p)], repeat=count)
            ]
            assert bounds.upper >= max(turned)
            # The same order in all releases is the first or the last of them.
            assert bounds.lower <= max(turned[0], turned[-1]) * (1 + 1e-12)
            assert bounds.lower >= max(turned[0], turned[-1]) * 0.98 - 1e-12


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
def test_figures_that_were_too_small_in_version_0_1(relation):
    for pair in (([0.01, 0.99], [0.2, 0.8]), ([0.2, 0.8], [0.01, 0.99])):
        loss = from_pair(*pair, relation=relation)
        assert loss.epsilon(delta=0.05) == pytest.approx(2.70805, abs=1e-5)  # 0.161
        assert loss.delta(epsilon=1) == pytest.approx(0.2 - 0.01 * math.e, abs=1e-9)  # 0
        assert loss.tradeoff(0.01) == pytest.approx(0.2, abs=1e-3)  # 0.0124
        assert (50 * loss).epsilon(delta=0.05) > 40
    pair = UNEVEN[2]
    # Two releases of opposite order cost 2.583; an order chosen after the first costs more still.
    assert 2.583 < (2 * from_pair(*pair, relation=relation)).epsilon(delta=0.0018) < 2.61
    declared = 2 * from_pair(*pair, relation=relation, oriented=True)
    assert declared.epsilon(delta=0.0018) == pytest.approx(1.946, abs=2e-3)


def test_a_sampled_pair_under_replace_is_read_in_both_orders():
    for pair in (([0.9, 0.1], [0.5, 0.5]), ([0.5, 0.5], [0.9, 0.1])):
        for oriented in (False, True):
            loss = from_pair(*pair, relation="replace", oriented=oriented)
            sampled = loss.sample_without_replacement(sample=1, population=2)
            # The other record of the population has the first law of the pair, or the second.
            worst = max(
                exact.outcomes_delta(exact.composed_pairs([(m, other, 1)]), 0.3)
                for record, other in (pair, pair[::-1])
                for m in [[0.5 * (a + b) for a, b in zip(record, other, strict=True)]]
            )
            assert 0.165 <= worst <= sampled.delta(epsilon=0.3)


def worst_single_release(p, q, epsilon):
    return max(
        sum(max(a - math.exp(epsilon) * b, 0.0) for a, b in zip(x, y, strict=True))
        for x, y in ((p, q), (q, p))
    )


@pytest.mark.parametrize("pair", UNEVEN)
def test_the_worst_order_of_one_release_is_exact_and_symmetric(pair):
    worst = worst_order(tuple(pair[0]), tuple(pair[1]))
    turned = worst_order(tuple(pair[1]), tuple(pair[0]))
    assert np.array_equal(worst.loss, turned.loss)
    assert np.array_equal(worst.p, turned.p)
    assert np.array_equal(worst.p, worst.q[::-1])
    assert np.array_equal(worst.loss, -worst.loss[::-1])
    assert not worst.both_ways
    for epsilon in np.linspace(0.0, 4.0, 41):
        above = worst.loss > epsilon
        mine = worst.infinite - float(worst.p[above] @ np.expm1(epsilon - worst.loss[above]))
        assert mine == pytest.approx(worst_single_release(*pair, epsilon), abs=1e-14)


def test_a_pair_that_equals_its_exchanged_pair_is_found_by_comparing():
    assert worst_order((0.25, 0.75), (0.75, 0.25)).both_ways
    assert worst_order((0.25, 0.5, 0.25), (0.5, 0.25, 0.25)).both_ways
    assert worst_order((0.5, 0.5), (0.5, 0.5)).both_ways
    assert not worst_order((0.5, 0.5, 0.0), (0.5, 0.25, 0.25)).both_ways
    symmetric = from_pair([0.25, 0.75], [0.75, 0.25], relation="replace")
    assert (3 * symmetric).epsilon_bounds(delta=0.1).tolerance_met


@pytest.mark.parametrize(
    ("base", "p", "q"),
    [
        (PureDP(1), None, None),
        (ApproxDP(1, "0.1"), None, None),
        (from_pair([0.7, 0.2, 0.1], [0.2, 0.3, 0.5]), [0.7, 0.2, 0.1], [0.2, 0.3, 0.5]),
        (from_pair([0.9, 0.1, 0.0], [0.5, 0.25, 0.25]), [0.9, 0.1, 0.0], [0.5, 0.25, 0.25]),
    ],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_poisson_sampling_of_finite_pairs_is_a_mixture(base, p, q, epsilon):
    rate, count = 0.25, 3
    if p is None:
        odds, free = math.exp(1.0), 0.1 if isinstance(base, ApproxDP) else 0.0
        yes, no = (1 - free) * odds / (1 + odds), (1 - free) / (1 + odds)
        p, q = [yes, no, free, 0.0], [no, yes, 0.0, free]
    bounds = (count * base.poisson(rate=rate)).delta_bounds(epsilon=epsilon)
    values = []
    for present, absent in ((p, q), (q, p)):
        mixed = [(1 - rate) * b + rate * a for a, b in zip(present, absent, strict=True)]
        values.append(exact.pair_delta([(mixed, absent, count)], epsilon))
    assert bounds.lower * (1 - 1e-12) <= max(values) <= bounds.upper * (1 + 1e-12)
    if values[0] == pytest.approx(values[1], rel=1e-12):
        assert bounds.width <= max(0.02 * bounds.upper, 1e-15)


@pytest.mark.parametrize("categories", [2, 3, 10])
def test_randomized_response_and_pure(categories):
    epsilon = 0.8
    truth = 1 / (1 + (categories - 1) * math.exp(-epsilon))
    lie = truth * math.exp(-epsilon)
    p = [truth, lie] + [lie] * (categories - 2)
    q = [lie, truth] + [lie] * (categories - 2)
    values = rdp(RandomizedResponse(epsilon, categories), RENYI_ORDERS)
    expected = [finite_divergence(p, q, order) for order in RENYI_ORDERS]
    # The oracle starts from probabilities that sum to one only within 1e-16.
    assert np.allclose(values[1:], expected[1:], rtol=1e-12)
    assert np.allclose(values, expected, rtol=1e-10)
    if categories == 2:
        assert np.array_equal(values, rdp(PureDP(epsilon), RENYI_ORDERS))
        assert np.array_equal(values, rdp(ApproxDP(epsilon, 0), RENYI_ORDERS))
        sampled = rdp(PureDP(epsilon).poisson(rate=0.03), [1.5, 40.0])
        expected = [finite_divergence(p, q, order, 0.03) for order in (1.5, 40.0)]
        assert np.allclose(sampled, expected, rtol=1e-12)


def test_finite_pairs_both_directions_and_infinities():
    p, q = [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]
    loss = from_pair(p, q)
    for order in (1.01, 2.0, 7.5):
        assert near(rdp(loss, [order])[0], finite_divergence(p, q, order), 1e-12)
        sampled = rdp(loss.poisson(rate=0.2), [order])[0]
        assert near(sampled, finite_divergence(p, q, order, 0.2), 1e-12)
    # S3 prints the direction P against Q, ln 1.04; the other one is larger.
    both = rdp(from_pair([0.6, 0.4], [0.5, 0.5]), [2.0])[0]
    assert near(both, math.log(0.25 / 0.6 + 0.25 / 0.4), 1e-12)
    assert both > math.log(1.04)
    leaky = from_pair([0.5, 0.5, 0.0], [0.5, 0.4, 0.1])
    assert np.all(np.isinf(rdp(leaky, RENYI_ORDERS)))
    assert np.all(np.isinf(rdp(leaky.poisson(rate=0.1), RENYI_ORDERS)))
    assert rdp_epsilon(leaky, 1e-5) == math.inf


def test_an_asymmetric_pair_is_enveloped():
    pair = from_pair([0.7, 0.2, 0.1], [0.3, 0.3, 0.4], relation="replace")
    swapped = from_pair(pair.q, pair.p, relation="replace")
    one, two = (rdp(without_replacement(x, 1, 4), [1.5, 6.0]) for x in (pair, swapped))
    assert np.allclose(one, two, rtol=1e-12)
    for order, value in zip((1.5, 6.0), one, strict=True):
        mixed = [0.75 * v + 0.25 * u for u, v in zip(pair.p, pair.q, strict=True)]
        for u, v in ((mixed, pair.q), (pair.q, mixed)):
            moment = sum(s**order * t ** (1 - order) for s, t in zip(u, v, strict=True))
            assert math.log(moment) / (order - 1) <= value
