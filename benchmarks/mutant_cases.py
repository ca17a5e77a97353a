"""The learners of mutant_learners.py, each with the audits that judge it.

Claims are those of a plan, of an aggregator or of an estimator of the package. Coins and noise
are seeded, but for the Trainer of the package, which has the operating system's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

import mutant_learners as learners
from discreet.audit import (
    Inclusion,
    TrainingAudit,
    audit_one_run_curve,
    audit_runs,
    suggest_guesses,
)
from discreet.learn.dpsgd import Plan
from discreet.learn.dpsgd.canaries import train_with_gradient_canaries
from discreet.learn.dpsgd.canaries._canaries import gradient_scores
from discreet.privacy import ApproxDP, Loss, PureDP
from discreet.randomness import source

RATE = 1e-3
DELTA = 1e-5
LARGE_DELTA = 0.7
EPSILON = 2.0
CANARIES = 1000
RECORDS = 2000
FEATURES = 8
RUNS = 500
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A learner and the audits that judge it: ``audit(seed)`` is one whole audit.

    ``shows`` is false for a fault that is known to escape, and is in the table to say so.
    """

    name: str
    about: str
    broken: bool
    by: str
    audit: Callable[[int], dict[str, TrainingAudit]]
    shows: bool = True


# --- one run with gradient canaries ------------------------------------------------------


@cache
def usual_plan() -> Plan:
    """Four epochs of Poisson sampling at epsilon 2."""
    return Plan(
        examples=RECORDS + CANARIES // 2,
        expected_batch_size=250,
        steps=40,
        clip_norm=1.0,
        epsilon=EPSILON,
        delta=DELTA,
    )


@cache
def quiet_plan() -> Plan:
    """One epoch with so little noise that whether a record was drawn can be seen."""
    return Plan(
        examples=200,
        expected_batch_size=10,
        steps=20,
        clip_norm=1.0,
        noise_multiplier=0.15,
        delta=DELTA,
    )


@cache
def guesses_for(plan: Plan) -> tuple[int, int]:
    return suggest_guesses(
        plan.loss, canaries=CANARIES, delta=plan.delta, false_alarm_rate=RATE / len(SCORES)
    )


def as_planned(seen: Array, plan: Plan) -> Array:
    """The log-likelihood ratio, if sampling and noise are as planned."""
    return gradient_scores(seen, plan)


def as_measured(seen: Array, plan: Plan) -> Array:
    """The same with the noise that each step shows on most coordinates."""
    signal = plan.clip_norm / plan.expected_batch_size
    rate = plan.rate_of(plan.phases[0])
    total = np.zeros(seen.shape[1])
    for row in seen / signal:
        deviation = max(1e-3, 1.4826 * float(np.median(np.abs(row - np.median(row)))))
        ratios = np.minimum((2.0 * row - 1.0) / (2.0 * deviation**2), 1e6)
        total += np.logaddexp(np.log1p(-rate), np.log(rate) + ratios)
    return total


def spread(seen: Array, _: Plan) -> Array:
    """How much a coordinate moves from step to step: noise that repeats does not."""
    return np.asarray(seen.max(axis=0) - seen.min(axis=0))


SCORES: dict[str, Callable[[Array, Plan], Array]] = {
    "likelihood as planned": as_planned,
    "likelihood with the noise as measured": as_measured,
    "spread over steps": spread,
}


def judged(coins: Inclusion, seen: Array, plan: Plan) -> dict[str, TrainingAudit]:
    """One audit for each score; the coins were made for so many, so they hold together."""
    # The plan's (epsilon, delta) and not its whole curve, which takes long to compute.
    claim = ApproxDP(epsilon=plan.epsilon(), delta=plan.delta)
    return {
        name: audit_one_run_curve(
            coins, score(seen, plan), loss=claim, delta=plan.delta, false_alarm_rate=RATE
        )
        for name, score in SCORES.items()
    }


def coins_for(plan: Plan, seed: int) -> Inclusion:
    return Inclusion(
        CANARIES,
        guesses=guesses_for(plan),
        audits=len(SCORES),
        source=source(insecure_seed=seed),
    )


def ordinary(records: int, seed: int) -> tuple[Array, Array]:
    """Made-up records of two classes that a line divides well."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, records).astype(np.float64)
    inputs = random.standard_normal((records, FEATURES)) + (2.0 * labels[:, None] - 1.0)
    return inputs, labels


def one_run(kind: type[learners.Learner]) -> Callable[[int], dict[str, TrainingAudit]]:
    def audit(seed: int) -> dict[str, TrainingAudit]:
        plan = usual_plan()
        coins = coins_for(plan, seed)
        inputs, labels = ordinary(RECORDS, seed)
        who = np.flatnonzero(coins.included)
        marks = np.concatenate([np.full(RECORDS, -1), who])
        inputs = np.concatenate([inputs, np.zeros((who.size, FEATURES))])
        labels = np.concatenate([labels, np.zeros(who.size)])
        made = kind(plan, features=FEATURES, coordinates=CANARIES, seed=seed)
        return judged(coins, made.train(inputs, labels, marks)[:, FEATURES:], plan)

    return audit


def the_trainer(seed: int) -> dict[str, TrainingAudit]:
    """The package's own loop, with the operating system's noise and coins."""
    plan = usual_plan()
    coins = Inclusion(CANARIES, guesses=guesses_for(plan), audits=len(SCORES))
    inputs, labels = ordinary(RECORDS, seed)
    data = TensorDataset(torch.from_numpy(inputs).float(), torch.from_numpy(labels).to(torch.int64))
    torch.manual_seed(seed)
    run = train_with_gradient_canaries(
        nn.Linear(FEATURES, 2),
        data,
        plan,
        included=coins.included,
        loss=nn.CrossEntropyLoss(reduction="none"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    )
    assert run.observed is not None
    return judged(coins, run.observed, plan)


# --- many runs on two neighbouring data sets ---------------------------------------------


@cache
def one_step(records: int) -> Plan:
    """All records in one step, at epsilon 2."""
    return Plan(
        examples=records,
        expected_batch_size=records,
        steps=1,
        sampler="full",
        clip_norm=1.0,
        epsilon=EPSILON,
        delta=DELTA,
    )


def two_lists(
    release: Callable[[bool, int], float], *, loss: Loss, delta: float, runs: int, seed: int
) -> TrainingAudit:
    """Scores of so many runs with the record, and of as many without it."""
    first = 2 * runs * seed
    return audit_runs(
        [release(True, first + place) for place in range(runs)],
        [release(False, first + runs + place) for place in range(runs)],
        loss=loss,
        delta=delta,
        false_alarm_rate=RATE,
    )


def with_outlier(
    kind: type[learners.Learner], records: int, coordinates: int, score: Callable[[Array], float]
) -> Callable[[bool, int], float]:
    """A run on some records, or on these and one that lies far outside."""
    inputs, labels = ordinary(records, 1)
    inputs = np.concatenate([inputs, np.full((1, FEATURES), 1e4)])
    labels = np.append(labels, 0.0)
    plan = one_step(records)

    def release(included: bool, seed: int) -> float:
        made = kind(plan, features=FEATURES, coordinates=coordinates, seed=seed)
        count = records + included
        return score(made.train(inputs[:count], labels[:count], np.full(count, -1))[0])

    return release


def loudness(kind: type[learners.Learner]) -> Callable[[int], dict[str, TrainingAudit]]:
    """Coordinates that no record touches show the noise, and so what it was divided by."""
    records, idle = 20, 10_000

    def score(released: Array) -> float:
        return -float(np.log(released[FEATURES:].std()))

    def audit(seed: int) -> dict[str, TrainingAudit]:
        release = with_outlier(kind, records, idle, score)
        plan = one_step(records)
        found = two_lists(release, loss=plan.loss, delta=DELTA, runs=RUNS, seed=seed)
        return {"loudness of idle coordinates": found}

    return audit


def direction(kind: type[learners.Learner]) -> Callable[[int], dict[str, TrainingAudit]]:
    """The gradient along the line from where it lies without the record to where with it."""
    records = 40

    def audit(seed: int) -> dict[str, TrainingAudit]:
        plan = one_step(records)

        class Silent(kind):  # type: ignore[misc, valid-type]
            def noise(self, step: int) -> Array:
                return np.zeros(self.size)

        inputs, labels = ordinary(records, 1)
        inputs = np.concatenate([inputs, np.full((1, FEATURES), 1e4)])
        labels = np.append(labels, 0.0)
        silent = Silent(plan, features=FEATURES, coordinates=0, seed=0)
        ends = [
            silent.train(inputs[:count], labels[:count], np.full(count, -1))[0]
            for count in (records, records + 1)
        ]
        line = ends[1] - ends[0]
        release = with_outlier(kind, records, 0, lambda released: float(released @ line))
        found = two_lists(release, loss=plan.loss, delta=DELTA, runs=RUNS, seed=seed)
        return {"gradient along the difference": found}

    return audit


def presence(kind: type[learners.Learner]) -> Callable[[int], dict[str, TrainingAudit]]:
    """One gradient canary in each run, and the claim read at a delta of 0.7.

    With so little noise a run gives away who was drawn, and Poisson sampling draws a record
    with probability 0.64: so it is (0, 0.7)-DP, and no test finds more than 70 % with no false
    alarm. One run with many canaries cannot tell: a mechanism that gives away everybody at
    once with probability 0.64 is as private for each of them.
    """

    def audit(seed: int) -> dict[str, TrainingAudit]:
        plan = quiet_plan()
        count = plan.examples - 1
        inputs, labels = ordinary(count, 1)
        inputs = np.concatenate([inputs, np.zeros((1, FEATURES))])
        labels = np.append(labels, 0.0)
        marks = np.append(np.full(count, -1), 0)

        def scores(rows: int, first: int) -> list[float]:
            found = []
            for place in range(RUNS):
                made = kind(plan, features=FEATURES, coordinates=1, seed=first + place)
                seen = made.train(inputs[:rows], labels[:rows], marks[:rows])[:, FEATURES:]
                found.append(float(as_planned(seen, plan)[0]))
            return found

        start = 2 * RUNS * seed
        found = audit_runs(
            scores(count + 1, start),
            scores(count, start + RUNS),
            loss=plan.loss,
            delta=LARGE_DELTA,
            false_alarm_rate=RATE,
        )
        return {"likelihood as planned": found}

    return audit


def ensemble(*, overlap: bool) -> Callable[[int], dict[str, TrainingAudit]]:
    """A record of class 1 among a hundred of class 0, and the label of one query beside it."""
    records = np.append(np.linspace(1.0, 2.0, 100), 0.0)
    labels = np.append(np.zeros(100, dtype=np.int64), 1)
    runs = RUNS

    def audit(seed: int) -> dict[str, TrainingAudit]:
        first = 2 * runs * seed

        def answers(count: int, start: int) -> list[int]:
            table = [
                learners.votes(records[:count], labels[:count], overlap=overlap, seed=start + i)
                for i in range(runs)
            ]
            return learners.aggregated(table, seed=start)

        found = audit_runs(
            answers(101, first),
            answers(100, first + runs),
            loss=learners.AGGREGATOR.loss(queries=1),
            delta=DELTA,
            false_alarm_rate=RATE,
        )
        return {"the label": found}

    return audit


def towns(*, from_data: bool) -> Callable[[int], dict[str, TrainingAudit]]:
    """One record from a town where nobody else lives."""
    places = ["Aalen", "Bern", "Cork"] * 20 + ["Zug"]
    labels = [0, 1] * 30 + [1]
    epsilon = 1.0

    def release(included: bool, seed: int) -> float:
        count = len(places) - (not included)
        model = learners.bayes(
            places[:count], labels[:count], from_data=from_data, epsilon=epsilon, seed=seed
        )
        listed = list(model.categories[0])
        if "Zug" not in listed:
            return -np.inf
        return float(model.feature_log_prob_[0][1][listed.index("Zug")])

    def audit(seed: int) -> dict[str, TrainingAudit]:
        found = two_lists(release, loss=PureDP(epsilon=epsilon), delta=0.0, runs=200, seed=seed)
        return {"probability of the rare category": found}

    return audit


def described(kind: type[learners.Learner]) -> str:
    text = str(kind.__doc__).rstrip(".")
    return text[0].lower() + text[1:]


ONE_RUN = "gradient canaries, one run"
PRESENCE = "gradient canary, many runs"
MANY_RUNS = "many runs, with and without a record"
CASES = (
    *(
        Case(name, described(kind), True, ONE_RUN, one_run(kind))
        for name, kind in (
            ("no clipping", learners.NoClipping),
            ("clipping after averaging", learners.ClippingAfterAveraging),
            ("noise divided by the batch size twice", learners.NoiseDividedTwice),
            ("noise once per epoch", learners.NoiseOncePerEpoch),
            ("one seed in every step", learners.SeedReused),
        )
    ),
    Case(
        "shuffling accounted as Poisson",
        described(learners.ShuffledBatches),
        True,
        PRESENCE,
        presence(learners.ShuffledBatches),
    ),
    Case(
        "the same, much noise",
        "the fault is there, and nothing shows it",
        True,
        ONE_RUN,
        one_run(learners.ShuffledBatches),
        shows=False,
    ),
    Case(
        "normaliser read off the data",
        described(learners.RealisedNormaliser),
        True,
        MANY_RUNS,
        loudness(learners.RealisedNormaliser),
    ),
    Case(
        "BatchNorm left in",
        described(learners.BatchNormLeftIn),
        True,
        MANY_RUNS,
        direction(learners.BatchNormLeftIn),
    ),
    Case(
        "PATE teachers that overlap",
        "every teacher has a random four fifths of the records",
        True,
        MANY_RUNS,
        ensemble(overlap=True),
    ),
    Case(
        "categories read off the data",
        "naive Bayes over the values that occur",
        True,
        MANY_RUNS,
        towns(from_data=True),
    ),
    Case(
        "DP-SGD",
        "the loop that the faults were put into",
        False,
        ONE_RUN,
        one_run(learners.Learner),
    ),
    Case(
        "DP-SGD, little noise",
        "the same by the plan under which shuffling shows",
        False,
        PRESENCE,
        presence(learners.Learner),
    ),
    Case("DP-SGD, idle coordinates", "the same", False, MANY_RUNS, loudness(learners.Learner)),
    Case("DP-SGD, outlier", "the same", False, MANY_RUNS, direction(learners.Learner)),
    Case("the Trainer", "the package's DP-SGD, end to end", False, ONE_RUN, the_trainer),
    Case("PATE", "disjoint parts, GNMax", False, MANY_RUNS, ensemble(overlap=False)),
    Case("naive Bayes", "declared categories", False, MANY_RUNS, towns(from_data=False)),
)
