"""Discrete Laplace and Gaussian: frequencies, moments, tails, extreme scales, planted mutants."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from discreet.randomness import Source, discrete_gaussian, discrete_laplace, source
from randomness.goodness import REJECT, chi_square_p, gaussian_pmf, laplace_pmf

SCALES = [Fraction(1, 4), Fraction(1), Fraction(5, 2), Fraction(7), Fraction(31), Fraction(100, 3)]
VARIANCES = [Fraction(1, 4), Fraction(1), Fraction(17, 3), Fraction(900), Fraction(5000)]
DRAWS = 200_000


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_laplace_frequencies(scale: Fraction) -> None:
    draws = discrete_laplace(scale, DRAWS, source=source(insecure_seed=1))
    assert chi_square_p(draws, laplace_pmf(scale), reach=int(20 * scale) + 20) > REJECT


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
def test_gaussian_frequencies(variance: Fraction) -> None:
    draws = discrete_gaussian(variance, DRAWS, source=source(insecure_seed=2))
    reach = int(7 * math.sqrt(variance)) + 7
    assert chi_square_p(draws, gaussian_pmf(variance), reach=reach) > REJECT


def test_frequencies_from_the_operating_system() -> None:
    """As above but never the same draws twice: rejects once in 1e9 runs."""
    laplace = discrete_laplace(3, DRAWS)
    gaussian = discrete_gaussian(9, DRAWS)
    assert chi_square_p(laplace, laplace_pmf(Fraction(3)), reach=70) > REJECT
    assert chi_square_p(gaussian, gaussian_pmf(Fraction(9)), reach=25) > REJECT


@pytest.mark.parametrize("scale", [Fraction(2), Fraction(100, 3)], ids=str)
def test_single_draws_have_the_same_distribution(scale: Fraction) -> None:
    seeded = source(insecure_seed=3)
    draws = np.array([discrete_laplace(scale, source=seeded) for _ in range(20_000)])
    assert chi_square_p(draws, laplace_pmf(scale), reach=int(20 * scale) + 20) > REJECT
    draws = np.array([discrete_gaussian(scale**2, source=seeded) for _ in range(20_000)])
    assert chi_square_p(draws, gaussian_pmf(scale**2), reach=int(7 * scale) + 7) > REJECT


# --- mutants that the same test must reject ----------------------------------------------


def doubled_zero(draw: Callable[[int, Source], np.ndarray], seeded: Source) -> np.ndarray:
    """Sign and magnitude drawn apart without rejecting minus zero."""
    magnitude = np.abs(draw(DRAWS, seeded))
    twice = np.abs(draw(DRAWS, seeded))
    return np.where((twice == 0) & (magnitude != 0), 0, magnitude * _signs(seeded))


def _signs(seeded: Source) -> np.ndarray:
    return 1 - 2 * (seeded.words8(DRAWS) & np.uint8(1)).astype(np.int64)


MUTANTS: dict[str, Callable[[Callable[[int, Source], np.ndarray], Source], np.ndarray]] = {
    "doubled zero": doubled_zero,
    "one-sided": lambda draw, seeded: np.abs(draw(DRAWS, seeded)),
    "sign bug": lambda draw, seeded: (lambda x: np.where(x < 0, -x - 1, x) * _signs(seeded))(
        draw(DRAWS, seeded)
    ),
    "off by one": lambda draw, seeded: draw(DRAWS, seeded) + 1,
    "negative side shifted": lambda draw, seeded: (lambda x: np.where(x < 0, x - 1, x))(
        draw(DRAWS, seeded)
    ),
    "zero never": lambda draw, seeded: (lambda x: x[x != 0])(draw(DRAWS, seeded)),
    "tail cut at two scales": lambda draw, seeded: np.clip(draw(DRAWS, seeded), -10, 10),
    "repeated block": lambda draw, seeded: np.tile(draw(DRAWS // 20, seeded), 20),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_rejected(mutant: str) -> None:
    def laplace(count: int, seeded: Source) -> np.ndarray:
        return discrete_laplace(5, count, source=seeded)

    def gaussian(count: int, seeded: Source) -> np.ndarray:
        return discrete_gaussian(25, count, source=seeded)

    damaged = MUTANTS[mutant]
    draws = damaged(laplace, source(insecure_seed=4))
    assert chi_square_p(draws, laplace_pmf(Fraction(5)), reach=120) < REJECT
    draws = damaged(gaussian, source(insecure_seed=4))
    assert chi_square_p(draws, gaussian_pmf(Fraction(25)), reach=42) < REJECT


@pytest.mark.parametrize("factor", [Fraction(95, 100), Fraction(105, 100)], ids=str)
def test_a_scale_off_by_five_percent_is_rejected(factor: Fraction) -> None:
    draws = discrete_laplace(5 * factor, DRAWS, source=source(insecure_seed=5))
    assert chi_square_p(draws, laplace_pmf(Fraction(5)), reach=120) < REJECT
    draws = discrete_gaussian(25 * factor**2, DRAWS, source=source(insecure_seed=5))
    assert chi_square_p(draws, gaussian_pmf(Fraction(25)), reach=42) < REJECT


# --- large scales: too many values to count, so quantiles, moments and low bits ----------


def laplace_cdf(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(np.minimum(x, 0)) / 2, 1 - np.exp(-np.maximum(x, 0)) / 2)


@pytest.mark.parametrize("scale", [2**20, Fraction(2**40), Fraction(2**42, 3), Fraction(2**50)])
def test_large_scales_follow_the_continuous_law(scale: Fraction) -> None:
    """At these scales the discrete law differs from the continuous one by far less than 1e-5."""
    laplace = discrete_laplace(scale, DRAWS, source=source(insecure_seed=6)) / float(scale)
    gaussian = discrete_gaussian(
        Fraction(scale) ** 2, DRAWS, source=source(insecure_seed=6)
    ) / float(scale)
    assert stats.kstest(laplace, laplace_cdf).pvalue > REJECT
    assert stats.kstest(gaussian, "norm").pvalue > REJECT
    assert stats.kstest(laplace * 1.05, laplace_cdf).pvalue < REJECT
    assert stats.kstest(gaussian * 1.05, "norm").pvalue < REJECT


@pytest.mark.parametrize("bits", range(0, 40, 5))
def test_low_bits_are_uniform(bits: int) -> None:
    """No digit of the grid is favoured, nor tied to the sign."""
    draws = discrete_laplace(2**40, DRAWS, source=source(insecure_seed=7))
    odd = int((draws >> bits & 1).sum())
    assert stats.binomtest(odd, DRAWS).pvalue > REJECT
    odd_negative = int((draws[draws < 0] >> bits & 1).sum())
    assert stats.binomtest(odd_negative, int((draws < 0).sum())).pvalue > REJECT


@pytest.mark.parametrize("scale", [Fraction(3, 10), Fraction(5), Fraction(2**40)], ids=str)
def test_moments(scale: Fraction) -> None:
    """Mean, variance and fourth moment within six standard errors of the exact values."""
    draws = discrete_laplace(scale, DRAWS, source=source(insecure_seed=8)).astype(float)
    with mpmath.workprec(200):
        r = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
        variance = float(2 * r / (1 - r) ** 2)
        fourth = float(2 * r * (1 + 10 * r + r * r) / (1 - r) ** 4)
    assert abs(draws.mean()) < 6 * math.sqrt(variance / DRAWS)
    spread = math.sqrt((fourth - variance**2) / DRAWS)
    assert abs((draws**2).mean() - variance) < 6 * spread
    gaussian = discrete_gaussian(scale**2, DRAWS, source=source(insecure_seed=9)).astype(float)
    if scale >= 1:  # Poisson summation: the variance equals the parameter up to e^-400
        assert abs((gaussian**2).mean() / float(scale) ** 2 - 1) < 6 * math.sqrt(2 / DRAWS)
        assert abs((gaussian**4).mean() / float(scale) ** 4 - 3) < 6 * math.sqrt(96 / DRAWS)
    else:  # never larger than the parameter (Canonne, Kamath, Steinke 2020, corollary 9)
        assert (gaussian**2).mean() < float(scale) ** 2


def test_tails() -> None:
    """Counts beyond high thresholds are binomial with the exact tail probability."""
    laplace = np.abs(discrete_laplace(10, 1_000_000, source=source(insecure_seed=10)))
    gaussian = np.abs(discrete_gaussian(100, 1_000_000, source=source(insecure_seed=10)))
    r = math.exp(-1 / 10)
    for m in (50, 80, 100, 120):
        p = 2 * r**m / (1 + r)
        assert stats.binomtest(int((laplace >= m).sum()), laplace.size, p).pvalue > REJECT
    pmf = gaussian_pmf(Fraction(100))
    for m in (20, 30, 40, 45):
        p = float(2 * mpmath.fsum(pmf(x) for x in range(m, 200)))
        assert stats.binomtest(int((gaussian >= m).sum()), gaussian.size, p).pvalue > REJECT


@pytest.mark.parametrize("tiny", [Fraction(1, 1000), "1e-300", 5e-324])
def test_tiny_scales_give_zero(tiny: object) -> None:
    assert not discrete_laplace(tiny, 1000).any()
    assert discrete_laplace(tiny) == 0
    assert not discrete_gaussian(tiny, 1000).any()
    assert discrete_gaussian(tiny) == 0


def test_single_draws_know_no_largest_scale() -> None:
    seeded = source(insecure_seed=11)
    for huge in (2**60, 2**1000, Fraction(10**400, 7)):
        laplace = [
            float(Fraction(discrete_laplace(huge, source=seeded)) / huge) for _ in range(400)
        ]
        gaussian = [
            float(Fraction(discrete_gaussian(Fraction(huge) ** 2, source=seeded)) / huge)
            for _ in range(400)
        ]
        assert stats.kstest(laplace, laplace_cdf).pvalue > REJECT
        assert stats.kstest(gaussian, "norm").pvalue > REJECT


def test_numpy_integers_do_not_overflow_inside() -> None:
    seeded = source(insecure_seed=12)
    draws = discrete_gaussian(np.int64(2**40), 1000, source=seeded)
    plain = discrete_gaussian(2**40, 1000, source=source(insecure_seed=12))
    assert draws.tolist() == plain.tolist()


def test_shapes_types_and_determinism() -> None:
    assert discrete_laplace(3, 0).shape == (0,)
    assert discrete_gaussian(3, 0).dtype == np.int64
    assert isinstance(discrete_laplace(3), int)
    assert isinstance(discrete_gaussian(2**80), int)
    one = discrete_laplace(2**40, 5000, source=source(insecure_seed=13))
    two = discrete_laplace(2**40, 5000, source=source(insecure_seed=13))
    assert one.tolist() == two.tolist()
    assert len(set(one.tolist())) == 5000
