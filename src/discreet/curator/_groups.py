"""Plans of group-by and top-k: one unit of privacy touches few groups.

A unit owns at most k rows, each row is in one group, so all counts together change by at most k
in L1, and all sums together by at most k max(|low|, |high|) steps, however many groups
there are. Every public group gets noise, also the empty ones; groups that the data
have and the query does not list are never looked at.

**Privately selected groups.** A histogram that shows stable counts only.

**Mechanism.** Every group that occurs gets discrete Laplace noise of scale b = k / epsilon on its
number of rows and is released, with that number, if it reaches a threshold T (Korolova, Kenthapadi,
Mishra and Ntoulas 2009). k is the cap on the rows of one unit.

**Guarantee.** (epsilon, delta)-DP under add_remove. Let D be D' and one unit more, S the groups
that occur only in D, and q the probability that any of S is released on D. Groups outside S occur
in both, and their counts differ by at most k in total: their released part is epsilon'-DP with
epsilon' <= epsilon (k - |S|) / k. Hence for every event E, P(D in E) <= q + e^epsilon P(D' in E),
and P(D' in E) <= e^epsilon' P(D in E) / (1 - q), which is at most e^epsilon P(D in E) where
q <= 1 - e^(-epsilon / k). T is the least for which both hold with q <= delta. If |S| = j, the
counts of S are m_1 + ... + m_j <= k, all positive; P(m + noise >= T) is convex in m below T, so
the sum over S is largest at (k - j + 1, 1, ..., 1), and q is the largest of these over j.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any, final

from discreet.curator._numbers import mean_of, measure, middle_of
from discreet.curator._plan import (
    CONFIDENCE,
    Bar,
    ExpectedError,
    Facts,
    Found,
    Noise,
    QueryPlan,
    Released,
    json_number,
)
from discreet.curator._queries import GroupBy, TopK
from discreet.engines import Grid, Key, StoredColumn, Term
from discreet.errors import InvalidValue
from discreet.mechanisms import (
    each_of,
    exponential_choice,
    least_integer,
    read_epsilon,
    utility_bound,
)
from discreet.privacy import ApproxDP, Exponential, Loss, Relation
from discreet.randomness import Source, exp_negative

_RISK = 1 - CONFIDENCE
MOST_GROUPS = 10_000
_EPOCH = dt.date(1970, 1, 1)
_BITS = 512


@final
class GroupByPlan(QueryPlan):
    """A count, sum or mean for each public or privately selected group."""

    loss: Loss

    def __init__(self, query: GroupBy, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        by = [facts.lowering().key(one) for one in query.by]
        self.keys = [key.stored for key in by]
        self.selects = query.delta is not None
        self.groups: list[tuple[Any, ...]] = [] if self.selects else self._public_groups()
        parts = 1 if query.of is None or (query.statistic == "sum" and not self.selects) else 2
        share = query.epsilon / parts
        cap = facts.cap
        self.count_noise = Noise(sensitivity=cap, epsilon=share)
        self.grid = Grid(Fraction(1), 0, 1)
        self.middle, self.half = 0, 1
        sums = []
        if query.of is not None:
            of = measure(facts, query.of, query.lower, query.upper)
            self.grid = of.grid
            sums = [of]
            if query.statistic == "mean":
                self.middle = middle_of(self.grid)
            self.half = max(self.grid.high - self.middle, self.middle - self.grid.low, 1)
        among = None if self.selects else select_listed(by, self.groups)
        self.aggregation = self.aggregate([key.term for key in by], sums, among)
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
        self.expected = self._expect_errors()

    def parts(self, found: Found) -> dict[tuple[Any, ...], tuple[int, int]]:
        """The exact count and the exact sum (about the middle, in steps) of each group found."""
        if self._asked.of is None:
            return {group: (count, 0) for group, (count,) in found.items()}
        return {
            group: (count, total - self.middle * count) for group, (count, total) in found.items()
        }

    def release(self, found: Found, source: Source) -> Released:
        exact = self.parts(found)
        if self.threshold is None:
            groups = self.groups
            counts = dict.fromkeys(groups, 0)
            if self._asked.statistic != "sum":
                draws = self.count_noise.draws(len(groups), source)
                counts = {
                    group: exact.get(group, (0, 0))[0] + draw
                    for group, draw in zip(groups, draws, strict=True)
                }
        else:
            present = [group for group in exact if exact[group][0] > 0]
            draws = self.count_noise.draws(len(present), source)
            noisy = {
                group: exact[group][0] + draw for group, draw in zip(present, draws, strict=True)
            }
            counts = {group: n for group, n in noisy.items() if n >= self.threshold}
            groups = sorted(counts, key=sortable)
        totals = dict.fromkeys(groups, 0)
        if self._asked.of is not None:
            draws = self.sum_noise.draws(len(groups), source)
            totals = {
                group: exact.get(group, (0, 0))[1] + draw
                for group, draw in zip(groups, draws, strict=True)
            }
        return self._release_groups(groups, counts, totals)

    def _release_groups(
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
                value = json_number(steps * step)
                bar = Bar(
                    label,
                    json_number((steps - reach) * step, -1),
                    json_number((steps + reach) * step, 1),
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
                stored_value(f"groups[{at}]", stored, value)
                for stored, value in zip(self.keys, group, strict=True)
            )
            for at, group in enumerate(self._asked.groups)
        ]
        if len(set(groups)) != len(groups):
            raise InvalidValue("groups", "a group twice", "distinct groups")
        return groups

    def _expect_errors(self) -> tuple[ExpectedError, ...]:
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
class TopKPlan(QueryPlan):
    """The most frequent candidates, chosen one after another by the exponential mechanism.

    A unit moves every count by at most k rows and all in one direction, so each choice at
    epsilon / k_wanted is that bounded range (S13, monotone scores).
    """

    loss: Loss

    def __init__(self, query: TopK, facts: Facts) -> None:
        super().__init__(query, facts)
        self._asked = query
        by = facts.lowering().key(query.by)
        self.key: StoredColumn = by.stored
        if query.candidates is None:
            self.candidates = [group[0] for group in all_groups([self.key])]
        else:
            self.candidates = [
                stored_value(f"candidates[{at}]", self.key, value)
                for at, value in enumerate(query.candidates)
            ]
        among = select_listed([by], [(one,) for one in self.candidates])
        self.aggregation = self.aggregate([by.term], among=among)
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

    def parts(self, found: Found) -> list[int]:
        """The exact counts of the candidates."""
        return [found.get((candidate,), (0,))[0] for candidate in self.candidates]

    def release(self, found: Found, source: Source) -> Released:
        counts = self.parts(found)
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


def stored_value(argument: str, stored: StoredColumn, value: str | Fraction) -> Any:
    """What the bounded table has for a value that a query names, or raise."""
    if stored.labels is not None:
        if value not in stored.labels:
            raise InvalidValue(argument, _plain(value), f"a label of {stored.name!r}")
        return stored.labels.index(str(value))
    if stored.grid is None:
        if not isinstance(value, str):
            raise InvalidValue(argument, _plain(value), f"a text of {stored.name!r}")
        return value
    if stored.dates:
        steps = _days(argument, value)
    elif isinstance(value, str):
        raise InvalidValue(argument, value, f"a number, as {stored.name!r} has numbers")
    else:
        exact = value / stored.grid.step
        if exact.denominator != 1:
            expected = f"a multiple of {stored.grid.step}, the step of {stored.name!r}"
            raise InvalidValue(argument, _plain(value), expected)
        steps = exact.numerator
    if not stored.grid.low <= steps <= stored.grid.high:
        raise InvalidValue(argument, _plain(value), f"a value within the bounds of {stored.name!r}")
    return steps


def all_groups(keys: Sequence[StoredColumn]) -> list[tuple[Any, ...]]:
    """All combinations of labels, as kept; only for columns of declared labels."""
    size = 1
    for stored in keys:
        if stored.labels is None:
            raise InvalidValue(
                "groups",
                None,
                f"the groups of {stored.name!r}, which has no declared labels; or delta, to "
                "select them privately",
            )
        size *= len(stored.labels)
    if size > MOST_GROUPS:
        raise InvalidValue("by", f"{size} groups", f"at most {MOST_GROUPS}; list groups instead")
    return list(product(*(range(len(stored.labels or ())) for stored in keys)))


def select_listed(by: Sequence[Key], groups: Sequence[tuple[Any, ...]]) -> Term | None:
    """Which rows are in listed groups, where the data may have very many others."""
    size = 1
    for key in by:
        if key.stored.labels is not None:
            size *= len(key.stored.labels)
        else:
            grid = key.stored.grid
            size *= MOST_GROUPS + 1 if grid is None else grid.high - grid.low + 1
    terms = [
        Term("one_of", (key.term,), tuple(sorted({group[at] for group in groups})))
        for at, key in enumerate(by)
        if key.stored.labels is None
    ]
    return Term("all_of", terms) if terms and size > MOST_GROUPS else None


def sortable(group: Sequence[Any]) -> tuple[tuple[bool, Any], ...]:
    """An order for groups that does not depend on how they were found."""
    return tuple((isinstance(one, str), one) for one in group)


def _days(argument: str, value: str | Fraction) -> int:
    try:
        return (dt.date.fromisoformat(str(value)) - _EPOCH).days
    except ValueError:
        raise InvalidValue(argument, _plain(value), "a day as YYYY-MM-DD") from None


def _plain(value: str | Fraction) -> str:
    return str(value)[:60]


@lru_cache(maxsize=1024)
def release_threshold(*, cap: int, scale: Fraction, epsilon: Fraction, delta: Fraction) -> int:
    """The least T at which a unit alone shows with probability at most ``delta``.

    P(X >= t) = r^t / (1 + r) for t >= 1, r = e^(-1/scale), is compared in integers, rounded up.

    >>> release_threshold(cap=1, scale=Fraction(1), epsilon=Fraction(1), delta=Fraction(1, 10**6))
    15
    """
    if delta >= 1 - Fraction(exp_negative(epsilon / cap, _BITS)[1], 1 << _BITS):
        raise InvalidValue("delta", str(delta), "a value below 1 - exp(-epsilon / rows_per_person)")

    def rare(threshold: int) -> bool:
        alone = _reaches(threshold - 1, scale)
        return all(
            _reaches(threshold - (cap - j + 1), scale) + (j - 1) * alone <= delta
            for j in {1, cap}  # convex in j: one of the ends is the largest
        )

    start = cap + math.ceil(scale * Fraction(math.log(float(cap / delta)) + 1.0))
    return max(least_integer(rare, start), cap + 1)


def _reaches(steps: int, scale: Fraction) -> Fraction:
    """An upper bound on P(X >= steps)."""
    if steps < 1:
        return Fraction(1)
    one = 1 << _BITS
    above = exp_negative(steps / scale, _BITS)[1]
    ratio = exp_negative(1 / scale, _BITS)[0]
    return Fraction(above, one + ratio)


def least_count(seen: int, *, threshold: int, scale: Fraction, risk: float) -> int:
    """The lower end of an error bar for a group that was shown with the count ``seen``.

    That a group was shown is more likely if its noise was large, so the bar is made for the
    noise *given* that it was shown: the least true count m >= 1 for which
    P(m + noise >= seen | m + noise >= threshold) is at least ``risk``. The upper end needs no such
    care: given that it was shown, a group is even less likely to be far below its true count.

    >>> least_count(18, threshold=15, scale=Fraction(1), risk=0.025)
    1
    >>> least_count(100, threshold=15, scale=Fraction(1), risk=0.025)
    97
    """
    decay = 1.0 / float(scale)

    def log_tail(steps: int) -> float:
        """ln P(noise >= steps)."""
        if steps >= 1:
            return -steps * decay - math.log1p(math.exp(-decay))
        return math.log1p(-math.exp((steps - 1) * decay) / (1.0 + math.exp(-decay)))

    wanted = math.log(risk) - 1e-9

    def plausible(below: int) -> bool:
        count = 1 + below
        return log_tail(seen - count) - log_tail(threshold - count) >= wanted

    return 1 + least_integer(plausible, 1)


PLANS = {GroupBy: GroupByPlan, TopK: TopKPlan}
