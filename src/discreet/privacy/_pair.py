"""A pair of distributions (P, Q) in cells, and the measures of privacy loss below and above it.

P is the law of the release with the unit, Q without it. A cell of the outcome space knows its
masses under P and under Q, its average loss log(P_i / Q_i) and the range of the loss log(dP/dQ)
inside it. From the cells come two measures of losses under P:

* **lower**: each cell becomes one point at its average loss. Merging outcomes is
  post-processing, so this pair is dominated by the true one.
* **upper**: each cell is split between the end points of its loss range so that its
  masses under P and under Q stay what they are. In u = exp(-loss) this is a
  mean-preserving spread, and hockey-stick divergences are expectations under P of convex
  functions of u, so this pair dominates the true one. (It is "connecting the dots" of
  Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, on a grid that follows the
  outcomes instead of the losses.)

Both relations survive composition: fix all other steps and the hockey-stick divergence
of the whole is again such an expectation. The relative error of either measure is of
second order in the cell width and does not grow with the number of steps.

Poisson sampling is linear in the pair and therefore exact on cells. Arrays have one row
for each pair, so that many pairs of one kind are handled at once.

**Hulls.** Some losses have no tight pair of distributions: bounded range, sampling without
replacement, Renyi curves, generic groups. What is known is a bound on the hockey-stick
divergence H(x), x = exp(eps), at some points. Every convex function below those points
lies below their lower convex hull, and a piecewise linear convex decreasing function from
H(0) = 1 is itself the profile of a pair: the change of slope at x_j is the mass of Q at
loss log x_j. That pair dominates, so it may be composed; it gives upper bounds only.
"""

# S9 of docs/coverage.md.

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

Array = np.ndarray

UNIT = 2.0**-52
# A few units in the last place: what log1p, exp and one product may lose.
ROUNDING = 4e-16
# What a logarithm, an exponential and some sums may lose of a mass, on any machine.
MASS_ROUNDING = 1e-14


@dataclass(frozen=True)
class Resolution:
    """How finely, and around which tilt, a pair is to be seen.

    ``tau`` is the tilt at which the answer is decided and ``focus`` the epsilon of interest,
    ``tail`` the mass that may be moved to loss +infinity, ``negligible`` a delta that does not
    matter. Cells are made for the pair as it is, or with ``swapped`` for (Q, P); any cells are
    valid, these are good. ``turned`` asks :func:`orient` for the other order of a pair that may
    stand in either one; atoms need not look at it.
    """

    cells: int = 96
    tau: float = 0.0
    tail: float = 1e-40
    focus: float = math.inf
    swapped: bool = False
    turned: bool = False
    negligible: float = 1e-12


ROUGH = Resolution()
FINE = Resolution(cells=4096, tail=1e-100)


@dataclass(frozen=True, eq=False, repr=False)
class Measure:
    """Masses of privacy losses under P, one row for each step of a kind.

    ``infinite`` is each row's mass at loss +infinity. ``mass_error`` bounds the relative
    floating error of the masses that is not yet on the safe side; whoever composes many
    steps pads by it.
    """

    loss: Array
    mass: Array
    infinite: Array
    mass_error: float = 1e-15

    @cached_property
    def everywhere(self) -> bool:
        """Whether every node has mass."""
        return bool(np.all(self.mass > 0))

    @classmethod
    def single(
        cls, loss: Array, mass: Array, infinite: float = 0.0, mass_error: float = 1e-15
    ) -> Measure:
        """Return a measure with one row."""
        return cls(loss[None, :], mass[None, :], np.array([infinite]), mass_error)

    def infinite_end(self, *, is_upper: bool) -> float:
        """Return the mass of one row at loss +infinity, rounded up or down."""
        rounding = MASS_ROUNDING if is_upper else -MASS_ROUNDING
        return min(1.0, float(self.infinite[0]) * (1.0 + rounding))


@dataclass(frozen=True, eq=False, repr=False)
class Side:
    """What one of the two distributions has beyond its masses in the cells.

    ``only`` is mass where the other one vanishes, ``low_tail`` and ``high_tail`` are masses beyond
    the lowest and the highest cell, ``slack`` bounds the relative floating error of the masses.
    """

    only: Array
    low_tail: Array | float = 0.0
    high_tail: Array | float = 0.0
    slack: Array | float = 1e-15

    def turn(self) -> Side:
        """Return the same where high losses have become low ones."""
        return replace(self, low_tail=self.high_tail, high_tail=self.low_tail)


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """Partitions of the outcomes of pairs (P, Q), one row for each pair.

    ``average`` is log(P_i / Q_i), and ``low <= average <= high`` the range of the loss in
    a cell; all three are one where cells are single points. ``slack`` (absolute) bounds the
    floating error of the average, cell by cell, and ``error`` that of every loss and mass; both
    measures are rounded to their safe side by them. ``touching`` says that each cell begins where
    the one before it ends; otherwise cells may come in any order. A ``hull`` is on the safe side
    already.
    """

    p: Array
    q: Array
    average: Array
    low: Array
    high: Array
    with_unit: Side
    without: Side
    slack: Array | float = 0.0
    error: float = 0.0
    mass_error: float = 1e-15
    touching: bool = False
    hull: bool = False

    @classmethod
    def points(
        cls,
        p: Array,
        q: Array,
        loss: Array,
        *,
        low: Array | None = None,
        high: Array | None = None,
        only_p: float = 0.0,
        only_q: float = 0.0,
    ) -> Cells:
        """Return one row of cells with masses ``p`` and ``q`` and average ``loss``."""
        average = loss[None, :]
        return cls(
            p[None, :],
            q[None, :],
            average,
            average if low is None else low[None, :],
            average if high is None else high[None, :],
            Side(np.array([only_p])),
            Side(np.array([only_q])),
        )

    @classmethod
    def of_hull(cls, measure: Measure) -> Cells:
        """Return the pair of a measure that dominates in both directions."""
        side = Side(measure.infinite)
        mass, loss = measure.mass, measure.loss
        with np.errstate(over="ignore", invalid="ignore"):
            other = np.where(mass > 0, np.minimum(mass * np.exp(-loss), 1.0), 0.0)
        return cls(
            mass, other, loss, loss, loss, side, side, mass_error=measure.mass_error, hull=True
        )

    def sampled(self, rate: float) -> Cells:
        """Return the cells of ((1 - rate) Q + rate P, Q)."""
        exact = self.low is self.high
        low = sampled_loss(self.low, rate)
        average = low if exact else sampled_loss(self.average, rate)
        high = low if exact else sampled_loss(self.high, rate)
        p, q = self.q + rate * (self.p - self.q), self.q
        first, second = self.with_unit, self.without
        if float(np.max(second.only)) > 0.0:
            # Where only Q lives the sampled pair has the finite loss log(1 - rate).
            thin = np.full((len(p), 1), math.log1p(-rate))
            alone = second.only[:, None]
            p, q = np.append(p, (1.0 - rate) * alone, axis=1), np.append(q, alone, axis=1)
            low = np.append(low, thin, axis=1)
            average = low if exact else np.append(average, thin, axis=1)
            high = low if exact else np.append(high, thin, axis=1)
        with_unit = Side(
            rate * first.only,
            second.low_tail + rate * (first.low_tail - second.low_tail),
            second.high_tail + rate * (first.high_tail - second.high_tail),
            first.slack if first.slack is second.slack else np.maximum(first.slack, second.slack),
        )
        without = replace(second, only=np.zeros_like(second.only))
        return replace(
            self,
            p=p,
            q=q,
            average=average,
            low=low,
            high=high,
            with_unit=with_unit,
            without=without,
            hull=False,
        )

    def unite(self, other: Cells, shares: tuple[float, float]) -> Cells:
        """Return the union of two pairs, of which each has at most its share; an upper bound only.

        Which of the two it is, is seen and does not depend on the unit. What lies beyond the cells
        counts as infinite in both directions.
        """
        both = (self, other)

        def join(part: str) -> Array:
            shapes = [np.broadcast_to(getattr(one, part), one.p.shape) for one in both]
            return np.concatenate(shapes, axis=1)

        def side(name: str, *, high: bool) -> Side:
            found = [getattr(one, name) for one in both]
            beyond = sum(
                share * (one.low_tail + one.high_tail)
                for share, one in zip(shares, found, strict=True)
            )
            only = sum(share * one.only for share, one in zip(shares, found, strict=True))
            slack = np.concatenate(
                [
                    np.broadcast_to(one.slack, cells.p.shape)
                    for one, cells in zip(found, both, strict=True)
                ],
                axis=1,
            )
            low, top = (0.0, beyond) if high else (beyond, 0.0)
            return Side(np.asarray(only), low, top, slack)

        return Cells(
            np.concatenate(
                [share * one.p for share, one in zip(shares, both, strict=True)], axis=1
            ),
            np.concatenate(
                [share * one.q for share, one in zip(shares, both, strict=True)], axis=1
            ),
            join("average"),
            join("low"),
            join("high"),
            side("with_unit", high=True),
            side("without", high=False),
            join("slack"),
            max(one.error for one in both) + 2.0**-52,
            max(one.mass_error for one in both),
        )

    def reversed(self) -> Cells:
        """Return the cells of (Q, P): the unit was added, not removed."""
        if self.hull:
            return self
        low = -self.high
        exact = self.low is self.high
        turned = replace(
            self,
            p=self.q,
            q=self.p,
            average=low if exact else -self.average,
            low=low,
            high=low if exact else -self.low,
            with_unit=self.without.turn(),
            without=self.with_unit.turn(),
        )
        # High losses lie on the left now.
        return turned._in_order(slice(None, None, -1)) if self.touching else turned

    def _in_order(self, order: Array | slice) -> Cells:
        def pick(values: Array | float) -> Array | float:
            return values[:, order] if isinstance(values, np.ndarray) else values

        exact = self.low is self.high
        low = self.low[:, order]
        return replace(
            self,
            p=self.p[:, order],
            q=self.q[:, order],
            average=low if exact else self.average[:, order],
            low=low,
            high=low if exact else self.high[:, order],
            with_unit=replace(self.with_unit, slack=pick(self.with_unit.slack)),
            without=replace(self.without, slack=pick(self.without.slack)),
            slack=pick(self.slack),
        )

    def _sort(self) -> Cells:
        if self.touching:
            return self
        return self._in_order(np.argsort(self.low[0], kind="stable"))

    def lower(self) -> Measure:
        """Return the measure whose hockey-stick divergences are at most those of the pair."""
        cells = self._sort()
        loss = cells.average - (cells.slack + self.error)
        mass = cells.p * (1.0 - (cells.with_unit.slack + self.error))
        return Measure(loss - ROUNDING * np.abs(loss), mass, self.with_unit.only)

    def upper(self) -> Measure:
        """Return the measure whose hockey-stick divergences are at least those of the pair."""
        side = self.with_unit
        infinite = side.only + side.high_tail
        if self.hull:
            return Measure(self.high, self.p, infinite, self.mass_error)
        cells = self._sort()
        p = cells.p * (1.0 + (cells.with_unit.slack + self.error))
        slack = cells.slack + self.error
        if cells.high is cells.low:
            loss = cells.high + slack
            return Measure(loss + ROUNDING * np.abs(loss), p, infinite, self.mass_error)
        low, high = cells.low + self.error, cells.high + self.error
        width = high - low
        average = np.minimum(cells.average + slack, high)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.expm1(low - average) / np.expm1(-width)
        share = np.where(width > 0, np.clip(share, 0.0, 1.0), 1.0)
        up, down = p * share, p * (1.0 - share)
        if self.touching:
            # Neighbouring cells share their boundary: n + 1 nodes instead of 2 n.
            loss = np.concatenate([low, high[:, -1:]], axis=1)
            mass = np.concatenate([down, np.zeros((len(down), 1))], axis=1)
            mass[:, 1:] += up
        else:
            loss = np.concatenate([low, high], axis=1)
            mass = np.concatenate([down, up], axis=1)
        mass[:, 0] += side.low_tail
        return Measure(loss + ROUNDING * np.abs(loss), mass, infinite, self.mass_error)


@dataclass(frozen=True, eq=False, repr=False)
class Pair:
    """What is known of the pair (P, Q) of one release.

    ``above`` dominates it. ``below`` is dominated by it: empty where no tight pair is known, and
    two where the pair may stand in either order. ``reflected`` says that (P, Q) and (Q, P) have
    the same profile, so that one direction is enough; whoever makes a pair knows.
    """

    above: Cells
    below: tuple[Cells, ...] = ()
    reflected: bool = False

    @classmethod
    def exact(cls, cells: Cells, *, reflected: bool = False) -> Pair:
        """Return a pair that is known exactly, up to the width of its cells."""
        return cls(cells, (cells,), reflected)

    @classmethod
    def of_hull(cls, measure: Measure) -> Pair:
        """Return a pair of which only a bound is known, the same in both directions."""
        return cls(Cells.of_hull(measure), reflected=True)

    def sampled(self, rate: float) -> Pair:
        """Return the pair on a Poisson sample, ((1 - rate) Q + rate P, Q), which is exact."""
        above = self.above.sampled(rate)
        below = (above if one is self.above else one.sampled(rate) for one in self.below)
        return Pair(above, tuple(below))


def orient(pair: Pair, *, swapped: bool, turned: bool = False) -> tuple[Measure | None, Measure]:
    """Return the measures below and above a pair, seen in one direction.

    This is the one place where a direction is taken: ``swapped`` is the direction of the whole
    plan, a unit added instead of removed, and ``turned`` the other order of a pair that may stand
    in either one.
    """
    above = pair.above.reversed() if swapped else pair.above
    if not pair.below:
        return None, above.upper()
    below = pair.below[-1 if turned else 0]
    if below is pair.above:
        return above.lower(), above.upper()
    return (below.reversed() if swapped else below).lower(), above.upper()


def largest_claim(pair: Pair) -> tuple[Fraction, Fraction] | None:
    """Return the largest loss of a pair in either direction as a claim, if it is bounded."""
    measures = [orient(pair, swapped=swapped)[1] for swapped in (False, True)]
    if any(float(measure.infinite.max()) > 0.0 for measure in measures):
        return None
    return Fraction(max(0.0, *(float(measure.loss.max()) for measure in measures))), Fraction(0)


def log_ratio(p: Array, q: Array) -> Array:
    """Return log(p / q) of positive numbers, also where they are nearly equal or far apart."""
    near = np.abs(p - q) < 0.5 * q
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        ratio = p / q
        plain = (ratio > 1e-300) & (ratio < 1e300)
        far = np.where(plain, np.log(np.where(plain, ratio, 1.0)), np.log(p) - np.log(q))
        return np.asarray(np.where(near, np.log1p(np.where(near, p - q, 0.0) / q), far))


def two_points(epsilon: float, delta: float = 0.0, share: float = 1.0) -> Pair:
    """Return randomized response on a ``share`` of outcomes; with ``delta`` everything is seen.

    With share 1 it dominates every (epsilon, delta)-DP pair (Kairouz, Oh, Viswanath 2015).
    """
    inside = (1.0 - delta) * share
    yes = inside / (1.0 + math.exp(-epsilon))
    no = inside * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    p, q = np.array([no, yes]), np.array([yes, no])
    loss = np.array([-epsilon, epsilon])
    if share < 1.0:
        rest = (1.0 - delta) * (1.0 - share)
        p, q = np.append(p, rest), np.append(q, rest)
        loss = np.append(loss, 0.0)
    return Pair.exact(Cells.points(p, q, loss, only_p=delta, only_q=delta), reflected=True)


def sampled_loss(loss: Array, rate: float) -> Array:
    """Return log(1 - rate + rate exp(loss)) without cancellation or overflow."""
    far = loss > 30.0
    inner = np.log1p(rate * np.expm1(np.where(far, 0.0, loss)))
    outer = loss + math.log(rate) + np.log1p((1.0 - rate) / rate * np.exp(-np.maximum(loss, 30.0)))
    return np.where(far, outer, inner)


# --- hulls of profiles ------------------------------------------------------------------------


def hull_of_profile(epsilon: Array, delta: Array) -> Measure:
    """Return the measure for a bound delta(eps) at increasing eps >= 0, for both directions.

    For eps < 0 it follows from H(x) = 1 - x + x H(1 / x). Beyond the last point the
    remaining delta is mass at infinity.
    """
    x = np.exp(epsilon)
    value = np.clip(delta, 0.0, 1.0)
    mirrored = epsilon > 0
    inverse = np.exp(-epsilon[mirrored])[::-1]
    reflected = 1.0 - inverse + inverse * value[mirrored][::-1]
    return _hull_measure(
        np.concatenate([[0.0], inverse, x]),
        np.concatenate([[1.0], reflected, value]),
        np.concatenate([[-math.inf], -epsilon[mirrored][::-1], epsilon]),
    )


def _hull_measure(x: Array, value: Array, loss: Array) -> Measure:
    """Return masses at the corners of the lower convex hull of the points (x, value)."""
    corners: list[int] = []
    for i in range(len(x)):
        while len(corners) >= 2 and _above(x, value, corners[-2], corners[-1], i):
            corners.pop()
        corners.append(i)
    # A profile never rises: cut the hull where it would.
    lowest = int(np.argmin(value[corners]))
    corners = corners[: lowest + 1]
    if len(corners) == 1:  # nothing is known: everything may be seen
        return Measure.single(np.zeros(1), np.zeros(1), 1.0)
    cx, cv = x[corners], value[corners]
    slope = np.diff(cv) / np.diff(cx)
    q = np.append(np.diff(slope), -slope[-1])
    mass = np.maximum(q * cx[1:], 0.0)
    keep = mass > 0
    return Measure.single(loss[corners][1:][keep], mass[keep], float(cv[-1]), mass_error=1e-12)


def _above(x: Array, value: Array, a: int, b: int, c: int) -> bool:
    """Whether the middle point is on or above the chord of its neighbours."""
    left = (value[b] - value[a]) * (x[c] - x[a])
    right = (value[c] - value[a]) * (x[b] - x[a])
    return bool(left >= right)


def known_number(what: str, value: float) -> float:
    """Return ``value``, or raise where it is not a number: no comparison with it means anything."""
    if math.isnan(value):
        raise ValueError(f"the {what} are not a number")
    return value


def single_delta(measure: Measure, epsilon: float, *, is_upper: bool) -> float:
    """Return delta of one step, exactly up to rounding: up for an upper bound, else down."""
    above = measure.loss[0] > epsilon
    value = -float(np.dot(measure.mass[0, above], np.expm1(epsilon - measure.loss[0, above])))
    slack = measure.mass_error + 1e-13 + UNIT * len(above)
    value *= 1.0 + slack if is_upper else 1.0 - slack
    infinite = measure.infinite_end(is_upper=is_upper)
    return min(1.0, max(0.0, known_number("masses", infinite + value)))


def profile(measure: Measure, epsilons: Array) -> Array:
    """Return upper bounds on delta of one step at many epsilons."""
    return np.array([single_delta(measure, epsilon, is_upper=True) for epsilon in epsilons])


def mirror(measure: Measure) -> Measure:
    """Return a symmetric measure whose profile for eps >= 0 is at least that of ``measure``.

    For eps < 0 it follows from H(x) = 1 - x + x H(1 / x): every positive loss l of mass p
    appears again as -l with mass p e^-l. Where that leaves less than no mass at 0, the hull of
    the profile serves.
    """
    positive = measure.loss[0] > 0
    loss, mass = measure.loss[0, positive], measure.mass[0, positive]
    other = mass * np.exp(-loss)
    rest = 1.0 - math.fsum(mass) - math.fsum(other) - float(measure.infinite[0])
    if rest < 0.0:
        losses = measure.loss[0]
        grid = np.unique(np.append(losses[losses >= 0.0], 0.0))
        return hull_of_profile(grid, profile(measure, grid))
    return Measure.single(
        np.concatenate([-loss, [0.0], loss]),
        np.concatenate([other, [rest], mass]),
        float(measure.infinite[0]),
        measure.mass_error + 1e-15,
    )
