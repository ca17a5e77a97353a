"""The data-dependent divergence of a query as a function of one or two counted numbers (S25).

A histogram enters the bounds of :mod:`discreet.pate.divergences` through numbers that one moved
vote changes by at most one:

*The effective gap.* For Gaussian noise let U be the tail of the difference of two noises and
q = sum over j of U(g_j), the union bound on another label than the winner. The gap g with
(classes - 1) U(g) = q, halved, is the number t. If every g_j falls by at most 2, q rises to at
most the sum of h(U(g_j)), h(u) = U(U^-1(u) - 2), and h is concave, so by Jensen's
inequality to at most (classes - 1) U(g - 2): t falls by at most 1. The winner is the class for
which q is least, and a least one of several numbers that change by at most one does so too.
For Laplace noise h(u) <= e^(2/scale) u, and t = -(scale / 2) log q.

*The largest count* (of votes, or of votes above the student's expectation) is an integer.

Both are rounded down, t to a fraction of one that is fixed beforehand; rounded down, t
gives a valid bound since it only claims less, and neighbours still differ by at most one (one
cell more is allowed for, in case a rounding error meets a boundary). So the divergence is a
surface over a grid of cells, and a neighbour is never further than the adjacent cells. That makes
its smooth sensitivity a matter of looking at a table.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.pate.aggregator import Aggregator
from discreet.pate.confident import ConfidentGNMax, InteractiveGNMax, SelectiveGNMax, baseline_of
from discreet.pate.divergences import (
    gaussian_label,
    laplace_label,
    selection_and_label,
    threshold_chances,
)
from discreet.pate.gaussian_max import GNMax
from discreet.pate.laplace_max import LaplaceMax
from discreet.pate.noise import STEPS, gaussian_difference_log_tail, laplace_difference_log_tail
from discreet.pate.votes import read_histograms
from discreet.privacy import GDP, Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Places = NDArray[np.int64]

__all__ = ["Cells", "Surface", "surface_of"]

RESOLUTION = 8
"""Cells for one unit of the number t."""


@final
class Cells(NamedTuple):
    """The distinct cells of a table of queries, and how many queries are in each."""

    rows: Places
    columns: Places
    counts: Places


class Surface(ABC):
    """Divergences of one aggregator over its cells; ``rows`` count votes, ``columns`` are t."""

    def __init__(self, aggregator: Aggregator, *, resolution: int, one_sided: bool) -> None:
        self.aggregator = aggregator
        self.classes, self.teachers = aggregator.classes, aggregator.teachers
        self.resolution = _validate.integer("resolution", resolution, at_least=1, at_most=64)
        self.one_sided = one_sided
        self.rows = 1

    @property
    @abstractmethod
    def columns(self) -> int:
        """How many cells the number t has."""

    @property
    def reach(self) -> tuple[int, int]:
        """How far, in cells, a neighbour can be."""
        return (1 if self.rows > 1 else 0, self.resolution + 1)

    @abstractmethod
    def cells(self, votes: Any, predictions: Any) -> Cells:
        """Read a table of votes; private."""

    @abstractmethod
    def values(self, rows: Places, columns: Places, orders: Array) -> Array:
        """The divergence of one query in each of the cells, at each order."""

    @property
    @abstractmethod
    def independent(self) -> Loss:
        """The data-independent loss of one query, answered."""

    def table(self, order: float) -> Array:
        """The divergences of all cells at one order."""
        places = np.arange(self.rows * self.columns, dtype=np.int64)
        rows, columns = places // self.columns, places % self.columns
        return self.values(rows, columns, np.array([order])).reshape(self.rows, self.columns)


class _LabelSurface(Surface):
    """A surface over t alone."""

    _lowest: int
    _highest: int

    def __init__(self, aggregator: Aggregator, *, resolution: int, one_sided: bool) -> None:
        super().__init__(aggregator, resolution=resolution, one_sided=one_sided)
        most = self._numbers(self._tails(np.array([float(self.teachers)])), self.classes - 1)
        least = self._numbers(self._tails(np.array([0.0])), self.classes - 1)
        self._lowest = math.floor(float(least[0])) - 1
        self._highest = math.ceil(float(most[0])) + 1

    @abstractmethod
    def _tails(self, gaps: Array) -> Array:
        """log P(one class overtakes the winner) for its gap, from above."""

    @abstractmethod
    def _numbers(self, log_q: Array, times: int = 1) -> Array:
        """The numbers t for union bounds ``times`` e^log_q."""

    @abstractmethod
    def _log_q(self, numbers: Array) -> Array:
        """The union bound that belongs to a number t."""

    @property
    def columns(self) -> int:
        return (self._highest - self._lowest) * self.resolution + 1

    def cells(self, votes: Any, predictions: Any) -> Cells:
        if predictions is not None:
            raise InvalidValue("predictions", "given", "None: this aggregator does not look")
        columns = self.places(read_histograms(votes, classes=self.classes, teachers=self.teachers))
        found, counts = np.unique(columns, return_counts=True)
        return Cells(np.zeros_like(found), found, counts)

    def places(self, table: Places) -> Places:
        """The column of every histogram."""
        winners = np.argmax(table, axis=1)
        gaps = table[np.arange(len(table)), winners][:, None] - table
        known = self._tails(np.arange(self.teachers + 1, dtype=np.float64))[gaps]
        known[np.arange(len(table)), winners] = -np.inf
        numbers = self._numbers(special.logsumexp(known, axis=1))
        cells = np.floor((numbers - 1e-9 - self._lowest) * self.resolution).astype(np.int64)
        return np.clip(cells, 0, self.columns - 1)

    def numbers_at(self, columns: Places) -> Array:
        """The numbers t at the lower edges of columns."""
        return columns / self.resolution + self._lowest

    def log_chances(self, columns: Places) -> tuple[Array, Array]:
        """Bounds on log q on the data and on its neighbours."""
        numbers = self.numbers_at(columns)
        return self._log_q(numbers), self._log_q(numbers - 1.0)


@final
class _LaplaceSurface(_LabelSurface):
    def __init__(self, aggregator: LaplaceMax, *, resolution: int, one_sided: bool) -> None:
        self._scale = aggregator.noise
        self._loss = aggregator.costs.query
        super().__init__(aggregator, resolution=resolution, one_sided=one_sided)

    def _tails(self, gaps: Array) -> Array:
        return laplace_difference_log_tail(gaps, scale=self._scale)

    def _numbers(self, log_q: Array, times: int = 1) -> Array:
        return -(float(self._scale) / 2.0) * (log_q + math.log(times))

    def _log_q(self, numbers: Array) -> Array:
        return -2.0 * numbers / float(self._scale) * (1.0 - 1e-13) + 1e-13

    @property
    def independent(self) -> Loss:
        return self._loss

    def values(self, rows: Places, columns: Places, orders: Array) -> Array:
        here, near = self.log_chances(columns)
        return laplace_label(
            here,
            near,
            pure_epsilon=float(2 / self._scale) * (1.0 + 1e-15),
            independent=self._loss.rdp(orders),
            orders=orders,
            one_sided=self.one_sided,
        )


@final
class _GaussianSurface(_LabelSurface):
    def __init__(
        self,
        aggregator: Aggregator,
        noise: Fraction,
        loss: Loss,
        *,
        resolution: int,
        one_sided: bool,
    ) -> None:
        self._noise = noise
        self._loss = loss
        self._rho = float(loss.mu) ** 2 / 2.0 * (1.0 + 1e-15) if isinstance(loss, GDP) else math.inf
        super().__init__(aggregator, resolution=resolution, one_sided=one_sided)

    def _tails(self, gaps: Array) -> Array:
        return gaussian_difference_log_tail(gaps, noise=self._noise)

    def _numbers(self, log_q: Array, times: int = 1) -> Array:
        others = math.log(self.classes - 1)
        return _inverse(
            lambda gap: self._tails(gap) + others, log_q + math.log(times), float(self.teachers)
        )

    def _log_q(self, numbers: Array) -> Array:
        return self._tails(2.0 * numbers) + math.log(self.classes - 1)

    @property
    def independent(self) -> Loss:
        return self._loss

    def values(self, rows: Places, columns: Places, orders: Array) -> Array:
        here, near = self.log_chances(columns)
        return gaussian_label(here, near, rho=self._rho, orders=orders, one_sided=self.one_sided)


@final
class _SelectiveSurface(Surface):
    """Rows are the largest count, columns those of the label's surface."""

    def __init__(self, aggregator: SelectiveGNMax, *, resolution: int, one_sided: bool) -> None:
        super().__init__(aggregator, resolution=resolution, one_sided=one_sided)
        costs = aggregator.costs
        self._test = costs.query
        self._answer = costs.query if costs.answer is None else costs.answer
        self._label = _GaussianSurface(
            aggregator,
            aggregator.noises[1],
            self._answer,
            resolution=resolution,
            one_sided=one_sided,
        )
        # Rounded expectations need not add up: they are off by at most half a vote a class.
        self._lowest = -aggregator.classes if isinstance(aggregator, InteractiveGNMax) else 0
        self.rows = self.teachers - self._lowest + 1
        distances = float(aggregator.level) - np.arange(
            self._lowest - 1, self.teachers + 2, dtype=np.float64
        )
        self._chances = threshold_chances(
            distances, noise=float(aggregator.noises[0]), step=1.0 / STEPS
        )

    @property
    def columns(self) -> int:
        return self._label.columns

    @property
    def independent(self) -> Loss:
        return self._test + self._answer

    def cells(self, votes: Any, predictions: Any) -> Cells:
        table = read_histograms(votes, classes=self.classes, teachers=self.teachers)
        largest = table.max(axis=1)
        if isinstance(self.aggregator, InteractiveGNMax):
            largest = (table - self._expected(predictions, len(table))).max(axis=1)
        elif predictions is not None:
            raise InvalidValue("predictions", "given", "None: this aggregator does not look")
        rows = np.clip(largest - self._lowest, 0, self.rows - 1)
        places = rows * self.columns + self._label.places(table)
        found, counts = np.unique(places, return_counts=True)
        return Cells(found // self.columns, found % self.columns, counts)

    def _expected(self, predictions: Any, queries: int) -> Places:
        if predictions is None or len(predictions) != queries:
            raise InvalidValue("predictions", "withheld", f"{queries} rows, one for each query")
        read = [
            baseline_of(row, classes=self.classes, teachers=self.teachers)[1] for row in predictions
        ]
        return np.stack(read)

    def values(self, rows: Places, columns: Places, orders: Array) -> Array:
        label = self._label.values(rows, columns, orders)
        here, below, above = (
            tuple(chance[rows + shift] for chance in self._chances) for shift in (1, 0, 2)
        )
        return selection_and_label(
            here,
            [here, below, above],
            label,
            orders=orders,
            independent=self.independent.rdp(orders),
            one_sided=self.one_sided,
        )


def surface_of(
    aggregator: Aggregator, *, resolution: int = RESOLUTION, one_sided: bool = False
) -> Surface:
    """The surface of an aggregator, or ``NotApplicable`` for those by stability."""
    if isinstance(aggregator, LaplaceMax):
        return _LaplaceSurface(aggregator, resolution=resolution, one_sided=one_sided)
    if isinstance(aggregator, GNMax):
        return _GaussianSurface(
            aggregator,
            aggregator.answer_noise,
            aggregator.costs.query,
            resolution=resolution,
            one_sided=one_sided,
        )
    if isinstance(aggregator, ConfidentGNMax | InteractiveGNMax):
        return _SelectiveSurface(aggregator, resolution=resolution, one_sided=one_sided)
    raise NotApplicable(
        f"no data-dependent bound is known for {type(aggregator).__name__}; its "
        "data-independent loss is aggregator.plan(...).loss"
    )


def _inverse(falling: Callable[[Array], Array], target: Array, most: float) -> Array:
    """Half of the argument in [0, most] at which a falling function has the target value."""
    low, high = np.zeros_like(target), np.full_like(target, most)
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = falling(middle) >= target
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return 0.5 * low
