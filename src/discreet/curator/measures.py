"""Lowered numbers made ready to be added up, squared and counted in cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from discreet.curator.grids import Grid
from discreet.curator.lowering import Key, Lowered, Lowering
from discreet.errors import NotApplicable

__all__ = [
    "LIMB",
    "above",
    "aggregated",
    "cell",
    "limbs",
    "listed",
    "part",
    "squared",
    "truth_number",
]

LIMB = 30


def aggregated(table: Any, *, keys: Mapping[str, Any], sums: Mapping[str, Any]) -> Any:
    """Count the rows and add up ``sums``, for each combination of ``keys``: keys, rows, sums.

    Terms become columns first, as one that is constant could not be added up.
    """
    if not keys and not sums:
        return table.aggregate(rows=table.count())
    terms = table.select(**keys, **sums)
    totals = {name: terms[name].sum() for name in sums}
    if not keys:
        return terms.aggregate(rows=terms.count(), **totals)
    return terms.group_by(list(keys)).aggregate(rows=terms.count(), **totals)


def above(lowering: Lowering, of: Lowered, floor: int) -> Lowered:
    """A number less ``floor`` steps."""
    grid = Grid(of.grid.step, of.grid.low - floor, of.grid.high - floor)
    if floor == 0:
        return of
    return Lowered(grid, lowering.algebra.subtract(of.term, lowering.algebra.constant(floor)))


def squared(lowering: Lowering, of: Lowered) -> Lowered:
    """The square of a number; its magnitude must be at most 2**26, so that it is exact."""
    if of.grid.magnitude > 2**26:
        raise NotApplicable("only numbers of at most 2**26 steps are squared exactly")
    ends = (of.grid.low**2, of.grid.high**2)
    low = 0 if of.grid.low <= 0 <= of.grid.high else min(ends)
    grid = Grid(of.grid.step**2, low, of.grid.magnitude**2)
    return Lowered(grid, lowering.algebra.multiply(of.term, of.term))


def limbs(lowering: Lowering, of: Lowered) -> list[Any]:
    """Terms of at most 2**30, high one first, that make up the number less its lowest value.

    The number has less than 2**52 steps, so the division by 2**30 is exact in a double.
    """
    rest = above(lowering, of, of.grid.low)
    if rest.grid.high <= 2**LIMB:
        return [rest.term]
    high = lowering.algebra.coarsened(rest.term, LIMB)
    weight = lowering.algebra.constant(2**LIMB)
    low = lowering.algebra.subtract(rest.term, lowering.algebra.multiply(high, weight))
    return [high, low]


def truth_number(lowering: Lowering, condition: Any) -> Any:
    """1 where a condition holds, 0 elsewhere."""
    return lowering.algebra.choose(
        condition, lowering.algebra.constant(1), lowering.algebra.constant(0)
    )


def cell(lowering: Lowering, of: Lowered, edges: Sequence[int]) -> Any:
    """How many of the increasing ``edges`` (in steps) a number has reached."""

    def search(first: int, last: int) -> Any:
        if first == last:
            return lowering.algebra.constant(first)
        middle = (first + last) // 2
        edge = lowering.algebra.constant(edges[middle])
        reached = lowering.algebra.compare(">=", of.term, edge)
        return lowering.algebra.choose(reached, search(middle + 1, last), search(first, middle))

    return search(0, len(edges))


def part(lowering: Lowering, of: Lowered, width: int) -> Any:
    """floor((n - low) / width), which is exact because n - low is below 2**53."""
    rest = above(lowering, of, of.grid.low)
    return lowering.algebra.quotient(
        rest.term,
        lowering.algebra.constant(width),
        factor=1.0,
        low=0,
        high=rest.grid.high // width,
        default=0,
    )


def listed(lowering: Lowering, key: Key, values: Sequence[Any]) -> Any:
    """Whether a key is one of some kept values."""
    return lowering.algebra.one_of(key.term, values)
