"""The Gaussian mechanism in closed form: classical and analytic.

Throughout ``mu`` is sensitivity / standard deviation, so that the mechanism is
exactly mu-GDP (Dong, Roth, Su 2022). For a noise multiplier z the value is
``1 / z`` under add_remove and ``2 / z`` under replace.
"""

# S4, S5 and S12 of docs/coverage.md.

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from scipy.special import erfcx, log_ndtr, ndtr

from discreet import _validate
from discreet.errors import NotApplicable

GAUSSIAN_DELTA_ERROR = 2e-12
"""Bound on the relative floating-point error of :func:`gaussian_delta` (tested with mpmath)."""

SMALLEST_POSITIVE = math.ulp(0.0)
"""Stands in for positive values that underflow, so that no bound is rounded to zero."""

_LARGEST_MU = 1e100
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)

# Beyond this argument the normal density is below the smallest positive float,
# and a simple upper bound of the Mills ratio is all that is ever needed.
_FAR_TAIL = 40.0

# Gauss-Legendre, five points on (-1, 1), in closed form.
_INNER = math.sqrt(5.0 - 2.0 * math.sqrt(10.0 / 7.0)) / 3.0
_OUTER = math.sqrt(5.0 + 2.0 * math.sqrt(10.0 / 7.0)) / 3.0
_QUADRATURE = (
    (0.0, 128.0 / 225.0),
    (-_INNER, (322.0 + 13.0 * math.sqrt(70.0)) / 900.0),
    (_INNER, (322.0 + 13.0 * math.sqrt(70.0)) / 900.0),
    (-_OUTER, (322.0 - 13.0 * math.sqrt(70.0)) / 900.0),
    (_OUTER, (322.0 - 13.0 * math.sqrt(70.0)) / 900.0),
)


def least_satisfying(holds: Callable[[float], bool], *, low: float, high: float) -> float:
    """Return a point where ``holds`` is true, close above the least such point.

    ``holds(high)`` must be true and ``holds(low)`` false. Whatever rounding does
    to the predicate in between, the returned point itself was checked.

    >>> round(least_satisfying(lambda x: x * x >= 2.0, low=0.0, high=2.0), 12)
    1.414213562373
    """
    for _ in range(1200):
        middle = low + 0.5 * (high - low)
        if not low < middle < high or high - low <= 2.0**-48 * high:
            break
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def gaussian_classical_stddev(epsilon: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return sqrt(2 ln(1.25 / delta)) * sensitivity / epsilon.

    Dwork and Roth 2014, theorem A.1. It is proved for epsilon < 1 only and is
    refused elsewhere; use :func:`gaussian_mu`, which is also never worse.

    >>> round(gaussian_classical_stddev(0.5, 1e-5), 3)
    9.69

    Parameters
    ----------
    epsilon : float
        Above 0 and below 1.
    delta : float
        Above 0 and below 1.
    sensitivity : float
        The L2 sensitivity.

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
    sensitivity = _validate.real("sensitivity", sensitivity, above=0)
    if epsilon >= 1.0:
        raise NotApplicable(
            f"the classical Gaussian theorem needs epsilon < 1, not {epsilon!r}: use gaussian_mu"
        )
    return math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / epsilon


def gaussian_classical_epsilon(stddev: float, delta: float, *, sensitivity: float = 1.0) -> float:
    """Return sqrt(2 ln(1.25 / delta)) * sensitivity / stddev, where that is below 1.

    >>> round(gaussian_classical_epsilon(10.0, 1e-5), 4)
    0.4845

    Noise multiplier 4 lies outside the theorem:

    >>> gaussian_classical_epsilon(4.0, 1e-5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    discreet.errors.NotApplicable: the classical Gaussian theorem ... 1.2112...

    Parameters
    ----------
    stddev : float
        Above 0.
    delta : float
        Above 0 and below 1.
    sensitivity : float
        The L2 sensitivity.

    Returns
    -------
    float

    Raises
    ------
    NotApplicable
        Where the theorem is not proved.
    """
    stddev = _validate.real("stddev", stddev, above=0)
    delta = _validate.real("delta", delta, above=0, below=1)
    sensitivity = _validate.real("sensitivity", sensitivity, above=0)
    epsilon = math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / stddev
    if epsilon >= 1.0:
        raise NotApplicable(
            "the classical Gaussian theorem needs epsilon < 1, and here the formula gives "
            f"{epsilon!r}: use gaussian_epsilon"
        )
    return epsilon


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the exact delta of a Gaussian mechanism.

    Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu);
    Balle and Wang 2018, theorem 8; it is also the conversion of mu-GDP. The
    relative error is below ``GAUSSIAN_DELTA_ERROR``, however close the two terms are.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    >>> f"{gaussian_delta(0.001, 0.036):.6e}"
    '1.181124e-288'

    Parameters
    ----------
    mu : float
        Sensitivity over standard deviation.
    epsilon : float
        At least 0.

    Returns
    -------
    float
    """
    mu = _validate.real("mu", mu, at_least=0, at_most=_LARGEST_MU)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    if mu == 0.0:
        return 0.0
    return min(1.0, max(math.exp(_log_delta(mu, epsilon)), SMALLEST_POSITIVE))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon at ``delta`` for a mu-GDP mechanism, rounded to the safe side.

    The returned epsilon satisfies ``gaussian_delta(mu, epsilon) <= delta`` with
    more than the rounding error to spare.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772

    Parameters
    ----------
    mu : float
        Sensitivity over standard deviation.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    float
    """
    mu = _validate.real("mu", mu, at_least=0, at_most=_LARGEST_MU)
    delta = _validate.real("delta", delta, above=0, below=1)
    target = math.log(delta) - 2.0 * GAUSSIAN_DELTA_ERROR

    def holds(epsilon: float) -> bool:
        return _log_delta(mu, epsilon) <= target

    if mu == 0.0 or holds(0.0):
        return 0.0
    # P(Z > t) <= exp(-t^2 / 2) / 2 = delta / 2 at this point.
    high = mu * math.sqrt(-2.0 * math.log(delta)) + 0.5 * mu * mu
    while not holds(high):
        high *= 1.0 + 2.0**-20
    low, high = _narrow(holds, _newton_epsilon(mu, target, high), high)
    return least_satisfying(holds, low=low, high=high)


def _newton_epsilon(mu: float, target: float, start: float) -> float:
    """Where log delta meets ``target``, nearly: Newton's method from above."""
    point = start
    for _ in range(20):
        log_delta = _log_delta(mu, point)
        slope = -math.exp(point + float(log_ndtr(-point / mu - 0.5 * mu)) - log_delta)
        if slope >= 0.0:
            break
        step = (log_delta - target) / slope
        point = max(point - step, 0.0)
        if abs(step) <= 1e-13 * point:
            break
    return point


def _narrow(holds: Callable[[float], bool], guess: float, high: float) -> tuple[float, float]:
    """Return a small bracket around a good guess, or all of it around a bad one."""
    below, above = guess * (1.0 - 1e-12), guess * (1.0 + 1e-12)
    if not below < above < high or not holds(above):
        return 0.0, high
    return (0.0 if holds(below) else below), above


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta)-DP, rounded down to the safe side.

    The noise multiplier is ``1 / mu`` under add_remove (round it up).

    >>> round(1.0 / gaussian_mu(1.0, 1e-5), 4)
    3.7306

    Parameters
    ----------
    epsilon : float
        At least 0.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0, at_most=1e150)
    delta = _validate.real("delta", delta, above=0, below=1)
    target = math.log(delta) - 2.0 * GAUSSIAN_DELTA_ERROR

    def exceeds(mu: float) -> bool:
        return _log_delta(mu, epsilon) > target

    low = high = 1.0
    while not exceeds(high):
        low, high = high, 2.0 * high
    while exceeds(low):
        low, high = 0.5 * low, low
    for _ in range(100):
        middle = low + 0.5 * (high - low)
        if not low < middle < high:
            break
        if exceeds(middle):
            high = middle
        else:
            low = middle
    return low


def _log_delta(mu: float, epsilon: float) -> float:
    """Return log of the analytic delta for mu > 0, without cancellation.

    With a = eps/mu - mu/2, b = eps/mu + mu/2 and the Mills ratio R = Q / phi one
    has e^eps phi(b) = phi(a), hence delta = phi(a) (R(a) - R(b)). The arguments
    are rounded only once, from exact rationals.
    """
    if epsilon / mu > 1e150:
        return -math.inf
    centre, half = Fraction(epsilon) / Fraction(mu), Fraction(mu) / 2
    a, b = float(centre - half), float(centre + half)
    if a >= _FAR_TAIL:
        # R is decreasing with R(x) <= 1/x and -R'(x) <= 1/x^2: an upper bound.
        difference = min(mu / (a * a), 1.0 / a)
    elif mu < 0.25:
        difference = _mills_ratio_drop(float(centre), 0.5 * mu)
    elif a <= 0.0:
        return math.log(float(ndtr(-a)) - math.exp(-0.5 * a * a - _HALF_LOG_TWO_PI) * _mills(b))
    else:
        difference = _mills(a) - _mills(b)
    return math.log(difference) - 0.5 * a * a - _HALF_LOG_TWO_PI


def _mills(x: float) -> float:
    return math.sqrt(0.5 * math.pi) * float(erfcx(x * math.sqrt(0.5)))


def _mills_ratio_drop(centre: float, half: float) -> float:
    """Return R(centre - half) - R(centre + half), the integral of -R' = 1 - x R(x); half <= 1/8."""
    total = 0.0
    for node, weight in _QUADRATURE:
        x = centre + half * node
        total += weight * (1.0 - x * _mills(x))
    return half * total


# --- vectors of discrete noise -----------------------------------------------------------------

_SMOOTHINGS = (0.75, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
_LARGEST_ABSORBED = 30.0
# Roundings below: a handful of operations, each of relative error 2**-53.
_UPWARD = 1.0 + 2.0**-48


def discrete_gaussian_mu(stddev: float, shift: float, *, coordinates: int) -> float | None:
    """Return the mu for which a vector of discrete Gaussian noise is mu-GDP.

    Parameters
    ----------
    stddev : float
        The parameter sigma of discrete Gaussian noise, in steps.
    shift : float
        The largest L2 norm of the integer vector between neighbours, in steps.
    coordinates : int
        The largest number of coordinates that change.

    Returns
    -------
    float or None
        The release is mu'-GDP. None if the noise is too small, or mu' too large, for the
        theorem to say anything.

    Notes
    -----
    Let X = k + N_Z(0, sigma^2)^d with an integer vector k, and compare k with 0. For
    any s with 0 < s < sigma let tau^2 = sigma^2 - s^2,

        theta(y) = sum over integers x of exp(-(x - y)^2 / (2 s^2)),

    and let g_k be the density on R^d proportional to the product over i of
    exp(-(y_i - k_i)^2 / (2 tau^2)) theta(y_i).

    1. *X is a post-processing of g_k.* Round y_i to x with probability
       exp(-(x - y_i)^2 / (2 s^2)) / theta(y_i). The factor theta cancels, and the integral over
       y_i of exp(-(y_i - k_i)^2 / (2 tau^2) - (x - y_i)^2 / (2 s^2)) is proportional to
       exp(-(x - k_i)^2 / (2 sigma^2)): exactly the discrete Gaussian.
    2. *The pair (g_0, g_k) is nearly Gaussian.* theta has period 1 and k is an integer vector, so
       both densities have the same constant, and their ratio is that of N(0, tau^2) and
       N(k, tau^2). Hence for every gamma

           E_gamma(g_0 || g_k) <= (1 + eta)^m E_gamma(N(0, 1) || N(mu, 1)),   mu = |k|_2 / tau,

       where m counts the coordinates with k_i != 0 and 1 + eta = max theta / (mean of theta under
       N(0, tau^2)). By Poisson summation theta is its average times
       1 + 2 sum_j q^(j^2) cos(2 pi j y), q = exp(-2 pi^2 s^2); under N(0, tau^2) every cosine has
       a positive mean, so eta <= 2 q / (1 - q).
    3. *The factor is absorbed.* With a = eps/mu - mu/2 and the Mills ratio R, delta_mu(eps) =
       phi(a) (R(a) - R(a + mu)) and its derivative in mu is phi(a). So for eps >= 0 the derivative
       of log delta is at least 1 / R(-mu/2) >= exp(-mu^2 / 8) / sqrt(2 pi), and

           mu' >= mu + m log(1 + eta) sqrt(2 pi) exp(mu'^2 / 8)

       gives (1 + eta)^m delta_mu(eps) <= delta_mu'(eps) for all eps >= 0 and in both directions.

    So X is mu'-GDP (Dong, Roth and Su 2022, corollary 2.13). With s = 3, eta is below 1e-76: on a
    grid of 2**-40 of the noise, mu' and |k|_2 / sigma are the same double, give or take its last
    bits. The zCDP bound of Canonne, Kamath and Steinke 2020 costs about 9 % more epsilon.

    Examples
    --------
    >>> discrete_gaussian_mu(10.0 * 2**40, 2.0**40, coordinates=1000)  # rounded up
    0.1000000000000...
    >>> discrete_gaussian_mu(0.5, 1.0, coordinates=1) is None
    True
    """
    stddev = _validate.real("stddev", stddev, above=0)
    shift = _validate.real("shift", shift, at_least=0)
    coordinates = _validate.integer("coordinates", coordinates, at_least=0)
    found = [
        mu
        for smoothing in _SMOOTHINGS
        if (mu := _absorb(stddev, shift, coordinates, smoothing)) is not None
    ]
    return min(found, default=None)


def _absorb(stddev: float, shift: float, coordinates: int, smoothing: float) -> float | None:
    ratio = smoothing / stddev
    if ratio >= 1.0:
        return None
    mu = shift / stddev / math.sqrt((1.0 - ratio) * (1.0 + ratio)) * _UPWARD
    q = math.exp(-2.0 * (math.pi * smoothing) ** 2) * (1.0 + 1e-10)
    factor = coordinates * math.log1p(2.0 * q / (1.0 - q)) * math.sqrt(2.0 * math.pi) * _UPWARD
    absorbed = mu
    for _ in range(50):
        if absorbed > _LARGEST_ABSORBED:
            return None
        needed = mu + factor * math.exp(absorbed * absorbed / 8.0) * (1.0 + 1e-10)
        if needed <= absorbed:
            return absorbed
        absorbed = needed * _UPWARD
    return None
