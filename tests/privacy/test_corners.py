"""S9 over its whole range: never negative, never NaN, always an end, always honest."""

import itertools
import math
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import (
    GDP,
    ZCDP,
    ApproxDP,
    Bounds,
    Composition,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    Filter,
    Gaussian,
    Laplace,
    Loss,
    PureDP,
    RandomizedResponse,
    RenyiDP,
    _accountants,
    _bracket,
    _fourier,
    _normal_mixtures,
    calibrate,
    compose,
    from_pair,
    least_laplace_scale,
    least_noise_multiplier,
    theorems,
)

STEPS, RATES, NOISES, DELTAS = (1, 10**7), (1e-6, 1.0), (0.2, 1e3), (1e-15, 0.5)
CORNERS = list(itertools.product(STEPS, RATES, NOISES, DELTAS))
INSIDE = [
    (2, 1e-6, 0.2, 1e-6),
    (2, 0.01, 1.0, 0.5),
    (1000, 1e-6, 1.0, 1e-15),
    (1000, 0.01, 0.2, 1e-6),
    (10**7, 1e-6, 1.0, 1e-6),
    (10**7, 1e-4, 3.0, 1e-15),
    (10**7, 0.5, 1e3, 1e-6),
    (10**5, 0.9, 50.0, 1e-9),
]


def honest(bounds: Bounds) -> None:
    """A bracket that can be read without fear."""
    assert 0.0 <= bounds.lower <= bounds.upper
    assert not math.isnan(bounds.upper)
    if bounds.tolerance_met:
        assert bounds.width <= max(1e-3 * bounds.upper, 1e-6) or bounds.lower == math.inf
        assert bounds.note == ""
    else:
        assert bounds.note


def sgd(steps: int, rate: float, noise: float) -> Loss:
    return steps * Gaussian(noise).poisson(rate=rate)


def random_settings(number: int) -> list[tuple[int, float, float, float]]:
    rng = np.random.default_rng(7)

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    return [
        (
            round(between(1, 1e7)),
            between(1e-6, 1.0),
            between(0.2, 1e3),
            between(1e-15, 0.5),
        )
        for _ in range(number)
    ]


@pytest.mark.parametrize(("steps", "rate", "noise", "delta"), CORNERS + INSIDE)
def test_corners_of_the_range(steps, rate, noise, delta):
    loss = sgd(steps, rate, noise)
    bounds = loss.epsilon_bounds(delta=delta)
    honest(bounds)
    # Whatever the bracket, other theorems cannot be contradicted.
    rdp = loss.epsilon(delta=delta, accountant="rdp")
    assert bounds.lower <= rdp * (1 + 1e-9)
    if rate < 1.0:
        unsampled = theorems.gaussian_epsilon(math.sqrt(steps) / noise, delta)
        assert bounds.lower <= unsampled * (1 + 1e-9)
    # "best" is never worse than either.
    assert 0.0 <= loss.epsilon(delta=delta) <= min(bounds.upper, rdp * (1 + 1e-9) + 1e-6)


def test_random_settings_of_the_whole_range():
    unmet = 0
    for steps, rate, noise, delta in random_settings(25):
        loss = sgd(steps, rate, noise)
        bounds = loss.epsilon_bounds(delta=delta)
        honest(bounds)
        unmet += not bounds.tolerance_met
        assert bounds.lower <= loss.epsilon(delta=delta, accountant="rdp") * (1 + 1e-9)
    # Rare large losses at tiny rates are hard; most settings are not.
    assert unmet <= 8


def test_delta_over_the_whole_range_of_epsilon():
    for (steps, rate, noise, _), epsilon in zip(
        random_settings(20), np.geomspace(1e-4, 1e3, 20), strict=True
    ):
        bounds = sgd(steps, rate, noise).delta_bounds(epsilon=float(epsilon))
        assert 0.0 <= bounds.lower <= bounds.upper <= 1.0
        assert bounds.tolerance_met or bounds.note


@pytest.mark.parametrize("delta", [1e-15, 1e-6, 0.5])
@pytest.mark.parametrize(
    "loss",
    [
        Laplace(1e-3),
        10**7 * Laplace(1e6),
        10**6 * RandomizedResponse(1e-4),
        3 * RandomizedResponse(40.0),
        10**5 * PureDP("1e-3"),
        PureDP(0),
        10**4 * ApproxDP("1e-3", "1e-18"),
        1000 * DiscreteLaplace(100.0, 5000),
        7 * DiscreteGaussian(0.2),
        10**6 * DiscreteGaussian(1e5),
        100 * Exponential(1e-3),
        5 * Exponential(20.0),
        10**5 * Laplace(1.0).poisson(rate=1e-4),
        10**6 * GDP(1e-4),
        50 * ZCDP(1e-3),
        2 * from_pair([1.0, 0.0], [0.5, 0.5]),
        9 * from_pair([1e-12, 1.0 - 1e-12], [1e-3, 1.0 - 1e-3]),
        20 * Gaussian(2.0).poisson(rate=1e-3).group(100),
        1000
        * Gaussian(2.0, relation="replace").sample_without_replacement(sample=1, population=10**6),
    ],
    ids=repr,
)
def test_extreme_atoms(loss, delta):
    bounds = loss.epsilon_bounds(delta=delta)
    honest(bounds)
    assert loss.epsilon(delta=delta) >= 0.0
    if math.isfinite(bounds.upper):
        at = loss.delta_bounds(epsilon=bounds.upper)
        assert 0.0 <= at.lower <= delta * (1 + 1e-9)


def test_losses_without_a_pair_on_one_common_sample_are_refused_or_read_by_their_curve():
    with pytest.raises(NotApplicable):
        (2 * Laplace(1.0)).poisson(rate=0.1)
    both = 2 * Laplace(1.0, relation="replace")
    amplified = both.sample_without_replacement(sample=1, population=9).epsilon(delta=0)
    assert amplified == pytest.approx(math.log1p(math.expm1(2.0) / 9))  # of any joint release


def test_the_cost_does_not_grow_with_the_steps():
    def seconds(steps: int) -> float:
        noise = 1.0 * (steps / 1000) ** 0.5
        times = []
        for shift in range(3):
            start = time.process_time()
            sgd(steps, 0.01, noise * (1 + 1e-3 * shift)).epsilon_bounds(delta=1e-6)
            times.append(time.process_time() - start)
        return min(times)

    sgd(1000, 0.01, 1.0).epsilon_bounds(delta=1e-5)
    assert seconds(10**7) <= 20 * seconds(10**3) + 0.05


HETEROGENEOUS = """
def peak():  # of this program alone; ru_maxrss would count the parent that it was forked from
    with open("/proc/self/status") as status:
        return next(line.split()[1] for line in status if line.startswith("VmHWM"))
import numpy as np
from discreet.privacy import DiscreteLaplace, Gaussian, Laplace, PureDP, from_pair

rng = np.random.default_rng(3)
parts = []
for i in range(1000):
    x = float(rng.uniform(0.1, 1.0))
    parts.append(
        [
            Gaussian(1 + 10 * x).poisson(rate=0.05 * x),
            Laplace(20 + 100 * x),
            PureDP(round(0.01 * x, 9)),
            DiscreteLaplace(50 + 100 * x, 2),
            from_pair([0.5 + 0.01 * x, 0.5 - 0.01 * x], [0.5, 0.5]),
        ][i % 5]
    )
plan = sum(parts, start=0)
assert len(plan.parts) == 1000
bounds = plan.epsilon_bounds(delta=1e-6)
assert 0 < bounds.lower <= bounds.upper
assert bounds.width <= 1e-2 * bounds.upper or not bounds.tolerance_met
# Each part alone is cheaper, and basic composition dearer.
assert bounds.upper >= max(part.epsilon_bounds(delta=1e-6).lower for part in parts[:20])
assert bounds.lower <= plan.epsilon(delta=1e-6, accountant="naive")
assert bounds.lower <= plan.epsilon(delta=1e-6, accountant="rdp")
print(peak())
"""

LARGE = """
def peak():  # of this program alone; ru_maxrss would count the parent that it was forked from
    with open("/proc/self/status") as status:
        return next(line.split()[1] for line in status if line.startswith("VmHWM"))
from discreet.privacy import Gaussian
from discreet.privacy import compose
plan = 10**7 * Gaussian(1.0).poisson(rate=1e-5)
print(plan.epsilon_bounds(delta=1e-15, tolerance=1e-6).upper)
whole = compose((Gaussian(2.0 + i / 100).poisson(rate=0.01), 1) for i in range(1000))
assert len(whole.parts) == 1000
print(whole.epsilon_bounds(delta=1e-9).upper)
print(peak())
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [HETEROGENEOUS, LARGE], ids=["heterogeneous", "large"])
def test_a_thousand_distinct_atoms_fit_into_a_gigabyte(program):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # other threads would wait in a loop
    )
    assert ran.returncode == 0, ran.stderr
    kilobytes = int(ran.stdout.split()[-1])
    assert kilobytes < 1_000_000


# --- figures that version 0.1 got wrong -------------------------------------------------------


EXTREME = [
    ([5e-324, 1.0], [1.0, 5e-324]),
    ([1e-308, 1.0], [1.0 - 1e-16, 1e-16]),
    pytest.param(([0.0, 1.0], [1.0, 5e-324]), marks=pytest.mark.slow),
    pytest.param(([2.2e-308, 1.0], [0.5, 0.5]), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("pair", EXTREME)
@pytest.mark.parametrize("oriented", [False, True])
def test_extreme_finite_pairs_have_readings(pair, oriented):
    for p, q in (pair, pair[::-1]):
        loss = from_pair(p, q, oriented=oriented)
        replaced = from_pair(p, q, relation="replace", oriented=oriented)
        sampled = replaced.sample_without_replacement(sample=1, population=3)
        for one in (loss, 2 * loss, loss.poisson(rate=0.3), loss.group(2), sampled):
            assert one.epsilon(delta=0) > 0.1
            bounds = one.epsilon_bounds(delta=1e-5)
            assert 0.0 <= bounds.lower <= bounds.upper
            assert 0.09 < one.delta(epsilon=0.01) <= 1.0
            assert 0.1 <= one.tradeoff(0.1) <= 1.0
            assert np.all(one.rdp([2.0, 50.0]) > 0.0)
            assert one.posterior(prior=0.5)[1] > 0.5


def test_large_groups_on_a_sample_keep_their_precision():
    """Both directions of each, by the root of the monotone loss in mpmath."""
    for noise, rate, size, removed, added in (
        (10.0, 0.5, 100, 37.7125, 24.8584),
        (100.0, 0.5, 200, 4.4263, 4.3158),
        (100.0, 0.5, 1000, 33.5777, 32.0780),
        (100.0, 0.1, 1000, 4.4666, 4.2685),
    ):
        loss = Gaussian(noise).poisson(rate=rate).group(size)
        bounds = loss.epsilon_bounds(delta=1e-5)
        assert bounds.tolerance_met
        assert bounds.lower - 1e-4 <= removed <= bounds.upper + 1e-4
        plan = _accountants.make_terms(loss, 1e-9)
        other, _ = _bracket._epsilon_one_way(plan, 1e-5, None, (True, False), known=(-1.0, None))
        assert other.lower - 1e-4 <= added <= other.upper + 1e-4
    group = Gaussian(100.0).poisson(rate=0.5).group(1000)
    assert group.epsilon(delta=1e-6) == pytest.approx(36.125, abs=2e-3)  # 38.07


def test_the_sampled_mass_bounds_delta():
    loss = 10 * Gaussian(0.024).poisson(rate=1e-5)
    assert tuple(loss.epsilon_bounds(delta=1e-3)) == (0.0, 0.0)  # 9087
    assert loss.epsilon(delta=1e-3) == 0.0  # 736
    assert loss.delta(epsilon=0.0) <= 1e-4
    assert loss.tradeoff(0.2) <= 0.2 + 1e-4
    assert (loss + Laplace(2.0)).epsilon_bounds(delta=1e-3).upper <= 0.5
    subset = Gaussian(0.001, relation="replace").sample_without_replacement(
        sample=1, population=10_000
    )
    assert (5 * subset).epsilon(delta=6e-4) == 0.0
    assert subset.group(3).epsilon(delta=4e-4) == 0.0
    assert subset.epsilon(delta=0.9e-4) > 1e6  # the mass is attained; version 0.1 said 0
    assert (loss + Laplace(2.0)).touched_mass() == 1.0


@pytest.mark.parametrize(
    ("loss", "delta"),
    [
        pytest.param(1000 * Gaussian(1.0).poisson(rate=0.01), 1e-5, marks=pytest.mark.slow),
        pytest.param(DiscreteLaplace(1.5) + Gaussian(2.0), 1e-6, marks=pytest.mark.slow),
        (9 * from_pair([0.001, 0.999], [0.01, 0.99], oriented=True), 1e-4),
    ],
)
def test_a_tighter_tolerance_never_gives_a_wider_bracket(loss, delta):
    widths = []
    for tolerance in (0.5, None, 1e-5, 1e-6, 1e-7):
        bounds = loss.epsilon_bounds(delta=delta, tolerance=tolerance)
        assert loss.epsilon(delta=delta) >= bounds.lower
        assert bounds.tolerance_met or bounds.note
        widths.append(bounds.width)
    assert widths == sorted(widths, reverse=True)
    assert loss.epsilon(delta=delta) <= loss.epsilon_bounds(delta=delta).upper


def test_a_wrong_false_positive_rate_is_named():
    for wrong, shown in (
        (2.0, "2.0"),
        (-0.5, "-0.5"),
        ([0.1, 7.0], "7.0"),
        ("x", "'x'"),
        ([], "[]"),
    ):
        with pytest.raises(InvalidValue, match=rf"fpr = {re.escape(shown)}:"):
            Laplace(1.0).tradeoff(wrong)


def test_shifts_that_were_moved_together_still_bound_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss = Gaussian(100.0).poisson(rate=0.3).group(400)
    exact = loss.epsilon_bounds(delta=1e-6)
    monkeypatch.setattr(_normal_mixtures, "_MOST_SHIFTS", 20)
    monkeypatch.setattr(_normal_mixtures, "_FEWER_SHIFTS", 16)
    rough = loss.epsilon_bounds(delta=1e-6)
    assert rough.lower <= exact.lower
    assert rough.upper >= exact.upper * (1 - 1e-6)
    assert rough.upper > rough.lower


@pytest.mark.slow
def test_very_large_groups_take_little_time() -> None:
    """By the central limit theorem the shift is 5e-4, within a few thousandths."""
    loss = Gaussian(1e9).poisson(rate=0.5).group(10**6)
    began = time.process_time()
    found = loss.epsilon_bounds(delta=1e-6)
    claimed = loss.epsilon(delta=1e-6)
    assert PureDP(1).group(10**6).tradeoff(0.1) == 1.0
    assert time.process_time() - began < 5.0
    truth = GDP(mu=5e-4).epsilon(delta=1e-6)
    assert found.lower <= claimed <= found.upper
    assert 0.99 * truth < found.lower <= found.upper < 1.02 * truth


# --- odd arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda: PureDP(1) * 10**400,
        lambda: (10**14 * PureDP(1)) * 100,
        lambda: Gaussian(1.0).group(10**400),
        lambda: ZCDP(1.0).group(10**400),
        lambda: Gaussian(1.0).poisson(rate=0.1).group(10**400),
        lambda: PureDP(1, "replace").sample_without_replacement(sample=1, population=10**400),
        lambda: PureDP(1, "replace").sample_without_replacement(sample=10**400, population=3),
        lambda: Gaussian(1.0).rdp([10**400]),
        lambda: Gaussian(1.0).tradeoff(10**400),
        lambda: calibrated(epsilon=5e-324),
        lambda: calibrated(steps=10**400),
        lambda: calibrate(Gaussian, epsilon=1.0, delta=1e-5, bracket=3.0),
        lambda: calibrate(3.0, epsilon=1.0, delta=1e-5, bracket=(0.1, 9.0)),
        lambda: least_laplace_scale(epsilon=1.0, count=10**400),
        lambda: Filter(epsilon=1, delta=1e-5, kind=np.array([1.0, 2.0])),
        lambda: RenyiDP(2.0, 1.0),
        lambda: RenyiDP("2", "1"),
        lambda: from_pair(0.5, [1.0]),
        lambda: Composition(3),
        lambda: compose([Gaussian(1.0)]),
        lambda: compose([(Gaussian(1.0), 2, 3)]),
    ],
)
def test_numbers_beyond_reason_are_refused_by_name(ask):
    with pytest.raises(InvalidValue):
        ask()


def calibrated(**changes):
    return least_noise_multiplier(**{"epsilon": 1.0, "delta": 1e-5, "rate": 0.1} | changes)


def test_numbers_at_the_end_of_the_floats_are_read():
    assert ZCDP(1.7e308).epsilon(delta=1 - 1e-16) > 1e308
    assert (3 * Gaussian(1.0).poisson(rate=0.1)).epsilon(delta=5e-324, accountant="advanced") > 0
    assert least_noise_multiplier(epsilon=1.0, delta=1e-5, rate=1e-300) > 0
    # A third is not a float: the smaller float next to it bounds nothing.
    sample = from_pair([1, 0], [0, 1], relation="replace")
    third = sample.sample_without_replacement(sample=1, population=3)
    assert third.epsilon(delta=1 / 3) > 1
    assert third.epsilon(delta=math.nextafter(1 / 3, 1)) == 0


def test_very_many_releases_and_records_are_read_at_once():
    """The trade-off of 10**9 releases took 20 s, and large generic groups for ever."""
    start = time.process_time()
    assert (10**9 * PureDP(1)).tradeoff(0.1) == 1.0
    assert (10**9 * ApproxDP(1, 1e-6)).tradeoff(0.1) == 1.0
    assert ApproxDP(0, "1e-15").group(10**9).epsilon(delta=1e-3) == 0.0
    assert ApproxDP(0, "1e-15").group(10**9).advantage() == pytest.approx(1e-6)
    assert ApproxDP("1e-6", "1e-9").group(2).epsilon(delta=0.3) == 0.0
    assert time.process_time() - start < 5


def test_groups_above_the_largest_exact_sum_go_on_smoothly():
    sums = [Exponential(0.01).group(n).delta(epsilon=0.3) for n in (63, 64, 65, 66)]
    assert sums == sorted(sums)
    assert sums[2] - sums[1] == pytest.approx(sums[1] - sums[0], rel=0.05)


def test_no_attacker_is_worse_than_a_blind_guess():
    assert Gaussian(1e20).poisson(rate=1e-300).tradeoff(0.1) >= 0.1


def test_noise_on_a_very_fine_lattice_is_continuous_noise():
    """Sensitivities beyond 64 bits, in steps of the lattice, raised an error of numpy."""
    fine, smooth = DiscreteLaplace(1e21, 2**70), Laplace(1e21, 2.0**70)
    assert fine.delta(epsilon=1.0) == pytest.approx(smooth.delta(epsilon=1.0), rel=1e-3)
    assert fine.epsilon(delta=1e-6) == pytest.approx(smooth.epsilon(delta=1e-6), rel=1e-3)
    with pytest.raises(InvalidValue):
        DiscreteLaplace(1.0, 10**400)


def test_a_tiny_failure_probability_asks_for_few_looks(monkeypatch):
    """Where errors hide the lower bound, the search for it stops: 11,000 looks before."""
    looks = 0
    right = _fourier.Inversion.lower

    def counted(self, epsilon):
        nonlocal looks
        looks += 1
        return right(self, epsilon)

    monkeypatch.setattr(_fourier.Inversion, "lower", counted)
    loss = 1000 * Gaussian(1.0).poisson(rate=0.01)
    found = loss.posterior(prior=1e-300, failure_probability=1e-300)
    assert found.upper < 1e-260
    assert 0 < looks < 4000
