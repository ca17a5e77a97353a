"""Naive Bayes from noisy counts: exact statistics, their noise, and a model from what is released.

**Statistics** are added up over batches. Both kinds are integers, so that sums do not depend on
the order of batches and the sensitivity is exact: a record adds cells that sum to ``unit`` in each
feature's table and touches the block of its class only.

*Categorical*: one count in each table, ``unit`` 1.

*Gaussian*: a value is clipped to its declared bounds, moved to u in [0, 1] and rounded to m / M,
M = 2**bits. It adds the three Bernstein weights

    (M - m)^2,   2 m (M - m),   m^2,        which sum to M^2 = ``unit``,

to the cells of its class: a soft histogram of three bins. These are an invertible linear image of
(count, sum, sum of squares), with half of the L1 sensitivity of the usual triple of
(1, z, z^2), z in [-1, 1], and they contain the count: sum u = b1/2 + b2, sum u^2 = b2 and
count = b0 + b1 + b2, in units of M^2.

**Noise.** A model of D features is a set of D tables, one for each feature, with a block of cells
for each class. One record adds non-negative integers of sum at most ``unit`` to the cells of its
class in each table (a count adds 1 to one cell). Hence

* add_remove: each of the D tables moves by at most ``unit`` in L1 norm and in L2 norm;
* replace: each moves by at most ``unit`` upwards on some cells and by as much downwards on
  others (what cancels in a cell only helps): twice as many movements.

So the whole release has L1 sensitivity D and 2D, L2 sensitivity sqrt(D) and sqrt(2D), times
``unit``. *Laplace*: scale D / epsilon (2D / epsilon), pure DP; the loss is that of D (2D)
independent shifts by ``unit``, each dominated by one coordinate that takes all of it
(:func:`discreet.mechanisms.laplace_integers`). *Gaussian*: mu-GDP by the domination theorem
(:func:`discreet.privacy.theorems.discrete_gaussian_mu`), calibrated to (epsilon, delta).

**Estimation** is post-processing and costs nothing. The noise is known, so it is used: what cannot
be distinguished from noise is not believed. Conditional probabilities lean towards what all classes
have in common by as many pseudo-counts as the noise has standard deviations, means and variances
of the classes are shrunk towards common ones as far as noise may have moved them apart, and no
variance is believed to be smaller than its own error. Without noise the categorical model is
exactly the smoothed maximum-likelihood one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import (
    gaussian_integers,
    laplace_integers,
    read_epsilon,
    round_up,
)
from discreet.privacy import GDP, ZCDP, DiscreteLaplace, Loss, Relation
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOISES = ("auto", "laplace", "gaussian")
"""``auto`` takes the smaller variance of the two; with delta 0 that is always Laplace."""

_MOST_BITS, _LEAST_BITS = 16, 6
_CHUNK_CELLS, _LEAST_CHUNK = 1 << 16, 512
# Squares have 32 bits at most, so sums over this many rows fit 64.
_MOST_ROWS = 1 << 30
# Arrays are drawn in 64 bits (discreet.mechanisms): the noise has fewer steps than this.
_MOST_STEPS = 2.0**51
_LARGEST_ANSWER = 1 << 62
_UNIFORM_VARIANCE = 1.0 / 12.0
_LARGEST_VARIANCE = 0.25
# How far apart the means of classes are taken to be where the noise says nothing about it: a tenth
# of the width of the bounds. To shrink them altogether would lose the little that is there.
_APART = 0.1
# With one or two numbers, the rule of James and Stein leaves them as they are.
_LEAST_FEATURES = 3


# --- exact statistics ---------------------------------------------------------------------


def bits_for(tables: int, epsilon: float) -> int:
    """Return how finely values are rounded, so that the noise fits 64 bits; public numbers decide.

    >>> bits_for(20, 1.0), bits_for(1000, 0.001)
    (16, 15)
    """
    # The quotient by the least of all epsilons would be infinite.
    room = 51 - math.ceil(math.log2(min(tables / epsilon, 1e300)))
    bits = min(_MOST_BITS, (room - 1) // 2)
    if bits < _LEAST_BITS:
        raise InvalidValue("epsilon", epsilon, f"a larger value for {tables} noisy tables")
    return bits


@final
class CategoryCounts:
    """Joint counts of class and category, one table of classes x categories for each feature."""

    def __init__(self, classes: int, categories: Sequence[int]) -> None:
        self._tables = [np.zeros((classes, size), dtype=np.int64) for size in categories]

    def add(self, codes: NDArray[np.int64], columns: Sequence[NDArray[Any]]) -> None:
        """Count a batch; ``columns`` hold category numbers, and anything else is not counted.

        Rows whose class code is -1 count for nothing.
        """
        known = codes >= 0
        whole = bool(np.all(known))
        rows = codes if whole else codes[known]
        for table, column in zip(self._tables, columns, strict=True):
            classes, size = table.shape
            values = column if whole else column[known]
            with np.errstate(invalid="ignore"):
                inside = (values >= 0) & (values < size)
            places = np.where(inside, values, size).astype(np.int64)
            places += rows * (size + 1)
            found = np.bincount(places, minlength=classes * (size + 1))
            table += found.reshape(classes, size + 1)[:, :size]

    def cells(self) -> NDArray[np.int64]:
        """All tables in one row."""
        return np.concatenate([table.ravel() for table in self._tables])


@final
class SoftBins:
    """Sums of Bernstein weights: an array of classes x features x 3."""

    def __init__(
        self,
        classes: int,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        *,
        bits: int,
    ) -> None:
        self._lower = lower
        self._scale = math.ldexp(1.0, bits) / (upper - lower)
        self._bits = bits
        # Python integers: no number of rows overflows them.
        self._count = np.zeros((classes, 1), dtype=object)
        self._sum = np.zeros((classes, lower.size), dtype=object)
        self._square = np.zeros((classes, lower.size), dtype=object)

    def add(self, codes: NDArray[np.int64], features: NDArray[np.float64]) -> None:
        """Add a batch. Infinities are clipped, NaN stands for the middle of the bounds.

        A chunk has so few rows that its sums stay below 2**53 and are exact in doubles.
        """
        for start in range(0, codes.size, _MOST_ROWS):
            rows = slice(start, start + _MOST_ROWS)
            self._add_rows(codes[rows], features[rows])

    def _add_rows(self, codes: NDArray[np.int64], features: NDArray[np.float64]) -> None:
        classes, columns = self._sum.shape
        rows = max(_LEAST_CHUNK, _CHUNK_CELLS // columns)
        labels = np.arange(classes)[:, None]
        steps = math.ldexp(1.0, self._bits)
        count = np.zeros((classes, 1), dtype=np.int64)
        total, square = (np.zeros((classes, columns), dtype=np.int64) for _ in range(2))
        for start in range(0, codes.size, rows):
            chunk = codes[start : start + rows]
            member = (chunk == labels).astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                values = features[start : start + rows] - self._lower
                values *= self._scale
            values += 0.5
            np.clip(values, 0.0, steps, out=values)
            np.floor(values, out=values)
            if math.isnan(float(values.sum())):
                values[np.isnan(values)] = 0.5 * steps
            total += (member @ values).astype(np.int64)
            np.multiply(values, values, out=values)
            square += (member @ values).astype(np.int64)
            count += member.sum(axis=1, keepdims=True).astype(np.int64)
        self._count += count.astype(object)
        self._sum += total.astype(object)
        self._square += square.astype(object)

    def cells(self) -> NDArray[Any]:
        """The weights of all classes and features, exact integers (dtype object)."""
        unit, step = 1 << (2 * self._bits), 1 << self._bits
        highest = self._square
        middle = 2 * (step * self._sum - self._square)
        lowest = unit * self._count - 2 * step * self._sum + self._square
        return np.stack([lowest, middle, highest], axis=-1)


# --- noise --------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class TableNoise:
    """Noise for D tables of integers: ``kind``, its parameter in steps, and the exact loss.

    >>> TableNoise.plan(features=10, unit=1, epsilon=1.0, delta=0.0, relation="replace").loss
    20 * DiscreteLaplace(scale=20.0, relation='replace')
    """

    kind: str
    parameter: float
    tables: int
    unit: int
    changed: int
    loss: Loss

    @classmethod
    def plan(
        cls,
        *,
        features: int,
        unit: int,
        epsilon: float,
        delta: float,
        relation: Relation | str,
        noise: str = "auto",
        changed_cells: int = 1,
    ) -> TableNoise:
        """Calibrate to (epsilon, delta); ``changed_cells`` is how many one record touches a table.

        Everything here is public, so the plan can be charged before data is read.
        """
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, at_least=0, below=1)
        chosen = _validate.one_of("noise", noise, NOISES)
        kind = Relation.parse(relation)
        tables = features * (2 if kind is Relation.REPLACE else 1)
        if chosen == "gaussian" and point == 0.0:
            raise InvalidValue("delta", delta, "a number with 0 < delta < 1 for Gaussian noise")
        laplace = cls._laplace(tables, unit, target, kind)
        if chosen == "laplace" or point == 0.0:
            return laplace
        rough = math.sqrt(tables) * unit / gaussian_mu(target, point)
        if chosen == "auto" and laplace.stddev <= rough:
            return laplace
        return cls._gaussian(tables, unit, target, point, kind, changed_cells, rough)

    @classmethod
    def stated(
        cls,
        kind: str,
        parameter: float,
        *,
        features: int,
        unit: int,
        relation: Relation,
        changed_cells: int = 1,
    ) -> TableNoise:
        """Return noise of a stated size, with its loss."""
        tables = features * (2 if relation is Relation.REPLACE else 1)
        if _validate.one_of("noise", kind, NOISES[1:]) == "laplace":
            loss: Loss = tables * DiscreteLaplace(parameter, unit, relation)
            return cls(kind, parameter, tables, unit, tables, loss)
        changed = tables * changed_cells
        loss = _gaussian_loss(parameter, _l2_shift(tables, unit), changed, relation)
        return cls(kind, parameter, tables, unit, changed, loss)

    @classmethod
    def _laplace(cls, tables: int, unit: int, epsilon: float, relation: Relation) -> TableNoise:
        scale = round_up("epsilon", epsilon, tables * unit / read_epsilon(epsilon)[0])
        loss = tables * DiscreteLaplace(scale, unit, relation)
        return cls("laplace", _small_enough(scale, epsilon), tables, unit, tables, loss)

    @classmethod
    def _gaussian(
        cls,
        tables: int,
        unit: int,
        epsilon: float,
        delta: float,
        relation: Relation,
        changed_cells: int,
        stddev: float,
    ) -> TableNoise:
        shift = _l2_shift(tables, unit)
        changed = tables * changed_cells
        for _ in range(2000):
            loss = _gaussian_loss(stddev, shift, changed, relation)
            if loss.epsilon(delta=delta) <= epsilon:
                parameter = _small_enough(stddev, epsilon)
                return cls("gaussian", parameter, tables, unit, changed, loss)
            # Discrete noise needs about 4 / stddev^2 more, relatively, than continuous noise.
            stddev *= 1.0 + min(2.0**-6, 2.0**-46 + stddev**-2)
        raise NotApplicable(
            f"no Gaussian noise was certified for epsilon {epsilon!r} and delta {delta!r}"
        )

    @property
    def stddev(self) -> float:
        """The standard deviation of the noise in each cell, in steps (sqrt 2 scales, at most)."""
        return math.sqrt(2.0) * self.parameter if self.kind == "laplace" else self.parameter

    def release(self, cells: NDArray[Any], source: Source) -> NDArray[np.int64]:
        """Return the private cells with noise added to each of them.

        Cells are cut to 62 bits first, which brings no two tables further apart.
        """
        cut = np.clip(cells, -_LARGEST_ANSWER, _LARGEST_ANSWER).astype(np.int64)
        if self.kind == "laplace":
            return laplace_integers(
                cut,
                sensitivity=self.tables * self.unit,
                scale=self.parameter,
                relation=self.loss.relation,
                source=source,
            ).value
        return gaussian_integers(
            cut,
            sensitivity=Fraction(_l2_shift(self.tables, self.unit)),
            changed=min(self.changed, cut.size),
            stddev=self.parameter,
            relation=self.loss.relation,
            source=source,
        ).value


def _gaussian_loss(stddev: float, shift: float, changed: int, relation: Relation) -> Loss:
    mu = discrete_gaussian_mu(stddev, shift, coordinates=changed)
    if mu is not None:
        return GDP(mu, relation)
    return ZCDP(0.5 * (shift / stddev) ** 2 * (1.0 + 2.0**-48), relation)


def _l2_shift(tables: int, unit: int) -> float:
    return math.sqrt(tables) * unit * (1.0 + 2.0**-50)


def _small_enough(steps: float, epsilon: float) -> float:
    if steps >= _MOST_STEPS:
        raise InvalidValue("epsilon", epsilon, "a value whose noise has fewer than 2**51 steps")
    return steps


# --- from noisy tables to a model -----------------------------------------------------------


def pooled_counts(
    totals: NDArray[np.float64], cells: NDArray[np.float64], *, stddev: float
) -> NDArray[np.float64]:
    """Return the size of each class from the totals (features x classes) of the noisy tables.

    Each total estimates the same number with variance cells * stddev^2; the mean with inverse
    weights has the least error. It is cut at that error, and at 1, from below.
    """
    weights = 1.0 / cells
    pooled = weights @ totals / weights.sum()
    error = stddev / np.sqrt(weights.sum())
    return np.asarray(np.maximum(pooled, max(1.0, float(error))), dtype=np.float64)


def class_log_priors(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithms of the shares of the classes."""
    return np.asarray(np.log(counts / counts.sum()), dtype=np.float64)


def category_log_probabilities(
    table: NDArray[np.float64], *, stddev: float, alpha: float
) -> NDArray[np.float64]:
    """Return log P(category | class) for a noisy table of classes x categories.

    Rows are projected on non-negative numbers of the same sum (least squares), then smoothed
    with ``alpha`` for each category and with ``stddev`` for each category in the proportions
    of all classes together.
    """
    categories = table.shape[1]
    counts = np.stack([_nonnegative(row, total=max(0.0, float(row.sum()))) for row in table])
    shared = counts.sum(axis=0) + alpha
    shared /= max(float(shared.sum()), np.finfo(np.float64).tiny)
    smoothed = counts + alpha + stddev * categories * shared
    smoothed = np.maximum(smoothed, np.finfo(np.float64).tiny)
    return np.asarray(
        np.log(smoothed) - np.log(smoothed.sum(axis=1, keepdims=True)), dtype=np.float64
    )


def bin_moments(
    bins: NDArray[np.float64],
    counts: NDArray[np.float64],
    *,
    stddev: float,
    smoothing: float,
    pooling: float = 0.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return means and variances (classes x features) in [0, 1] from noisy soft bins.

    With (b0, b1, b2) in units of one record, u - 1/2 sums to (b2 - b0)/2, whose noise has standard
    deviation stddev / sqrt(2), and (u - 1/2)^2 to (b0 - b1 + b2)/4, with sqrt(3)/4 stddev. What
    tells the classes apart is shrunk as far as it may be noise
    (:func:`_shrink_to_common`). No variance is below its own error, and one that is below that of
    all classes is moved towards it by the share ``pooling``.
    """
    size = counts[:, None]
    centred = np.clip((bins[..., 2] - bins[..., 0]) / (2.0 * size), -0.5, 0.5)
    second = (bins[..., 0] - bins[..., 1] + bins[..., 2]) / (4.0 * size)
    error = np.sqrt(3.0) / 4.0 * stddev / size
    least = np.minimum(np.maximum(error, smoothing), _UNIFORM_VARIANCE)
    means = _shrink_to_common(centred, counts, spread=stddev * np.sqrt(0.5), apart=_APART)
    plain = np.clip(second - centred**2, smoothing, _LARGEST_VARIANCE)
    own, believed = (
        _shrink_to_common(part, counts, spread=stddev * np.sqrt(3.0) / 4.0)
        for part in (plain, np.maximum(plain, least))
    )
    shared = (1.0 - pooling) * own + pooling * (counts @ own / counts.sum())
    return means + 0.5, np.minimum(np.maximum(believed, shared), _LARGEST_VARIANCE)


def _shrink_to_common(
    values: NDArray[np.float64], counts: NDArray[np.float64], *, spread: float, apart: float = 0.0
) -> NDArray[np.float64]:
    """Shrink the values of the classes to their common ones, by the rule of James and Stein (1961).

    The sum of a class has noise of standard deviation ``spread``, its value spread / count. The
    deviations of a class from the common values are a vector over features; where its square is
    not larger than that of noise alone is expected to be, nothing is left of it, or what a normal
    prior of standard deviation ``apart`` leaves.
    """
    classes, features = values.shape
    if features < _LEAST_FEATURES or spread == 0.0:
        return values
    total = counts.sum()
    common = counts @ values / total
    deviations = values - common
    noise = spread**2 * (counts**-2 - 2.0 / (counts * total) + classes / total**2)
    square = np.einsum("kj,kj->k", deviations, deviations)
    kept = 1.0 - (features - 2) * noise / np.maximum(square, np.finfo(np.float64).tiny)
    kept = np.clip(kept, apart**2 / (apart**2 + noise), 1.0)
    return np.asarray(common + kept[:, None] * deviations)


def _nonnegative(row: NDArray[np.float64], *, total: float) -> NDArray[np.float64]:
    """The point of {x >= 0, sum x = total} nearest to ``row`` (Held, Wolfe and Crowder 1974)."""
    if np.all(row >= 0.0):
        return row
    ranked = np.sort(row)[::-1]
    excess = (np.cumsum(ranked) - total) / np.arange(1, row.size + 1)
    kept = int(np.nonzero(ranked - excess > 0.0)[0][-1]) if total > 0.0 else -1
    return np.maximum(row - excess[kept], 0.0) if kept >= 0 else np.zeros_like(row)


def split_tables(
    cells: NDArray[np.float64], classes: int, categories: Sequence[int]
) -> list[NDArray[np.float64]]:
    """Cut one row of cells into tables of classes x categories."""
    ends = np.cumsum([classes * size for size in categories])[:-1]
    parts = np.split(cells, ends)
    return [part.reshape(classes, -1) for part in parts]
