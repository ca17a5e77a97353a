"""Private gradient descent for linear models: integer rows, exact sums, exact noise.

**The grid.** Floating-point sums round, and how they round depends on all records and on their
order: the sum that one record changes by at most C may change by a little more. Here every number
that enters a sum over records is an integer below 2**53 together with all partial sums, which
double precision then represents exactly. What is left is a function of one record alone. A *raw
row* is (x, 1) in steps of 2**-12, with every |x_j| <= 1 and |x| <= norm. A *whitened row* is a
public linear image of it in steps of 2**-16, shortened to norm 16 where it is longer.

**The descent.** A whitened row v and its residual r (a number for each output) have the gradient
v r', whose length is |v| |r|: clipping scales the residual. With integer rows and residuals the sum
over records is exact, changes by at most one clipped gradient when one record comes or goes, and
gets discrete Gaussian noise from the operating system; no rounding is left outside the proof.

All rows take part in every step. Sampling would save arithmetic but not privacy: at the same total
budget and total step size the noise of the result is least without it, and one step on a million
rows is two products of matrices.

**The plan.** Noise, steps, clipping and step size from public facts alone.

Two releases are composed. First the second moments of the rows (a matrix), whose noisy inverse
root whitens the features, so that all directions are about equally long; then ``steps`` full
gradients on whitened rows. Both are integer vectors with
discrete Gaussian noise, mu-GDP by :func:`discreet.privacy.theorems.discrete_gaussian_mu`.

**Sensitivities**, for one row z = (x, 1) with |x| <= R and |z_i| <= 1, B = R^2 + 1:

* the upper triangle of z z' has squared length sum z_i^4 + sum_{i<j} z_i^2 z_j^2
  = (|z|^4 + sum z_i^4) / 2 <= (B^2 + B) / 2;
* a clipped gradient has length at most 1, in steps of 2**-34.

Adding or removing one row moves a sum by that much, replacing one by twice as much. A person with
k rows moves it by k times as much, where it is not known whose row each one is; where it is,
each person is clipped as one row (:class:`PersonRows`).

**Defaults** depend on s = mu n / sqrt(d m), the ratio of signal to noise of one full gradient with
the whole budget: n declared rows, d features, m outputs, and mu the GDP parameter of (epsilon,
delta). ``benchmarks/learners_defaults.py`` compares them with their neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from discreet import _validate
from discreet.data import MOST_ROWS
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import gaussian_integers
from discreet.privacy import GDP, Loss, Relation
from discreet.privacy.theorems import discrete_gaussian_mu, gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

RAW_STEPS = 1 << 12
WHITENED_STEPS = 1 << 16
RESIDUAL_STEPS = 1 << 18
COUNT_STEPS = 1 << 10
GRADIENT_STEPS = WHITENED_STEPS * RESIDUAL_STEPS
"""Steps of a clipped gradient of length 1: those of a row times those of a residual."""

# Beyond this width the noise of d^2 / 2 moments costs more than whitening the features gains.
WIDEST_WHITENED = 1024
MOST_STEPS = 1 << 31
_MOST_NOISE = 2.0**51
# Epsilon above 290: so little noise is no privacy, and less is not proved (discrete_gaussian_mu).
_LARGEST_MU = 20.0


def squared_raw_norm(norm: float) -> float:
    """Return the largest squared length of a raw row, the constant 1 included, in squared steps.

    >>> 5 <= squared_raw_norm(2.0) / RAW_STEPS**2 < 5 + 1e-12
    True
    """
    return (norm * norm * (1.0 + 2.0**-50) + 1.0) * RAW_STEPS**2


def default_delta(rows: int) -> float:
    """Return the default delta: a power of ten, at most 1 / (10 rows) and at most 1e-5.

    >>> default_delta(500), default_delta(32_561), default_delta(1_000_000)
    (1e-05, 1e-06, 1e-07)
    """
    count = _validate.integer("expected_rows", rows, at_least=1, at_most=MOST_ROWS)
    digits = len(str(count - 1))
    return float(f"1e-{max(5, digits + 1)}")


@final
@dataclass(frozen=True)
class LinearPlan:
    """Public numbers of a run; build it with :meth:`make`.

    ``total_step_size`` is the sum of all step sizes (its key in JSON is ``pace``), ``clip_ratio``
    the clipping norm as a share of the expected length of a whitened row, and ``moment_share`` the
    share of mu^2 for the moments. ``ridge``
    is what is added to the moments before they are inverted, in units of sqrt(width) deviations
    of their noise (its spectral norm is about two).

    >>> plan = LinearPlan.make(
    ...     rows=32_561,
    ...     features=113,
    ...     outputs=1,
    ...     norm=14**0.5,
    ...     epsilon=1.0,
    ...     delta=1e-6,
    ...     relation="add_remove",
    ... )
    >>> plan.loss.epsilon(delta=1e-6) <= 1.0, plan.steps
    (True, 80)
    """

    rows: int
    features: int
    outputs: int
    norm: float
    contributions: int
    epsilon: float
    delta: float
    relation: Relation
    steps: int
    total_step_size: float
    clip_ratio: float
    moment_share: float
    ridge: float
    moment_stddev: float
    gradient_stddev: float
    count_share: float = 0.0
    count_stddev: float = 0.0

    @classmethod
    def make(
        cls,
        *,
        rows: int,
        features: int,
        outputs: int,
        norm: float,
        epsilon: float,
        delta: float,
        relation: Relation | str,
        contributions: int = 1,
        squared: bool = False,
        steps: int | None = None,
        total_step_size: float | None = None,
        clip_ratio: float | None = None,
        moment_share: float | None = None,
        ridge: float | None = None,
        count_share: float = 0.0,
    ) -> LinearPlan:
        """Choose what is not given, and calibrate the noise to (epsilon, delta).

        ``contributions`` is how many rows one unit of privacy owns, ``squared`` says that the
        loss is the squared one, and ``count_share`` is the share of mu^2 for the classes' counts.
        """
        n = _validate.integer("expected_rows", rows, at_least=1, at_most=MOST_ROWS)
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, above=0, below=1)
        kind = Relation.parse(relation)
        cap = _validate.integer("rows_per_person", contributions, at_least=1, at_most=MOST_ROWS)
        length = _validate.real("feature_norm", norm, above=0, at_most=1e4)
        if kind is Relation.REPLACE and cap > 1:
            raise NotApplicable("replacing a person may change the number of rows: use add_remove")
        dimension = (features + 1) * outputs
        signal = gaussian_mu(target, point) * n / cap / math.sqrt(dimension)
        chosen = _defaults(signal, squared=squared)
        if features >= WIDEST_WHITENED:
            chosen |= {"moment_share": 0.0, "total_step_size": 4.0 * chosen["total_step_size"]}
        given = {
            "total_step_size": total_step_size,
            "clip_ratio": clip_ratio,
            "moment_share": moment_share,
            "ridge": ridge,
        }
        chosen |= {name: value for name, value in given.items() if value is not None}
        whole = _validate.real("total_step_size", chosen["total_step_size"], above=0, at_most=1e6)
        clip = _validate.real("clip_ratio", chosen["clip_ratio"], at_least=1e-6, at_most=1e3)
        share = _validate.real("moment_share", chosen["moment_share"], at_least=0, below=1)
        count = _validate.integer(
            "max_iter",
            _default_steps(whole, squared) if steps is None else steps,
            at_least=1,
            at_most=MOST_STEPS,
        )
        run = (count, whole, clip, share, chosen["ridge"])
        parts = (n, features, outputs, length, cap, target, point, kind, *run)
        first = cls(*parts, moment_stddev=1.0, gradient_stddev=1.0, count_share=count_share)
        moments, gradients, counts = _noise(first)
        return replace(first, moment_stddev=moments, gradient_stddev=gradients, count_stddev=counts)

    @property
    def loss(self) -> Loss:
        """What the whole run reveals about one unit."""
        return _loss(self, self.moment_stddev, self.gradient_stddev, self.count_stddev)

    @property
    def changes(self) -> int:
        """How many single-row changes take a data set to its neighbour."""
        return self.contributions * (2 if self.relation is Relation.REPLACE else 1)

    @property
    def moment_shift(self) -> float:
        """L2 sensitivity of the upper triangle of moments, in steps, rounded up."""
        square = squared_raw_norm(self.norm)
        triangle = math.sqrt((square * square + square * RAW_STEPS**2) / 2.0)
        return self.changes * triangle * (1.0 + 2.0**-48)

    @property
    def gradient_shift(self) -> float:
        """L2 sensitivity of a sum of clipped gradients, in steps."""
        return float(self.changes * GRADIENT_STEPS)

    @property
    def count_shift(self) -> float:
        """L2 sensitivity of the counts of the classes, in steps."""
        return float(self.changes * COUNT_STEPS)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values; without counts it says nothing of them."""
        counted = () if self.count_share else ("count_share", "count_stddev")
        return {
            "pace" if name == "total_step_size" else name: (
                value.value if isinstance(value, Relation) else value
            )
            for name, value in self.__dict__.items()
            if name not in counted
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LinearPlan:
        """Return the plan that :meth:`to_json` wrote."""
        found = {**document, "relation": Relation.parse(document["relation"])}
        found["total_step_size"] = found.pop("pace")
        return cls(**found)


def _defaults(signal: float, *, squared: bool) -> dict[str, float]:
    if squared:
        total = min(12.0, max(4.5, 4.5 * signal**0.4))
        clip = min(0.8, max(0.1, 0.1 * (signal / 3.0) ** 0.4))
        return {"total_step_size": total, "clip_ratio": clip, "moment_share": 0.2, "ridge": 0.1}
    total = min(160.0, max(14.0, 6.0 * signal**0.55))
    clip = min(1.2, max(0.3, 0.3 * (signal / 30.0) ** 0.4))
    ridge = min(0.1, max(0.03, signal / 300.0))
    return {"total_step_size": total, "clip_ratio": clip, "moment_share": 0.25, "ridge": ridge}


def _default_steps(total: float, squared: bool) -> int:
    # The curvature of whitened rows is about 1 for squares and at most 1/4 or 1/2 for logistic
    # losses, so single steps of up to 1 and 2 are stable.
    return min(80, max(10, math.ceil(2.0 * total if squared else total)))


def _loss(plan: LinearPlan, moments: float, gradients: float, counts: float) -> Loss:
    width = plan.features + 1
    step = discrete_gaussian_mu(gradients, plan.gradient_shift, coordinates=width * plan.outputs)
    if step is None:
        raise _too_small(plan)
    loss: Loss = plan.steps * GDP(step, plan.relation)
    if plan.count_share:
        count = discrete_gaussian_mu(counts, plan.count_shift, coordinates=plan.changes)
        if count is None:
            raise _too_small(plan)
        loss = GDP(count, plan.relation) + loss
    if plan.moment_share == 0.0:
        return loss
    first = discrete_gaussian_mu(moments, plan.moment_shift, coordinates=width * (width + 1) // 2)
    if first is None:
        raise _too_small(plan)
    return GDP(first, plan.relation) + loss


@lru_cache(maxsize=256)
def _noise(plan: LinearPlan) -> tuple[float, float, float]:
    mu = min(gaussian_mu(plan.epsilon, plan.delta), _LARGEST_MU)
    share, counted = plan.moment_share, plan.count_share
    more = 1.0
    for attempt in range(60):
        moments = more * plan.moment_shift / (mu * math.sqrt(share)) if share else 0.0
        rest = 1.0 - share - counted
        gradients = more * plan.gradient_shift * math.sqrt(plan.steps / rest) / mu
        counts = more * plan.count_shift / (mu * math.sqrt(counted)) if counted else 0.0
        if max(moments, gradients) >= _MOST_NOISE:
            expected = "a value whose noise has fewer than 2**51 steps; fewer rows per person help"
            raise InvalidValue("epsilon", plan.epsilon, expected)
        if _loss(plan, moments, gradients, counts).epsilon(delta=plan.delta) <= plan.epsilon:
            return moments, gradients, counts
        # Rounding upwards in the accountant asks for a little more noise than the closed form.
        more *= 1.0 + 2.0 ** (attempt - 40)
    raise _too_small(plan)


def _too_small(plan: LinearPlan) -> NotApplicable:
    return NotApplicable(
        f"no noise was certified for epsilon {plan.epsilon!r} and delta {plan.delta!r}"
    )


# --- exact sums and noisy steps ---------------------------------------------------------------

Residuals = Callable[["NDArray[np.float64]", int, int], "NDArray[np.float64]"]
"""From the scores of the rows start..stop (rows x outputs) to their residuals, row by row."""

LONGEST_WHITENED = 16
BLOCK_ROWS, BLOCK_CELLS = 1 << 12, 1 << 22
# Shortening multiplies by a rounded factor; this much is left for the rounding.
_SHORTER = 1.0 - 2.0**-40
# A product of a raw row and a column stays below 2**52 in absolute value, term by term.
_PRODUCT = 2.0**52
_WEIGHT_STEPS = 1 << 20
_LONGEST_WEIGHTS = 1024.0
_OUTPUT_STEPS = float(1 << 20)
# Of a row of a person; sums of such residuals times rows are exact in blocks of rows.
_LONGEST_RESIDUAL = 4.0
_LARGEST = 1 << 62
_RAW_SQUARED = RAW_STEPS**2


def raw_rows(
    features: NDArray[Any],
    *,
    norm: float,
    scale: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> NDArray[np.float32]:
    """Return rows in [-1, 1]^d as integers, shortened to ``norm``, with the constant appended.

    ``scale`` takes rows of the features, block by block, to [-1, 1]^d.

    >>> raw_rows(np.array([[0.5, -1.0], [1.0, 1.0]]), norm=1.2).tolist()
    [[2048.0, -4096.0, 4096.0], [3475.0, 3475.0, 4096.0]]
    """
    count, width = features.shape
    result = np.empty((count, width + 1), dtype=np.float32)
    result[:, width] = RAW_STEPS
    most = norm * RAW_STEPS
    for start, stop in blocks(count, width):
        part = features[start:stop].astype(np.float64)
        steps = np.rint((part if scale is None else scale(part)) * RAW_STEPS)
        result[start:stop, :width] = _shorten_rows(steps, most)
    return result


def whitened_rows(rows: NDArray[np.float32], basis: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the whitened rows ``row @ basis`` for raw rows; ``basis`` is public.

    A basis of one dimension is a diagonal. The basis is rounded to a grid on which every product
    is exact, so that a whitened row does not depend on where its row stood in a matrix.
    """
    diagonal = basis.ndim == 1
    lengths = np.abs(basis) if diagonal else np.sqrt(np.einsum("ij,ij->j", basis, basis))
    longest = float(lengths.max())
    reach = RAW_STEPS * math.sqrt(rows.shape[1]) * max(longest, 1e-300)
    shift = math.floor(math.log2(_PRODUCT / reach)) - 1
    grid = np.rint(np.ldexp(basis, shift))
    result = np.empty((rows.shape[0], grid.shape[-1]), dtype=np.float32)
    scale = math.ldexp(WHITENED_STEPS / RAW_STEPS, -shift)
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        steps = np.rint((part * grid if diagonal else part @ grid) * scale)
        result[start:stop] = _shorten_rows(steps, float(LONGEST_WHITENED * WHITENED_STEPS))
    return result


def exact_gram(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the sum of outer products of raw rows, exactly."""
    total = np.zeros((rows.shape[1], rows.shape[1]), dtype=np.int64)
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        total += (part.T @ part).astype(np.int64)
    return total


def blocks(count: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of blocks of rows whose sums double precision holds exactly.

    Wide rows come in smaller blocks: copies of them in double precision stay below 32 MB, or
    one row. The sums are exact, so nothing depends on where the bounds are.
    """
    size = min(BLOCK_ROWS, max(1, BLOCK_CELLS // width))
    for start in range(0, count, size):
        yield start, min(start + size, count)


def _shorten_rows(steps: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Cut rows of integers to a length; cutting rounds towards zero, so no row gets longer."""
    norms = np.sqrt(np.einsum("ij,ij->i", steps, steps))
    long = norms > most
    if long.any():
        steps[long] = np.trunc(steps[long] * (most * _SHORTER / norms[long])[:, None])
    return steps


@final
@dataclass(frozen=True, eq=False)
class Whitening:
    """A public basis in which rows have an expected length of 1 / ``clip_ratio``.

    ``length`` is the clipping norm in the units of the features. A basis of one dimension is a
    diagonal: wide rows are only scaled, and a square matrix of their width would not fit.
    """

    basis: NDArray[np.float64]
    length: float


@final
@dataclass(frozen=True, eq=False)
class LinearRelease:
    """What a run releases: weights for (x, 1), the clipping norm, and the noisy moments of (x, 1).

    All of it is covered by the loss of the plan.
    """

    weights: NDArray[np.float64]
    clip_norm: float
    moments: NDArray[np.float64] | None


class ExactSums(Protocol):
    """The two sums over all rows that a descent asks for, exact integers each."""

    def gram(self) -> NDArray[Any]:
        """Return the sum of outer products of raw rows."""

    def gradient(self, basis: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[Any]:
        """Return the sum of clipped gradients of rows that are whitened by ``basis``."""


@final
class HeldRows:
    """Sums over raw rows in memory; ``residuals`` takes the scores of rows from start to stop."""

    def __init__(self, rows: NDArray[np.float32], residuals: Residuals) -> None:
        self._rows, self._residuals = rows, residuals
        self._basis: NDArray[np.float64] | None = None

    def gram(self) -> NDArray[np.int64]:
        """Return the sum of outer products of raw rows."""
        return exact_gram(self._rows)

    def gradient(
        self, basis: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return the sum of clipped gradients; rows are whitened once for each basis."""
        if self._basis is not basis:
            self._basis, self._whitened = basis, whitened_rows(self._rows, basis)
            self._norms = _norms(self._whitened)
        return clipped_gradient(self._whitened, weights, self._residuals, norms=self._norms)


@final
class PersonRows:
    """Sums over persons with several rows in memory, of which each counts as one row at most.

    To the moments a person with m rows adds m outer products of rows that are shortened by the
    root of m: matrices of 1/m of the length, whose sum is no longer than that of one row. To a
    gradient a person adds the sum of its rows' gradients, and that sum is clipped. Its squared
    length is the sum over pairs of rows of (v_s v_t) (r_s r_t), where the inner products of
    whitened rows are exact integers; ``ranks`` has for each rank the rows of all persons, -1
    where a person has none.
    """

    def __init__(
        self, rows: NDArray[np.float32], residuals: Residuals, ranks: Sequence[NDArray[np.int64]]
    ) -> None:
        self._rows, self._residuals, self._ranks = rows, residuals, ranks
        self._basis: NDArray[np.float64] | None = None

    def gram(self) -> NDArray[np.int64]:
        """Return the sum over persons of the mean of outer products, rounded towards zero."""
        counts = np.add.reduce([(rank >= 0).astype(np.int64) for rank in self._ranks])
        shorter = np.empty_like(self._rows)
        for rank in self._ranks:
            there = np.flatnonzero(rank >= 0)
            roots = np.sqrt(counts[there].astype(np.float64))
            shorter[rank[there]] = np.trunc(self._rows[rank[there]] / roots[:, None])
        return exact_gram(shorter)

    def gradient(
        self, basis: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return the sum of persons' clipped gradients, in steps."""
        self._turn(basis)
        outputs = weights.shape[1]
        rest = np.empty((len(self._whitened), outputs))
        for start, stop in blocks(*self._whitened.shape):
            part = self._whitened[start:stop].astype(np.float64)
            scores = (part @ weights) * (1.0 / (WHITENED_STEPS * _WEIGHT_STEPS))
            rest[start:stop] = self._residuals(scores, start, stop)
        rest = np.rint(np.clip(rest, -_LONGEST_RESIDUAL, _LONGEST_RESIDUAL) * _OUTPUT_STEPS)
        rest /= _OUTPUT_STEPS
        own = [np.where((rank >= 0)[:, None], rest[rank], 0.0) for rank in self._ranks]
        squared, reach = (np.zeros(len(self._ranks[0])) for _ in range(2))
        for (s, t), inner in self._inner.items():
            squared += inner * np.einsum("ij,ij->i", own[s], own[t]) * (1.0 if s == t else 2.0)
        for part, norms in zip(own, self._norms, strict=True):
            reach += norms * np.sqrt(np.einsum("ij,ij->i", part, part))
        # Covers the rounding of the sum above, of which each term is at most that large.
        lengths = np.sqrt(np.maximum(squared, 0.0) + 2.0**-40 * reach**2)
        slack = np.add.reduce(self._norms) * math.sqrt(outputs) + 1.0
        factors = (RESIDUAL_STEPS - slack) * _SHORTER / np.maximum(lengths, 1.0)
        steps = np.zeros_like(rest)
        for rank in self._ranks:
            there = np.flatnonzero(rank >= 0)
            # Rounding towards zero; the slack has room for what it changes.
            steps[rank[there]] = np.trunc(rest[rank[there]] * factors[there, None])
        total = np.zeros(weights.shape, dtype=np.int64)
        for start, stop in blocks(*self._whitened.shape):
            part = self._whitened[start:stop].astype(np.float64)
            total += (part.T @ steps[start:stop]).astype(np.int64)
        return total

    def _turn(self, basis: NDArray[np.float64]) -> None:
        """Whiten the rows and take their inner products within a person, once for a basis."""
        if self._basis is basis:
            return
        self._basis, self._whitened = basis, whitened_rows(self._rows, basis)
        self._inner = {
            (s, t): self._inner_products(self._ranks[s], self._ranks[t])
            for s in range(len(self._ranks))
            for t in range(s, len(self._ranks))
        }
        self._norms = [np.sqrt(self._inner[s, s]) for s in range(len(self._ranks))]

    def _inner_products(
        self, left: NDArray[np.int64], right: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        found = np.zeros(len(left))
        both = np.flatnonzero((left >= 0) & (right >= 0))
        for start, stop in blocks(both.size, self._whitened.shape[1]):
            part = both[start:stop]
            one, two = (self._whitened[rank[part]].astype(np.float64) for rank in (left, right))
            found[part] = np.einsum("ij,ij->i", one, two)
        return found / WHITENED_STEPS**2


@final
class FoldedRows:
    """Sums over rows that are elsewhere, computed there: one pass for each sum.

    Parameters
    ----------
    fold
        Adds up the integers that a function makes of every batch
        (:meth:`~discreet.learn._intake.Rows.fold`).
    hold
        Returns the sums over the rows of one batch.
    width
        The number of raw features.

    """

    def __init__(
        self, fold: Callable[..., NDArray[Any]], hold: Callable[[Any], ExactSums], width: int
    ) -> None:
        self._fold, self._hold, self._width = fold, hold, width

    def gram(self) -> NDArray[Any]:
        """Return the sum of outer products of raw rows."""
        zero = np.zeros((self._width, self._width), dtype=np.int64)
        return self._fold(partial(_gram_of, self._hold), zero)

    def gradient(self, basis: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[Any]:
        """Return the sum of clipped gradients."""
        step = partial(_gradient_of, self._hold, basis, weights)
        return self._fold(step, np.zeros(weights.shape, dtype=np.int64))


def _gram_of(hold: Callable[[Any], ExactSums], batch: Any) -> NDArray[Any]:
    return hold(batch).gram()


def _gradient_of(
    hold: Callable[[Any], ExactSums],
    basis: NDArray[np.float64],
    weights: NDArray[np.float64],
    batch: Any,
) -> NDArray[Any]:
    return hold(batch).gradient(basis, weights)


def noisy_moments(gram: NDArray[Any], plan: LinearPlan, source: Source) -> NDArray[np.float64]:
    """Release the matrix of second moments of raw rows, divided by the declared rows."""
    width = gram.shape[1]
    above = np.triu_indices(width)
    exact = np.clip(gram[above], -_LARGEST, _LARGEST).astype(np.int64)
    noisy = gaussian_integers(
        exact,
        sensitivity=Fraction(plan.moment_shift),
        stddev=plan.moment_stddev,
        relation=plan.relation,
        source=source,
    ).value
    matrix = np.zeros((width, width))
    matrix[above] = noisy
    matrix += np.triu(matrix, 1).T
    return np.asarray(matrix / (float(plan.rows) * _RAW_SQUARED))


def whitening_matrix(moments: NDArray[np.float64] | None, plan: LinearPlan) -> Whitening:
    """Return the root of the inverse of noisy moments, plus a ridge as large as the noise.

    Without moments the features are only scaled to length one.
    """
    width = plan.features + 1
    if moments is None:
        length = plan.clip_ratio * math.sqrt(plan.norm**2 + 1.0)
        return Whitening(np.full(width, 1.0 / length), plan.clip_ratio)
    values, vectors = np.linalg.eigh(moments)
    spread = plan.moment_stddev / _RAW_SQUARED / plan.rows
    ridge = plan.ridge * spread * math.sqrt(width) + 1e-9
    kept = np.maximum(values, 0.0)
    length = plan.clip_ratio * math.sqrt(max(float(np.sum(kept / (kept + ridge))), 1.0))
    return Whitening(vectors / np.sqrt(kept + ridge) / length, length)


def clipped_gradient(
    rows: NDArray[np.float32],
    weights: NDArray[np.float64],
    residuals: Residuals,
    *,
    norms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return the exact sum of clipped gradients, in steps; ``norms`` are those of the rows."""
    total = np.zeros(weights.shape, dtype=np.int64)
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        scores = (part @ weights) * (1.0 / (WHITENED_STEPS * _WEIGHT_STEPS))
        rest = residuals(scores, start, stop)
        if rest.shape[1] > 1:
            # On a grid the squares add up exactly, in whatever order a processor takes them.
            rest = np.rint(rest * _OUTPUT_STEPS) / _OUTPUT_STEPS
        lengths = np.sqrt(np.einsum("ij,ij->i", rest, rest)) * norms[start:stop]
        factors = RESIDUAL_STEPS * _SHORTER / np.maximum(lengths, 1.0)
        # Rounding towards zero makes no residual longer.
        steps = np.trunc(rest * factors[:, None])
        total += (part.T @ steps).astype(np.int64)
    return total


def descend(
    sums: ExactSums,
    plan: LinearPlan,
    source: Source,
    *,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
    whiten: Callable[[NDArray[np.float64] | None, LinearPlan], Whitening] | None = None,
) -> LinearRelease:
    """Run the plan on raw rows; the weights are the mean over the second half of the steps.

    ``whiten`` makes a basis of the noisy moments; None is :func:`whitening_matrix`.
    """
    moments = noisy_moments(sums.gram(), plan, source) if plan.moment_share else None
    whitening = (whiten or whitening_matrix)(moments, plan)
    weights = np.zeros((whitening.basis.shape[-1], plan.outputs))
    total = np.zeros_like(weights)
    step = plan.total_step_size / plan.steps * whitening.length**2 / plan.rows / GRADIENT_STEPS
    if plan.moment_share == 0.0:
        step *= 1.0 + plan.norm**2
    kept = 0
    for number in track(range(plan.steps)):
        exact = sums.gradient(whitening.basis, weights)
        noisy = gaussian_integers(
            np.clip(exact, -_LARGEST, _LARGEST).astype(np.int64),
            sensitivity=Fraction(plan.gradient_shift),
            stddev=plan.gradient_stddev,
            relation=plan.relation,
            source=source,
        ).value
        weights = _on_grid(weights - step * _WEIGHT_STEPS * noisy)
        if number >= plan.steps // 2:
            total += weights
            kept += 1
    mean = total / (kept * float(_WEIGHT_STEPS))
    basis = whitening.basis
    weights = basis[:, None] * mean if basis.ndim == 1 else basis @ mean
    return LinearRelease(weights, whitening.length, moments)


def noisy_class_counts(counts: NDArray[Any], plan: LinearPlan, source: Source) -> NDArray[Any]:
    """Release how many units have each class, in their own units."""
    noisy = gaussian_integers(
        counts.astype(np.int64) * COUNT_STEPS,
        sensitivity=Fraction(plan.count_shift),
        stddev=plan.count_stddev,
        relation=plan.relation,
        source=source,
    ).value
    return np.asarray(noisy / COUNT_STEPS)


def _norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    norms = np.empty(rows.shape[0])
    for start, stop in blocks(*rows.shape):
        part = rows[start:stop].astype(np.float64)
        norms[start:stop] = np.sqrt(np.einsum("ij,ij->i", part, part)) / WHITENED_STEPS
    return norms


def _on_grid(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Round weights to integers and bound their length, so that scores are exact."""
    lengths = np.sqrt(np.einsum("ij,ij->j", weights, weights)) / _WEIGHT_STEPS
    return np.asarray(np.rint(weights / np.maximum(lengths / _LONGEST_WEIGHTS, 1.0)))
