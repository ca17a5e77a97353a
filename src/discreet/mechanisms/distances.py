"""Functions whose distance to instability is known exactly: votes, modes, medians (S16, S24).

Each distance is (fewest changes of the data that alter the answer) - 1. Such a distance
moves by at most one between neighbours: if they have the same answer, the set of data
with another answer is the same for both; if not, both distances are 0.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms.parameters import flag
from discreet.mechanisms.stability import StableFunction
from discreet.privacy import Relation

__all__ = ["median", "mode", "most_votes", "votes_distance"]

VOTERS = ("records", "ensemble")


def votes_distance(votes: Sequence[int] | np.ndarray, *, moved: bool) -> int:
    """Return how many votes may change without changing the winner; ties go to the first (S24).

    Category j overtakes the winner a as soon as its gap g = votes[a] - votes[j] is used up:
    down to 0 if j comes before a, below 0 if it comes after. A vote that moves from a to
    j uses up 2, a vote added or removed uses up 1:

    ========  ========================  ===================
              j < a                     j > a
    ========  ========================  ===================
    moved     ceil(g / 2) - 1           floor(g / 2)
    added     g - 1                     g
    ========  ========================  ===================

    >>> votes_distance([3, 9, 2], moved=True), votes_distance([3, 9, 2], moved=False)
    (2, 5)
    """
    counts = np.asarray(votes, dtype=np.int64)
    winner = int(np.argmax(counts))
    gaps = (counts[winner] - counts).astype(np.int64)
    before, after = gaps[:winner], gaps[winner + 1 :]
    if moved:
        distances = np.concatenate([(before + 1) // 2 - 1, after // 2])
    else:
        distances = np.concatenate([before - 1, after])
    return int(distances.min())


def most_votes(
    *, categories: int, relation: Relation | str, voters: str = "records"
) -> StableFunction[Any, int]:
    """The category with most votes, of a vector of counts; ties go to the lowest index (S24).

    ``voters="records"``: each record is one vote, moved under replace and added or removed
    under add_remove. ``voters="ensemble"``: the voters are a fixed and public number of
    teachers of which one record reaches at most one, so under either relation one vote
    moves; the distance is then exact for votes and, for records, a lower bound that
    moves by at most one, which suffices.
    """
    number = _validate.integer("categories", categories, at_least=2)
    chosen = Relation.parse(relation)
    kind = _validate.one_of("voters", voters, VOTERS)
    moved = chosen is Relation.REPLACE or kind == "ensemble"
    return StableFunction(
        value=lambda votes: int(np.argmax(_counts(votes, number))),
        distance=lambda votes: votes_distance(_counts(votes, number), moved=moved),
        relation=chosen,
        name=f"most votes of {number} categories, voters are {kind}",
    )


def mode(
    domain: Sequence[Hashable], *, relation: Relation | str
) -> StableFunction[Iterable[Any], Any]:
    """The most frequent value of a public ``domain``; ties go to the one listed first.

    Records outside the domain are not counted; they cannot win, and they cannot raise.

    >>> colours = mode(["red", "green"], relation="add_remove")
    >>> colours.evaluate(["green", "red", "green", "blue"])
    ('green', 0)
    """
    values = tuple(domain)
    place = {value: index for index, value in enumerate(values)}
    if len(values) < 2 or len(place) != len(values) or any(v != v for v in values):
        raise InvalidValue("domain", values, "at least two distinct values that equal themselves")
    chosen = Relation.parse(relation)

    def count(records: Iterable[Any]) -> np.ndarray:
        counts = np.zeros(len(values), dtype=np.int64)
        for record in records:
            index = place.get(record) if isinstance(record, Hashable) else None
            if index is not None:
                counts[index] += 1
        return counts

    return StableFunction(
        value=lambda records: values[int(np.argmax(count(records)))],
        distance=lambda records: votes_distance(count(records), moved=chosen is Relation.REPLACE),
        relation=chosen,
        name=f"mode over {len(values)} values",
    )


def median(
    *,
    relation: Relation | str,
    lower: float | None = None,
    upper: float | None = None,
    default: float = 0,
    integer: bool = False,
) -> StableFunction[Any, Any]:
    """The lower median of numbers: the one of rank ceil(n / 2).

    With public bounds the records are clipped to them; without, every number can occur.
    A record that is no number counts as ``default``, which must lie within the bounds and is
    also the median of no records under add_remove. Each record is read as a double by
    itself, and with ``integer=True`` (bounds needed) rounded down; the answer is a float or
    an int accordingly, whatever the types of the records.

    With L records below the median v, E equal and G above it, a smaller median needs

    - replace: ceil(n/2) - L records moved below v;
    - add_remove: E + G - L records added below v (or removed from the rest),

    and a larger one L + E - (ceil(n/2) - 1) or L + E - G + 1. A direction in which no value
    is left does not count; under add_remove n removals lead to the default.

    >>> nines = median(relation="replace", lower=0, upper=9, integer=True)
    >>> nines.evaluate([1, 5, 5, 5, 5, 5, 12])
    (5, 2)
    """
    chosen = Relation.parse(relation)
    whole = flag("integer", integer)
    low = -math.inf if lower is None else _validate.real("lower", lower)
    high = math.inf if upper is None else _validate.real("upper", upper)
    if not low < high:
        raise InvalidValue("upper", upper, f"a number above lower = {lower}")
    filler = _validate.real("default", default)
    if not low <= filler <= high:
        raise InvalidValue("default", default, f"a number from {low:g} to {high:g}")
    if whole:
        for name, value in (("lower", low), ("upper", high), ("default", filler)):
            if not float(value).is_integer() or abs(value) > 2**53:
                raise InvalidValue(name, value, "an integer of at most 53 bits, for integer=True")

    def read(records: Any) -> np.ndarray:
        doubles = _doubles(records, filler)
        if chosen is Relation.REPLACE and doubles.size == 0:
            raise InvalidValue("data", "no records", "at least one record under replace")
        # Adding 0 turns -0.0 into 0.0: equal answers must look alike.
        clipped: np.ndarray = np.clip(doubles, low, high) + 0.0
        return np.floor(clipped) if whole else clipped

    def middle(doubles: np.ndarray) -> float:
        if doubles.size == 0:
            return filler + 0.0
        rank = (doubles.size - 1) // 2
        return float(np.partition(doubles, rank)[rank])

    def distance(records: Any) -> int:
        doubles = read(records)
        v = middle(doubles)
        below, above = int(np.sum(doubles < v)), int(np.sum(doubles > v))
        n = doubles.size
        upto = n - above
        if chosen is Relation.REPLACE:
            down, up = (n + 1) // 2 - below, upto - (n - 1) // 2
        else:
            down, up = n - 2 * below, upto - above + 1
        ways = [down] * (v > low) + [up] * (v < high)
        if chosen is Relation.ADD_REMOVE and v != filler:
            ways.append(n)
        return max(1, min(ways)) - 1

    kind = int if whole else float
    return StableFunction(
        value=lambda records: kind(middle(read(records))),
        distance=distance,
        relation=chosen,
        name=f"median within [{low:g}, {high:g}]",
    )


def _doubles(records: Any, filler: float) -> np.ndarray:
    """Read every record by itself; what is no number becomes ``filler``."""
    if isinstance(records, np.ndarray) and records.dtype.kind in "iuf" and records.ndim == 1:
        doubles = records.astype(np.float64)
    elif isinstance(records, np.ndarray | Iterable) and not isinstance(records, str | bytes):
        doubles = np.array([_double(record) for record in records], dtype=np.float64)
    else:
        raise InvalidValue("data", "withheld", "a row of numbers")
    return np.where(np.isnan(doubles), filler, doubles)


def _double(record: Any) -> float:
    if isinstance(record, bool) or not isinstance(record, numbers.Real):
        return math.nan
    try:
        return float(record)
    except OverflowError:
        huge: Any = record
        return math.inf if huge > 0 else -math.inf


def _counts(votes: Any, categories: int) -> np.ndarray:
    counts = np.asarray(votes)
    if counts.shape != (categories,) or counts.dtype.kind not in "iu" or np.any(counts < 0):
        raise InvalidValue("data", "withheld", f"{categories} counts, non-negative integers")
    return counts.astype(np.int64)
