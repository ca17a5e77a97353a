"""The mean of unit vectors: PrivUnitG (Asi, Feldman and Talwar 2022), on a grid.

For a unit vector v, a normal vector U ~ N(0, I/d) is drawn given that <U, v> is at least g (a cap,
with chance p) or below it. With q = P(<U, v> < g) its density against that of U is p / (1 - q) in
the cap and (1 - p) / q outside, so no two vectors differ by more than

    p / (1 - p) * q / (1 - q) <= e^epsilon,

in every dimension. The coin p is rational and exact. g is rounded down, which lowers q and so
the ratio. The normals are floating-point numbers: that is a listed assumption. The report is U
rounded to a public grid, which is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import NotApplicable
from discreet.local._coins import Coins
from discreet.local._methods import Randomizer
from discreet.local._plans import LocalPlan, LocalServer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.privacy import Loss

_GRID = 1 << 20
_ROOM = 22.0
_CHANCES = 512


def _choose_cap(epsilon: float) -> tuple[Fraction, float, float]:
    """Return p, the threshold g sqrt(d) and the bias m sqrt(d) with the least variance 1 / m^2."""
    best = (Fraction(1, 2), 0.0, 0.0)
    for number in range(_CHANCES // 2, _CHANCES):
        p = Fraction(number, _CHANCES)
        # log(q / (1 - q)) is what p leaves of epsilon; a little is given away to rounding.
        left = epsilon * (1.0 - 1e-9) - math.log(number / (_CHANCES - number)) - 1e-12
        if left <= 0.0:
            break
        threshold = float(special.ndtri(1.0 / (1.0 + math.exp(-left)))) * (1.0 - 1e-9) - 1e-12
        q, beyond = float(special.ndtr(threshold)), float(special.ndtr(-threshold))
        density = math.exp(-threshold * threshold / 2.0) / math.sqrt(2.0 * math.pi)
        bias = density * (float(p) / beyond - float(1 - p) / q)
        if bias > best[2]:
            best = (p, threshold, bias)
    return best


@final
class _CapResponse(Randomizer):
    """A normal vector in the cap around a unit vector, or outside, rounded to the grid."""

    def __init__(self, dimension: int, epsilon: float) -> None:
        self.cells = dimension
        self.payload_bytes = 4 * dimension
        self.chance, self.threshold, self.bias = _choose_cap(epsilon)

    def inputs(self) -> NDArray[np.float64]:
        raise NotApplicable("unit vectors are no finite list; see the density ratio")

    def randomize(self, places: NDArray[np.float64], coins: Coins) -> NDArray[np.uint8]:
        people = len(places)
        in_cap = coins.rational(self.chance, people)
        # Uniform numbers of (0, 1), never an end, for normals by inversion.
        uniform = (coins.uniform(1 << 52, people * (self.cells + 1)) + 0.5) / (1 << 52)
        t = self.threshold
        part = uniform[:people]
        above = -special.ndtri(part * special.ndtr(-t))
        below = special.ndtri(part * special.ndtr(t))
        along = np.where(in_cap, np.maximum(above, t), np.minimum(below, np.nextafter(t, -1.0)))
        normals = special.ndtri(uniform[people:]).reshape(people, self.cells)
        normals += (along - np.sum(normals * places, axis=1))[:, None] * places
        steps = np.rint(normals * (_GRID / math.sqrt(self.cells)))
        return steps.astype("<i4").view(np.uint8).reshape(people, -1)

    def valid(self, payloads: NDArray[np.uint8]) -> NDArray[np.bool_]:
        # sqrt(d) U is at most 12 long along v, as uniform numbers have 52 bits, and longer than
        # sqrt(d) + 9 across it with chance 1e-17. Whoever makes up a report gains by its length.
        steps = np.ascontiguousarray(payloads).view("<i4").astype(np.float64)
        longest = _GRID * (1.0 + _ROOM / math.sqrt(self.cells))
        return np.asarray(np.linalg.norm(steps, axis=1) <= longest)

    def add(self, tally: NDArray[np.int64], payloads: NDArray[np.uint8]) -> None:
        tally += np.ascontiguousarray(payloads).view("<i4").sum(axis=0, dtype=np.int64)


@final
class VectorOracle(LocalPlan):
    """A public plan for the mean of unit vectors, such as directions of gradients.

    A vector is scaled to length 1; what has no direction counts as the first axis.

    :param dimension: the length of the vectors
    :param epsilon: the loss of one report, read exactly, at most 30
    :raises InvalidValue: if an argument is outside its range

    Examples
    --------
    >>> oracle = VectorOracle(3, epsilon=8)
    >>> server = oracle.server()
    >>> server.aggregate(oracle.randomize_each(np.eye(3)[[0, 0, 1]].repeat(500, axis=0)))
    1500
    >>> bool(np.abs(server.estimate().mean - [2 / 3, 1 / 3, 0]).max() < 0.2)
    True
    """

    assumptions = ("the normal numbers of PrivUnitG are drawn in double precision",)
    _most_epsilon = 30
    _method: _CapResponse

    def __init__(self, dimension: int, epsilon: object) -> None:
        super().__init__(epsilon)
        self.dimension = _validate.integer("dimension", dimension, at_least=1, at_most=1 << 20)
        method = _CapResponse(self.dimension, float(self._epsilon))
        cap = [str(method.chance), method.threshold.hex()]
        self._nothing = np.zeros(self.dimension)
        self._settle("PrivUnitG", method, cap=cap, dimension=self.dimension, grid=_GRID)

    def mean_square_error(self, people: int) -> float:
        """Return the expected squared length of the error of the mean, at most.

        It is (E |U|^2 / m^2 - 1) / people, with the mean of the report m v.

        :param people: how many people report
        :raises InvalidValue: if it is not at least 1
        """
        count = _validate.integer("people", people, at_least=1)
        t, p = self._method.threshold, float(self._method.chance)
        density = math.exp(-t * t / 2.0) / math.sqrt(2.0 * math.pi)
        q, beyond = float(special.ndtr(t)), float(special.ndtr(-t))
        # The square of the normal along v, in the cap and outside of it.
        along = p * (1.0 + t * density / beyond) + (1.0 - p) * (1.0 - t * density / q)
        square = (self.dimension - 1 + along) / self.dimension
        return (square * self.dimension / self._method.bias**2 - 1.0) / count

    def _read(self, values: Any) -> NDArray[np.float64]:
        try:
            rows = np.array(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            rows = np.empty(())
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise withheld("values", f"a row of {self.dimension} numbers each")
        rows[~np.isfinite(rows).all(axis=1)] = 0.0
        largest = np.abs(rows).max(axis=1, keepdims=True)
        rows = rows / np.where(largest > 0.0, largest, 1.0)
        rows[(largest == 0.0).ravel(), 0] = 1.0
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    def server(self) -> VectorServer:
        return VectorServer(self)


@final
@dataclass(frozen=True)
class VectorEstimate:
    """An unbiased estimate of a mean vector, and its expected squared error."""

    mean: NDArray[np.float64]
    mean_square_error: float
    people: int
    loss: Loss
    rejected: dict[str, int]


@final
class VectorServer(LocalServer):
    """Adds reports of a :class:`VectorOracle`."""

    _plan: VectorOracle

    def estimate(self) -> VectorEstimate:
        """Return the unbiased estimate of the mean vector, and its expected squared error.

        :raises NotApplicable: if no report was accepted
        """
        people, plan = self._count_people(), self._plan
        mean = self._tally / people * (math.sqrt(plan.dimension) / _GRID / plan._method.bias)
        error = plan.mean_square_error(people)
        return VectorEstimate(mean, error, people, plan.loss, dict(self.rejected))
