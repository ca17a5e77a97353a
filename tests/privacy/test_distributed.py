"""Noise that participants add: Skellam and sums of discrete Gaussians against exact divergences."""

import math

import numpy as np
import pytest
from scipy import special

from discreet.errors import InvalidValue, RelationMismatch
from discreet.privacy import Gaussian, Relation, Skellam, SummedDiscreteGaussian, from_json, to_json
from discreet.privacy.theorems import (
    rdp_skellam,
    rdp_summed_discrete_gaussian,
    summed_gaussian_gap,
)


def log_skellam(variance, reach):
    """log e^-v I_|k|(v), by the power series where scipy's value underflows."""
    k = np.arange(reach + 1.0)
    with np.errstate(divide="ignore"):
        logs = np.log(special.ive(k, variance))
    far = ~(special.ive(k, variance) > 1e-280)
    term, total = np.ones(int(far.sum())), np.ones(int(far.sum()))
    for j in range(1, 300):
        term = term * (variance * variance / 4) / (j * (j + k[far]))
        total += term
    logs[far] = k[far] * math.log(variance / 2) - special.gammaln(k[far] + 1) + np.log(total)
    logs[far] -= variance
    return np.concatenate([logs[:0:-1], logs])


def divergence(logs, shift, order):
    p, q = logs[:-shift], logs[shift:]
    return special.logsumexp(order * p + (1 - order) * q) / (order - 1)


@pytest.mark.parametrize("variance", [0.05, 0.3, 2.0, 20.0, 200.0])
@pytest.mark.parametrize("shift", [1, 3, 10])
def test_skellam_is_bounded_in_one_dimension_and_so_in_all(variance, shift):
    # Divergences add up over coordinates, and so do both terms of the bound.
    for order in (2, 3, 8, 32):
        reach = int(8 * shift * order + 80 * math.sqrt(variance) + 20 * order + 100)
        exact = divergence(log_skellam(variance, reach), shift, order)
        (bound,) = rdp_skellam([float(order)], variance=variance, l2=shift, l1=shift)
        assert exact <= bound * (1 + 1e-9)
        assert bound <= 50 * exact or variance < 1
        # The same without its second term is no bound at all: the test can fail.
        if variance == 20.0 and order == 8 and shift == 1:
            assert exact == pytest.approx(0.1942, abs=1e-4)
            assert bound == pytest.approx(0.2131, abs=1e-4)
    between = rdp_skellam([2.5], variance=4.0, l2=1, l1=1)
    assert between == rdp_skellam([3.0], variance=4.0, l2=1, l1=1)


def log_sum_of_gaussians(variance, parties):
    reach = int(60 * math.sqrt(variance) + 20)
    k = np.arange(-reach, reach + 1.0)
    single = np.exp(-k * k / (2 * variance))
    single /= single.sum()
    total = single
    for _ in range(parties - 1):
        total = np.convolve(total, single)
    with np.errstate(divide="ignore"):
        return np.log(total)


@pytest.mark.parametrize("variance", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("parties", [2, 3, 6])
def test_sums_of_discrete_gaussians_are_bounded(variance, parties):
    logs = log_sum_of_gaussians(variance, parties)
    deviation = math.sqrt(variance * parties)
    for shift in (1, 2):
        for order in (2.0, 4.0):
            middle = len(logs) // 2
            reach = int(7 * deviation + 2 * order * shift)
            seen = logs[max(0, middle - reach) : middle + reach + 1]
            exact = divergence(seen, shift, order)
            (bound,) = rdp_summed_discrete_gaussian(
                [order], variance=variance, parties=parties, l2=shift, l1=shift, dimension=1
            )
            assert exact <= bound * (1 + 1e-9)
    plain = order * shift**2 / (2 * variance * parties)
    if variance >= 4:
        assert bound == pytest.approx(plain, rel=1e-9)


def test_the_gap_falls_with_the_variance_and_grows_with_the_parties():
    assert summed_gaussian_gap(variance=1.0, parties=1) == 0.0
    two = 10 * math.exp(-(math.pi**2))
    assert summed_gaussian_gap(variance=1.0, parties=2) == pytest.approx(two, rel=1e-12)
    gaps = [summed_gaussian_gap(variance=1.0, parties=n) for n in (2, 10, 4096, 5000, 10**6)]
    assert gaps == sorted(gaps)
    assert summed_gaussian_gap(variance=0.01, parties=5000) >= sum(
        10 * math.exp(-2 * math.pi**2 * 0.01 * k / (k + 1)) for k in range(1, 5000)
    ) * (1 - 1e-12)


def test_both_cost_what_gaussian_noise_of_their_variance_costs():
    l2, l1, variance = 1000.0, 10_000.0, 4e6
    gaussian = Gaussian(math.sqrt(variance) / l2).epsilon(delta=1e-6)
    for loss in (
        Skellam(variance, l2, l1),
        SummedDiscreteGaussian(variance / 100, 100, l2, l1, 100),
    ):
        assert gaussian < loss.epsilon(delta=1e-6) < 1.1 * gaussian  # they are read by RDP
        assert loss.relation is Relation.ZERO_OUT
        assert from_json(to_json(7 * loss)) == 7 * loss
        assert not loss.tight


def test_sizes_and_relations_that_make_no_sense_are_refused():
    for change in ({"relation": "add_remove"},):
        with pytest.raises(RelationMismatch, match="takes a share"):
            Skellam(10.0, 2.0, 4.0, **change)
    for bad in ((0.0, 2.0, 4.0), (10.0, 0.5, 4.0), (10.0, 2.0, 1.0), (math.inf, 2.0, 4.0)):
        with pytest.raises(InvalidValue):
            Skellam(*bad)
    for bad in ((10.0, 0, 2.0, 4.0, 3), (10.0, 5, 2.0, 4.0, 0)):
        with pytest.raises(InvalidValue):
            SummedDiscreteGaussian(*bad)
    with pytest.raises(InvalidValue, match="orders"):
        rdp_skellam([1.0], variance=1.0, l2=1, l1=1)
    assert Skellam(10.0, 2.0, 4.0, "replace").relation is Relation.REPLACE
