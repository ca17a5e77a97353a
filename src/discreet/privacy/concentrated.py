"""Zero-concentrated differential privacy (Bun and Steinke 2016): one number for a loss (S4).

A loss is rho-zCDP when its Renyi divergence is at most rho times the order, at every order.
"""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np

from discreet import _validate
from discreet.errors import NotApplicable
from discreet.privacy import renyi
from discreet.privacy.atoms import (
    GDP,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
    RenyiDP,
)
from discreet.privacy.loss import (
    Composition,
    Grouped,
    Loss,
    PoissonSampled,
    SampledWithoutReplacement,
)
from discreet.privacy.renyi_spectra import float_above, pure_epsilon, spectra

__all__ = ["zcdp_epsilon", "zcdp_rho"]

_CELLS_PER_DOUBLING = 2048


@singledispatch
def zcdp_rho(loss: Loss) -> float:
    """The least rho known for which the loss is rho-zCDP.

    Exact for Gaussian, Laplace and pure losses. Losses without a rho raise ``NotApplicable``.

    >>> zcdp_rho(4 * Gaussian(noise_multiplier=2.0))
    0.5
    """
    raise NotApplicable(f"no zCDP bound is known for {loss!r}")


@zcdp_rho.register(Gaussian)
@zcdp_rho.register(GDP)
def _(loss: Gaussian | GDP) -> float:
    return loss.mu * loss.mu / 2.0


@zcdp_rho.register
def _(loss: ZCDP) -> float:
    return loss.rho


@zcdp_rho.register
def _(loss: DiscreteGaussian) -> float:
    mu = loss.sensitivity / loss.stddev
    return mu * mu / 2.0


@zcdp_rho.register
def _(loss: PureDP) -> float:
    return _pure_rho(float_above(loss.pure_epsilon))


def _pure_rho(epsilon: float) -> float:
    """epsilon tanh(epsilon / 2), the divergence of order 1 of randomized response; tight.

    Its log-moment at order a is log cosh(y) - log cosh(x), x = eps/2, y = (2a - 1) x. As a
    function of y^2 log cosh is concave, so it lies below its tangent at x^2, which is
    a (a-1) eps tanh(eps/2).
    """
    return epsilon * math.tanh(epsilon / 2.0)


@zcdp_rho.register
def _(loss: ApproxDP) -> float:
    if loss.claimed_delta > 0:
        raise NotApplicable(f"{loss!r} has no Renyi bound, hence no zCDP one (S8)")
    return _pure_rho(float_above(loss.claimed_epsilon))


@zcdp_rho.register
def _(loss: Laplace) -> float:
    """epsilon + e^-epsilon - 1, the divergence of order 1 (Harrison and Manurangsi 2025).

    The log-moment is log(cosh(y eps) + sinh(y eps) / (2y)) - eps/2 at y = a - 1/2. As a function
    of y^2 that is the log of an entire function of order 1/2 whose zeros are real and negative
    (they are minus the eigenvalues of -u'' = w u, u'(0) = u(0)/2, u(eps) = 0), hence concave.
    """
    epsilon = loss.pure_epsilon
    if epsilon < 1e-3:
        return epsilon * epsilon * (0.5 - epsilon / 6.0 + epsilon**2 / 24.0)
    return epsilon + math.expm1(-epsilon)


@zcdp_rho.register
def _(loss: Exponential) -> float:
    """epsilon^2 / 8 (Cesar and Rogers 2021), or the scan of the tight curve where that is less."""
    quadratic = loss.pure_epsilon * loss.pure_epsilon / 8.0
    if loss.pure_epsilon < 1.0:
        return quadratic
    return min(quadratic, _scanned_rho(loss))


@zcdp_rho.register(RandomizedResponse)
@zcdp_rho.register(DiscreteLaplace)
@zcdp_rho.register(FinitePair)
def _(loss: Loss) -> float:
    bound = _pure_rho(pure_epsilon(loss)) if math.isfinite(pure_epsilon(loss)) else math.inf
    if math.isinf(bound):
        raise NotApplicable(f"{loss!r} has infinite Renyi divergence, hence no zCDP bound")
    return min(bound, _scanned_rho(loss))


def _scanned_rho(loss: Loss) -> float:
    """The supremum of D_a / a from above, on cells of orders; 0.04 % too large at most.

    D does not fall with the order, so on [a, b] the quotient is at most D_b / a; beyond order
    eps / rho it is below eps / a.
    """
    epsilon = pure_epsilon(loss)
    if epsilon == 0:
        return 0.0
    best = 0.0
    start = 0
    while True:
        edges = 2.0 ** (np.arange(start, start + _CELLS_PER_DOUBLING + 1.0) / _CELLS_PER_DOUBLING)
        orders = edges[1:]
        if isinstance(loss, Exponential):
            curve = renyi.bounded_range_divergence(orders, loss.pure_epsilon)
        elif isinstance(loss, DiscreteLaplace) and loss.sensitivity > 64:
            curve = renyi.two_sided_geometric_divergence(orders, loss.scale, loss.sensitivity)
        else:
            curves = [renyi.divergence(orders, pair) for pair in spectra(loss)]
            curve = np.max(np.stack(curves), axis=0)
        best = max(best, float(np.max(curve / edges[:-1])))
        if epsilon / edges[-1] <= best or not best > 0:
            return best
        start += _CELLS_PER_DOUBLING


@zcdp_rho.register
def _(loss: Composition) -> float:
    return math.fsum(count * zcdp_rho(part) for part, count in loss.parts)


@zcdp_rho.register
def _(loss: Grouped) -> float:
    """Size squared times rho (Bun and Steinke 2016, proposition 27)."""
    return loss.size**2 * zcdp_rho(loss.base)


@zcdp_rho.register(PoissonSampled)
@zcdp_rho.register(SampledWithoutReplacement)
def _(loss: Loss) -> float:
    raise NotApplicable(
        f"{loss!r} has no useful zCDP bound: sampling lowers the divergence only at small orders "
        "(S8); use the rdp or pld accountant"
    )


@zcdp_rho.register
def _(loss: RenyiDP) -> float:
    raise NotApplicable(f"{loss!r} is known at finitely many orders; zCDP speaks of all of them")


def zcdp_epsilon(loss: Loss, delta: float) -> float:
    """The least epsilon that rho-zCDP proves at ``delta`` (S8).

    Minimises rho a + ln((a-1)/a) - (ln delta + ln a)/(a-1) (Canonne, Kamath and Steinke 2020).
    Its derivative vanishes where rho (a-1)^2 = ln(1/(a delta)), which has one root.
    """
    delta = _validate.real("delta", delta, at_least=0, below=1)
    rho = zcdp_rho(loss)
    if rho == 0:
        return 0.0
    if delta == 0 or math.isinf(rho):
        return math.inf
    target = -math.log(delta)
    low, high = 0.0, math.sqrt(target / rho)
    for _ in range(100):
        middle = (low + high) / 2.0
        if rho * middle * middle + math.log1p(middle) < target:
            low = middle
        else:
            high = middle
    excess = high if high > 0 else math.sqrt(target / rho)
    order = 1.0 + excess
    terms = (
        rho * order,
        -math.log1p(1.0 / excess),
        target / excess,
        -math.log1p(excess) / excess,
    )
    rounding = 2.0**-50 * math.fsum(abs(term) for term in terms)
    return max(0.0, math.fsum(terms) + rounding)
