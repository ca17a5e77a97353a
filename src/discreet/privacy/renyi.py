"""Moments of privacy losses that are known point by point: the arithmetic under :mod:`moments`.

For distributions P and Q with ratio ``1 + g = P / Q`` every Renyi divergence, in either
direction, is a power moment under Q: with power ``b``

    (a - 1) D_a(P || Q) = log E_Q (1 + g)^a,       (a - 1) D_a(Q || P) = log E_Q (1 + g)^(1 - a).

Because ``E_Q g = 0`` the moment is ``1 + E_Q[(1 + g)^b - 1 - b g]``, and for b > 1 and b < 0 the
bracket is never negative (Bernoulli). Summing that *excess* keeps full relative precision where
the divergence is 1e-18 as well as where it is 1e13. Sampling at a rate q turns g into q g.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "Array",
    "Spectrum",
    "bounded_range_divergence",
    "divergence",
    "gained",
    "group_powers",
    "laplace_divergence",
    "log_moments",
    "one_sided_divergence",
    "sampled_bounded_range_divergence",
    "two_sided_geometric_divergence",
]

Array: TypeAlias = npt.NDArray[np.float64]

_LARGEST_BLOCK = 1_000_000  # nodes that are evaluated at once: bounds the memory
_NO_CHANCE = -1e5  # a log ratio that stands for zero where the power is positive
_OVERFLOW = 600.0  # excesses beyond exp of this are summed in a shifted scale
_RANGE_CELLS = 256
_LARGEST_EXPONENT = 1e14  # beyond it rounding alone moves an exponent by a percent


@dataclass(frozen=True)
class Spectrum:
    """A pair (P, Q) as seen from Q: where the loss lies and how likely that is.

    ``log_weight`` is the log-probability of each point under Q, ``log_ratio`` is log(P/Q) there,
    and ``gain`` is P/Q - 1, kept apart because it may be far smaller than 1. ``missing`` is the
    mass of P where Q has none. A ``symmetric`` pair is exchanged by a reflection; then the
    divergence of a mixture from its base is the larger direction (Mironov, Talwar and Zhang
    2019, theorem 5) and the other one is not computed.
    """

    log_weight: Array
    log_ratio: Array
    gain: Array
    missing: float = 0.0
    symmetric: bool = False

    @classmethod
    def from_losses(cls, log_weight: Array, log_ratio: Array) -> Spectrum:
        """A symmetric pair that is given by its loss values."""
        with np.errstate(over="ignore"):
            return cls(log_weight, log_ratio, np.expm1(log_ratio), symmetric=True)

    @classmethod
    def unbounded(cls) -> Spectrum:
        """The pair of two distributions that share nothing: every divergence is infinite."""
        return cls(np.zeros(1), np.full(1, -np.inf), np.full(1, -1.0), missing=1.0)


def gained(spectrum: Spectrum, rate: float) -> tuple[Array, Array]:
    """The gain and log-ratio of the sampled pair: (1 - rate) Q + rate P against Q."""
    gain = rate * spectrum.gain
    if rate == 1.0:
        return gain, spectrum.log_ratio
    return gain, sampled_log_ratio(gain, spectrum.log_ratio, rate)


def sampled_log_ratio(gain: Array, log_ratio: Array, rate: float) -> Array:
    """log(1 - rate + rate exp(log_ratio)), given gain = rate (exp(log_ratio) - 1)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        far = np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio)
        return np.where((gain < -0.5) | (gain > 1.0), far, np.log1p(np.clip(gain, -0.6, 1.0)))


def _exp_excess(x: Array) -> Array:
    """exp(x) - 1 - x, accurate near zero."""
    near = np.clip(x, -0.5, 0.5)
    series = np.ones_like(near)
    for k in range(15, 2, -1):
        series = 1.0 + near * series / k
    return np.where(np.abs(x) <= 0.5, 0.5 * near * near * series, np.expm1(x) - x)


def _log_shortfall(gain: Array) -> Array:
    """log(1 + gain) - gain for |gain| < 0.1, accurate near zero."""
    half = gain / (2.0 + gain)
    square = half * half
    series = np.zeros_like(half)
    for odd in (15, 13, 11, 9, 7, 5, 3):
        series = series * square + 1.0 / odd
    return 2.0 * half * square * series - gain * half


def weighted_excess(power: Array, log_weight: Array, gain: Array, log_gain: Array) -> Array:
    """exp(log_weight) ((1 + gain)^power - 1 - power gain), a sum of terms that are never negative.

    All powers are above 1, or all are negative. ``log_gain`` is log(1 + gain).
    """
    weight = np.exp(log_weight)
    small = np.abs(gain) < 0.1
    near = np.where(small, gain, 0.0)
    if power.size and power[0] > 0:
        log_gain = np.maximum(log_gain, _NO_CHANCE)
        mixed = np.exp(log_weight + log_gain)
        x = (power - 1.0) * log_gain
        bend = np.where(
            small,
            weight * (near * log_gain + _log_shortfall(near)),
            mixed * (log_gain - 1.0) + weight,
        )
        tail = np.exp(log_weight + log_gain + x) - mixed * (1.0 + x)
        first = np.where(x < 1.0, mixed * _exp_excess(np.minimum(x, 1.0)), tail)
        return first + (power - 1.0) * np.maximum(bend, 0.0)
    mixed = np.exp(log_weight + log_gain)
    x = power * log_gain
    bend = np.where(small, weight * _log_shortfall(near), weight * (1.0 + log_gain) - mixed)
    tail = np.exp(log_weight + x) - weight * (1.0 + x)
    first = np.where(x < 1.0, weight * _exp_excess(np.minimum(x, 1.0)), tail)
    return first + power * np.minimum(bend, 0.0)


def log_moments(
    powers: Array,
    counts: npt.NDArray[np.int64],
    log_weight: Array,
    gain: Array,
    log_gain: Array,
    *,
    both_powers: bool = False,
) -> Array:
    """log E (1 + gain)^power, one row for each power; row i owns counts[i] consecutive nodes.

    ``both_powers`` adds the excess of 1 - power, which serves :func:`one_sided_divergence`.
    Infinite where the exponents are too large to be known to a digit after the point.
    """
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    power = np.repeat(powers, counts)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        peak = np.maximum.reduceat(log_weight + power * log_gain, starts)
        shift = np.maximum(0.0, peak - _OVERFLOW)
        shifted = log_weight - np.repeat(shift, counts)
        excess = weighted_excess(power, shifted, gain, log_gain)
        if both_powers:
            excess = excess + weighted_excess(1.0 - power, shifted, gain, log_gain)
        total = np.add.reduceat(excess, starts)
        with np.errstate(divide="ignore"):
            result = np.where(shift > 0, shift + np.log(total + np.exp(-shift)), np.log1p(total))
        known = np.maximum(log_gain, _NO_CHANCE)
        largest = np.maximum.reduceat(np.abs(power * known), starts)
        return np.where(largest < _LARGEST_EXPONENT, result, np.inf)


def _spectral_moments(
    powers: Array, spectrum: Spectrum, rate: float, *, both_powers: bool = False
) -> Array:
    gain, log_gain = gained(spectrum, rate)
    if powers[0] < 0 and bool(np.any(np.isneginf(log_gain))):
        return np.full_like(powers, np.inf)
    size = len(gain)
    rows = max(1, _LARGEST_BLOCK // size)
    parts = []
    for begin in range(0, len(powers), rows):
        block = powers[begin : begin + rows]
        nodes = [np.tile(a, len(block)) for a in (spectrum.log_weight, gain, log_gain)]
        counts = np.full(len(block), size)
        parts.append(log_moments(block, counts, *nodes, both_powers=both_powers))
    return np.concatenate(parts)


def divergence(orders: Array, spectrum: Spectrum, *, rate: float = 1.0) -> Array:
    """max of D_a(M || Q) and D_a(Q || M) for the mixture M = (1 - rate) Q + rate P."""
    if spectrum.missing > 0:
        return np.full_like(orders, np.inf)
    result = _spectral_moments(orders, spectrum, rate)
    if not spectrum.symmetric:
        result = np.maximum(result, _spectral_moments(1.0 - orders, spectrum, rate))
    return np.maximum(result, 0.0) / (orders - 1.0)


def one_sided_divergence(orders: Array, spectrum: Spectrum, *, rate: float) -> Array:
    """A bound for every pair whose hockey-stick profiles, both ways, lie below the sampled one.

    A sample without replacement has delta'(log(1 + rate (e^eps - 1))) <= rate delta(eps) in both
    directions, eps >= 0 (Balle, Barthe and Gaboardi 2018). A Renyi moment is an
    integral of the two profiles with positive weights (Sason and Verdu 2016), and the
    profile of the mixture M against Q *is* the right-hand side. With g = rate (P/Q - 1) hence

        exp((a - 1) D_a) <= 1 + E_Q[((1+g)^a - 1 - a g) + ((1+g)^(1-a) - 1 - (1-a) g); g > 0].
    """
    if spectrum.missing > 0:
        return np.full_like(orders, np.inf)
    above = spectrum.gain > 0
    if not bool(np.any(above)):
        return np.zeros_like(orders)
    upper = Spectrum(spectrum.log_weight[above], spectrum.log_ratio[above], spectrum.gain[above])
    return _spectral_moments(orders, upper, rate, both_powers=True) / (orders - 1.0)


def _log_of_excess(
    orders: Array, excess: Array, large: Array, use_large: npt.NDArray[np.bool_]
) -> Array:
    return np.where(use_large, large, np.log1p(np.where(use_large, 0.0, excess))) / (orders - 1.0)


def laplace_divergence(orders: Array, epsilon: float) -> Array:
    """D_a of Laplace noise with sensitivity / scale = epsilon (Mironov 2017, table II)."""
    up, down = (orders - 1.0) * epsilon, orders * epsilon
    share = orders / (2.0 * orders - 1.0)
    rest = (orders - 1.0) / (2.0 * orders - 1.0)
    excess = share * _exp_excess(np.minimum(up, 1.0)) + rest * _exp_excess(-down)
    large = up + np.log(share + rest * np.exp(-up - down))
    return _log_of_excess(orders, excess, large, up > 1.0)


def two_sided_geometric_divergence(orders: Array, scale: float, sensitivity: int) -> Array:
    """D_a of discrete Laplace noise, by summing the geometric series.

    With t = 1/scale and eps = sensitivity t the moment is A e^((a-1) eps) + (1-A) e^(-a eps),
    A = sinh(a t) / (2 cosh(t/2) sinh((a - 1/2) t)).
    """
    t = 1.0 / scale
    epsilon = sensitivity / scale
    up, down = (orders - 1.0) * epsilon, orders * epsilon
    bottom = (1.0 + np.exp(-t)) * -np.expm1(-(2.0 * orders - 1.0) * t)
    share = -np.expm1(-2.0 * orders * t) / bottom
    rest = np.exp(-t) * -np.expm1(-2.0 * (orders - 1.0) * t) / bottom
    # (a-1) A - a (1-A) vanishes with t squared: near zero from the series of sinh z - z.
    wide, narrow = np.minimum(orders * t, 1.0), np.minimum((orders - 1.0) * t, 1.0)
    curved = (orders - 1.0) * _sinh_excess(wide) - orders * _sinh_excess(narrow)
    with np.errstate(over="ignore", invalid="ignore"):
        curved = curved / (2.0 * np.cosh(t / 2.0) * np.sinh((orders - 0.5) * t))
    slope = np.where(orders * t < 1.0, curved, (orders - 1.0) * share - orders * rest)
    excess = share * _exp_excess(np.minimum(up, 1.0)) + rest * _exp_excess(-down) + slope * epsilon
    large = up + np.log(share + rest * np.exp(-up - down))
    return _log_of_excess(orders, np.maximum(excess, 0.0), large, up > 1.0)


def _sinh_excess(x: Array) -> Array:
    """sinh(x) - x for 0 <= x <= 1, by its series."""
    square = x * x
    series = np.ones_like(x)
    for k in range(8, 1, -1):
        series = 1.0 + square * series / (2 * k * (2 * k + 1))
    return x * square * series / 6.0


def bounded_range_divergence(orders: Array, epsilon: float) -> Array:
    """The tight D_a of epsilon-bounded range: losses that lie in some [t - eps, t].

    Given t, the two-point pair on the ends maximises every convex moment. The best t is
    eps - log(a (1 - e^(-(a-1) eps)) / ((a-1) (1 - e^(-a eps)))). For tiny a eps the bound
    a eps^2 / 8 is used (Cesar and Rogers 2021), from which it cannot be told apart.
    """
    lower = np.expm1(-(orders - 1.0) * epsilon) / (orders - 1.0)
    upper = np.expm1(-orders * epsilon) / orders
    top = np.clip(epsilon - np.log(lower / upper), 0.0, epsilon)
    moments = _two_point_moments(orders, top, top - epsilon, 1.0)
    quadratic = orders * (epsilon * epsilon / 8.0)
    tiny = orders * epsilon < 1e-6
    return np.where(tiny, quadratic, np.minimum(quadratic, moments / (orders - 1.0)))


def sampled_bounded_range_divergence(orders: Array, epsilon: float, *, rate: float) -> Array:
    """An upper bound for a Poisson-sampled epsilon-bounded-range release.

    The end t is confined to one of many cells [c, c + w]; there the losses lie in
    [c - eps, c + w], whose two-point pair dominates. The maximum over the cells is certified
    and at most about 2 / 256 too large.
    """
    edges = np.linspace(0.0, epsilon, _RANGE_CELLS + 1)
    high, low = np.tile(edges[1:], len(orders)), np.tile(edges[:-1] - epsilon, len(orders))
    every = np.repeat(orders, _RANGE_CELLS)
    best = np.maximum(
        _two_point_moments(every, high, low, rate), _two_point_moments(1.0 - every, high, low, rate)
    )
    worst: Array = np.max(best.reshape(len(orders), _RANGE_CELLS), axis=1)
    return worst / (orders - 1.0)


def _two_point_moments(powers: Array, high: Array, low: Array, rate: float) -> Array:
    """log E (1 + rate (P/Q - 1))^power for the pair whose loss is high >= 0 or low <= 0."""
    span = -np.expm1(low - high)
    with np.errstate(divide="ignore"):
        # P(high) solves p e^high + (1 - p) e^low = 1.
        log_high = np.log(-np.expm1(low)) - high - np.log(span)
        log_low = np.log(-np.expm1(-high)) - np.log(span)
    ratios = np.stack([high, low], axis=1).ravel()
    spectrum = Spectrum.from_losses(np.stack([log_high, log_low], axis=1).ravel(), ratios)
    gain, log_gain = gained(spectrum, rate)
    counts = np.full(len(powers), 2)
    return log_moments(powers, counts, spectrum.log_weight, gain, log_gain)


def group_powers(orders: Array, size: int) -> Array:
    """The base orders a k - j, j = 0 .. k - 1, that bound a group of k at each order a.

    D_a(group of k) <= sum over j of (a k / (a k - j)) D_{a k - j}(one). Hoelder's inequality
    gives, for a chain P, R, Q of groups k1 + k2 = k (Mironov 2017, proposition 11, with the
    exponent p = 1 + (k2/k1)(a - 1)/a instead of 2),
    D_a(P||Q) <= (k / (k1 p)) D_{a + (k2/k1)(a-1)}(P||R) + D_{a k / k2}(R||Q);
    taking k1 = 1 again and again gives the sum. It is exact for Gaussians.
    """
    return orders[:, None] * size - np.arange(size, dtype=np.float64)[None, :]
