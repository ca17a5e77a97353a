"""Frequency oracles: how many people have which value, when no collector is trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, MechanismHalted
from discreet.local._channel import play_all, tabulate
from discreet.local._coins import SystemCoins
from discreet.local._domain import Domain
from discreet.local._estimates import FrequencyEstimate, estimate_shares
from discreet.local._linear import HadamardResponse, LocalHashing, ProjectiveGeometry
from discreet.local._methods import (
    DirectResponse,
    Method,
    OptimisedUnary,
    SubsetSelection,
    SymmetricUnary,
    variance_at_zero,
)
from discreet.local._reports import ReportFormat, reject
from discreet.privacy import Loss, PureDP, RandomizedResponse
from discreet.randomness import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

_METHODS: tuple[Any, ...] = (
    DirectResponse,
    SymmetricUnary,
    OptimisedUnary,
    LocalHashing,
    SubsetSelection,
    HadamardResponse,
    ProjectiveGeometry,
)
METHODS = tuple(kind.name for kind in _METHODS)
_MOST_EPSILON = 100
_TOLERATED = 1.05


class Plan(Protocol):
    """What a server needs to know of a plan."""

    domain: Domain

    @property
    def loss(self) -> Loss:
        """What the reports of a person cost her."""

    def chances(self) -> tuple[float, float]:
        """Return how often a report supports its own value, and any given other one."""


@final
class FrequencyOracle:
    """A public plan: which values there are, epsilon, and how a value is randomized.

    The plan makes the two sides, which share nothing else: :meth:`client` for one person, or
    :meth:`randomize_each` for one report of each of many people, and :meth:`server` for the
    collector. Every report is epsilon-locally private: changing the person's value in any way,
    also to one outside the domain, changes the probability of no set of reports by
    more than e^epsilon. What is outside the domain becomes a reserved value before anything is
    drawn, so that a report never shows that a value was unknown.

    Parameters
    ----------
    domain : int or sequence of str or int
        The values: a number d for 0, ..., d - 1, or a list of distinct names.
    epsilon : number or str
        The loss of one report, read exactly (0.1 is one tenth), at most 100.
    method : str
        One of ``METHODS``, or ``"auto"``: of the methods whose variance is within 5 % of the
        least, the one with the shortest report, then the least work to decode, then the variance.

    Raises
    ------
    InvalidValue
        If an argument is outside its range, or the method cannot serve so large a domain.

    Examples
    --------
    >>> oracle = FrequencyOracle(["red", "green", "blue"], epsilon=2)
    >>> oracle.method, oracle.loss
    ('GRR', RandomizedResponse(epsilon=2.0, categories=4))
    >>> server = oracle.server()
    >>> server.aggregate([oracle.client().randomize("red"), b"noise"])
    1
    >>> dict(server.rejected)
    {'wrong length': 1}
    """

    def __init__(self, domain: int | Sequence[Any], epsilon: object, method: str = "auto") -> None:
        self.domain = Domain(domain)
        self._epsilon = _validate.fraction("epsilon", epsilon, above=0, at_most=_MOST_EPSILON)
        self._root = math.exp(float(self._epsilon) / 2)
        _validate.one_of("method", method, ("auto", *METHODS))
        if method == "auto":
            self._method, self.why = self._pick()
        else:
            kind = _METHODS[METHODS.index(method)]
            self._method, self.why = kind(self.domain.size, self._root), "asked for"
        plan = {
            "domain": self.domain.identity,
            "epsilon": str(self._epsilon),
            "method": self.method,
            **self._method.parameters,
        }
        self._format = ReportFormat(self.method, plan, self._method.payload_bytes)

    def _pick(self) -> tuple[Method, str]:
        candidates: list[tuple[float, Method]] = []
        for kind in _METHODS:
            try:
                found = kind(self.domain.size, self._root)
            except InvalidValue:
                continue
            candidates.append((variance_at_zero(found, self._root), found))
        least = min(variance for variance, _ in candidates)
        close = [pair for pair in candidates if pair[0] <= _TOLERATED * least]
        variance, best = min(
            close, key=lambda pair: (pair[1].payload_bytes, pair[1].decoding, pair[0])
        )
        beaten = ", ".join(
            f"{found.name} {value:.4g} in {found.payload_bytes} bytes"
            for value, found in sorted(candidates, key=lambda pair: pair[0])
            if found is not best
        )
        why = (
            f"{best.name}: variance {variance:.4g} / n, {variance / least - 1:.1%} above the least "
            f"here, in {best.payload_bytes} bytes; the others: {beaten}"
        )
        return best, why

    @property
    def epsilon(self) -> Fraction:
        """The epsilon of one report, exactly."""
        return self._epsilon

    @property
    def method(self) -> str:
        """The short name of the method in use."""
        return self._method.name

    @property
    def loss(self) -> Loss:
        """What one report costs its person, under the relation ``replace``."""
        if not isinstance(self._method, DirectResponse):
            return PureDP(self._epsilon, relation="replace")
        stated = float(self._epsilon)
        if min(Fraction(stated), Fraction(repr(stated))) < self._epsilon:
            stated = math.nextafter(stated, math.inf)
        return RandomizedResponse(stated, self.domain.size)

    @property
    def report_bytes(self) -> int:
        """The length of every report."""
        return self._format.size

    def chances(self) -> tuple[float, float]:
        """Return p and q: how often a report supports its own value, and any given other one."""
        p, q = self._method.chances(self._root)
        return float(p), float(q)

    def variance(self, people: int, *, share: float = 0.0) -> float:
        """Return the variance of the estimate of a true share, over the coins of the clients.

        Parameters
        ----------
        people : int
            How many people report.
        share : float
            The true share of the value.

        Returns
        -------
        float
            (q (1 - q) / (p - q)^2 + share (1 - p - q) / (p - q)) / people.

        Raises
        ------
        InvalidValue
            If an argument is outside its range.
        """
        count = _validate.integer("people", people, at_least=1)
        part = _validate.real("share", share, at_least=0, at_most=1)
        p, q = self.chances()
        return (q * (1 - q) / (p - q) ** 2 + part * (1 - p - q) / (p - q)) / count

    def client(
        self, *, reports: int = 1, source: Source | None = None, insecure_seed: int | None = None
    ) -> FrequencyClient:
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
        FrequencyClient
            Her client.

        Raises
        ------
        InvalidValue
            If an argument is outside its range.
        """
        allowed = _validate.integer("reports", reports, at_least=1)
        return FrequencyClient(self, allowed, choose_source(source, insecure_seed))

    def randomize_each(
        self, values: Any, *, source: Source | None = None, insecure_seed: int | None = None
    ) -> NDArray[np.uint8]:
        """Return one report of each of many people, one a row.

        Parameters
        ----------
        values : array or sequence
            One value of each person; what is outside the domain becomes the reserved value.
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
            If ``values`` is not a flat row of values.
        """
        coins = SystemCoins(self._epsilon, choose_source(source, insecure_seed))
        return self._format.write(self._method.randomize(self.domain.places(values), coins))

    def server(self) -> FrequencyServer:
        """Return an empty collector of this plan."""
        return FrequencyServer(self, self._method, self._format)

    def channel(self, root: object) -> tuple[list[bytes], list[list[Fraction]]]:
        """Return the exact matrix of the randomizer, by playing every outcome of its coins.

        Parameters
        ----------
        root : number or str
            A rational number that stands for e^(epsilon/2), at least 1.

        Returns
        -------
        tuple
            All payloads, and a row of their probabilities for every value; the last row belongs
            to the reserved value.

        Raises
        ------
        NotApplicable
            If the domain is too large to play all outcomes.

        Examples
        --------
        >>> from discreet.mechanisms import channel_epsilon
        >>> payloads, rows = FrequencyOracle(2, epsilon=1, method="PGR").channel("5/4")
        >>> channel_epsilon(rows) <= 2 * math.log(1.25) * (1 + 1e-12)
        True
        """
        odds = _validate.fraction("root", root, at_least=1)
        rows = []
        for place in range(self.domain.size):
            own = np.array([place])
            rows.append(
                play_all(lambda c, own=own: self._method.randomize(own, c).tobytes(), odds)  # type: ignore[misc]
            )
        return tabulate(rows)

    def __repr__(self) -> str:
        return (
            f"FrequencyOracle({self.domain.size - 1} values, epsilon={self._epsilon}, "
            f"method={self.method!r})"
        )


@final
class FrequencyClient:
    """One person's side: it randomizes her value before anything leaves, and counts her reports."""

    def __init__(self, oracle: FrequencyOracle, allowed: int, source: Source) -> None:
        self._oracle = oracle
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
        return self._allowed * self._oracle.loss

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
        return self._oracle.randomize_each([value], source=self._source).tobytes()


@final
class FrequencyServer:
    """The collector's side: counts reports of one plan and estimates shares.

    It holds counts only. What is not a report of its plan is counted in ``rejected`` by reason:
    ``wrong length``, ``not a report``, ``another version``, ``another plan`` (another
    epsilon, domain or method) and ``impossible``. A report that is made up but well formed cannot
    be told from a true one.
    """

    def __init__(self, oracle: Plan, method: Method, form: ReportFormat) -> None:
        self._oracle = oracle
        self._method = method
        self._format = form
        self._tally = method.new_tally()
        self._people = 0
        self.rejected: Counter[str] = Counter()

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
        for payloads in self._format.read(reports, self.rejected):
            good = self._method.valid(payloads)
            reject(self.rejected, "impossible", int((~good).sum()))
            kept = payloads if good.all() else payloads[good]
            self._method.add(self._tally, kept)
            self._people += len(kept)
        return self._people - before

    def merge(self, other: FrequencyServer) -> None:
        """Add what another server of the same plan has counted.

        Parameters
        ----------
        other : FrequencyServer
            A collector of an equal plan; it is left as it is.

        Raises
        ------
        InvalidValue
            If the other plan is not the same.
        """
        if other is self:
            raise InvalidValue("other", other, "another FrequencyServer")
        if other._format.plan_id != self._format.plan_id:
            raise InvalidValue("other", other._oracle, f"a server of the plan {self._oracle}")
        self._tally += other._tally
        self._people += other._people
        self.rejected.update(other.rejected)

    def estimate(self) -> FrequencyEstimate:
        """Return the unbiased shares of all values, with variances and intervals.

        Returns
        -------
        FrequencyEstimate
            Shares in the order of the domain, then that of everything else.

        Raises
        ------
        NotApplicable
            If no report was accepted.
        """
        return estimate_shares(
            self._oracle.domain.labels,
            self._method.supports(self._tally),
            self._people,
            self._oracle.chances(),
            self._oracle.loss,
            dict(self.rejected),
        )
