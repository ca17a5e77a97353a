"""Private gradient descent for linear models: integer rows, exact sums, exact noise.

**The grid.** Floating-point sums round, and how they round depends on all records and on their
order: the sum that one record changes by at most C may change by a little more. Here every number
that enters a sum over records is an integer below 2**53 together with all partial sums, which
double precision then represents exactly. What is left is a function of one record alone. A *raw
row* is (x, 1) in steps of 2**-12, with every |x_j| <= 1 and |x| <= norm. A *whitened row* is a
public linear image of it in steps of 2**-16, shortened to norm 16 where it is longer.

**The descent.** A whitened row v and its residual r (a number for each output) have the gradient
v r', whose length is |v| |r|: clipping scales the residual. With integer rows and residuals the sum
over records is exact, changes by at most one clipped gradient when one record comes or goes, and
gets discrete Gaussian noise from the operating system; no rounding is left outside the proof.

All rows take part in every step. Sampling would save arithmetic but not privacy: at the same total
budget and total step size the noise of the result is least without it, and one step on a million
rows is two products of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.learn._linear_plan import (
    GRADIENT_STEPS,
    RAW_STEPS,
    RESIDUAL_STEPS,
    WHITENED_STEPS,
    LinearPlan,
)
from discreet.mechanisms import gaussian_integers
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

Residuals = Callable[["NDArray[np.float64]", int, int], "NDArray[np.float64]"]
"""From the scores of the rows start..stop (rows x outputs) to their residuals, row by row."""

LONGEST_WHITENED = 16
BLOCK_ROWS, BLOCK_CELLS = 1 << 12, 1 << 22
# Shortening multiplies by a rounded factor; this much is left for the rounding.
_SHORTER = 1.0 - 2.0**-40
# A product of a raw row and a column stays below 2**52 in absolute value, term by term.
_PRODUCT = 2.0**52
_WEIGHT_STEPS = 1 << 20
_LONGEST_WEIGHTS = 1024.0
_OUTPUT_STEPS = float(1 << 20)
_LARGEST = 1 << 62
_RAW_SQUARED = RAW_STEPS**2


def raw_rows(
    features: NDArray[Any],
    *,
    norm: float,
    scale: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> NDArray[np.float32]:
    """Return rows in [-1, 1]^d as integers, shortened to ``norm``, with the constant appended.

    ``scale`` takes rows of the features, block by block, to [-1, 1]^d.

    >>> raw_rows(np.array([[0.5, -1.0], [1.0, 1.0]]), norm=1.2).tolist()
    [[2048.0, -4096.0, 4096.0], [3475.0, 3475.0, 4096.0]]
    """
    count, width = features.shape
    result = np.empty((count, width + 1), dtype=np.float32)
    result[:, width] = RAW_STEPS
    most = norm * RAW_STEPS
    for start, stop in blocks(count, width):
        part = features[start:stop].astype(np.float64)
        steps = np.rint((part if scale is None else scale(part)) * RAW_STEPS)
        result[start:stop, :width] = _shortened(steps, most)
    return result


def whitened_rows(rows: NDArray[np.float32], basis: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the whitened rows ``row @ basis`` for raw rows; ``basis`` is public.

    A basis of one dimension is a diagonal. The basis is rounded to a grid on which every product
    is exact, so that a whitened row does not depend on where its row stood in a matrix.
    """
    diagonal = basis.ndim == 1
    lengths = np.abs(basis) if diagonal else np.sqrt(np.einsum("ij,ij->j", basis, basis))
    longest = float(lengths.max())
    reach = RAW_STEPS * math.sqrt(rows.shape[1]) * max(longest, 1e-300)
    shift = math.floor(math.log2(_PRODUCT / reach)) - 1
    grid = np.rint(np.ldexp(basis, shift))
    result = np.empty((rows.shape[0], grid.shape[-1]), dtype=np.float32)
    scale = math.ldexp(WHITENED_STEPS / RAW_STEPS, -shift)
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        steps = np.rint((part * grid if diagonal else part @ grid) * scale)
        result[start:stop] = _shortened(steps, float(LONGEST_WHITENED * WHITENED_STEPS))
    return result


def exact_gram(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the sum of outer products of raw rows, exactly."""
    total = np.zeros((rows.shape[1], rows.shape[1]), dtype=np.int64)
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        total += (part.T @ part).astype(np.int64)
    return total


def blocks(count: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of blocks of rows whose sums double precision holds exactly.

    Wide rows come in smaller blocks: copies of them in double precision stay below 32 MB, or
    one row. The sums are exact, so nothing depends on where the bounds are.
    """
    size = min(BLOCK_ROWS, max(1, BLOCK_CELLS // width))
    for start in range(0, count, size):
        yield start, min(start + size, count)


def _shortened(steps: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Cut rows of integers to a length; cutting rounds towards zero, so no row gets longer."""
    norms = np.sqrt(np.einsum("ij,ij->i", steps, steps))
    long = norms > most
    if long.any():
        steps[long] = np.trunc(steps[long] * (most * _SHORTER / norms[long])[:, None])
    return steps


@final
@dataclass(frozen=True, eq=False)
class Whitening:
    """A public basis in which rows have an expected length of 1 / ``clip_ratio``.

    ``length`` is the clipping norm in the units of the features. A basis of one dimension is a
    diagonal: wide rows are only scaled, and a square matrix of their width would not fit.
    """

    basis: NDArray[np.float64]
    length: float


@final
@dataclass(frozen=True, eq=False)
class LinearRelease:
    """What a run releases: weights for (x, 1), the clipping norm, and the noisy moments of (x, 1).

    All of it is covered by the loss of the plan.
    """

    weights: NDArray[np.float64]
    clip_norm: float
    moments: NDArray[np.float64] | None


def noisy_moments(
    rows: NDArray[np.float32], plan: LinearPlan, source: Source
) -> NDArray[np.float64]:
    """Release the matrix of second moments of raw rows, divided by the declared rows."""
    width = rows.shape[1]
    above = np.triu_indices(width)
    exact = np.clip(exact_gram(rows)[above], -_LARGEST, _LARGEST)
    noisy = gaussian_integers(
        exact,
        sensitivity=Fraction(plan.moment_shift),
        stddev=plan.moment_stddev,
        relation=plan.relation,
        source=source,
    ).value
    matrix = np.zeros((width, width))
    matrix[above] = noisy
    matrix += np.triu(matrix, 1).T
    return np.asarray(matrix / (float(plan.rows) * _RAW_SQUARED))


def whitening_matrix(moments: NDArray[np.float64] | None, plan: LinearPlan) -> Whitening:
    """Return the root of the inverse of noisy moments, plus a ridge as large as the noise.

    Without moments the features are only scaled to length one.
    """
    width = plan.features + 1
    if moments is None:
        length = plan.clip_ratio * math.sqrt(plan.norm**2 + 1.0)
        return Whitening(np.full(width, 1.0 / length), plan.clip_ratio)
    values, vectors = np.linalg.eigh(moments)
    spread = plan.moment_stddev / _RAW_SQUARED / plan.rows
    ridge = plan.ridge * spread * math.sqrt(width) + 1e-9
    kept = np.maximum(values, 0.0)
    length = plan.clip_ratio * math.sqrt(max(float(np.sum(kept / (kept + ridge))), 1.0))
    return Whitening(vectors / np.sqrt(kept + ridge) / length, length)


def clipped_gradient(
    rows: NDArray[np.float32],
    weights: NDArray[np.float64],
    residuals: Residuals,
    *,
    norms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return the exact sum of clipped gradients, in steps; ``norms`` are those of the rows."""
    total = np.zeros(weights.shape, dtype=np.int64)
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        scores = (part @ weights) * (1.0 / (WHITENED_STEPS * _WEIGHT_STEPS))
        rest = residuals(scores, start, stop)
        if rest.shape[1] > 1:
            # On a grid the squares add up exactly, in whatever order a processor takes them.
            rest = np.rint(rest * _OUTPUT_STEPS) / _OUTPUT_STEPS
        lengths = np.sqrt(np.einsum("ij,ij->i", rest, rest)) * norms[start:stop]
        factors = RESIDUAL_STEPS * _SHORTER / np.maximum(lengths, 1.0)
        # Rounding towards zero makes no residual longer.
        steps = np.trunc(rest * factors[:, None])
        total += (part.T @ steps).astype(np.int64)
    return total


def descend(
    rows: NDArray[np.float32],
    residuals: Residuals,
    plan: LinearPlan,
    source: Source,
    *,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> LinearRelease:
    """Run the plan on raw rows; the weights are the mean over the second half of the steps."""
    moments = noisy_moments(rows, plan, source) if plan.moment_share else None
    whitening = whitening_matrix(moments, plan)
    whitened = whitened_rows(rows, whitening.basis)
    norms = _norms(whitened)
    weights = np.zeros((whitened.shape[1], plan.outputs))
    total = np.zeros_like(weights)
    step = plan.total_step_size / plan.steps * whitening.length**2 / plan.rows / GRADIENT_STEPS
    if plan.moment_share == 0.0:
        step *= 1.0 + plan.norm**2
    kept = 0
    for number in track(range(plan.steps)):
        exact = clipped_gradient(whitened, weights, residuals, norms=norms)
        noisy = gaussian_integers(
            np.clip(exact, -_LARGEST, _LARGEST),
            sensitivity=Fraction(plan.gradient_shift),
            stddev=plan.gradient_stddev,
            relation=plan.relation,
            source=source,
        ).value
        weights = _on_grid(weights - step * _WEIGHT_STEPS * noisy)
        if number >= plan.steps // 2:
            total += weights
            kept += 1
    mean = total / (kept * float(_WEIGHT_STEPS))
    basis = whitening.basis
    weights = basis[:, None] * mean if basis.ndim == 1 else basis @ mean
    return LinearRelease(weights, whitening.length, moments)


def _norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    norms = np.empty(rows.shape[0])
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        norms[start:stop] = np.sqrt(np.einsum("ij,ij->i", part, part)) / WHITENED_STEPS
    return norms


def _on_grid(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Round weights to integers and bound their length, so that scores are exact."""
    lengths = np.sqrt(np.einsum("ij,ij->j", weights, weights)) / _WEIGHT_STEPS
    return np.asarray(np.rint(weights / np.maximum(lengths / _LONGEST_WEIGHTS, 1.0)))
