"""Which faults of learners the audits of training find, from runs with seeded noise.

    python benchmarks/learner_mutants.py [--repeats N | --from-results]

Every learner of mutant_learners.py is trained and audited, each time anew, at a false-alarm
rate of 1e-3, and so are the right ones, the Trainer of the package among them. Then the package
is asked to do each fault itself, which it must refuse where it can be asked. Writes
benchmarks/results/mutants.json and mutants.png, docs/images/mutants.png and the table between
the markers of docs/auditing-training.md, and exits with 1 if a fault was not found in every
repetition or a right learner was accused.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

import mutant_learners as learners
from detection_table import write_between
from discreet.audit import (
    Inclusion,
    TrainingAudit,
    audit_one_run_curve,
    audit_runs,
    audit_tradeoff,
    suggest_guesses,
)
from discreet.cli.pictures import COLOURS, blank_figure, save, tidy
from discreet.cli.tables import at_least, at_most
from discreet.learn.dpsgd import Plan
from discreet.learn.dpsgd.canaries import train_with_gradient_canaries
from discreet.learn.dpsgd.canary_scores import gradient_scores
from discreet.privacy import Loss, PureDP
from discreet.randomness import source
from mutant_refusals import REFUSALS, Refusal

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
PICTURE = RESULTS.with_suffix(".png")
PAGE = ROOT / "docs" / "auditing-training.md"
IMAGE = ROOT / "docs" / "images" / "mutants.png"

RATE = 1e-3
DELTA = 1e-5
EPSILON = 2.0
CANARIES = 1000
RECORDS = 2000
FEATURES = 8
RUNS = 500
REPEATS = 10
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
        noise_multiplier=0.25,
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
    return {
        name: audit_one_run_curve(
            coins, score(seen, plan), loss=plan.loss, delta=plan.delta, false_alarm_rate=RATE
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
    """One gradient canary in each run, against the whole trade-off curve of the claim.

    One run with many canaries cannot do this: a mechanism that gives away everybody at once
    with probability 2/3 has nearly the same curve for each of them.
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
        found = audit_tradeoff(
            scores(count + 1, start),
            scores(count, start + RUNS),
            loss=plan.loss,
            delta=plan.delta,
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
CURVE = "gradient canary, many runs, trade-off curve"
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
        CURVE,
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
        CURVE,
        presence(learners.Learner),
    ),
    Case("DP-SGD, idle coordinates", "the same", False, MANY_RUNS, loudness(learners.Learner)),
    Case("DP-SGD, outlier", "the same", False, MANY_RUNS, direction(learners.Learner)),
    Case("the Trainer", "the package's DP-SGD, end to end", False, ONE_RUN, the_trainer),
    Case("PATE", "disjoint parts, GNMax", False, MANY_RUNS, ensemble(overlap=False)),
    Case("naive Bayes", "declared categories", False, MANY_RUNS, towns(from_data=False)),
)


# --- running, tabulating -----------------------------------------------------------------


def most_telling(audits: dict[str, TrainingAudit]) -> str:
    """The score that shows most; one that contradicts the claim before all others."""
    return max(audits, key=lambda name: (audits[name].violated, audits[name].epsilon_lower))


def row(case: Case, repeats: int) -> dict[str, Any]:
    start = time.perf_counter()
    caught, shown = 0, []
    for seed in range(1, repeats + 1):
        audits = case.audit(seed)
        name = most_telling(audits)
        caught += audits[name].violated
        shown.append((audits[name].epsilon_lower, name, audits[name]))
    # The median repetition stands for all of them.
    _, name, audit = sorted(shown, key=lambda each: each[0])[(repeats - 1) // 2]
    refusal = REFUSALS.get(case.name)
    return {
        "name": case.name,
        "about": case.about,
        "broken": case.broken,
        "shows": case.shows,
        "by": case.by,
        "score": name,
        "audit": audit.to_json(),
        "repeats": repeats,
        "caught": caught,
        "package": None if refusal is None else asked(refusal),
        "seconds": round(time.perf_counter() - start, 2),
    }


def asked(refusal: Refusal) -> dict[str, str]:
    """What the package says when it is asked to do the fault itself."""
    if refusal.attempt is None:
        return {"answer": "cannot be asked", "why": refusal.why}
    try:
        refusal.attempt()
    except refusal.error as error:
        return {"answer": type(error).__name__, "why": refusal.why, "message": str(error)}
    return {"answer": "NOT REFUSED", "why": refusal.why}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| learner | what it does | the package | found by | claimed | shown | ceiling | caught |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for each in rows:
        audit = each["audit"]
        about = f"**broken:** {each['about']}" if each["broken"] else each["about"]
        package = "" if each["package"] is None else said(each["package"])
        shown = at_least(audit["epsilon_lower"], digits=3)
        if audit["verdict"] == "violated" and audit["epsilon_lower"] <= audit["claimed_epsilon"]:
            shown += " (curve)"
        lines.append(
            f"| {each['name']} | {about} | {package} | {each['by']}: {each['score']} | "
            f"{at_most(audit['claimed_epsilon'], digits=3)} | {shown} | "
            f"{at_least(audit['ceiling'], digits=3)} | {each['caught']}/{each['repeats']} |"
        )
    return "\n".join(lines)


def said(package: dict[str, str]) -> str:
    if package["answer"] == "cannot be asked":
        return package["why"]
    return f"`{package['answer']}`: {package['why']}"


def wrong(rows: list[dict[str, Any]]) -> list[str]:
    """Faults that were missed once or that the package would do, and right learners accused."""
    found = []
    for each in rows:
        # A right learner is accused with a probability below 1e-3 in each repetition.
        expected = each["repeats"] if each["broken"] else 0
        misjudged = each["shows"] and each["caught"] != expected
        allowed = each["package"] is not None and each["package"]["answer"] == "NOT REFUSED"
        if misjudged or allowed:
            found.append(each["name"])
    return found


def draw(rows: list[dict[str, Any]], *places: Path) -> None:
    figure = blank_figure(9, 0.3 * len(rows) + 1.2)
    axes = figure.subplots()
    for height, each in enumerate(reversed(rows)):
        audit = each["audit"]
        colour = COLOURS["vermilion" if each["broken"] else "blue"]
        axes.plot([0, audit["ceiling"]], [height, height], color="#E4E4E4", lw=6, zorder=1)
        axes.plot([0, audit["epsilon_lower"]], [height, height], color=colour, lw=2.5, zorder=2)
        axes.plot(audit["epsilon_lower"], height, "o", color=colour, ms=6, zorder=3)
        claimed = min(audit["claimed_epsilon"], 7.0)
        mark = "|" if claimed == audit["claimed_epsilon"] else ">"
        axes.plot(claimed, height, mark, color=COLOURS["black"], ms=11, mew=2, zorder=4)
    axes.set_yticks(range(len(rows)), [each["name"] for each in reversed(rows)])
    axes.set_xlabel("epsilon: shown (dot), claimed (bar; > if beyond 7), ceiling (grey)")
    axes.set_title("Learners with a fault (orange) and right ones (blue), as audited", fontsize=10)
    axes.set_xlim(0, 7.2)
    tidy(axes)
    axes.tick_params(axis="y", labelsize=8)
    for place in places:
        save(figure, place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--from-results", action="store_true", help="only tabulate and draw")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.from_results:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        results = {"false_alarm_rate": RATE, "canaries": CANARIES, "rows": []}
        for case in CASES:
            results["rows"].append(row(case, options.repeats))
            last = results["rows"][-1]
            shown = (
                f"{last['audit']['epsilon_lower']:.3f} of {last['audit']['claimed_epsilon']:.3f}"
            )
            caught = f"{last['caught']}/{last['repeats']}"
            print(f"{case.name:40} {caught:7} {shown:20} {last['seconds']:7.1f} s", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    rows = results["rows"]
    draw(rows, PICTURE, IMAGE)
    page = write_between(PAGE.read_text(encoding="utf-8"), "mutants table", table(rows))
    PAGE.write_text(page, encoding="utf-8")
    missed = wrong(rows)
    print("wrong verdicts:", ", ".join(missed) or "none")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
