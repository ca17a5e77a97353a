"""Propose-test-release (Dwork and Lei 2009), and exact answers to stable questions with it.

**In general.** Propose a ``bound`` on how far one changed record moves an answer, test with
noise how many changes away the data are from data where that is wrong, and release the answer
with noise for that bound, or refuse. dist(D) is an integer that (a) moves by at most one between
neighbours and (b) is zero or less on both of two neighbours whose answers differ by more than
the bound; the distance to the nearest data set with such a neighbour satisfies both.
:func:`propose_test_release` does it for integers.

*Guarantee:* that of the test below, (epsilon, delta'), composed with Laplace noise of sensitivity
``bound``. Proof: if |f(D) - f(D')| <= bound, the outcome is computed from the noisy distance and
the noisy answer, each of which hides which of the two it was. Otherwise both distances are at most
0: anything but a refusal has probability at most delta' on either, and the refusals are within
e^epsilon. Either case is dominated by the composition.

**Bound 0: stability (M_stab).** No noise is needed for an answer that does not move.
If an answer stays the same however a few records are changed, it can be released as it
is. The mechanism tests with noise how many changes the answer withstands:

    release f(D) if dist(D) + noise > T = ln(1/delta) / epsilon, else fail.

dist(D) is (fewest changes that alter f) - 1, or any integer that (a) changes by at
most one between neighbours and (b) is zero or less wherever a neighbour has another
answer; the fewest changes satisfy both. The noise is discrete Laplace of scale
1 / epsilon, so the test is dist + noise >= m with m = floor(T) + 1.

**Guarantee.** (epsilon, delta')-DP with delta' = e^(-epsilon m) / (1 + e^-epsilon),
which is below delta, and attained. Proof: if f(D) = f(D'), the outcome is
post-processing of a noisy count of sensitivity 1 and epsilon-DP; otherwise both
distances are at most 0, the answer comes out with probability at most
P(noise >= m) = delta', and the probabilities of failing are still within e^epsilon.
(Continuous noise would give delta / 2.)

Distances of votes, modes and medians are (fewest changes of the data that alter the
answer) - 1. Such a distance moves by at most one between neighbours: if they have the same
answer, the set of data with another answer is the same for both; if not, both are 0.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar, final

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue, RelationMismatch
from discreet.mechanisms._intervals import (
    check_delta,
    check_epsilon,
    exp_bounds,
    laplace_tail,
    threshold_above,
)
from discreet.mechanisms._noise import LaplaceNoise
from discreet.mechanisms._release import Interval, Release
from discreet.privacy import ApproxDP, Loss, Relation
from discreet.randomness import Source, choose_source, discrete_laplace

Data = TypeVar("Data")
Value = TypeVar("Value")


class Fail(Enum):
    """The type of :data:`FAIL`, so that a type checker can tell it from an answer."""

    FAIL = "fail"

    def __repr__(self) -> str:
        return "FAIL"


VOTERS = ("records", "ensemble")

FAIL = Fail.FAIL
"""The outcome of a test that was not passed."""


@final
@dataclass(frozen=True)
class StableFunction(Generic[Data, Value]):
    """A function of the data together with its distance to instability.

    ``distance(data)`` is an integer as described on top of this module, counted in
    changes of ``relation``; the caller vouches for it. With a ``bound`` above 0 the answer
    is an integer, and the distance is that to data where one change moves it by more. Neither
    callable may raise an error that depends on the records.

    >>> larger = StableFunction(
    ...     value=lambda counts: int(counts[1] > counts[0]),
    ...     distance=lambda counts: abs(counts[1] - counts[0]) - 1,
    ...     relation="add_remove",
    ...     name="which of two counts is larger",
    ... )
    >>> larger.value([10, 400]), larger.distance([10, 400])
    (1, 389)

    Parameters
    ----------
    value : callable
        The answer, of the data.
    distance : callable
        The distance to instability, of the data.
    relation : Relation or str
        What neighbours are.
    name : str
        For the provenance.
    bound : int
        How far one change may move the answer where the distance is above 0.
    """

    value: Callable[[Data], Value]
    distance: Callable[[Data], int]
    relation: Relation | str
    name: str = "a function given by the caller"
    bound: int = 0

    def __post_init__(self) -> None:
        for argument in ("value", "distance"):
            if not callable(getattr(self, argument)):
                raise InvalidValue(argument, getattr(self, argument), "a function of the data")
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        _validate.integer("bound", self.bound, at_least=0, at_most=1 << 53)

    def evaluate(self, data: Data) -> tuple[Value, int]:
        """Return the answer and its distance, neither of which is private yet."""
        value, distance = self.value(data), self.distance(data)
        try:
            return value, _validate.integer("distance", distance)
        except InvalidValue:
            raise withheld("distance", "an integer from the distance function") from None


@final
class StabilityTest(NamedTuple):
    """The public parameters of a test: distance + noise of scale 1/epsilon >= threshold."""

    epsilon: Fraction
    threshold: int
    delta: Fraction

    def passes(self, distance: int) -> float:
        """Return the probability that an answer of this distance is released."""
        beyond = self.threshold - distance
        if beyond >= 0:
            return float(laplace_tail(self.epsilon, beyond))
        # P(noise >= -k) = 1 - P(noise >= k + 1)
        return 1.0 - float(laplace_tail(self.epsilon, 1 - beyond))

    def distance_needed(self, failure: float) -> int:
        """Return the least distance that is released with probability at least 1 - ``failure``.

        It is about (ln(1/delta) + ln(1/failure)) / epsilon.
        """
        chance = check_delta(failure)
        # P(noise <= -k) = e^(-epsilon k) / (1 + e^-epsilon) must not pass the failure.
        near = exp_bounds(self.epsilon)[0]
        k = threshold_above(self.epsilon, min(chance * (1 + near), Fraction(1)))
        return self.threshold + k - 1


def stability_test(*, epsilon: object, delta: object) -> StabilityTest:
    """Return threshold and exact delta of :func:`release_if_stable` before anything is run.

    Parameters
    ----------
    epsilon : number or str
        From 1e-9 to 1e6.
    delta : number or str
        From 1e-300 up, below 1.

    Returns
    -------
    StabilityTest
        The public parameters.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> test = stability_test(epsilon=1, delta=1e-5)
    >>> test.threshold, float(test.delta)
    (12, 4.49177914983e-06)
    """
    rate = check_epsilon(epsilon)
    target = check_delta(delta)
    threshold = threshold_above(rate, target)
    return StabilityTest(rate, threshold, laplace_tail(rate, threshold))


def release_if_stable(
    data: Data,
    function: StableFunction[Data, Value],
    *,
    epsilon: object,
    delta: object,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Value | Fail]:
    """Release f(data) exactly, or :data:`FAIL`.

    Parameters
    ----------
    data : any
        The private records, as the function takes them.
    function : StableFunction
        The question, with its distance to instability.
    epsilon, delta : number or str
        What the test may cost, see :func:`stability_test`.
    relation : Relation or str
        What neighbours are; the function must count in the same.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release
        The answer itself, or FAIL. The loss is ApproxDP(epsilon, delta') with the exact
        delta' of :func:`stability_test`, below ``delta``; it is spent in either case.

    Raises
    ------
    RelationMismatch
        If the function counts changes of another relation.
    InvalidValue
        If an argument cannot be used.

    Examples
    --------
    >>> from discreet.mechanisms import most_votes
    >>> votes = most_votes(categories=3, relation="replace")
    >>> out = release_if_stable(
    ...     [1, 900, 2], votes, epsilon=1, delta=1e-5, relation="replace", insecure_seed=1
    ... )
    >>> out.value, out.loss
    (1, ApproxDP(epsilon=1, delta=4.49177914983e-06, relation='replace'))
    """
    test = stability_test(epsilon=epsilon, delta=delta)
    chosen = check_relation(function, relation)
    bits = choose_source(source, insecure_seed)
    outcome = _test(data, function, test, bits)
    provenance = _provenance("release_if_stable", function, test, bits)
    return Release(outcome, ApproxDP(test.epsilon, test.delta, chosen), provenance)


def propose_test_release(
    data: Data,
    function: StableFunction[Data, int],
    *,
    epsilon: object,
    delta: object,
    noise_epsilon: object,
    relation: Relation | str = Relation.ADD_REMOVE,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[int | Fail]:
    """Release an integer with noise for the function's ``bound``, or :data:`FAIL`.

    Parameters
    ----------
    data : any
        The private records, as the function takes them.
    function : StableFunction
        Whose answer is an integer, with the bound that is proposed.
    epsilon, delta : number or str
        What the test may cost, see :func:`stability_test`.
    noise_epsilon : number or str
        What the answer may cost: discrete Laplace noise of scale bound / noise_epsilon. With a
        bound of 0 there is no noise and nothing more to pay: :func:`release_if_stable`.
    relation : Relation or str
        What neighbours are; the function must count in the same.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release
        The noisy answer, or FAIL. The loss is ApproxDP(epsilon, delta') + DiscreteLaplace, and
        is spent in either case; ``interval`` is about the true answer, where there is one.

    Raises
    ------
    RelationMismatch
        If the function counts changes of another relation.
    InvalidValue
        If an argument cannot be used; an answer that is no integer is not shown.

    Examples
    --------
    No two of these incomes are alike, so their median is not stable; but it takes thirty records
    before one more can move it by more than 3000.

    >>> incomes = list(range(20_000, 80_000, 100))
    >>> middle = median(relation="replace", lower=0, upper=10**6, integer=True, bound=3000)
    >>> middle.evaluate(incomes)
    (49900, 30)
    >>> out = propose_test_release(
    ...     incomes,
    ...     middle,
    ...     epsilon=1,
    ...     delta=1e-5,
    ...     noise_epsilon=1,
    ...     relation="replace",
    ...     insecure_seed=1,
    ... )
    >>> abs(out.value - 49_900) < 30_000, out.loss.epsilon(delta=1e-5) <= 2
    (True, True)
    """
    test = stability_test(epsilon=epsilon, delta=delta)
    chosen = check_relation(function, relation, bounded=True)
    reach = function.bound
    noise = LaplaceNoise.read(
        sensitivity=max(1, reach), epsilon=noise_epsilon, scale=None, relation=chosen
    )
    bits = choose_source(source, insecure_seed)
    outcome = _test(data, function, test, bits, whole=True)
    loss: Loss = ApproxDP(test.epsilon, test.delta, chosen)
    provenance = _provenance("propose_test_release", function, test, bits)
    if reach == 0:
        return Release(outcome, loss, provenance)
    provenance |= {"bound": reach, "noise_scale": noise.scale}
    if outcome is FAIL:
        return Release(FAIL, loss + noise.loss, provenance)
    noisy = outcome + int(noise.draw(None, bits))

    def bars(confidence: float) -> Interval:
        t = noise.quantile(1.0 - confidence)
        return Interval(noisy - t, noisy + t)

    return Release(noisy, loss + noise.loss, provenance, bars)


def _test(
    data: Data,
    function: StableFunction[Data, Value],
    test: StabilityTest,
    bits: Source,
    *,
    whole: bool = False,
) -> Value | Fail:
    """Return the true answer if its distance passes the test, else FAIL."""
    value, distance = function.evaluate(data)
    if whole and (isinstance(value, bool) or not isinstance(value, int)):
        raise withheld("value", "an integer from the function")
    noise = discrete_laplace(1 / test.epsilon, source=bits)
    return value if distance + noise >= test.threshold else FAIL


def _provenance(
    mechanism: str, function: StableFunction[Any, Any], test: StabilityTest, bits: Source
) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "function": function.name,
        "relation": Relation.parse(function.relation).value,
        "threshold": test.threshold,
        "scale": str(1 / test.epsilon),
        **bits.provenance,
    }


def check_relation(
    function: StableFunction[Any, Any], relation: Relation | str, *, bounded: bool = False
) -> Relation:
    """Return the relation if the function's distance is counted in its changes.

    Only :func:`propose_test_release` takes a function that may move by its ``bound``.
    """
    chosen = Relation.parse(relation)
    if not isinstance(function, StableFunction):
        raise InvalidValue("function", function, "a StableFunction")
    if function.relation is not chosen:
        raise RelationMismatch(
            f"the distance of {function.name!r} counts changes under {function.relation!s}, "
            f"the release was asked for under {chosen!s}"
        )
    if function.bound and not bounded:
        expected = "0 where answers are released without noise: use propose_test_release"
        raise InvalidValue("bound", function.bound, expected)
    return chosen


@final
class PrintedStableVector(NamedTuple):
    """Noise scale and threshold of M_svec as they are usually printed; not what is proved here."""

    scale: float
    threshold: float


def printed_stable_vector(
    *, fails: int, questions: int, epsilon: float, delta: float
) -> PrintedStableVector:
    """Return L = sqrt(32 Q ln(1/delta)) / epsilon and T = 2 L ln(2 m/delta), for comparison only.

    Parameters
    ----------
    fails, questions : int
        Q and m.
    epsilon, delta : float
        The budget of the whole run.

    Returns
    -------
    PrintedStableVector
        The printed numbers, with "... epsilon" read as "/ epsilon". All of delta pays for the
        composition there and nothing is left for the stable answers. The run that is proved to be
        (epsilon, delta)-DP gives half of delta to each: ``stable_vector_plan`` with
        ``threshold="printed"`` has ln(2/delta) in L and a larger threshold.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> facts = {"questions": 10_000, "epsilon": 1, "delta": 1e-5}
    >>> [round(printed_stable_vector(fails=q, **facts).threshold) for q in (1, 10)]
    [822, 2600]
    """
    rounds = _validate.integer("fails", fails, at_least=1)
    most = _validate.integer("questions", questions, at_least=1)
    rate = _validate.real("epsilon", epsilon, above=0)
    target = _validate.real("delta", delta, above=0, below=1)
    scale = math.sqrt(32 * rounds * -math.log(target)) / rate
    return PrintedStableVector(scale, 2 * scale * math.log(2 * most / target))


# --- Functions whose distance is known exactly -----------------------------------------


def votes_distance(votes: Sequence[int] | np.ndarray, *, moved: bool) -> int:
    """Return how many votes may change without changing the winner; ties go to the first.

    Parameters
    ----------
    votes : sequence of int
        The votes of each category.
    moved : bool
        Whether a change moves a vote; otherwise it adds or removes one.

    Returns
    -------
    int
        The distance to another winner.

    Notes
    -----
    Category j overtakes the winner a as soon as its gap g = votes[a] - votes[j] is used up:
    down to 0 if j comes before a, below 0 if it comes after. A vote that moves from a to
    j uses up 2, a vote added or removed uses up 1:

    ========  ========================  ===================
              j < a                     j > a
    ========  ========================  ===================
    moved     ceil(g / 2) - 1           floor(g / 2)
    added     g - 1                     g
    ========  ========================  ===================

    Examples
    --------
    >>> votes_distance([3, 9, 2], moved=True), votes_distance([3, 9, 2], moved=False)
    (2, 5)
    """
    counts = np.asarray(votes, dtype=np.int64)
    winner = int(np.argmax(counts))
    gaps = (counts[winner] - counts).astype(np.int64)
    before, after = gaps[:winner], gaps[winner + 1 :]
    if moved:
        distances = np.concatenate([(before + 1) // 2 - 1, after // 2])
    else:
        distances = np.concatenate([before - 1, after])
    return int(distances.min())


def most_votes(
    *, categories: int, relation: Relation | str, voters: str = "records"
) -> StableFunction[Any, int]:
    """Name the category with most votes, of a vector of counts; ties go to the lowest index.

    Parameters
    ----------
    categories : int
        How many there are, at least 2.
    relation : Relation or str
        What neighbours are.
    voters : {"records", "ensemble"}
        "records": each record is one vote, moved under replace and added or removed under
        add_remove. "ensemble": the voters are a fixed and public number of teachers of which one
        record reaches at most one, so under either relation one vote moves; the distance is then
        exact for votes and, for records, a lower bound that moves by at most one, which suffices.

    Returns
    -------
    StableFunction
        Of a vector of counts.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.
    """
    number = _validate.integer("categories", categories, at_least=2)
    chosen = Relation.parse(relation)
    kind = _validate.one_of("voters", voters, VOTERS)
    moved = chosen is Relation.REPLACE or kind == "ensemble"
    return StableFunction(
        value=lambda votes: int(np.argmax(_counts(votes, number))),
        distance=lambda votes: votes_distance(_counts(votes, number), moved=moved),
        relation=chosen,
        name=f"most votes of {number} categories, voters are {kind}",
    )


def mode(
    domain: Sequence[Hashable], *, relation: Relation | str
) -> StableFunction[Iterable[Any], Any]:
    """Name the most frequent value of a public ``domain``; ties go to the one listed first.

    Parameters
    ----------
    domain : sequence
        The public values, at least two. Records outside are not counted; they cannot win, and
        they cannot raise.
    relation : Relation or str
        What neighbours are.

    Returns
    -------
    StableFunction
        Of the records.

    Raises
    ------
    InvalidValue
        If the domain is not one.

    Examples
    --------
    >>> colours = mode(["red", "green"], relation="add_remove")
    >>> colours.evaluate(["green", "red", "green", "blue"])
    ('green', 0)
    """
    values = tuple(domain)
    place = {value: index for index, value in enumerate(values)}
    if len(values) < 2 or len(place) != len(values) or any(v != v for v in values):
        raise InvalidValue("domain", values, "at least two distinct values that equal themselves")
    chosen = Relation.parse(relation)

    def count(records: Iterable[Any]) -> np.ndarray:
        counts = np.zeros(len(values), dtype=np.int64)
        for record in records:
            index = place.get(record) if isinstance(record, Hashable) else None
            if index is not None:
                counts[index] += 1
        return counts

    return StableFunction(
        value=lambda records: values[int(np.argmax(count(records)))],
        distance=lambda records: votes_distance(count(records), moved=chosen is Relation.REPLACE),
        relation=chosen,
        name=f"mode over {len(values)} values",
    )


def median(
    *,
    relation: Relation | str,
    lower: float | None = None,
    upper: float | None = None,
    default: float = 0,
    integer: bool = False,
    bound: int = 0,
) -> StableFunction[Any, Any]:
    """Find the lower median of numbers: the one of rank ceil(n / 2).

    Parameters
    ----------
    relation : Relation or str
        What neighbours are.
    lower, upper : float, optional
        Public bounds, to which records are clipped; without, every number can occur.
    default : float
        What a record that is no number counts as, within the bounds; also the median of no
        records under add_remove.
    integer : bool
        Whether records are rounded down and the answer is an int (bounds needed); otherwise
        each record is read as a double by itself and the answer is a float.
    bound : int
        How far one record may move the median, for :func:`propose_test_release`; above 0 under
        replace and for integers only.

    Returns
    -------
    StableFunction
        Of the records.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Notes
    -----
    With L records below the median v, E equal and G above it, a smaller median needs

    - replace: ceil(n/2) - L records moved below v;
    - add_remove: E + G - L records added below v (or removed from the rest),

    and a larger one L + E - (ceil(n/2) - 1) or L + E - G + 1. A direction in which no value
    is left does not count; under add_remove n removals lead to the default.

    With a bound b above 0 the distance is the least j - i - 1 over ranks i <= m <= j of the sorted
    records, m = ceil(n/2), with x_j - x_i > b, where x_0 is ``lower`` and x_{n+1} is ``upper``:
    after k changes the median can be moved, by one more, from x_i to x_j with j - i = k + 1 and no
    further (Nissim, Raskhodnikova and Smith 2007).

    Examples
    --------
    >>> nines = median(relation="replace", lower=0, upper=9, integer=True)
    >>> nines.evaluate([1, 5, 5, 5, 5, 5, 12])
    (5, 2)
    """
    chosen = Relation.parse(relation)
    whole = _validate.flag("integer", integer)
    reach = _validate.integer("bound", bound, at_least=0, at_most=1 << 53)
    if reach and (not whole or chosen is not Relation.REPLACE):
        raise InvalidValue("bound", bound, "0 without integer=True and relation='replace'")
    low = -math.inf if lower is None else _validate.real("lower", lower)
    high = math.inf if upper is None else _validate.real("upper", upper)
    if not low < high:
        raise InvalidValue("upper", upper, f"a number above lower = {lower}")
    filler = _validate.real("default", default)
    if not low <= filler <= high:
        raise InvalidValue("default", default, f"a number from {low:g} to {high:g}")
    if whole:
        for name, value in (("lower", low), ("upper", high), ("default", filler)):
            if not float(value).is_integer() or abs(value) > 2**53:
                raise InvalidValue(name, value, "an integer of at most 53 bits, for integer=True")

    def read(records: Any) -> np.ndarray:
        doubles = _doubles(records, filler)
        if chosen is Relation.REPLACE and doubles.size == 0:
            raise InvalidValue("data", "no records", "at least one record under replace")
        # Adding 0 turns -0.0 into 0.0: equal answers must look alike.
        clipped: np.ndarray = np.clip(doubles, low, high) + 0.0
        return np.floor(clipped) if whole else clipped

    def middle(doubles: np.ndarray) -> float:
        if doubles.size == 0:
            return filler + 0.0
        rank = (doubles.size - 1) // 2
        return float(np.partition(doubles, rank)[rank])

    def distance(records: Any) -> int:
        doubles = read(records)
        if reach:
            return _distance_to_jump(np.sort(doubles), low, high, reach)
        v = middle(doubles)
        below, above = int(np.sum(doubles < v)), int(np.sum(doubles > v))
        n = doubles.size
        upto = n - above
        if chosen is Relation.REPLACE:
            down, up = (n + 1) // 2 - below, upto - (n - 1) // 2
        else:
            down, up = n - 2 * below, upto - above + 1
        ways = [down] * (v > low) + [up] * (v < high)
        if chosen is Relation.ADD_REMOVE and v != filler:
            ways.append(n)
        return max(1, min(ways)) - 1

    kind = int if whole else float
    return StableFunction(
        value=lambda records: kind(middle(read(records))),
        distance=distance,
        relation=chosen,
        name=f"median within [{low:g}, {high:g}]",
        bound=reach,
    )


def _distance_to_jump(ordered: np.ndarray, low: float, high: float, bound: int) -> int:
    """Return how many changes are needed before one more moves the median by over ``bound``."""
    n = ordered.size
    padded = np.concatenate(([low], ordered, [high])).astype(np.int64)
    middle = (n + 1) // 2
    # The first rank at or beyond the middle whose value is too far from that of rank i.
    i = np.arange(middle + 1)
    j = np.searchsorted(padded, padded[: middle + 1] + bound, side="right")
    found = j <= n + 1
    return int((np.maximum(j, middle) - i - 1)[found].min(initial=n))


def _doubles(records: Any, filler: float) -> np.ndarray:
    """Read every record by itself; what is no number becomes ``filler``."""
    if isinstance(records, np.ndarray) and records.dtype.kind in "iuf" and records.ndim == 1:
        doubles = records.astype(np.float64)
    elif isinstance(records, np.ndarray | Iterable) and not isinstance(records, str | bytes):
        doubles = np.array([_double(record) for record in records], dtype=np.float64)
    else:
        raise InvalidValue("data", "withheld", "a row of numbers")
    return np.where(np.isnan(doubles), filler, doubles)


def _double(record: Any) -> float:
    if isinstance(record, bool) or not isinstance(record, numbers.Real):
        return math.nan
    try:
        return float(record)
    except OverflowError:
        huge: Any = record
        return math.inf if huge > 0 else -math.inf


def _counts(votes: Any, categories: int) -> np.ndarray:
    counts = np.asarray(votes)
    if counts.shape != (categories,) or counts.dtype.kind not in "iu" or np.any(counts < 0):
        raise InvalidValue("data", "withheld", f"{categories} counts, non-negative integers")
    return counts.astype(np.int64)
