"""Frequency oracles: how many people have which value, when no collector is trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.local._coins import Coins
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
from discreet.local._plans import LocalPlan, LocalServer
from discreet.local._reports import ReportFormat
from discreet.privacy import Loss, RandomizedResponse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.local._rappor import Rappor

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


@final
class FrequencyOracle(LocalPlan):
    """A public plan: which values there are, epsilon, and how a value is randomized.

    It makes :meth:`client` for one person, or :meth:`randomize_each` for one report of each of many
    people, and :meth:`server` for the collector. What is outside the domain becomes a reserved
    value before anything is drawn, so that a report never shows that a value was unknown.

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
    def method(self) -> str:
        """The short name of the method in use."""
        return self._method.name

    @property
    def loss(self) -> Loss:
        """What one report costs its person, under the relation ``replace``."""
        if not isinstance(self._method, DirectResponse):
            return super().loss
        stated = float(self._epsilon)
        if min(Fraction(stated), Fraction(repr(stated))) < self._epsilon:
            stated = math.nextafter(stated, math.inf)
        return RandomizedResponse(stated, self.domain.size)

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

    def _read(self, values: Any) -> NDArray[np.int64]:
        return self.domain.places(values)

    def _randomize(self, values: Any, coins: Coins) -> NDArray[np.uint8]:
        return self._method.randomize(values, coins)

    def server(self) -> FrequencyServer:
        """Return an empty collector of this plan."""
        return FrequencyServer(self, self._method)

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
        return self._play(root, np.arange(self.domain.size))

    def __repr__(self) -> str:
        return (
            f"FrequencyOracle({self.domain.size - 1} values, epsilon={self._epsilon}, "
            f"method={self.method!r})"
        )


@final
class FrequencyServer(LocalServer):
    """Counts reports of one plan and estimates shares."""

    def __init__(self, plan: FrequencyOracle | Rappor, method: Method) -> None:
        super().__init__(plan, method.new_tally())
        self._method = method
        self._frequencies = plan

    def _valid(self, payloads: NDArray[np.uint8]) -> NDArray[np.bool_]:
        return self._method.valid(payloads)

    def _add(self, payloads: NDArray[np.uint8]) -> None:
        self._method.add(self._tally, payloads)

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
        plan = self._frequencies
        return estimate_shares(
            plan.domain.labels,
            self._method.supports(self._tally),
            self._count_people(),
            plan.chances(),
            plan.loss,
            dict(self.rejected),
        )
