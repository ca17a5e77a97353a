"""Signals: one number per record, from log-probabilities and true classes.

Each works on (..., n, classes) with (n,) labels and is computed from logarithms, so that
1 - p keeps its digits where p is all but 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate

if TYPE_CHECKING:
    from numpy.typing import NDArray


# A probability in double precision that is below 1 is at least 2**-53 below it.
RESOLUTION = 53 * float(np.log(2.0))


def loss(log_probabilities: NDArray[np.floating], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the cross-entropy, -log p of the true class; infinite where p is 0."""
    return -_true(log_probabilities, labels)


def confidence(
    log_probabilities: NDArray[np.floating], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return p of the true class."""
    return np.exp(_true(log_probabilities, labels))


def scaled_logit(
    log_probabilities: NDArray[np.floating],
    labels: NDArray[np.int64],
    *,
    limit: float = RESOLUTION,
) -> NDArray[np.float64]:
    """Return log(p / (1 - p)) of the true class, between -limit and limit.

    The sum over the other classes stands for 1 - p, so nothing cancels (Carlini et al. 2022,
    section IV-C). ``limit`` is by default the resolution of a double-precision probability:
    a model that answers exactly 0 or 1 gets a finite value.

    >>> tiny = np.array([[-1e-20, np.log(1e-20)]])
    >>> round(float(scaled_logit(tiny, np.array([0]), limit=100)[0]), 3)  # 20 log 10
    46.052
    """
    bound = _validate.real("limit", limit, above=0)
    array = np.asarray(log_probabilities, dtype=np.float64)
    true = _true(array, labels)
    others = array.copy()
    place = np.broadcast_to(labels[..., None], (*others.shape[:-1], 1))
    np.put_along_axis(others, place, -np.inf, axis=-1)
    top = others.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        rest = np.log(np.exp(others - top).sum(axis=-1)) + top[..., 0]
    with np.errstate(invalid="ignore"):
        value = true - rest
    # Both are -inf only where every class has probability 0, which targets refuse.
    return np.asarray(np.clip(value, -bound, bound))


def _true(
    log_probabilities: NDArray[np.floating], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    array = np.asarray(log_probabilities)
    place = np.broadcast_to(labels[..., None], (*array.shape[:-1], 1))
    return np.take_along_axis(array, place, axis=-1)[..., 0].astype(np.float64)
