"""Renyi divergences of sampled Gaussian and discrete Gaussian noise at real orders.

The pair is N(0, 1) against the mixture over k of weights c_k of N(k mu, 1), so the ratio is
``1 + g(x) = sum_k c_k exp(k mu x - k^2 mu^2 / 2)`` and the moments are integrals over x.

The trapezoid rule meets them with an error that can be stated. On a line x + iy the ratio has
modulus at most 1 + g(x), and it has no zero while ``records * mu * |y| < pi``, so the power is
analytic there and the integrand grows by at most exp(y^2/2): a step h leaves the relative error
2 exp(y^2/2 - 2 pi y / h) (Trefethen and Weideman 2014, theorem 5.1). Steps here make that
e^-46. A discrete Gaussian *is* such a sum, with step 1/stddev; once its lattice is finer than
the step needed, the coarse rule gives the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy import special

from discreet.privacy.renyi import Array, log_moments, sampled_log_ratio

__all__ = [
    "binomial_gaussian_divergence",
    "discrete_gaussian_divergence",
    "poisson_gaussian_divergence",
    "poisson_lattice_divergence",
    "without_replacement_gaussian_divergence",
    "without_replacement_lattice_divergence",
]

_ACCURACY = 46.0  # minus the log of the relative quadrature error
_REACH = 11.5  # standard deviations kept beyond the outermost peak: e^-66
_PLAIN_STEP = math.pi * math.sqrt(2.0 / _ACCURACY)
_BLOCK = 400_000
_STEEP = 40.0  # beyond this mu Minkowski's bound is as good and needs no nodes
_FAR = 2_000.0  # binomial mixtures: no quadrature when the outermost peak lies beyond
_PANEL_NODES = 20
_RESOLVED = 1e7  # order * mu beyond which the exponents, its square, lose their last digits
_MOST_REVERSE_NODES = 40_000
_MOST_RECORDS = 20_000  # binomial mixtures of more records are not integrated


def _step(reach: float) -> float:
    """The trapezoid step for ratios whose nearest zero is pi / reach off the real line."""
    height = min(math.pi / reach, 2.0 * math.pi / _PLAIN_STEP)
    return 2.0 * math.pi * height / (_ACCURACY + height * height / 2.0)


def _windows(order: float, mu: float, rate: float) -> list[tuple[float, float]]:
    """Where phi(x) (1 + g(x))^order is not negligible.

    Left of 0 and right of order * mu it falls like a Gaussian. In between it is a unit
    Gaussian around 0 or around order * mu wherever one of the two components rules, so only
    those peaks and the stretch where rule changes hands can hold any mass.
    """
    low, high = -_REACH, order * mu + _REACH
    if high - low <= 80.0:
        return [(low, high)]
    change = (mu * mu / 2.0 + math.log1p(-rate) - math.log(rate)) / mu
    half = (math.log(order) + math.log1p(mu) + 12.0) / mu
    pieces = sorted(
        (max(low, a), min(high, b))
        for a, b in (
            (low, _REACH),
            (change - half, change + half),
            (order * mu - _REACH, high),
        )
    )
    merged: list[tuple[float, float]] = []
    for a, b in pieces:
        if a >= b:
            continue
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return merged


def _lattice(windows: list[tuple[float, float]], step: float) -> Array:
    """The multiples of ``step`` in the windows, widened so that no peak falls between two."""
    parts, last = [], -math.inf
    for a, b in windows:
        first = max(math.floor(a / step) - 1, last + 1)
        last = max(math.ceil(b / step) + 1, last)
        parts.append(np.arange(first, last + 1.0))
    return np.concatenate(parts) * step


def _blocks(nodes: list[Array]) -> Iterator[slice]:
    begin, size = 0, 0
    for i, x in enumerate(nodes):
        if size and size + len(x) > _BLOCK:
            yield slice(begin, i)
            begin, size = i, 0
        size += len(x)
    yield slice(begin, len(nodes))


def _log_total(step: float) -> float:
    """The log of the sum of exp(-x^2/2) over all multiples of ``step``."""
    count = math.ceil(_REACH / step) + 1
    return float(np.log(np.sum(np.exp(-0.5 * (np.arange(-count, count + 1.0) * step) ** 2))))


def _ratio(x: Array, mu: float, rate: float) -> tuple[Array, Array]:
    """Gain and log-ratio of (1 - rate) N(0,1) + rate N(mu,1) against N(0,1) at x."""
    loss = mu * (x - mu / 2.0)
    gain = rate * np.expm1(np.minimum(loss, 700.0))
    return gain, sampled_log_ratio(gain, loss, rate)


def _minkowski(orders: Array, squares: Array, log_shares: Array) -> Array:
    """a/(a-1) log sum_k c_k exp((a-1) s_k / 2): the triangle inequality of the a-norm."""
    exponents = log_shares + (orders[:, None] - 1.0) * squares / 2.0
    return orders / (orders - 1.0) * special.logsumexp(exponents, axis=1)


def poisson_gaussian_divergence(orders: Array, mu: float, rate: float) -> Array:
    """D_a((1-q) N(0,1) + q N(mu,1) || N(0,1)), the larger direction (S7; Mironov et al. 2019)."""
    return _sampled_divergence(orders, mu, rate, _step(mu), usable=mu <= _STEEP)


def poisson_lattice_divergence(orders: Array, mu: float, rate: float, stddev: float) -> Array:
    """The same for the discrete Gaussian: x runs over the multiples of 1 / stddev."""
    return _sampled_divergence(orders, mu, rate, max(1.0 / stddev, _step(mu)), usable=True)


def _sampled_divergence(
    orders: Array, mu: float, rate: float, step: float, *, usable: bool
) -> Array:
    """The lattice sum where floats resolve it, and Minkowski's bound elsewhere.

    The norms in that bound are those of the continuous Gaussian, which are the larger ones.
    """
    shares = np.array([math.log1p(-rate), math.log(rate)])
    result = _minkowski(orders, np.array([0.0, mu * mu]), shares)
    near = (orders * mu < _RESOLVED) & usable
    if bool(np.any(near)):
        result[near] = _lattice_divergence(orders[near], mu, rate, step)
    return result


def _lattice_divergence(orders: Array, mu: float, rate: float, step: float) -> Array:
    nodes = [_lattice(_windows(float(order), mu, rate), step) for order in orders]
    total = _log_total(step)
    parts = []
    for block in _blocks(nodes):
        x = np.concatenate(nodes[block])
        counts = np.array([len(row) for row in nodes[block]])
        gain, log_gain = _ratio(x, mu, rate)
        parts.append(log_moments(orders[block], counts, -0.5 * x * x - total, gain, log_gain))
    return np.concatenate(parts) / (orders - 1.0)


def discrete_gaussian_divergence(orders: Array, stddev: float, sensitivity: int) -> Array:
    """D_a of discrete Gaussian noise: a mu^2/2 + log(Z(a s)/Z(0)) / (a - 1).

    Z(c) sums exp(-(x-c)^2 / (2 stddev^2)) over the integers x and is largest at integers c
    (Canonne, Kamath and Steinke 2020), so leaving its term out is the safe side: done where
    it is below e^-95, or where a s is too large for its fraction to be known.
    """
    mu = sensitivity / stddev
    result = orders * (mu * mu / 2.0)
    centre = orders * float(sensitivity)
    if stddev > 2.2 or not stddev > 1e-150:
        return result
    fraction = np.where(centre < 2.0**40, centre - np.rint(centre), 0.0)
    offsets = np.arange(-25.0, 26.0)
    shifted = special.logsumexp(-0.5 * ((offsets - fraction[:, None]) / stddev) ** 2, axis=1)
    at_zero = special.logsumexp(-0.5 * (offsets / stddev) ** 2)
    return result + np.minimum(shifted - at_zero, 0.0) / (orders - 1.0)


def binomial_gaussian_divergence(orders: Array, mu: float, rate: float, records: int) -> Array:
    """Both directions for a unit of several records, each sampled on its own (Ganesh 2024).

    The mixture has weights c_k = C(m, k) q^k (1-q)^(m-k). Where the peaks lie too far out the
    Minkowski bound replaces the integral. The direction N(0,1) against the mixture never
    exceeds -m log(1-q), which bounds its ratio, and is integrated only where that matters.
    """
    k = np.arange(records + 1.0)
    log_shares = (
        (
            special.gammaln(records + 1.0)
            - special.gammaln(k + 1.0)
            - special.gammaln(records - k + 1.0)
        )
        + k * math.log(rate)
        + (records - k) * math.log1p(-rate)
    )
    reach = records * mu
    result = _minkowski(orders, (k * mu) ** 2, log_shares)
    ceiling = -records * math.log1p(-rate)
    if records > _MOST_RECORDS:
        # Too many to integrate; a mixture never has more than its largest shift alone.
        return np.maximum(result, np.minimum(orders * (reach * reach / 2.0), ceiling))
    inside = (orders * reach < _FAR) & (reach <= _STEEP)
    if bool(np.any(inside)):
        steps = [_step(reach)] * int(np.sum(inside))
        quadrature = _binomial_moments(orders[inside], steps, mu, log_shares)
        result[inside] = quadrature / (orders[inside] - 1.0)
    for i in np.flatnonzero(result < ceiling):
        reverse = _reverse_binomial(float(orders[i]), mu, log_shares)
        result[i] = max(result[i], min(reverse, ceiling))
    return result


def _reverse_binomial(order: float, mu: float, log_shares: Array) -> float:
    """D_a(N(0,1) || mixture), or infinity where the integral would need too many nodes.

    Off the real line the ratio shrinks by at most cos(m mu y / 2), so the integrand grows by
    at most exp(kappa y^2 / 2) with kappa = 1 + 0.3 (a-1) (m mu)^2 while m mu y <= 1.
    """
    reach = (len(log_shares) - 1) * mu
    kappa = 1.0 + 0.3 * (order - 1.0) * reach * reach
    height = min(math.sqrt(2.0 * _ACCURACY / kappa), 1.0 / reach)
    step = 2.0 * math.pi * height / (_ACCURACY + kappa * height * height / 2.0)
    if ((order - 1.0) * reach + 2.0 * _REACH) / step > _MOST_REVERSE_NODES:
        return math.inf
    moment = _binomial_moments(np.array([1.0 - order]), [step], mu, log_shares)
    return float(moment[0]) / (order - 1.0)


def _binomial_moments(powers: Array, steps: list[float], mu: float, log_shares: Array) -> Array:
    reach = (len(log_shares) - 1) * mu
    parts = []
    for power, step in zip(powers, steps, strict=True):
        peak = float(power) * reach
        x = _lattice([(min(peak, 0.0) - _REACH, max(peak, 0.0) + _REACH)], step)
        gain = np.zeros_like(x)
        log_gain = np.full_like(x, log_shares[0])
        for k in range(1, len(log_shares)):
            loss = k * mu * (x - k * mu / 2.0)
            gain += math.exp(log_shares[k]) * np.expm1(np.minimum(loss, 600.0))
            log_gain = np.logaddexp(log_gain, log_shares[k] + loss)
        log_gain = np.where(np.abs(gain) < 0.5, np.log1p(np.clip(gain, -0.5, 0.5)), log_gain)
        weight = -0.5 * x * x - _log_total(step)
        parts.append(log_moments(np.array([power]), np.array([len(x)]), weight, gain, log_gain))
    return np.concatenate(parts)


def _split(divergence: Callable[..., Array], orders: Array, mu: float, *settings: float) -> Array:
    """Evaluate the orders that floats resolve; elsewhere the unsampled divergence is a bound."""
    result = orders * (mu * mu / 2.0)
    near = (orders * mu < _RESOLVED) & (mu <= _STEEP)
    if bool(np.any(near)):
        result[near] = divergence(orders[near], mu, *settings)
    return result


def without_replacement_gaussian_divergence(orders: Array, mu: float, rate: float) -> Array:
    """The one-sided bound of :func:`renyi.one_sided_divergence` for N(mu,1) against N(0,1).

    The integral starts where the ratio is one, at mu/2, with a kink there; hence Gauss-Legendre
    panels, graded towards that end, instead of the trapezoid rule.
    """
    if mu > _STEEP or float(np.max(orders)) * mu >= _RESOLVED:
        return _split(without_replacement_gaussian_divergence, orders, mu, rate)
    points, weights = special.roots_legendre(_PANEL_NODES)
    width = min(3.0, 3.5 / mu)
    nodes, log_weights = [], []
    for order in orders:
        ends = []
        for a, b in _windows(float(order), mu, rate):
            start = max(a, mu / 2.0)
            if start >= b:
                continue
            edges = np.linspace(start, b, math.ceil((b - start) / width) + 1)
            if start == mu / 2.0:
                graded = start + (edges[1] - start) * 0.5 ** np.arange(24.0, 0.0, -1.0)
                edges = np.concatenate(([start], graded, edges[1:]))
            ends.append(edges)
        half = np.concatenate([np.diff(e) for e in ends]) / 2.0
        middle = np.concatenate([(e[1:] + e[:-1]) / 2.0 for e in ends])
        nodes.append((middle[:, None] + half[:, None] * points).ravel())
        log_weights.append(np.log(half[:, None] * weights).ravel())
    parts = []
    for block in _blocks(nodes):
        x = np.concatenate(nodes[block])
        counts = np.array([len(row) for row in nodes[block]])
        weight = np.concatenate(log_weights[block]) - 0.5 * x * x - 0.5 * math.log(2.0 * math.pi)
        gain, log_gain = _ratio(x, mu, rate)
        parts.append(log_moments(orders[block], counts, weight, gain, log_gain, both_powers=True))
    return np.concatenate(parts) / (orders - 1.0)


def without_replacement_lattice_divergence(
    orders: Array, mu: float, rate: float, stddev: float
) -> Array:
    """The same for the discrete Gaussian, summed over its own lattice."""
    if float(np.max(orders)) * mu >= _RESOLVED:
        return _split(without_replacement_lattice_divergence, orders, mu, rate, stddev)
    step = 1.0 / stddev
    total = _log_total(step)
    parts = []
    for order in orders:
        x = _lattice(_windows(float(order), mu, rate), step)
        gain, log_gain = _ratio(x, mu, rate)
        above = gain > 0
        weight = -0.5 * x[above] ** 2 - total
        parts.append(
            log_moments(
                np.array([order]),
                np.array([int(np.sum(above))]),
                weight,
                gain[above],
                log_gain[above],
                both_powers=True,
            )
        )
    return np.concatenate(parts) / (orders - 1.0)
