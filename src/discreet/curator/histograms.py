"""The plan of a histogram: a row lies in one bin, so all counts together change by the cap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

from discreet.curator import measures
from discreet.curator._queries import Histogram
from discreet.curator.lowering import Lowering
from discreet.curator.planning import Bar, ExpectedError, Facts, Noise, Plan, Released, shown
from discreet.privacy import Loss
from discreet.randomness import Source

__all__ = ["HistogramPlan"]

Lower = Callable[[Any], Lowering]


@final
class HistogramPlan(Plan):
    """Counts between public edges, each with noise of scale k / epsilon."""

    loss: Loss

    def __init__(self, query: Histogram, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        self.grid = facts.lowering().number(query.of).grid
        self._edges = [math.ceil(edge / self.grid.step) for edge in query.edges]
        self.cells = [
            at
            for at in range(len(query.edges) + 1)
            if self._first(at) <= self._last(at)  # the others are empty whatever the data
        ]
        self.noise = Noise(sensitivity=facts.cap, epsilon=query.epsilon)
        self.loss = self.noise.loss
        reach = self.noise.reach(together=len(self.cells))
        self.expected = (ExpectedError("count of each bin", reach),)

    def _first(self, cell: int) -> int:
        low = self.grid.low
        return low if cell == 0 else max(low, self._edges[cell - 1])

    def _last(self, cell: int) -> int:
        high = self.grid.high
        return high if cell == len(self._edges) else min(high, self._edges[cell] - 1)

    def build(self, table: Any, lower: Lower) -> Any:
        lowering = lower(table)
        # An edge outside of the range of the number is reached by all or by none.
        edges = [min(max(edge, self.grid.low), self.grid.high + 1) for edge in self._edges]
        cell = measures.cell(lowering, lowering.number(self._asked.of), edges)
        return measures.aggregated(table, keys={"cell": cell}, sums={})

    def parts(self, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        """The exact counts of the cells that can hold anything."""
        found = {int(cell): int(count) for cell, count in rows}
        return [found.get(cell, 0) for cell in self.cells]

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        counts = self.parts(rows)
        reach = self.noise.reach(together=len(self.cells))
        values, bars = [], []
        edges = self._asked.edges
        draws = self.noise.draws(len(counts), source)
        for cell, count, draw in zip(self.cells, counts, draws, strict=True):
            start = None if cell == 0 else shown(edges[cell - 1])
            stop = None if cell == len(edges) else shown(edges[cell])
            noisy = count + draw
            values.append({"from": start, "to": stop, "value": noisy})
            bars.append(Bar(f"from {start} to {stop}", noisy - reach, noisy + reach))
        return Released(values, tuple(bars))
