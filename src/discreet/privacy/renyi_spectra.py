"""Losses as spectra: the exact or dominating pairs of atoms whose loss is bounded.

A spectrum lists the privacy losses of a pair with their probabilities
(:class:`discreet.privacy.renyi.Spectrum`). Continuous pieces are replaced by quadrature nodes,
long lattices by a pair that dominates them.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import singledispatch

import numpy as np
from scipy import special

from discreet.errors import NotApplicable
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
)
from discreet.privacy.renyi import Array, Spectrum

__all__ = ["envelope", "float_above", "pure_epsilon", "spectra"]

_LONGEST_LATTICE = 4096
_PANEL_NODES = 20
_HALVINGS = 34


def float_above(value: Fraction) -> float:
    """The smallest float that is not below an exact number; infinity where there is none."""
    try:
        number = float(value)
    except OverflowError:
        return math.inf
    return number if Fraction(number) >= value else math.nextafter(number, math.inf)


@singledispatch
def spectra(loss: Loss) -> tuple[Spectrum, ...]:
    """The pairs that have to be considered for a loss of bounded range."""
    raise NotApplicable(f"the pair of {loss!r} is not known, so sampling it has no Renyi bound")


@spectra.register
def _(loss: PureDP) -> tuple[Spectrum, ...]:
    # Binary randomized response dominates every epsilon-DP pair (Kairouz, Oh, Viswanath 2015).
    return (_response(float_above(loss.pure_epsilon), 2),)


@spectra.register
def _(loss: ApproxDP) -> tuple[Spectrum, ...]:
    if loss.claimed_delta > 0:
        raise NotApplicable(
            f"{loss!r} has no Renyi bound: with delta > 0 the divergence may be infinite (S8)"
        )
    return (_response(float_above(loss.claimed_epsilon), 2),)


@spectra.register
def _(loss: Exponential) -> tuple[Spectrum, ...]:
    return (_response(loss.pure_epsilon, 2),)


@spectra.register
def _(loss: RandomizedResponse) -> tuple[Spectrum, ...]:
    return (_response(loss.pure_epsilon, loss.categories),)


def _response(epsilon: float, categories: int) -> Spectrum:
    if math.isinf(epsilon):
        return Spectrum.unbounded()
    log_truth = -math.log1p((categories - 1) * math.exp(-epsilon))
    weights = [log_truth, log_truth - epsilon]
    losses = [-epsilon, epsilon]
    if categories > 2:
        weights.append(log_truth - epsilon + math.log(categories - 2))
        losses.append(0.0)
    return Spectrum.from_losses(np.array(weights), np.array(losses))


@spectra.register
def _(loss: FinitePair) -> tuple[Spectrum, ...]:
    p, q = np.array(loss.p), np.array(loss.q)
    return _seen_from(p, q), _seen_from(q, p)


def _seen_from(p: Array, q: Array) -> Spectrum:
    """The pair P against Q as seen from Q."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        known = (q > 0) & (p / q < 1e300)  # a ratio beyond the floats counts as infinite
    missing = float(np.sum(p[~known]))
    p, q = p[known], q[known]
    with np.errstate(divide="ignore"):
        gain = (p - q) / q
        near = np.abs(gain) < 0.5
        log_ratio = np.where(near, np.log1p(np.where(near, gain, 0.0)), np.log(p) - np.log(q))
    return Spectrum(np.log(q), log_ratio, gain, missing)


@spectra.register
def _(loss: Laplace) -> tuple[Spectrum, ...]:
    """Two atoms at -eps and eps, and the density e^(-(l + eps)/2) / 4 between them.

    Gauss-Legendre panels halve towards eps until they resolve e^(order l) for orders up to
    1e10, and towards 0, where one-sided bounds have their kink.
    """
    epsilon = loss.pure_epsilon
    if math.isinf(epsilon):
        return (Spectrum.unbounded(),)
    points, weights = special.roots_legendre(_PANEL_NODES)
    near = min(1.0, epsilon) * 0.5 ** np.arange(_HALVINGS)
    plain = np.linspace(-epsilon, epsilon, 2 * math.ceil(min(epsilon, 150.0)) + 1)
    edges = np.unique(np.concatenate((plain, epsilon - near, near, [0.0])))
    half = np.diff(edges) / 2.0
    middle = (edges[1:] + edges[:-1]) / 2.0
    inner = (middle[:, None] + half[:, None] * points).ravel()
    log_inner = np.log(half[:, None] * weights).ravel() - math.log(4.0) - (inner + epsilon) / 2.0
    log_weight = np.concatenate((log_inner, [-math.log(2.0), -epsilon - math.log(2.0)]))
    return (Spectrum.from_losses(log_weight, np.concatenate((inner, [-epsilon, epsilon]))),)


@spectra.register
def _(loss: DiscreteLaplace) -> tuple[Spectrum, ...]:
    t, steps = 1.0 / loss.scale, loss.sensitivity
    if math.isinf(steps * t):
        return (Spectrum.unbounded(),)
    log_share = -math.log1p(math.exp(-t))  # of the noise at or below zero
    log_unit = log_share + math.log(-math.expm1(-t)) if t > 0 else -math.inf
    outer_weights, outer = [log_share, log_share - steps * t], [-steps * t, steps * t]
    if steps <= _LONGEST_LATTICE:
        x = np.arange(1.0, steps)
        inner, log_inner = (2.0 * x - steps) * t, log_unit - x * t
    else:
        inner, log_inner = _dominating_lattice(t, steps, log_share)
    log_weight = np.concatenate((log_inner, outer_weights))
    return (Spectrum.from_losses(log_weight, np.concatenate((inner, outer))),)


def _dominating_lattice(t: float, steps: int, log_share: float) -> tuple[Array, Array]:
    """Gather runs of lattice points at the two ends of each run, keeping both masses.

    Moving mass outwards with the mean of P/Q kept raises every convex moment: the connected
    dots dominate the lattice (Doroshenko et al. 2022).
    """
    cuts = np.unique(np.rint(np.linspace(1.0, steps - 1.0, _LONGEST_LATTICE + 1)))
    first, last = cuts[:-1], cuts[1:] - 1.0
    last[-1] = cuts[-1]
    length = last - first + 1.0
    low, high = (2.0 * first - steps) * t, (2.0 * last - steps) * t
    base = np.expm1(-length * t)
    log_mass = log_share - first * t + np.log(-base)  # under Q: sum of (1-e^-t) e^-xt shares
    # Under P the run weighs sum e^{-(steps - x) t}; relative to Q at the low end the mean of P/Q
    # is e^low times the mean of e^{2 j t}, j = 0 .. length - 1, under weights e^{-j t}.
    mean_over_low = np.exp((length - 1.0) * t)
    span = np.expm1(high - low)
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(span > 0, (mean_over_low - 1.0) / span, 0.0)
    upper = np.clip(upper, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        weights = np.concatenate((log_mass + np.log1p(-upper), log_mass + np.log(upper)))
    return np.concatenate((low, high)), weights


def envelope(pairs: tuple[Spectrum, ...]) -> Spectrum:
    """One spectrum whose hockey-stick profile at eps >= 0 is at least that of every pair."""
    if len(pairs) == 1 or any(pair.missing > 0 for pair in pairs):
        return max(pairs, key=lambda pair: pair.missing)
    ratios = np.unique(np.concatenate([pair.gain[pair.gain > 0] for pair in pairs]))
    if not len(ratios):
        return pairs[0]
    knots = np.concatenate(([0.0], ratios))
    profiles = []
    for pair in pairs:
        order = np.argsort(pair.gain)[::-1]
        gain, weight = pair.gain[order], np.exp(pair.log_weight[order])
        mass = np.concatenate(([0.0], np.cumsum(weight)))
        first = np.concatenate(([0.0], np.cumsum(weight * gain)))
        above = np.searchsorted(-gain, -knots, side="left")
        profiles.append(first[above] - knots * mass[above])
    profile = np.maximum.reduce(profiles)
    slopes = np.append(np.diff(profile) / np.diff(knots), 0.0)
    kinks = np.maximum(np.diff(slopes), 0.0)
    kept = kinks > 0
    gain = ratios[kept]
    return Spectrum(np.log(kinks[kept]), np.log1p(gain), gain)


@singledispatch
def pure_epsilon(loss: Loss) -> float:  # noqa: ARG001 - the fallback of the dispatch
    """The Renyi divergence of order infinity: a pure epsilon, infinite where none holds."""
    return math.inf


@pure_epsilon.register
def _(loss: PureDP) -> float:
    return float_above(loss.pure_epsilon)


@pure_epsilon.register
def _(loss: ApproxDP) -> float:
    return math.inf if loss.claimed_delta > 0 else float_above(loss.claimed_epsilon)


@pure_epsilon.register(Laplace)
@pure_epsilon.register(DiscreteLaplace)
def _(loss: Laplace | DiscreteLaplace) -> float:
    return loss.pure_epsilon * (1 + 2**-52)


@pure_epsilon.register(RandomizedResponse)
@pure_epsilon.register(Exponential)
def _(loss: RandomizedResponse | Exponential) -> float:
    return loss.pure_epsilon


@pure_epsilon.register
def _(loss: FinitePair) -> float:
    pairs = spectra(loss)
    if any(pair.missing > 0 for pair in pairs):
        return math.inf
    return max(float(np.max(pair.log_ratio)) for pair in pairs) * (1 + 2**-50)


@pure_epsilon.register
def _(loss: Composition) -> float:
    return math.fsum(count * pure_epsilon(part) for part, count in loss.parts) * (1 + 2**-52)


@pure_epsilon.register(PoissonSampled)
@pure_epsilon.register(SampledWithoutReplacement)
def _(loss: PoissonSampled | SampledWithoutReplacement) -> float:
    base = pure_epsilon(loss.base)
    if base > 700:
        # log(1 + rate (e^eps - 1)) <= log(rate) + eps + (1 - rate) / (rate e^eps).
        return min(
            base, base + math.log(loss.rate) + math.exp(min(0.0, -math.log(loss.rate) - base))
        )
    return math.log1p(loss.rate * math.expm1(base)) * (1 + 2**-50)


@pure_epsilon.register
def _(loss: Grouped) -> float:
    return loss.size * pure_epsilon(loss.base)
