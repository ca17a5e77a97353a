"""Measure the excess risk beside its theoretical bound. The result is private.

The minimum of F over the set is computed without privacy by accelerated projected gradient
descent (Beck and Teboulle 2009), and enclosed: any point is an upper bound, and by convexity

    min F >= F(w) + min over v in the set of <grad F(w), v - w>       (Frank and Wolfe 1956).

The hinge loss is replaced by its smooth minorant h, h <= hinge <= h + smoothing/2, whose minimum is
a lower bound as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.learn.projected_sgd._losses import (
    HINGE,
    HUBER,
    LOGISTIC,
    SQUARED_HINGE,
    LinearLoss,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.learn.projected_sgd._projections import Projection


_SMOOTHING = 1e-3
_MOST_ITERATIONS = 5000
_CLOSE = 1e-7


@final
@dataclass(frozen=True)
class ExcessRisk:
    """The excess of the sum of losses of a model over the minimum. PRIVATE: not for release.

    It was computed from the records without noise. Show it for public data, or pay for it with a
    mechanism. ``lower`` and ``upper`` enclose the excess; ``upper`` is None if the set is
    given by a function, whose minimum cannot be certified. ``bound`` is what theory promises
    for the expectation, None under clipping.
    """

    lower: float
    upper: float | None
    bound: float | None
    records: int
    private: bool = True

    def __str__(self) -> str:
        most = "?" if self.upper is None else f"{self.upper:.4g}"
        bound = "none under clipping" if self.bound is None else f"{self.bound:.4g}"
        return (
            f"excess risk (sum over {self.records} records) in [{self.lower:.4g}, {most}], "
            f"bound on its mean: {bound}; computed without privacy, not for release"
        )


def excess_risk_without_privacy(
    theta: NDArray[np.float64],
    features: NDArray[np.float64],
    targets: NDArray[np.float64],
    *,
    loss: LinearLoss,
    projection: Projection,
    bound: float | None = None,
) -> ExcessRisk:
    """Measure F(theta) - min F on the records as training saw them; the result is private."""
    counted = ~np.isnan(targets)
    rows, goals = features[counted], targets[counted]
    if goals.size == 0:
        return ExcessRisk(0.0, 0.0, bound, 0)
    point, low = _minimise(rows, goals, loss, projection)
    here = _risk(theta, rows, goals, loss)
    high = min(_risk(point, rows, goals, loss), here)
    upper = None if low is None else max(0.0, here - low)
    return ExcessRisk(max(0.0, here - high), upper, bound, int(goals.size))


def _risk(
    theta: NDArray[np.float64],
    rows: NDArray[np.float64],
    goals: NDArray[np.float64],
    loss: LinearLoss,
) -> float:
    return float(loss.values(rows @ theta, goals).sum())


def _smooth(
    scores: NDArray[np.float64], goals: NDArray[np.float64], loss: LinearLoss
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and slopes of the loss, or of the smooth minorant of the hinge."""
    if loss.kind == HINGE:
        lack = 1.0 - goals * scores
        near = np.clip(lack, 0.0, _SMOOTHING)
        return near * (lack - 0.5 * near) / _SMOOTHING, -goals * near / _SMOOTHING
    if loss.kind == LOGISTIC:
        half = np.tanh(0.5 * goals * scores)
        return loss.values(scores, goals), -0.5 * goals * (1.0 - half)
    if loss.kind == SQUARED_HINGE:
        return loss.values(scores, goals), -goals * np.maximum(0.0, 1.0 - goals * scores)
    residual = scores - goals
    if loss.kind == HUBER:
        residual = np.clip(residual, -loss.threshold, loss.threshold)
    return loss.values(scores, goals), residual


def _minimise(
    rows: NDArray[np.float64],
    goals: NDArray[np.float64],
    loss: LinearLoss,
    projection: Projection,
) -> tuple[NDArray[np.float64], float | None]:
    """A nearly minimal point, and a lower bound on the minimum where the set has one."""
    curvature = {LOGISTIC: 0.25, HINGE: 1.0 / _SMOOTHING}.get(loss.kind, 1.0)
    steepness = max(curvature * float(np.linalg.norm(rows, 2)) ** 2, 1e-300)
    point = projection.start(rows.shape[1])
    ahead, momentum, best = point.copy(), 1.0, None
    for iteration in range(_MOST_ITERATIONS):
        _, slopes = _smooth(rows @ ahead, goals, loss)
        moved = projection.project(ahead - rows.T @ slopes / steepness)
        after = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        if float((ahead - moved) @ (moved - point)) > 0.0:  # overshot: start the momentum anew
            after = 1.0
        ahead = moved + (momentum - 1.0) / after * (moved - point)
        point, momentum = moved, float(after)
        if iteration % 20 == 19 or iteration == _MOST_ITERATIONS - 1:
            values, slopes = _smooth(rows @ point, goals, loss)
            gradient = rows.T @ slopes
            lowest = projection.lowest(gradient)
            if lowest is None:
                continue
            low = float(values.sum()) + lowest - float(gradient @ point)
            best = low if best is None else max(best, low)
            if float(values.sum()) - best <= _CLOSE * goals.size:
                break
    return point, best
