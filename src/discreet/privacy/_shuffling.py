"""Amplification by shuffling: many people report, and who sent which report is lost.

The pair is that of the stronger clones (Feldman, McMillan and Talwar 2023), for any
epsilon-locally private randomizer: with c = e^-epsilon, N ~ Bin(n - 1, 2 c / (1 + c)) other people
look like the one in question, and of N + 1 reports

    x = Bin(N, 1/2) + Bernoulli(1 / (1 + c))    against    x = Bin(N, 1/2) + Bernoulli(c / (1 + c))

say yes; N is seen too. The loss is log((t + c (1 - t)) / (c t + 1 - t)) with t = x / (N + 1).

A fair coin more is post-processing, so the pair for N dominates that for N + 1. Blocks of N,
each replaced by its first number, therefore give a pair above, and by its last number one below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._rounding import round_up
from discreet.errors import NotApplicable, RelationMismatch
from discreet.privacy._claims import PureDP
from discreet.privacy._loss import MOST, Bounds, Loss, Relation, check_loss, wrap
from discreet.privacy._pair import FINE, Array, Cells, Pair, Resolution, Side, log_ratio
from discreet.privacy._renyi import Spectrum, curve, divergence

# Tails of the binomial are computed to a few units times the root of N: see the tests.
_LARGEST_POPULATION = 10**9
_LARGEST_EPSILON = 600.0
_BLOCKS = 500
_MOST_BINS, _MOST_BLOCKS, _MOST_POINTS = 1024, 600, 4096
_CURVE_CELLS = 320
# Blocks are narrow within this many standard deviations.
_CENTRE = 6.5


@final
@dataclass(frozen=True, repr=False)
class Shuffled(Loss):
    """What a person's report costs when ``population`` reports are shuffled.

    Build it with ``.shuffled(population=)``. The pair dominates that of every randomizer with the
    same epsilon; a given one may cost less.

    >>> from discreet.privacy import RandomizedResponse
    >>> round(RandomizedResponse(1.0).shuffled(population=10_000).epsilon(delta=1e-6), 3)
    0.043
    """

    base: Loss
    population: int

    def check(self) -> None:
        total = _validate.integer("population", self.population, at_least=2, at_most=MOST)
        if check_loss("base", self.base).relation is not Relation.REPLACE:
            raise RelationMismatch(
                "shuffling amplifies the loss of one person's report under 'replace', got "
                f"{self.base!r} under {self.base.relation.value!r}"
            )
        claim = self.base.claim()
        if claim is None or claim[1] > 0:
            raise NotApplicable(
                f"shuffling is proved for a report with a finite epsilon at delta 0, not for "
                f"{self.base!r}"
            )
        self._set(population=total)

    @property
    def relation(self) -> Relation:
        return Relation.REPLACE

    def __repr__(self) -> str:
        return f"{wrap(self.base)}.shuffled(population={self.population})"

    def claim(self) -> tuple[Fraction, Fraction] | None:
        # With a positive probability no other report looks like that of the person.
        return self.base.claim()

    def within_float_range(self) -> Loss:
        epsilon, _ = self.base.claim()  # type: ignore[misc] # check() refused None
        if epsilon > _LARGEST_EPSILON or epsilon == 0:
            return PureDP(epsilon, Relation.REPLACE)
        if self.population > _LARGEST_POPULATION:
            return replace(self, population=_LARGEST_POPULATION)  # fewer people dominate
        return self

    def _numbers(self) -> tuple[float, int] | None:
        """Return epsilon and the number of other people, if the numerics cover them."""
        seen = self.within_float_range()
        if not isinstance(seen, Shuffled):
            return None
        return round_up(self.base.claim()[0]), seen.population - 1  # type: ignore[index]

    def pair(self, resolution: Resolution) -> Pair:
        known = self._numbers()
        if known is None:
            return self.within_float_range().pair(resolution)
        above, below = (
            _cells(*known, resolution.cells, resolution.tail, first=first)
            for first in (True, False)
        )
        return Pair(above, (below,), reflected=True)

    def renyi(self, orders: Array) -> Array:
        known = self._numbers()
        least = curve(self.base, orders)
        if known is None:
            return least
        measure = _cells(*known, _CURVE_CELLS, FINE.tail, first=True).upper()
        # No loss is above epsilon: what was counted as infinite is counted there.
        loss = np.append(measure.loss[0], known[0])
        mass = np.append(measure.mass[0], measure.infinite[0]) * (1.0 + measure.mass_error)
        seen = mass > 0
        spectrum = Spectrum.from_losses(np.log(mass[seen]) - loss[seen], loss[seen])
        smaller: Array = np.minimum(least, divergence(orders, spectrum))
        return smaller

    def closed_delta(self, epsilon: float) -> Bounds | None:
        """Return the bracket of one shuffled report, from blocks of N."""
        known = self._numbers()
        if known is None:
            return None
        if epsilon >= known[0]:
            return Bounds(0.0, 0.0)
        low, high = (_make_profile(*known, 1e-300, first)(epsilon) for first in (False, True))
        return Bounds(min(low, high), high)

    def closed_epsilon(self, delta: float) -> Bounds | None:
        """Return the bracket of one shuffled report, from blocks of N."""
        known = self._numbers()
        if known is None:
            return None
        top, others = known
        tail = max(1e-300, 1e-7 * delta)
        upper = _solve(_make_profile(top, others, tail, True), delta, top, outwards=1.0)
        lower = _solve(_make_profile(top, others, tail, False), delta, top, outwards=-1.0)
        return Bounds(min(lower, upper), upper)


class _Blocks(NamedTuple):
    """Numbers of clones that stand for blocks, their weights and errors, and what is left out."""

    clones: Array
    weight: Array
    error: Array
    lost: float


def _tail_error(count: Array | float) -> Array | float:
    """Bound the relative error of a binomial tail where chance and rest are floats."""
    return 4e-15 * (10.0 + np.sqrt(count))


def error_at_any_chance(count: int) -> float:
    """Bound the same where 1 - chance is rounded: it is a factor up to ``count`` times."""
    return float(_tail_error(count)) + 3e-16 * count


def _make_blocks(epsilon: float, others: int, pieces: int, tail: float, first: bool) -> _Blocks:
    """Divide the numbers of clones into blocks that stand for their first or last number."""
    odds = math.exp(-epsilon)
    # More clones are better: the chance is rounded to the side that is wanted.
    chance = 2.0 * odds / (1.0 + odds) * (1.0 - 4e-16 if first else 1.0 + 4e-16)
    chance = min(chance, 1.0)
    rest = 1.0 - chance
    if chance < 0.5:
        # A chance whose rest is a float: rounding the rest would move the tails far more than that.
        rest = math.nextafter(rest, 1.0 if first else 0.0)
        chance = 1.0 - rest
    mean, reach = others * chance, math.sqrt(-2.0 * math.log(tail))
    spread = math.sqrt(mean * (1.0 - chance))
    start = max(0, math.floor(mean - reach * math.sqrt(mean)))
    end = min(others, math.ceil(mean + reach * math.sqrt(mean) + reach * reach)) + 1
    if end - start <= pieces:
        edges = np.arange(start, end + 1.0)
    else:
        few = max(2, pieces // 20)
        centre = mean + spread * np.linspace(-_CENTRE, _CENTRE, pieces - 2 * few)
        inner = np.concatenate(
            [np.linspace(start, centre[0], few), centre, np.linspace(centre[-1], end, few)]
        )
        edges = np.unique(np.clip(np.rint(inner), start, end))
    under = tail_of_binomial(others - edges + 1.0, others, rest)  # P(N < edge)
    over = tail_of_binomial(edges, others, chance)  # P(N >= edge)
    if first:
        over[-1] = 0.0  # the last block has no end
    left = edges[1:] <= mean
    weight = np.where(left, np.diff(under), -np.diff(over))
    error = np.where(left, under[1:], over[:-1]) * _tail_error(others)
    clones = edges[:-1] if first else edges[1:] - 1.0
    return _Blocks(clones, np.maximum(weight, 0.0), error, float(under[0]) if first else 0.0)


def tail_of_binomial(at_least: Array | float, count: Array | float, chance: float) -> Array:
    """Return P(Bin(count, chance) >= at_least)."""
    inside = np.clip(at_least, 1.0, np.maximum(count, 1.0))
    found = special.betainc(inside, np.maximum(count - inside + 1.0, 1.0), chance)
    return np.where(at_least <= 0.0, 1.0, np.where(at_least > count, 0.0, found))


def _tails(clones: Array, at_least: Array, odds: float) -> tuple[Array, Array]:
    """Return P(x >= k) under both distributions."""
    more = tail_of_binomial(at_least - 1.0, clones, 0.5)
    fewer = tail_of_binomial(at_least, clones, 0.5)
    whole = 1.0 + odds
    return (more + odds * fewer) / whole, (odds * more + fewer) / whole


def _make_profile(
    epsilon: float, others: int, tail: float, first: bool
) -> Callable[[float], float]:
    """Return delta as a function of epsilon: above it for the first numbers, else below."""
    blocks = _make_blocks(epsilon, others, _BLOCKS, tail, first)
    odds = math.exp(-epsilon)
    sign = 1.0 if first else -1.0
    weight = np.maximum(blocks.weight + sign * blocks.error, 0.0)
    error = _tail_error(blocks.clones)

    def find_delta(at: float) -> float:
        # The outcomes whose loss is at least ``at``: from t = (e^at - c) / ((1 - c) (1 + e^at)).
        place = (1.0 - odds * math.exp(-at)) / (-math.expm1(-epsilon) * (1.0 + math.exp(-at)))
        with_unit, without = _tails(blocks.clones, np.ceil(place * (blocks.clones + 1.0)), odds)
        without = without * math.exp(at)
        value = with_unit - without + sign * error * (with_unit + without)
        found = blocks.lost + float(np.dot(weight, np.maximum(value, 0.0)))
        return min(1.0, max(0.0, found * (1.0 + sign * 1e-13)))

    return find_delta


def _solve(
    profile: Callable[[float], float], delta: float, top: float, *, outwards: float
) -> float:
    """Return an epsilon whose delta is certainly on the wanted side of the target."""
    if profile(0.0) <= delta:
        return 0.0
    low, high = 0.0, top
    log_low, log_high = math.log(profile(0.0)), -math.inf
    for _ in range(200):
        if high - low <= 1e-7 * high:
            break
        middle = 0.5 * (low + high)
        if math.isfinite(log_high) and log_low - log_high < 20.0:
            # Log delta is nearly straight here; a step beyond the chord turns sides.
            share = (log_low - math.log(delta)) / (log_low - log_high)
            middle = low + (high - low) * min(max(share, 0.02), 0.98)
        elif middle > 8.0 * max(low, 1e-12 * top) and low < 1e-3 * top:
            middle = math.sqrt(max(low, 1e-6 * high) * high)
        found = profile(middle)
        if found <= delta:
            high, log_high = middle, math.log(found) if found > 0.0 else -math.inf
        else:
            low, log_low = middle, math.log(found)
    return high if outwards > 0.0 else low


@lru_cache(maxsize=16)
def _cells(epsilon: float, others: int, cells: int, tail: float, *, first: bool) -> Cells:
    """Return cells of the pair above (``first``) or below."""
    pieces = min(max(cells, 48), _MOST_BLOCKS)
    blocks = _make_blocks(epsilon, others, pieces, tail, first)
    last = float(blocks.clones[-1])
    if len(blocks.clones) == last - blocks.clones[0] + 1.0 and last * last < 2.0 * _MOST_POINTS:
        return _point_cells(epsilon, blocks)
    bins = min(max(cells, 96), _MOST_BINS) // 2
    return _bin_cells(epsilon, blocks, bins, tail)


def _point_cells(epsilon: float, blocks: _Blocks) -> Cells:
    """Return one cell for every outcome."""
    odds = math.exp(-epsilon)
    clones = np.repeat(blocks.clones, blocks.clones.astype(np.int64) + 2)
    weight, error = (np.repeat(part, blocks.clones.astype(np.int64) + 2) for part in blocks[1:3])
    yes = np.concatenate([np.arange(count + 2.0) for count in blocks.clones])
    scale = weight * 0.5**clones / (1.0 + odds)
    before, here = special.binom(clones, yes - 1.0), special.binom(clones, yes)
    p, q = scale * (before + odds * here), scale * (odds * before + here)
    seen = weight > 0.0
    slack = 1e-13 + error[seen] / weight[seen]
    cells = Cells.points(
        p[seen], q[seen], _loss_at(2.0 * yes / (clones + 1.0) - 1.0, epsilon)[seen]
    )
    lost = np.array([blocks.lost])
    side = Side(lost, slack=slack[None, :])
    return replace(cells, with_unit=side, without=side, error=1e-15)


def _loss_at(place: Array, epsilon: float) -> Array:
    """Return the loss at s = 2 t - 1."""
    odds = math.exp(-epsilon)
    return np.clip(
        np.log1p(2.0 * -math.expm1(-epsilon) * place / (1.0 + odds - place * (1.0 - odds))),
        -epsilon,
        epsilon,
    )


def _bin_cells(epsilon: float, blocks: _Blocks, bins: int, tail: float) -> Cells:
    """Return cells in which all outcomes of similar loss are together, of all blocks."""
    odds = math.exp(-epsilon)
    reach, fewest = math.sqrt(-2.0 * math.log(tail)), float(blocks.clones[0])
    farthest = min(1.0, (reach * math.sqrt(fewest) + 1.0) / (fewest + 1.0))
    places = np.linspace(0.0, farthest, bins + 1)
    clones = blocks.clones[:, None]
    from_here = np.ceil(0.5 * (1.0 + places) * (clones + 1.0))
    from_here[:, 0] = np.floor(0.5 * (clones[:, 0] + 1.0)) + 1.0
    if farthest == 1.0:
        from_here[:, -1] = clones[:, 0] + 2.0
    with_unit, without = _tails(clones, from_here, odds)
    # Outcomes with as many yes as no have loss 0 and join the first bin above it.
    even = np.where(blocks.clones % 2 == 1, 1.0 - with_unit[:, 0] - without[:, 0], 0.0)
    weight, relative = blocks.weight, np.asarray(_tail_error(blocks.clones))
    masses, errors = [], []
    for tails in (with_unit, without):
        inside = -np.diff(tails, axis=1)
        rough = (tails[:, 1:] + tails[:, :-1]) * relative[:, None]
        masses.append(weight @ inside)
        errors.append(weight @ rough + blocks.error @ inside)
    beyond = [float(weight @ tails[:, -1]) * (1.0 + 1e-9) for tails in (with_unit, without)]
    p = np.concatenate([masses[1][::-1], masses[0]])
    q = np.concatenate([masses[0][::-1], masses[1]])
    p[bins] += weight @ np.maximum(even, 0.0)
    q[bins] += weight @ np.maximum(even, 0.0)
    seen = (p > 0.0) & (q > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rough_p = np.where(seen, np.concatenate([errors[1][::-1], errors[0]]) / p, 1.0)
        rough_q = np.where(seen, np.concatenate([errors[0][::-1], errors[1]]) / q, 1.0)
    rough_p, rough_q = np.minimum(rough_p, 1.0), np.minimum(rough_q, 1.0)
    edges = _loss_at(np.concatenate([-places[:0:-1], places]), epsilon)
    low, high = edges[:-1], edges[1:]
    average = np.where(seen, log_ratio(np.where(seen, p, 1.0), np.where(seen, q, 1.0)), low)
    # A lattice point may lie on the other side of an edge by a rounding.
    steep = float(np.max(np.diff(edges))) * bins / farthest
    return Cells(
        np.where(seen, p, 0.0)[None, :],
        np.where(seen, q, 0.0)[None, :],
        np.clip(average, low, high)[None, :],
        low[None, :],
        high[None, :],
        Side(np.zeros(1), beyond[1], beyond[0] + blocks.lost, rough_p[None, :]),
        Side(np.zeros(1), beyond[0] + blocks.lost, beyond[1], rough_q[None, :]),
        slack=(rough_p + rough_q)[None, :],
        error=1e-15 * (1.0 + steep),
        touching=True,
    )
