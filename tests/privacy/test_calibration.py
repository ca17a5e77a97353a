"""Calibration: the answer always satisfies the target, is sharp, and needs few readings."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import (
    GDP,
    Gaussian,
    Laplace,
    PureDP,
    _accountants,
    calibrate,
    largest_rate,
    least_laplace_scale,
    least_noise_multiplier,
    most_steps,
)
from discreet.privacy.theorems import gaussian_delta, gaussian_mu


@pytest.fixture
def readings(monkeypatch):
    """Counts how often an accountant is asked."""
    counted = []
    ask = _accountants.epsilon

    def epsilon(loss, *, delta, accountant="best"):
        counted.append(loss)
        return ask(loss, delta=delta, accountant=accountant)

    monkeypatch.setattr(_accountants, "epsilon", epsilon)
    return counted


def sampled(noise: float, share: float, count: int):
    step = Gaussian(noise)
    return count * (step if share == 1.0 else step.poisson(rate=share))


RUNS = [
    # epsilon, delta, rate, steps
    (1.0, 1e-5, 1.0, 1),
    (0.1, 1e-9, 1.0, 1000),
    (1000.0, 1e-5, 1.0, 1),
    (8.0, 1e-5, 0.001, 100_000),
    (2.4, 1e-5, 256 / 60_000, 14_062),
    (0.1, 1e-6, 0.01, 1000),
    (50.0, 1e-5, 0.1, 100),
    (1.0, 1e-5, 0.5, 1),
    (0.5, 1e-8, 1e-4, 1_000_000),
    (3.0, 0.4, 0.1, 100),
]


@pytest.mark.parametrize(("epsilon", "delta", "share", "count"), RUNS)
def test_noise_meets_the_target_sharply_in_few_readings(epsilon, delta, share, count, readings):
    noise = least_noise_multiplier(epsilon=epsilon, delta=delta, rate=share, steps=count)
    assert 1 <= len(readings) <= 10
    reached = sampled(noise, share, count).epsilon(delta=delta)
    assert reached <= epsilon
    sharp = reached >= 0.998 * epsilon
    assert sharp or sampled(0.998 * noise, share, count).epsilon(delta=delta) > epsilon


@pytest.mark.parametrize(("epsilon", "delta", "share", "count"), RUNS[3:7])
def test_rate_and_steps_meet_the_target_sharply(epsilon, delta, share, count, readings):
    noise = 1.1 * least_noise_multiplier(epsilon=epsilon, delta=delta, rate=share, steps=count)
    readings.clear()
    most = largest_rate(epsilon=epsilon, delta=delta, noise_multiplier=noise, steps=count)
    assert 1 <= len(readings) <= 10
    assert share < most <= 1.0
    assert sampled(noise, most, count).epsilon(delta=delta) <= epsilon
    assert sampled(noise, 1.003 * most, count).epsilon(delta=delta) > epsilon

    readings.clear()
    longest = most_steps(epsilon=epsilon, delta=delta, noise_multiplier=noise, rate=share)
    assert 1 <= len(readings) <= 24
    assert longest > count
    assert sampled(noise, share, longest).epsilon(delta=delta) <= epsilon
    assert sampled(noise, share, longest + 1).epsilon(delta=delta) > epsilon


@given(st.floats(1e-3, 50), st.floats(-14, -1).map(lambda x: 10**x))
@settings(max_examples=40, deadline=None)
def test_gaussian_noise_agrees_with_the_closed_form(epsilon, delta):
    noise = least_noise_multiplier(epsilon=epsilon, delta=delta)
    exact = 1.0 / gaussian_mu(epsilon, delta)
    assert exact * (1 - 1e-12) <= noise <= exact * 1.002
    assert gaussian_delta(1.0 / noise, epsilon) <= delta


@given(st.floats(0.01, 20), st.floats(-12, -2).map(lambda x: 10**x), st.floats(0.01, 100))
@settings(max_examples=40, deadline=None)
def test_any_monotone_family(epsilon, delta, unit):
    up = calibrate(
        lambda x: GDP(x * unit), epsilon=epsilon, delta=delta, bracket=(1e-9, 1e9), increasing=True
    )
    down = calibrate(
        lambda x: GDP(unit / x), epsilon=epsilon, delta=delta, bracket=(1e-9, 1e9), increasing=False
    )
    mu = gaussian_mu(epsilon, delta)
    assert mu * 0.998 <= up * unit <= mu * (1 + 1e-9)
    assert mu * 0.998 <= unit / down <= mu * (1 + 1e-9)


def test_under_replace_twice_the_noise_is_needed():
    one = least_noise_multiplier(epsilon=1.0, delta=1e-5, steps=10)
    two = least_noise_multiplier(epsilon=1.0, delta=1e-5, steps=10, relation="replace")
    assert two == pytest.approx(2 * one, rel=2e-3)
    sampled = [
        least_noise_multiplier(epsilon=1.0, delta=1e-5, rate=0.1, steps=10, relation=relation)
        for relation in ("add_remove", "replace")
    ]
    assert sampled[0] < sampled[1] < 2 * sampled[0]
    step = Gaussian(sampled[1], "replace").poisson(rate=0.1)
    assert 0.998 <= (10 * step).epsilon(delta=1e-5) <= 1.0


def test_the_direction_is_found_where_it_is_not_given(readings):
    found = calibrate(GDP, epsilon=1.0, delta=1e-5, bracket=(0.01, 100))
    assert found == pytest.approx(gaussian_mu(1.0, 1e-5), rel=2e-3)
    inverse = calibrate(Gaussian, epsilon=1.0, delta=1e-5, bracket=(0.01, 100))
    assert inverse == pytest.approx(1 / gaussian_mu(1.0, 1e-5), rel=2e-3)
    assert 1 <= len(readings) <= 20


@pytest.mark.parametrize("increasing", [True, None])
def test_ends_of_the_bracket(increasing):
    settled = calibrate(GDP, epsilon=50.0, delta=1e-5, bracket=(0.01, 1.0), increasing=increasing)
    assert settled == 1.0  # even the riskiest meets it
    with pytest.raises(
        InvalidValue, match=r"epsilon = 0.1: expected at least 4.3.*safest parameter 1 "
    ):
        calibrate(GDP, epsilon=0.1, delta=1e-5, bracket=(1.0, 9.0), increasing=increasing)


def test_brackets_may_be_as_wide_as_floats():
    wide = {"epsilon": 1.0, "delta": 1e-5, "bracket": (1e-90, 1e90)}
    assert calibrate(GDP, **wide, increasing=True) == pytest.approx(0.268, rel=2e-3)
    assert calibrate(lambda x: PureDP(min(x, 5.0)), **wide | {"epsilon": 9.0}) == 1e90
    with pytest.raises(InvalidValue, match="safest"):
        calibrate(GDP, **wide, increasing=False)  # a wrong hint ends in an error, not in an answer


def test_tolerance_is_respected():
    mu = gaussian_mu(1.0, 1e-5)
    for tolerance in (1e-1, 1e-2, 1e-4, 1e-6):
        noise = least_noise_multiplier(epsilon=1.0, delta=1e-5, tolerance=tolerance)
        assert 1 / mu <= noise * (1 + 1e-12)
        assert noise <= (1 + 2 * tolerance) / mu


def test_steps_of_plain_gaussians_are_exact():
    for noise in (5.0, 20.0, 300.0):
        mu = gaussian_mu(1.0, 1e-5)
        found = most_steps(epsilon=1.0, delta=1e-5, noise_multiplier=noise)
        assert abs(found - (mu * noise) ** 2) < 1 + 1e-6 * found
        assert gaussian_delta(math.sqrt(found) / noise, 1.0) <= 1e-5
    assert most_steps(epsilon=1.0, delta=1e-5, noise_multiplier=1e6, at_most=1234) == 1234
    with pytest.raises(InvalidValue, match="epsilon"):
        most_steps(epsilon=1.0, delta=1e-5, noise_multiplier=1.0)


def test_rate_one_where_sampling_is_not_needed():
    assert largest_rate(epsilon=1.0, delta=1e-5, noise_multiplier=10.0) == 1.0


def test_other_accountants_are_served_too():
    run = {"epsilon": 2.4, "delta": 1e-5, "rate": 256 / 60_000, "steps": 14_062}
    best = least_noise_multiplier(**run)
    renyi = least_noise_multiplier(**run, accountant="rdp")
    assert renyi > best
    loss = sampled(renyi, run["rate"], run["steps"])
    assert 0.998 * 2.4 <= loss.epsilon(delta=1e-5, accountant="rdp") <= 2.4
    with pytest.raises(NotApplicable):
        least_noise_multiplier(**run, accountant="zcdp")


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, "1/3", 7, 1e-3])
@pytest.mark.parametrize("sensitivity", [1.0, 0.1, 3.0])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_pure_laplace_scales_are_exact(epsilon, sensitivity, count):
    target = float(Fraction(epsilon)) if isinstance(epsilon, str) else epsilon
    scale = least_laplace_scale(epsilon=target, sensitivity=sensitivity, count=count)
    assert scale == pytest.approx(count * sensitivity / target, rel=1e-14)
    assert (count * Laplace(scale, sensitivity)).epsilon(delta=0) <= target
    claimed = count * Fraction(repr(sensitivity)) / Fraction(repr(scale))
    assert claimed <= Fraction(repr(target))


def test_laplace_scales_use_a_delta():
    many = {"epsilon": 1.0, "count": 100}
    pure = least_laplace_scale(**many)
    assert pure == 100.0
    scale = least_laplace_scale(**many, delta=1e-6)
    loss = 100 * Laplace(scale)
    assert scale < 0.6 * pure
    assert 0.997 <= loss.epsilon(delta=1e-6) <= 1.0
    one = least_laplace_scale(epsilon=1.0, delta=0.1)
    # delta(eps) = 1 - e^((eps - 1/scale)/2) for a single release
    assert one == pytest.approx(1 / (1 - 2 * math.log(0.9)), rel=3e-3)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: least_noise_multiplier(epsilon=0, delta=1e-5), "epsilon"),
        (lambda: least_noise_multiplier(epsilon=math.inf, delta=1e-5), "epsilon"),
        (lambda: least_noise_multiplier(epsilon=1, delta=1.0), "delta"),
        (lambda: least_noise_multiplier(epsilon=1, delta=-1e-5), "delta"),
        (lambda: least_noise_multiplier(epsilon=1, delta=1e-5, rate=0), "rate"),
        (lambda: least_noise_multiplier(epsilon=1, delta=1e-5, steps=0), "steps"),
        (lambda: least_noise_multiplier(epsilon=1, delta=1e-5, steps=1.5), "steps"),
        (lambda: least_noise_multiplier(epsilon=1, delta=1e-5, tolerance=0), "tolerance"),
        (lambda: least_noise_multiplier(epsilon=1, delta=1e-5, accountant="guess"), "accountant"),
        (lambda: least_noise_multiplier(epsilon=1, delta=1e-5, relation="x"), "relation"),
        (lambda: most_steps(epsilon=1, delta=1e-5, noise_multiplier=-1.0), "noise_multiplier"),
        (lambda: most_steps(epsilon=1, delta=1e-5, noise_multiplier=1.0, at_most=0), "at_most"),
        (lambda: largest_rate(epsilon=1, delta=1e-5, noise_multiplier=0), "noise_multiplier"),
        (lambda: least_laplace_scale(epsilon=1, sensitivity=0), "sensitivity"),
        (lambda: least_laplace_scale(epsilon=1, count=0), "count"),
        (lambda: calibrate(PureDP, epsilon=1, delta=0, bracket=(0, 1)), "bracket"),
        (lambda: calibrate(PureDP, epsilon=1, delta=0, bracket=(2, 1)), "bracket"),
    ],
)
def test_bad_arguments_are_named(call, argument):
    with pytest.raises(InvalidValue) as caught:
        call()
    assert caught.value.argument == argument


def test_gaussian_noise_without_delta_is_impossible():
    with pytest.raises(InvalidValue, match="delta"):
        least_noise_multiplier(epsilon=1.0, delta=0.0)
