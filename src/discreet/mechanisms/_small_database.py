"""Synthetic data that answers many counting queries: a small database, or weights.

**The small database mechanism** (Blum, Ligett and Roth 2008). All databases of ``size``
records over a finite domain compete in one exponential mechanism; the score of a candidate is
minus its largest error over K counting queries. A query gives each value of the domain a number
in [0, 1], as an integer over a public ``denominator``; 1 means queries of zeros and ones. The
winner is a database like any other: whatever is computed from it is free.

It is exact, for small domains: the candidates are the multisets of the domain, all of them are
enumerated, their scores are integers, and the race of
:class:`discreet.randomness.Race` has exactly the stated probabilities.

**Multiplicative weights** with the exponential mechanism, for larger domains (Hardt, Ligett
and McSherry 2012, MWEM). A synthetic distribution over the domain starts uniform; in each
round the exponential mechanism picks a query that it answers badly, the answer is measured
with discrete Laplace noise, and the weights of the domain are moved towards the measurement.
Work grows with queries x domain, not with the number of databases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, islice
from typing import Any, NamedTuple, final

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms._parameters import read_epsilon, round_up, scale_to_draw
from discreet.mechanisms._release import Interval, Release
from discreet.privacy import DiscreteLaplace, Exponential, Loss, Relation
from discreet.randomness import Race, Source, choose_source, discrete_laplace, select

_CHUNK = 1 << 12
# With these a score, which is a count times size and denominator, fits 64 bits.
_LARGEST_TOTAL = 1 << 50
_LARGEST_SIZE = 1 << 11
_LARGEST_DENOMINATOR = 1 << 20
# Synthetic answers are public; rounded to this part of a record they make scores integers,
# so that no float rounding can raise the sensitivity of a score.
_PARTS = 1 << 10


@final
@dataclass(frozen=True)
class SmallDatabase:
    """A synthetic database: how many of its records have each value of the domain."""

    histogram: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of its records."""
        return sum(self.histogram)

    def answers(self, queries: object, denominator: int = 1) -> np.ndarray:
        """Return the mean of each query over its records; free."""
        matrix = read_queries(queries, len(self.histogram), denominator)
        mean = matrix @ np.array(self.histogram) / (self.size * denominator)
        return np.asarray(mean, dtype=np.float64)


def small_database_size(*, queries: int, alpha: float) -> int:
    """Return ceil(log2(K) / alpha^2), at least 1, the size of a small database.

    A sample of ln(2 K) / (2 alpha^2) records of any database answers K queries to
    within alpha with positive probability (Hoeffding and a union bound), so such a database
    exists; the size returned is larger for every K >= 2.

    >>> small_database_size(queries=8, alpha=0.5)
    12
    """
    number = _validate.integer("queries", queries, at_least=1)
    width = _validate.real("alpha", alpha, above=0, below=1)
    return max(1, math.ceil(math.log2(number) / width**2))


def error_bound(
    *, queries: int, domain: int, size: int, records: int, epsilon: float, failure: float
) -> float:
    """Return a bound on the largest error that fails with probability at most ``failure``.

    sqrt(ln(2 K) / (2 s)) + 2 / (epsilon n) (ln |Y| + ln(1/failure)), with |Y| the number of
    multisets of ``size`` s: the best candidate is within the first term (see
    :func:`small_database_size`), and the exponential mechanism loses at most the second
    (McSherry and Talwar 2007). As fractions, and under replace.

    >>> bound = error_bound(queries=8, domain=4, size=12, records=5000, epsilon=1, failure=0.05)
    >>> round(bound, 4)
    0.3435
    """
    _validate.integer("queries", queries, at_least=1)
    _validate.integer("records", records, at_least=1)
    scale = _validate.real("epsilon", epsilon, above=0)
    chance = _validate.real("failure", failure, above=0, below=1)
    candidates = candidate_count(domain=domain, size=size)
    best = math.sqrt(math.log(2 * queries) / (2 * size))
    lost = 2 / (scale * records) * (math.log(candidates) - math.log(chance))
    return min(1.0, best + lost)


@final
class AnswerableQueries(NamedTuple):
    """How many queries can be answered: ln K, and the size of the database that does it."""

    log_queries: float
    size: int


def answerable_queries(
    *, records: int, error: float, domain: int, epsilon: float, failure: float = 0.05
) -> AnswerableQueries:
    """Return how many counting queries one small database answers to within ``error``.

    Parameters
    ----------
    records : int
        N, the number of private records.
    error : float
        What the largest error over all queries may be, as a fraction.
    domain : int
        How many values a record can have.
    epsilon : float
        The budget, whatever the number of queries.
    failure : float
        The probability with which the error may be larger.

    Returns
    -------
    AnswerableQueries
        The largest ln K for which sqrt(ln(2 K) / (2 s)) + 2 / (epsilon N) (ln |Y_s| +
        ln(1/failure)) <= error at the best size s up to 2048, |Y_s| being the number of multisets
        of that size; minus infinity where not even one query can be answered.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Notes
    -----
    ln K = 2 s (error - 2 (ln |Y_s| + ln(1/failure)) / (epsilon N))^2 - ln 2. As ln |Y_s| is at
    most s ln(domain), the best s grows like N and so does ln K: the number of queries is
    exponential in N. With Laplace noise on each of them it is proportional to N.

    Examples
    --------
    >>> facts = {"error": 0.2, "domain": 2**20, "epsilon": 1}
    >>> for records in (100_000, 200_000, 400_000):  # size, and the decimal digits of K
    ...     found = answerable_queries(records=records, **facts)
    ...     print(found.size, round(found.log_queries / math.log(10), 2))
    407 5.49
    902 12.4
    2025 27.89
    """
    count = _validate.integer("records", records, at_least=1)
    width = _validate.real("error", error, above=0, at_most=1)
    values = _validate.integer("domain", domain, at_least=1)
    scale = _validate.real("epsilon", epsilon, above=0)
    chance = _validate.real("failure", failure, above=0, below=1)
    best = AnswerableQueries(-math.inf, 1)
    log_candidates = 0.0
    for size in range(1, _LARGEST_SIZE + 1):
        log_candidates += math.log((values + size - 1) / size)
        left = width - 2 / (scale * count) * (log_candidates - math.log(chance))
        found = 2 * size * left * left - math.log(2)
        if left > 0 and found >= 0 and found > best.log_queries:
            best = AnswerableQueries(found, size)
    return best


def candidate_count(*, domain: int, size: int) -> int:
    """Return the number of multisets of ``size`` records over ``domain`` values.

    Parameters
    ----------
    domain : int
        How many values there are.
    size : int
        How many records a multiset has.

    Returns
    -------
    int
        The number of candidates.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.
    """
    values = _validate.integer("domain", domain, at_least=1)
    total = _validate.integer("size", size, at_least=1)
    return math.comb(values + total - 1, total)


def small_database(
    histogram: object,
    queries: object,
    *,
    epsilon: object,
    relation: Relation | str,
    alpha: float | None = None,
    size: int | None = None,
    public_size: int | None = None,
    denominator: int = 1,
    largest: int = 2_000_000,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[SmallDatabase]:
    """Release a database of ``size``, or of :func:`small_database_size` for ``alpha``.

    Parameters
    ----------
    histogram : array of int
        How many records have each value of the domain; private.
    queries : array
        A K x domain matrix of integers from 0 to ``denominator``.
    epsilon : number or str
        The budget.
    relation : Relation or str
        What neighbours are.
    alpha : float, optional
        The error that sets the size.
    size : int, optional
        How many records to release; give exactly one of the two.
    public_size : int, optional
        N under add_remove, where the number of records is private.
    denominator : int
        What the integers of the queries are divided by, at most 2^20; public.
    largest : int
        More candidates than this are refused.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of SmallDatabase
        A synthetic database. Under replace the interval is for the true fractions of all queries
        at once (:func:`error_bound`).

    Raises
    ------
    InvalidValue
        If an argument cannot be used; counts are not shown.

    Notes
    -----
    **Guarantee.** epsilon-DP, as an exponential mechanism with epsilon-bounded range
    (McSherry and Talwar 2007; Durfee and Rogers 2019). The score of a candidate with
    query fractions h_k is -max_k abs(N h_k - c_k), c_k being the count of query k on the
    records: one record added, removed or replaced changes a sum of numbers in [0, 1] by at most
    one, so its sensitivity is 1. N is the number of records under replace, where it is public, and
    ``public_size`` under add_remove, where it is not.

    Examples
    --------
    >>> out = small_database(
    ...     [300, 100, 0, 0],
    ...     [[1, 0, 0, 0], [1, 1, 0, 0]],
    ...     size=4,
    ...     epsilon=10,
    ...     relation="replace",
    ...     insecure_seed=1,
    ... )
    >>> out.value.histogram[:2], out.loss
    ((3, 1), Exponential(epsilon=10.0, relation='replace'))
    """
    exact, stated = read_epsilon(epsilon)
    chosen = Relation.parse(relation)
    parts = _validate.integer("denominator", denominator, at_least=1, at_most=_LARGEST_DENOMINATOR)
    matrix = read_queries(queries, denominator=parts)
    counts = read_histogram(histogram, matrix.shape[1], parts)
    total = public_total(counts, chosen, public_size, parts)
    if (alpha is None) == (size is None):
        raise InvalidValue("size", size, "exactly one of size, alpha")
    if alpha is not None:
        size = small_database_size(queries=len(matrix), alpha=alpha)
    records = _validate.integer("size", size, at_least=1, at_most=_LARGEST_SIZE)
    candidates = candidate_count(domain=counts.size, size=records)
    limit = _validate.integer("largest", largest, at_least=1)
    if candidates > limit:
        raise InvalidValue(
            "size",
            records,
            f"at most {limit} candidate databases, not {candidates}: use "
            "multiplicative_weights, or raise largest",
        )
    bits = choose_source(source, insecure_seed)
    true = matrix @ counts
    # The scores are multiplied by the size of the candidate and by the denominator, which makes
    # them integers.
    race = Race(rate=exact / (2 * records * parts), source=bits)
    for part in _candidates(counts.size, records):
        race.enter(-np.abs(total * (part @ matrix.T) - records * true).max(axis=1))
    released = SmallDatabase(_candidate(race.winner(), counts.size, records))
    provenance: dict[str, Any] = {
        "mechanism": "small_database",
        "size": records,
        "candidates": candidates,
        "queries": len(matrix),
        **({"denominator": parts} if parts > 1 else {}),
        "relation": chosen.value,
        "public_size": total,
        "epsilon": str(exact),
        **bits.provenance,
    }
    bars = None
    if chosen is Relation.REPLACE and total > 0:
        bars = _error_bars(released, matrix, parts, total, float(exact))
    return Release(released, Exponential(stated, chosen), provenance, bars)


@final
class MeasuredError(NamedTuple):
    """The largest error over the queries, and which query has it. NOT private."""

    error: float
    query: int
    bound: float | None


def evaluate_without_privacy(
    release: Release[Any],
    histogram: object,
    queries: object,
    *,
    denominator: int = 1,
    failure: float = 0.05,
) -> MeasuredError:
    """Measure a release of this module, or of MWEM, against the records: PUBLIC data ONLY.

    The measured error is computed from the private histogram and is covered by no loss:
    never publish it for data that need protection. Beside it stands the bound of
    :func:`error_bound`, which is public (None where there is none).

    Parameters
    ----------
    release : Release
        Of :func:`small_database` or :func:`multiplicative_weights`.
    histogram : array of int
        The records by value.
    queries : array
        A K x domain matrix of integers from 0 to ``denominator``.
    denominator : int
        What they are divided by.
    failure : float
        The probability with which the bound may fail.

    Returns
    -------
    MeasuredError
        The largest error, its query, and the bound.

    Raises
    ------
    InvalidValue
        If there are no records.
    """
    matrix = read_queries(queries, denominator=denominator)
    counts = read_histogram(histogram, matrix.shape[1], denominator)
    if counts.sum() == 0:
        raise InvalidValue("histogram", "no records", "at least one record to compare with")
    true = matrix @ counts / (counts.sum() * denominator)
    errors = np.abs(release.value.answers(matrix, denominator) - true)
    try:
        low, high = release.interval(confidence=1 - failure)
        bound = float(np.max(high - low) / 2)
    except NotApplicable:
        bound = None
    return MeasuredError(float(errors.max()), int(errors.argmax()), bound)


def read_queries(queries: object, domain: int | None = None, denominator: int = 1) -> np.ndarray:
    """Return counting queries as an int64 matrix of numbers up to the denominator."""
    parts = _validate.integer("denominator", denominator, at_least=1, at_most=_LARGEST_DENOMINATOR)
    try:
        matrix = np.asarray(queries)
    except ValueError:
        matrix = np.empty(0)
    right = matrix.ndim == 2 and matrix.size > 0 and matrix.dtype.kind in "biu"
    if not right or not np.all((matrix >= 0) & (matrix <= parts)):
        numbers = "zeros and ones" if parts == 1 else f"integers from 0 to {parts}"
        raise InvalidValue("queries", queries, f"a matrix of {numbers}, queries x domain")
    if domain is not None and matrix.shape[1] != domain:
        raise InvalidValue("queries", matrix.shape, f"a matrix with {domain} columns")
    return matrix.astype(np.int64)


def read_histogram(histogram: object, domain: int, denominator: int = 1) -> np.ndarray:
    """Return the private counts of a domain as int64, or raise without showing them."""
    most = _LARGEST_TOTAL // denominator // domain
    expected = f"{domain} counts, integers from 0 to {most}"
    try:
        counts = np.asarray(histogram)
    except (ValueError, OverflowError):
        raise withheld("histogram", expected) from None
    if counts.shape != (domain,) or counts.dtype.kind not in "iu":
        raise withheld("histogram", expected)
    if np.any(counts < 0) or np.any(counts > most):
        raise withheld("histogram", expected)
    return counts.astype(np.int64)


def public_total(
    counts: np.ndarray, relation: Relation, public_size: int | None, denominator: int = 1
) -> int:
    """Return the public number of records: n under replace, the caller's N under add_remove."""
    if relation is Relation.ADD_REMOVE:
        most = _LARGEST_TOTAL // denominator
        return _validate.integer("public_size", public_size, at_least=1, at_most=most)
    if public_size is not None:
        raise InvalidValue("public_size", public_size, "None: n is public under replace")
    return int(counts.sum())


def _candidates(domain: int, size: int) -> Iterator[np.ndarray]:
    """Yield the histograms of all multisets, in lexicographic order, in parts."""
    every = combinations_with_replacement(range(domain), size)
    while rows := list(islice(every, _CHUNK)):
        places = np.array(rows, dtype=np.int64) + domain * np.arange(len(rows))[:, None]
        flat = np.bincount(places.ravel(), minlength=domain * len(rows))
        yield flat.reshape(len(rows), domain)


def _candidate(index: int, domain: int, size: int) -> tuple[int, ...]:
    """Return the histogram of the multiset with this number in the same order."""
    found = next(islice(combinations_with_replacement(range(domain), size), index, None))
    return tuple(int(count) for count in np.bincount(found, minlength=domain))


def _error_bars(
    released: SmallDatabase, matrix: np.ndarray, denominator: int, total: int, epsilon: float
) -> Callable[[float], Interval]:
    def bars(confidence: float) -> Interval:
        reach = error_bound(
            queries=len(matrix),
            domain=matrix.shape[1],
            size=released.size,
            records=total,
            epsilon=epsilon,
            failure=1 - confidence,
        )
        answers = released.answers(matrix, denominator)
        return Interval(answers - reach, answers + reach)

    return bars


@final
@dataclass(frozen=True)
class SyntheticDistribution:
    """Released weights over the domain, and the noisy measurements that made them.

    A measurement is the number of a query and its noisy sum over the records, in units of one
    part of the denominator.
    """

    weights: tuple[float, ...]
    measured: tuple[tuple[int, int], ...]

    def answers(self, queries: object, denominator: int = 1) -> np.ndarray:
        """Return the mean of each query; free."""
        matrix = read_queries(queries, len(self.weights), denominator)
        return np.asarray(matrix @ np.array(self.weights) / denominator, dtype=np.float64)


def multiplicative_weights_loss(
    *, rounds: int, epsilon: object, relation: Relation | str, denominator: int = 1
) -> Loss:
    """Return T (Exponential(e) + DiscreteLaplace(d/e, d)), e = epsilon / (2 T), before a run.

    As a pure guarantee it sums to epsilon; at delta > 0 the accountants read less.

    Parameters
    ----------
    rounds : int
        T, how many queries are measured.
    epsilon : number or str
        The pure epsilon of the whole run.
    relation : Relation or str
        What neighbours are.
    denominator : int
        d, what the integers of the queries are divided by.

    Returns
    -------
    Loss
        What the run costs.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> loss = multiplicative_weights_loss(rounds=8, epsilon=2, relation="replace")
    >>> loss.epsilon(delta=0), loss.epsilon(delta=1e-6) < 2
    (2.0, True)
    """
    count = _validate.integer("rounds", rounds, at_least=1)
    chosen = Relation.parse(relation)
    step = _step(count, epsilon)
    pick = Exponential(round_up("epsilon", epsilon, step), chosen)
    parts = _validate.integer("denominator", denominator, at_least=1, at_most=_LARGEST_DENOMINATOR)
    return count * pick + count * DiscreteLaplace(_scale(step / parts), parts, chosen)


def multiplicative_weights(
    histogram: object,
    queries: object,
    *,
    rounds: int,
    epsilon: object,
    relation: Relation | str,
    public_size: int | None = None,
    denominator: int = 1,
    replays: int = 10,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[SyntheticDistribution]:
    """Release a distribution over the domain that answers the queries.

    Parameters
    ----------
    histogram : array of int
        How many records have each value of the domain; private.
    queries : array
        A K x domain matrix of integers from 0 to ``denominator``.
    rounds : int
        How many queries are measured.
    epsilon : number or str
        The budget.
    relation : Relation or str
        What neighbours are.
    public_size : int, optional
        N under add_remove, where the number of records is private.
    denominator : int
        What the integers of the queries are divided by, at most 2^20; public.
    replays : int
        How often the measurements so far are gone through again in each round; free.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release of SyntheticDistribution
        Weights over the domain. There is no interval: the error depends on the data.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; counts are not shown.

    Notes
    -----
    **Guarantee.** The loss is ``rounds`` x (Exponential(e) + DiscreteLaplace(d/e, d)) with
    d the denominator and e = epsilon / (2 rounds), so epsilon-DP (basic composition); the choice
    of a query and its measurement depend on earlier ones only through their released results, and
    the parameters of every step are fixed beforehand. Sums of numbers in [0, 1] have sensitivity 1
    under both relations, which is d parts; so has the score abs(count - synthetic count) of a
    query, on integers (the synthetic count is public and rounded). The weights are post-processing.

    Examples
    --------
    >>> out = multiplicative_weights(
    ...     [700, 200, 100, 0],
    ...     [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]],
    ...     rounds=3,
    ...     epsilon=3,
    ...     relation="replace",
    ...     insecure_seed=2,
    ... )
    >>> abs(float(out.value.answers([[1, 0, 0, 0]])[0]) - 0.7) < 0.1
    True
    """
    loss = multiplicative_weights_loss(
        rounds=rounds, epsilon=epsilon, relation=relation, denominator=denominator
    )
    chosen = Relation.parse(relation)
    again = _validate.integer("replays", replays, at_least=1)
    matrix = read_queries(queries, denominator=denominator)
    counts = read_histogram(histogram, matrix.shape[1], denominator)
    total = max(1, public_total(counts, chosen, public_size, denominator))
    step = _step(rounds, epsilon)
    scale = _scale(step / denominator)
    bits = choose_source(source, insecure_seed)
    true = matrix @ counts
    weights = np.full(counts.size, 1.0 / counts.size)
    average = np.zeros(counts.size)
    measured: list[tuple[int, int]] = []
    for _ in range(rounds):
        synthetic = np.rint(matrix @ weights * total * _PARTS).astype(np.int64)
        scores = np.abs(_PARTS * true - synthetic)
        picked = select(scores, rate=step / (2 * _PARTS * denominator), source=bits)
        noisy = int(true[picked]) + discrete_laplace(scale_to_draw(scale), source=bits)
        measured.append((picked, noisy))
        weights = _move_weights(weights, matrix / denominator, measured, total * denominator, again)
        average += weights / rounds
    released = SyntheticDistribution(
        tuple(float(weight) for weight in average / average.sum()), tuple(measured)
    )
    provenance: dict[str, Any] = {
        "mechanism": "multiplicative_weights",
        "rounds": rounds,
        "queries": len(matrix),
        **({"denominator": denominator} if denominator > 1 else {}),
        "epsilon_of_a_step": str(step),
        "relation": chosen.value,
        "public_size": total,
        **bits.provenance,
    }
    return Release(released, loss, provenance)


def _move_weights(
    weights: np.ndarray,
    matrix: np.ndarray,
    measured: list[tuple[int, int]],
    total: int,
    replays: int,
) -> np.ndarray:
    """Return the weights after going through the public measurements ``replays`` times."""
    for _ in range(replays):
        for query, noisy in measured:
            # A measurement outside 0 .. total says no more than the nearest bound.
            target = min(max(noisy / total, 0.0), 1.0)
            gap = target - float(matrix[query] @ weights)
            weights = weights * np.exp(0.5 * gap * matrix[query])
            weights = weights / weights.sum()
    return weights


def _step(rounds: int, epsilon: object) -> Fraction:
    return _validate.fraction("epsilon", epsilon, above=0) / (2 * rounds)


def _scale(step: Fraction) -> float:
    """Return the noise scale 1 / step as a double, not below it."""
    return round_up("epsilon", str(step), 1 / step)
