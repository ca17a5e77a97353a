"""Correlated noise: sensitivity and error of Toeplitz strategies, as functions of numbers.

Step i of n releases G_i + (C^-1 Z)_i, where G_i is the clipped sum of its batch, the Z_i are
independent normals, and C is lower triangular with C[i, j] = c[i - j]. All releases together are
C^-1 (C G + Z): post-processing of C G + Z, from which they can be computed back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable

Array = np.ndarray
_MOST_STEPS = 10**6
_UNIT = 2.0**-53
# What a sum of rounded squares and its root may lose.
_PAD = 1.0 + 1e-15


def toeplitz_sensitivity(
    coefficients: Sequence[float] | Array, *, steps: int, separation: int, participations: int
) -> float:
    """Return how far one record moves C G, where it takes part at most k times, b steps apart.

    The record adds d_i, of norm at most 1, in the steps i of its pattern, so C G moves by at most
    the root of the sum over i, j in the pattern of |X_ij|, X = C^T C (vectors of one direction
    attain it where X >= 0). The largest pattern is known in these cases; others are refused.

    *One participation*: the norm of the longest column, c itself.

    *At most b coefficients*: X_ij = 0 for steps of one pattern, which are b apart, so the squares
    of the norms of columns add up, with any signs. Column i is c cut after n - i numbers, so
    the earliest steps 0, b, 2b, ... are worst. Exact.

    *Coefficients >= 0 that never increase* (Kalinin and Lampert 2024, theorem 2): the earliest
    steps are worst again, and the value is the norm of the sum of their columns. For the l-th and
    m-th step of a pattern, i_l < i_m, X is the sum over t <= n - 1 - i_m of c_t c_(t + i_m - i_l).
    As i_m - i_l >= (m - l) b and i_m >= (m - 1) b, every c_(t + i_m - i_l) is at most
    c_(t + (m - l) b), and there are at most as many terms as for the steps (l - 1) b and
    (m - 1) b. Exact.

    Adaptive gradients change nothing, because C is lower triangular (Denisov et al. 2022, theorem
    2.1): given the past, step i is a normal moved by some m_i, a function of the past, and the
    m_i^2 never sum to more than the square of the sensitivity. Run as a Brownian motion for a time
    of m_i^2 in step i, filled up to the whole, the log ratio is that of one normal.

    >>> round(toeplitz_sensitivity([1.0, 0.5], steps=4, separation=2, participations=2), 9)
    1.58113883
    >>> round(toeplitz_sensitivity([1.0, 0.5], steps=4, separation=1, participations=4), 9)
    2.783882181

    Parameters
    ----------
    coefficients : sequence of float
        The first column of C; what is not given is 0.
    steps, separation, participations : int
        n, b and k; k is cut to the n / b, rounded up, that fit.

    Returns
    -------
    float
        The sensitivity, rounded up.

    Raises
    ------
    NotApplicable
        If no case above covers the strategy.
    """
    c, n, b, k = _check(coefficients, steps, separation, participations)
    if k == 1 or len(c) <= b:
        parts = block_norms(c, steps=n, separation=b, participations=k)
        return math.sqrt(math.fsum(count * norm * norm for norm, count in parts)) * _PAD
    if np.any(c < 0) or np.any(np.diff(c) > 0):
        raise NotApplicable(
            f"{len(c)} coefficients for steps that are {b} apart: the sensitivity is known for at "
            "most as many coefficients as the separation, or for coefficients >= 0 that never "
            "increase"
        )
    total = np.zeros(n)
    for begin in range(0, k * b, b):
        column = c[: n - begin]
        total[begin : begin + len(column)] += column
    return math.sqrt(math.fsum(total * total)) * (_PAD + 2.0 * k * _UNIT)


def block_norms(
    coefficients: Sequence[float] | Array, *, steps: int, separation: int, participations: int
) -> list[tuple[float, int]]:
    """Return the norms of the columns 0, b, 2b, ... of C with their counts, rounded up.

    Choquette-Choo et al. 2023, theorem 4, rests on them: with at most b coefficients these columns
    have no row in common. So if a record may take part in the steps a, a + b, ... only, each time
    with probability q by a coin of its own, the rows from one of these steps to the next show a
    Poisson-sampled Gaussian of that norm and nothing else about the record, given all that came
    before; the run is their composition. The last block may be cut off, and a = 0 is worst.

    >>> parts = block_norms([0.6, 0.8], steps=5, separation=2, participations=3)
    >>> [(round(norm, 9), times) for norm, times in parts]
    [(1.0, 2), (0.6, 1)]

    Parameters
    ----------
    coefficients : sequence of float
        At most ``separation`` of them, unless there is one participation.
    steps, separation, participations : int
        As in :func:`toeplitz_sensitivity`.

    Returns
    -------
    list of (float, int)
        That of whole columns, and that of a last one that is cut.
    """
    c, n, b, k = _check(coefficients, steps, separation, participations)
    if k > 1 and len(c) > b:
        raise NotApplicable(f"{len(c)} coefficients reach further than {b} steps")
    whole = min(k, (n - len(c)) // b + 1)
    found = [(_norm(c), whole)]
    if whole < k:
        found.append((_norm(c[: n - whole * b]), 1))
    return found


def inverse_toeplitz(coefficients: Sequence[float] | Array, *, steps: int) -> Array:
    """Return the first column of C^-1 from that of C, or the reverse: 1 / c(x), n terms.

    Definition: power series in the shift, whose product is 1.

    >>> inverse_toeplitz([1.0, -0.5], steps=4).tolist()
    [1.0, 0.5, 0.25, 0.125]

    Parameters
    ----------
    coefficients : sequence of float
        The first of them is above 0.
    steps : int
        How many terms are wanted.

    Returns
    -------
    array
    """
    c, n, _, _ = _check(coefficients, steps, 1, 1)
    start = np.zeros(n)
    start[0] = 1.0
    return _solve(c, start)


def majorant(inverse: Sequence[float] | Array, *, steps: int) -> Array:
    """Return coefficients >= 0 that never increase and are not below those of 1 / b(x).

    Every entry of X = C^T C grows with the size of the coefficients, so the sensitivity of a
    majorant bounds that of the strategy: definition of X. Rounding is covered: if b * c = 1 + r
    for the computed c, then c is off by at most the sum of its sizes times the largest r.

    >>> majorant([1.0, -0.5], steps=3).round(9).tolist()
    [1.0, 0.5, 0.25]

    Parameters
    ----------
    inverse : sequence of float
        The first column of C^-1.
    steps : int
        How many steps there are.

    Returns
    -------
    array
    """
    b, n, _, _ = _check(inverse, steps, 1, 1)
    c = inverse_toeplitz(b, steps=n)
    largest = float(np.max(np.abs(c)))
    residual = 2.0 * (len(b) + 1) * _UNIT * float(np.abs(b).sum()) * largest
    error = 2.0 * residual * float(np.abs(c).sum())
    if not (error < 1e-6 * largest and n * residual < 0.5):
        raise NotApplicable("the inverse of these coefficients cannot be computed to 6 digits")
    return np.asarray(np.maximum.accumulate(np.abs(c)[::-1])[::-1] + error * (1.0 + 1e-9))


def prefix_errors(coefficients: Sequence[float] | Array, *, steps: int) -> Array:
    """Return the deviation of the noise in G_0 + ... + G_i, for every i, at unit noise.

    Row i of A C^-1, A the prefix sums, is b_i, ..., b_0 with C b = (1, ..., 1). Definition.

    >>> prefix_errors([1.0], steps=4).tolist()[-1]
    2.0

    Parameters
    ----------
    coefficients : sequence of float
        The first column of C.
    steps : int
        n.

    Returns
    -------
    array
        Times noise and sensitivity: the error of each prefix sum.
    """
    c, n, _, _ = _check(coefficients, steps, 1, 1)
    b = _solve(c, np.ones(n))
    return np.asarray(np.sqrt(np.cumsum(b * b)))


def least_error_coefficients(bands: int, *, steps: int) -> Array:
    """Return coefficients of norm 1 with nearly the least mean squared error of prefix sums.

    With at most as many bands as the separation the sensitivity is the norm of c times a factor
    that does not depend on c, so log |c|^2 + log(mean squared error) is what is minimised, by
    L-BFGS from the square root of A (Choquette-Choo et al. 2023). Nothing rests on how well that
    succeeds: sensitivity and error are those of the numbers that are returned.

    >>> [round(one, 4) for one in least_error_coefficients(2, steps=100).tolist()]
    [0.7956, 0.6058]

    Parameters
    ----------
    bands : int
        How many coefficients.
    steps : int
        n; at least ``bands``.

    Returns
    -------
    array
    """
    n = _validate.integer("steps", steps, at_least=1, at_most=_MOST_STEPS)
    p = _validate.integer("bands", bands, at_least=1, at_most=n)
    start = square_root_coefficients(p)
    if p == 1:
        return start
    from scipy.optimize import minimize

    weights = 1.0 - np.arange(n) / n

    def objective(tail: Array) -> tuple[float, Array]:
        c = np.append(1.0, tail)
        b = _solve(c, np.ones(n))
        error, square = float(np.dot(weights, b * b)), float(np.dot(c, c))
        y = _solve(c, (weights * b)[::-1])[::-1]
        slope = np.array([-2.0 * np.dot(y[i:], b[: n - i]) for i in range(1, p)])
        return math.log(square) + math.log(error), 2.0 * tail / square + slope / error

    with np.errstate(over="ignore", invalid="ignore"):
        found = minimize(objective, start[1:] / start[0], jac=True, method="L-BFGS-B").x
    best = np.append(1.0, found)
    return np.asarray(best / np.linalg.norm(best))


def square_root_coefficients(count: int) -> Array:
    """Return the first coefficients of (1 - x)^(-1/2), the square root of A, scaled to norm 1.

    binom(2j, j) / 4^j (Fichtenberger, Henzinger and Upadhyay 2023).

    >>> (square_root_coefficients(3) / square_root_coefficients(3)[0]).round(3).tolist()
    [1.0, 0.5, 0.375]

    Parameters
    ----------
    count : int
        How many.

    Returns
    -------
    array
    """
    total = _validate.integer("count", count, at_least=1, at_most=_MOST_STEPS)
    j = np.arange(1.0, total)
    c = np.append(1.0, np.cumprod(1.0 - 0.5 / j))
    return np.asarray(c / np.linalg.norm(c))


def inverse_square_root_coefficients(count: int) -> Array:
    """Return the first coefficients of (1 - x)^(1/2), the inverse of the square root of A.

    c_j - c_(j-1), the first 1 and all others negative (Kalinin, McKenna, Upadhyay and Lampert
    2025).

    >>> inverse_square_root_coefficients(3).tolist()
    [1.0, -0.5, -0.125]

    Parameters
    ----------
    count : int
        How many.

    Returns
    -------
    array
    """
    total = _validate.integer("count", count, at_least=1, at_most=_MOST_STEPS)
    j = np.arange(1.0, total)
    return np.append(1.0, np.cumprod(1.0 - 1.5 / j))


def _norm(values: Array) -> float:
    return math.sqrt(math.fsum(values * values)) * _PAD


def _solve(c: Array, right: Array) -> Array:
    """Return x with C x = right, by forward substitution, some thousand rows at a time."""
    from scipy.linalg.blas import dtbsv

    p, rows = len(c), max(len(c), 4096)
    x = np.empty(len(right))
    for start in range(0, len(right), rows):
        part = np.array(right[start : start + rows])
        if start and p > 1:
            before = np.convolve(x[start - p + 1 : start], c)[p - 1 : 2 * p - 2]
            part[: p - 1] -= before[: len(part)]
        band = np.repeat(c[: len(part), None], len(part), axis=1)
        x[start : start + rows] = dtbsv(len(band) - 1, band, part, lower=1)
    return x


def _check(
    coefficients: Sequence[float] | Array, steps: int, separation: int, participations: int
) -> tuple[Array, int, int, int]:
    n = _validate.integer("steps", steps, at_least=1, at_most=_MOST_STEPS)
    b = _validate.integer("separation", separation, at_least=1)
    k = _validate.integer("participations", participations, at_least=1)
    c = np.asarray(coefficients, dtype=np.float64)[:n]
    if c.ndim != 1 or not len(c) or not np.all(np.isfinite(c)) or c[0] <= 0:
        raise InvalidValue(
            "coefficients", coefficients, "finite numbers, of which the first is above 0"
        )
    return c, n, b, min(k, -(-n // b))
