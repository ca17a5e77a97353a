"""What the lectures say of the local model, and checked values of shuffling, computed again.

The randomized response of two coins (log 3, four times the variance of the truth, a posterior
of 0.0577 from a prior of 2 %), variances of OUE, OLH and PGR, and epsilons of shuffled batches.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from discreet.local import FrequencyOracle
from discreet.privacy import PureDP, RandomizedResponse
from discreet.randomness import bernoulli
from harness import Run, Suite, claim, target

# Epsilon at delta 1e-6 of (people, epsilon of a report), computed once over every number of clones.
SHUFFLED = {
    (1_000, 1): 0.14867,
    (1_000, 4): 1.85291,
    (10_000, 1): 0.04321,
    (10_000, 2): 0.11440,
    (100_000, 2): 0.03319,
    (100_000, 6): 0.35703,
}


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


def measure(asked: Run) -> dict[str, Any]:
    people = 20_000 if asked.quick else 200_000
    survey = RandomizedResponse.two_coin()
    variances = {}
    for method in ("OUE", "OLH", "PGR"):
        plan = FrequencyOracle(64, 1, method)
        server = plan.server()
        server.aggregate(plan.randomize_each(np.zeros(people, dtype=np.int64)))
        unused = server.estimate().shares[1:64]
        variances[method] = [float(np.mean(unused**2)) * people, plan.variance(1)]
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
        "people": people,
    }


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    off = abs(record["posterior"] - 0.0577)
    listed = [
        claim("two coins have epsilon log 3", abs(record["epsilon"] - math.log(3)) < 1e-12),
        # Four times; the sample variance of 400 surveys is within 40 % but once in a million.
        target(
            "variance over that of asking, off 4", abs(record["variance_ratio"] - 4), at_most=1.2
        ),
        target("posterior from a prior of 2 %, off 0.0577", off, at_most=5e-5),
    ]
    for method, (measured, theory) in record["variances"].items():
        # An average of 63 squares of normal errors: 5 deviations of it.
        gap = abs(measured / theory - 1)
        listed.append(target(f"{method}: variance off theory", gap, at_most=5 * math.sqrt(2 / 63)))
    for n, e, known, low, high in record["shuffled"]:
        inside = low - 6e-6 <= known <= high + 6e-6
        listed.append(claim(f"{n} shuffled reports of epsilon {e}: {known}", inside))
    return listed


SUITE = Suite("local_model", measure, targets)
