"""Renyi, concentrated, Gaussian and bounded-range privacy in closed form.

=============  ======================================================================
from           to
=============  ======================================================================
pure           RDP :func:`rdp_pure`, zCDP :func:`zcdp_from_pure`, GDP
               :func:`gdp_from_pure`, bounded range :func:`bounded_range_from_pure`,
               approx :func:`pure_delta`
approx         approx at another epsilon :func:`approx_delta`; *no* RDP, zCDP or GDP
RDP            approx :func:`rdp_to_approx_mironov`, :func:`rdp_to_approx_tight`
zCDP           RDP :func:`rdp_zcdp`, approx :func:`zcdp_to_approx`, :func:`zcdp_to_approx_tight`
GDP            RDP :func:`rdp_gaussian`, zCDP :func:`zcdp_from_gdp`, approx :func:`gdp_to_approx`
bounded range  pure :func:`pure_from_bounded_range`, zCDP :func:`zcdp_from_bounded_range`,
               approx :func:`bounded_range_delta`
=============  ======================================================================

Orders are real numbers > 1; 1 stands for Kullback-Leibler and ``math.inf`` for the
maximal loss.
"""

# S4 and S8 of docs/coverage.md.

from __future__ import annotations

import math
from typing import NamedTuple

from scipy.special import erfinv, ndtri_exp

from discreet import _validate
from discreet.privacy.theorems._gaussian import gaussian_epsilon


class Guarantee(NamedTuple):
    """A proved (epsilon, delta) guarantee; ``delta == 0`` means pure differential privacy.

    >>> Guarantee(epsilon=1.0, delta=1e-6)
    Guarantee(epsilon=1.0, delta=1e-06)
    """

    epsilon: float
    delta: float


# Renyi curves of mechanisms.


def rdp_gaussian(mu: float, *, order: float) -> float:
    """Return order * mu^2 / 2, mu = sensitivity / stddev (Mironov 2017, proposition 7).

    >>> rdp_gaussian(0.5, order=4)
    0.5

    Parameters
    ----------
    mu : float
        Sensitivity over standard deviation.
    order : float
        At least 1.

    Returns
    -------
    float
    """
    mu = _validate.real("mu", mu, at_least=0)
    order = _validate.real("order", order, at_least=1)
    return 0.5 * order * mu * mu


def rdp_laplace(epsilon: float, *, order: float) -> float:
    """Return the Renyi divergence of Laplace noise (Mironov 2017, proposition 6).

    ``epsilon`` is sensitivity / scale.

    >>> round(rdp_laplace(1.0, order=2), 6)
    0.619124
    >>> rdp_laplace(1.0, order=1) == math.exp(-1)
    True

    Parameters
    ----------
    epsilon : float
        Sensitivity over scale.
    order : float
        At least 1, or infinity.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    order = _order(order)
    if math.isinf(order):
        return epsilon
    above = order - 1.0
    if above * epsilon > 30.0:
        shape = math.log(order / (2.0 * order - 1.0))
        shape += math.log1p(above / order * math.exp(-(2.0 * order - 1.0) * epsilon))
        return epsilon + shape / above
    if above == 0.0:
        return _exp_remainder(-epsilon)
    # The linear terms of the two exponentials cancel; what remains is positive.
    excess = order * _exp_remainder(above * epsilon) + above * _exp_remainder(-order * epsilon)
    return math.log1p(excess / (2.0 * order - 1.0)) / above


def rdp_randomized_response(epsilon: float, *, order: float, categories: int = 2) -> float:
    """Return the Renyi divergence of k-ary randomized response.

    It keeps the truth with probability e^eps / (e^eps + k - 1). The mean of (p/q)^order is
    (e^(a eps) + e^((1-a) eps) + k - 2) / (e^eps + k - 1), a = order.

    >>> round(rdp_randomized_response(math.log(3), order=2), 6)  # two coins: ln(7/3)
    0.847298

    Parameters
    ----------
    epsilon : float
        The log of the odds of the truth against each lie.
    order : float
        At least 1, or infinity.
    categories : int
        How many answers there are.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    order = _order(order)
    categories = _validate.integer("categories", categories, at_least=2)
    if math.isinf(order):
        return epsilon
    above = order - 1.0
    others = (categories - 1) * math.exp(-epsilon)
    if above * epsilon > 30.0:
        shape = math.exp((1.0 - 2.0 * order) * epsilon)
        shape += (categories - 2) * math.exp(-order * epsilon)
        return epsilon + (math.log1p(shape) - math.log1p(others)) / above
    common = -math.expm1(-order * epsilon) / (1.0 + others)
    if above == 0.0:
        return epsilon * common
    return math.log1p(math.expm1(above * epsilon) * common) / above


def rdp_pure(epsilon: float, *, order: float) -> float:
    """Return the largest Renyi divergence of any epsilon-DP mechanism.

    Binary randomized response dominates every epsilon-DP mechanism (Kairouz, Oh,
    Viswanath 2015), so this is :func:`rdp_randomized_response`; it is tight.

    >>> round(rdp_pure(0.1, order=2), 6), round(rdp_pure_simple(0.1, order=2), 6)
    (0.009959, 0.01)

    Parameters
    ----------
    epsilon : float
        Of the pure guarantee, at least 0.
    order : float
        At least 1, or infinity.

    Returns
    -------
    float
    """
    return rdp_randomized_response(epsilon, order=order)


def rdp_pure_simple(epsilon: float, *, order: float) -> float:
    """Return min(epsilon, order * epsilon^2 / 2), Bun and Steinke 2016, proposition 3.3.

    >>> rdp_pure_simple(0.5, order=2), rdp_pure_simple(0.5, order=8)
    (0.25, 0.5)

    Parameters
    ----------
    epsilon : float
        Of the pure guarantee, at least 0.
    order : float
        At least 1, or infinity.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    order = _order(order)
    return epsilon if math.isinf(order) else min(epsilon, 0.5 * order * epsilon * epsilon)


def rdp_zcdp(rho: float, *, order: float) -> float:
    """Return order * rho, the Renyi divergence of rho-zCDP (Bun and Steinke 2016).

    >>> rdp_zcdp(0.125, order=4)
    0.5

    Parameters
    ----------
    rho : float
        At least 0.
    order : float
        At least 1.

    Returns
    -------
    float
    """
    rho = _validate.real("rho", rho, at_least=0)
    return _validate.real("order", order, at_least=1) * rho


# Renyi to approx.


def rdp_to_approx_mironov(rdp: float, *, order: float, delta: float) -> float:
    """Return rdp + ln(1/delta) / (order - 1) (Mironov 2017, proposition 3).

    >>> round(rdp_to_approx_mironov(0.5, order=11, delta=1e-5), 6)
    1.651293

    Parameters
    ----------
    rdp : float
        The Renyi divergence at this order.
    order : float
        Above 1, or infinity.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    float
    """
    rdp, order = _rdp_point(rdp, order)
    delta = _validate.real("delta", delta, above=0, below=1)
    return rdp - math.log(delta) / (order - 1.0)


def rdp_to_approx_tight(rdp: float, *, order: float, delta: float) -> float:
    """Return rdp + ln((a-1)/a) - (ln delta + ln a) / (a - 1), floored at 0, a = order.

    Canonne, Kamath, Steinke 2020, proposition 12; Balle et al. 2020, theorem 21.

    >>> round(rdp_to_approx_tight(0.5, order=11, delta=1e-5), 6)
    1.316193
    >>> rdp_to_approx_tight(0.0, order=2, delta=0.5)
    0.0

    Parameters
    ----------
    rdp : float
        The Renyi divergence at this order.
    order : float
        Above 1, or infinity.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    float
    """
    rdp, order = _rdp_point(rdp, order)
    delta = _validate.real("delta", delta, above=0, below=1)
    if math.isinf(order):
        return rdp
    gain = math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)
    return max(0.0, rdp + gain)


def rdp_to_delta_mironov(rdp: float, *, order: float, epsilon: float) -> float:
    """Return delta = min(1, exp((order - 1) (rdp - epsilon))).

    >>> round(rdp_to_delta_mironov(0.5, order=11, epsilon=1.0), 6)
    0.006738

    Parameters
    ----------
    rdp : float
        The Renyi divergence at this order.
    order : float
        Above 1, or infinity.
    epsilon : float
        Where delta is read.

    Returns
    -------
    float
    """
    rdp, order = _rdp_point(rdp, order)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    if epsilon <= rdp:
        return 0.0 if math.isinf(order) and epsilon == rdp else 1.0
    return math.exp((order - 1.0) * (rdp - epsilon))


def rdp_to_delta_tight(rdp: float, *, order: float, epsilon: float) -> float:
    """Return delta = min(1, e^((a-1)(rdp - eps)) / (a - 1) * (1 - 1/a)^a), a = order.

    Canonne, Kamath, Steinke 2020, proposition 12.

    >>> round(rdp_to_delta_tight(0.5, order=11, epsilon=1.0), 8)
    0.00023616

    Parameters
    ----------
    rdp : float
        The Renyi divergence at this order.
    order : float
        Above 1, or infinity.
    epsilon : float
        Where delta is read.

    Returns
    -------
    float
    """
    rdp, order = _rdp_point(rdp, order)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    if math.isinf(order):
        return 0.0 if epsilon >= rdp else 1.0
    log_delta = (order - 1.0) * (rdp - epsilon) - math.log(order - 1.0)
    log_delta += order * math.log1p(-1.0 / order)
    return math.exp(min(0.0, log_delta))


# Concentrated privacy.


def zcdp_from_pure(epsilon: float) -> float:
    """Return epsilon * tanh(epsilon / 2), the least rho of which epsilon-DP implies rho-zCDP.

    For binary randomized response (order - 1) D_order = log cosh((order - 1/2) eps) -
    log cosh(eps/2). Since log cosh(sqrt x) is concave, this lies below its tangent in
    x = (order - 1/2)^2 at x = 1/4, which is order (order - 1) eps tanh(eps/2); the
    bound is reached as order -> 1. It sharpens eps^2 / 2 of Bun and Steinke 2016,
    proposition 1.4, and never exceeds it.

    >>> round(zcdp_from_pure(1.0), 6)
    0.462117

    Parameters
    ----------
    epsilon : float
        Of the pure guarantee, at least 0.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    return epsilon * math.tanh(0.5 * epsilon)


def zcdp_from_gdp(mu: float) -> float:
    """Return mu^2 / 2, the zCDP parameter of mu-GDP (Bun and Steinke 2016, proposition 1.6).

    >>> zcdp_from_gdp(0.5)
    0.125

    Parameters
    ----------
    mu : float
        At least 0.

    Returns
    -------
    float
    """
    mu = _validate.real("mu", mu, at_least=0)
    return 0.5 * mu * mu


def zcdp_from_bounded_range(spread: float) -> float:
    """Return spread^2 / 8 for a mechanism of bounded range (Cesar and Rogers 2021).

    The privacy loss of such a mechanism, for one pair of neighbours, lies in some
    interval of length ``spread``: the exponential mechanism at epsilon has spread epsilon.

    >>> zcdp_from_bounded_range(1.0)
    0.125

    Parameters
    ----------
    spread : float
        The length of the interval that holds all losses.

    Returns
    -------
    float
    """
    spread = _validate.real("spread", spread, at_least=0)
    return spread * spread / 8.0


def zcdp_to_approx(rho: float, delta: float) -> float:
    """Return rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016, proposition 1.3).

    >>> round(zcdp_to_approx(0.125, 1e-5), 6)
    2.524263

    Parameters
    ----------
    rho : float
        At least 0.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    float
    """
    rho = _validate.real("rho", rho, at_least=0)
    delta = _validate.real("delta", delta, above=0, below=1)
    return rho + 2.0 * math.sqrt(-rho * math.log(delta))


def zcdp_to_approx_tight(rho: float, delta: float) -> float:
    """Return the least :func:`rdp_to_approx_tight` over the orders (Canonne, Kamath, Steinke 2020).

    The derivative in the order a vanishes where rho (a-1)^2 = ln(1/(a delta)), which has one
    root. Every order gives a valid epsilon, so an imperfect root is still an upper bound; the
    result is rounded up.

    >>> round(zcdp_to_approx_tight(0.125, 1e-5), 6)
    2.165716

    Parameters
    ----------
    rho : float
        At least 0.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    float
    """
    rho = _validate.real("rho", rho, at_least=0, at_most=1e150)
    delta = _validate.real("delta", delta, above=0, below=1)
    if rho == 0.0:
        return 0.0

    target = -math.log(delta)
    low, high = 0.0, math.sqrt(target / rho)
    for _ in range(100):
        middle = (low + high) / 2.0
        if rho * middle * middle + math.log1p(middle) < target:
            low = middle
        else:
            high = middle
    # As order - 1, which keeps its digits where the order is close to 1.
    above = high if high > 0.0 else math.sqrt(target / rho)
    terms = (
        rho * (1.0 + above),
        -math.log1p(1.0 / above),
        target / above,
        -math.log1p(above) / above,
    )
    rounding = 2.0**-50 * math.fsum(abs(term) for term in terms)
    return max(0.0, math.fsum(terms) + rounding)


# Gaussian differential privacy.


def gdp_from_pure(epsilon: float) -> float:
    """Return -2 Phi^-1(1 / (1 + e^epsilon)), the least mu of which epsilon-DP implies mu-GDP.

    The trade-off curve of epsilon-DP is two straight lines that meet where both errors
    are 1 / (1 + e^eps). The convex Gaussian curve through that point lies below them.

    >>> round(gdp_from_pure(1.0), 6)
    1.232035

    Parameters
    ----------
    epsilon : float
        Of the pure guarantee, at least 0.

    Returns
    -------
    float
    """
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    if epsilon < 2.0:
        return 2.0 * math.sqrt(2.0) * float(erfinv(math.tanh(0.5 * epsilon)))
    return -2.0 * float(ndtri_exp(-epsilon - math.log1p(math.exp(-epsilon))))


def gdp_to_approx(mu: float, delta: float) -> float:
    """Return the exact epsilon of mu-GDP at delta (Dong, Roth, Su 2022, corollary 2.13).

    >>> round(gdp_to_approx(0.5, 1e-5), 6)
    1.993091

    Parameters
    ----------
    mu : float
        At least 0.
    delta : float
        Above 0 and below 1.

    Returns
    -------
    float
    """
    return gaussian_epsilon(mu, delta)


def gdp_composition(*mus: float) -> float:
    """Return sqrt(sum of mu^2), exact for Gaussians (Dong, Roth, Su 2022, corollary 3.3).

    >>> gdp_composition(0.3, 0.4)
    0.5

    Parameters
    ----------
    *mus : float
        One for each release, at least 0.

    Returns
    -------
    float
    """
    return math.hypot(*(_validate.real("mu", mu, at_least=0) for mu in mus))


# Exact deltas of single mechanisms.


def laplace_delta(epsilon_pure: float, epsilon: float) -> float:
    """Return the exact delta of one Laplace release, 1 - e^((eps - eps_pure) / 2), or 0.

    ``epsilon_pure`` is sensitivity / scale.

    >>> round(laplace_delta(1.0, 0.5), 6)
    0.221199

    Parameters
    ----------
    epsilon_pure : float
        The pure epsilon of the mechanism.
    epsilon : float
        Where delta is read.

    Returns
    -------
    float
    """
    epsilon_pure = _validate.real("epsilon_pure", epsilon_pure, at_least=0)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    return max(0.0, -math.expm1(0.5 * (epsilon - epsilon_pure)))


def randomized_response_delta(epsilon_pure: float, epsilon: float, *, categories: int = 2) -> float:
    """Return (e^eps_pure - e^eps) / (e^eps_pure + k - 1), or 0: exact for k-ary response.

    >>> round(randomized_response_delta(math.log(3), math.log(2)), 6)
    0.25

    Parameters
    ----------
    epsilon_pure : float
        The pure epsilon of the mechanism.
    epsilon : float
        Where delta is read.
    categories : int
        How many answers there are.

    Returns
    -------
    float
    """
    epsilon_pure = _validate.real("epsilon_pure", epsilon_pure, at_least=0)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    categories = _validate.integer("categories", categories, at_least=2)
    if epsilon >= epsilon_pure:
        return 0.0
    return -math.expm1(epsilon - epsilon_pure) / (1.0 + (categories - 1) * math.exp(-epsilon_pure))


def pure_delta(epsilon_pure: float, epsilon: float) -> float:
    """Return the delta at ``epsilon`` of any epsilon_pure-DP mechanism; binary response attains it.

    >>> pure_delta(1.0, 1.0), round(pure_delta(1.0, 0.0), 6)
    (0.0, 0.462117)

    Parameters
    ----------
    epsilon_pure : float
        The pure epsilon of the mechanism.
    epsilon : float
        Where delta is read.

    Returns
    -------
    float
    """
    return randomized_response_delta(epsilon_pure, epsilon)


def approx_delta(epsilon_known: float, delta_known: float, *, epsilon: float) -> float:
    """Return an (epsilon_known, delta_known) guarantee read at another epsilon.

    delta + (1 - delta) * pure_delta; Kairouz, Oh, Viswanath 2015 with k = 1.

    >>> round(approx_delta(1.0, 1e-5, epsilon=0.9), 6)
    0.069579

    Parameters
    ----------
    epsilon_known, delta_known : float
        The guarantee.
    epsilon : float
        Where delta is read.

    Returns
    -------
    float
    """
    delta_known = _validate.real("delta_known", delta_known, at_least=0, at_most=1)
    return delta_known + (1.0 - delta_known) * pure_delta(epsilon_known, epsilon)


# Bounded range.


def bounded_range_from_pure(epsilon: float) -> float:
    """Return 2 epsilon: epsilon-DP has losses in [-epsilon, epsilon].

    >>> bounded_range_from_pure(0.5)
    1.0

    Parameters
    ----------
    epsilon : float
        Of the pure guarantee, at least 0.

    Returns
    -------
    float
    """
    return 2.0 * _validate.real("epsilon", epsilon, at_least=0)


def pure_from_bounded_range(spread: float) -> float:
    """Return spread: losses in an interval of that length, which holds 0, are spread-DP.

    >>> pure_from_bounded_range(0.5)
    0.5

    Parameters
    ----------
    spread : float
        The length of the interval that holds all losses.

    Returns
    -------
    float
    """
    return _validate.real("spread", spread, at_least=0)


def bounded_range_delta(spread: float, epsilon: float) -> float:
    """Return (1 - e^((eps - spread)/2))^2 / (1 - e^-spread), the largest delta of bounded range.

    Dong, Durfee, Rogers 2020: the two-point pair with losses t and t - spread,
    maximised at t = (eps + spread)/2. It is at most :func:`pure_delta` of the same epsilon.

    >>> round(bounded_range_delta(1.0, 0.0), 6), round(pure_delta(1.0, 0.0), 6)
    (0.244919, 0.462117)

    Parameters
    ----------
    spread : float
        The length of the interval that holds all losses.
    epsilon : float
        Where delta is read.

    Returns
    -------
    float
    """
    spread = _validate.real("spread", spread, at_least=0)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    if epsilon >= spread:
        return 0.0
    root = -math.expm1(0.5 * (epsilon - spread))
    return root * (root / -math.expm1(-spread))


def _order(order: float) -> float:
    return order if order == math.inf else _validate.real("order", order, at_least=1)


def _rdp_point(rdp: float, order: float) -> tuple[float, float]:
    rdp = _validate.real("rdp", rdp, at_least=0)
    return rdp, (order if order == math.inf else _validate.real("order", order, above=1))


def _exp_remainder(x: float) -> float:
    """Return e^x - 1 - x, never negative, accurate for small x too."""
    if abs(x) >= 0.5:
        return math.expm1(x) - x
    term = total = 0.5 * x * x
    divisor = 2.0
    while abs(term) > 1e-17 * total:
        divisor += 1.0
        term *= x / divisor
        total += term
    return total
