"""Mixtures of declared shifts, the best of several runs, and noise for a tolerated risk."""

import math

import mpmath
import numpy as np
import pytest
from scipy import optimize, special, stats

from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.privacy import (
    BestOf,
    Gaussian,
    GaussianMixture,
    Laplace,
    PureDP,
    _selection,
    calibrate,
    from_json,
    to_json,
)
from discreet.privacy._pair import FINE, orient, profile
from discreet.privacy._selection import log_stopping
from privacy.test_bracket_judges import plant

# --- mixtures --------------------------------------------------------------------------------

MIXTURES = [
    ((0.0, 0.5, 1.7), (0.2, 0.5, 0.3)),
    ((0.3, 1.0), (0.6, 0.4)),
    ((0.0, 2.0), (0.95, 0.05)),
    ((1.0,), (1.0,)),
]


def exact_delta(epsilon: float, noise: float, shifts, weights, *, added: bool) -> float:
    """By the root of the loss, which grows with the outcome: a threshold is the best test."""
    c, w = np.array(shifts) / noise, np.array(weights)

    def loss(x: float) -> float:
        return float(special.logsumexp(np.log(w) + c * x - c * c / 2))

    level = -epsilon if added else epsilon
    if loss(-60.0) > level:
        return 0.0 if added else float(1 - math.exp(epsilon))
    cut = optimize.brentq(lambda x: loss(x) - level, -60.0, 60.0, xtol=1e-14)
    if added:
        return float(stats.norm.cdf(cut) - math.exp(epsilon) * np.dot(w, stats.norm.cdf(cut - c)))
    return float(np.dot(w, stats.norm.sf(cut - c)) - math.exp(epsilon) * stats.norm.sf(cut))


def mixtures_agree() -> None:
    for shifts, weights in MIXTURES:
        loss = GaussianMixture(1.3, shifts, weights)
        for epsilon in (0.05, 0.4, 1.0):
            ways = [exact_delta(epsilon, 1.3, shifts, weights, added=way) for way in (True, False)]
            bounds = loss.delta_bounds(epsilon=epsilon)
            assert bounds.lower <= max(ways) * (1 + 1e-9)
            assert max(ways) <= bounds.upper * (1 + 1e-9)
            assert bounds.width <= 2e-3 * max(ways)
            for exact, way in zip(ways, (True, False), strict=True):
                below, above = orient(loss.pair(FINE), swapped=way)
                (most,), (least,) = (profile(one, np.array([epsilon])) for one in (above, below))
                assert least * (1 - 2e-3) - 1e-9 <= exact <= most * (1 + 1e-9)
                assert most <= exact * (1 + 2e-3) + 1e-9


def test_a_mixture_against_the_root_of_its_loss():
    mixtures_agree()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("weights, shifts, resolution", "weights[::-1], shifts, resolution"),
     ("weights, shifts, resolution", "weights, 0.8 * shifts, resolution"),
     ("shifts, resolution)", "shifts, resolution).reversed()")],
)  # fmt: skip
def test_a_bug_in_the_mixture_is_found(monkeypatch, right, wrong):
    plant(monkeypatch, GaussianMixture, "pair", right, wrong)
    with pytest.raises(AssertionError):
        mixtures_agree()


def test_a_mixture_of_two_is_a_poisson_sample_and_larger_shifts_cost_more():
    known = 100 * Gaussian(2.0).poisson(rate=0.1)
    mixture = 100 * GaussianMixture(2.0, (1, 0), (0.1, 0.9))
    assert mixture.epsilon(delta=1e-6) == pytest.approx(known.epsilon(delta=1e-6), rel=1e-6)
    group = Gaussian(4.0).poisson(rate=0.3).group(2)
    same = GaussianMixture(4.0, (0, 1, 2), (0.49, 0.42, 0.09))
    assert same.epsilon(delta=1e-6) == pytest.approx(group.epsilon(delta=1e-6), rel=1e-4)
    deltas = [GaussianMixture(2.0, (0, c), (0.5, 0.5)).delta(epsilon=0.5) for c in (0.5, 1, 2)]
    assert deltas == sorted(deltas)
    orders = [1.5, 3.0, 30.0]
    assert np.all(same.rdp(orders) >= group.rdp(orders) * (1 - 1e-9))
    assert from_json(to_json(mixture)) == mixture


@pytest.mark.parametrize(
    ("noise", "shifts", "weights"),
    [
        (0.0, (1,), (1,)),
        (math.nan, (1,), (1,)),
        (1.0, (), ()),
        (1.0, (0,), (1,)),
        (1.0, (-1, 1), (0.5, 0.5)),
        (1.0, (1, 1), (0.5, 0.5)),
        (1.0, (1, 2), (0.5, 0.6)),
        (1.0, (1, 2), (0.5,)),
        (1.0, (math.inf,), (1,)),
        (1.0, ("a",), (1,)),
        (1.0, 3, 4),
        (1e-3, (1,), (1,)),
    ],
)
def test_wrong_mixtures_are_refused(noise, shifts, weights):
    with pytest.raises(InvalidValue):
        GaussianMixture(noise, shifts, weights)


def test_a_mixture_is_not_replaced_or_sampled_again():
    with pytest.raises(RelationMismatch):
        GaussianMixture(1.0, (1,), (1,), "replace")
    with pytest.raises(NotApplicable, match="already"):
        GaussianMixture(1.0, (0, 1), (0.5, 0.5)).poisson(rate=0.1)


# --- the best of several runs ----------------------------------------------------------------


# FRONTIER, by dp-accounting; its Poisson figure uses a looser delta, 0.9620.
@pytest.mark.parametrize(
    ("shape", "mean", "known"),
    [(0, 10, 0.7428), (0.5, 10, 0.8246), (1, 10, 0.8981), (1, 100, 1.1205)],
)
def test_choices_cost_what_was_computed_elsewhere(shape, mean, known):
    found = Gaussian(10.0).best_of(mean, shape).epsilon(delta=1e-6)
    assert found == pytest.approx(known, rel=1e-3)
    assert found > Gaussian(10.0).epsilon(delta=1e-6)


def selected(run: np.ndarray, law: np.ndarray) -> np.ndarray:
    """The law of the best of K runs, K with the law given for 0, 1, 2, ...; last: no run at all."""
    below = np.concatenate([[0.0], np.cumsum(run)])
    powers = below[:, None] ** np.arange(len(law))
    return np.append(np.diff(powers @ law), law[0])


def laws(mean: float, shape: float | str) -> np.ndarray:
    k = np.arange(2000.0)
    if shape == "poisson":
        return stats.poisson.pmf(k, mean)
    gamma = math.exp(-log_stopping(mean, shape))
    with np.errstate(divide="ignore"):
        if shape == 0:
            weights = (1 - gamma) ** k / np.maximum(k, 1)
        else:
            weights = np.exp(special.gammaln(k + shape) - special.gammaln(k + 1)) * (1 - gamma) ** k
    weights[0] = 0.0
    return weights / weights.sum()


@pytest.mark.parametrize("shape", [0, 0.5, 1, 2.0, -0.5, "poisson"])
def test_no_choice_tells_more_than_its_loss(shape):
    """All outcomes of toys enumerated: a run is randomized response with a score."""
    law = laws(5.0, shape)
    if shape != "poisson":
        assert float(np.dot(law, np.arange(len(law)))) == pytest.approx(5.0, rel=1e-6)
    for epsilon in (0.3, 1.0):
        loss = PureDP(epsilon).best_of(5.0, shape)
        for low, top in ((0.3, 0.3), (0.05, 0.6), (0.01, 0.02)):
            p = np.array([1 - low - top, low, top])
            q = p * np.exp([epsilon, -epsilon, -epsilon])
            q[0] = 1 - q[1] - q[2]
            if q[0] > p[0] * math.exp(epsilon) or q[0] <= 0:
                continue
            for first, second in ((p, q), (q, p)):
                a, b = selected(first, law), selected(second, law)
                seen = a > 0
                for order in (1.5, 4.0, 16.0):
                    powers = order * np.log(a[seen]) + (1 - order) * np.log(b[seen])
                    truth = float(special.logsumexp(powers)) / (order - 1)
                    assert truth <= loss.rdp([order])[0] + 1e-9
                if shape != "poisson":
                    worst = float(np.max(np.log(a[seen] / b[seen])))
                    assert worst <= loss.epsilon(delta=0) + 1e-9


@pytest.mark.parametrize(
    ("mean", "shape"),
    [
        (1e12, -0.99),
        (1e6, -0.999),
        (10.0, -0.999999),
        (1 + 1e-9, -1 + 1e-12),
        (1e12, 1e3),
        (2, -1e-12),
    ],
)
def test_the_mean_of_a_law_is_met_where_gamma_is_below_every_float(mean, shape):
    with mpmath.workdps(60):
        log, eta = mpmath.mpf(log_stopping(mean, shape)), mpmath.mpf(shape)
        met = eta * mpmath.expm1(log) / -mpmath.expm1(-eta * log)
        assert mean <= met <= mean * (1 + 1e-9)


def test_choices_that_hardly_ever_stop_cost_more_and_one_poisson_run_is_a_choice():
    costs = [Gaussian(10.0).best_of(mean, -0.99).epsilon(delta=1e-6) for mean in (10, 1e6, 1e12)]
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(0.9278, rel=1e-3)
    once = Gaussian(10.0).epsilon(delta=1e-6)
    assert once < Gaussian(10.0).best_of(1, "poisson").epsilon(delta=1e-6) < 2 * once


@pytest.mark.parametrize(
    ("right", "wrong", "shape"),
    [
        ("(1.0 + self.shape) * second", "self.shape * second", 1),
        ("math.log(self.mean)", "0.0", 1),
        ("log_gamma / _TRIED_ORDERS", "0.0 * _TRIED_ORDERS", 0),
        ("= log_stopping", "= -log_stopping", 0),
        ("self.mean * deltas", "0.0 * deltas", "poisson"),
    ],
)
def test_a_bug_in_the_best_of_several_runs_is_found(monkeypatch, right, wrong, shape):
    """A term less: the other run, how many there are, how they stop, how often they are seen."""

    def judge():
        test_no_choice_tells_more_than_its_loss(shape)
        test_choices_cost_what_was_computed_elsewhere(shape, 10, {0: 0.7428, 1: 0.8981}[shape])

    in_second_run = "log_gamma" in right or "log_stopping" in right
    owner, name = (_selection, "_second_run") if in_second_run else (BestOf, "renyi")
    plant(monkeypatch, owner, name, right, wrong)
    with pytest.raises(AssertionError):
        judge()


def test_a_choice_of_pure_runs_is_pure_and_trivial_choices_are_free():
    assert PureDP(0.5).best_of(10).epsilon(delta=0) == 1.5
    assert PureDP(0.5).best_of(10, 0).epsilon(delta=0) == 1.0
    assert PureDP(0.5).best_of(1) == PureDP(0.5)
    poisson = Gaussian(10.0).best_of(10, math.inf)
    assert poisson == Gaussian(10.0).best_of(10, "poisson")
    assert 0.43 < poisson.epsilon(delta=1e-6) < 0.962
    assert from_json(to_json(poisson)) == poisson
    assert repr(Laplace(1.0).best_of(10)) == "Laplace(scale=1.0).best_of(mean=10.0, shape=1.0)"
    with pytest.raises(NotApplicable):
        Gaussian(1.0).best_of(3).poisson(rate=0.1)


@pytest.mark.parametrize(
    ("mean", "shape"),
    [(0.5, "poisson"), (0, 1), (0.5, 1), (-1, 1),
     (math.nan, 1), (math.inf, 1), ("x", 1), (5, -1), (5, math.nan),
     (5, -2), (5, "geometric"), (5, None), (1e300, 1)],
)  # fmt: skip
def test_wrong_choices_are_refused(mean, shape):
    with pytest.raises(InvalidValue):
        PureDP(1.0).best_of(mean, shape)


# --- noise for a tolerated risk ---------------------------------------------------------------


def training(noise: float):
    return 1000 * Gaussian(noise).poisson(rate=0.01)


def test_noise_for_an_advantage_and_for_a_rate_of_true_positives():
    noise = calibrate(training, advantage=0.1, bracket=(0.1, 100), increasing=False)
    assert 0.0995 < training(noise).advantage() <= 0.1
    noise = calibrate(training, tpr=0.02, fpr=0.01, bracket=(1, 2), increasing=False)
    assert 0.0198 < training(noise).tradeoff(0.01) <= 0.02
    # A Gaussian has mu = 2 quantile(0.5 + advantage / 2).
    noise = calibrate(Gaussian, advantage=0.3, bracket=(0.1, 100), increasing=False)
    assert 1 / noise == pytest.approx(2 * stats.norm.ppf(0.65), rel=2e-3)


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"epsilon": 1.0},
        {"tpr": 0.1},
        {"fpr": 0.1},
        {"advantage": 0.1, "tpr": 0.2, "fpr": 0.1},
        {"advantage": 0.1, "epsilon": 1.0, "delta": 0.1},
        {"advantage": 0.0},
        {"advantage": 1.0},
        {"advantage": math.nan},
        {"tpr": 0.1, "fpr": 0.2},
        {"tpr": 0.1, "fpr": 0.0},
        {"advantage": 1e-9},
        {"advantage": 0.1, "accountant": "rdp"},
    ],
)
def test_wrong_targets_are_refused(target):
    with pytest.raises(InvalidValue):
        calibrate(training, bracket=(0.5, 2.0), increasing=False, **target)


def test_a_rare_contribution_is_counted_whole():
    """1 - 0.999999999 is below 1e-9 in floats, and nearly all of 1e-9 is seen at this shift."""
    loss = GaussianMixture(1.0, (0.0, 39.0), (0.999999999, 1e-9))
    assert 1.0 - 0.999999999 < 1e-9 <= loss.touched_mass()
    assert loss.delta(epsilon=0) >= 1e-9 * (1 - 1e-12)
