"""Search for the event that tells two inputs apart, on the training half only.

Under each view the outputs fall into cells: atoms (values that repeat), intervals
between quantiles, or marks. An event is a set of cells. Tried are half-lines, and
the cells in the order of their estimated likelihood ratio (Neyman and Pearson: no
event of the same size shows more). An event is scored by the lower bound on epsilon
that it would have given on the training half. There again one part forms the cells,
their order and the learned views, and the other part scores: hundreds of rare cells
that were lucky in one part would otherwise crowd out what is really there. That
division serves strength only; validity comes from the half that is not seen here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
from scipy import special

from discreet._confidence import lower_bounds, upper_bounds
from discreet.audit._outputs import Rows
from discreet.audit._views import View, views

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


_QUANTILES = 64
_TAIL_STEPS = 10
_MOST_ATOMS = 64
_MOST_MARKS = 4096
_SHORTLIST = 12
_PRIOR = 2.0


class Partition(Protocol):
    """A partition of the values of a view."""

    size: int

    def place(self, values: NDArray[Any]) -> NDArray[np.intp]:
        """The cell of each value, below ``size``."""

    def in_words(self, name: str, chosen: NDArray[np.bool_]) -> str:
        """The union of the chosen cells."""


@final
class OrderedCells:
    """Cells on the line, in order: intervals (a, b] with the atoms inside them cut out.

    The last cell holds the outputs that have no number.
    """

    def __init__(self, training: NDArray[np.float64]) -> None:
        numbers = np.sort(training[~np.isnan(training)])
        if numbers.size == 0:
            numbers = np.zeros(1)
        distinct, counts = np.unique(numbers, return_counts=True)
        if distinct.size <= _MOST_ATOMS:
            atoms = distinct
        else:
            repeated = counts >= max(8, numbers.size // 200)
            often = np.argsort(counts * repeated)[::-1][:_MOST_ATOMS]
            atoms = np.sort(distinct[often[repeated[often]]])
        tails = 2.0 ** -np.arange(7, 7 + _TAIL_STEPS)
        shares = np.concatenate([np.arange(1, _QUANTILES) / _QUANTILES, tails, 1 - tails])
        places = np.unique((shares * (numbers.size - 1)).astype(np.int64))
        # Every atom is the interval from the number just below it to itself.
        self._ends = np.unique(
            np.concatenate([numbers[places], atoms, np.nextafter(atoms, -np.inf)])
        )
        self.size = self._ends.size + 2

    def place(self, values: NDArray[Any]) -> NDArray[np.intp]:
        """The cell of each value: the interval that ends at or after it, the last for NaN."""
        cells = np.searchsorted(self._ends, values, side="left")
        return np.where(np.isnan(values), self.size - 1, cells)

    def in_words(self, name: str, chosen: NDArray[np.bool_]) -> str:
        """Half-lines, intervals and single values; the first few of many."""
        line = chosen[:-1]
        starts = np.flatnonzero(line & ~np.concatenate([[False], line[:-1]]))
        stops = np.flatnonzero(line & ~np.concatenate([line[1:], [False]]))
        parts = [
            self._range(name, a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        if chosen[-1]:
            parts.append(f"{name} is no number")
        return _join_words(parts)

    def _range(self, name: str, a: int, b: int) -> str:
        last = self._ends.size
        if a == 0 and b == last:
            return f"{name} is a number"
        if a == 0:
            return f"{name} <= {self._ends[b]:.6g}"
        below = self._ends[a - 1]
        if b == last:
            return f"{name} > {below:.6g}"
        if self._ends[b] == np.nextafter(below, np.inf):
            return f"{name} = {self._ends[b]:.6g}"
        return f"{below:.6g} < {name} <= {self._ends[b]:.6g}"


@final
class MarkedCells:
    """One cell for each of the commonest marks, and a last one for all others."""

    def __init__(self, training: NDArray[np.uint64], rows: Rows) -> None:
        marks, where, counts = np.unique(training, return_index=True, return_counts=True)
        common = np.sort(np.argsort(counts, kind="stable")[::-1][:_MOST_MARKS])
        self._marks = marks[common]
        self._examples = where[common]
        self._rows = rows
        self.size = self._marks.size + 1

    def place(self, values: NDArray[Any]) -> NDArray[np.intp]:
        """The cell of each mark."""
        place = np.minimum(np.searchsorted(self._marks, values), self._marks.size - 1)
        return np.where(self._marks[place] == values, place, self.size - 1)

    def in_words(self, name: str, chosen: NDArray[np.bool_]) -> str:
        """Outputs that have the marks; the first few of many."""
        examples = [self._rows.in_words(int(i)) for i in self._examples[chosen[:-1]]]
        if chosen[-1]:
            examples.append("a rare one")
        as_in = "" if name == "output" else " as in"
        return (
            _join_words([f"{name}{as_in} = {examples[0]}", *examples[1:]]) if examples else "never"
        )


@final
@dataclass(frozen=True, eq=False)
class Event:
    """A set of outputs, settled on the training half; ``score`` is what it showed there."""

    view: View
    cells: Partition
    chosen: NDArray[np.bool_]
    score: float

    def contains(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of the outputs are in the event."""
        return self.chosen[self.cells.place(self.view.evaluate(rows))]

    def __str__(self) -> str:
        return self.cells.in_words(self.view.name, self.chosen)


def epsilon_lower_bounds(
    hits: ArrayLike, other_hits: ArrayLike, *, trials: int, delta: float, error: float
) -> NDArray[np.float64]:
    """Lower bounds on epsilon from counts of an event under two inputs.

    (epsilon, delta)-DP says P(E) <= e^epsilon Q(E) + delta. With P(E) >= p and
    Q(E) <= q, each wrong with probability at most ``error``, epsilon is at least
    ln((p - delta) / q). The result is -inf where p <= delta.
    """
    excess = lower_bounds(hits, trials, error=error) - delta
    most = upper_bounds(other_hits, trials, error=error)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(excess, 0.0)) - np.log(most)


def find_event(first: Rows, second: Rows, *, delta: float, error: float) -> Event:
    """The event that most favours ``first`` over ``second`` on these (training) outputs."""
    trials = len(first) // 2
    split = len(first) - trials
    forming = _stack(first[:split], second[:split])
    scoring = _stack(first[split:], second[split:])
    best: Event | None = None
    for view in views(first[:split], second[:split]):
        values = view.evaluate(forming)
        cells: Partition = OrderedCells(values) if view.numeric else MarkedCells(values, forming)
        orders = _orders(cells, *_counts(cells, values, split), line=view.numeric)
        counts = _counts(cells, view.evaluate(scoring), trials)
        chosen, score = _best_union(orders, *counts, trials=trials, delta=delta, error=error)
        if best is None or score > best.score:
            best = Event(view, cells, chosen, score)
    assert best is not None  # the whole output is always a view
    return best


def _counts(
    cells: Partition, values: NDArray[Any], split: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """How many of the values before and after ``split`` are in each cell."""
    places = cells.place(values)
    return (
        np.bincount(places[:split], minlength=cells.size),
        np.bincount(places[split:], minlength=cells.size),
    )


def _orders(
    cells: Partition, counts: NDArray[np.intp], other: NDArray[np.intp], *, line: bool
) -> list[NDArray[np.intp]]:
    """Orders of the cells whose initial parts are tried as events."""
    ratio = np.log(counts + _PRIOR) - np.log(other + _PRIOR)
    by_ratio = np.lexsort((-(counts + other), -ratio))
    if not line:
        return [by_ratio]
    ascending = np.arange(cells.size - 1)
    return [by_ratio, ascending, ascending[::-1]]


def _best_union(
    orders: list[NDArray[np.intp]],
    counts: NDArray[np.intp],
    other: NDArray[np.intp],
    *,
    trials: int,
    delta: float,
    error: float,
) -> tuple[NDArray[np.bool_], float]:
    # The other half is twice as large as the part that scores: so much will it show.
    trials = 2 * trials
    hits = 2 * np.concatenate([np.cumsum(counts[order]) for order in orders])
    other_hits = 2 * np.concatenate([np.cumsum(other[order]) for order in orders])
    rough = _rough_scores(hits, other_hits, trials, delta, error)
    rough[(hits == trials) & (other_hits == trials)] = -np.inf  # "always" shows nothing
    # Stable: of events that say the same, the smallest comes first.
    shortlist = np.argsort(-rough, kind="stable")[:_SHORTLIST]
    exact = epsilon_lower_bounds(
        hits[shortlist], other_hits[shortlist], trials=trials, delta=delta, error=error
    )
    exact[np.isneginf(rough[shortlist])] = -np.inf
    winner = int(shortlist[int(np.argmax(exact))])
    chosen = np.zeros(counts.size, dtype=np.bool_)
    for order in orders:
        if winner < order.size:
            chosen[order[: winner + 1]] = True
            break
        winner -= order.size
    return chosen, float(np.max(exact))


def _rough_scores(
    hits: NDArray[np.intp], other: NDArray[np.intp], trials: int, delta: float, error: float
) -> NDArray[np.float64]:
    """The same bound with Wilson's approximate limits: cheap, and only used to shortlist."""
    z = -float(special.ndtri(error))
    low = _wilson(hits, trials, z, upper=False) - delta
    high = _wilson(other, trials, z, upper=True)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(low, 0.0)) - np.log(high)


def _wilson(hits: NDArray[np.intp], trials: int, z: float, *, upper: bool) -> NDArray[np.float64]:
    share = hits / trials
    spread = z * np.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    centre = share + z * z / (2 * trials)
    return np.asarray((centre + (spread if upper else -spread)) / (1 + z * z / trials))


def _stack(first: Rows, second: Rows) -> Rows:
    return Rows(
        np.concatenate([first.numbers, second.numbers]),
        np.concatenate([first.marks, second.marks]),
        np.concatenate([first.lengths, second.lengths]),
        {**first.words, **second.words},
    )


def _join_words(parts: list[str], *, most: int = 4) -> str:
    if len(parts) > most:
        parts = [*parts[:most], f"{len(parts) - most} more"]
    return " or ".join(parts) if parts else "never"


def ceiling(*, trials: int, delta: float, error: float) -> float:
    """The most that :func:`epsilon_lower_bounds` can say: all of one side, none of the other.

    It is ln((b - delta) / (1 - b)) with b = error^(1/trials).
    """
    most = epsilon_lower_bounds([trials], [0], trials=trials, delta=delta, error=error)
    return max(0.0, float(most[0])) if math.isfinite(most[0]) else 0.0
