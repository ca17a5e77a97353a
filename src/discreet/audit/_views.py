"""Views: what of an output an event may speak of.

A view is a function of one output, either to a number (NaN for none) or to a mark
(equal for equal outputs). Which views are tried, and the weights inside the learned
ones, are settled on the training half; from then on a view is fixed.

Coordinates, sums and differences show too little noise; the whole output and its
prefixes show streams that say too much; differences of zero show noise that was used
twice; the finest bit shows floating-point arithmetic on the secret (Mironov 2012); the
learned ones gather many weak signs into one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.audit._outputs import NUMBER, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray


_COORDINATES = 24
_LEVELS = 12
NO_BITS = 9999.0


@final
@dataclass(frozen=True, eq=False)
class View:
    """A named function of outputs; ``numeric`` says whether its values have an order."""

    name: str
    values: Callable[[Rows], NDArray[Any]]
    numeric: bool = True

    def evaluate(self, rows: Rows) -> NDArray[Any]:
        """The value of each output; infinities and overflow are values like others."""
        with np.errstate(all="ignore"):
            return self.values(rows)


def views(first: Rows, second: Rows) -> list[View]:
    """The views worth trying on outputs that look like these, the plainest first."""
    return [*_whole_views(first, second), *_coordinate_views(first, second)]


def _coordinate_views(first: Rows, second: Rows) -> Iterator[View]:
    width = first.width
    for i in _spread_over(width, _COORDINATES):
        name = "output" if width == 1 else f"output[{i}]"
        yield View(name, _coordinate(i))
        if _has_fractions(first.numbers[:, i]) or _has_fractions(second.numbers[:, i]):
            yield View(f"log2 of the finest bit of {name}", _finest_bit_of(i))
    if width == 1:
        return
    for i in _spread_over(width - 1, _COORDINATES):
        yield View(f"output[{i + 1}] - output[{i}]", _difference(i, i + 1))
    if width > 2:
        yield View(f"output[{width - 1}] - output[0]", _difference(0, width - 1))
    yield View("sum of the output", lambda rows: np.nansum(rows.numbers, axis=1))
    yield View("largest element", lambda rows: _largest(rows.numbers))
    yield View("smallest element", lambda rows: -_largest(-rows.numbers))
    yield View("place of the largest element", _place_of_largest)
    yield View("number of different elements", _different_elements)
    yield View("sum of squares", lambda rows: np.nansum(np.square(rows.numbers), axis=1))
    yield View("likelihood ratio of the elements, as if independent", _bayes(first, second))


def _whole_views(first: Rows, second: Rows) -> Iterator[View]:
    if np.ptp(np.concatenate([first.lengths, second.lengths])) > 0:
        yield View("length of the output", lambda rows: rows.lengths.astype(np.float64))
    if (first.marks != NUMBER).any() or (second.marks != NUMBER).any():
        yield View("form of the output", lambda rows: _digest(rows, 0, with_numbers=False), False)
    prefix = 1
    while prefix < first.width:
        yield View(f"first {prefix} elements", _prefix(prefix), False)
        prefix = prefix * 2 if prefix >= 4 else prefix + 1
    yield View("output", _prefix(first.width), False)


def _coordinate(i: int) -> Callable[[Rows], NDArray[Any]]:
    return lambda rows: rows.numbers[:, i]


def _difference(i: int, j: int) -> Callable[[Rows], NDArray[Any]]:
    return lambda rows: rows.numbers[:, j] - rows.numbers[:, i]


def _prefix(length: int) -> Callable[[Rows], NDArray[Any]]:
    return lambda rows: _digest(rows, length)


def _finest_bit_of(i: int) -> Callable[[Rows], NDArray[Any]]:
    return lambda rows: finest_bit(rows.numbers[:, i])


def finest_bit(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exponent of the lowest bit that is set: x is a multiple of 2**e and of no more.

    >>> finest_bit(np.array([1.0, 0.75, 96.0, 0.0])).tolist()
    [0.0, -2.0, 5.0, 9999.0]
    """
    usable = np.isfinite(numbers) & (numbers != 0)
    mantissa, exponent = np.frexp(np.where(usable, numbers, 1.0))
    digits = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    lowest = np.log2((digits & -digits).astype(np.float64))
    return np.where(usable, exponent - 53 + lowest, np.where(numbers == 0, NO_BITS, np.nan))


def _has_fractions(numbers: NDArray[np.float64]) -> bool:
    finite = numbers[np.isfinite(numbers)]
    return bool(np.any(finite != np.rint(finite)))


def _largest(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    filled = np.where(np.isnan(numbers), -np.inf, numbers)
    return np.asarray(filled.max(axis=1))


def _place_of_largest(rows: Rows) -> NDArray[np.float64]:
    filled = np.where(np.isnan(rows.numbers), -np.inf, rows.numbers)
    return np.asarray(filled.argmax(axis=1), dtype=np.float64)


def _different_elements(rows: Rows) -> NDArray[np.float64]:
    ordered = np.sort(rows.numbers, axis=1)
    steps = (ordered[:, 1:] != ordered[:, :-1]) & ~np.isnan(ordered[:, 1:])
    return np.asarray(1.0 + steps.sum(axis=1))


def _digest(rows: Rows, length: int, *, with_numbers: bool = True) -> NDArray[np.uint64]:
    """A 64-bit digest of the first elements; equal rows have equal digests."""
    marks = rows.marks if not with_numbers else rows.marks[:, :length]
    total = _mix(np.minimum(rows.lengths, marks.shape[1]).astype(np.uint64))
    if length == rows.width or not with_numbers:
        total = _mix(rows.lengths.astype(np.uint64))
    for i in range(marks.shape[1]):
        total = _mix(total ^ marks[:, i].view(np.uint64))
        if with_numbers:
            # Adding zero makes one of the two zeros; all NaN have their mark.
            numbers = np.where(np.isnan(rows.numbers[:, i]), 0.0, rows.numbers[:, i]) + 0.0
            total = _mix(total + np.ascontiguousarray(numbers).view(np.uint64))
    return total


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One round of the splitmix64 finaliser."""
    words = (words ^ (words >> np.uint64(30))) + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _bayes(first: Rows, second: Rows) -> Callable[[Rows], NDArray[Any]]:
    """The sum over the elements of ln(P(level) / Q(level)), estimated on the training half."""
    edges: list[NDArray[np.float64]] = []
    known: list[NDArray[np.int64]] = []
    weights: list[NDArray[np.float64]] = []
    for i in range(first.width):
        pooled = np.concatenate([first.numbers[:, i], second.numbers[:, i]])
        pooled = pooled[np.isfinite(pooled)]
        levels = np.quantile(pooled, np.arange(1, _LEVELS) / _LEVELS) if pooled.size else pooled
        edges.append(np.unique(levels))
        known.append(np.unique(np.concatenate([first.marks[:, i], second.marks[:, i]]))[:_LEVELS])
        cells = edges[i].size + 1 + known[i].size + 1
        counts = [
            np.bincount(_levels(rows, i, edges[i], known[i]), minlength=cells) + 0.5
            for rows in (first, second)
        ]
        weights.append(np.log(counts[0]) - np.log(counts[1]))

    def values(rows: Rows) -> NDArray[np.float64]:
        total = np.zeros(len(rows))
        for i in range(rows.width):
            total += weights[i][_levels(rows, i, edges[i], known[i])]
        return total

    return values


def _levels(
    rows: Rows, i: int, edges: NDArray[np.float64], known: NDArray[np.int64]
) -> NDArray[np.intp]:
    """The level of element i: between two edges, or one of the known marks, or another."""
    level = np.searchsorted(edges, rows.numbers[:, i], side="left")
    place = np.searchsorted(known, rows.marks[:, i])
    found = known[np.minimum(place, known.size - 1)] == rows.marks[:, i]
    marked = edges.size + 1 + np.where(found, place, known.size)
    return np.where(rows.marks[:, i] == NUMBER, level, marked)


def _spread_over(count: int, most: int) -> list[int]:
    """At most ``most`` places among ``count``: all of them, or evenly spread."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
