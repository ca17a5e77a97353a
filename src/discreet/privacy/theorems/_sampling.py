"""Amplification by subsampling and moments of a sampled Gaussian, as functions of numbers.

The neighbouring relation is part of each theorem and is stated with it.
"""

# S6 and S7 of docs/coverage.md.

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import bdtrc, gammaln, logsumexp, ndtr, xlog1py, xlogy

from discreet import _validate
from discreet.errors import NotApplicable
from discreet.privacy.theorems._conversions import Guarantee


def amplification_poisson(epsilon: float, delta: float, *, rate: float) -> Guarantee:
    """Return (log(1 + rate (e^epsilon - 1)), rate * delta) for Poisson sampling.

    Balle, Barthe, Gaboardi 2018, theorem 8: from an add_remove guarantee to add_remove.
    For replace it holds only if the mechanism is (epsilon, delta) under both relations.

    >>> amplified = amplification_poisson(1.0, 1e-5, rate=0.01)
    >>> round(amplified.epsilon, 6), f"{amplified.delta:.1e}"
    (0.017037, '1.0e-07')

    Parameters
    ----------
    epsilon, delta : float
        The guarantee without sampling.
    rate : float
        The probability that a record is drawn.

    Returns
    -------
    Guarantee
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    rate = _validate.real("rate", rate, at_least=0, at_most=1)
    return Guarantee(amplified_epsilon(epsilon, rate), rate * delta)


def amplification_without_replacement(
    epsilon: float, delta: float, *, sample_size: int, population: int
) -> Guarantee:
    """Return the same form with rate m / n, from a *replace* guarantee to replace.

    Balle, Barthe, Gaboardi 2018, theorem 9: a uniform subset of m of n records.

    >>> round(amplification_without_replacement(1.0, 0.0, sample_size=1, population=4).epsilon, 6)
    0.357374

    Parameters
    ----------
    epsilon, delta : float
        The guarantee without sampling.
    sample_size, population : int
        How many records are drawn, and from how many.

    Returns
    -------
    Guarantee
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    population = _validate.integer("population", population, at_least=1)
    sample_size = _validate.integer("sample_size", sample_size, at_least=1, at_most=population)
    rate = sample_size / population
    return Guarantee(amplified_epsilon(epsilon, rate), rate * delta)


def amplification_with_replacement(
    epsilon: float, group_delta: Callable[[int], float], *, draws: int, population: int
) -> Guarantee:
    """``draws`` records taken with replacement from ``population``, replace to replace.

    Balle, Barthe, Gaboardi 2018, theorem 10: with r = 1 - (1 - 1/n)^m the result is
    (log(1 + r (e^epsilon - 1)), sum_k C(m,k) n^-k (1 - 1/n)^(m-k) delta_k), where
    ``group_delta(k)`` must return the delta of a group of k *at the same epsilon*.
    A negligible tail of the sum is replaced by its upper bound, delta_k = 1.

    >>> from discreet.privacy.theorems import gaussian_delta
    >>> amplified = amplification_with_replacement(
    ...     1.0, lambda k: gaussian_delta(0.25 * k, 1.0), draws=10, population=1000
    ... )
    >>> round(amplified.epsilon, 6), f"{amplified.delta:.4e}"
    (0.016961, '3.3984e-07')

    Parameters
    ----------
    epsilon : float
        Of the guarantee without sampling.
    group_delta : callable
        The delta of a group of k at this epsilon.
    draws, population : int
        How many records are drawn, and from how many.

    Returns
    -------
    Guarantee
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    draws = _validate.integer("draws", draws, at_least=1)
    population = _validate.integer("population", population, at_least=1)
    chance = 1.0 / population
    if population == 1:
        return Guarantee(epsilon, _check_delta(group_delta, draws))
    rate = -math.expm1(draws * math.log1p(-chance))
    total = 0.0
    for k in range(1, draws + 1):
        total += _binomial_pmf(k, draws, chance) * _check_delta(group_delta, k)
        beyond = float(bdtrc(k, draws, chance))
        if beyond <= 1e-17 * total or beyond < 1e-307:
            total += beyond
            break
    return Guarantee(amplified_epsilon(epsilon, rate), min(1.0, total))


def poisson_replace_delta(epsilon: float, *, noise_multiplier: float, rate: float) -> float:
    """Return delta of one Poisson-sampled Gaussian step where one record is replaced; tight.

    Whatever the two contributions x and x' in the unit ball are, with s the noise multiplier
    ((1-q) N(0) + q N(1/s), (1-q) N(0) + q N(-1/s)) dominates the pair of the step. Proof: let
    F = int (sum_i c_i phi(z - x_i))_+ dz be the hockey stick at gamma = e^eps > 1, with weights
    c = q at x, -q gamma at x' and -(1-q)(gamma-1) at 0. Along any path of the points
    dF = -1/2 sum_(i<j) c_i c_j d|x_i - x_j|^2 E_0[l_i l_j delta_0(sum c_k l_k)], l_i the
    likelihood ratio of x_i (Price's theorem), so F grows where points of opposite signs move apart.
    Turning x' away from x only moves these two apart; so does |x| -> 1, for x alone is positive.
    For |x'| = b -> 1 the change is (1+b) q A - b (1-q)(gamma-1) B up to a factor, with
    A = E[l_x l_x' delta_0] and B = E[l_0 l_x' delta_0]; on the boundary
    q l_x >= (1-q)(gamma-1) l_0, hence q A >= (1-q)(gamma-1) B. gamma < 1 by exchanging the two.
    The loss is monotone in z, so delta is the difference of two tails, to about 1e-15.

    >>> f"{poisson_replace_delta(0.5, noise_multiplier=1.0, rate=0.1):.6f}"
    '0.003342'

    Parameters
    ----------
    epsilon : float
        At least 0.
    noise_multiplier : float
        Standard deviation over clip norm.
    rate : float
        The probability that a record is drawn.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    shift = 1.0 / _validate.real("noise_multiplier", noise_multiplier, above=0)
    rate = _validate.real("rate", rate, above=0, at_most=1)
    half = 0.5 * shift * shift

    def loss(z: float) -> float:
        return _log_mixture(shift * z - half, rate) - _log_mixture(-shift * z - half, rate)

    low, high = 0.0, (epsilon - math.log(rate)) / shift + 0.5 * shift + 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if loss(middle) < epsilon else (low, middle)
    common = (1.0 - rate) * -math.expm1(epsilon) * float(ndtr(-high))
    moved = float(ndtr(shift - high)) - math.exp(epsilon) * float(ndtr(-high - shift))
    return max(0.0, common + rate * moved)


def _log_mixture(log_ratio: float, rate: float) -> float:
    """Return log(1 - rate + rate e^log_ratio)."""
    if log_ratio > 30.0:
        return log_ratio + math.log(rate + (1.0 - rate) * math.exp(-log_ratio))
    return math.log1p(rate * math.expm1(log_ratio))


def amplification_teaching(epsilon: float, *, rate: float) -> tuple[float, float]:
    """Return two looser pure bounds, for comparison.

    Returns log((1 + g(e^eps - 1)) / (1 + g(e^-eps - 1))) and 2 g (e^eps - e^-eps), in
    this order and in increasing size; :func:`amplification_poisson` beats both.

    >>> [round(bound, 6) for bound in amplification_teaching(1.0, rate=0.01)]
    [0.023378, 0.047008]

    Parameters
    ----------
    epsilon : float
        Of the pure guarantee, at least 0.
    rate : float
        The probability that a record is drawn.

    Returns
    -------
    tuple of float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0, at_most=700)
    rate = _validate.real("rate", rate, at_least=0, at_most=1)
    ratio = amplified_epsilon(epsilon, rate) + (
        -math.log1p(rate * math.expm1(-epsilon)) if rate < 1.0 else epsilon
    )
    return ratio, 4.0 * rate * math.sinh(epsilon)


def amplification_linear(epsilon: float, delta: float, *, rate: float) -> Guarantee:
    """Return (2 rate epsilon, rate delta), a simplification for small epsilon.

    It follows from log(1 + r(e^eps - 1)) <= r(e^eps - 1) <= 2 r eps, whose last step
    needs epsilon <= 1.2564...; larger values are refused.

    >>> amplification_linear(0.5, 1e-6, rate=0.01)
    Guarantee(epsilon=0.01, delta=1e-08)

    Parameters
    ----------
    epsilon, delta : float
        The guarantee without sampling.
    rate : float
        The probability that a record is drawn.

    Returns
    -------
    Guarantee

    Raises
    ------
    NotApplicable
        Where the theorem is not proved.
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    rate = _validate.real("rate", rate, at_least=0, at_most=1)
    if epsilon > 1.2564:
        raise NotApplicable(
            f"the linear amplification bound needs epsilon <= 1.2564, not {epsilon!r}: "
            "use amplification_poisson"
        )
    return Guarantee(2.0 * rate * epsilon, rate * delta)


def moments_closed_form(order: int, *, noise_multiplier: float, rate: float) -> float:
    """Return log E2 at integer ``order`` (lambda) for the Poisson-sampled Gaussian.

    log sum_k C(l+1,k) (1-g)^(l+1-k) g^k e^((k^2-k)/(2 sigma^2)), l = order. Mironov,
    Talwar, Zhang 2019 prove E2 >= E1, so that it is the whole moment under add_remove.

    >>> round(moments_closed_form(1, noise_multiplier=4.0, rate=0.01), 12)
    6.449425e-06
    >>> round(moments_closed_form(32, noise_multiplier=4.0, rate=0.01), 6)
    0.003476

    Parameters
    ----------
    order : int
        The order lambda, at least 1.
    noise_multiplier : float
        Standard deviation over clip norm.
    rate : float
        The probability that a record is drawn.

    Returns
    -------
    float
    """
    order = _validate.integer("order", order, at_least=1, at_most=10**6)
    sigma = _validate.real("noise_multiplier", noise_multiplier, above=0)
    rate = _validate.real("rate", rate, at_least=0, at_most=1)
    if rate == 0.0:
        return 0.0
    n = order + 1
    k = np.arange(2, n + 1, dtype=np.float64)
    # The terms k = 0, 1 have exponent 0: subtracting the binomial total, which is 1,
    # leaves positive terms only, and small moments keep their relative accuracy.
    exponent = 0.5 * k * (k - 1.0) / sigma / sigma
    log_pmf = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    log_pmf += xlogy(k, rate) + xlog1py(n - k, -rate)
    excess = float(logsumexp(log_pmf + exponent + np.log(-np.expm1(-exponent))))
    return float(np.logaddexp(0.0, excess))


def moments_to_delta(log_moment: float, *, order: float, epsilon: float) -> float:
    """Return delta = min(1, exp(log_moment - order * epsilon)), Abadi et al. 2016, theorem 2.

    The moments accountant's min over lambda is the minimum of this over the orders at hand.

    >>> moments_to_delta(0.5, order=10, epsilon=1.0) == math.exp(-9.5)
    True

    Parameters
    ----------
    log_moment : float
        The log moment at this order.
    order : float
        The order lambda, above 0.
    epsilon : float
        Where delta is read.

    Returns
    -------
    float
    """
    log_moment = _validate.real("log_moment", log_moment, at_least=0)
    order = _validate.real("order", order, above=0)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    return math.exp(min(0.0, log_moment - order * epsilon))


def moments_to_epsilon(log_moment: float, *, order: float, delta: float) -> float:
    """Return epsilon = (log_moment + ln(1/delta)) / order, the inverse of :func:`moments_to_delta`.

    >>> round(moments_to_epsilon(0.5, order=10, delta=1e-5), 6)
    1.201293

    Parameters
    ----------
    log_moment : float
        The log moment at this order.
    order : float
        The order lambda, above 0.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    float
    """
    log_moment = _validate.real("log_moment", log_moment, at_least=0)
    order = _validate.real("order", order, above=0)
    delta = _validate.real("delta", delta, above=0, below=1)
    return (log_moment - math.log(delta)) / order


def rdp_from_moment(log_moment: float, *, order: float) -> tuple[float, float]:
    """Return the Renyi divergence of order lambda + 1: the log moment at lambda, over lambda.

    Returns (Renyi order, Renyi epsilon).

    >>> rdp_from_moment(0.5, order=10)
    (11.0, 0.05)

    Parameters
    ----------
    log_moment : float
        The log moment at this order.
    order : float
        The order lambda, above 0.

    Returns
    -------
    tuple of float
    """
    log_moment = _validate.real("log_moment", log_moment, at_least=0)
    order = _validate.real("order", order, above=0)
    return order + 1.0, log_moment / order


def amplified_epsilon(epsilon: float, rate: float) -> float:
    """Return log(1 + rate (e^epsilon - 1)) without overflow or cancellation."""
    if rate in (0.0, 1.0):
        return rate * epsilon
    if epsilon <= 600.0:
        return math.log1p(rate * math.expm1(epsilon))
    return max(0.0, epsilon + math.log(rate + (1.0 - rate) * math.exp(-epsilon)))


def _binomial_pmf(k: int, n: int, p: float) -> float:
    log_pmf = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    log_pmf += k * math.log(p) + (n - k) * math.log1p(-p)
    # lgamma is good to a few units in the last place of its largest value.
    return math.exp(log_pmf + 2.0**-50 * (3.0 * math.lgamma(n + 1) + n - k * math.log(p)))


def _check_delta(group_delta: Callable[[int], float], k: int) -> float:
    return _validate.real(f"group_delta({k})", group_delta(k), at_least=0, at_most=1)
