"""Mechanisms about one record whose epsilon, delta or trade-off curve is known exactly.

Each gives scores for records that are included and for records that are not; an audit that claims
the exact value and says "violated" raises a false alarm. All draws are seeded.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from discreet.audit import Inclusion
from discreet.privacy import GDP
from discreet.randomness import source

REJECT = 1e-7
Scores = Callable[[np.ndarray], np.ndarray]


def most_alarms(audits: int, rate: float) -> int:
    """More alarms than this happen with probability below 1e-7 if the rate is right."""
    return int(stats.binom.isf(REJECT, audits, rate))


def fewest_alarms(audits: int, rate: float) -> int:
    """As many alarms or more happen with probability below 1e-7 if the rate is right."""
    return int(stats.binom.isf(REJECT, audits, rate)) + 1


def coins(canaries: int, guesses: tuple[int, int], seed: int, **changes: int) -> Inclusion:
    return Inclusion(canaries, guesses=guesses, source=source(insecure_seed=seed), **changes)


def response(generator: np.random.Generator, epsilon: float) -> Scores:
    """Randomized response: epsilon exactly, at both events. Ties are broken by noise."""
    truth = special.expit(epsilon)

    def scores(included: np.ndarray) -> np.ndarray:
        honest = generator.random(included.size) < truth
        return (included == honest) + 1e-3 * generator.random(included.size)

    return scores


def gaussian(generator: np.random.Generator, mu: float) -> Scores:
    return lambda included: mu * included + generator.standard_normal(included.size)


def revealing(generator: np.random.Generator, epsilon: float, delta: float) -> Scores:
    """The worst (epsilon, delta): the truth with probability delta, else randomized response.

    TPR = e^epsilon FPR + delta exactly at the threshold 0.5.
    """
    respond = response(generator, epsilon)

    def scores(included: np.ndarray) -> np.ndarray:
        shown = generator.random(included.size) < delta
        return np.where(shown, np.where(included, 2.0, -1.0), respond(included))

    return scores


def revealing_some(generator: np.random.Generator, size: int, delta: float) -> Scores:
    """(0, delta): ``size`` random canaries at once, seldom; otherwise nothing at all.

    With probability m delta / size a random set of that size is shown, so each of the m
    canaries is shown with probability delta.
    """

    def scores(included: np.ndarray) -> np.ndarray:
        result = generator.random(included.size)
        if generator.random() < included.size * delta / size:
            shown = generator.choice(included.size, size, replace=False)
            result[shown] = np.where(included[shown], 2.0, -1.0)
        return result

    return scores


def tight_threshold(mu: float, delta: float) -> tuple[float, float]:
    """Epsilon of a Gaussian at delta, and the threshold whose test attains it."""
    epsilon = GDP(mu=mu).epsilon(delta=delta)
    return epsilon, epsilon / mu + mu / 2


def pair(scores: Scores, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of runs with and of runs without the record."""
    return scores(np.ones(runs, dtype=bool)), scores(np.zeros(runs, dtype=bool))


def sampled_gaussian(generator: np.random.Generator, stddev: float, rate: float) -> Scores:
    """One step of Poisson-sampled DP-SGD; the score is its log-likelihood ratio."""

    def scores(included: np.ndarray) -> np.ndarray:
        drawn = included & (generator.random(included.size) < rate)
        seen = drawn + stddev * generator.standard_normal(included.size)
        return np.log1p(rate * np.expm1((2 * seen - 1) / (2 * stddev**2)))

    return scores


def accuracy(epsilon: float) -> float:
    return 1 / (1 + math.exp(-epsilon))
