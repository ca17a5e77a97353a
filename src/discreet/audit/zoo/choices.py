"""Choosing among alternatives: randomized response, the exponential mechanism, noisy max."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.audit.zoo.specimen import Specimen, laplace_noise
from discreet.privacy import PureDP, RandomizedResponse
from discreet.randomness import Source, bernoulli, uniform_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CHOICES"]

CATEGORIES = 8
ODDS = 3
"""Randomized response here has odds of 3, that is epsilon = ln 3."""


def _response(value: int, count: int, source: Source, *, categories_assumed: int) -> Any:
    """The truth with probability odds / (odds + k - 1), else another of the 8 categories."""
    truth = Fraction(ODDS, ODDS + categories_assumed - 1)
    honest = bernoulli(truth, count, source=source)
    other = uniform_integers(CATEGORIES - 1, count, source=source)
    return np.where(honest, value, other + (other >= value))


def response_right(value: int, count: int, source: Source) -> Any:
    """8-ary randomized response."""
    return _response(value, count, source, categories_assumed=CATEGORIES)


def response_wrong_k(value: int, count: int, source: Source) -> Any:
    """The same with the probability of the truth for two categories."""
    return _response(value, count, source, categories_assumed=2)


def _chosen(
    scores: tuple[int, ...], count: int, source: Source, *, rate: float
) -> NDArray[np.int64]:
    """The index i with probability proportional to exp(rate * score), to within 2**-53."""
    weights = np.exp(rate * (np.array(scores) - max(scores)))
    shares = np.cumsum(weights / weights.sum())
    uniform = (source.words64(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.minimum(np.searchsorted(shares, uniform, side="right"), len(scores) - 1)


def exponential_right(scores: tuple[int, ...], count: int, source: Source) -> Any:
    """The exponential mechanism on scores of sensitivity 3: exp(score / (2 * 3))."""
    return _chosen(scores, count, source, rate=1 / 6)


def exponential_unnormalised(scores: tuple[int, ...], count: int, source: Source) -> Any:
    """The same with exp(score / 2), as if the scores had sensitivity 1."""
    return _chosen(scores, count, source, rate=1 / 2)


def _noisy_max(
    scores: tuple[int, ...], count: int, source: Source, *, scale: int
) -> NDArray[np.intp]:
    noise = laplace_noise(scale, count * len(scores), source).reshape(count, -1)
    return np.asarray(np.argmax(np.array(scores) + noise, axis=1))


def noisy_max_right(scores: tuple[int, ...], count: int, source: Source) -> Any:
    """The place of the largest score with noise Lap(2 / epsilon)."""
    return _noisy_max(scores, count, source, scale=2)


def noisy_max_halved(scores: tuple[int, ...], count: int, source: Source) -> Any:
    """The same with Lap(1 / epsilon), which is enough only if all scores move one way."""
    return _noisy_max(scores, count, source, scale=1)


ONE = PureDP(epsilon=1)
LN_ODDS = RandomizedResponse(epsilon=math.log(ODDS), categories=CATEGORIES)


def _specimen(name: str, draw: Any, first: Any, second: Any, about: str, **other: Any) -> Specimen:
    settings = {"loss": ONE, "broken": True, **other}
    return Specimen(name=name, draw=draw, first=first, second=second, about=about, **settings)


CHOICES = (
    _specimen(
        "k-response",
        response_right,
        0,
        1,
        "8-ary randomized response",
        loss=LN_ODDS,
        broken=False,
    ),
    _specimen(
        "k-response-wrong-k",
        response_wrong_k,
        0,
        1,
        "the probability of the truth is that for two categories, not eight",
        loss=LN_ODDS,
    ),
    _specimen(
        "exponential",
        exponential_right,
        (3, 0, 0, 0),
        (0, 3, 3, 3),
        "scores divided by twice their sensitivity",
        broken=False,
    ),
    _specimen(
        "exponential-unnormalised",
        exponential_unnormalised,
        (3, 0, 0, 0),
        (0, 3, 3, 3),
        "scores of sensitivity 3 are not divided by it",
    ),
    _specimen(
        "noisy-max",
        noisy_max_right,
        (1,) + (0,) * 9,
        (0,) + (1,) * 9,
        "Lap(2/epsilon) on each score",
        broken=False,
    ),
    _specimen(
        "noisy-max-half-noise",
        noisy_max_halved,
        (1,) + (0,) * 9,
        (0,) + (1,) * 9,
        "Lap(1/epsilon), though scores move both ways",
    ),
)
