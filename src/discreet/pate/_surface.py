"""The data-dependent divergence of a query over cells of votes.

A histogram enters the bounds through one or two numbers that a moved vote changes by at most one:

*The half gap.* For Gaussian noise let U be the tail of the difference of two noises and
q = sum over j of U(g_j), the union bound on another label than the winner. The gap g with
(classes - 1) U(g) = q, halved, is the half gap t. If every g_j falls by at most 2, q rises to at
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

**The bounds.** Renyi bounds for one query that know its votes: LNMax, GNMax and the threshold test.
Let P and Q be the distributions of the label on two data sets, i the winner on the data at hand,
and let all other labels together have probability at most q under P and q' under Q. Then

    sum over labels of P^a Q^(1-a)  <=  (1-q)^a (1-q')^(1-a)  +  R(q)           (a > 1)

*Gaussian noise.* If D_m(P || Q) <= rho m for all m, Hoelder's inequality on the other labels
with the order m = 1 + x gives R(q) = q^(1 - (a-1)/x) exp((a-1) rho (x+1)) for every
x >= a - 1. With L = -log q it is least at x = sqrt(L / rho):
R = exp(-L + (a-1) (2 sqrt(L rho) + rho)). In the same way q' <= psi(q) =
exp(-(sqrt L - sqrt rho)^2). This is theorem 6 of Papernot et al. (2018) with its proposition 10;
besides, q' is read off the votes, and the smaller of both bounds counts.

*Laplace noise.* No label's probabilities differ by more than exp(2/scale), so
R(q) = q exp(2 (a-1) / scale): theorem 3 of Papernot et al. (2017).

*Only bounds on q are known.* The right side must hold for the true q too, which may be anything
from 0 to its bound. For Laplace noise it is convex in q, so its largest value is at one of the
ends. For Gaussian noise with q' from the votes its derivative is at least
(1 - k) R(q)/q - a (1-q')^(1-a), k = (a-1)/x, which falls with q; where it is not negative
at the bound, the right side rises up to there, and elsewhere 1 takes the place of (1-q)^a. With
q' = psi(q) the derivative is at least

    V ((a-1) (psi' - 1) - 1) + (1 - k) R(q)/q,      V = ((1-q) / (1-psi))^(a-1),

if psi' = (psi/q) (1 - sqrt(rho/L)) >= 1, and so not negative where also (1 - k) R(q)/q >= V. Both
conditions hold for all smaller q if they hold at the bound (psi' and R/q fall with q, and V
rises), so they are checked there.

*Both directions.* Exchanging q and q' bounds the divergence from the neighbour to the data. The
papers state the divergence from the data only; here the larger of both is taken unless
``one_sided``. All bounds are cut at the data-independent one.

*The threshold test* has two outcomes whose probabilities depend on the largest count, which
differs by at most one between neighbours. If the answer has divergence e, test and answer
together have exactly

    (1/(a-1)) log( p^a r^(1-a) exp((a-1) e) + (1-p)^a (1-r)^(1-a) ),

with p and r the probabilities of passing; the largest over the three values of the
neighbour's count, and both directions, is taken. No expected number of answers is involved.
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
from discreet.errors import InvalidValue
from discreet.pate._votes import (
    STEPS,
    gaussian_difference_log_tail,
    laplace_difference_log_tail,
    read_histograms,
    read_prediction,
)
from discreet.privacy import GDP, Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

    Places = NDArray[np.int64]


# Cells for one unit of the half gap.
RESOLUTION = 8


@final
class QueryCells(NamedTuple):
    """The distinct cells of a table of queries, and how many queries are in each."""

    rows: Places
    columns: Places
    counts: Places


class Surface(ABC):
    """Divergences of one query over its cells; ``rows`` count votes, ``columns`` half gaps."""

    def __init__(self, *, classes: int, teachers: int, resolution: int, one_sided: bool) -> None:
        self.classes, self.teachers = classes, teachers
        self.resolution = _validate.integer("resolution", resolution, at_least=1, at_most=64)
        self.one_sided = one_sided
        self.rows = 1

    @property
    @abstractmethod
    def columns(self) -> int:
        """How many cells the half gap has."""

    @property
    def reach(self) -> tuple[int, int]:
        """How far, in cells, a neighbour can be."""
        return (1 if self.rows > 1 else 0, self.resolution + 1)

    @abstractmethod
    def cells(self, votes: Any, predictions: Any) -> QueryCells:
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
    """A surface over the half gap alone."""

    _lowest: int
    _highest: int

    def __init__(self, *, classes: int, teachers: int, resolution: int, one_sided: bool) -> None:
        super().__init__(
            classes=classes, teachers=teachers, resolution=resolution, one_sided=one_sided
        )
        most = self._half_gaps(self._tails(np.array([float(self.teachers)])), self.classes - 1)
        least = self._half_gaps(self._tails(np.array([0.0])), self.classes - 1)
        self._lowest = math.floor(float(least[0])) - 1
        self._highest = math.ceil(float(most[0])) + 1

    @abstractmethod
    def _tails(self, gaps: Array) -> Array:
        """log P(one class overtakes the winner) for its gap, from above."""

    @abstractmethod
    def _half_gaps(self, log_q: Array, times: int = 1) -> Array:
        """The half gaps for union bounds ``times`` e^log_q."""

    @abstractmethod
    def _log_q(self, half_gaps: Array) -> Array:
        """The union bound that belongs to a half gap."""

    @property
    def columns(self) -> int:
        return (self._highest - self._lowest) * self.resolution + 1

    def cells(self, votes: Any, predictions: Any) -> QueryCells:
        if predictions is not None:
            raise InvalidValue("predictions", "given", "None: this aggregator does not look")
        columns = self.columns_of(
            read_histograms(votes, classes=self.classes, teachers=self.teachers)
        )
        found, counts = np.unique(columns, return_counts=True)
        return QueryCells(np.zeros_like(found), found, counts)

    def columns_of(self, table: Places) -> Places:
        """The column of every histogram."""
        winners = np.argmax(table, axis=1)
        gaps = table[np.arange(len(table)), winners][:, None] - table
        known = self._tails(np.arange(self.teachers + 1, dtype=np.float64))[gaps]
        known[np.arange(len(table)), winners] = -np.inf
        half_gaps = self._half_gaps(special.logsumexp(known, axis=1))
        cells = np.floor((half_gaps - 1e-9 - self._lowest) * self.resolution).astype(np.int64)
        return np.clip(cells, 0, self.columns - 1)

    def half_gaps_at(self, columns: Places) -> Array:
        """The half gaps at the lower edges of columns."""
        return columns / self.resolution + self._lowest

    def log_chances(self, columns: Places) -> tuple[Array, Array]:
        """Bounds on log q on the data and on its neighbours."""
        half_gaps = self.half_gaps_at(columns)
        return self._log_q(half_gaps), self._log_q(half_gaps - 1.0)


@final
class LaplaceSurface(_LabelSurface):
    """The label of the largest count with Laplace noise of ``scale``, which costs ``loss``."""

    def __init__(self, *, scale: Fraction, loss: Loss, **shape: Any) -> None:
        self._scale = scale
        self._loss = loss
        super().__init__(**shape)

    def _tails(self, gaps: Array) -> Array:
        return laplace_difference_log_tail(gaps, scale=self._scale)

    def _half_gaps(self, log_q: Array, times: int = 1) -> Array:
        return -(float(self._scale) / 2.0) * (log_q + math.log(times))

    def _log_q(self, half_gaps: Array) -> Array:
        return -2.0 * half_gaps / float(self._scale) * (1.0 - 1e-13) + 1e-13

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
class GaussianSurface(_LabelSurface):
    """The label of the largest count with Gaussian noise, which costs ``loss``."""

    def __init__(self, *, noise: Fraction, loss: Loss, **shape: Any) -> None:
        self._noise = noise
        self._loss = loss
        self._rho = float(loss.mu) ** 2 / 2.0 * (1.0 + 1e-15) if isinstance(loss, GDP) else math.inf
        super().__init__(**shape)

    def _tails(self, gaps: Array) -> Array:
        return gaussian_difference_log_tail(gaps, noise=self._noise)

    def _half_gaps(self, log_q: Array, times: int = 1) -> Array:
        others = math.log(self.classes - 1)
        return _inverse(
            lambda gap: self._tails(gap) + others, log_q + math.log(times), float(self.teachers)
        )

    def _log_q(self, half_gaps: Array) -> Array:
        return self._tails(2.0 * half_gaps) + math.log(self.classes - 1)

    @property
    def independent(self) -> Loss:
        return self._loss

    def values(self, rows: Places, columns: Places, orders: Array) -> Array:
        here, near = self.log_chances(columns)
        return gaussian_label(here, near, rho=self._rho, orders=orders, one_sided=self.one_sided)


@final
class SelectiveSurface(Surface):
    """A noisy threshold test, and the label if it is passed; rows are the largest count.

    ``noises`` are those of test and label, ``losses`` what they cost. With ``predictions`` the
    count that is tested is the largest above what a student expects.
    """

    def __init__(
        self,
        *,
        threshold: Fraction,
        noises: tuple[Fraction, Fraction],
        losses: tuple[Loss, Loss],
        predictions: bool,
        **shape: Any,
    ) -> None:
        super().__init__(**shape)
        self._test, self._answer = losses
        self._label = GaussianSurface(noise=noises[1], loss=losses[1], **shape)
        self._predictions = predictions
        # Rounded expectations need not add up: they are off by at most half a vote a class.
        self._lowest = -self.classes if predictions else 0
        self.rows = self.teachers - self._lowest + 1
        distances = float(threshold) - np.arange(
            self._lowest - 1, self.teachers + 2, dtype=np.float64
        )
        self._chances = threshold_chances(distances, noise=float(noises[0]), step=1.0 / STEPS)

    @property
    def columns(self) -> int:
        return self._label.columns

    @property
    def independent(self) -> Loss:
        return self._test + self._answer

    def cells(self, votes: Any, predictions: Any) -> QueryCells:
        table = read_histograms(votes, classes=self.classes, teachers=self.teachers)
        largest = table.max(axis=1)
        if self._predictions:
            largest = (table - self._read_predictions(predictions, len(table))).max(axis=1)
        elif predictions is not None:
            raise InvalidValue("predictions", "given", "None: this aggregator does not look")
        rows = np.clip(largest - self._lowest, 0, self.rows - 1)
        places = rows * self.columns + self._label.columns_of(table)
        found, counts = np.unique(places, return_counts=True)
        return QueryCells(found // self.columns, found % self.columns, counts)

    def _read_predictions(self, predictions: Any, queries: int) -> Places:
        if predictions is None or len(predictions) != queries:
            raise InvalidValue("predictions", "withheld", f"{queries} rows, one for each query")
        shape = {"classes": self.classes, "teachers": self.teachers}
        return np.stack([read_prediction(row, **shape)[1] for row in predictions])

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


def _inverse(falling: Callable[[Array], Array], target: Array, most: float) -> Array:
    """Half of the argument in [0, most] at which a falling function has the target value."""
    low, high = np.zeros_like(target), np.full_like(target, most)
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = falling(middle) >= target
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return 0.5 * low


# Outweighs the rounding of the formulas below: relative, and absolute in log moments.
_RELATIVE = 1e-10
_ABSOLUTE = 2e-15


def gaussian_label(
    log_q: Array, log_q_near: Array, *, rho: float, orders: Array, one_sided: bool = False
) -> Array:
    """The bound for GNMax at every row of ``log_q`` and every order, cut at rho a.

    ``log_q`` bounds the probability of another label than the winner on the data,
    ``log_q_near`` on every neighbour. ``rho`` is the zCDP parameter of the mechanism.
    """
    forward = _gaussian_moment(log_q, log_q_near, rho, orders)
    if not one_sided:
        forward = np.maximum(forward, _gaussian_moment(log_q_near, log_q, rho, orders))
    return _cap_bound(forward, orders, np.broadcast_to(rho * orders, forward.shape))


def laplace_label(
    log_q: Array,
    log_q_near: Array,
    *,
    pure_epsilon: float,
    independent: Array,
    orders: Array,
    one_sided: bool = False,
) -> Array:
    """The bound for LNMax; ``independent`` is the data-independent curve at the orders."""
    forward = _laplace_moment(log_q, log_q_near, pure_epsilon, orders)
    if not one_sided:
        backward = _laplace_moment(log_q_near, log_q, pure_epsilon, orders)
        forward = np.maximum(forward, backward)
    return _cap_bound(forward, orders, np.broadcast_to(independent, forward.shape))


def threshold_chances(distances: Array, *, noise: float, step: float) -> tuple[Array, ...]:
    """Bounds on log P(pass) and log P(fail), (low, high, low, high), for threshold - count.

    ``step`` is the width of the grid that the noise lives on, see :mod:`discreet.pate._votes`; the
    threshold is rounded up to that grid, so both sides are moved outwards by two steps.
    """
    x, h = distances / noise, 2.0 * step / noise
    slack = 1e-13
    bounds = (
        special.log_ndtr(-x - h) * (1.0 + slack) - 1e-16,
        np.minimum(special.log_ndtr(h - x) * (1.0 - slack), 0.0),
        special.log_ndtr(x - h) * (1.0 + slack) - 1e-16,
        np.minimum(special.log_ndtr(x + h) * (1.0 - slack), 0.0),
    )
    return tuple(np.asarray(bound) for bound in bounds)


def selection_and_label(
    here: tuple[Array, ...],
    near: list[tuple[Array, ...]],
    label: Array,
    *,
    orders: Array,
    independent: Array,
    one_sided: bool = False,
) -> Array:
    """The joint bound for a threshold test and the label that follows if it is passed.

    ``here`` and each of ``near`` are :func:`threshold_chances` of the data and of a possible
    neighbour; ``label`` is the bound for the label, rows by orders.
    """
    moments = []
    for other in near:
        moments.append(_test_moment(here, other, label, orders))
        if not one_sided:
            moments.append(_test_moment(other, here, label, orders))
    worst: Array = np.max(np.stack(moments), axis=0)
    return _cap_bound(worst, orders, np.broadcast_to(independent, worst.shape))


def _test_moment(p: tuple[Array, ...], r: tuple[Array, ...], label: Array, orders: Array) -> Array:
    p_high, fail_high = p[1][:, None], p[3][:, None]
    r_low, other_fail_low = r[0][:, None], r[2][:, None]
    passing = orders * p_high + (1.0 - orders) * r_low + (orders - 1.0) * label
    failing = orders * fail_high + (1.0 - orders) * other_fail_low
    moment: Array = np.logaddexp(passing, failing)
    # The two exponents are differences of large numbers; each rounding counts by its weight.
    lost = 2.0**-50 * orders
    error = np.exp(passing - moment) * lost * (np.abs(p_high) + np.abs(r_low))
    error += np.exp(failing - moment) * lost * (np.abs(fail_high) + np.abs(other_fail_low))
    total: Array = moment + error
    return total


def _gaussian_moment(log_p: Array, log_r: Array, rho: float, orders: Array) -> Array:
    """log sum P^a Q^(1-a), P with other labels at most exp(log_p); infinite where unknown."""
    low, log_stay, log_near = _parts(log_p, log_r)
    height, stay = -low[:, None], log_stay[:, None]
    more = orders - 1.0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        root = np.sqrt(rho / height)
        usable = more * root < 1.0
        rest = -height + more * (2.0 * np.sqrt(height * rho) + rho)
        # log of (1 - k) R(q)/q
        slope = np.log1p(-more * root) + rest + height
        # q' from the votes
        near = -more * log_near[:, None]
        rising = slope >= np.log(orders) + near
        by_votes = np.logaddexp(near + np.where(rising, orders * stay, 0.0), rest)
        by_votes = np.where(usable & np.isfinite(near), by_votes, np.inf)
        # q' = psi(q)
        log_psi = -np.square(np.sqrt(height) - np.sqrt(rho))
        kept = np.log1p(-np.exp(log_psi))
        growth = more * (stay - kept)
        rising = (log_psi + height + np.log1p(-root) >= 0.0) & (slope >= growth)
        by_order = np.logaddexp(orders * stay - more * kept, rest)
        by_order = np.where(usable & (height > rho) & rising, by_order, np.inf)
        return np.asarray(np.fmin(by_votes, by_order))


def _laplace_moment(log_p: Array, log_r: Array, pure_epsilon: float, orders: Array) -> Array:
    low, log_stay, log_near = _parts(log_p, log_r)
    with np.errstate(invalid="ignore", over="ignore"):
        near = (1.0 - orders) * log_near[:, None]
        rest = low[:, None] + (orders - 1.0) * pure_epsilon
        full = np.logaddexp(near + orders * log_stay[:, None], rest)
        moment = np.maximum(near, full)
        return np.asarray(np.where(np.isfinite(log_near)[:, None], moment, np.inf))


def _parts(log_p: Array, log_r: Array) -> tuple[Array, Array, Array]:
    """log q, log(1 - q) and log(1 - q'), the last two minus infinity where q reaches 1."""
    low = np.minimum(log_p, 0.0)
    with np.errstate(divide="ignore"):
        stay = np.log1p(-np.exp(low))
        near = np.log1p(-np.exp(np.minimum(log_r, 0.0)))
    return low, stay, near


def _cap_bound(moment: Array, orders: Array, independent: Array) -> Array:
    with np.errstate(invalid="ignore"):
        bound = (np.maximum(moment, 0.0) * (1.0 + _RELATIVE) + _ABSOLUTE) / (orders - 1.0)
    bound = np.where(np.isnan(bound), np.inf, bound)
    return np.minimum(bound, independent)
