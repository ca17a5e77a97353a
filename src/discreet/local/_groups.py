"""Plans in which each person answers one of several questions: marginals, and ranges of numbers.

Which question she answers is drawn uniformly, without a look at her value, and is sent along. So
one report costs epsilon in full, for any number of questions, and every report has the
same length. The people who answered a question are a random part of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.local._coins import Coins
from discreet.local._frequency import (
    ELSE,
    Domain,
    FrequencyEstimate,
    FrequencyOracle,
    estimate_shares,
    list_people,
)
from discreet.local._means import NumberRange
from discreet.local._methods import Randomizer, read_integers, write_integers
from discreet.local._plans import LocalPlan, LocalServer
from discreet.mechanisms import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]

_GROUP_BYTES = 2
_MOST_GROUPS = 1 << 12


@final
class _OneOfSeveral(Randomizer):
    """One of several methods, drawn uniformly; a value is one row with a place for each.

    The tally says first how many people answered each question; the tallies of the methods follow.
    """

    def __init__(self, oracles: list[FrequencyOracle]) -> None:
        self.methods = [oracle._method for oracle in oracles]
        self.payload_bytes = _GROUP_BYTES + max(one.payload_bytes for one in self.methods)
        self._ends = np.cumsum([len(oracles), *(one.cells for one in self.methods)])
        self.cells = int(self._ends[-1])

    def inputs(self) -> Places:
        rows = product(*(range(method.values) for method in self.methods))
        return np.array(list(rows), dtype=np.int64)

    def randomize(self, places: Places, coins: Coins) -> Bytes:
        groups = coins.uniform(len(self.methods), len(places))
        payloads = np.zeros((len(places), self.payload_bytes), dtype=np.uint8)
        payloads[:, :_GROUP_BYTES] = write_integers(groups, _GROUP_BYTES)
        for number in np.unique(groups):
            chosen = np.flatnonzero(groups == number)
            inner = self.methods[number].randomize(places[chosen, number], coins)
            payloads[chosen, _GROUP_BYTES : _GROUP_BYTES + inner.shape[1]] = inner
        return payloads

    def _split(self, payloads: Bytes) -> Iterator[tuple[int, Places, Bytes, Bytes]]:
        """Yield the questions, who answered them, the answers, and what follows an answer."""
        groups = read_integers(payloads[:, :_GROUP_BYTES])
        for number in np.unique(groups[groups < len(self.methods)]):
            rows = np.flatnonzero(groups == number)
            width = _GROUP_BYTES + self.methods[number].payload_bytes
            yield int(number), rows, payloads[rows, _GROUP_BYTES:width], payloads[rows, width:]

    def valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        good = np.zeros(len(payloads), dtype=np.bool_)
        for number, rows, answers, rest in self._split(payloads):
            good[rows] = self.methods[number].valid(answers) & ~rest.any(axis=1)
        return good

    def add(self, tally: Places, payloads: Bytes) -> None:
        parts = self.tallies(tally)
        for number, rows, answers, _ in self._split(payloads):
            tally[number] += rows.size
            self.methods[number].add(parts[number], answers)

    def tallies(self, tally: Places) -> list[Places]:
        """Return the part of the tally that belongs to each method."""
        return [tally[start:end] for start, end in pairwise(self._ends)]


class GroupedPlan(LocalPlan):
    """A plan with several questions; values are read as one row of places for each person."""

    _method: _OneOfSeveral

    def _ask(self, kind: str, sizes: list[int], **parameters: Any) -> None:
        """Fix the questions, each over a domain of the given size."""
        if not 1 <= len(sizes) <= _MOST_GROUPS:
            raise InvalidValue("questions", len(sizes), f"1 to {_MOST_GROUPS} of them")
        self._oracles = [FrequencyOracle(size, self._epsilon) for size in sizes]
        parts = [oracle.description for oracle in self._oracles]
        self._settle(kind, _OneOfSeveral(self._oracles), questions=parts, **parameters)


class GroupedServer(LocalServer):
    """Counts reports of a plan with several questions."""

    _plan: GroupedPlan

    def _estimate_question(self, number: int, labels: Sequence[Any]) -> FrequencyEstimate:
        self._count_people()
        method = self._plan._method
        counts = method.methods[number].supports(method.tallies(self._tally)[number])
        chances = self._plan._oracles[number].chances()
        facts = (int(self._tally[number]), chances, self._plan.loss, dict(self.rejected))
        return estimate_shares(labels, counts, *facts, parts=len(method.methods) + 1)


@final
class Marginals(GroupedPlan):
    """A public plan for the joint shares of every few of several attributes.

    :param attributes: the name of every attribute and its values, as for a :class:`FrequencyOracle`
    :param epsilon: the loss of one report, read exactly
    :param ways: how many attributes a marginal has
    :raises InvalidValue: if an argument is outside its range

    Examples
    --------
    >>> plan = Marginals({"sex": ["f", "m"], "smokes": ["no", "yes"]}, epsilon=4)
    >>> server = plan.server()
    >>> server.aggregate(plan.randomize_each([("f", "no"), ("m", "yes")] * 500))
    1000
    >>> list(server.estimate())
    [('sex', 'smokes')]
    """

    def __init__(self, attributes: Mapping[str, Any], epsilon: object, *, ways: int = 2) -> None:
        super().__init__(epsilon)
        if not (attributes and isinstance(attributes, Mapping)):
            raise InvalidValue("attributes", attributes, "a mapping from names to domains")
        self._domains = {str(name): Domain(values) for name, values in attributes.items()}
        many = _validate.integer("ways", ways, at_least=1, at_most=len(attributes))
        self.questions = list(combinations(self._domains, many))
        sizes = [math.prod(self._domains[one].size for one in names) for names in self.questions]
        stated = {name: domain.identity for name, domain in self._domains.items()}
        self._ask("marginals", sizes, attributes=stated, ways=many)

    def _read(self, values: Any) -> Places:
        people = list_people(values)
        columns: dict[str, list[Any]] = {name: [] for name in self._domains}
        for person in people:
            # What is no row of these attributes counts as unknown in all of them.
            fits = isinstance(person, tuple | list) and len(person) == len(columns)
            given = dict(zip(columns, person, strict=True)) if fits else person
            for name, column in columns.items():
                column.append(given.get(name, ELSE) if isinstance(given, Mapping) else ELSE)
        places = {name: self._domains[name].places(column) for name, column in columns.items()}
        rows = np.zeros((len(people), len(self.questions)), dtype=np.int64)
        for number, names in enumerate(self.questions):
            for name in names:
                rows[:, number] = rows[:, number] * self._domains[name].size + places[name]
        return rows

    def server(self) -> MarginalServer:
        return MarginalServer(self)


@final
class MarginalServer(GroupedServer):
    """Counts reports of :class:`Marginals`."""

    _plan: Marginals

    def estimate(self) -> dict[tuple[str, ...], FrequencyEstimate]:
        """Return the estimate of every marginal, with tuples as its values.

        Intervals hold together over all marginals.

        :raises NotApplicable: if no report was accepted, or none for some marginal
        """
        found = {}
        for number, names in enumerate(self._plan.questions):
            cells = product(*(self._plan._domains[name].labels for name in names))
            found[names] = self._estimate_question(number, [*cells, ELSE])
        return found


@final
class Hierarchy(GroupedPlan):
    """A public plan for ranges and quantiles of one number of each person.

    The range is cut into ``fanout ** levels`` equal bins. Each level groups them ``fanout`` by
    ``fanout``, so that any range is a union of few nodes. Numbers outside the range count as its
    nearer end; what is no number becomes the reserved value.

    :param low: where the public range begins
    :param high: where it ends
    :param epsilon: the loss of one report, read exactly
    :param levels: how often the range is divided
    :param fanout: into how many parts each node is divided
    :raises InvalidValue: if an argument is outside its range
    """

    def __init__(
        self, low: float, high: float, epsilon: object, *, levels: int = 4, fanout: int = 4
    ) -> None:
        super().__init__(epsilon)
        self._range = NumberRange(low, high)
        self.fanout = _validate.integer("fanout", fanout, at_least=2, at_most=1 << 10)
        self.levels = _validate.integer("levels", levels, at_least=1, at_most=20)
        if self.fanout**self.levels > 1 << 16:
            raise InvalidValue("levels", levels, "at most 2**16 bins")
        sizes = [self.fanout**level for level in range(1, self.levels + 1)]
        shape = {"fanout": self.fanout, "levels": self.levels}
        self._ask("hierarchy", sizes, **self._range.identity, **shape)
        self.edges = np.linspace(self._range.low, self._range.high, sizes[-1] + 1)

    def _read(self, values: Any) -> Places:
        inside, known = self._range.read(values, otherwise=self._range.low)
        leaf = np.searchsorted(self.edges, inside, side="right") - 1
        leaf = np.clip(leaf, 0, self.edges.size - 2)
        nodes = [leaf // self.fanout ** (self.levels - 1 - level) for level in range(self.levels)]
        reserved = [self.fanout ** (level + 1) for level in range(self.levels)]
        return np.where(known[:, None], np.stack(nodes, axis=1), np.array(reserved))

    def server(self) -> HierarchyServer:
        return HierarchyServer(self)


@final
class HierarchyServer(GroupedServer):
    """Counts reports of :class:`Hierarchy`."""

    _plan: Hierarchy

    def estimate(self) -> RangeEstimate:
        """Return shares of ranges and quantiles.

        :raises NotApplicable: if no report was accepted, or none for some level
        """
        plan = self._plan
        levels = [
            self._estimate_question(number, [*range(plan.fanout ** (number + 1)), ELSE])
            for number in range(plan.levels)
        ]
        return RangeEstimate(plan.edges, plan.fanout, tuple(levels))


@final
@dataclass(frozen=True)
class RangeEstimate:
    """Estimated shares of ranges among the people who reported; ``levels`` has every node."""

    edges: NDArray[np.float64]
    fanout: int
    levels: tuple[FrequencyEstimate, ...]

    def _nodes(self, start: int, end: int) -> list[tuple[int, slice]]:
        """Return the nodes that make up the bins from ``start`` to ``end``, from the bottom."""
        found = []
        for level in range(len(self.levels) - 1, -1, -1):
            if level == 0:
                found.append((0, slice(start, end)))
                break
            up, down = -(-start // self.fanout), end // self.fanout
            if up >= down:
                found.append((level, slice(start, end)))
                break
            found.append((level, slice(start, up * self.fanout)))
            found.append((level, slice(down * self.fanout, end)))
            start, end = up, down
        return found

    def _bins(self, low: float, high: float) -> tuple[int, int]:
        ends = [int(np.argmin(np.abs(self.edges - end))) for end in (low, high)]
        if ends[0] >= ends[1]:
            raise InvalidValue("high", high, "an edge above low: see edges")
        return ends[0], ends[1]

    def share(self, low: float, high: float) -> tuple[float, float]:
        """Return the unbiased share of a range, and its variance.

        :param low: where the range begins; moved to the nearest edge
        :param high: where it ends; moved to the nearest edge
        :raises InvalidValue: if the range is empty
        """
        parts = self._nodes(*self._bins(low, high))
        share = sum(float(self.levels[at].shares[nodes].sum()) for at, nodes in parts)
        return share, sum(float(self.levels[at].variances[nodes].sum()) for at, nodes in parts)

    def interval(self, low: float, high: float, *, confidence: float = 0.95) -> Interval:
        """Return where the true share of a range lies; all ranges hold together.

        It is the sum of the intervals of its nodes, and of those of the rest, whichever says more.

        :param low: where the range begins; moved to the nearest edge
        :param high: where it ends; moved to the nearest edge
        :param confidence: the least probability that all intervals of all ranges hold
        :raises InvalidValue: if the range is empty, or ``confidence`` is not in [0.5, 1)
        """
        known = [level.interval(confidence=confidence) for level in self.levels]
        start, end = self._bins(low, high)
        least, most = self._add_up(known, start, end)
        rest = [(0, start), (end, self.edges.size - 1)]
        others = [self._add_up(known, *bins) for bins in rest if bins[0] < bins[1]]
        top = 1.0 - sum(other[0] for other in others)
        return Interval(max(0.0, least), min(1.0, most, top))

    def _add_up(self, known: list[Interval], start: int, end: int) -> tuple[float, float]:
        parts = self._nodes(start, end)
        low = sum(float(known[at].lower[nodes].sum()) for at, nodes in parts)
        return low, sum(float(known[at].upper[nodes].sum()) for at, nodes in parts)

    def quantile(self, level: float) -> float:
        """Return the first edge below which an estimated share ``level`` of the numbers lies.

        :meth:`interval` of the range below it says how sure it is.

        :param level: between 0 and 1
        :raises InvalidValue: if ``level`` is not between 0 and 1
        :raises NotApplicable: if hardly any number was reported
        """
        wanted = _validate.real("level", level, above=0, below=1)
        bins = range(1, self.edges.size)
        below = [self.share(self.edges[0], self.edges[end])[0] for end in bins]
        if below[-1] <= 0:
            raise NotApplicable("no share of the people seems to have a number")
        reached = np.maximum.accumulate(below) >= wanted * below[-1]
        return float(self.edges[1 + int(np.argmax(reached))])
