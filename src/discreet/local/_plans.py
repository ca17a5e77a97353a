"""What all plans share: reports as bytes, a client for a person, a server for the collector.

Reports have format 1: a header of 12 bytes and a payload whose length the plan fixes.

======  ======  ====================================================================
offset  length  content
======  ======  ====================================================================
0       2       ``DL``
2       1       the version of the format, 1
3       1       the kind of report, a number of :data:`KINDS`
4       8       the plan: the first bytes of SHA-256 of its JSON, keys in order
12      fixed   the payload: integers are little-endian, bits start at the lowest
======  ======  ====================================================================

The plan names the domain, epsilon and the method with its parameters, so a report made for another
epsilon or another list of values is seen. A report holds no name, time or number of the person.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, MechanismHalted, NotApplicable
from discreet.local._coins import SystemCoins, play_all, tabulate
from discreet.privacy import Loss, PureDP
from discreet.randomness import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.local._methods import Randomizer

    Bytes = NDArray[np.uint8]

VERSION = 1
HEADER_BYTES = 12
KINDS = {
    "GRR": 1,
    "SUE": 2,
    "OUE": 3,
    "SS": 4,
    "OLH": 5,
    "HR": 6,
    "PGR": 7,
    "RAPPOR": 8,
    "Duchi": 9,
    "piecewise": 10,
    "hybrid": 11,
    "sketch": 12,
    "PrivUnitG": 13,
    "marginals": 14,
    "hierarchy": 15,
}
_CHUNK = 1 << 16
# Below it p and q of a method could not be distinguished as floats.
_LEAST_EPSILON = Fraction(1, 10**6)


@final
class ReportFormat:
    """Writes the header of one plan's reports, and sorts out what is not one of them."""

    def __init__(self, kind: str, plan: dict[str, Any], payload_bytes: int) -> None:
        text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        self.plan = plan
        self.plan_id = hashlib.sha256(text.encode("ascii")).digest()[:8]
        self.payload_bytes = payload_bytes
        self.size = HEADER_BYTES + payload_bytes
        header = b"DL" + bytes([VERSION, KINDS[kind]]) + self.plan_id
        self._header = np.frombuffer(header, dtype=np.uint8)

    def write(self, payloads: Bytes) -> Bytes:
        """Return whole reports, one a row."""
        rows = np.empty((len(payloads), self.size), dtype=np.uint8)
        rows[:, :HEADER_BYTES] = self._header
        rows[:, HEADER_BYTES:] = payloads
        return rows

    def read(self, reports: object, rejected: Counter[str]) -> Iterator[Bytes]:
        """Yield the payloads of reports of this plan, and count why others are turned away."""
        for rows in self._rows(reports, rejected):
            wrong = rows[:, :HEADER_BYTES] != self._header
            if not wrong.any():
                yield rows[:, HEADER_BYTES:]
                continue
            foreign = wrong[:, :2].any(axis=1)
            version = ~foreign & wrong[:, 2]
            plan = ~foreign & ~version & wrong[:, 3:].any(axis=1)
            reasons = (("not a report", foreign), ("another version", version))
            for reason, found in (*reasons, ("another plan", plan)):
                reject(rejected, reason, int(found.sum()))
            yield rows[~wrong.any(axis=1), HEADER_BYTES:]

    def _rows(self, reports: object, rejected: Counter[str]) -> Iterator[Bytes]:
        if isinstance(reports, np.ndarray):
            if reports.dtype != np.uint8 or reports.ndim != 2:
                raise InvalidValue(
                    "reports", f"an array {reports.dtype} {reports.shape}", "one row of bytes each"
                )
            if reports.shape[1] == self.size:
                yield reports
            else:
                reject(rejected, "wrong length", len(reports))
            return
        if isinstance(reports, bytes | bytearray | memoryview):
            reports = [reports]
        if not isinstance(reports, Iterable):
            raise InvalidValue("reports", reports, "reports, each as bytes, or an array of rows")
        stream = iter(reports)
        while chunk := list(islice(stream, _CHUNK)):
            texts = [bytes(one) for one in chunk if isinstance(one, bytes | bytearray)]
            reject(rejected, "not a report", len(chunk) - len(texts))
            whole = [one for one in texts if len(one) == self.size]
            reject(rejected, "wrong length", len(texts) - len(whole))
            yield np.frombuffer(b"".join(whole), dtype=np.uint8).reshape(-1, self.size)


def reject(rejected: Counter[str], reason: str, count: int) -> None:
    """Count rejections, without naming a reason that did not occur."""
    if count:
        rejected[reason] += count


class LocalPlan(ABC):
    """A public plan: it makes the two sides, which share nothing else.

    Every report is epsilon-locally private: changing the person's value in any way changes the
    probability of no set of reports by more than e^epsilon. ``covers`` says what the loss speaks
    of, and ``assumptions`` what it rests on beside the coins, in words for a certificate.
    """

    covers = "one report of one value"
    assumptions: tuple[str, ...] = ()
    _most_epsilon: ClassVar[int] = 100
    _nothing: Any = None
    _method: Randomizer
    _format: ReportFormat

    def __init__(self, epsilon: object) -> None:
        most = self._most_epsilon
        self._epsilon = _validate.fraction("epsilon", epsilon, above=0, at_most=most)
        if self._epsilon < _LEAST_EPSILON:
            raise InvalidValue("epsilon", epsilon, "at least a millionth")
        self._root = math.exp(float(self._epsilon) / 2)

    def _settle(self, kind: str, method: Randomizer, **parameters: Any) -> None:
        """Fix how a value is randomized, and the identity of the plan."""
        self._method = method
        plan = {"epsilon": str(self._epsilon), "method": kind, **parameters}
        self._format = ReportFormat(kind, plan, method.payload_bytes)

    @abstractmethod
    def _read(self, values: Any) -> Any:
        """Bring one value of each person into the form that is randomized; refuse no value."""

    def _read_one(self, value: Any) -> Any:
        """Read the value of one person; silence about one that cannot be read would show it."""
        try:
            return self._read([value])
        except InvalidValue:
            return self._read([self._nothing])

    def _identify(self, value: Any) -> str:
        return str(self._read_one(value).tobytes().hex())

    def _report(self, value: Any, source: Source) -> bytes:
        coins = SystemCoins(self._epsilon, source)
        return self._format.write(self._method.randomize(self._read_one(value), coins)).tobytes()

    @abstractmethod
    def server(self) -> LocalServer:
        """Return an empty collector of this plan."""

    @property
    def epsilon(self) -> Fraction:
        """The epsilon of one report, exactly."""
        return self._epsilon

    @property
    def loss(self) -> Loss:
        """What one report costs its person, under the relation ``replace``."""
        return PureDP(self._epsilon, relation="replace")

    @property
    def description(self) -> dict[str, Any]:
        """The plan in public words, of which reports hold a digest."""
        return self._format.plan

    @property
    def report_bytes(self) -> int:
        """The length of every report."""
        return self._format.size

    def client(
        self, *, reports: int = 1, source: Source | None = None, insecure_seed: int | None = None
    ) -> LocalClient:
        """Return the side of one person, who may send this many reports.

        :param reports: how many she agreed to; together they cost her ``reports * loss``
        :param source: where the bits come from; the operating system by default
        :param insecure_seed: the seed of a reproducible source, for experiments only
        :raises InvalidValue: if an argument is outside its range
        """
        allowed = _validate.integer("reports", reports, at_least=1)
        return LocalClient(self, allowed, choose_source(source, insecure_seed))

    def randomize_each(
        self, values: Any, *, source: Source | None = None, insecure_seed: int | None = None
    ) -> Bytes:
        """Return one report of each of many people, one of ``report_bytes`` bytes a row.

        :param values: one value of each person; what is no value of the plan has a place in it
        :param source: where the bits come from; the operating system by default
        :param insecure_seed: the seed of a reproducible source, for experiments only
        :raises InvalidValue: if ``values`` is not one row of values
        """
        coins = SystemCoins(self._epsilon, choose_source(source, insecure_seed))
        return self._format.write(self._method.randomize(self._read(values), coins))

    def channel(self, root: object) -> tuple[list[bytes], list[list[Fraction]]]:
        """Return the exact matrix of the randomizer, by playing every outcome of its coins.

        :param root: a rational number that stands for e^(epsilon/2), at least 1
        :returns: all payloads, and a row of their probabilities for every value in its order, the
            reserved one last; for several questions, of every combination of their values
        :raises NotApplicable: if there are too many outcomes to play them all
        """
        odds, inputs = _validate.fraction("root", root, at_least=1), self._method.inputs()
        values = [inputs[row : row + 1] for row in range(len(inputs))]
        runs = [lambda c, x=x: self._method.randomize(x, c).tobytes() for x in values]
        return tabulate([play_all(run, odds) for run in runs])


class LocalClient:
    """One person's side: it randomizes her value before anything leaves, and counts her reports."""

    def __init__(self, plan: LocalPlan, allowed: int, source: Source) -> None:
        self._plan = plan
        self._allowed = allowed
        self._source = source
        self._sent = 0
        self._guard = threading.Lock()

    @property
    def sent(self) -> int:
        """How many reports she has sent."""
        return self._sent

    @property
    def loss(self) -> Loss:
        """What all reports that she agreed to cost her together."""
        return self._allowed * self._plan.loss

    def randomize(self, value: Any) -> bytes:
        """Return a report of this value, always of the same length.

        :param value: her value; outside the domain it becomes the reserved value
        :raises MechanismHalted: if all reports that she agreed to are sent, for every value
        """
        with self._guard:
            if self._sent >= self._allowed:
                raise MechanismHalted(f"all {self._allowed} reports of this client are sent")
            self._sent += 1
            return self._plan._report(value, self._source)


class LocalServer:
    """The collector's side: it holds counts only.

    What is not a report of its plan is counted in ``rejected`` by reason: ``wrong length``,
    ``not a report``, ``another version``, ``another plan`` (another epsilon, domain or method) and
    ``impossible``. A made-up report of the right form cannot be distinguished from a true one.
    """

    def __init__(self, plan: LocalPlan) -> None:
        self._plan = plan
        self._tally = plan._method.new_tally()
        self._people = 0
        self.rejected: Counter[str] = Counter()

    @property
    def accepted(self) -> int:
        """How many reports were counted."""
        return self._people

    def aggregate(self, reports: Any) -> int:
        """Count reports, and return how many of them were accepted.

        :param reports: reports one by one, a single one, or one a row as from ``randomize_each``
        :raises InvalidValue: if ``reports`` is no such thing; single bad ones are counted
        """
        before, method = self._people, self._plan._method
        for payloads in self._plan._format.read(reports, self.rejected):
            good = method.valid(payloads)
            reject(self.rejected, "impossible", int((~good).sum()))
            counted = payloads if good.all() else payloads[good]
            method.add(self._tally, counted)
            self._people += len(counted)
        return self._people - before

    def refusal(self, report: object) -> str | None:
        """Say why a report would be rejected, or return None; nothing is counted.

        :param report: anything at all
        """
        reasons: Counter[str] = Counter()
        for payloads in self._plan._format.read([report], reasons):
            reject(reasons, "impossible", int((~self._plan._method.valid(payloads)).sum()))
        return next(iter(reasons), None)

    def merge(self, other: Self) -> None:
        """Add what another server of the same plan has counted.

        :param other: a collector of an equal plan; it is left as it is
        :raises InvalidValue: if the other plan is not the same
        """
        if other is self:
            raise InvalidValue("other", other, "another server")
        if other._plan._format.plan_id != self._plan._format.plan_id:
            raise InvalidValue("other", other._plan, f"a server of the plan {self._plan}")
        self._tally += other._tally
        self._people += other._people
        self.rejected.update(other.rejected)

    def _count_people(self) -> int:
        if self._people == 0:
            why = ", ".join(f"{count} {reason}" for reason, count in self.rejected.items())
            raise NotApplicable(
                f"no report was accepted ({why or 'none came'}), so there is nothing to estimate"
            )
        return self._people
