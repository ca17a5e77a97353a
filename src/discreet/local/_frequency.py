"""Frequency oracles: how many people have which value, when no collector is trusted.

The number of reports that support a value is a sum of independent coins: p for people who have it,
q for the others. By Hoeffding (1956, theorem 4) its tails lie inside those of the binomial with the
same mean, so an interval of Clopper and Pearson for the mean, widened by one report so that the
theorem applies up to its edge, gives one for the share. Intervals for all values hold
together (Bonferroni).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._confidence import lower_bounds, upper_bounds
from discreet._validate import withheld
from discreet.errors import InvalidValue, NotApplicable
from discreet.local._linear import HadamardResponse, LocalHashing, ProjectiveGeometry
from discreet.local._methods import (
    DirectResponse,
    Method,
    OptimisedUnary,
    SubsetSelection,
    SymmetricUnary,
    variance_at,
)
from discreet.local._plans import LocalPlan, LocalServer
from discreet.mechanisms import Interval
from discreet.privacy import Loss, RandomizedResponse

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
_MOST = 1 << 30
_TOLERATED = 1.05


@final
class _Else:
    """The label of everything outside a domain."""

    def __repr__(self) -> str:
        return "ELSE"


ELSE = _Else()


@final
class Domain:
    """A public list of values, numbered from 0; the last number stands for anything else.

    ``size`` counts the reserved value, and ``identity`` is what a plan says about the domain.
    """

    def __init__(self, domain: int | Sequence[Any]) -> None:
        expected = "a number of values, or a list of distinct names (str) or numbers (int)"
        self._numbers: dict[Any, int] | None = None
        if isinstance(domain, int | np.integer) and not isinstance(domain, bool):
            if not 1 <= domain <= _MOST:
                raise InvalidValue("domain", domain, f"1 <= domain <= {_MOST}")
            self.size = int(domain) + 1
            self.identity = str(int(domain))
            return
        listed = isinstance(domain, Iterable) and not isinstance(domain, str | bytes)
        given: Any = domain if listed else [None]
        names = [name.item() if isinstance(name, np.generic) else name for name in given]
        plain = all(isinstance(name, str | int) and not isinstance(name, bool) for name in names)
        self._numbers = {name: number for number, name in enumerate(names)} if plain else {}
        if not names or len(self._numbers) != len(names):
            raise InvalidValue("domain", domain, expected)
        self.size = len(names) + 1
        text = json.dumps(names, ensure_ascii=True).encode("ascii")
        self.identity = f"sha256 {hashlib.sha256(text).hexdigest()}"

    @property
    def labels(self) -> Sequence[Any]:
        """The values in order; the last label, ``ELSE``, stands for anything else."""
        named = range(self.size - 1) if self._numbers is None else self._numbers
        return [*named, ELSE]

    def places(self, values: Any) -> NDArray[np.int64]:
        """Return the numbers of the values; what is not in the domain gets the reserved one."""
        given, last = list_people(values), self.size - 1
        if self._numbers is None:
            if isinstance(given, list) and all(type(v) is int and abs(v) < 1 << 62 for v in given):
                given = np.array(given, dtype=np.int64)
            if isinstance(given, np.ndarray) and given.dtype.kind in "iu":
                inside = (given >= 0) & (given < last)
                return np.where(inside, given, last).astype(np.int64)
        if isinstance(given, np.ndarray):
            given = given.tolist()
        return np.array([self._place(value) for value in given], dtype=np.int64)

    def _place(self, value: Any) -> int:
        last = self.size - 1
        if isinstance(value, bool | np.bool_):
            return last
        try:
            if self._numbers is not None:
                return self._numbers.get(value, last)
            return int(value) if value in range(last) else last
        except (TypeError, ValueError):
            return last


def list_people(values: Any) -> Any:
    """Return a flat array or a list with one value of each person, or refuse what is none."""
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values
    if isinstance(values, str | bytes | np.ndarray) or not isinstance(values, Iterable):
        raise withheld("values", "a flat row with one value for each person")
    return list(values)


@final
@dataclass(frozen=True)
class FrequencyEstimate:
    """Estimated shares of the values of a domain among the people who reported.

    ``shares`` are unbiased and may lie outside [0, 1]; the last one belongs to everything outside
    the domain. ``variances`` are those of the shares over the coins of the clients, the people and
    their values being fixed. ``loss`` is what each report cost its person, and ``rejected`` counts
    what was not a report of the plan, by reason.
    """

    values: Sequence[Any]
    shares: NDArray[np.float64]
    variances: NDArray[np.float64]
    people: int
    loss: Loss
    rejected: Mapping[str, int]
    _support: tuple[NDArray[np.int64], float, float] = field(repr=False, compare=False)
    # How many such tables hold together; the people of one are a random part of all.
    _parts: int = field(default=1, repr=False)

    def interval(self, *, confidence: float = 0.95) -> Interval:
        """Return where the true shares lie, all of them together, in the order of ``values``.

        :param confidence: the least probability over the clients' coins that all are inside
        :raises InvalidValue: if ``confidence`` is not in [0.5, 1)
        """
        level = _validate.real("confidence", confidence, at_least=0.5, below=1)
        counts, p, q = self._support
        error = (1.0 - level) / 2.0 / counts.size / self._parts
        if self._parts == 1:
            low = lower_bounds(np.maximum(counts - 1, 0), self.people, error=error)
            high = upper_bounds(np.minimum(counts + 1, self.people), self.people, error=error)
        else:
            low, high = chernoff_bounds(counts / self.people, self.people, error)
        ends = ((end - q) / (p - q) for end in (low, high))
        return Interval(*(np.clip(end, 0.0, 1.0) for end in ends))

    def norm_sub_biased(self) -> NDArray[np.float64]:
        """Return shares that are not negative and sum to 1 (Norm-Sub); they are biased.

        One constant is subtracted from all shares and what is then negative is set to 0 (Wang et
        al. 2020). It lowers the error of the whole table and pulls small shares away from the
        truth: do not add or average such shares over tables, and take :meth:`interval` from here.
        """
        ranked = np.sort(self.shares)[::-1]
        excess = (np.cumsum(ranked) - 1.0) / np.arange(1, ranked.size + 1)
        last = int(np.flatnonzero(ranked > excess)[-1])
        return np.asarray(np.maximum(self.shares - excess[last], 0.0))


def chernoff_bounds(
    seen: NDArray[np.float64], people: int, error: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return bounds on means whose exponential moments are at most those of a binomial.

    That holds for a random part of the people as well (Hoeffding 1963, theorem 4), for which the
    tails of the binomial are not enough. Each bound fails with probability at most ``error``.
    """
    limit = np.log(1.0 / error) / people
    ends = []
    for start in (0.0, 1.0):
        inside, outside = seen.astype(np.float64), np.full(seen.shape, start)
        for _ in range(60):
            middle = 0.5 * (inside + outside)
            far = special.rel_entr(seen, middle) + special.rel_entr(1 - seen, 1 - middle) > limit
            outside, inside = np.where(far, middle, outside), np.where(far, inside, middle)
        ends.append(outside)
    return ends[0], ends[1]


def estimate_shares(
    values: Sequence[Any],
    counts: NDArray[np.int64],
    people: int,
    chances: tuple[float, float],
    loss: Loss,
    rejected: Mapping[str, int],
    parts: int = 1,
) -> FrequencyEstimate:
    """Turn counts of supporting reports into an estimate, or raise if there are no reports."""
    if people == 0:
        raise NotApplicable("no report was accepted, so there is nothing to estimate")
    p, q = chances
    shares = (counts / people - q) / (p - q)
    variances = variance_at(chances, np.clip(shares, 0.0, 1.0)) / people
    support = (counts, p, q)
    return FrequencyEstimate(values, shares, variances, people, loss, rejected, support, parts)


def direct_loss(epsilon: Fraction, values: int) -> RandomizedResponse:
    """Return the loss of direct response, with epsilon rounded up to a float."""
    stated = float(epsilon)
    if min(Fraction(stated), Fraction(repr(stated))) < epsilon:
        stated = math.nextafter(stated, math.inf)
    return RandomizedResponse(stated, values)


class FrequencyPlan(LocalPlan):
    """A plan of one domain whose reports support sets of values."""

    _method: Method
    domain: Domain

    def chances(self) -> tuple[float, float]:
        """Return p and q: how often a report supports its own value, and any given other one."""
        p, q = self._method.chances(self._root)
        return float(p), float(q)

    def _read(self, values: Any) -> NDArray[np.int64]:
        return self.domain.places(values)

    def server(self) -> FrequencyServer:
        return FrequencyServer(self)


@final
class FrequencyOracle(FrequencyPlan):
    """A public plan: which values there are, epsilon, and how a value is randomized.

    It makes :meth:`client` for one person, or :meth:`randomize_each` for one report of each of many
    people, and :meth:`server` for the collector. What is outside the domain becomes a reserved
    value before anything is drawn, so that a report never shows that a value was unknown.

    :param domain: the values: a number d for 0, ..., d - 1, or a list of distinct names
    :param epsilon: the loss of one report, read exactly (0.1 is one tenth), 1e-6 to 100
    :param method: one of ``METHODS``, or ``"auto"``: of the methods whose variance is within 5 % of
        the least, the one with the shortest report, then the least work, then the variance
    :raises InvalidValue: if an argument is outside its range, or the domain too large

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
        super().__init__(epsilon)
        self.domain = Domain(domain)
        _validate.one_of("method", method, ("auto", *METHODS))
        if method == "auto":
            chosen, self.why = self._pick()
        else:
            kind = _METHODS[METHODS.index(method)]
            chosen, self.why = kind(self.domain.size, self._root), "asked for"
        self._settle(chosen.name, chosen, domain=self.domain.identity, **chosen.parameters)

    def _pick(self) -> tuple[Method, str]:
        candidates: list[tuple[float, Method]] = []
        for kind in _METHODS:
            try:
                found = kind(self.domain.size, self._root)
            except InvalidValue:
                continue
            candidates.append((float(variance_at(found.chances(self._root))), found))
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
        return direct_loss(self._epsilon, self.domain.size)

    def variance(self, people: int, *, share: float = 0.0) -> float:
        """Return (q (1 - q) / (p - q)^2 + share (1 - p - q) / (p - q)) / people.

        It is the variance of the estimate of a true share, over the coins of the clients.

        :param people: how many people report
        :param share: the true share of the value
        :raises InvalidValue: if an argument is outside its range
        """
        count = _validate.integer("people", people, at_least=1)
        part = _validate.real("share", share, at_least=0, at_most=1)
        return float(variance_at(self.chances(), part)) / count

    def __repr__(self) -> str:
        return (
            f"FrequencyOracle({self.domain.size - 1} values, epsilon={self._epsilon}, "
            f"method={self.method!r})"
        )


@final
class FrequencyServer(LocalServer):
    """Counts reports of one plan and estimates shares."""

    _plan: FrequencyPlan

    def estimate(self) -> FrequencyEstimate:
        """Return the unbiased shares of all values in their order, then that of everything else.

        :raises NotApplicable: if no report was accepted
        """
        plan, counts = self._plan, self._plan._method.supports(self._tally)
        facts = (self._count_people(), plan.chances(), plan.loss, dict(self.rejected))
        return estimate_shares(plan.domain.labels, counts, *facts)
