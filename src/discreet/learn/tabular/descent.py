"""Private gradient descent for linear models: exact sums, exact noise, every row in every step.

A row v of the turned features and its residual r (a number for each output) have the gradient
v r', whose length is |v| |r|: clipping scales the residual. With integer rows and residuals the sum
over records is exact, changes by at most one clipped gradient when one record comes or goes, and
gets discrete Gaussian noise from the operating system; no rounding is left outside the proof.

All rows take part in every step. Sampling would save arithmetic but not privacy: at the same total
budget and pace the noise of the result is least without it, and one step on a million rows is two
products of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.learn.tabular.grid import (
    RAW_STEPS,
    TURNED_STEPS,
    blocks,
    exact_gram,
    turned_rows,
)
from discreet.learn.tabular.plan import GRADIENT_STEPS, RESIDUAL_STEPS, LinearPlan
from discreet.mechanisms import gaussian_integers
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Descended",
    "Residuals",
    "Turning",
    "clipped_gradient",
    "descend",
    "noisy_moments",
    "turning_basis",
]

Residuals = Callable[["NDArray[np.float64]", int, int], "NDArray[np.float64]"]
"""From the scores of the rows start..stop (rows x outputs) to their residuals, row by row."""

_WEIGHT_STEPS = 1 << 20
_LONGEST_WEIGHTS = 1024.0
_OUTPUT_STEPS = float(1 << 20)
# Room for rounding in the factor that shortens a residual.
_SHORTER = 1.0 - 2.0**-40
_LARGEST = 1 << 62
_RAW_SQUARED = RAW_STEPS**2


@final
@dataclass(frozen=True, eq=False)
class Turning:
    """A public basis in which rows have an expected length of 1 / ``clip_ratio``.

    ``length`` is the clipping norm in the units of the features. A basis of one dimension is a
    diagonal: wide rows are only scaled, and a square matrix of their width would not fit.
    """

    basis: NDArray[np.float64]
    length: float


@final
@dataclass(frozen=True, eq=False)
class Descended:
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


def turning_basis(moments: NDArray[np.float64] | None, plan: LinearPlan) -> Turning:
    """Turn features by the root of the inverse of noisy moments plus a ridge as large as the noise.

    Without moments the features are only scaled to length one.
    """
    width = plan.features + 1
    if moments is None:
        length = plan.clip_ratio * math.sqrt(plan.norm**2 + 1.0)
        return Turning(np.full(width, 1.0 / length), plan.clip_ratio)
    values, vectors = np.linalg.eigh(moments)
    spread = plan.moment_stddev / _RAW_SQUARED / plan.rows
    ridge = plan.ridge * spread * math.sqrt(width) + 1e-9
    kept = np.maximum(values, 0.0)
    length = plan.clip_ratio * math.sqrt(max(float(np.sum(kept / (kept + ridge))), 1.0))
    return Turning(vectors / np.sqrt(kept + ridge) / length, length)


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
        scores = (part @ weights) * (1.0 / (TURNED_STEPS * _WEIGHT_STEPS))
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
) -> Descended:
    """Run the plan on raw rows; the weights are the mean over the second half of the steps."""
    moments = noisy_moments(rows, plan, source) if plan.moment_share else None
    turning = turning_basis(moments, plan)
    turned = turned_rows(rows, turning.basis)
    norms = _norms(turned)
    weights = np.zeros((turned.shape[1], plan.outputs))
    total = np.zeros_like(weights)
    step = plan.pace / plan.steps * turning.length**2 / plan.rows / GRADIENT_STEPS
    if plan.moment_share == 0.0:
        step *= 1.0 + plan.norm**2
    kept = 0
    for number in track(range(plan.steps)):
        exact = clipped_gradient(turned, weights, residuals, norms=norms)
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
    basis = turning.basis
    weights = basis[:, None] * mean if basis.ndim == 1 else basis @ mean
    return Descended(weights, turning.length, moments)


def _norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    norms = np.empty(rows.shape[0])
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        norms[start:stop] = np.sqrt(np.einsum("ij,ij->i", part, part)) / TURNED_STEPS
    return norms


def _on_grid(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Round weights to integers and bound their length, so that scores are exact."""
    lengths = np.sqrt(np.einsum("ij,ij->j", weights, weights)) / _WEIGHT_STEPS
    return np.asarray(np.rint(weights / np.maximum(lengths / _LONGEST_WEIGHTS, 1.0)))
