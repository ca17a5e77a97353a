"""Subsample and aggregate: any estimator becomes private by a vote of subsets.

Nissim, Raskhodnikova and Smith 2007; the form with a stable vote is that of Smith and Thakurta
2013.

The records are spread over subsets at random, without looking at them; the estimator is run
on each subset; the value that most subsets agree on is released if its lead is stable.
If one record is in at most b subsets, it moves at most b votes, and the lead
c1 - c2 of the first value over the second moves by at most 2 b. Hence

    d = floor((c1 - c2) / (2 b)) - 1

moves by at most one between neighbours, and is at most 0 where a neighbour has another winner:
a distance for :func:`release_if_stable`, whose test and whose exact delta are used. (The floor
costs nothing: it is needed for integer noise, and it keeps both properties.)
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, final

import numpy as np

from discreet import _validate
from discreet._confidence import lower_bounds, upper_bounds
from discreet._validate import withheld
from discreet.errors import InvalidValue
from discreet.mechanisms._intervals import (
    check_delta,
    check_epsilon,
    decimal_up,
    exp_bounds,
    laplace_tail,
)
from discreet.mechanisms._release import Release
from discreet.mechanisms._stability import FAIL, stability_test
from discreet.privacy import ApproxDP, Relation
from discreet.randomness import (
    Source,
    bernoulli,
    choose_source,
    discrete_laplace,
    permutation,
    uniform_integers,
)

Estimator = Callable[[Any], Any]
_PLAIN = (str, bytes, bool, int, float, type(None))
_EVERY_SUBSET = 12


@final
class PrintedSubsampling(NamedTuple):
    """The parameters of the textbook form: rate g, number of subsets, and the cap 2 g n_T."""

    rate: Fraction
    subsets: int
    cap: int


def printed_subsampling(*, epsilon: object, delta: object, records: int) -> PrintedSubsampling:
    """Return g = epsilon / (32 ln(1/delta)), n_T = ln(n/delta) / g^2 (rounded up), and the cap.

    The numbers are what makes this form impractical.

    Parameters
    ----------
    epsilon, delta : number or str
        The budget.
    records : int
        How many there are.

    Returns
    -------
    PrintedSubsampling
        Rate, number of subsets, and cap.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> printed_subsampling(epsilon=1, delta=1e-5, records=10_000).subsets
    2812740
    """
    total = check_epsilon(epsilon)
    target = check_delta(delta)
    n = _validate.integer("records", records, at_least=1)
    rate = Fraction(repr(float(total) / (32.0 * -math.log(target))))
    if rate > 1:
        raise InvalidValue("epsilon", epsilon, "epsilon <= 32 ln(1/delta), where the rate g is 1")
    subsets = math.ceil(math.log(n / target) / float(rate) ** 2)
    return PrintedSubsampling(rate, subsets, math.floor(2 * rate * subsets))


def subsampling_success(*, epsilon: object, delta: object, records: int) -> float:
    """Return with what probability the textbook form releases the answer of a stable function.

    The function has the value f(D) on a subset that takes each record with probability g,
    with probability at least 3/4 (:func:`subsampling_stability`). Then

    - with probability 1 - delta at least (3/4 - t) n_T subsets vote for f(D),
      t = sqrt(ln(1/delta) / (2 n_T)) (Hoeffding), so the lead is at least (1/2 - 2 t) n_T;
    - no record is in more than 2 g n_T subsets but with probability n e^(-2 g^2 n_T);
    - the lead decides d, and d the probability that its noise does not hide it.

    The statement that is usually printed, f(D) with probability 1 - 3 delta, follows for
    epsilon <= 0.8 ln(1/delta), and not without such a condition: above about 3 ln(1/delta) it
    is false, because d is rounded and lowered by 1.

    Parameters
    ----------
    epsilon, delta : number or str
        The budget.
    records : int
        How many there are.

    Returns
    -------
    float
        A lower bound on the probability, for :func:`subsample_and_aggregate_as_printed`.

    Examples
    --------
    >>> subsampling_success(epsilon=1, delta=1e-5, records=10_000) >= 1 - 3e-5
    True
    >>> subsampling_success(epsilon=40, delta=1e-5, records=10_000)
    0.0
    """
    test = stability_test(epsilon=epsilon, delta=delta)
    printed = printed_subsampling(epsilon=epsilon, delta=delta, records=records)
    chance = float(check_delta(delta))
    votes = printed.subsets * (0.75 - math.sqrt(-math.log(chance) / (2.0 * printed.subsets)))
    lead = 2 * math.floor(votes) - printed.subsets
    distance = math.floor(lead / (4 * printed.rate * printed.subsets)) - 1
    overuse = records * math.exp(-2.0 * float(printed.rate) ** 2 * printed.subsets)
    # P(noise hides d) by itself, because 1 minus a probability close to 1 would be rounded.
    hidden = 1.0
    if distance >= test.threshold:
        hidden = float(laplace_tail(test.epsilon, distance - test.threshold + 1))
    return max(0.0, 1.0 - (chance + overuse + hidden) * (1.0 + 1e-9))


@final
class SubsamplingStability(NamedTuple):
    """Bounds on the probability that a function has its value on a random subset too."""

    lower: float
    upper: float

    @property
    def stable(self) -> bool | None:
        """Whether it is at least 3/4; None where that is not known."""
        if self.lower >= 0.75:
            return True
        return False if self.upper < 0.75 else None


def subsampling_stability(
    records: Sequence[Any] | np.ndarray,
    function: Estimator,
    *,
    rate: object,
    trials: int = 2000,
    failure: float = 1e-6,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> SubsamplingStability:
    """Check whether a function is subsampling stable on records that are public.

    It is stable at ``rate`` if on a subset that takes each record independently with this
    probability it has the value that it has on all of them, with probability at least 3/4. The
    answer is read off the records without noise: use public or made-up ones.

    Parameters
    ----------
    records : sequence or array
        Public records. Up to 12 of them all subsets are tried, and the answer is exact.
    function : callable
        As the estimator of :func:`subsample_and_aggregate`; an abstention agrees with nothing.
    rate : number or str
        The probability with which a subset takes a record.
    trials : int
        How many random subsets are tried.
    failure : float
        The probability with which the bounds may fail.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    SubsamplingStability
        Bounds on the probability (Clopper and Pearson 1934), and whether it is at least 3/4.

    Raises
    ------
    InvalidValue
        If an argument cannot be used.

    Examples
    --------
    >>> subsampling_stability([0, 1, 1, 1], lambda part: int(sum(part) > 0), rate="1/2")
    SubsamplingStability(lower=0.875, upper=0.875)
    """
    chance = _validate.fraction("rate", rate, above=0, at_most=1)
    number = _validate.integer("trials", trials, at_least=1)
    miss = _validate.real("failure", failure, above=0, below=1)
    rows = _rows(records, function)
    n = len(rows)
    whole = _vote(function, _part(rows, np.arange(n)))

    def agrees(taken: np.ndarray) -> bool:
        vote = _vote(function, _part(rows, np.flatnonzero(taken)))
        return vote is not None and whole is not None and vote[0] == whole[0]

    if n <= _EVERY_SUBSET:
        total = Fraction(0)
        for subset in range(2**n):
            taken = np.array([subset >> bit & 1 for bit in range(n)], dtype=bool)
            size = int(taken.sum())
            total += agrees(taken) * chance**size * (1 - chance) ** (n - size)
        return SubsamplingStability(float(total), float(total))
    bits = choose_source(source, insecure_seed)
    right = sum(agrees(bernoulli(chance, n, source=bits)) for _ in range(number))
    low = lower_bounds([right], number, error=miss / 2)[0]
    high = upper_bounds([right], number, error=miss / 2)[0]
    return SubsamplingStability(float(low), float(high))


def subsample_and_aggregate(
    records: Sequence[Any] | np.ndarray,
    estimator: Estimator,
    *,
    subsets: int,
    epsilon: object,
    delta: object,
    relation: Relation | str,
    cap: int = 1,
    n_jobs: int = 1,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Any]:
    """Release the value on which most subsets agree, or FAIL; the practical form.

    Parameters
    ----------
    records : sequence or array
        The private records.
    estimator : callable
        Gets the records of one subset, an array if ``records`` is one and else a list (possibly
        empty under add_remove), and returns a plain value: str, bytes, bool, int, float, None, or
        tuples of them; numpy scalars are converted. Anything else, NaN, and any exception count as
        an abstention, since an error would show one record's influence: try the estimator on
        public records first. Values are told apart by type and representation.
    subsets : int
        How many there are; public.
    epsilon, delta : number or str
        The budget of the stability test.
    relation : Relation or str
        What neighbours are.
    cap : int
        In how many subsets a record may be; 1 makes them disjoint.
    n_jobs : int
        Other than 1: run the estimator in processes of joblib; no influence on the loss.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release
        The value or FAIL. To be released with probability 1/2, a value needs a lead of about
        2 cap (ln(1/delta) / epsilon + 1) subsets.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; records are not shown.

    Notes
    -----
    **Guarantee.** (epsilon, delta')-DP with the exact delta' < delta of
    :func:`stability_test`, for
    every estimator. Each record is in at most ``cap`` of the ``subsets``: ``cap=1`` are
    disjoint subsets. Under replace the positions are dealt out in random order, so sizes
    differ by at most one per deal; under add_remove every record draws its subsets by
    itself, because dealing would shift all records when one is added. ``subsets`` is public.

    Examples
    --------
    >>> import numpy as np
    >>> out = subsample_and_aggregate(
    ...     np.arange(1000) % 10,
    ...     lambda part: int(np.median(part) < 7),
    ...     subsets=100,
    ...     epsilon=1,
    ...     delta=1e-5,
    ...     relation="replace",
    ...     insecure_seed=5,
    ... )
    >>> out.value, out.loss
    (1, ApproxDP(epsilon=1, delta=4.49177914983e-06, relation='replace'))
    """
    test = stability_test(epsilon=epsilon, delta=delta)
    chosen = Relation.parse(relation)
    number = _validate.integer("subsets", subsets, at_least=1)
    most = _validate.integer("cap", cap, at_least=1, at_most=number)
    jobs = _jobs(n_jobs)
    rows = _rows(records, estimator)
    bits = choose_source(source, insecure_seed)
    homes = _deal(len(rows), number, most, chosen, bits)
    value, lead = _winner(_votes(estimator, rows, _members(homes, number), jobs))
    noise = discrete_laplace(1 / test.epsilon, source=bits)
    released = lead // (2 * most) - 1 + noise >= test.threshold
    provenance = {
        "mechanism": "subsample_and_aggregate",
        "subsets": number,
        "cap": most,
        "relation": chosen.value,
        "threshold": test.threshold,
        **bits.provenance,
    }
    loss = ApproxDP(test.epsilon, test.delta, chosen)
    return Release(value if released else FAIL, loss, provenance)


def subsample_and_aggregate_as_printed(
    records: Sequence[Any] | np.ndarray,
    estimator: Estimator,
    *,
    epsilon: object,
    delta: object,
    relation: Relation | str,
    public_size: int | None = None,
    largest: int = 100_000,
    n_jobs: int = 1,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Any]:
    """Release by the textbook form of subsample and aggregate, with its slip corrected.

    Parameters
    ----------
    records : sequence or array
        The private records.
    estimator : callable
        As in :func:`subsample_and_aggregate`.
    epsilon, delta : number or str
        The budget.
    relation : Relation or str
        What neighbours are.
    public_size : int, optional
        Under add_remove, the public number that sets the number of subsets.
    largest : int
        More subsets than this are refused.
    n_jobs : int
        Other than 1: run the estimator in processes of joblib; no influence on the loss.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release
        The value or FAIL.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; records are not shown.

    Notes
    -----
    Every subset takes each record with probability g; FAIL if a record is in more than
    2 g n_T subsets; else d = (c1 - c2) / (4 g n_T) - 1 + noise against ln(1/delta) / epsilon.
    See :func:`printed_subsampling` for the numbers; more than ``largest`` subsets are refused.

    **Guarantee.** Under replace, whether a record is in too many subsets depends on positions
    only: (epsilon, delta') with the delta' of :func:`stability_test`. Under add_remove the number
    of subsets comes from ``public_size``, and the record that is added can itself be the one in
    too many subsets: with probability at most e^(-2 g^2 n_T) (Hoeffding), and e^epsilon times
    that is added to delta'.
    """
    test = stability_test(epsilon=epsilon, delta=delta)
    chosen = Relation.parse(relation)
    jobs = _jobs(n_jobs)
    limit = _validate.integer("largest", largest, at_least=1)
    rows = _rows(records, estimator)
    if chosen is Relation.REPLACE:
        if public_size is not None:
            raise InvalidValue("public_size", public_size, "None: n is public under replace")
        size = len(rows)
    else:
        size = _validate.integer("public_size", public_size, at_least=1)
    printed = printed_subsampling(epsilon=epsilon, delta=delta, records=size)
    if printed.subsets > limit:
        raise InvalidValue(
            "epsilon",
            epsilon,
            f"parameters with at most {limit} subsets; the printed form needs {printed.subsets} "
            "(use subsample_and_aggregate)",
        )
    bits = choose_source(source, insecure_seed)
    taken = [bernoulli(printed.rate, len(rows), source=bits) for _ in range(printed.subsets)]
    uses = np.sum(taken, axis=0, dtype=np.int64)
    noise = discrete_laplace(1 / test.epsilon, source=bits)
    value: Any = FAIL
    if not np.any(uses > printed.cap):
        parts = [np.flatnonzero(row) for row in taken]
        winner, lead = _winner(_votes(estimator, rows, parts, jobs))
        # 4 g n_T is a rational number; its own floor would be a looser cap.
        if math.floor(lead / (4 * printed.rate * printed.subsets)) - 1 + noise >= test.threshold:
            value = winner
    provenance = {
        "mechanism": "subsample_and_aggregate_as_printed",
        "rate": str(printed.rate),
        "subsets": printed.subsets,
        "cap": printed.cap,
        "relation": chosen.value,
        "threshold": test.threshold,
        **bits.provenance,
    }
    loss = ApproxDP(test.epsilon, _printed_delta(test.epsilon, test.delta, printed, chosen), chosen)
    return Release(value, loss, provenance)


def _printed_delta(
    epsilon: Fraction, delta: Fraction, printed: PrintedSubsampling, relation: Relation
) -> Fraction:
    if relation is Relation.REPLACE:
        return delta
    overuse = exp_bounds(2 * printed.rate**2 * printed.subsets)[1]
    growth = 1 / exp_bounds(epsilon)[0]
    return min(Fraction(1), decimal_up(delta + growth * overuse))


def _deal(records: int, subsets: int, cap: int, relation: Relation, bits: Source) -> np.ndarray:
    """Return the subsets of every record, ``cap`` columns with possible repetitions."""
    if relation is Relation.REPLACE:
        deals = [permutation(records, source=bits) % subsets for _ in range(cap)]
    else:
        deals = [uniform_integers(subsets, records, source=bits) for _ in range(cap)]
    return np.stack(deals, axis=1)


def _members(homes: np.ndarray, subsets: int) -> list[np.ndarray]:
    """Return the positions of the records of every subset, each once and in order."""
    n = max(1, len(homes))
    pairs = np.unique(homes * n + np.arange(len(homes))[:, None])
    return np.split(pairs % n, np.searchsorted(pairs, n * np.arange(1, subsets)))


def _rows(records: Any, estimator: Estimator) -> Any:
    """Return the records unchanged.

    A list is not made an array: the common type of its entries would depend on every
    single record, and through it the estimates of all subsets.
    """
    if not callable(estimator):
        raise InvalidValue("estimator", estimator, "a function of the records of one subset")
    array = isinstance(records, np.ndarray) and records.ndim > 0
    listed = isinstance(records, Sequence) and not isinstance(records, str | bytes)
    if not array and not listed:
        raise withheld("records", "a sequence or an array of records")
    return records


def _part(rows: Any, positions: np.ndarray) -> Any:
    if isinstance(rows, np.ndarray):
        return rows[positions]
    return [rows[position] for position in positions]


def _jobs(n_jobs: object) -> int:
    jobs = _validate.integer("n_jobs", n_jobs, at_least=-1)
    if jobs == 0:
        raise InvalidValue("n_jobs", n_jobs, "-1 for all cores, or a number of processes")
    return jobs


def _votes(
    estimator: Estimator, rows: Any, parts: list[np.ndarray], jobs: int
) -> list[tuple[str, Any] | None]:
    if jobs == 1:
        return [_vote(estimator, _part(rows, part)) for part in parts]
    joblib = importlib.import_module("joblib")  # loaded only where processes are wanted
    run = joblib.delayed(_vote)
    votes: list[tuple[str, Any] | None] = joblib.Parallel(n_jobs=jobs)(
        run(estimator, _part(rows, part)) for part in parts
    )
    return votes


def _vote(estimator: Estimator, part: Any) -> tuple[str, Any] | None:
    """Return the vote of one subset as (representation, value), or None for an abstention."""
    try:
        value = _plain(estimator(part))
    except Exception:  # noqa: BLE001 - an error that depends on records must not get out
        return None
    return repr(value), value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is tuple:
        return tuple(_plain(part) for part in value)
    if type(value) not in _PLAIN or value != value:
        raise withheld("estimate", "a plain value")
    return value


def _winner(votes: list[tuple[str, Any] | None]) -> tuple[Any, int]:
    """Return the value with most votes and its lead over the second."""
    values = {vote[0]: vote[1] for vote in votes if vote is not None}
    counts = dict.fromkeys(values, 0)
    for vote in votes:
        if vote is not None:
            counts[vote[0]] += 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if not ranked:  # all abstained
        return FAIL, 0
    second = ranked[1][1] if len(ranked) > 1 else 0
    return values[ranked[0][0]], ranked[0][1] - second
