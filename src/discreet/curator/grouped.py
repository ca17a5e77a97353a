"""Plans of group-by and top-k: one unit of privacy touches few groups.

A unit owns at most k rows, each row is in one group, so all counts together change by at most k
in L1, and all sums together by at most k max(|low|, |high|) steps, however many groups
there are. Every public group gets noise, also the empty ones; groups that the data
have and the query does not list are never looked at. Privately selected groups: see
:mod:`discreet.curator.thresholds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, final

from discreet.curator import measures
from discreet.curator._queries import GroupBy, TopK
from discreet.curator.grids import Grid, StoredColumn
from discreet.curator.keys import all_groups, kept_value, sortable, too_many
from discreet.curator.lowering import Lowering
from discreet.curator.planning import (
    CONFIDENCE,
    Bar,
    ExpectedError,
    Facts,
    Noise,
    Plan,
    Released,
    shown,
)
from discreet.curator.statistics import limb_terms, mean_of, measured, middle_of, total_of
from discreet.curator.thresholds import least_count, release_threshold
from discreet.errors import InvalidValue
from discreet.mechanisms import each_of, exponential_choice, read_epsilon, utility_bound
from discreet.privacy import ApproxDP, Exponential, Loss, Relation
from discreet.randomness import Source

__all__ = ["GroupByPlan", "TopKPlan"]

_RISK = 1 - CONFIDENCE
Lower = Callable[[Any], Lowering]


@final
class GroupByPlan(Plan):
    """A count, sum or mean for each public or privately selected group."""

    loss: Loss

    def __init__(self, query: GroupBy, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        shapes = facts.lowering()
        self.keys = [shapes.key(one).stored for one in query.by]
        self.selects = query.delta is not None
        self.groups: list[tuple[Any, ...]] = [] if self.selects else self._public_groups()
        parts = 1 if query.of is None or (query.statistic == "sum" and not self.selects) else 2
        share = query.epsilon / parts
        cap = facts.cap
        self.count_noise = Noise(sensitivity=cap, epsilon=share)
        self.grid = Grid(Fraction(1), 0, 1)
        self.middle, self.half = 0, 1
        if query.of is not None:
            self.grid = measured(shapes, query.of, query.lower, query.upper).grid
            if query.statistic == "mean":
                self.middle = middle_of(self.grid)
            self.half = max(self.grid.high - self.middle, self.middle - self.grid.low, 1)
        self.sum_noise = Noise(sensitivity=cap * self.half, epsilon=share)
        losses: list[Loss] = []
        self.threshold: int | None = None
        if query.delta is not None:
            self.threshold = release_threshold(
                cap=cap, scale=self.count_noise.scale, epsilon=share, delta=query.delta
            )
            losses.append(ApproxDP(share, query.delta, Relation.ADD_REMOVE))
        elif query.statistic != "sum":
            losses.append(self.count_noise.loss)
        if query.of is not None:
            losses.append(self.sum_noise.loss)
        self.loss = losses[0] if len(losses) == 1 else losses[0] + losses[1]
        self.expected = self._expected()

    def build(self, table: Any, lower: Lower) -> Any:
        lowering = lower(table)
        for at, one in enumerate(self._asked.by):
            if self.groups and self.keys[at].labels is None and too_many(self.keys):
                wanted = sorted({group[at] for group in self.groups})
                table = table.filter(measures.listed(lowering, lowering.key(one), wanted))
                lowering = lower(table)
        keys = {f"k{at}": lowering.key(one).term for at, one in enumerate(self._asked.by)}
        sums: dict[str, Any] = {}
        if self._asked.of is not None:
            of = measured(lowering, self._asked.of, self._asked.lower, self._asked.upper)
            sums = limb_terms(lowering, of, "s")
        return measures.aggregated(table, keys=keys, sums=sums)

    def parts(self, rows: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[int, int]]:
        """The exact count and the exact sum (about the middle, in steps) of each group found."""
        width = len(self.keys)
        found: dict[tuple[Any, ...], tuple[int, int]] = {}
        for row in rows:
            count = int(row[width])
            total = 0
            if self._asked.of is not None:
                total = total_of(self.grid, row[width + 1 :], count) - self.middle * count
            group = tuple(one if isinstance(one, str) else int(one) for one in row[:width])
            found[group] = (count, total)
        return found

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        found = self.parts(rows)
        if self.threshold is None:
            groups = self.groups
            counts = dict.fromkeys(groups, 0)
            if self._asked.statistic != "sum":
                draws = self.count_noise.draws(len(groups), source)
                counts = {
                    group: found.get(group, (0, 0))[0] + draw
                    for group, draw in zip(groups, draws, strict=True)
                }
        else:
            present = [group for group in found if found[group][0] > 0]
            draws = self.count_noise.draws(len(present), source)
            noisy = {
                group: found[group][0] + draw for group, draw in zip(present, draws, strict=True)
            }
            counts = {group: n for group, n in noisy.items() if n >= self.threshold}
            groups = sorted(counts, key=sortable)
        totals = dict.fromkeys(groups, 0)
        if self._asked.of is not None:
            draws = self.sum_noise.draws(len(groups), source)
            totals = {
                group: found.get(group, (0, 0))[1] + draw
                for group, draw in zip(groups, draws, strict=True)
            }
        return self._shown(groups, counts, totals)

    def _shown(
        self,
        groups: Sequence[tuple[Any, ...]],
        counts: Mapping[tuple[Any, ...], int],
        totals: Mapping[tuple[Any, ...], int],
    ) -> Released:
        values, bars = [], []
        together = max(1, len(groups))
        for group in groups:
            names = [stored.show(one) for stored, one in zip(self.keys, group, strict=True)]
            label = ", ".join(map(str, names))
            value: Any
            if self._asked.statistic == "mean":
                value, bar = mean_of(
                    self,
                    totals[group],
                    counts[group],
                    off=self.sum_noise.reach(together=together, risk=_RISK / 2),
                    counts=self._counts(counts[group], together, _RISK / 2),
                    label=label,
                )
            elif self._asked.statistic == "sum":
                reach, step = self.sum_noise.reach(together=together), self.grid.step
                steps = totals[group]
                value = shown(steps * step)
                bar = Bar(
                    label, shown((steps - reach) * step, -1), shown((steps + reach) * step, 1)
                )
            else:
                value = counts[group]
                bar = Bar(label, *self._counts(value, together, _RISK))
            values.append({"group": names, "value": value})
            bars.append(bar)
        return Released(values, tuple(bars))

    def _counts(self, noisy: int, together: int, risk: float) -> tuple[int, int]:
        """Where the true count of a group is; together for all groups of the answer."""
        reach = self.count_noise.reach(together=together, risk=risk)
        if self.threshold is None:
            return noisy - reach, noisy + reach
        low = least_count(
            noisy,
            threshold=self.threshold,
            scale=self.count_noise.scale,
            risk=each_of(together, risk) / 2,
        )
        return low, noisy + reach

    def _public_groups(self) -> list[tuple[Any, ...]]:
        if self._asked.groups is None:
            return all_groups(self.keys)
        groups = [
            tuple(
                kept_value(f"groups[{at}]", stored, value)
                for stored, value in zip(self.keys, group, strict=True)
            )
            for at, group in enumerate(self._asked.groups)
        ]
        if len(set(groups)) != len(groups):
            raise InvalidValue("groups", "a group twice", "distinct groups")
        return groups

    def _expected(self) -> tuple[ExpectedError, ...]:
        together = max(1, len(self.groups))
        label = f"{self._asked.statistic} of each group"
        if self._asked.statistic == "mean":
            return (ExpectedError(label, None),)
        counted = self._asked.statistic == "count"
        noise = self.count_noise if counted else self.sum_noise
        step = Fraction(1) if counted else self.grid.step
        if self.threshold is None:
            return (ExpectedError(label, float(noise.reach(together=together) * step)),)
        return (
            ExpectedError(f"{label} that is shown, taken alone", float(noise.reach() * step)),
            ExpectedError("rows that a group needs to be shown", float(self.threshold)),
        )


@final
class TopKPlan(Plan):
    """The most frequent candidates, chosen one after another by the exponential mechanism.

    A unit moves every count by at most k rows and all in one direction, so each choice at
    epsilon / k_wanted is that bounded range (S13, monotone scores).
    """

    loss: Loss

    def __init__(self, query: TopK, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        self.key: StoredColumn = facts.lowering().key(query.by).stored
        if query.candidates is None:
            self.candidates = [group[0] for group in all_groups([self.key])]
        else:
            self.candidates = [
                kept_value(f"candidates[{at}]", self.key, value)
                for at, value in enumerate(query.candidates)
            ]
        if query.k > len(self.candidates):
            raise InvalidValue("k", query.k, f"at most {len(self.candidates)} candidates")
        self._share = query.epsilon / query.k
        reported = read_epsilon(self._share)[1]
        self.loss = query.k * Exponential(reported, Relation.ADD_REMOVE)
        short = utility_bound(
            len(self.candidates), rate=self._share / facts.cap, beta=_RISK / query.k
        )
        self._short = math.ceil(short)
        self.expected = (
            ExpectedError("rows that each choice is short of the best", float(self._short)),
        )

    def build(self, table: Any, lower: Lower) -> Any:
        lowering = lower(table)
        if self.key.labels is None and too_many([self.key]):
            wanted = sorted(set(self.candidates))
            table = table.filter(measures.listed(lowering, lowering.key(self._asked.by), wanted))
            lowering = lower(table)
        key = lowering.key(self._asked.by).term
        return measures.aggregated(table, keys={"k0": key}, sums={})

    def parts(self, rows: Sequence[tuple[Any, ...]]) -> list[int]:
        """The exact counts of the candidates."""
        found = {key if isinstance(key, str) else int(key): int(count) for key, count in rows}
        return [found.get(candidate, 0) for candidate in self.candidates]

    def release(self, rows: Sequence[tuple[Any, ...]], source: Source) -> Released:
        counts = self.parts(rows)
        left = list(range(len(counts)))
        chosen: list[int] = []
        for _ in range(self._asked.k):
            at = exponential_choice(
                [counts[one] for one in left],
                sensitivity=self.facts.cap,
                monotone=True,
                epsilon=self._share,
                source=source,
            ).value
            chosen.append(left.pop(at))
        names = [self.key.show(self.candidates[one]) for one in chosen]
        bars = tuple(Bar(f"{name}: rows short of the best left", 0, self._short) for name in names)
        return Released(names, bars)
