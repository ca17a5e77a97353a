"""S14, S27: randomized response, two-coin, binary and k-ary, with what can be learnt from it.

Each person's answer goes through a channel of its own: the truth with probability p, each of
the k - 1 other categories with probability q. The odds p / q are e^epsilon, and changing one
person's answer is all that ``replace`` speaks of, so a whole array of answers costs each person
``RandomizedResponse(epsilon, k)`` (Warner 1965; Kairouz, Oh and Viswanath 2016 for k > 2). The two
coins of the lecture (heads: the truth; tails: a second coin answers) are p = 3/4, q = 1/4 and
epsilon = ln 3. Coins are exact for every epsilon.

**Estimates.** With n answers and a share m of responses in a category, (m - q) / (p - q) is an
unbiased estimate of the true share; for two coins it is 2 m - 1/2. ``interval`` of a release of an
array is about the true number of people divided by n; it inverts the exact distribution of the
responses, a sum of two binomials, and for k > 2 it holds for all categories together.

**Check.** :func:`channel_epsilon` (of :mod:`discreet.privacy.theorems`) gives the exact local
epsilon of any finite channel, and :func:`response_channel` the matrices of the ones here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue
from discreet.mechanisms.parameters import stated_epsilon
from discreet.mechanisms.release import Release
from discreet.mechanisms.response_estimate import Channel, Estimate, response_bars
from discreet.privacy.theorems import channel_epsilon
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

__all__ = [
    "binary_estimate",
    "binary_response",
    "channel_epsilon",
    "k_ary_estimate",
    "k_ary_response",
    "response_channel",
    "two_coin_estimate",
    "two_coin_response",
]


def two_coin_response(
    answers: Any, *, source: Source | None = None, insecure_seed: int | None = None
) -> Release[Any]:
    """S14: the lecture's survey: the truth with probability 3/4; (ln 3)-DP for each person.

    ``answers`` is True or False, or an array of them; the value has the same shape.

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
    """S14: the truth with probability e^epsilon / (1 + e^epsilon); epsilon-DP for each person.

    ``answers`` is True or False, or an array of them; the value has the same shape.

    >>> binary_response(True, epsilon=1000).value  # the other has probability e^-1000
    True
    """
    exact, reported = stated_epsilon(epsilon)
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
    """S14: one of k public categories, the truth with odds e^epsilon against each lie.

    ``answers`` is a sequence or an array of categories, one for each person, and the value a list
    of categories; or a single category that is neither, and the value is one too. ``interval``
    gives arrays in the order of ``categories`` that hold together.

    >>> said = k_ary_response(["a", "c"], categories="abc", epsilon=1000)
    >>> said.value, said.loss
    (['a', 'c'], RandomizedResponse(epsilon=1000.0, categories=3))
    """
    names = _names(categories)
    exact, reported = stated_epsilon(epsilon)
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
    """S14: 2 mean - 1/2, the unbiased estimate of the share that would truly say yes.

    >>> two_coin_estimate([True, True, False, True]).share
    1.0
    """
    return _boolean_estimate(responses, Channel.two_coin())


def binary_estimate(responses: Any, *, epsilon: object) -> Estimate:
    """S14: (mean - q) / (p - q), q = 1 / (1 + e^epsilon), p = 1 - q."""
    return _boolean_estimate(responses, Channel.of(stated_epsilon(epsilon)[1], 2))


def k_ary_estimate(
    responses: Sequence[Hashable], *, categories: Sequence[Hashable], epsilon: object
) -> dict[Hashable, Estimate]:
    """S14: the unbiased estimate of every category's share.

    >>> shares = k_ary_estimate("aabc", categories="abc", epsilon=1000)
    >>> {name: round(found.share, 6) for name, found in shares.items()}
    {'a': 0.5, 'b': 0.25, 'c': 0.25}
    """
    names = _names(categories)
    channel = Channel.of(stated_epsilon(epsilon)[1], len(names))
    places, single = _places("responses", responses, names)
    if single:
        raise InvalidValue("responses", responses, "a sequence of categories")
    counts = np.bincount(places, minlength=len(names))
    return {
        name: channel.estimate(int(count), int(places.size))
        for name, count in zip(names, counts, strict=True)
    }


def response_channel(epsilon: object, *, categories: int = 2) -> tuple[tuple[float, ...], ...]:
    """The matrix of k-ary randomized response: row x is the distribution of what x says.

    >>> import math
    >>> rows = response_channel(math.log(3))
    >>> abs(channel_epsilon(rows) - math.log(3)) < 1e-12
    True
    """
    channel = Channel.of(
        stated_epsilon(epsilon)[1], _validate.integer("categories", categories, at_least=2)
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
