"""Group privacy and composition as functions of numbers, and the calibrations made of them.

Pure functions: no data, no state, no randomness. Each docstring names the theorem that proves the
bound and shows one worked number. Forward formulas are evaluated in double precision, to a few
units in the last place unless the docstring says otherwise; whatever is found by *search* (the
inverses) is returned on the safe side of the rounding error. A formula outside the range of its
proof is refused with :class:`~discreet.errors.NotApplicable`.
"""

# S2, S5 and S10 of docs/coverage.md.

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from scipy.special import gammaln

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy.theorems._conversions import Guarantee
from discreet.privacy.theorems._gaussian import (
    SMALLEST_POSITIVE,
    gaussian_classical_epsilon,
    gaussian_epsilon,
    least_satisfying,
)

# --- group privacy ----------------------------------------------------------------------------


def group_pure(epsilon: float, *, k: int) -> float:
    """Return k * epsilon for a group of k records (Dwork and Roth 2014, theorem 2.2).

    >>> group_pure(0.5, k=3)
    1.5

    Parameters
    ----------
    epsilon : float
        The guarantee for one record.
    k : int
        The size of the group.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    return _validate.integer("k", k, at_least=1) * epsilon


def group_approx(epsilon: float, delta: float, *, k: int) -> Guarantee:
    """Return (k epsilon, k e^((k-1) epsilon) delta) for groups of k (Dwork and Roth 2014).

    >>> group = group_approx(0.5, 1e-6, k=2)  # 2 e^0.5 delta
    >>> group.epsilon, f"{group.delta:.6e}"
    (1.0, '3.297443e-06')

    Parameters
    ----------
    epsilon, delta : float
        The guarantee for one record.
    k : int
        The size of the group.

    Returns
    -------
    Guarantee
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    k = _validate.integer("k", k, at_least=1)
    return Guarantee(k * epsilon, _scale(delta, math.log(k) + (k - 1) * epsilon))


def group_approx_tight(epsilon: float, delta: float, *, k: int) -> Guarantee:
    """Return (k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1)) for groups of k.

    The chain delta_k <= delta_(k-1) + e^((k-1) eps) delta, one record at a time, summed.

    >>> group = group_approx_tight(0.5, 1e-6, k=2)  # delta (1 + e^0.5)
    >>> group.epsilon, f"{group.delta:.6e}"
    (1.0, '2.648721e-06')

    Parameters
    ----------
    epsilon, delta : float
        The guarantee for one record.
    k : int
        The size of the group.

    Returns
    -------
    Guarantee
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    k = _validate.integer("k", k, at_least=1)
    if epsilon == 0.0:
        return Guarantee(0.0, min(1.0, k * delta))
    shrink = math.log(math.expm1(-k * epsilon) / math.expm1(-epsilon))
    return Guarantee(k * epsilon, _scale(delta, (k - 1) * epsilon + shrink))


def group_gaussian(mu: float, *, k: int) -> float:
    """Return k mu, the GDP parameter for groups of k (Dong, Roth, Su 2022, theorem 2.14).

    Exact for the Gaussian mechanism, and not the sqrt(k) mu of k independent releases.

    >>> group_gaussian(0.5, k=2)
    1.0

    Parameters
    ----------
    mu : float
        The parameter for one record.
    k : int
        The size of the group.

    Returns
    -------
    float
    """
    mu = _validate.real("mu", mu, at_least=0)
    return _validate.integer("k", k, at_least=1) * mu


def group_zcdp(rho: float, *, k: int) -> float:
    """Return k^2 rho (Bun and Steinke 2016, proposition 1.9).

    >>> group_zcdp(0.125, k=2)
    0.5

    Parameters
    ----------
    rho : float
        The parameter for one record.
    k : int
        The size of the group.

    Returns
    -------
    float
    """
    rho = _validate.real("rho", rho, at_least=0)
    return _validate.integer("k", k, at_least=1) ** 2 * rho


# --- composition ------------------------------------------------------------------------------


def basic_composition(epsilons: Sequence[float], deltas: Sequence[float]) -> Guarantee:
    """Return the sums of the epsilons and of the deltas (Dwork and Roth 2014, theorem 3.16).

    >>> basic_composition([0.5, 0.25], [1e-6, 0.0])
    Guarantee(epsilon=0.75, delta=1e-06)

    Parameters
    ----------
    epsilons, deltas : sequence of float
        One of each for every release.

    Returns
    -------
    Guarantee
    """
    epsilons, deltas = _pairs(epsilons, deltas)
    return Guarantee(math.fsum(epsilons), min(1.0, math.fsum(deltas)))


def advanced_composition(epsilon: float, delta: float, *, k: int, slack: float) -> Guarantee:
    """Return (sqrt(2k ln(1/slack)) eps + k eps (e^eps - 1), k delta + slack).

    Dwork, Rothblum, Vadhan 2010; Dwork and Roth 2014, theorem 3.20. The formula can
    exceed k * epsilon when k is small or epsilon large.

    >>> composed = advanced_composition(0.1, 0.0, k=100, slack=1e-5)
    >>> round(composed.epsilon, 4), composed.delta
    (5.8502, 1e-05)

    Parameters
    ----------
    epsilon, delta : float
        The guarantee of each release.
    k : int
        How many releases there are.
    slack : float
        The delta that pays for the gain.

    Returns
    -------
    Guarantee
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0, at_most=700)
    delta = _validate.real("delta", delta, at_least=0, at_most=1)
    k = _validate.integer("k", k, at_least=1)
    slack = _validate.real("slack", slack, above=0, below=1)
    spread = math.sqrt(-2.0 * k * math.log(slack)) * epsilon
    return Guarantee(spread + k * epsilon * math.expm1(epsilon), min(1.0, k * delta + slack))


def advanced_composition_heterogeneous(
    epsilons: Sequence[float], deltas: Sequence[float], *, slack: float
) -> Guarantee:
    """Return sum eps tanh(eps/2) + sqrt(2 ln(1/slack) sum eps^2), sum delta + slack.

    Kairouz, Oh, Viswanath 2015, theorem 3.5, never worse than :func:`advanced_composition`:
    the mean loss of an eps-DP step is at most eps tanh(eps/2), and Azuma bounds the rest.

    >>> composed = advanced_composition_heterogeneous([0.1] * 100, [0.0] * 100, slack=1e-5)
    >>> round(composed.epsilon, 4), composed.delta
    (5.2981, 1e-05)

    Parameters
    ----------
    epsilons, deltas : sequence of float
        One of each for every release.
    slack : float
        The delta that pays for the gain.

    Returns
    -------
    Guarantee
    """
    epsilons, deltas = _pairs(epsilons, deltas)
    slack = _validate.real("slack", slack, above=0, below=1)
    mean = math.fsum(epsilon * math.tanh(0.5 * epsilon) for epsilon in epsilons)
    spread = math.sqrt(-2.0 * math.log(slack)) * math.hypot(*epsilons)
    return Guarantee(mean + spread, min(1.0, math.fsum(deltas) + slack))


def optimal_composition_delta(
    epsilon_step: float, delta_step: float, *, k: int, epsilon: float
) -> float:
    """Return the exact delta at ``epsilon`` of k mechanisms of which only (eps, delta) is known.

    Kairouz, Oh, Viswanath 2015, theorem 3.3, at any epsilon and not only at their grid
    (k - 2i) eps: 1 - (1-delta)^k (1 - sum_l Bin(l) [1 - e^(epsilon - (k-2l) eps)]_+), where
    l ~ Binomial(k, 1/(1+e^eps)). The value is rounded up, by less than 1e-8 of itself for k <= 1e5.

    >>> round(optimal_composition_delta(0.1, 0.0, k=100, epsilon=3.0), 6)
    0.001361

    Parameters
    ----------
    epsilon_step, delta_step : float
        What is known of each mechanism.
    k : int
        How many mechanisms there are.
    epsilon : float
        Where delta is read.

    Returns
    -------
    float
    """
    epsilon_step = _validate.real("epsilon_step", epsilon_step, at_least=0)
    delta_step = _validate.real("delta_step", delta_step, at_least=0, at_most=1)
    k = _validate.integer("k", k, at_least=1, at_most=10**9)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    failure = _any_failure(delta_step, k)
    return min(1.0, failure + (1.0 - failure) * _response_delta(epsilon_step, k, epsilon))


def optimal_composition_epsilon(
    epsilon_step: float, delta_step: float, *, k: int, delta: float
) -> float:
    """Return the least epsilon with ``optimal_composition_delta <= delta``, rounded up.

    >>> round(optimal_composition_epsilon(0.1, 0.0, k=100, delta=1e-5), 4)
    4.3068

    Parameters
    ----------
    epsilon_step, delta_step : float
        What is known of each mechanism.
    k : int
        How many mechanisms there are.
    delta : float
        At least what the failures cost together, below 1.

    Returns
    -------
    float
    """
    epsilon_step = _validate.real("epsilon_step", epsilon_step, at_least=0)
    delta_step = _validate.real("delta_step", delta_step, at_least=0, at_most=1)
    k = _validate.integer("k", k, at_least=1, at_most=10**9)
    delta = _validate.real("delta", delta, at_least=0, below=1)
    failure = _any_failure(delta_step, k)
    if failure > delta:
        raise InvalidValue("delta", delta, f"at least {failure!r}, what the k steps cost together")

    def holds(epsilon: float) -> bool:
        return failure + (1.0 - failure) * _response_delta(epsilon_step, k, epsilon) <= delta

    if holds(0.0):
        return 0.0
    high = k * epsilon_step
    if not holds(high):
        high = math.nextafter(high, math.inf)
    return least_satisfying(holds, low=0.0, high=high)


def naive_dpsgd(noise_multiplier: float, *, steps: int, delta_step: float) -> Guarantee:
    """Return (T eps_s, T delta_s), eps_s = sqrt(2 ln(1.25/delta_s)) / noise_multiplier.

    Relation add_remove, every record in every step. The source multiplies by the clip
    norm C, although its noise is already sigma * C: C cancels. Refused where eps_s >= 1,
    where the classical theorem says nothing; :func:`naive_dpsgd_analytic` has no such limit.

    >>> naive = naive_dpsgd(10.0, steps=100, delta_step=1e-7)
    >>> round(naive.epsilon, 3), f"{naive.delta:.1e}"
    (57.169, '1.0e-05')

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over clip norm.
    steps : int
        How many there are.
    delta_step : float
        The delta of each step.

    Returns
    -------
    Guarantee

    Raises
    ------
    NotApplicable
        Where the theorem is not proved.
    """
    steps = _validate.integer("steps", steps, at_least=1)
    noise_multiplier = _validate.real("noise_multiplier", noise_multiplier, above=0)
    epsilon_step = gaussian_classical_epsilon(noise_multiplier, delta_step)
    return Guarantee(steps * epsilon_step, min(1.0, steps * delta_step))


def naive_dpsgd_analytic(noise_multiplier: float, *, steps: int, delta_step: float) -> Guarantee:
    """Return :func:`naive_dpsgd` with the exact epsilon of each step (Balle and Wang 2018).

    >>> naive = naive_dpsgd_analytic(4.0, steps=100, delta_step=1e-7)
    >>> round(naive.epsilon, 3), f"{naive.delta:.1e}"
    (118.175, '1.0e-05')

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over clip norm.
    steps : int
        How many there are.
    delta_step : float
        The delta of each step.

    Returns
    -------
    Guarantee
    """
    steps = _validate.integer("steps", steps, at_least=1)
    noise_multiplier = _validate.real("noise_multiplier", noise_multiplier, above=0)
    epsilon_step = gaussian_epsilon(1.0 / noise_multiplier, delta_step)
    return Guarantee(steps * epsilon_step, min(1.0, steps * delta_step))


# --- a calibration by advanced composition ----------------------------------------------------


def sgd_sigma(epsilon: float, delta: float, *, n: int, lipschitz: float) -> float:
    """Return 8 n L / epsilon * sqrt(ln(2n/delta) ln(2/delta)), the noise of n^2 steps at rate 1/n.

    The chain of Bassily, Smith and Thakurta 2014: a Gaussian step of sensitivity 2nL, linear
    amplification, advanced composition without its second term. It is a number to compare with,
    not a proof: the dropped term and the constant 1 in place of 1.25 are not accounted for, and
    a step beyond the range of the linear amplification is refused.

    >>> round(sgd_sigma(1.0, 1e-5, n=1000, lipschitz=1.0), 1)
    122194.5

    Parameters
    ----------
    epsilon, delta : float
        The target.
    n : int
        The number of records.
    lipschitz : float
        The Lipschitz constant of the loss function.

    Returns
    -------
    float

    Raises
    ------
    NotApplicable
        Where the theorem is not proved.
    """
    epsilon = _validate.real("epsilon", epsilon, above=0)
    delta = _validate.real("delta", delta, above=0, below=1)
    n = _validate.integer("n", n, at_least=1)
    lipschitz = _validate.real("lipschitz", lipschitz, above=0)
    log_n, log_one = math.log(2.0 * n / delta), math.log(2.0 / delta)
    sigma = 8.0 * n * lipschitz / epsilon * math.sqrt(log_n * log_one)
    step = epsilon * math.sqrt(2.0) / (4.0 * math.sqrt(log_one))
    if step > 1.2564:
        raise NotApplicable(
            f"each step would be {step:.4g}-DP before sampling, and the linear bound "
            f"2 r eps needs at most 1.2564: epsilon = {epsilon!r} is too large for it"
        )
    return sigma


def _scale(delta: float, log_factor: float) -> float:
    """Return min(1, delta * e^log_factor) without overflow."""
    if delta == 0.0:
        return 0.0
    if log_factor + math.log(delta) >= 0.0:
        return 1.0
    if log_factor > 700.0:
        return math.exp(log_factor + math.log(delta))
    return delta * math.exp(log_factor)


def _pairs(epsilons: Sequence[float], deltas: Sequence[float]) -> tuple[list[float], list[float]]:
    if len(epsilons) != len(deltas):
        raise InvalidValue("deltas", deltas, f"one for each of the {len(epsilons)} epsilons")
    return (
        [_validate.real("epsilon", value, at_least=0) for value in epsilons],
        [_validate.real("delta", value, at_least=0, at_most=1) for value in deltas],
    )


def _any_failure(delta_step: float, k: int) -> float:
    """Return 1 - (1 - delta)^k, rounded up; the union bound k delta is exact for k = 1."""
    if delta_step == 1.0:
        return 1.0
    failure = -math.expm1(k * math.log1p(-delta_step)) * (1.0 + 2.0**-50)
    return min(1.0, k * delta_step, failure)


def _response_delta(epsilon_step: float, k: int, epsilon: float) -> float:
    """The delta of k binary randomized responses, an upper bound within rounding."""
    gap = k * Fraction(epsilon_step) - Fraction(epsilon)
    if gap <= 0:
        return 0.0
    # Hoeffding: outside the window the binomial has mass 2 exp(-800), below every float.
    window = 20.0 * math.sqrt(k)
    mean = k / (1.0 + math.exp(epsilon_step)) if epsilon_step < 700.0 else 0.0
    first = max(0, math.floor(mean - window))
    last = min(k, math.ceil(mean + window), math.floor(gap / (2 * Fraction(epsilon_step))))
    if last < first:
        return SMALLEST_POSITIVE
    lies = np.arange(first, last + 1, dtype=np.float64)
    log_pmf = gammaln(k + 1.0) - gammaln(lies + 1.0) - gammaln(k - lies + 1.0)
    log_pmf -= lies * epsilon_step + k * math.log1p(math.exp(-epsilon_step))
    loss_beyond = float(gap) * (1.0 + 2.0**-50) - 2.0 * epsilon_step * lies
    total = float(np.sum(np.exp(log_pmf) * -np.expm1(-loss_beyond)))
    largest = 4.0 * float(gammaln(k + 1.0)) + last * epsilon_step + k * math.exp(-epsilon_step)
    rounding = 2.0**-50 * (largest + 8.0)
    return min(1.0, max(total * math.exp(rounding), SMALLEST_POSITIVE))
