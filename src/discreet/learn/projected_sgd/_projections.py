"""Euclidean projections on convex sets. They act on noisy iterates and cost no privacy.

``reach`` bounds |theta| over the set and ``diameter`` bounds |theta - theta'|; the second goes
into step sizes and excess-risk bounds, the first into the Lipschitz constant of the squared loss.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


BALL, BOX, SIMPLEX = range(3)


class Projection(ABC):
    """A closed, bounded convex set with its projection.

    Reductions are sums from left to right, as in the compiled loop, so that both agree to the
    last bit.
    """

    kind: int | None = None
    """The number by which the compiled loop knows this set; None if it does not."""

    @abstractmethod
    def project(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the point of the set that is nearest to ``point``."""

    @abstractmethod
    def reach(self, dimension: int) -> float:
        """Return an upper bound on the norm of the points of the set."""

    @abstractmethod
    def diameter(self, dimension: int) -> float:
        """Return an upper bound on the distance of two points of the set."""

    def start(self, dimension: int) -> NDArray[np.float64]:
        """Return the point where training starts: the projection of the origin."""
        return self.project(np.zeros(dimension))

    def lowest(self, direction: NDArray[np.float64]) -> float | None:
        """Return the minimum of <direction, theta> over the set, or None if it is not known."""
        return None

    def numbers(self, dimension: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the two arrays of parameters that the compiled loop takes."""
        return np.zeros(dimension), np.zeros(dimension)

    def describe(self) -> dict[str, Any]:
        """Return the set as JSON values."""
        return {"set": type(self).__name__}


@final
@dataclass(frozen=True)
class L2Ball(Projection):
    """{|theta|_2 <= radius}.

    >>> L2Ball(1.0).project(np.array([3.0, 4.0])).tolist()
    [0.6000000000000001, 0.8]
    """

    radius: float = 1.0
    kind = BALL

    def __post_init__(self) -> None:
        _validate.real("radius", self.radius, above=0, at_most=1e100)

    def project(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        square = float(np.add.accumulate(point * point)[-1])
        if square > self.radius * self.radius:
            return np.asarray(point * (self.radius / math.sqrt(square)))
        return point

    def reach(self, dimension: int) -> float:
        return self.radius

    def diameter(self, dimension: int) -> float:
        return 2.0 * self.radius

    def lowest(self, direction: NDArray[np.float64]) -> float | None:
        return -self.radius * float(np.linalg.norm(direction))

    def numbers(self, dimension: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.full(dimension, self.radius), np.zeros(dimension)

    def describe(self) -> dict[str, Any]:
        return {"set": "L2Ball", "radius": self.radius}


@final
@dataclass(frozen=True, eq=False)
class Box(Projection):
    """{lower <= theta <= upper}, coordinate by coordinate; numbers stand for every coordinate."""

    lower: Any = -1.0
    upper: Any = 1.0
    kind = BOX

    def __post_init__(self) -> None:
        try:
            low, high = (np.asarray(end, dtype=np.float64) for end in (self.lower, self.upper))
            proper = bool(np.all(np.isfinite(low)) and np.all(np.isfinite(high)))
            proper = proper and bool(np.all(low < high)) and max(low.ndim, high.ndim) <= 1
        except (TypeError, ValueError):
            proper = False
        if not proper:
            raise InvalidValue("bounds", (self.lower, self.upper), "finite, lower < upper")

    def numbers(self, dimension: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        try:
            low, high = (
                np.broadcast_to(np.asarray(end, dtype=np.float64), (dimension,)).copy()
                for end in (self.lower, self.upper)
            )
        except ValueError:
            expected = f"numbers, or {dimension} of them"
            raise InvalidValue("bounds", (self.lower, self.upper), expected) from None
        return low, high

    def project(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        low, high = self.numbers(point.size)
        return np.asarray(np.minimum(np.maximum(point, low), high))

    def reach(self, dimension: int) -> float:
        low, high = self.numbers(dimension)
        return float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high)))) * (1 + 1e-12)

    def diameter(self, dimension: int) -> float:
        low, high = self.numbers(dimension)
        return float(np.linalg.norm(high - low)) * (1 + 1e-12)

    def lowest(self, direction: NDArray[np.float64]) -> float | None:
        low, high = self.numbers(direction.size)
        return float(np.minimum(direction * low, direction * high).sum())

    def describe(self) -> dict[str, Any]:
        ends = (np.asarray(end).tolist() for end in (self.lower, self.upper))
        return dict(zip(("set", "lower", "upper"), ("Box", *ends), strict=True))


@final
@dataclass(frozen=True)
class Simplex(Projection):
    """{theta >= 0, sum theta = total} (Held, Wolfe and Crowder 1974).

    >>> Simplex().project(np.array([0.8, 0.6, -1.0])).round(12).tolist()
    [0.6, 0.4, 0.0]
    """

    total: float = 1.0
    kind = SIMPLEX

    def __post_init__(self) -> None:
        _validate.real("total", self.total, above=0, at_most=1e100)

    def project(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        ranked = np.sort(point)[::-1]
        ranks = np.arange(1.0, point.size + 1.0)
        excess = (np.add.accumulate(ranked) - self.total) / ranks
        kept = int(np.nonzero(ranked >= excess)[0][-1])
        return np.asarray(np.maximum(point - excess[kept], 0.0))

    def reach(self, dimension: int) -> float:
        return self.total * (1 + 1e-12)

    def diameter(self, dimension: int) -> float:
        return math.sqrt(2.0) * self.total * (1 + 1e-12)

    def lowest(self, direction: NDArray[np.float64]) -> float | None:
        return self.total * float(direction.min())

    def numbers(self, dimension: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.full(dimension, self.total), np.zeros(dimension)

    def describe(self) -> dict[str, Any]:
        return {"set": "Simplex", "total": self.total}


@final
@dataclass(frozen=True)
class GivenProjection(Projection):
    """A projection given by the caller: a function of the point alone, on a set within ``radius``.

    The function must not look at private data. What it returns is held to the declared radius:
    a point outside is an error, which depends on noisy iterates only.
    """

    function: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    radius: float
    name: str = field(default="given")

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidValue("function", self.function, "a function of one array")
        _validate.real("radius", self.radius, above=0, at_most=1e100)

    def project(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        projected = np.array(self.function(point), dtype=np.float64)
        if projected.shape != point.shape:
            raise InvalidValue("function", projected.shape, f"an array of shape {point.shape}")
        norm = float(np.linalg.norm(projected))
        if not norm <= self.radius * (1.0 + 1e-9):
            raise InvalidValue("function", norm, f"a point of norm at most {self.radius:g}")
        return projected

    def reach(self, dimension: int) -> float:
        return self.radius * (1.0 + 1e-9)

    def diameter(self, dimension: int) -> float:
        return 2.0 * self.radius * (1.0 + 1e-9)

    def describe(self) -> dict[str, Any]:
        return {"set": "given", "name": self.name, "radius": self.radius}

    @classmethod
    def without_function(cls, *, name: str, radius: float) -> GivenProjection:
        """Return what is left of a projection on the disk: it can be shown, and not used."""
        return cls(_refuse_unsaved, radius, name)


def _refuse_unsaved(_: NDArray[np.float64]) -> NDArray[np.float64]:
    raise InvalidValue(
        "projection",
        "a function that was not saved with the model",
        "the function once more, to train again: set_params(projection=GivenProjection(...))",
    )
