"""Randomized response, two-coin, binary and k-ary, with what can be learnt from it.

Each person's answer goes through a channel of its own: the truth with probability p, each of
the k - 1 other categories with probability q. The odds p / q are e^epsilon, and changing one
person's answer is all that ``replace`` speaks of, so a whole array of answers costs each person
``RandomizedResponse(epsilon, k)`` (Warner 1965; Kairouz, Oh and Viswanath 2016 for k > 2). The two
coins of the classic survey (heads: the truth; tails: a second coin answers) are p = 3/4, q = 1/4
and epsilon = ln 3. Coins are exact for every epsilon.

**Estimates.** With n answers and a share m of responses in a category, (m - q) / (p - q) is an
unbiased estimate of the true share; for two coins it is 2 m - 1/2. ``interval`` of a release of an
array is about the true number of people divided by n; it inverts the exact distribution of the
responses, a sum of two binomials, and for k > 2 it holds for all categories together.

**Check.** :func:`channel_epsilon` gives the exact local
epsilon of any finite channel, and :func:`response_channel` the matrices of the ones here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import special

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue
from discreet.mechanisms._intervals import least_integer
from discreet.mechanisms._parameters import read_epsilon
from discreet.mechanisms._release import Interval, Release
from discreet.privacy import RandomizedResponse
from discreet.randomness import (
    Source,
    bernoulli,
    choose_source,
    enclosed_bernoulli,
    exp_negative,
    uniform_integers,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def two_coin_response(
    answers: Any, *, source: Source | None = None, insecure_seed: int | None = None
) -> Release[Any]:
    """Answer the two-coin survey: the truth with probability 3/4; (ln 3)-DP for each person.

    Parameters
    ----------
    answers : bool or array of bool
        The true answers, one for each person; private.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release
        What people say, of the same shape.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; answers are not shown.

    Examples
    --------
    >>> said = two_coin_response([True] * 900 + [False] * 2100, insecure_seed=5)
    >>> said.loss
    RandomizedResponse(epsilon=1.0986122886681098)
    >>> abs(two_coin_estimate(said.value).share - 0.3) < 0.1
    True
    >>> low, high = said.interval(confidence=0.999)
    >>> low < 0.3 < high
    True
    """
    bits = choose_source(source, insecure_seed)
    truth, single = _booleans("answers", answers)
    lies = bernoulli("1/4", truth.size, source=bits)
    return _boolean_release(
        "two_coin_response", truth ^ lies.reshape(truth.shape), single, Channel.two_coin(), bits
    )


def binary_response(
    answers: Any,
    *,
    epsilon: object,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Any]:
    """Answer with the truth with probability e^epsilon / (1 + e^epsilon); epsilon-DP each.

    Parameters
    ----------
    answers : bool or array of bool
        The true answers, one for each person; private.
    epsilon : number or str
        What the response costs each person.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release
        What people say, of the same shape.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; answers are not shown.

    Examples
    --------
    >>> binary_response(True, epsilon=1000).value  # the other has probability e^-1000
    True
    """
    exact, reported = read_epsilon(epsilon)
    channel = Channel.of(reported, 2)
    bits = choose_source(source, insecure_seed)
    truth, single = _booleans("answers", answers)
    lies = _lies(exact, 2, truth.size, bits).reshape(truth.shape)
    return _boolean_release("binary_response", truth ^ lies, single, channel, bits)


def k_ary_response(
    answers: Any,
    *,
    categories: Sequence[Hashable],
    epsilon: object,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Release[Any]:
    """Answer with one of k public categories, the truth with odds e^epsilon against each lie.

    Parameters
    ----------
    answers : sequence, array or one category
        The true categories, one for each person; private.
    categories : sequence
        The public categories, at least two.
    epsilon : number or str
        What the response costs each person.
    source, insecure_seed : optional
        Where the bits come from (the operating system), or a seed for experiments.

    Returns
    -------
    Release
        A list of categories, or one where a single one was given. ``interval`` gives arrays in
        the order of ``categories`` that hold together.

    Raises
    ------
    InvalidValue
        If an argument cannot be used; answers are not shown.

    Examples
    --------
    >>> said = k_ary_response(["a", "c"], categories="abc", epsilon=1000)
    >>> said.value, said.loss
    (['a', 'c'], RandomizedResponse(epsilon=1000.0, categories=3))
    """
    names = _names(categories)
    exact, reported = read_epsilon(epsilon)
    channel = Channel.of(reported, len(names))
    bits = choose_source(source, insecure_seed)
    truth, single = _places("answers", answers, names)
    lies = _lies(exact, len(names), truth.size, bits)
    away = 1 + uniform_integers(len(names) - 1, truth.size, source=bits)
    said = np.where(lies, (truth + away) % len(names), truth)
    shares = np.bincount(said, minlength=len(names))
    return Release(
        names[int(said[0])] if single else [names[place] for place in said],
        channel.loss,
        _provenance("k_ary_response", channel, bits),
        None if single else response_bars(shares, int(said.size), channel),
    )


def two_coin_estimate(responses: Any) -> Estimate:
    """Return 2 mean - 1/2, the unbiased estimate of the share that would truly say yes.

    Parameters
    ----------
    responses : bool or array of bool
        What people said; public.

    Returns
    -------
    Estimate
        The share, with its variances.

    Raises
    ------
    InvalidValue
        If these are not responses.

    Examples
    --------
    >>> two_coin_estimate([True, True, False, True]).share
    1.0
    """
    return _boolean_estimate(responses, Channel.two_coin())


def binary_estimate(responses: Any, *, epsilon: object) -> Estimate:
    """Return the unbiased estimate (mean - q) / (p - q), q = 1 / (1 + e^epsilon), p = 1 - q.

    Parameters
    ----------
    responses : bool or array of bool
        What people said; public.
    epsilon : number or str
        The epsilon of the responses.

    Returns
    -------
    Estimate
        The share, with its variances.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.
    """
    return _boolean_estimate(responses, Channel.of(read_epsilon(epsilon)[1], 2))


def k_ary_estimate(
    responses: Sequence[Hashable], *, categories: Sequence[Hashable], epsilon: object
) -> dict[Hashable, Estimate]:
    """Return the unbiased estimate of every category's share.

    Parameters
    ----------
    responses : sequence
        What people said; public.
    categories : sequence
        The public categories.
    epsilon : number or str
        The epsilon of the responses.

    Returns
    -------
    dict
        An :class:`Estimate` for each category.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> shares = k_ary_estimate("aabc", categories="abc", epsilon=1000)
    >>> {name: round(found.share, 6) for name, found in shares.items()}
    {'a': 0.5, 'b': 0.25, 'c': 0.25}
    """
    names = _names(categories)
    channel = Channel.of(read_epsilon(epsilon)[1], len(names))
    places, single = _places("responses", responses, names)
    if single:
        raise InvalidValue("responses", responses, "a sequence of categories")
    counts = np.bincount(places, minlength=len(names))
    return {
        name: channel.estimate(int(count), int(places.size))
        for name, count in zip(names, counts, strict=True)
    }


def response_channel(epsilon: object, *, categories: int = 2) -> tuple[tuple[float, ...], ...]:
    """Return the matrix of k-ary randomized response: row x is the distribution of what x says.

    Parameters
    ----------
    epsilon : number or str
        The logarithm of the odds of the truth against each lie.
    categories : int
        How many there are.

    Returns
    -------
    tuple of tuples
        The matrix.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> import math
    >>> from discreet.mechanisms import channel_epsilon
    >>> rows = response_channel(math.log(3))
    >>> abs(channel_epsilon(rows) - math.log(3)) < 1e-12
    True
    """
    channel = Channel.of(
        read_epsilon(epsilon)[1], _validate.integer("categories", categories, at_least=2)
    )
    places = range(channel.categories)
    return tuple(tuple(channel.truth if x == y else channel.lie for y in places) for x in places)


def _lies(epsilon: Fraction, categories: int, size: int, bits: Source) -> NDArray[np.bool_]:
    """True with probability (k-1) e^-eps / (1 + (k-1) e^-eps), exactly."""
    others = categories - 1

    def bounds(width: int) -> tuple[int, int]:
        precision = width + others.bit_length() + 8
        lower, upper = exp_negative(epsilon, precision)
        one = 1 << precision
        return (
            (others * lower << width) // (one + others * lower),
            -(-(others * upper << width) // (one + others * upper)),
        )

    return enclosed_bernoulli(bounds, size, source=bits)


def _boolean_release(
    mechanism: str, said: NDArray[np.bool_], single: bool, channel: Channel, bits: Source
) -> Release[Any]:
    yes = int(said.sum())
    return Release(
        bool(said.ravel()[0]) if single else said,
        channel.loss,
        _provenance(mechanism, channel, bits),
        None if single else response_bars(yes, int(said.size), channel),
    )


def _boolean_estimate(responses: Any, channel: Channel) -> Estimate:
    said, _ = _booleans("responses", responses)
    return channel.estimate(int(said.sum()), int(said.size))


def _booleans(argument: str, answers: Any) -> tuple[NDArray[np.bool_], bool]:
    """Return answers as an array, and whether it was a single one."""
    expected = "True or False, or a non-empty array of them"
    try:
        array = np.asarray(answers)
    except (ValueError, TypeError):
        raise withheld(argument, expected) from None
    if array.dtype != np.bool_ or array.size == 0:
        raise withheld(argument, expected)
    return array, array.ndim == 0


def _names(categories: Sequence[Hashable]) -> list[Hashable]:
    expected = "a sequence of at least two distinct categories"
    try:
        names = list(categories)
        distinct = len(set(names)) == len(names)
    except TypeError:
        raise InvalidValue("categories", categories, expected) from None
    if len(names) < 2 or not distinct:
        raise InvalidValue("categories", categories, expected)
    return names


def _places(argument: str, answers: Any, names: list[Hashable]) -> tuple[NDArray[np.int64], bool]:
    """Return the numbers of the answers' categories, and whether it was a single answer."""
    place = {name: number for number, name in enumerate(names)}
    if isinstance(answers, np.ndarray):
        answers = answers.tolist()
    single = not isinstance(answers, Sequence) or (isinstance(answers, str) and answers in place)
    row = [answers] if single else list(answers)
    try:
        places = [place[answer] for answer in row]
    except (KeyError, TypeError):
        raise withheld(argument, "categories that were declared") from None
    if not places:
        raise withheld(argument, "at least one answer")
    return np.array(places, dtype=np.int64), single


def _provenance(mechanism: str, channel: Channel, bits: Source) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "epsilon": channel.loss.pure_epsilon,
        "categories": channel.categories,
        "relation": channel.loss.relation.value,
        **bits.provenance,
    }


@final
@dataclass(frozen=True)
class Estimate:
    """An unbiased estimate of a share, which may lie outside [0, 1].

    ``noise_variance`` is an unbiased estimate of the variance that the coins alone cause, the
    people and their answers being fixed. ``variance`` estimates that of the whole survey when
    the people are a random sample of a large population.
    """

    share: float
    people: int
    noise_variance: float
    variance: float


@final
@dataclass(frozen=True)
class Channel:
    """k-ary randomized response: ``truth`` = p, ``lie`` = q for each other category."""

    truth: float
    lie: float
    categories: int
    loss: RandomizedResponse

    @classmethod
    def of(cls, epsilon: float, categories: int) -> Channel:
        """Return the channel with odds e^epsilon."""
        loss = RandomizedResponse(epsilon, categories)
        small = math.exp(-epsilon)
        whole = 1.0 + (categories - 1) * small
        return cls(1.0 / whole, small / whole, categories, loss)

    @classmethod
    def two_coin(cls) -> Channel:
        """Return the two coins of the classic survey, p = 3/4 and q = 1/4."""
        return cls(0.75, 0.25, 2, RandomizedResponse.two_coin())

    @property
    def contrast(self) -> float:
        """p - q: by how much the truth moves the share of responses."""
        return self.truth - self.lie

    def estimate(self, seen: int, people: int) -> Estimate:
        """Estimate the true share of a category that ``seen`` of ``people`` responses name."""
        mean = seen / people
        share = (mean - self.lie) / self.contrast
        return Estimate(
            share,
            people,
            self.noise_variance(share, people),
            mean * (1.0 - mean) / max(people - 1, 1) / self.contrast**2,
        )

    def noise_variance(self, share: float, people: int) -> float:
        """Variance of the estimate over the coins, when a ``share`` of the people belongs.

        (share p (1-p) + (1-share) q (1-q)) / (n (p-q)^2); linear in the share, so
        an unbiased share gives an unbiased variance. For two coins 3 / (4 n).
        """
        count = _validate.integer("people", people, at_least=1)
        belonging = self.truth * (1.0 - self.truth)
        other = self.lie * (1.0 - self.lie)
        return (share * belonging + (1.0 - share) * other) / count / self.contrast**2

    def survey_variance(self, share: float, people: int) -> float:
        """Variance of the estimate when each person belongs with probability ``share``.

        m (1-m) / (n (p-q)^2), m = q + (p-q) share: for two coins at least 4 times the
        share (1 - share) / n of truthful answers.
        """
        count = _validate.integer("people", people, at_least=1)
        mean = self.lie + self.contrast * _validate.real("share", share, at_least=0, at_most=1)
        return mean * (1.0 - mean) / count / self.contrast**2


def response_bars(
    seen: int | NDArray[np.int64], people: int, channel: Channel
) -> Callable[[float], Interval]:
    """Error bars for the true share; those of several categories hold together (Bonferroni)."""

    def bars(confidence: float) -> Interval:
        risk = 1.0 - confidence
        if not isinstance(seen, np.ndarray):
            return Interval(*_shares(seen, people, channel, risk))
        ends = [_shares(int(count), people, channel, risk / seen.size) for count in seen]
        return Interval(*(np.array(end) for end in zip(*ends, strict=True)))

    return bars


def _shares(seen: int, people: int, channel: Channel, risk: float) -> tuple[float, float]:
    """Invert both one-sided tests of the number of people who truly belong.

    The number of responses grows stochastically with it, as p > q, so each test
    is decided by a threshold. The true number is missed with probability at most ``risk``.
    """
    p, q = channel.truth, channel.lie
    # Log-gamma functions of ``people`` lose their last digits; the tests give way by more.
    half = risk / 2.0 * (1.0 - 1e-6 - 1e-13 * people)

    def too_many(belonging: int) -> bool:
        return belonging > people or _at_most(seen, belonging, p, people - belonging, q) < half

    def enough(belonging: int) -> bool:
        if belonging >= people:
            return True
        unseen = people - seen
        return _at_most(unseen, people - belonging, 1.0 - q, belonging, 1.0 - p) >= half

    return least_integer(enough, 1) / people, max(least_integer(too_many, 1) - 1, 0) / people


def _at_most(limit: int, first: int, p: float, second: int, q: float) -> float:
    """P(B + B' <= limit) for independent B ~ Bin(first, p) and B' ~ Bin(second, q)."""
    # Beyond forty deviations (and forty more) a binomial has less than e^-300 of its mass.
    spread = 40.0 * math.sqrt(first * p * (1.0 - p)) + 40.0
    low = max(0, math.floor(first * p - spread))
    high = min(first, math.ceil(first * p + spread))
    j = np.arange(low, high + 1, dtype=np.float64)
    log_choose = -special.betaln(first - j + 1.0, j + 1.0) - math.log(first + 1.0)
    mass = np.exp(log_choose + special.xlogy(j, p) + special.xlog1py(first - j, -p))
    rest = limit - j
    below = np.where(rest >= second, 1.0, 0.0)
    inner = (rest >= 0) & (rest < second)
    below[inner] = special.bdtr(rest[inner], second, q)
    return float(mass @ below)
