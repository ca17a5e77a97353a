"""The loop of projected SGD in numpy, one step after the other.

It is used where numba is not installed and for projections given by the caller, and equals
the compiled loop bit for bit on the same draws. Some ten microseconds a step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from discreet.learn.projected_sgd.losses import LinearLoss, slope_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.learn.projected_sgd.projections import Projection

__all__ = ["run_steps"]


def run_steps(
    theta: NDArray[np.float64],
    mean: NDArray[np.float64],
    done: int,
    features: NDArray[np.float64],
    targets: NDArray[np.float64],
    norms: NDArray[np.float64],
    drawn: NDArray[np.int64],
    noise: NDArray[np.float64],
    *,
    pace: float,
    clip_norm: float,
    loss: LinearLoss,
    projection: Projection,
) -> None:
    """Take one step for each of ``drawn``; ``theta`` and the sum ``mean`` are changed in place."""
    records = float(features.shape[0])
    for t, i in enumerate(drawn.tolist()):
        row, target = features[i], float(targets[i])
        # A cumulative sum goes from left to right; np.dot need not.
        score = float(np.add.accumulate(theta * row)[-1])
        change = slope_at(loss.kind, loss.threshold, score, target)
        if math.isnan(target):
            change = 0.0
        length = abs(change) * float(norms[i])
        if length > clip_norm:
            change = change * (clip_norm / length)
        rate = pace / math.sqrt(done + t + 1.0)
        mean += theta
        theta[:] = projection.project(theta - rate * (records * (change * row) + noise[t]))
