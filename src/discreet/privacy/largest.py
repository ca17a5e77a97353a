"""The largest privacy loss of a release: its pure epsilon, rounded up (S1, S2, S6)."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import singledispatch

import numpy as np

from discreet import _validate
from discreet.privacy.atoms import (
    ApproxDP,
    DiscreteLaplace,
    Exponential,
    FinitePair,
    Laplace,
    PureDP,
    RandomizedResponse,
)
from discreet.privacy.loss import (
    Composition,
    Grouped,
    Loss,
    PoissonSampled,
    SampledWithoutReplacement,
    compose,
)
from discreet.privacy.pairs import log_ratio

__all__ = ["basic_epsilon", "largest_loss", "sampled_mass"]


def largest_loss(loss: Loss) -> float:
    """The smallest known epsilon at delta 0; infinite where the loss is unbounded.

    >>> from discreet.privacy import PureDP
    >>> largest_loss(10 * PureDP(0.1))
    1.0
    """
    exact = _largest(loss)
    if isinstance(exact, float):
        return exact
    try:
        rounded = float(exact)
    except OverflowError:
        return math.inf
    return rounded if Fraction(rounded) >= exact else math.nextafter(rounded, math.inf)


def basic_epsilon(loss: Loss, delta: float) -> float:
    """The sum of the largest losses where the claimed deltas sum to at most ``delta`` (S5).

    Both sums are exact, so a claim holds at its own delta:

    >>> from discreet.privacy import ApproxDP
    >>> basic_epsilon(ApproxDP(epsilon=1, delta=1e-5), 1e-5)
    1.0
    """
    parts = loss.parts if isinstance(loss, Composition) else ((loss, 1),)
    claims = [n * part.claimed_delta for part, n in parts if isinstance(part, ApproxDP)]
    if not claims:
        return largest_loss(loss)
    if sum(claims) > _validate.fraction("delta", delta):
        return math.inf
    return largest_loss(
        compose(
            (PureDP(part.claimed_epsilon, part.relation) if isinstance(part, ApproxDP) else part, n)
            for part, n in parts
        )
    )


def sampled_mass(loss: Loss) -> float:
    """The probability that a unit is looked at, which bounds delta at every epsilon (S6).

    Unless a sample contains the unit, both data sets give the same answer. 1 where some part
    looks at everybody.

    >>> from discreet.privacy import Gaussian
    >>> 0.0099 < sampled_mass(10 * Gaussian(1.0).poisson(rate=1e-3)) < 0.01
    True
    """
    if isinstance(loss, PoissonSampled):
        mass = -math.expm1(loss.records * math.log1p(-loss.rate))
        return loss.rate if loss.records == 1 else min(1.0, mass * (1.0 + 1e-14))
    if isinstance(loss, SampledWithoutReplacement):
        return loss.rate
    if isinstance(loss, Grouped):
        return min(1.0, loss.size * sampled_mass(loss.base))
    if isinstance(loss, Composition):
        masses = [(sampled_mass(part), n) for part, n in loss.parts]
        if all(mass < 1.0 for mass, _ in masses):
            none = math.fsum(n * math.log1p(-mass) for mass, n in masses)
            return min(1.0, -math.expm1(none) * (1.0 + 1e-14))
    return 1.0


@singledispatch
def _largest(loss: Loss) -> Fraction | float:  # noqa: ARG001 - the handlers need it
    """The largest loss as an exact rational, or infinity."""
    return math.inf


@_largest.register
def _(loss: Composition) -> Fraction | float:
    total = Fraction(0)
    for part, n in loss.parts:
        value = _largest(part)
        if isinstance(value, float):
            return value
        total += n * value
    return total


@_largest.register
def _(loss: Grouped) -> Fraction | float:
    return loss.size * _largest(loss.base)


@_largest.register
def _(loss: PureDP) -> Fraction | float:
    return loss.pure_epsilon


@_largest.register
def _(loss: ApproxDP) -> Fraction | float:
    return loss.claimed_epsilon if loss.claimed_delta == 0 else math.inf


@_largest.register(Laplace)
@_largest.register(DiscreteLaplace)
def _(loss: Laplace | DiscreteLaplace) -> Fraction | float:
    return Fraction(loss.sensitivity) / Fraction(loss.scale)


@_largest.register(RandomizedResponse)
@_largest.register(Exponential)
def _(loss: RandomizedResponse | Exponential) -> Fraction | float:
    return Fraction(loss.pure_epsilon)


@_largest.register
def _(loss: FinitePair) -> Fraction | float:
    if 0.0 in loss.p or 0.0 in loss.q:
        return math.inf
    most = float(np.abs(log_ratio(np.array(loss.p), np.array(loss.q))).max())
    return Fraction(most * (1.0 + 1e-15) + 1e-15)


@_largest.register(PoissonSampled)
@_largest.register(SampledWithoutReplacement)
def _(loss: PoissonSampled | SampledWithoutReplacement) -> Fraction | float:
    if isinstance(loss, PoissonSampled) and loss.records > 1:
        return math.inf
    base = largest_loss(loss.base)
    if not math.isfinite(base):
        return math.inf
    if base < 30.0:
        value = math.log1p(loss.rate * math.expm1(base))
    else:
        value = base + math.log(loss.rate + (1.0 - loss.rate) * math.exp(-base))
    return Fraction(value * (1.0 + 1e-14))
