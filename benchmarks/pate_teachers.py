"""PATE over the number of real teachers: labels, student, one teacher against the ensemble.

The lectures say that few teachers are accurate and many are private, and compare the vote with
boosting. Here teachers are trained on disjoint parts of Adult (logistic regression) and of MNIST
(networks of 32 units on images of 14 x 14 pixels, so that it takes minutes). For each number of
them: how often one teacher is right and how often their vote is (subsample and aggregate is
bagging), how many labels each way of answering gives at epsilon 1 out of the public rows, and how
good the student of GNMax becomes. Teachers that share records, two each (``SampledVotes(cap=2)``),
stand beside disjoint ones at the same budget.

Parameters of the votes are chosen on the votes themselves, with their right labels: these are
public data sets, and the figures say what could be had. Parts: adult and mnist.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from discreet.pate import (
    NetworkTeachers,
    Prospect,
    SampledVotes,
    StableVotes,
    TableStudent,
    compare_aggregators,
    partition_records,
    teacher_votes,
)
from discreet.pate._planning import _read_profile
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes
from harness import Run, Suite, claim, found

EPSILON, RUNS = 1.0, 3
ADULT = (25, 50, 100, 250, 500)
MNIST = (50, 100, 250, 500)
TITLES = {"adult": "Adult", "mnist": "MNIST"}
WAYS = {
    "GNMax": "GNMax",
    "StableVotes": "M_stab, disjoint",
    "SampledVotes": "M_samp, two teachers a record",
}


@dataclass(frozen=True)
class Task:
    """Private rows, public rows without labels, and rows to score on."""

    private: tuple[np.ndarray, np.ndarray]
    public: tuple[np.ndarray, np.ndarray]
    scored: tuple[np.ndarray, np.ndarray]
    teacher: Any
    classes: int
    delta: float
    seen: Callable[[np.ndarray], np.ndarray]


def adult_task() -> Task:
    from sklearn.linear_model import LogisticRegression

    from discreet.data import Encoding, read_table
    from learners_tasks import adult_schema, census

    people = census()
    schema = adult_schema(people.train)
    encoding = Encoding(schema)
    tables = [read_table(part, schema) for part in (people.train, people.test)]
    train, test = ((encoding.features(t), np.asarray(encoding.target(t))) for t in tables)
    half = len(test[1]) // 2
    return Task(
        train,
        (test[0][:half], test[1][:half]),
        (test[0][half:], test[1][half:]),
        LogisticRegression(max_iter=1000),
        classes=2,
        delta=1e-6,
        seen=lambda rows: rows,
    )


def small_network() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(196, 32), nn.Tanh(), nn.Linear(32, 10))


def mnist_task() -> Task:
    from sklearn.decomposition import PCA

    from learners_tasks import small_digits

    private, (test, truth) = small_digits()
    # What the student sees: directions of the public rows alone.
    directions = PCA(60, random_state=0).fit(test[:-1000])
    return Task(
        private,
        (test[:-1000], truth[:-1000]),
        (test[-1000:], truth[-1000:]),
        NetworkTeachers(small_network, cache_key="196-32-10"),
        classes=10,
        delta=1e-5,
        seen=directions.transform,
    )


TASKS: dict[str, tuple[Callable[[], Task], tuple[int, ...]]] = {
    "adult": (adult_task, ADULT),
    "mnist": (mnist_task, MNIST),
}


def votes_of(task: Task, teachers: int, cap: int) -> tuple[np.ndarray, np.ndarray]:
    """Train all teachers; return their votes on the public rows and on those to score."""
    parts = partition_records(*task.private, teachers=teachers, cap=cap)
    table = teacher_votes(
        parts,
        *task.private,
        np.concatenate([task.public[0], task.scored[0]]),
        teacher=task.teacher,
        classes=task.classes,
        cap=cap,
    )
    return table[: len(task.public[1])], table[len(task.public[1]) :]


def student_score(task: Task, votes: np.ndarray, chosen: Prospect) -> tuple[float, int]:
    """Answer as promised and train a student; return its accuracy and the number of labels."""
    order = np.random.default_rng().permutation(len(votes))
    asked = order[: round(chosen.queries)]
    said = chosen.open().answer_many(votes[asked])
    given = np.array([label is not None for label in said])
    labels = np.array([label for label in said if label is not None], dtype=np.int64)
    student = TableStudent(penalty=0.1)
    rows = task.seen(task.public[0])
    student.fit(rows, asked[: len(said)][given], labels, classes=task.classes)
    right = np.argmax(student.scores(task.seen(task.scored[0])), axis=1) == task.scored[1]
    return round(100 * float(right.mean()), 2), len(labels)


def row(task: Task, teachers: int, runs: int) -> dict[str, Any]:
    start = time.perf_counter()
    public, scored = votes_of(task, teachers, 1)
    shared, _ = votes_of(task, teachers, 2)
    budget = {"epsilon": EPSILON, "delta": task.delta}
    shape = {"classes": task.classes, "teachers": teachers}
    truth = task.public[1]
    ways = {one.name: one for one in compare_aggregators(public, truth=truth, **budget, **shape)}
    # What the shared teachers are asked to reach is what the vote of the disjoint ones reaches.
    floor = 0.98 * float(np.mean(np.argmax(public, axis=1) == truth))
    profile = _read_profile(
        shared,
        queries=None,
        truth=truth,
        predictions=None,
        accuracy=floor,
        relation=StableVotes(**shape, epsilon=1, delta=1e-5).relation,
        **budget,
        **shape,
    )
    # Every record has two teachers, which its loss pays for; 2 cap must not exceed their number.
    ways["SampledVotes"] = SampledVotes.propose(
        replace(profile, common={**profile.common, "cap": 2})
    )
    students = [student_score(task, public, ways["GNMax"]) for _ in range(runs)]
    single = float((scored[np.arange(len(scored)), task.scored[1]] / teachers).mean())
    vote = float((np.argmax(scored, axis=1) == task.scored[1]).mean())
    return {
        "teachers": teachers,
        "single": round(100 * single, 2),
        "vote": round(100 * vote, 2),
        "labels": {name: round(ways[name].labels, 1) for name in WAYS},
        "label_accuracy": {name: round(100 * ways[name].accuracy, 2) for name in WAYS},
        "students": [score for score, _ in students],
        "labels_answered": [count for _, count in students],
        "seconds": round(time.perf_counter() - start, 1),
    }


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The lectures' sentences, as statements about the rows."""
    held = []
    for name, title in TITLES.items():
        rows = found(record, name)
        if not rows:
            continue
        few, many = rows["rows"][0], rows["rows"][-1]
        held += [
            claim(
                f"{title}: one of few teachers is better than one of many",
                few["single"] > many["single"],
            ),
            claim(
                f"{title}: the vote is at least as often right as one teacher, at every number",
                all(one["vote"] >= one["single"] for one in rows["rows"]),
            ),
            claim(
                f"{title}: many teachers answer more labels than few",
                many["labels"]["GNMax"] > few["labels"]["GNMax"],
            ),
        ]
    return held


def recorded(record: dict[str, Any]) -> dict[str, str]:
    """The titles of the parts that were recorded."""
    return {name: title for name, title in TITLES.items() if name in record["parts"]}


def table(record: dict[str, Any]) -> str:
    lines = [
        "| data | teachers | one teacher | their vote | student, mean of "
        f"{RUNS} (worst) | " + " | ".join(f"labels, {title}" for title in WAYS.values()) + " |",
        "|---|" + "---:|" * (4 + len(WAYS)),
    ]
    for name, title in recorded(record).items():
        for one in found(record, name)["rows"]:
            mean = float(np.mean(one["students"]))
            labels = " | ".join(f"{one['labels'][way]:,.0f}" for way in WAYS)
            lines.append(
                f"| {title} | {one['teachers']} | {one['single']:.1f} % | {one['vote']:.1f} % "
                f"| {mean:.1f} % ({min(one['students']):.1f} %) | {labels} |"
            )
    return "\n".join(lines)


def draw(record: dict[str, Any], place: Path) -> None:
    figure = new_figure(10, 6.4)
    panels = figure.subplots(2, len(recorded(record)), squeeze=False)
    for column, (name, title) in enumerate(recorded(record).items()):
        rows = found(record, name)["rows"]
        teachers = [one["teachers"] for one in rows]
        upper, lower = panels[:, column]
        for key, colour, label in (
            ("single", "grey", "one teacher"),
            ("vote", "green", "vote of all, without noise"),
        ):
            upper.plot(
                teachers, [one[key] for one in rows], "-o", ms=4, color=COLOURS[colour], label=label
            )
        upper.plot(
            teachers,
            [float(np.mean(one["students"])) for one in rows],
            "-",
            color=COLOURS["blue"],
            label=f"student at epsilon {EPSILON:g}, GNMax",
        )
        for one in rows:
            spots = [one["teachers"]] * len(one["students"])
            upper.plot(spots, one["students"], ".", ms=4, color=COLOURS["blue"])
        upper.set_title(title, loc="left", fontsize=10)
        upper.set_ylabel("accuracy, %")
        for (way, label), colour in zip(WAYS.items(), ("blue", "vermilion", "orange"), strict=True):
            lower.plot(
                teachers,
                [max(one["labels"][way], 0.5) for one in rows],
                "-o",
                ms=4,
                color=COLOURS[colour],
                label=label,
            )
        lower.set_yscale("log")
        lower.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        lower.set_ylabel(f"labels at epsilon {EPSILON:g} (0 drawn as 0.5)")
        for axes in (upper, lower):
            axes.set_xscale("log")
            axes.set_xticks(teachers, [str(count) for count in teachers])
            axes.minorticks_off()
            axes.set_xlabel("teachers")
            axes.legend(fontsize=8, frameon=False)
            tidy_axes(axes)
    save_figure(figure, place)


def measure(asked: Run) -> dict[str, Any]:
    """The parts that were asked for."""
    parts = {}
    for name, (load, numbers) in TASKS.items():
        if asked.wants(name):
            task = load()
            chosen = numbers[1::2] if asked.quick else numbers
            rows = []
            for teachers in chosen:
                rows.append(row(task, teachers, 1 if asked.quick else RUNS))
                print(name, rows[-1], flush=True)
            parts[name] = {"rows": rows, "delta": task.delta, "public": len(task.public[1])}
    return parts


SUITE = Suite(
    "pate_teachers",
    measure,
    targets,
    parts=tuple(TASKS),
    tables={("docs/pate-results.md", "pate teachers"): table},
    pictures={"pate-teachers.png": draw},
)
