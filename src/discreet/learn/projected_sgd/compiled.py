"""The loop of projected SGD in scalar operations, for compilation by numba.

The same source runs uncompiled, slowly, as a twin. Every sum goes from left to right and no
operation is fused, so that the result equals :mod:`.stepwise` bit for bit. Nothing is drawn
here: records and noise come in blocks from :mod:`discreet.randomness`.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from discreet.learn.projected_sgd.losses import slope_at
from discreet.learn.projected_sgd.projections import BALL, BOX

__all__ = ["compiled_steps", "numba_is_installed", "write_steps"]


def numba_is_installed() -> bool:
    """Whether the extra ``jit`` is there."""
    return importlib.util.find_spec("numba") is not None


def project_in_place(kind: int, theta: Any, first: Any, second: Any, ranked: Any) -> None:
    """Project on the ball of radius first[0], the box, or the simplex of sum first[0]."""
    size = theta.shape[0]
    if kind == BALL:
        square = theta[0] * theta[0]
        for j in range(1, size):
            square += theta[j] * theta[j]
        if square > first[0] * first[0]:
            factor = first[0] / math.sqrt(square)
            for j in range(size):
                theta[j] = theta[j] * factor
    elif kind == BOX:
        for j in range(size):
            theta[j] = min(max(theta[j], first[j]), second[j])
    else:
        ranked[:] = np.sort(theta)
        excess = 0.0
        total = 0.0
        for j in range(size):
            value = ranked[size - 1 - j]
            total = value if j == 0 else total + value
            candidate = (total - first[0]) / (j + 1.0)
            if value >= candidate:
                excess = candidate
        for j in range(size):
            theta[j] = max(theta[j] - excess, 0.0)


def write_steps(slope: Callable[..., Any], project: Callable[..., Any]) -> Callable[..., None]:
    """Return the loop over one block of steps, with the given scalar functions."""

    def run(
        theta: Any,
        mean: Any,
        done: int,
        features: Any,
        targets: Any,
        norms: Any,
        drawn: Any,
        noise: Any,
        pace: float,
        clip_norm: float,
        loss: int,
        threshold: float,
        shape: int,
        first: Any,
        second: Any,
        ranked: Any,
    ) -> None:
        size = theta.shape[0]
        records = float(features.shape[0])
        for t in range(drawn.shape[0]):
            i = drawn[t]
            score = theta[0] * features[i, 0]
            for j in range(1, size):
                score += theta[j] * features[i, j]
            change = slope(loss, threshold, score, targets[i])
            if math.isnan(targets[i]):
                change = 0.0
            length = abs(change) * norms[i]
            if length > clip_norm:
                change = change * (clip_norm / length)
            rate = pace / math.sqrt(done + t + 1.0)
            for j in range(size):
                mean[j] = mean[j] + theta[j]
                theta[j] = theta[j] - rate * (records * (change * features[i, j]) + noise[t, j])
            project(shape, theta, first, second, ranked)

    return run


@lru_cache(maxsize=1)
def compiled_steps() -> Callable[..., None]:
    """Return the compiled loop; the first call of it compiles for some two seconds."""
    import numba

    compile_function: Any = numba.njit(error_model="numpy", nogil=True)
    loop: Callable[..., None] = compile_function(
        write_steps(compile_function(slope_at), compile_function(project_in_place))
    )
    return loop
