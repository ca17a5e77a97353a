"""Attacks from the literature against the curator, run until the budget stops them.

Every person has one secret bit, drawn by a fair coin. The adversary is an analyst who knows
everything else and may ask whatever the curator answers:

- *differencing*: two counts that differ by one person, for one person after another;
- *averaging*: the same count again and again, word by word or rewritten;
- *linear reconstruction* (Dinur and Nissim 2003): counts over random subsets, then least squares.

For every budget epsilon the attack runs until ``BudgetExceeded``. No attack on an epsilon-DP
answer guesses a fair bit right with probability above e^epsilon / (1 + e^epsilon); beside it
stand what the attacks reach, and what they reach where epsilon is so large that nothing is
protected.
"""

import json
import math
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from discreet.curator import Count, CuratedDataset, Curator
from discreet.data import Categorical, Integer, Schema
from discreet.engines import AllOf, Compare, Field, Not, OneOf, Value
from discreet.errors import BudgetExceeded
from discreet.ledger import Ledger
from harness import Run, Suite, claim

PEOPLE = 96
BUDGETS = ("1/4", "1", "4", "16", "64", "256", "100000")
UNPROTECTED = "100000"
ILL = Compare("==", Field("ill"), Value(1))


class Study:
    """People with a secret bit, and a curator for each budget on the same engine."""

    def __init__(self, folder: Path, people: int) -> None:
        self.numbers = np.random.default_rng(7)
        self.people = people
        self.names = [f"p{place}" for place in range(people)]
        self.secret = self.numbers.integers(0, 2, people)
        schema = Schema({"who": Categorical(self.names, other="p0"), "ill": Integer(0, 1)})
        table = {"who": self.names, "ill": self.secret.tolist()}
        self.dataset = CuratedDataset("people", schema=schema, source=table, threads=1)
        self._folder = folder
        self._made = 0

    def curator(self, epsilon: str) -> tuple[Curator, Ledger]:
        """A fresh ledger with one budget for everything that is asked."""
        self._made += 1
        ledger = Ledger.create(self._folder / f"study-{self._made}.ledger")
        ledger.create_dataset("people", epsilon=epsilon, unit="row")
        return Curator(ledger, {"people": self.dataset}), ledger


def asked(curator: Curator, where: Any, epsilon: Fraction) -> float:
    answer = curator.ask("people", Count(epsilon=epsilon, where=where), analyst="eve")
    return float(answer.value)


def differencing(study: Study, budget: str, share: Fraction) -> dict[str, Any]:
    """Everybody who is ill, minus everybody who is ill but for one; then the next person.

    ``share`` of the budget goes into each pair, so that 1/share persons are attacked.
    """
    curator, ledger = study.curator(budget)
    each = Fraction(budget) * share / 2
    guesses = 0
    right = 0.0
    try:
        for place, name in enumerate(study.names):
            # Rewritten for each person, or the first count would be the stored one, for free.
            others = Compare("<=", Field("ill"), Value(1 + place))
            whole = asked(curator, AllOf((ILL, others)), each)
            without = asked(curator, AllOf((ILL, Not(OneOf("who", (name,))))), each)
            guesses += 1
            difference = whole - without
            if difference == 0.5:
                right += 0.5
            else:
                right += float((difference > 0.5) == bool(study.secret[place]))
    except BudgetExceeded:
        pass
    charges = ledger.show("people").budget.charges
    ledger.close()
    return {"guesses": guesses, "right": right / guesses, "charges": charges}


def reconstruction(study: Study, budget: str, subsets: np.ndarray) -> dict[str, Any]:
    """Counts over random subsets, least squares, rounding."""
    curator, ledger = study.curator(budget)
    each = Fraction(budget) / len(subsets)
    answers: list[float] = []
    try:
        while True:  # one more than the budget pays for
            chosen = subsets[len(answers) % len(subsets)]
            members = tuple(study.names[place] for place in np.flatnonzero(chosen))
            rewritten = Compare("<=", Field("ill"), Value(1 + len(answers) // len(subsets)))
            where = AllOf((ILL, rewritten, OneOf("who", members)))
            answers.append(asked(curator, where, each))
    except BudgetExceeded:
        pass
    used = subsets[: len(answers)]
    found, *_ = np.linalg.lstsq(used - 0.0, np.array(answers), rcond=None)
    charges = ledger.show("people").budget.charges
    ledger.close()
    guessed = found > 0.5
    return {
        "charges": charges,
        "right": float(np.mean(guessed == (study.secret == 1))),
        "mean_error": float(np.mean(np.abs(np.clip(found, 0, 1) - study.secret))),
    }


def averaging(study: Study, budget: str) -> dict[str, Any]:
    """The same question for free; rewritten questions, each of which is charged."""
    truth = float(study.secret.sum())
    curator, ledger = study.curator(budget)
    half = Fraction(budget) / 2
    repeated = {asked(curator, ILL, half) for _ in range(100)}
    charges = ledger.show("people").budget.charges
    ledger.close()
    errors: dict[str, float] = {}
    for times in (1, 4, 16, 64):
        off = []
        for _ in range(6):
            curator, ledger = study.curator(budget)
            answers: list[float] = []
            try:
                while True:
                    where = AllOf((ILL, Compare("<=", Field("ill"), Value(1 + len(answers)))))
                    answers.append(asked(curator, where, Fraction(budget) / times))
            except BudgetExceeded:
                pass
            ledger.close()
            assert len(answers) == times
            off.append(abs(float(np.mean(answers)) - truth))
        errors[str(times)] = float(np.mean(off))
    return {
        "word_by_word": {"asked": 100, "distinct": len(repeated), "charges": charges},
        "rewritten_mean_error": errors,
        "expected_error_of_one_question": 1 / float(Fraction(budget)),
    }


def bound(budget: str) -> float:
    return 1 / (1 + math.exp(-min(700.0, float(Fraction(budget)))))


def draw(record: dict[str, Any], path: Path) -> None:
    rows = record["rows"]
    epsilons = [float(Fraction(row["epsilon"])) for row in rows]
    figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
    smooth = np.geomspace(min(epsilons), max(epsilons), 200)
    ceiling = [100 / (1 + math.exp(-min(700.0, value))) for value in smooth]
    axes.plot(smooth, ceiling, color="#000000", linestyle="--", label="bound of epsilon-DP")
    styles = (
        ("differencing", "one_target", "#0072B2", "o", "differencing, all on one person"),
        ("differencing", "all_targets", "#56B4E9", "s", "differencing, everybody in turn"),
        ("reconstruction", None, "#D55E00", "^", "linear reconstruction"),
    )
    for attack, part, colour, mark, label in styles:
        found = [row[attack][part] if part else row[attack] for row in rows]
        shown = [(x, 100 * one["right"]) for x, one in zip(epsilons, found, strict=True)]
        axes.plot(*zip(*shown, strict=True), color=colour, marker=mark, label=label)
    axes.axhline(50, color="#6E6E6E", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("epsilon of the whole budget, spent to the end")
    axes.set_ylabel("secret bits guessed right (%)")
    axes.set_ylim(30, 103)
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def one_target(study: Study, budget: str, tries: int) -> dict[str, Any]:
    """The whole budget on one person, for several persons with a fresh budget each."""
    right = 0.0
    for place in range(tries):
        curator, ledger = study.curator(budget)
        half = Fraction(budget) / 2
        others = Compare("<=", Field("ill"), Value(1 + place))
        name = study.names[place]
        difference = asked(curator, AllOf((ILL, others)), half) - asked(
            curator, AllOf((ILL, Not(OneOf("who", (name,))))), half
        )
        ledger.close()
        right += 0.5 if difference == 0.5 else float((difference > 0.5) == study.secret[place])
    return {"guesses": tries, "right": right / tries}


def measure(asked: Run) -> dict[str, Any]:
    people = 16 if asked.quick else PEOPLE
    with tempfile.TemporaryDirectory() as name:
        study = Study(Path(name), people)
        subsets = study.numbers.integers(0, 2, (2 * people, people))
        rows = []
        for budget in BUDGETS:
            row = {
                "epsilon": budget,
                "bound": bound(budget),
                "differencing": {
                    "one_target": one_target(study, budget, people // 2),
                    "all_targets": differencing(study, budget, Fraction(1, people)),
                },
                "reconstruction": reconstruction(study, budget, subsets),
            }
            rows.append(row)
            print(
                f"epsilon {budget:>7}: bound {100 * row['bound']:5.1f} %, "
                f"one person {100 * row['differencing']['one_target']['right']:5.1f} %, "
                f"everybody {100 * row['differencing']['all_targets']['right']:5.1f} %, "
                f"reconstruction {100 * row['reconstruction']['right']:5.1f} % "
                f"({row['reconstruction']['charges']} charges)"
            )
        averages = averaging(study, "1")
        study.dataset.close()
    print("averaging:", json.dumps(averages))
    return {"people": people, "rows": rows, "averaging": averages}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    rows, people = record["rows"], record["people"]
    # Each figure is a mean of independent guesses: Hoeffding, at one in a million.
    slack = math.sqrt(math.log(1e6) / people)
    attacks = [
        (row, figure)
        for row in rows
        for figure in (
            row["differencing"]["one_target"],
            row["differencing"]["all_targets"],
            row["reconstruction"],
        )
    ]
    unprotected = [figure["right"] for row, figure in attacks if row["epsilon"] == UNPROTECTED]
    errors = record["averaging"]["rewritten_mean_error"]
    repeated = record["averaging"]["word_by_word"]
    charges = [row["reconstruction"]["charges"] for row in rows]
    return [
        claim(
            "no attack passes the bound", all(f["right"] <= r["bound"] + slack for r, f in attacks)
        ),
        claim("without protection every attack succeeds", min(unprotected) >= 0.95),
        claim("the budget stopped reconstruction", set(charges) == {2 * people}),
        claim(
            "word by word there is one answer and one charge",
            repeated == {"asked": 100, "distinct": 1, "charges": 1},
        ),
        claim("averaging does not beat asking once", errors["64"] > errors["1"]),
    ]


def table(record: dict[str, Any]) -> str:
    heads = (
        "epsilon of the budget",
        "bound",
        "differencing, all on one person",
        "differencing, everybody",
        "reconstruction",
        "mean error of a reconstructed bit",
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---:|" * len(heads)]
    for row in record["rows"]:
        found = row["differencing"]
        shares = (
            row["bound"],
            found["one_target"]["right"],
            found["all_targets"]["right"],
            row["reconstruction"]["right"],
        )
        protected = row["epsilon"] != UNPROTECTED
        name = row["epsilon"] if protected else "100,000 (nothing is protected)"
        cells = [name, *(f"{100 * share:.1f} %" for share in shares)]
        cells.append(f"{row['reconstruction']['mean_error']:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def errors_of_means(record: dict[str, Any]) -> str:
    found = record["averaging"]["rewritten_mean_error"]
    *first, last = (f"{error:.1f}" for error in found.values())
    return f"{', '.join(first)} and {last}"


SUITE = Suite(
    "curator_attacks",
    measure,
    targets,
    tables={("docs/curator-service.md", "curator attacks"): table},
    pictures={"curator-attacks.png": draw},
    numbers={"averaging": errors_of_means},
)
