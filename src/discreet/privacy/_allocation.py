"""Random allocation: in every epoch each record takes part in one of t steps, chosen at random.

Seen by the steps of an epoch, Q = N(0, s^2 I) and P is the mean over i of N(e_i, s^2 I). With
m = 1 / s the ratio is u = (1/t) sum_i W_i, W_i = exp(m Z_i - m^2 / 2), the Z_i independent normals
under Q (Feldman and Shenfeld 2025; Chua et al. 2024). A linear release attains the pair, and for
adaptive steps a kernel takes it to the real one, step by step: the choices of other records do not
depend on this one. One law of u under Q serves both directions.

**The law, certified on both sides.** Every hockey stick is an expectation under Q of a convex
function of u, so a law that is a mean-preserving spread of the law of u dominates, and one that
merges outcomes is dominated. Both survive sums of independent terms:

* **above**: mass sits on the nodes e^(j h). A cell [a, b] is split between its ends, masses under
  P and Q unchanged. A sum of two nodes, e^(i h) + e^(k h), lies log1p(e^(-|i - k| h)) / h nodes
  above the larger one, the same for every i: one convolution for distances of the same rise. It
  is split again.
* **below**: mass with its mean; pairs are merged by the same distances.

What is cut off goes to u = 0 and to infinity, or in the law below into the last node. The sum of
t terms is built from the binary digits of t. The grid becomes finer on the way: a block of n terms
has a relative variance of about 1 / n, and the error of its grid is to be a small share of that.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np
from scipy import special

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy._composition import compose
from discreet.privacy._gaussian import GDP, Gaussian
from discreet.privacy._loss import MOST, Loss, Relation, check_loss, wrap
from discreet.privacy._pair import ROUGH, Array, Cells, Pair, Resolution, Side
from discreet.privacy._renyi import curve

# Beyond these a Gaussian with more or without amplification stands in, which dominates.
_SMALLEST_MU = 1e-4
_LARGEST_MU = 10.0
_MOST_BATCHES = 10**6
_LARGEST_MOMENT = 128
_LEAST_TAIL = 1e-30
# A finer grid costs more than it gains: brackets are within a thousandth by this one.
_FINEST_CELLS = 540
_UNIT = 2.0**-52
_WIDEST_STEP = 0.1


@final
@dataclass(frozen=True, repr=False)
class Allocated(Loss):
    """An epoch in which each record takes part in some of its steps, chosen anew at random.

    Build it with ``Gaussian(...).allocate(batches=)``. Each record takes part in
    ``participations`` of ``batches`` steps; every set of that size is equally likely, and the
    choice does not depend on other records. Of these steps the first ``steps`` were carried out,
    a number that was fixed beforehand. For one participation the pair is exact. For k of t it is
    bounded by k epochs of t / k steps (Feldman and Shenfeld 2026): a random partition into k
    blocks with one step in each.

    Under replace, and for a unit of several ``records``, no amplification is proved, so each
    participation costs the Gaussian itself: a replaced record has three hypotheses in every step
    (before, after, absent), and domination by pairs does not give one kernel for three.
    """

    base: Loss
    batches: int
    participations: int = 1
    steps: int | None = None
    records: int = 1

    def check(self) -> None:
        base = check_loss("base", self.base)
        if isinstance(base, GDP) and base.relation is not Relation.ZERO_OUT:
            base = base.as_gaussian()
        if not isinstance(base, Gaussian):
            raise NotApplicable(
                f"random allocation has a known pair for a Gaussian only, not {base!r}"
            )
        batches = _validate.integer("batches", self.batches, at_least=2, at_most=MOST)
        taken = _validate.integer(
            "participations", self.participations, at_least=1, at_most=batches - 1
        )
        given = batches if self.steps is None else self.steps
        steps = _validate.integer("steps", given, at_least=1, at_most=batches)
        if taken > 1 and steps < batches:
            raise InvalidValue(
                "steps", self.steps, f"all {batches} where records take part {taken} times"
            )
        records = _validate.integer("records", self.records, at_least=1, at_most=MOST)
        self._set(base=base, batches=batches, participations=taken, steps=steps, records=records)

    @property
    def relation(self) -> Relation:
        return self.base.relation

    def __repr__(self) -> str:
        text = f"{wrap(self.base)}.allocate(batches={self.batches}"
        if self.participations > 1:
            text += f", participations={self.participations}"
        if self.carried_out < self.batches:
            text += f", steps={self.steps}"
        return f"{text})" if self.records == 1 else f"{text}).group({self.records})"

    @property
    def carried_out(self) -> int:
        """How many steps of the epoch were carried out."""
        return self.batches if self.steps is None else self.steps

    @property
    def tight(self) -> bool:
        return self.participations == self.records == 1 and self.relation is not Relation.REPLACE

    def sampling_refusal(self, records: int) -> str | None:
        return f"{self!r} is a whole epoch, and a Poisson sample of whole epochs has no known pair"

    def exact_group(self, size: int, relation: Relation) -> Loss:
        changed = 1 if relation is not Relation.REPLACE or relation is self.relation else 2
        base = replace(self._base, relation=relation)
        return replace(self, base=base, records=self.records * (size // changed))

    @property
    def is_gaussian_noise(self) -> bool:
        return True

    @property
    def _base(self) -> Gaussian:
        assert isinstance(self.base, Gaussian)
        return self.base

    def within_float_range(self) -> Loss:
        """Return the epochs of one participation that dominate, or without amplification."""
        base, taken = self._base, self.participations
        if self.records > 1 or self.relation is Relation.REPLACE or base.mu > _LARGEST_MU:
            return taken * base.group(self.records)
        if base.mu < _SMALLEST_MU:
            less = replace(base, noise_multiplier=1.0 / _SMALLEST_MU)
            return replace(self, base=less).within_float_range()
        if taken == 1 and self.batches <= _MOST_BATCHES:
            return self
        if taken == 1:
            # A mean of fewer terms is a spread of a mean of more, and cutting is post-processing.
            return Allocated(base, _MOST_BATCHES)
        size, longer = divmod(self.batches, taken)
        blocks = [(size, taken - longer), (size + 1, longer)]
        return compose(
            (Allocated(base, min(t, _MOST_BATCHES)) if t > 1 else base, count)
            for t, count in blocks
            if count
        )

    def pair(self, resolution: Resolution) -> Pair:
        if self.within_float_range() is not self:
            raise NotApplicable(f"{self!r} has no pair of its own, only losses that dominate it")
        if resolution is ROUGH:  # only what kind of pair it is matters
            return _law_pair(self._base.mu, self.batches, self.carried_out, 256, 1e-6)
        # Cells are a measure of fineness here: an error of the variance falls with their square.
        fineness = 2 ** math.floor(2.0 * math.log2(min(resolution.cells, _FINEST_CELLS)))
        tail = 10.0 ** math.floor(math.log10(max(resolution.tail, _LEAST_TAIL)))
        return _law_pair(self._base.mu, self.batches, self.carried_out, fineness, tail)

    def renyi(self, orders: Array) -> Array:
        """Return the better of closed moments and of no amplification.

        With a unit removed integer moments are coefficients of a power series, and between them
        the logarithm of a moment is convex. With a unit added the mean is at least the geometric
        mean, whose moments are those of a normal.
        """
        plain: Array = curve(self.base, orders) * (self.participations * self.records**2)
        stand_in = self.within_float_range()
        if stand_in is not self:
            return np.asarray(np.minimum(plain, curve(stand_in, orders)))
        mu, t, j = self._base.mu, self.batches, self.carried_out
        logs = np.array(_log_moments_of_mean(mu, t, j))
        knots = np.arange(1.0, len(logs) + 1.0)
        inside = orders <= knots[-1]
        removed = np.where(inside, np.interp(orders, knots, logs) / (orders - 1.0), math.inf)
        added = j * mu * mu * (t + orders - 1.0) / (2.0 * t * t)
        bound: Array = np.minimum(plain, np.maximum(removed, added) * (1.0 + 1e-12))
        return bound

    def claim(self) -> tuple[Fraction, Fraction] | None:
        return None

    def zcdp(self) -> float:
        """Return rho of every participation: a mixture never has more than its parts."""
        return self.participations * self.base.zcdp() * self.records**2

    def touched_mass(self) -> float:
        if not self.tight:
            return 1.0
        return min(1.0, self.carried_out / self.batches * (1.0 + 1e-15))


@lru_cache(maxsize=64)
def _log_moments_of_mean(mu: float, batches: int, steps: int) -> tuple[float, ...]:
    """Return log E u^a for a = 1, 2, ...: a! t^-a [x^a] e^((t-j) x) (sum_k E W^k x^k / k!)^j."""
    k = np.arange(_LARGEST_MOMENT + 1.0)
    factorial = special.gammaln(k + 1.0)
    one = 0.5 * mu * mu * k * (k - 1.0) - factorial
    power, left, base = np.full(len(k), -math.inf), steps, one
    power[0] = 0.0
    while left:
        if left & 1:
            power = _log_product(power, base)
        left >>= 1
        base = _log_product(base, base) if left else base
    if steps < batches:
        power = _log_product(power, k * math.log(batches - steps) - factorial)
    logs = power + factorial - k * math.log(batches)
    # What sums of logarithms may lose.
    padded = logs[1:] + 1e-13 * (1.0 + np.abs(power[1:]) + factorial[1:])
    return tuple(np.maximum(padded, 0.0).tolist())


def _log_product(first: Array, second: Array) -> Array:
    """Return the logarithms of the coefficients of a product of two power series."""
    size = len(first)
    gaps = np.subtract.outer(np.arange(size), np.arange(size))
    terms = np.where(gaps >= 0, first[None, :] + second[np.maximum(gaps, 0)], -math.inf)
    return np.asarray(special.logsumexp(terms, axis=1))


# --- the law of u -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Law:
    """The law under Q of a sum of terms, on the nodes e^((first + i) step), i = 0, 1, ...

    A law above has ``zero``, mass at 0, and ``lost``, mean at infinity; a law below has the mean of
    every node times its ``mass`` as ``mean``.
    """

    step: float
    first: int
    mass: Array
    mean: Array | None = None
    zero: float = 0.0
    lost: float = 0.0

    @property
    def nodes(self) -> Array:
        return np.asarray(np.exp(self.step * (self.first + np.arange(len(self.mass)))))


def _one_term(mu: float, step: float, tail: float, *, above: bool) -> _Law:
    """Return the law of W = exp(mu Z - mu^2 / 2)."""
    from discreet.privacy._normal_mixtures import normal_mass

    reach = float(-special.ndtri(tail)) + 0.5
    first = math.floor((-reach * mu - 0.5 * mu * mu) / step)
    last = math.ceil((reach * mu + 0.5 * mu * mu) / step)
    index = np.arange(first, last + 1.0)
    edge = (index * step / mu + 0.5 * mu)[None, :]
    q, p = normal_mass(edge)[0], normal_mass(edge - mu)[0]
    ends = np.array([edge[0, 0], edge[0, -1]])
    low_q, low_p = special.ndtr(ends[0]), special.ndtr(ends[0] - mu)
    high_q, high_p = special.ndtr(-ends[1]), special.ndtr(mu - ends[1])
    if not above:
        q[0], p[0] = q[0] + low_q, p[0] + low_p
        q[-1], p[-1] = q[-1] + high_q, p[-1] + high_p
        return _Law(step, first, q, p)
    node = np.exp(step * index)
    share = np.clip((p / node[:-1] - q) / math.expm1(step), 0.0, q)
    mass = np.zeros(len(index))
    mass[:-1] += q - share
    mass[1:] += share
    # Beyond the ends: between 0 and the first node, and the last node and infinity.
    mass[0] += low_p / node[0]
    mass[-1] += high_q
    return _Law(
        step,
        first,
        mass,
        zero=max(0.0, float(low_q - low_p / node[0])),
        lost=max(0.0, float(high_p - high_q * node[-1])),
    )


def _add(one: _Law, other: _Law, finer: bool) -> _Law:
    """Return the law of the sum of two independent terms on a grid, or one twice as fine."""
    if other.first < one.first:
        one, other = other, one
    stride = 2 if finer else 1
    step, same, above = one.step / stride, one is other, one.mean is None
    apart, na, nb = other.first - one.first, len(one.mass), len(other.mass)
    # Node j of the other law lies ``gap`` nodes above node i of the first.
    gaps = np.arange(0 if same else apart - na + 1, apart + nb)
    reach = math.ceil(-math.log(math.expm1(step)) / one.step)
    far = max(int(gaps[-1]), -int(gaps[0])) > reach
    gaps = gaps[np.abs(gaps) <= reach]
    rise = np.log1p(np.exp(-np.abs(gaps) * one.step)) / step
    whole = np.floor(rise).astype(int)
    # No sum lies below the least rise above the larger of both first nodes.
    least = 0 if far else stride * apart + int(whole.min())
    mass = np.zeros(stride * max(na, apart + nb) + math.ceil(math.log(2.0) / step) + 2 - least)
    mean = np.zeros(0 if above else len(mass))
    weights = np.expm1((rise - whole) * step) / math.expm1(step)
    for large, small, chosen, base in ((other, one, gaps >= 0, apart), (one, other, gaps < 0, 0)):
        distance = np.abs(gaps[chosen])
        if not len(distance):
            continue
        order = np.argsort(distance)
        distance, w, rises = distance[order], weights[chosen][order], rise[chosen][order]
        twice = np.where((distance > 0) & same, 2.0, 1.0)
        low, high = (twice * (1.0 - w), twice * w) if above else (twice, twice)
        ups = (np.floor(rises) if above else np.rint(rises)).astype(int)
        # Neighbouring distances with the same rise are one convolution, times the larger term.
        cuts = [0, *(np.flatnonzero(np.diff(ups)) + 1).tolist(), len(ups)]
        for i, k in itertools.pairwise(cuts):
            # Node k of the larger law meets the smaller one from ``offset`` nodes below on.
            offset = int(distance[i]) + small.first - large.first
            begin, end = max(0, offset), min(len(large.mass), offset + len(small.mass) + k - i - 1)
            if begin >= end:
                continue
            here, there = slice(begin, end), slice(begin - offset, end - offset)
            start = stride * (begin + base) + int(ups[i]) - least
            target = slice(start, start + stride * (end - begin), stride)
            met = np.convolve(small.mass, low[i:k])[there]
            mass[target] += large.mass[here] * met
            if above:
                higher = slice(start + 1, start + 1 + stride * (end - begin), stride)
                mass[higher] += large.mass[here] * np.convolve(small.mass, high[i:k])[there]
            elif large.mean is not None and small.mean is not None:
                mean[target] += large.mean[here] * met
                mean[target] += large.mass[here] * np.convolve(small.mean, low[i:k])[there]
    if far:
        _add_far(mass, mean, one, other, reach, stride)
    zero = one.zero * other.zero
    for law, start, weight in ((one, 0, other.zero), (other, apart, one.zero)):
        # The other term is 0; a sum below the first node is split between that node and 0.
        alone, spot = weight * law.mass, stride * (start + np.arange(len(law.mass))) - least
        share = alone * np.exp(step * np.minimum(spot, 0.0))
        if weight > 0.0:
            np.add.at(mass, np.maximum(spot, 0), share)
        zero += float(np.sum(alone - share))
    first = stride * one.first + least
    return _Law(step, first, mass, None if above else mean, zero, one.lost + other.lost)


def _add_far(mass: Array, mean: Array, one: _Law, other: _Law, reach: int, stride: int) -> None:
    """Add the pairs that are more than ``reach`` nodes apart: within one cell above the larger."""
    apart = other.first - one.first
    size = max(len(one.mass), apart + len(other.mass))
    near, cell = reach + 1, math.expm1(one.step / stride)
    for large, small, up, down in ((one, other, 0, apart), (other, one, apart, 0)):
        a, b = _align(large.mass, up, size)[near:], _align(small.mass, down, size)
        spot = stride * np.arange(near, size)
        pairs = a * np.cumsum(b)[: size - near]
        if large.mean is None or small.mean is None:
            scale = np.exp(one.step * (np.arange(size) - (size - 1.0)))
            sums = np.cumsum(b * scale)[: size - near] / scale[near:]
            share = np.minimum(a * sums / cell, pairs)
            mass[spot] += pairs - share
            mass[spot + 1] += share
            continue
        x, y = _align(large.mean, up, size)[near:], _align(small.mean, down, size)
        mass[spot] += pairs
        mean[spot] += x * np.cumsum(b)[: size - near] + a * np.cumsum(y)[: size - near]


def _align(values: Array, start: int, size: int) -> Array:
    wide = np.zeros(size)
    wide[start : start + len(values)] = values
    return wide


def _trim(law: _Law, terms: int, tail: float) -> _Law:
    """Return the law without its far ends, each of about ``tail``."""
    nodes = law.nodes
    moments = law.mass * nodes if law.mean is None else law.mean
    low = int(np.searchsorted(np.cumsum(law.mass), tail, side="right"))
    beyond = np.cumsum(moments[::-1])[::-1]
    high = int(np.sum(beyond > tail * terms)) - 1
    high, low = max(high, 0), min(low, max(high, 0))
    mass = law.mass[low : high + 1].copy()
    first = law.first + low
    if law.mean is not None:
        mean = law.mean[low : high + 1].copy()
        mass[0] += law.mass[:low].sum()
        mean[0] += law.mean[:low].sum()
        mass[-1] += law.mass[high + 1 :].sum()
        mean[-1] += law.mean[high + 1 :].sum()
        return replace(law, first=first, mass=mass, mean=mean)
    left = float(moments[:low].sum()) / nodes[low]
    mass[0] += left
    dropped = float(law.mass[high + 1 :].sum())
    mass[-1] += dropped
    lost = max(0.0, float(moments[high + 1 :].sum()) - dropped * nodes[high])
    zero = law.zero + max(0.0, float(law.mass[:low].sum()) - left)
    return replace(law, first=first, mass=mass, zero=zero, lost=law.lost + lost)


def _sum_law(
    mu: float, terms: int, error: float, tail: float, *, above: bool
) -> tuple[_Law, float]:
    """Return the law of a sum of terms W, and a bound on the relative error of its masses.

    ``error`` is the share of the variance that the grids may add or take away.
    """
    levels = terms.bit_length()
    # The grid of a block of n terms adds about n step^2 / 6 to the variance of one term. Blocks
    # are doubled at every level, and those of the binary digits are joined: two levels more.
    square = 6.0 * error * math.expm1(min(mu * mu, 50.0)) / (levels + 2)
    step = min(math.sqrt(square), _WIDEST_STEP, 0.25 * mu)
    share = tail / (2.0 * levels + 2.0)
    block, size = _one_term(mu, step, share, above=above), 1
    total, done = (block, 1) if terms & 1 else (None, 0)
    largest = len(block.mass)

    def join(one: _Law, other: _Law, count: int) -> _Law:
        nonlocal largest
        found = _add(one, other, other.step > 1.5 * math.sqrt(square / count))
        largest = max(largest, len(found.mass))
        return _trim(found, count, share)

    while done < terms:
        size *= 2
        block = join(block, block, size)
        if terms & size:
            done += size
            total = block if total is None else join(_refine(total, block.step), block, done)
    assert total is not None
    return total, 16.0 * _UNIT * (largest + 4.0 / total.step) * 2.0 * (levels + 1)


def _refine(law: _Law, step: float) -> _Law:
    """Return the same law on a grid 1, 2, 4, ... times as fine, of which its nodes are nodes."""
    stride = round(law.step / step)
    size = stride * (len(law.mass) - 1) + 1
    mass = np.zeros(size)
    mass[::stride] = law.mass
    mean = None
    if law.mean is not None:
        mean = np.zeros(size)
        mean[::stride] = law.mean
    return replace(law, step=step, first=stride * law.first, mass=mass, mean=mean)


@lru_cache(maxsize=32)
def _law_pair(mu: float, batches: int, steps: int, fineness: int, tail: float) -> Pair:
    """Return the cells above and below the pair of one epoch."""
    error = 100.0 / fineness
    high, wrong = _sum_law(mu, steps, error, tail, above=True)
    low, _ = _sum_law(mu, steps, error, tail, above=False)
    missed = batches - steps
    exponent = high.step * (high.first + np.arange(len(high.mass)))
    loss = exponent - math.log(batches)
    ratio = np.exp(loss)
    zero, q = high.zero, high.mass
    if missed:
        ratio = ratio + missed / batches
        loss = np.log(ratio)
        loss = np.append(math.log(missed / batches), loss)
        ratio, q, zero = np.append(missed / batches, ratio), np.append(zero, q), 0.0
    rounding = 8.0 * _UNIT * (1.0 + float(np.abs(exponent).max()) + math.log(batches))
    above = Cells.points(ratio * q, q, loss, only_p=high.lost / batches, only_q=zero)
    below_q = low.mass[low.mass > 0]
    below_p = (missed * below_q + low.mean[low.mass > 0]) / batches  # type: ignore[index]
    below = Cells.points(below_p, below_q, np.log(below_p / below_q))
    return Pair(_pad(above, wrong, rounding), (_pad(below, wrong, rounding + wrong),))


def _pad(cells: Cells, wrong: float, rounding: float) -> Cells:
    """Return cells whose masses and losses may be wrong by so much."""
    with_unit = Side(cells.with_unit.only, slack=wrong)
    without = Side(cells.without.only, slack=wrong)
    return replace(cells, with_unit=with_unit, without=without, error=rounding)
