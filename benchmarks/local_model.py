"""What the lectures say of the local model, and checked values of shuffling, computed again.

The randomized response of two coins (log 3, four times the variance of the truth, a posterior
of 0.0577 from a prior of 2 %), variances of OUE, OLH and PGR, and epsilons of shuffled batches.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from discreet.local import FrequencyOracle
from discreet.privacy import PureDP, RandomizedResponse
from discreet.randomness import bernoulli
from harness import Run, Suite, claim, target

# Epsilon at delta 1e-6 of (people, epsilon of a report), computed once over every number of clones.
SHUFFLED = {
    (1_000, 1): 0.14867,
    (1_000, 2): 0.39709,
    (1_000, 3): 0.82311,
    (1_000, 4): 1.85291,
    (10_000, 0.5): 0.01812,
    (10_000, 1): 0.04321,
    (10_000, 2): 0.11440,
    (10_000, 3): 0.22608,
    (10_000, 4): 0.41081,
    (100_000, 0.5): 0.00515,
    (100_000, 1): 0.01243,
    (100_000, 2): 0.03319,
    (100_000, 3): 0.06563,
    (100_000, 4): 0.11815,
    (100_000, 6): 0.35703,
}
PEOPLE = 500
CONFIDENCE = 1 - 1e-6


def survey_variance(surveys: int) -> float:
    """Return the variance of 2 mean - 1/2 over many surveys, beside that of asking directly."""
    share, people = 0.5, 500
    truth = np.tile(np.arange(people) < share * people, surveys)
    honest = bernoulli(Fraction(3, 4), truth.size)
    said = np.where(honest, truth, ~truth).reshape(surveys, people)
    found = 2.0 * said.mean(axis=1) - 0.5
    # Drawing the people adds their own variance to that of the coins.
    drawn = float(np.var(found)) + share * (1 - share) / people
    return drawn / (share * (1 - share) / people)


def method_variance(method: str, collections: int) -> list[float]:
    """Return variance / theory over many small collections, its interval, and the theory."""
    plan = FrequencyOracle(64, 1, method)
    found = []
    for _ in range(collections):
        server = plan.server()
        server.aggregate(plan.randomize_each(np.zeros(PEOPLE, dtype=np.int64)))
        unused = server.estimate().shares[1:64]
        found.append(float(np.mean(unused**2)) * PEOPLE / plan.variance(1))
    reach = float(stats.t.isf((1 - CONFIDENCE) / 2, collections - 1) * stats.sem(found))
    mean = float(np.mean(found))
    return [mean, mean - reach, mean + reach, plan.variance(1)]


def measure(asked: Run) -> dict[str, Any]:
    survey = RandomizedResponse.two_coin()
    collections = 300 if asked.quick else 3_000
    variances = {name: method_variance(name, collections) for name in ("OUE", "OLH", "PGR")}
    shuffled = [
        [
            n,
            e,
            known,
            *PureDP(e, relation="replace").shuffled(population=n).epsilon_bounds(delta=1e-6),
        ]
        for (n, e), known in SHUFFLED.items()
    ]
    return {
        "epsilon": survey.epsilon(delta=0),
        "variance_ratio": survey_variance(400 if asked.quick else 4_000),
        "posterior": survey.posterior(prior=0.02).upper,
        "variances": variances,
        "shuffled": shuffled,
        "quick": asked.quick,
    }


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    off = abs(record["posterior"] - 0.0577)
    listed = [
        claim("two coins have epsilon log 3", abs(record["epsilon"] - math.log(3)) < 1e-12),
        # Four times. Seven deviations of the sample variance of 4,000 surveys (400 if quick).
        target(
            "variance over that of asking, off 4",
            abs(record["variance_ratio"] - 4),
            at_most=1.5 if record["quick"] else 0.5,
        ),
        target("posterior from a prior of 2 %, off 0.0577", off, at_most=5e-5),
    ]
    for method, (_, low, high, _) in record["variances"].items():
        off, room = max(1 - low, high - 1), 0.3 if record["quick"] else 0.05
        text = f"{method}: variance off theory, ends of the interval"
        listed.append(target(text, off, at_most=room))
    for n, e, known, low, high in record["shuffled"]:
        inside = low - 6e-6 <= known <= high + 6e-6
        listed.append(claim(f"{n} shuffled reports of epsilon {e}: {known}", inside))
    return listed


SUITE = Suite("local_model", measure, targets)
