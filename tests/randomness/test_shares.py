"""Noise that adds up: exact probabilities of shares, and of their sums."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from discreet.errors import InvalidValue
from discreet.privacy import DiscreteLaplace
from discreet.randomness import laplace_share, poisson, skellam, source
from discreet.randomness._discrete import Inversion
from discreet.randomness._shares import PoissonWeights, PolyaWeights

FALSE_ALARM = 1e-7


def fits(draws, probability, reach):
    """Whether counts agree with probabilities by a chi-square test; rare values are together."""
    values = np.arange(-reach, reach + 1)
    expected = np.array([probability(int(v)) for v in values]) * len(draws)
    seen = np.array([np.sum(draws == v) for v in values], dtype=float)
    common = expected >= 20
    observed = np.append(seen[common], len(draws) - seen[common].sum())
    wanted = np.append(expected[common], len(draws) - expected[common].sum())
    if wanted[-1] < 5:
        observed[-2:-1] += observed[-1]
        wanted[-2:-1] += wanted[-1]
        observed, wanted = observed[:-1], wanted[:-1]
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    return statistic < stats.chi2.isf(FALSE_ALARM, len(wanted) - 1)


def boundaries_hold(weights, exact, first, count):
    """Enclosed boundaries of an inversion against mpmath, at 200 digits."""
    inversion = Inversion(weights)
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for index in range(count):
            unit = total * mpmath.mpf(2) ** inversion.width
            assert inversion.lower[index] <= unit <= inversion.upper[index]
            total += exact(first(index))


def test_the_enclosures_of_poisson_and_polya_hold():
    weights = PoissonWeights(Fraction(7, 2))
    mean = mpmath.mpf(7) / 2

    def poisson_mass(k):
        return mpmath.mpf(0) if k < 0 else mpmath.exp(-mean) * mean**k / mpmath.factorial(k)

    boundaries_hold(weights, poisson_mass, weights.value, 14)
    r, p = mpmath.mpf(1) / 5, mpmath.exp(-mpmath.mpf(1) / 3)

    def polya_mass(k):
        return mpmath.rf(r, k) / mpmath.factorial(k) * p**k * (1 - p) ** r

    with mpmath.workdps(60):
        r, p = mpmath.mpf(1) / 5, mpmath.exp(-mpmath.mpf(1) / 3)
        boundaries_hold(PolyaWeights(Fraction(1, 5), Fraction(3)), polya_mass, int, 20)


@pytest.mark.parametrize("variance", [0.5, 6, 400])
def test_skellam_shares_have_their_distribution_and_so_have_their_sums(variance):
    def mass(total):
        return lambda k: float(special.ive(abs(k), total))

    draws = skellam(variance, 40_000)
    reach = int(8 * math.sqrt(variance)) + 8
    assert fits(draws, mass(variance), reach)
    assert not fits(draws, mass(1.15 * variance), reach)
    summed = skellam(variance, 30_000).reshape(3, -1).sum(axis=0)
    assert fits(summed, mass(3 * variance), 2 * reach)


def test_polya_shares_sum_to_discrete_laplace_exactly_and_too_few_do_not():
    scale, parties = 2, 7

    def mass(k):
        ratio = math.exp(-1 / scale)
        return (1 - ratio) / (1 + ratio) * ratio ** abs(k)

    shares = laplace_share(scale, parties, 40_000 * parties).reshape(parties, -1)
    assert fits(shares.sum(axis=0), mass, 60)
    assert not fits(shares[1:].sum(axis=0), mass, 60)  # one is missing: charge the honest number
    # What the sum costs is what discrete Laplace noise costs, where a client is zeroed out.
    assert DiscreteLaplace(scale=2.0, relation="zero_out").epsilon(delta=0) == 0.5


def test_the_characters_of_polya_multiply_to_that_of_the_sum():
    # Exactly, not by samples: the generating function of shape 1/n to the power n is geometric.
    with mpmath.workdps(40):
        p, n = mpmath.exp(-mpmath.mpf(1) / 2), 7
        for z in (0.3, 0.9):
            series = mpmath.nsum(
                lambda k, z=z: mpmath.rf(mpmath.mpf(1) / n, k) / mpmath.factorial(k) * (p * z) ** k,
                [0, mpmath.inf],
            )
            whole = (series * (1 - p) ** (mpmath.mpf(1) / n)) ** n
            assert abs(whole - (1 - p) / (1 - p * z)) < 1e-25


def test_large_means_and_bad_arguments():
    draws = poisson(10**6, 4000)
    assert abs(draws.mean() - 10**6) < 6 * 1000 / math.sqrt(4000)
    assert 0.85 < draws.var() / 10**6 < 1.15
    for call in (
        lambda: poisson(0, 3),
        lambda: poisson(10**8, 3),
        lambda: skellam(-1, 3),
        lambda: laplace_share(2, 0, 3),
        lambda: laplace_share(10**6, 2, 3),
        lambda: poisson(1, -1),
    ):
        with pytest.raises(InvalidValue):
            call()
    one, two = (skellam(9, 5, source=source(insecure_seed=2)).tolist() for _ in range(2))
    assert one == two
