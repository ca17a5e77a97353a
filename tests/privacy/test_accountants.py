"""The accountants side by side, and what a person reads off a loss (S1, S4-S9)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy import special

from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.privacy import (
    ACCOUNTANTS,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    Exponential,
    Gaussian,
    Laplace,
    Loss,
    PureDP,
    RandomizedResponse,
    RenyiDP,
    every_accountant,
    theorems,
)
from oracles import exact_compositions as exact

SGD = 1000 * Gaussian(4.0).poisson(rate=0.01)
MIXED = 3 * Laplace(4.0) + 2 * PureDP("0.25") + DiscreteGaussian(5.0)


# --- every accountant -------------------------------------------------------------------------


def test_the_answers_carry_every_name_and_best_is_the_smallest():
    for loss in (SGD, MIXED, 5 * Exponential(0.3), 3 * ZCDP(0.1), 10 * Gaussian(5.0)):
        answers = every_accountant(loss, delta=1e-5)
        assert tuple(answers) == ACCOUNTANTS
        numbers = {name: value for name, value in answers.items() if isinstance(value, float)}
        assert all(value > 0 for value in numbers.values())
        smallest = min(numbers.values())
        assert smallest <= numbers["best"] <= smallest * (1 + 1e-3) + 1e-6
        for name, value in answers.items():
            if isinstance(value, float):
                assert loss.epsilon(delta=1e-5, accountant=name) == value
            else:
                with pytest.raises(NotApplicable) as reason:
                    loss.epsilon(delta=1e-5, accountant=name)
                assert str(reason.value) == value


def test_no_accountant_is_below_the_certified_lower_bound():
    for loss in (SGD, MIXED, 40 * Laplace(10.0), 10 * Gaussian(5.0), 30 * PureDP("0.1")):
        for delta in (1e-9, 1e-5, 1e-2):
            lower = loss.epsilon_bounds(delta=delta).lower
            for name, value in every_accountant(loss, delta=delta).items():
                assert isinstance(value, str) or value >= lower, name


def test_zcdp_refuses_sampled_losses_and_says_why():
    with pytest.raises(NotApplicable, match=r"poisson.*zCDP"):
        SGD.epsilon(delta=1e-5, accountant="zcdp")
    reason = every_accountant(SGD, delta=1e-5)["zcdp"]
    assert isinstance(reason, str)
    with pytest.raises(NotApplicable):
        ZCDP(0.1).poisson(rate=0.1)


@pytest.mark.parametrize("name", ["rdp", "moments", "zcdp"])
def test_approximate_dp_has_no_renyi_bound(name):
    with pytest.raises(NotApplicable, match="Renyi"):
        (ApproxDP(1, 1e-6) + Laplace(2.0)).epsilon(delta=1e-5, accountant=name)


def test_advanced_composition_needs_a_delta():
    with pytest.raises(NotApplicable, match="delta"):
        (10 * PureDP("0.1")).epsilon(delta=0, accountant="advanced")
    for name in ("naive", "optimal", "pld", "rdp", "moments", "best"):
        value = (10 * PureDP("0.1")).epsilon(delta=0, accountant=name)
        assert 1.0 <= value <= 1.0 + 1e-14
    assert (10 * PureDP("0.1")).epsilon(delta=0) == 1.0


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_pure_steps_against_the_closed_forms_of_s5(delta):
    plan = 40 * PureDP("0.1")
    assert plan.epsilon(delta=delta, accountant="naive") == 4.0
    advanced = theorems.advanced_composition(0.1, 0.0, k=40, slack=delta).epsilon
    assert plan.epsilon(delta=delta, accountant="advanced") == pytest.approx(advanced, rel=1e-12)
    optimal = theorems.optimal_composition_epsilon(0.1, 0.0, k=40, delta=delta)
    assert plan.epsilon(delta=delta, accountant="optimal") == pytest.approx(optimal, rel=1e-3)
    assert exact.response_delta("0.1", 40, plan.epsilon(delta=delta, accountant="optimal")) <= delta


def test_gaussian_steps_share_delta_under_naive_accounting():
    delta, steps = 1e-5, 20
    each = theorems.gaussian_epsilon(0.2, delta / steps)
    plan = steps * Gaussian(5.0)
    assert plan.epsilon(delta=delta, accountant="naive") == pytest.approx(steps * each, rel=1e-9)
    # How delta is shared between the steps and the theorem is free; halves are one way.
    found = {name: plan.epsilon(delta=delta, accountant=name) for name in ("advanced", "optimal")}
    ways: dict[str, list[float]] = {"advanced": [], "optimal": []}
    for slack in (0.5, 0.02, 0.1, 0.3, 0.7, 0.9, 0.98):
        part = (1.0 - slack) * delta / steps
        half = theorems.gaussian_epsilon(0.2, part)
        advanced = theorems.advanced_composition(half, part, k=steps, slack=slack * delta)
        assert advanced.delta <= delta * (1 + 1e-12)
        ways["advanced"].append(advanced.epsilon)
        ways["optimal"].append(
            theorems.optimal_composition_epsilon(half, part, k=steps, delta=delta)
        )
    for name, value in found.items():
        assert min(ways[name]) * 0.98 <= value <= ways[name][0] * (1 + 1e-3)


def test_the_moments_accountant_is_rdp_with_the_older_conversion():
    for loss in (SGD, 20 * Laplace(10.0)):
        moments = loss.epsilon(delta=1e-5, accountant="moments")
        orders = 1.0 + np.geomspace(0.5, 400.0, 4000)
        by_hand = np.min(loss.rdp(orders) + math.log(1e5) / (orders - 1))
        assert moments == pytest.approx(float(by_hand), rel=1e-6)
        assert loss.epsilon(delta=1e-5, accountant="rdp") <= moments


def test_rdp_and_zcdp_agree_on_a_gaussian():
    plan = 10 * Gaussian(5.0)
    rdp = plan.epsilon(delta=1e-5, accountant="rdp")
    assert plan.epsilon(delta=1e-5, accountant="zcdp") == pytest.approx(rdp, rel=1e-6)
    assert plan.epsilon(delta=1e-5, accountant="zcdp") == pytest.approx(
        theorems.zcdp_to_approx_tight(0.2, 1e-5), rel=1e-6
    )


@pytest.mark.slow
def test_a_loss_without_a_tight_pair_is_marked_and_still_bounded():
    for loss in (
        3 * ZCDP(0.1),
        RenyiDP((2.0, 4.0, 16.0), (0.1, 0.2, 0.8)),
        5 * Exponential(0.3),
        (2 * Gaussian(4.0).poisson(rate=0.01)).group(2, relation="replace"),
        ZCDP(0.05) + Laplace(3.0).poisson(rate=0.1),
    ):
        bounds = loss.epsilon_bounds(delta=1e-5)
        assert bounds.lower == 0.0
        assert not bounds.tolerance_met
        assert "tight pair" in bounds.note
        assert math.isfinite(bounds.upper)
        assert loss.epsilon(delta=1e-5) <= bounds.upper


# --- algebraic laws ---------------------------------------------------------------------------

noises = st.floats(0.5, 30.0)
rates = st.floats(1e-3, 1.0)
counts = st.integers(1, 3000)
deltas = st.sampled_from([1e-12, 1e-9, 1e-6, 1e-4, 1e-2])


@settings(max_examples=12)
@given(noises, rates, counts, deltas)
def test_epsilon_moves_the_right_way(noise, rate, count, delta):
    def bounds(noise=noise, rate=rate, count=count, delta=delta):
        return (count * Gaussian(noise).poisson(rate=rate)).epsilon_bounds(delta=delta)

    here = bounds()
    assert bounds(delta=min(0.5, 10 * delta)).lower <= here.upper
    assert bounds(noise=1.3 * noise).lower <= here.upper
    assert bounds(rate=0.7 * rate).lower <= here.upper
    assert bounds(count=2 * count).upper >= here.lower
    assert bounds(count=2 * count).lower <= 2 * bounds(delta=delta / 2).upper * (1 + 1e-9)


@settings(max_examples=10)
@given(noises, rates, counts, deltas)
def test_epsilon_and_delta_are_inverse_to_each_other(noise, rate, count, delta):
    loss = count * Gaussian(noise).poisson(rate=rate)
    bounds = loss.epsilon_bounds(delta=delta)
    above = loss.delta_bounds(epsilon=bounds.upper)
    below = loss.delta_bounds(epsilon=bounds.lower)
    assert above.lower <= delta * (1 + 1e-9)
    assert bounds.lower == 0.0 or below.upper >= delta * (1 - 1e-9)


@settings(max_examples=8)
@given(noises, st.floats(0.5, 50.0), st.integers(1, 50), deltas)
def test_a_sum_lies_between_its_largest_part_and_their_total(noise, scale, count, delta):
    first, second = count * Gaussian(noise).poisson(rate=0.1), Laplace(scale)
    both = (first + second).epsilon_bounds(delta=delta)
    assert both.upper >= max(part.epsilon_bounds(delta=delta).lower for part in (first, second))
    shared = [part.epsilon_bounds(delta=0.5 * delta).upper for part in (first, second)]
    assert both.lower <= sum(shared) * (1 + 1e-9)


@settings(max_examples=8)
@given(st.floats(0.05, 2.0), st.integers(1, 30), deltas)
def test_composing_with_itself_is_multiplying(epsilon, count, delta):
    one = RandomizedResponse(epsilon)
    twice = count * one + count * one
    assert twice == 2 * count * one
    assert twice.epsilon_bounds(delta=delta) == ((2 * count) * one).epsilon_bounds(delta=delta)


@pytest.mark.parametrize(
    ("loss", "delta"),
    [
        (14062 * Gaussian(1.1).poisson(rate=256 / 60000), 1e-5),
        (300 * Laplace(10.0), 1e-6),
        (30 * DiscreteGaussian(4.0), 1e-9),
        (20 * Gaussian(1.0).poisson(rate=0.3) + Laplace(1.0), 1e-4),
    ],
)
def test_the_bracket_shrinks_with_the_tolerance(loss, delta):
    brackets = [
        loss.epsilon_bounds(delta=delta, tolerance=tolerance)
        for tolerance in (1e-2, 1e-3, 1e-4, 1e-5)
    ]
    for tolerance, bounds in zip((1e-2, 1e-3, 1e-4, 1e-5), brackets, strict=True):
        assert bounds.tolerance_met
        assert bounds.width <= tolerance * bounds.upper
    assert max(b.lower for b in brackets) <= min(b.upper for b in brackets)


# --- what a person reads ------------------------------------------------------------------------


def test_the_tradeoff_curve_of_a_gaussian_is_its_closed_form():
    fpr = np.array([0.0, 1e-6, 1e-3, 0.01, 0.1, 0.5, 0.9, 1.0])
    for noise in (0.5, 1.0, 5.0):
        best = special.ndtr(special.ndtri(fpr) + 1.0 / noise)
        curve = Gaussian(noise).tradeoff(fpr)
        assert np.all(curve >= best - 1e-12)
        assert np.all(curve <= best * 1.05 + 2e-3)


def test_the_tradeoff_curve_of_an_outright_failure_is_its_closed_form():
    epsilon, delta = 0.8, 0.02
    fpr = np.linspace(0.0, 1.0, 41)
    best = np.minimum(
        math.exp(epsilon) * fpr + delta, 1 - math.exp(-epsilon) * np.maximum(1 - delta - fpr, 0)
    )
    curve = ApproxDP(epsilon, delta).tradeoff(fpr)
    assert np.all(curve >= np.minimum(best, 1.0) - 1e-12)
    assert curve == pytest.approx(np.minimum(best, 1.0), abs=1e-4)


def test_a_tradeoff_curve_is_concave_monotone_and_above_the_diagonal():
    fpr = np.linspace(0.0, 1.0, 201)
    for loss in (SGD, 2 * Laplace(3.0), ApproxDP(1, "0.01"), PureDP(0)):
        curve = loss.tradeoff(fpr)
        assert curve.shape == fpr.shape
        assert np.all((curve >= fpr - 1e-12) & (curve <= 1.0))
        assert np.all(np.diff(curve) >= -1e-12)
        assert np.all(np.diff(curve, 2) <= 1e-9)
    assert isinstance(SGD.tradeoff(0.1), float)


def test_the_advantage_is_delta_at_zero():
    for loss in (SGD, MIXED):
        assert loss.advantage() == loss.delta(epsilon=0.0)
    assert RandomizedResponse(1.0).advantage() == pytest.approx(math.tanh(0.5), rel=1e-9)
    assert Gaussian(1.0).advantage() == pytest.approx(float(mp.erf(mpf(1) / mp.sqrt(8))), rel=1e-8)
    assert Gaussian(1.0).tradeoff(0.3) - 0.3 <= Gaussian(1.0).advantage() + 1e-12


def test_the_posterior_of_a_bounded_loss_always_holds():
    interval = RandomizedResponse.two_coin().posterior(prior=0.02)
    assert interval.upper == pytest.approx(0.0577, abs=5e-5)
    assert interval.failure_probability == 0.0


def test_the_posterior_of_an_unbounded_loss_fails_as_rarely_as_it_says():
    mu, prior, chance = 0.5, 0.4, 1e-3
    interval = Gaussian(1 / mu).posterior(prior=prior, failure_probability=chance)
    assert interval.failure_probability == chance
    assert 0.0 < interval.lower < prior < interval.upper < 1.0
    # The loss is N(+-mu^2/2, mu^2) and moves the log odds.
    top = math.log(interval.upper / (1 - interval.upper)) - math.log(prior / (1 - prior))
    bottom = math.log(prior / (1 - prior)) - math.log(interval.lower / (1 - interval.lower))
    failing = special.ndtr(-(top - mu**2 / 2) / mu) + special.ndtr(-(bottom + mu**2 / 2) / mu)
    assert failing <= chance
    assert Gaussian(2.0).posterior(prior=0.4, failure_probability=1e-9).upper > interval.upper


def test_a_release_that_may_reveal_everything_has_no_posterior_bound():
    interval = ApproxDP(1, "0.01").posterior(prior=0.5, failure_probability=1e-6)
    assert tuple(interval) == (0.0, 1.0, 1e-6)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 2, math.nan, math.inf, "1e-5", None, True])
def test_a_bad_delta_is_named(delta):
    for read in (SGD.epsilon, SGD.epsilon_bounds):
        with pytest.raises(InvalidValue) as error:
            read(delta=delta)
        assert error.value.argument == "delta"
        assert repr(delta) in str(error.value)


@pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf, "1", None])
def test_a_bad_epsilon_is_named(epsilon):
    for read in (SGD.delta, SGD.delta_bounds):
        with pytest.raises(InvalidValue) as error:
            read(epsilon=epsilon)
        assert error.value.argument == "epsilon"


def bad_readings() -> list:
    return [
        ("accountant", lambda: SGD.epsilon(delta=1e-5, accountant="magic")),
        ("tolerance", lambda: SGD.epsilon_bounds(delta=1e-5, tolerance=0.0)),
        ("tolerance", lambda: SGD.epsilon_bounds(delta=1e-5, tolerance=1.5)),
        ("fpr", lambda: SGD.tradeoff(1.5)),
        ("fpr", lambda: SGD.tradeoff(np.array([0.1, math.nan]))),
        ("prior", lambda: SGD.posterior(prior=0.0)),
        ("failure_probability", lambda: SGD.posterior(prior=0.5, failure_probability=0.0)),
    ]


@pytest.mark.parametrize(("argument", "read"), bad_readings())
def test_bad_arguments_are_named(argument, read):
    with pytest.raises(InvalidValue) as error:
        read()
    assert error.value.argument == argument


def test_relations_never_mix_silently():
    with pytest.raises(RelationMismatch, match=r"group\(2"):
        SGD + RandomizedResponse(1.0)
    with pytest.raises(RelationMismatch, match="no way"):
        RandomizedResponse(1.0).group(2, relation="add_remove")
    replaced = Gaussian(4.0).poisson(rate=0.01).group(2, relation="replace")
    both: Loss = replaced + RandomizedResponse(1.0)
    apart = 1.0 + replaced.epsilon_bounds(delta=1e-5).upper
    assert 1.0 < both.epsilon_bounds(delta=1e-5).upper <= apart
