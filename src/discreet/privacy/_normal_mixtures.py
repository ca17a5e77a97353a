"""Mixtures of shifted normals against one normal: their cells and their Renyi divergences.

Q is N(0, 1) and P the mixture over k of weights c_k of N(k mu, 1), so the ratio is
``1 + g(x) = sum_k c_k exp(k mu x - k^2 mu^2 / 2)``. Cells serve the privacy-loss distributions;
the Renyi moments are integrals over x of their own, so that the two judge one another.

The trapezoid rule meets these integrals with an error that can be stated. On a line x + iy the
ratio has modulus at most 1 + g(x), and it has no zero while ``records * mu * |y| < pi``, so the
power is analytic there and the integrand grows by at most exp(y^2/2): a step h leaves the relative
error 2 exp(y^2/2 - 2 pi y / h) (Trefethen and Weideman 2014, theorem 5.1). Steps here make that
e^-46. A discrete Gaussian *is* such a sum, with step 1/stddev; once its lattice is finer than
the step needed, the coarse rule gives the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy import special

from discreet.privacy._pair import Array, Cells, Pair, Resolution, Side, sampled_loss
from discreet.privacy._renyi import log_choose, log_moments, sampled_log_ratio

_ACCURACY = 46.0  # minus the log of the relative quadrature error
_REACH = 11.5  # standard deviations beyond the outermost peak: e^-66
_PLAIN_STEP = math.pi * math.sqrt(2.0 / _ACCURACY)
_BLOCK = 400_000
_STEEP = 40.0  # beyond this mu Minkowski's bound is as good and needs no nodes
_FAR = 2_000.0  # binomial mixtures: no quadrature when the outermost peak lies beyond
_PANEL_NODES = 20
_RESOLVED = 1e7  # order * mu beyond which the exponents, its square, lose their last digits
_MOST_REVERSE_NODES = 40_000
_MOST_RECORDS = 20_000  # binomial mixtures of more records are not integrated
# A sampled group of many shifts is expensive; neighbours are moved together.
_MOST_SHIFTS, _FEWER_SHIFTS = 2048, 512


# --- cells ------------------------------------------------------------------------------------


def normal_cells(
    weights: Array, shifts: Array, resolution: Resolution, *, lattice: float | None = None
) -> Cells:
    """Return cells for P = sum_j weights_j N(shifts_j, 1) against Q = N(0, 1), row by row.

    Shifts are non-negative and the first is 0 unless it is the only one. With ``lattice`` the
    cells end halfway between two multiples of 1 / lattice.
    """
    edge = _edges(weights, shifts, resolution)
    if lattice is not None:
        edge = (np.floor(edge * lattice) + 0.5) / lattice
    return _mixture_cells(weights, shifts, edge)


def shifted_cells(
    mu: float, resolution: Resolution, *, rate: float = 1.0, lattice: float | None = None
) -> Cells:
    """Return cells for one shift, on a Poisson sample if the rate is below 1."""
    weights, shifts = np.array([[1.0]]), np.array([[mu]])
    if rate < 1.0:
        weights, shifts = np.array([[1.0 - rate, rate]]), np.array([[0.0, mu]])
    return normal_cells(weights, shifts, resolution, lattice=lattice)


def stacked_cells(rates: Array, mus: Array, resolution: Resolution) -> Cells:
    """Return cells for many Poisson-sampled Gaussians at once, one row each."""
    weights = np.stack([1.0 - rates, rates], axis=1)
    shifts = np.stack([np.zeros_like(mus), mus], axis=1)
    return normal_cells(weights, shifts, resolution)


@lru_cache(maxsize=4)
def log_binomial(records: int, rate: float) -> Array:
    """Return the logarithms of the binomial weights of 0 .. records."""
    k = np.arange(records + 1.0)
    share = k * math.log(rate)
    return np.asarray(log_choose(records, k) + share + (records - k) * math.log1p(-rate))


@lru_cache(maxsize=4)
def _binomial_beyond(records: int, rate: float) -> Array:
    """Return the binomial mass beyond each of 0 .. records."""
    return np.asarray(special.bdtrc(np.arange(records + 1), records, rate))


def sampled_group_pair(mu: float, rate: float, records: int, resolution: Resolution) -> Pair:
    """Return the pair of a unit whose records are each drawn with ``rate`` (Ganesh 2024).

    P is a binomial mixture of shifts. Shifts that hardly ever happen are moved: away from 0 every
    hockey stick grows, towards 0 it falls. For the pair above the largest go to infinity and the
    smallest up to the first that stays; for the one below the largest go down to the last that
    stays and the smallest to 0.
    """
    n, k, tail = records, np.arange(records + 1), resolution.tail
    log_weight = log_binomial(n, rate)
    beyond = _binomial_beyond(n, rate)
    last = int(np.argmax(beyond <= tail))
    # At the left end of the outcomes small shifts count most.
    left = log_weight - mu * k * (0.5 * mu * k - float(special.ndtri(tail)))
    first = min(int(np.argmax(left > left.max() - 40.0)), last)
    weights, shifts = np.exp(log_weight[first : last + 1]), mu * k[first : last + 1]
    above = float(beyond[last])
    raised, lowered, low_shifts = weights.copy(), weights.copy(), shifts
    lowered[-1] += above
    if first:
        below = float(special.bdtr(first - 1, n, rate))
        raised[0] += below
        lowered, low_shifts = np.append(below, lowered), np.append(0.0, shifts)
    high_shifts = shifts
    if len(shifts) > _MOST_SHIFTS:
        raised, high_shifts = _fewer_shifts(raised, shifts, upwards=True)
        lowered, low_shifts = _fewer_shifts(lowered, low_shifts, upwards=False)
    # What the logarithms of the weights, and of their sum at an outcome, may lose.
    error = 4e-16 * (
        3.0 * float(special.gammaln(n + 1)) + 100.0 + float(np.abs(left[first:]).max())
    )
    # A sum of gains has the mass that went to infinity at 0 too, where P weighs at least 0.1.
    upper = replace(group_cells(raised, high_shifts, resolution), error=error + 10.0 * above)
    tails = replace(upper.with_unit, high_tail=upper.with_unit.high_tail + above)
    lower = replace(group_cells(lowered, low_shifts, resolution), error=error)
    return Pair(replace(upper, with_unit=tails), (lower,))


def _fewer_shifts(weights: Array, shifts: Array, *, upwards: bool) -> tuple[Array, Array]:
    """Move neighbouring shifts together: away from 0 every hockey stick grows."""
    starts = np.arange(0, len(shifts), -(-len(shifts) // _FEWER_SHIFTS))
    ends = np.append(starts[1:], len(shifts)) - 1
    return np.add.reduceat(weights, starts), shifts[ends if upwards else starts]


def group_cells(weights: Array, shifts: Array, resolution: Resolution) -> Cells:
    """Return cells for one mixture of any non-negative shifts, in increasing order."""
    if shifts[0] == 0.0 and weights[0] > 0.1:
        return normal_cells(weights[None, :], shifts[None, :], resolution)
    edge = _edges(weights[None, :], shifts[None, :], resolution)
    return _moved_cells(weights[None, :], shifts[None, :], edge)


def _mixture_cells(weights: Array, shifts: Array, edge: Array) -> Cells:
    """Return cells for P = sum_j weights_j N(shifts_j, 1) against Q = N(0, 1), row by row.

    Shifts are non-negative and the first is 0 unless it is the only one, so the loss is
    monotone in the outcome x; ``edge`` are the increasing boundaries of the cells in x.
    """
    null = normal_mass(edge)
    gain = np.zeros_like(null)
    # The shift 0 cancels exactly in the difference, however large its weight.
    moved = range(1, shifts.shape[1]) if shifts.shape[1] > 1 else range(1)
    for j in moved:
        gain += weights[:, j : j + 1] * (normal_mass(edge - shifts[:, j : j + 1]) - null)
    boundary = _mixture_loss(edge, weights, shifts)
    with np.errstate(divide="ignore", invalid="ignore"):
        average = np.log1p(gain / null)
        relative = _relative_error(edge, null)
    # The same error seen by log1p(gain / null): only the moved share of P carries it.
    part = weights[:, moved.start :].sum(axis=1, keepdims=True)
    grown = np.exp(np.minimum(boundary[:, 1:], 700.0))
    slack = relative * np.minimum(1.0, 2.0 * part + np.maximum(grown - 1.0, 0.0))
    present = np.maximum(null + gain, 0.0)
    thin = gain < -0.5 * null
    if np.any(thin):
        # P is small beside Q: the difference says nothing, its own mass does.
        total, loss_of_digits = np.zeros_like(null), relative
        for j in range(shifts.shape[1]):
            moved_edge = edge - shifts[:, j : j + 1]
            mass = normal_mass(moved_edge)
            total = total + weights[:, j : j + 1] * mass
            with np.errstate(divide="ignore", invalid="ignore"):
                loss_of_digits = np.maximum(loss_of_digits, _relative_error(moved_edge, mass))
        present = np.where(thin, total, present)
        with np.errstate(divide="ignore", invalid="ignore"):
            average = np.where(thin, np.log(total) - np.log(null), average)
        slack = np.where(thin, 2.0 * loss_of_digits + 4e-16 * np.abs(boundary[:, :-1]), slack)
        relative = np.where(thin, loss_of_digits, relative)
    # Where a mass is too small to be known, only the range of the loss is.
    unknown = ~np.isfinite(average) | (relative >= 1e-3)
    if np.any(unknown):
        average = np.where(unknown, boundary[:, :-1], average)
        slack = np.where(unknown, boundary[:, 1:] - boundary[:, :-1], slack)
    average = np.clip(average, boundary[:, :-1], boundary[:, 1:])
    p_slack = np.minimum(relative * (2.0 + np.minimum(grown, 100.0)), 1.0)
    return _cells(
        weights, shifts, edge, boundary, (present, p_slack), (null, relative), average, slack
    )


def _moved_cells(weights: Array, shifts: Array, edge: Array) -> Cells:
    """Return cells for one pair whose shift 0 has little weight, or none.

    Most of P has moved, so its own masses are summed: nothing cancels. The weights may sum to
    less than 1.
    """
    null = normal_mass(edge)
    total, wrong = np.zeros_like(null), np.zeros_like(null)
    for weight, shift in zip(weights[0], shifts[0], strict=True):
        mass = normal_mass(edge - shift)
        total += weight * mass
        # Errors of the distribution function are relative to it, and they add up.
        inner = np.minimum(np.abs(edge[:, 1:] - shift), np.abs(edge[:, :-1] - shift))
        wrong += 1e-15 * weight * (mass + 2.0 * special.ndtr(-inner))
    boundary = _mixture_loss(edge, weights, shifts)
    with np.errstate(divide="ignore", invalid="ignore"):
        average = np.log(total) - np.log(null)
        relative = np.where(total > 0, wrong / total, 1.0) + _relative_error(edge, null)
        slack = relative + 4e-16 * (np.abs(np.log(total)) + np.abs(np.log(null)))
    unknown = ~np.isfinite(average) | (relative >= 1e-3)
    average = np.where(unknown, boundary[:, :-1], average)
    slack = np.where(unknown, boundary[:, 1:] - boundary[:, :-1], slack)
    average = np.clip(average, boundary[:, :-1], boundary[:, 1:])
    relative = np.minimum(relative, 1.0)
    p_slack = np.minimum(relative * 2.0, 1.0)
    return _cells(
        weights, shifts, edge, boundary, (total, p_slack), (null, relative), average, slack
    )


def _cells(
    weights: Array,
    shifts: Array,
    edge: Array,
    boundary: Array,
    p: tuple[Array, Array],
    q: tuple[Array, Array],
    average: Array,
    slack: Array,
) -> Cells:
    """Return cells between edges; ``p`` and ``q`` are masses with their relative errors."""
    none = np.zeros(len(edge))
    with_unit = Side(
        none,
        np.sum(weights * special.ndtr(edge[:, :1] - shifts), axis=1),
        np.sum(weights * special.ndtr(shifts - edge[:, -1:]), axis=1),
        p[1],
    )
    without = Side(none, special.ndtr(edge[:, 0]), special.ndtr(-edge[:, -1]), q[1])
    low, high = boundary[:, :-1], boundary[:, 1:]
    return Cells(p[0], q[0], average, low, high, with_unit, without, slack, touching=True)


def _edges(weights: Array, shifts: Array, resolution: Resolution) -> Array:
    """Return cell boundaries, dense where the tilted measure has its variance.

    A cell adds an error proportional to its tilted mass times the square of its loss
    width, so a density of boundaries like the cube root of that weight is best. A
    loss beyond the epsilon of interest decides alone, and there the curvature
    exp(-loss) counts. About ``tail`` of the mass of P is left out at each end. Any
    boundaries are valid; these are good.
    """
    tail, swapped = resolution.tail, resolution.swapped
    rows = len(shifts)
    reach = float(-special.ndtri(tail))
    if swapped:
        top = np.full(rows, reach)
    else:
        # Each shift reaches as far as its own share of the tail.
        share = np.minimum(tail / np.maximum(weights, tail), 0.5)
        top = np.max(shifts - special.ndtri(share), axis=1)
    points = 161 if rows < 20 else 97
    unit = np.linspace(0.0, 1.0, points)
    x = -reach + unit * (top + reach)[:, None]
    loss = _mixture_loss(x, weights, shifts)
    return _dense_edges(x, -loss if swapped else loss, 0.0 if swapped else loss, resolution)


def _dense_edges(x: Array, loss: Array, log_ratio: Array | float, resolution: Resolution) -> Array:
    """Return boundaries within the points ``x``; ``log_ratio`` is log of P's density over N(0, 1).

    ``loss`` is counted in the direction that is asked for.
    """
    tau = resolution.tau
    slope = np.abs(np.diff(loss, axis=1)) / np.diff(x, axis=1)
    density = log_ratio - 0.5 * x * x
    worth = 0.5 * (loss[:, 1:] + loss[:, :-1])
    beyond = np.maximum(worth - resolution.focus, 0.0)
    exponent = 0.5 * (density[:, 1:] + density[:, :-1]) + tau * (worth - beyond) - beyond
    exponent -= exponent.max(axis=1, keepdims=True)
    weight = np.exp(exponent / 3.0) * slope ** (2.0 / 3.0)
    # Before the tilt is known, nowhere may be left out.
    weight += (0.02 if tau > 0.0 else 1.0) * weight.mean(axis=1, keepdims=True) + 1e-300
    mass = np.concatenate([np.zeros((len(x), 1)), np.cumsum(weight, axis=1)], axis=1)
    mass /= mass[:, -1:]
    goal = np.linspace(0.0, 1.0, resolution.cells + 1)
    edge = np.stack([np.interp(goal, m, r) for m, r in zip(mass, x, strict=True)])
    edge[:, 0], edge[:, -1] = x[:, 0], x[:, -1]
    return edge


def replaced_cells(shift: float, rate: float, resolution: Resolution) -> Cells:
    """Return cells for a replaced record on a Poisson sample, N(0, 1) moved by +shift or -shift.

    P = (1 - rate) N(0) + rate N(shift) and Q = (1 - rate) N(0) + rate N(-shift): a reflection
    exchanges them, and the loss grows with the outcome.
    """
    shares = np.array([1.0 - rate, rate])
    tails = np.minimum(resolution.tail / np.maximum(shares, resolution.tail), 0.5)
    top = float(np.max(np.array([0.0, shift]) - special.ndtri(tails)))
    x = np.linspace(-top, top, 161)[None, :]
    edge = _dense_edges(
        x,
        _replaced_loss(x, shift, rate),
        sampled_loss(shift * x - 0.5 * shift**2, rate),
        resolution,
    )
    masses, errors = [], []
    for centre in (0.0, shift, -shift):
        moved = edge - centre
        mass = normal_mass(moved)
        inner = np.minimum(np.abs(moved[:, 1:]), np.abs(moved[:, :-1]))
        masses.append(mass)
        errors.append(1e-15 * (mass + 2.0 * special.ndtr(-inner)))
    rest, rest_error = shares[0] * masses[0], shares[0] * errors[0]
    p, q = rest + rate * masses[1], rest + rate * masses[2]
    boundary = np.maximum.accumulate(_replaced_loss(edge, shift, rate), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        wrong_p, wrong_q = (
            np.where(mass > 0, (rest_error + rate * error) / mass, 1.0) + 4e-16
            for mass, error in zip((p, q), errors[1:], strict=True)
        )
        # The share that no one drew cancels exactly in the difference.
        gain = rate * (masses[1] - masses[2])
        near = np.abs(gain) < 0.5 * q
        average = np.where(near, np.log1p(np.where(near, gain, 0.0) / q), np.log(p) - np.log(q))
        apart = rate * (errors[1] + errors[2]) / p + wrong_q * np.abs(gain) / p
        lost = wrong_p + wrong_q + 4e-16 * (np.abs(np.log(p)) + np.abs(np.log(q)))
        slack = np.where(near, apart, lost) + 4e-16 * np.abs(average)
    unknown = ~np.isfinite(average) | (wrong_p >= 1e-3) | (wrong_q >= 1e-3)
    average = np.where(unknown, boundary[:, :-1], average)
    slack = np.where(unknown, boundary[:, 1:] - boundary[:, :-1], slack)
    average = np.clip(average, boundary[:, :-1], boundary[:, 1:])
    sides = [
        Side(
            np.zeros(1),
            shares @ special.ndtr(np.array([edge[0, 0], edge[0, 0] - centre]))[:, None],
            shares @ special.ndtr(np.array([-edge[0, -1], centre - edge[0, -1]]))[:, None],
            np.minimum(wrong, 1.0),
        )
        for centre, wrong in ((shift, wrong_p), (-shift, wrong_q))
    ]
    low, high = boundary[:, :-1], boundary[:, 1:]
    # Two logarithms are subtracted: where they are equal their rounding remains.
    error = 8e-16 * (1.0 + abs(math.log1p(-rate)))
    with_unit, without = sides
    return Cells(p, q, average, low, high, with_unit, without, slack, error, touching=True)


def _replaced_loss(x: Array, shift: float, rate: float) -> Array:
    """Return the loss of a replaced record on a Poisson sample at the outcomes ``x``."""
    half = 0.5 * shift**2
    up, down = sampled_loss(shift * x - half, rate), sampled_loss(-shift * x - half, rate)
    return np.asarray(up - down)


def normal_mass(edge: Array) -> Array:
    """Masses of N(0, 1) between edges, each from the side where it is a small number."""
    left = special.ndtr(-np.abs(edge))
    inside = np.where(edge[:, 1:] <= 0, left[:, 1:] - left[:, :-1], left[:, :-1] - left[:, 1:])
    across = (edge[:, :-1] < 0) & (edge[:, 1:] > 0)
    if np.any(across):
        inside = np.where(across, 1.0 - left[:, 1:] - left[:, :-1], inside)
    return np.asarray(inside)


def _relative_error(edge: Array, mass: Array) -> Array:
    """What a difference of normal distribution functions may lose, relative to it."""
    inner = np.minimum(np.abs(edge[:, 1:]), np.abs(edge[:, :-1]))
    lost = 1e-15 * (1.0 + 2.0 * special.ndtr(-inner) / mass)
    return np.where(mass > 0, np.minimum(lost, 1.0), 1.0)


def _mixture_loss(x: Array, weights: Array, shifts: Array) -> Array:
    """log sum_j w_j exp(s_j x - s_j^2 / 2), without cancellation near 0 or far below."""
    if shifts.shape[1] == 1:
        return np.asarray(shifts * x - 0.5 * shifts**2)
    gain = np.zeros_like(x)
    largest = np.full_like(x, -np.inf if shifts[0, 0] > 0.0 else 0.0)
    moved = range(0 if shifts[0, 0] > 0.0 else 1, shifts.shape[1])
    for j in moved:
        shift = shifts[:, j : j + 1]
        exponent = shift * x - 0.5 * shift**2
        largest = np.maximum(largest, exponent)
        gain += weights[:, j : j + 1] * np.expm1(np.minimum(exponent, 30.0))
    far = (largest > 30.0) | (gain < -0.5)
    loss = np.log1p(np.where(far, 0.0, gain))
    if np.any(far):
        scaled = weights[:, :1] * np.exp(-largest) if moved.start else np.zeros_like(x)
        for j in moved:
            shift = shifts[:, j : j + 1]
            scaled = scaled + weights[:, j : j + 1] * np.exp(shift * x - 0.5 * shift**2 - largest)
        with np.errstate(divide="ignore"):
            loss = np.where(far, largest + np.log(scaled), loss)
    return np.asarray(loss)


# --- Renyi divergences ------------------------------------------------------------------------


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


def minkowski(orders: Array, squares: Array, log_shares: Array) -> Array:
    """a/(a-1) log sum_k c_k exp((a-1) s_k / 2): the triangle inequality of the a-norm."""
    exponents = log_shares + (orders[:, None] - 1.0) * squares / 2.0
    return orders / (orders - 1.0) * special.logsumexp(exponents, axis=1)


def poisson_gaussian_divergence(orders: Array, mu: float, rate: float) -> Array:
    """D_a((1-q) N(0,1) + q N(mu,1) || N(0,1)), the larger direction (Mironov et al. 2019)."""
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
    result = minkowski(orders, np.array([0.0, mu * mu]), shares)
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
    k, log_shares = np.arange(records + 1.0), log_binomial(records, rate)
    reach = records * mu
    result = minkowski(orders, (k * mu) ** 2, log_shares)
    ceiling = -records * math.log1p(-rate)
    if records > _MOST_RECORDS:
        # Too many to integrate; a mixture never has more than its largest shift alone.
        return np.asarray(np.maximum(result, np.minimum(orders * (reach * reach / 2.0), ceiling)))
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
    """Return the bound of ``_renyi.one_sided_divergence`` for N(mu,1) against N(0,1).

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
