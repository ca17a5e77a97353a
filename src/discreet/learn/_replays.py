"""How much of a linear or additive model is noise: the fit is played again, with new noise.

Made-up rows have the released mean and second moments, and targets that the released model would
give them; then moments, whitening and all steps run as the plan says, with fresh noise of the same
size. Differences between replays are due to noise alone. Everything comes from what was released,
so it costs nothing; the rows are normal, which the private ones are not, so it is an estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.learn._exact_descent import GRADIENT_STEPS, RAW_STEPS, LinearPlan, Whitening

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Fewer rows than this for each feature, and the model would fit their targets too well.
_ROWS_PER_FEATURE, _LEAST_ROWS, _MOST_ROWS = 20, 1500, 6000
_REPLAYS = 12


def replay_fit(
    plan: LinearPlan,
    moments: NDArray[np.float64],
    mean: NDArray[np.float64],
    weights: NDArray[np.float64],
    *,
    draw: Callable[[NDArray[np.float64], Any], NDArray[Any]],
    residuals: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[np.float64]],
    whiten: Callable[[NDArray[np.float64], LinearPlan], Whitening],
    replays: int = _REPLAYS,
) -> NDArray[np.float64]:
    """Return the weights of fits that differ by noise alone: replays x features x outputs.

    Parameters
    ----------
    plan
        The plan of the fit.
    moments, mean
        The released second moments and means of its features.
    weights
        The released weights, features x outputs.
    draw
        Makes up targets by scores, with coins of numpy.
    residuals, whiten
        As in the fit.
    replays
        How many.

    """
    coins = np.random.default_rng(0)  # noqa: TID251 - of released numbers only
    values, vectors = np.linalg.eigh(moments - np.outer(mean, mean))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    count = min(max(_ROWS_PER_FEATURE * len(mean), _LEAST_ROWS), _MOST_ROWS)
    rows = (mean + coins.standard_normal((count, len(mean))) @ root.T).astype(np.float32)
    targets = draw(rows @ weights, coins)
    gram = (rows.T @ rows / count).astype(np.float64)
    spread = plan.moment_stddev / RAW_STEPS**2 / plan.rows
    found = []
    for _ in range(replays):
        noise = np.triu(coins.normal(0.0, spread, gram.shape))
        whitening = whiten(gram + noise + np.triu(noise, 1).T, plan)
        turned = rows @ whitening.basis.astype(np.float32)
        mean_weights = _descend(plan, whitening, turned, targets, residuals, coins)
        found.append(whitening.basis @ mean_weights)
    return np.stack(found)


def _descend(
    plan: LinearPlan,
    whitening: Whitening,
    rows: NDArray[np.float64],
    targets: NDArray[Any],
    residuals: Callable[[NDArray[np.float64], NDArray[Any]], NDArray[np.float64]],
    coins: Any,
) -> NDArray[np.float64]:
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    back = np.ascontiguousarray(rows.T)
    weights = np.zeros((rows.shape[1], plan.outputs))
    total = np.zeros_like(weights)
    step = plan.total_step_size / plan.steps * whitening.length**2 / plan.rows
    first = plan.steps // 2
    for number in range(plan.steps):
        rest = residuals((rows @ weights.astype(np.float32)).astype(np.float64), targets)
        lengths = np.sqrt(np.einsum("ij,ij->i", rest, rest)) * norms
        short = (rest / np.maximum(lengths, 1.0)[:, None]).astype(np.float32)
        exact = (back @ short) * (plan.rows / len(rows))
        noise = coins.normal(0.0, plan.gradient_stddev / GRADIENT_STEPS, weights.shape)
        weights = weights - step * (exact + noise)
        if number >= first:
            total += weights
    return total / (plan.steps - first)
