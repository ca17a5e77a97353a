"""Plans in which each person answers one of several questions: marginals, and ranges of numbers.

Which question she answers is drawn uniformly, without a look at her value, and is sent along. So
one report costs epsilon in full, whatever the number of questions, and every report has the
same length. The people who answered a question are a random part of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue, NotApplicable
from discreet.local._coins import Coins
from discreet.local._domain import ELSE, Domain
from discreet.local._estimates import FrequencyEstimate, estimate_shares
from discreet.local._frequency import FrequencyOracle
from discreet.local._methods import read_integers, write_integers
from discreet.local._plans import LocalPlan, LocalServer
from discreet.local._reports import ReportFormat
from discreet.mechanisms import Interval

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Places = NDArray[np.int64]

_GROUP_BYTES = 2
_MOST_GROUPS = 1 << 12


class GroupedPlan(LocalPlan):
    """A plan with several questions; values are read as one row of places for each person."""

    def __init__(self, kind: str, sizes: list[int], epsilon: object, plan: dict[str, Any]) -> None:
        if not 1 <= len(sizes) <= _MOST_GROUPS:
            raise InvalidValue("questions", len(sizes), f"1 to {_MOST_GROUPS} of them")
        self._oracles = [FrequencyOracle(size, epsilon) for size in sizes]
        self._epsilon = self._oracles[0].epsilon
        widths = [oracle._method.payload_bytes for oracle in self._oracles]
        parts = [oracle.description for oracle in self._oracles]
        whole = {**plan, "epsilon": str(self._epsilon), "method": kind, "questions": parts}
        self._format = ReportFormat(kind, whole, _GROUP_BYTES + max(widths))

    def _randomize(self, values: Any, coins: Coins) -> Bytes:
        people = len(values)
        groups = coins.uniform(len(self._oracles), people)
        payloads = np.zeros((people, self._format.payload_bytes), dtype=np.uint8)
        payloads[:, :_GROUP_BYTES] = write_integers(groups, _GROUP_BYTES)
        for number in np.unique(groups):
            chosen = np.flatnonzero(groups == number)
            inner = self._oracles[number]._method.randomize(values[chosen, number], coins)
            payloads[chosen, _GROUP_BYTES : _GROUP_BYTES + inner.shape[1]] = inner
        return payloads

    def channel(self, root: object) -> tuple[list[bytes], list[list[Fraction]]]:
        """Return the exact matrix of the randomizer; a row for all places of all questions.

        Parameters
        ----------
        root : number or str
            A rational number that stands for e^(epsilon/2), at least 1.

        Returns
        -------
        tuple
            All payloads, and a row of their probabilities for every combination of places.

        Raises
        ------
        NotApplicable
            If there are too many outcomes to play.
        """
        sizes = (range(oracle.domain.size) for oracle in self._oracles)
        return self._play(root, np.array(list(product(*sizes)), dtype=np.int64))


class GroupedServer(LocalServer):
    """Counts reports of a plan with several questions."""

    def __init__(self, plan: GroupedPlan) -> None:
        self._methods = [oracle._method for oracle in plan._oracles]
        tallies = [method.new_tally() for method in self._methods]
        # First how many people answered each question, then the tallies.
        ends = np.cumsum([len(self._methods), *(tally.size for tally in tallies)])
        super().__init__(plan, np.zeros(ends[-1], dtype=np.int64))
        self._parts = [self._tally[a:b] for a, b in pairwise(ends)]
        self._oracles = plan._oracles

    def _split(self, payloads: Bytes) -> list[tuple[int, Places, Bytes]]:
        groups = read_integers(payloads[:, :_GROUP_BYTES])
        found = []
        for number in np.unique(groups[groups < len(self._methods)]):
            rows = np.flatnonzero(groups == number)
            found.append((int(number), rows, payloads[rows, _GROUP_BYTES:]))
        return found

    def _valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        good = np.zeros(len(payloads), dtype=np.bool_)
        for number, rows, inner in self._split(payloads):
            width = self._methods[number].payload_bytes
            empty = ~inner[:, width:].any(axis=1)
            good[rows] = empty & self._methods[number].valid(inner[:, :width])
        return good

    def _add(self, payloads: Bytes) -> None:
        for number, rows, inner in self._split(payloads):
            self._tally[number] += rows.size
            method = self._methods[number]
            method.add(self._parts[number], inner[:, : method.payload_bytes])

    def _estimate_question(self, number: int, labels: Sequence[Any]) -> FrequencyEstimate:
        self._count_people()
        return estimate_shares(
            labels,
            self._methods[number].supports(self._parts[number]),
            int(self._tally[number]),
            self._oracles[number].chances(),
            self._plan.loss,
            dict(self.rejected),
            len(self._methods) + 1,
        )


@final
class Marginals(GroupedPlan):
    """A public plan for the joint shares of every few of several attributes.

    Parameters
    ----------
    attributes : mapping
        The name of every attribute and its values, as for a :class:`FrequencyOracle`.
    epsilon : number or str
        The loss of one report, read exactly.
    ways : int
        How many attributes a marginal has.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

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
        if not (attributes and isinstance(attributes, Mapping)):
            raise InvalidValue("attributes", attributes, "a mapping from names to domains")
        self._domains = {str(name): Domain(values) for name, values in attributes.items()}
        many = _validate.integer("ways", ways, at_least=1, at_most=len(attributes))
        self.questions = list(combinations(self._domains, many))
        sizes = [math.prod(self._domains[one].size for one in names) for names in self.questions]
        stated = {name: domain.identity for name, domain in self._domains.items()}
        super().__init__("marginals", sizes, epsilon, {"attributes": stated, "ways": many})

    def _read(self, values: Any) -> Places:
        if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
            raise withheld("values", "one row of attributes for each person")
        people = list(values)
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
        """Return an empty collector of this plan."""
        return MarginalServer(self)


@final
class MarginalServer(GroupedServer):
    """Counts reports of :class:`Marginals`."""

    def __init__(self, plan: Marginals) -> None:
        super().__init__(plan)
        self._questions, self._domains = plan.questions, plan._domains

    def estimate(self) -> dict[tuple[str, ...], FrequencyEstimate]:
        """Return the estimate of every marginal; intervals hold together over all of them.

        Returns
        -------
        dict
            An estimate for the names of its attributes; its values are tuples.

        Raises
        ------
        NotApplicable
            If no report was accepted, or none for some marginal.
        """
        found = {}
        for number, names in enumerate(self._questions):
            cells = product(*(self._domains[name].labels for name in names))
            found[names] = self._estimate_question(number, [*cells, ELSE])
        return found


@final
class Hierarchy(GroupedPlan):
    """A public plan for ranges and quantiles of one number of each person.

    The range is cut into ``fanout ** levels`` equal bins. Each level groups them ``fanout`` by
    ``fanout``, so that any range is a union of few nodes. Numbers outside the range count as its
    nearer end; what is no number becomes the reserved value.

    Parameters
    ----------
    low, high : float
        The public range.
    epsilon : number or str
        The loss of one report, read exactly.
    levels : int
        How often the range is divided.
    fanout : int
        Into how many parts each node is divided.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> plan = Hierarchy(0, 64, epsilon=4, levels=3)
    >>> server = plan.server()
    >>> server.aggregate(plan.randomize_each(np.arange(64.0).repeat(100)))
    6400
    >>> 24 < server.estimate().quantile(0.5) < 40
    True
    """

    def __init__(
        self, low: float, high: float, epsilon: object, *, levels: int = 4, fanout: int = 4
    ) -> None:
        self._low = _validate.real("low", low)
        self._high = _validate.real("high", high)
        if not self._low < self._high or not math.isfinite(self._high - self._low):
            raise InvalidValue("high", high, f"more than low, {self._low}, by a finite amount")
        self.fanout = _validate.integer("fanout", fanout, at_least=2, at_most=1 << 10)
        self.levels = _validate.integer("levels", levels, at_least=1, at_most=20)
        if self.fanout**self.levels > 1 << 16:
            raise InvalidValue("levels", levels, "at most 2**16 bins")
        sizes = [self.fanout**level for level in range(1, self.levels + 1)]
        plan = {"low": self._low.hex(), "high": self._high.hex(), "fanout": self.fanout}
        super().__init__("hierarchy", sizes, epsilon, {**plan, "levels": self.levels})
        self.edges = np.linspace(self._low, self._high, sizes[-1] + 1)

    def _read(self, values: Any) -> Places:
        try:
            row = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise withheld("values", "a row with one number for each person") from None
        if row.ndim != 1:
            raise withheld("values", "a row with one number for each person")
        known, bins = ~np.isnan(row), self.edges.size - 1
        inside = np.clip(np.where(known, row, self._low), self._low, self._high)
        leaf = np.searchsorted(self.edges, inside, side="right") - 1
        leaf = np.clip(leaf, 0, bins - 1)
        nodes = [leaf // self.fanout ** (self.levels - 1 - level) for level in range(self.levels)]
        reserved = [self.fanout ** (level + 1) for level in range(self.levels)]
        return np.where(known[:, None], np.stack(nodes, axis=1), np.array(reserved))

    def server(self) -> HierarchyServer:
        """Return an empty collector of this plan."""
        return HierarchyServer(self)


@final
class HierarchyServer(GroupedServer):
    """Counts reports of :class:`Hierarchy`."""

    def __init__(self, plan: Hierarchy) -> None:
        super().__init__(plan)
        self._hierarchy = plan

    def estimate(self) -> RangeEstimate:
        """Return shares of ranges and quantiles.

        Returns
        -------
        RangeEstimate
            What the reports say.

        Raises
        ------
        NotApplicable
            If no report was accepted, or none for some level.
        """
        plan = self._hierarchy
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

        Parameters
        ----------
        low, high : float
            The range; each end is moved to the nearest edge.

        Returns
        -------
        tuple
            The share and its variance.

        Raises
        ------
        InvalidValue
            If the range is empty.
        """
        parts = self._nodes(*self._bins(low, high))
        share = sum(float(self.levels[at].shares[nodes].sum()) for at, nodes in parts)
        return share, sum(float(self.levels[at].variances[nodes].sum()) for at, nodes in parts)

    def interval(self, low: float, high: float, *, confidence: float = 0.95) -> Interval:
        """Return where the true share of a range lies; all ranges hold together.

        It is the sum of the intervals of its nodes, and of those of the rest, whichever says more.

        Parameters
        ----------
        low, high : float
            The range; each end is moved to the nearest edge.
        confidence : float
            The least probability that all intervals of all ranges hold.

        Returns
        -------
        Interval
            Two shares.

        Raises
        ------
        InvalidValue
            If the range is empty, or ``confidence`` is not in [0.5, 1).
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

        Parameters
        ----------
        level : float
            Between 0 and 1.

        Returns
        -------
        float
            An edge; :meth:`interval` of the range below it says how sure it is.

        Raises
        ------
        InvalidValue
            If ``level`` is not between 0 and 1.
        NotApplicable
            If hardly any number was reported.
        """
        wanted = _validate.real("level", level, above=0, below=1)
        bins = range(1, self.edges.size)
        below = [self.share(self.edges[0], self.edges[end])[0] for end in bins]
        if below[-1] <= 0:
            raise NotApplicable("no share of the people seems to have a number")
        reached = np.maximum.accumulate(below) >= wanted * below[-1]
        return float(self.edges[1 + int(np.argmax(reached))])
