"""S9: certified brackets contain what exact sums, closed forms and mpmath say."""

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf

from discreet.privacy import (
    GDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Laplace,
    Loss,
    PureDP,
    RandomizedResponse,
    from_pair,
    theorems,
)
from discreet.privacy._finite import worst_order
from discreet.privacy._pair import Resolution, orient
from oracles import exact_compositions as exact
from oracles import gaussian_mixtures as mixtures

DELTAS = (1e-15, 1e-9, 1e-5, 1e-2, 0.3)


def contains(loss: Loss, delta_at, *, delta: float) -> None:
    """The bracket of epsilon holds the exact value and is as narrow as promised."""
    bounds = loss.epsilon_bounds(delta=delta)
    assert 0.0 <= bounds.lower <= bounds.upper
    if bounds.tolerance_met:
        assert bounds.width <= max(1e-3 * bounds.upper, 1e-6)
    else:
        # A lattice of losses and an epsilon near 0 may cost a little more than was promised.
        assert bounds.note
        assert bounds.width <= 1e-5
    # Tested through delta, where the oracle is exact: epsilon is where it crosses.
    assert delta_at(bounds.upper) <= mpf(delta)
    assert bounds.lower == 0.0 or delta_at(bounds.lower) >= mpf(delta)


def contains_delta(loss: Loss, delta_at, *, epsilon: float) -> None:
    """The bracket of delta holds the exact value and is narrow."""
    bounds = loss.delta_bounds(epsilon=epsilon)
    value = delta_at(epsilon)
    assert mpf(bounds.lower) <= value <= mpf(bounds.upper)
    assert bounds.tolerance_met
    assert bounds.width <= max(0.02 * bounds.upper, 1e-15)


# --- closed forms and exact sums ------------------------------------------------------------


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("noise", [0.2, 1.0, 50.0])
def test_gaussians_have_their_closed_form(noise, delta):
    contains(Gaussian(noise), lambda e: mixtures.gaussian_delta(1 / mpf(noise), e), delta=delta)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.2])
def test_composed_gaussians_are_one_gaussian(delta):
    plan = 7 * Gaussian(2.0) + 3 * GDP(0.25)
    mu = mp.sqrt(mpf(7) / 4 + mpf(3) / 16)
    contains(plan, lambda e: mixtures.gaussian_delta(mu, e), delta=delta)


def test_a_replaced_record_moves_a_gaussian_twice_as_far():
    contains(
        Gaussian(3.0, relation="replace"),
        lambda e: mixtures.gaussian_delta(mpf(2) / 3, e),
        delta=1e-6,
    )


@pytest.mark.parametrize("delta", DELTAS)
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


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize(("scale", "count"), [(1.0, 1), (1.0, 6), (5.0, 10), (0.25, 3)])
def test_laplace_compositions_are_elementary_integrals(scale, count, delta):
    contains(
        count * Laplace(scale),
        lambda e: exact.laplace_delta(1 / mpf(scale), count, e),
        delta=delta,
    )


def test_the_laplace_oracle_agrees_with_the_textbook_and_with_a_quadrature():
    # One release: delta = 1 - exp((eps - 1) / 2); two: integrate one against the other.
    assert mp.almosteq(exact.laplace_delta(1, 1, 0.25), 1 - mp.exp(-mpf(3) / 8), 1e-40)
    one = exact.laplace_delta

    def inner(loss: mpf) -> mpf:
        rest = mpf(1) / 4 - loss
        value = one(1, 1, rest) if rest >= 0 else 1 - mp.exp(rest) + mp.exp(rest) * one(1, 1, -rest)
        return value * mp.exp((loss - 1) / 2) / 4

    def at(loss: float) -> mpf:
        return inner(mpf(loss)) / (mp.exp((mpf(loss) - 1) / 2) / 4)

    with mp.workdps(20):
        between = mp.quad(inner, [-1, -0.75, 0.25, 1])
    by_quadrature = between + at(1.0) / 2 + mp.exp(-1) / 2 * max(mpf(0), at(-1.0))
    assert mp.almosteq(one(1, 2, 0.25), by_quadrature, 1e-15)


@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.2])
@pytest.mark.parametrize(("scale", "shift", "count"), [(1.0, 1, 4), (2.0, 3, 3), (10.0, 7, 2)])
def test_discrete_laplace(scale, shift, count, delta):
    def weight(x: int) -> mpf:
        return mp.exp(-abs(x) / mpf(scale))

    reach = math.ceil(120 * scale) if count == 2 else math.ceil(40 * scale)
    reach = min(reach, 160)
    # The tails beyond the shift are two atoms; the oracle sums integers, so cut generously.
    table = {x: weight(x) for x in range(-reach - 2 * shift, reach + 2 * shift + 1)}
    norm = (1 + mp.exp(-1 / mpf(scale))) / (1 - mp.exp(-1 / mpf(scale)))
    losses: dict[int, mpf] = {}
    for x in range(1, shift):
        losses[2 * x - shift] = table[x - shift] / norm
    outer = mp.exp(-shift / mpf(scale)) / (1 + mp.exp(-1 / mpf(scale)))
    losses[-shift] = losses.get(-shift, mpf(0)) + outer
    losses[shift] = losses.get(shift, mpf(0)) + 1 / (1 + mp.exp(-1 / mpf(scale)))
    assert mp.almosteq(mp.fsum(losses.values()), 1, 1e-30)
    sums = {0: mpf(1)}
    for _ in range(count):
        fresh: dict[int, mpf] = {}
        for (a, p), (b, q) in itertools.product(sums.items(), losses.items()):
            fresh[a + b] = fresh.get(a + b, mpf(0)) + p * q
        sums = fresh

    def delta_at(epsilon: float) -> mpf:
        return mp.fsum(
            p * (1 - mp.exp(epsilon - k / mpf(scale)))
            for k, p in sums.items()
            if k / mpf(scale) > epsilon
        )

    contains(count * DiscreteLaplace(scale, shift), delta_at, delta=delta)


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 0.3])
@pytest.mark.parametrize(("stddev", "shift", "count"), [(0.7, 1, 3), (2.0, 1, 2), (3.0, 4, 1)])
def test_discrete_gaussian(stddev, shift, count, delta):
    def weight(x: int) -> mpf:
        return mp.exp(-(mpf(x) ** 2) / (2 * mpf(stddev) ** 2))

    reach = math.ceil(14 * stddev)
    contains(
        count * DiscreteGaussian(stddev, shift),
        lambda e: exact.integer_noise_delta(weight, shift, count, e, reach=reach),
        delta=delta,
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.03, 0.1])
def test_a_truncated_normaliser_does_not_lift_the_lower_bound(epsilon):
    # Dividing by a sum without its tails would make every mass a little too large.
    def weight(x: int) -> mpf:
        return mp.exp(-(mpf(x) ** 2) / 800)

    contains_delta(
        DiscreteGaussian(20.0),
        lambda e: exact.integer_noise_delta(weight, 1, 1, e, reach=300),
        epsilon=epsilon,
    )


def test_a_large_discrete_gaussian_is_close_to_the_continuous_one():
    for stddev in (1.9e4, 2.1e4, 1e6):
        bounds = (4 * DiscreteGaussian(stddev, 5000)).epsilon_bounds(delta=1e-6)
        smooth = Gaussian(stddev / 5000).group(1)
        target = (4 * smooth).epsilon(delta=1e-6)
        assert bounds.lower <= target * (1 + 1e-6)
        assert bounds.upper >= target * (1 - 1e-6)
        assert bounds.width <= 1e-3 * bounds.upper


@pytest.mark.parametrize("delta", [0.011, 0.05, 0.3])
@pytest.mark.parametrize(
    ("claim", "count"), [((0.5, 1e-3), 10), ((1.0, 0.0), 12), ((0.0, 1e-3), 9)]
)
def test_approximate_dp_composes_as_kairouz_oh_and_viswanath_say(claim, count, delta):
    plan = count * ApproxDP(*claim)
    bounds = plan.epsilon_bounds(delta=delta)
    closed = theorems.optimal_composition_epsilon(*claim, k=count, delta=delta)
    assert bounds.lower <= closed * (1 + 1e-9)
    assert bounds.upper >= closed * (1 - 1e-9)
    assert bounds.width <= max(1e-3 * bounds.upper, 1e-6)
    assert exact.approximate_delta(claim, count, bounds.upper) <= delta


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_delta_of_approximate_dp(epsilon):
    contains_delta(
        10 * ApproxDP(0.5, 1e-3),
        lambda e: exact.approximate_delta((0.5, 1e-3), 10, e),
        epsilon=epsilon,
    )


def test_a_claim_holds_at_its_own_delta():
    assert ApproxDP(1, 1e-5).epsilon(delta=1e-5) == 1.0
    assert (ApproxDP(1, 1e-5) + PureDP(2)).epsilon(delta=1e-5) == 3.0
    assert tuple(ApproxDP(1, 1e-5).epsilon_bounds(delta=1e-5)) == (1.0, 1.0)
    assert ApproxDP(1, 1e-5).epsilon(delta=0.99e-5) == math.inf
    assert (2 * ApproxDP(1, 1e-5)).epsilon(delta=1.9e-5) == math.inf
    assert (3 * ApproxDP(1, "1e-5")).epsilon(delta=3e-5) <= 3.0


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


# --- sampled steps ----------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-15, 1e-6, 1e-2])
@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.5), (1.0, 0.01), (1.0, 1e-4), (30.0, 0.2)])
def test_one_poisson_sampled_gaussian(noise, rate, delta):
    contains(
        Gaussian(noise).poisson(rate=rate),
        lambda e: mixtures.poisson_gaussian_delta(noise, rate, e),
        delta=delta,
    )


@pytest.mark.parametrize(("records", "rate"), [(2, 0.1), (5, 0.3), (40, 0.01)])
def test_a_group_on_a_poisson_sample_is_a_binomial_mixture(records, rate):
    weights = [
        mp.binomial(records, k) * mpf(rate) ** k * (1 - mpf(rate)) ** (records - k)
        for k in range(records + 1)
    ]
    shifts = [mpf(k) / 2 for k in range(records + 1)]
    contains(
        Gaussian(2.0).poisson(rate=rate).group(records),
        lambda e: max(mixtures.mixture_delta(weights, shifts, e, swapped=s) for s in (True, False)),
        delta=1e-6,
    )


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


@pytest.mark.parametrize(
    ("noise", "rate", "count", "epsilon"),
    [(1.5, 0.1, 20, 0.5), (0.9, 0.05, 10, 1.0), (4.0, 0.5, 40, 0.6), (3.0, 0.9, 8, 0.0)],
)
def test_composed_sampled_gaussians_against_a_plain_grid(noise, rate, count, epsilon):
    interval = 1e-4
    lower, upper = (
        max(
            mixtures.grid_delta([(noise, rate, count, s)], epsilon, interval=interval, up=up)
            for s in (False, True)
        )
        for up in (False, True)
    )
    bounds = (count * Gaussian(noise).poisson(rate=rate)).delta_bounds(epsilon=epsilon)
    assert upper - lower < 0.05 * upper
    assert bounds.lower <= upper
    assert bounds.upper >= lower
    assert bounds.width <= 0.02 * bounds.upper


@pytest.mark.parametrize(("noise", "rate"), [(1.5, 0.05), (0.8, 0.3), (4.0, 0.01)])
@pytest.mark.parametrize("order", [1, 2, 7, 2.5])
def test_the_moments_of_s7_by_numerical_integration(noise, rate, order):
    loss = Gaussian(noise).poisson(rate=rate)
    removed = mixtures.log_moment(noise, rate, order, added=False)
    added = mixtures.log_moment(noise, rate, order, added=True)
    assert removed >= added
    assert float(loss.rdp([order + 1.0])[0]) * order == pytest.approx(removed, rel=1e-9)
    if order == int(order):
        closed = theorems.moments_closed_form(int(order), noise_multiplier=noise, rate=rate)
        assert closed == pytest.approx(removed, rel=1e-9)


# --- every step is bounded from both sides, however coarse the view ---------------------------


def profile(measure, epsilon: float) -> float:
    """delta of one measure, straight from the definition."""
    gain = -np.expm1(np.minimum(epsilon - measure.loss[0], 0.0))
    return float(measure.infinite[0] + np.dot(measure.mass[0], gain))


def check_coarse_steps(loss: Loss, delta_at) -> None:
    """Both measures stay on their side with few cells and thick tails, also for eps < 0."""
    epsilons = (-2.0, -0.3, -0.01, 0.0, 0.01, 0.2, 1.0, 2.5)
    truth = {(e, s): float(delta_at(e, s)) for e in epsilons for s in (False, True)}
    for swapped, cells, tail in itertools.product((False, True), (20, 90), (1e-2, 1e-6)):
        resolution = Resolution(cells, 0.7, tail, swapped=swapped)
        lower, upper = orient(loss.pair(resolution), swapped=swapped)
        for epsilon in epsilons:
            value = truth[epsilon, swapped]
            assert profile(upper, epsilon) >= value - 1e-13
            assert profile(lower, epsilon) <= value + 1e-13


def sampled_gaussian_delta(noise: float, rate: float):
    weights, shifts = [1 - mpf(rate), mpf(rate)], [mpf(0), 1 / mpf(noise)]
    return lambda e, swapped: mixtures.mixture_delta(weights, shifts, e, swapped=swapped)


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.3), (1.0, 0.01), (5.0, 0.9)])
def test_coarse_sampled_gaussian_steps_are_bounded(noise, rate):
    check_coarse_steps(Gaussian(noise).poisson(rate=rate), sampled_gaussian_delta(noise, rate))


def test_coarse_laplace_steps_are_bounded():
    def delta_at(epsilon: float, swapped: bool) -> mpf:
        if abs(epsilon) >= 2:
            return max(mpf(0), 1 - mp.exp(mpf(epsilon)))
        if epsilon >= 0:
            return exact.laplace_delta(2, 1, epsilon)
        return 1 - mp.exp(epsilon) + mp.exp(epsilon) * exact.laplace_delta(2, 1, -epsilon)

    check_coarse_steps(Laplace(0.5), delta_at)


def test_bounded_range_dominates_every_exponential_mechanism():
    # Two outcomes whose log ratios are 0.8 apart, at any position.
    worst = Exponential(0.8)
    for t in np.linspace(0.02, 0.78, 7):
        p = -math.expm1(t - 0.8) * math.exp(t) / (math.exp(t) - math.exp(t - 0.8))
        q = p * math.exp(-t)
        pair = ([p, 1 - p], [q, 1 - q])
        for count, epsilon in ((1, 0.1), (1, 0.5), (3, 0.2), (3, 1.0)):
            value = exact.pair_delta([(*pair, count)], epsilon)
            assert (count * worst).delta(epsilon=epsilon) >= value * (1 - 1e-9)
