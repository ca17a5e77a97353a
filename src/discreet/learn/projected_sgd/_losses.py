"""Losses of a linear model, l(theta; x, y) = phi(<theta, x>, y), with their constants.

The gradient is phi'(s, y) x, so a loss is Lipschitz in theta with constant

    L = sup |phi'| * sup |x|_2,

where the first factor is ``slope_bound``. For logistic, hinge and Huber it holds for all theta; the
squared losses are Lipschitz only on a bounded set, with |<theta, x> - y| <= radius |x| + |y|.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


LOGISTIC, HINGE, HUBER, SQUARED, SQUARED_HINGE = range(5)


def slope_at(kind: int, threshold: float, score: float, target: float) -> float:
    """Return phi'(score, target), in operations that compiled and plain Python round alike."""
    if kind == LOGISTIC:
        margin = target * score
        if margin >= 0.0:
            small = math.exp(-margin)
            return -target * (small / (1.0 + small))
        return -target * (1.0 / (1.0 + math.exp(margin)))
    if kind == HINGE:
        return -target if target * score < 1.0 else 0.0
    if kind == SQUARED_HINGE:
        margin = target * score
        return -target * (1.0 - margin) if margin < 1.0 else 0.0
    residual = score - target
    if kind == HUBER:
        return min(max(residual, -threshold), threshold)
    return residual


class LinearLoss(ABC):
    """Abstract base: a convex function of the score and the target."""

    name: ClassVar[str]
    kind: ClassVar[int]
    for_classes: ClassVar[bool]
    threshold: float = 0.0

    def slope(self, score: float, target: float) -> float:
        """The derivative by the score (a subgradient where there is a corner)."""
        return slope_at(self.kind, self.threshold, float(score), float(target))

    @abstractmethod
    def values(
        self, scores: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The loss of each record."""

    @abstractmethod
    def slope_bound(self, *, score_bound: float, target_bound: float) -> float:
        """An upper bound on |phi'| for scores and targets of at most these sizes."""


@final
@dataclass(frozen=True)
class Logistic(LinearLoss):
    """ln(1 + exp(-y s)), y = -1 or 1; the slope is at most 1.

    >>> Logistic().slope_bound(score_bound=5.0, target_bound=1.0)
    1.0
    """

    name: ClassVar[str] = "logistic"
    kind: ClassVar[int] = LOGISTIC
    for_classes: ClassVar[bool] = True

    def values(
        self, scores: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return np.logaddexp(0.0, -targets * scores)

    def slope_bound(self, *, score_bound: float, target_bound: float) -> float:
        return target_bound


@final
@dataclass(frozen=True)
class Hinge(LinearLoss):
    """max(0, 1 - y s), y = -1 or 1; the slope is at most 1."""

    name: ClassVar[str] = "hinge"
    kind: ClassVar[int] = HINGE
    for_classes: ClassVar[bool] = True

    def values(
        self, scores: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return np.asarray(np.maximum(0.0, 1.0 - targets * scores))

    def slope_bound(self, *, score_bound: float, target_bound: float) -> float:
        return target_bound


@final
@dataclass(frozen=True)
class Huber(LinearLoss):
    """r^2/2 for |r| <= threshold, and threshold (|r| - threshold/2) beyond, r = s - y.

    >>> Huber(threshold=0.5).slope(3.0, 1.0)
    0.5
    """

    name: ClassVar[str] = "huber"
    kind: ClassVar[int] = HUBER
    for_classes: ClassVar[bool] = False
    threshold: float = 1.0

    def __post_init__(self) -> None:
        _validate.real("threshold", self.threshold, above=0)

    def values(
        self, scores: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        size = np.abs(scores - targets)
        near = np.minimum(size, self.threshold)
        return np.asarray(near * (size - 0.5 * near))

    def slope_bound(self, *, score_bound: float, target_bound: float) -> float:
        return min(self.threshold, score_bound + target_bound)


@final
@dataclass(frozen=True)
class Squared(LinearLoss):
    """(s - y)^2 / 2; Lipschitz only where scores and targets are bounded.

    >>> Squared().slope_bound(score_bound=2.0, target_bound=1.0)
    3.0
    """

    name: ClassVar[str] = "squared"
    kind: ClassVar[int] = SQUARED
    for_classes: ClassVar[bool] = False

    def values(
        self, scores: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return np.asarray(0.5 * (scores - targets) ** 2)

    def slope_bound(self, *, score_bound: float, target_bound: float) -> float:
        return _require_finite(score_bound + target_bound)


@final
@dataclass(frozen=True)
class SquaredHinge(LinearLoss):
    """max(0, 1 - y s)^2 / 2, y = -1 or 1; Lipschitz only where scores are bounded.

    >>> SquaredHinge().slope_bound(score_bound=2.0, target_bound=1.0)
    3.0
    """

    name: ClassVar[str] = "squared_hinge"
    kind: ClassVar[int] = SQUARED_HINGE
    for_classes: ClassVar[bool] = True

    def values(
        self, scores: NDArray[np.float64], targets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        return np.asarray(0.5 * np.maximum(0.0, 1.0 - targets * scores) ** 2)

    def slope_bound(self, *, score_bound: float, target_bound: float) -> float:
        return _require_finite(target_bound * (1.0 + target_bound * score_bound))


def _require_finite(slope: float) -> float:
    if not math.isfinite(slope):
        raise InvalidValue(
            "projection",
            "unbounded",
            "a bounded set for a squared loss (it is not Lipschitz elsewhere), or clip_norm",
        )
    return slope
