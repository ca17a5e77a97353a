"""What all plans share: a client that counts her reports, and a server that counts them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, MechanismHalted, NotApplicable
from discreet.local._channel import play_all, tabulate
from discreet.local._coins import Coins, SystemCoins
from discreet.local._reports import ReportFormat, reject
from discreet.privacy import Loss, PureDP
from discreet.randomness import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Rows = list[list[Fraction]]


class LocalPlan(ABC):
    """A public plan: it makes the two sides, which share nothing else.

    Every report is epsilon-locally private: changing the person's value in any way changes the
    probability of no set of reports by more than e^epsilon.
    """

    _epsilon: Fraction
    _format: ReportFormat

    @abstractmethod
    def _read(self, values: Any) -> Any:
        """Bring one value of each person into the form that is randomized; refuse no value."""

    @abstractmethod
    def _randomize(self, values: Any, coins: Coins) -> Bytes:
        """Return one payload a row."""

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
    def covers(self) -> str:
        """What the loss speaks of, in words for a certificate."""
        return "one report of one value"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee rests on beside the coins."""
        return ()

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

        Parameters
        ----------
        reports : int
            How many reports she agreed to; together they cost her ``reports * loss``.
        source : Source, optional
            Where the bits come from; the operating system by default.
        insecure_seed : int, optional
            The seed of a reproducible source, for experiments only.

        Returns
        -------
        LocalClient
            Her client.

        Raises
        ------
        InvalidValue
            If an argument is outside its range.
        """
        allowed = _validate.integer("reports", reports, at_least=1)
        return LocalClient(self, allowed, choose_source(source, insecure_seed))

    def randomize_each(
        self, values: Any, *, source: Source | None = None, insecure_seed: int | None = None
    ) -> Bytes:
        """Return one report of each of many people, one a row.

        Parameters
        ----------
        values : array or sequence
            One value of each person; what is no value of the plan is given a fixed place in it.
        source : Source, optional
            Where the bits come from; the operating system by default.
        insecure_seed : int, optional
            The seed of a reproducible source, for experiments only.

        Returns
        -------
        array of uint8
            A row of ``report_bytes`` bytes a person.

        Raises
        ------
        InvalidValue
            If ``values`` is not one row of values.
        """
        coins = SystemCoins(self._epsilon, choose_source(source, insecure_seed))
        return self._format.write(self._randomize(self._read(values), coins))

    def _play(self, root: object, values: Any) -> tuple[list[bytes], Rows]:
        """Return the exact matrix of the randomizer, with a row for every given value."""
        odds = _validate.fraction("root", root, at_least=1)
        inputs = [values[row : row + 1] for row in range(len(values))]
        runs = [lambda c, x=x: self._randomize(x, c).tobytes() for x in inputs]
        return tabulate([play_all(run, odds) for run in runs])


@final
class LocalClient:
    """One person's side: it randomizes her value before anything leaves, and counts her reports."""

    def __init__(self, plan: LocalPlan, allowed: int, source: Source) -> None:
        self._plan = plan
        self._allowed = allowed
        self._source = source
        self._sent = 0

    @property
    def sent(self) -> int:
        """How many reports she has sent."""
        return self._sent

    @property
    def loss(self) -> Loss:
        """What all reports that she agreed to cost her together."""
        return self._allowed * self._plan.loss

    def randomize(self, value: Any) -> bytes:
        """Return a report of this value.

        Parameters
        ----------
        value : object
            Her value; outside the domain it becomes the reserved value.

        Returns
        -------
        bytes
            The report, always of the same length.

        Raises
        ------
        MechanismHalted
            If all reports that she agreed to are sent, whatever the value.
        """
        if self._sent >= self._allowed:
            raise MechanismHalted(f"all {self._allowed} reports of this client are sent")
        self._sent += 1
        return self._plan.randomize_each([value], source=self._source).tobytes()


class LocalServer(ABC):
    """The collector's side: it holds counts only.

    What is not a report of its plan is counted in ``rejected`` by reason: ``wrong length``,
    ``not a report``, ``another version``, ``another plan`` (another epsilon, domain or method) and
    ``impossible``. A report that is made up but well formed cannot be told from a true one.
    """

    def __init__(self, plan: LocalPlan, tally: NDArray[np.int64]) -> None:
        self._plan = plan
        self._tally = tally
        self._people = 0
        self.rejected: Counter[str] = Counter()

    @abstractmethod
    def _valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        """Say which payloads some client could have sent."""

    @abstractmethod
    def _add(self, payloads: Bytes) -> None:
        """Count valid payloads in the tally."""

    @property
    def accepted(self) -> int:
        """How many reports were counted."""
        return self._people

    def aggregate(self, reports: Any) -> int:
        """Count reports.

        Parameters
        ----------
        reports : iterable of bytes, bytes, or array of uint8
            Reports one by one, a single one, or one a row as from ``randomize_each``.

        Returns
        -------
        int
            How many of them were accepted.

        Raises
        ------
        InvalidValue
            If ``reports`` is no such thing as a whole; single bad reports are counted instead.
        """
        before = self._people
        for payloads in self._plan._format.read(reports, self.rejected):
            good = self._valid(payloads)
            reject(self.rejected, "impossible", int((~good).sum()))
            counted = payloads if good.all() else payloads[good]
            self._add(counted)
            self._people += len(counted)
        return self._people - before

    def merge(self, other: Self) -> None:
        """Add what another server of the same plan has counted.

        Parameters
        ----------
        other : LocalServer
            A collector of an equal plan; it is left as it is.

        Raises
        ------
        InvalidValue
            If the other plan is not the same.
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
            raise NotApplicable("no report was accepted, so there is nothing to estimate")
        return self._people
