"""docs/lectures.md and the 240 statements of docs/coverage.md are true; slips without a home."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from discreet.privacy import Gaussian, PureDP
from discreet.privacy.theorems import hockey_stick

ROOT = Path(__file__).resolve().parents[1]
COVERAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
LECTURES = (ROOT / "docs" / "lectures.md").read_text(encoding="utf-8")
STATES = ("built", "half", "not built yet", "out")
NUMBERS = [f"{part}{n}" for part, last in zip("ABCD", (66, 28, 75, 71), strict=True)
           for n in range(1, last + 1)]  # fmt: skip


def rows_of(text: str, pattern: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if re.match(pattern, line)]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]


STATEMENTS = rows_of(COVERAGE, r"\| [A-D]\d+ \|")
TOPICS = rows_of(COVERAGE, r"\| S\d+a? \|")


def statement_faults(row: list[str], root: Path) -> list[str]:
    """What is wrong with one row: (number, statement, S, state, where or why)."""
    if len(row) != 5:
        return [f"{len(row)} cells instead of 5"]
    number, words, _, state, where = row
    paths = re.findall(r"`([^`]+)`", where)
    faults = [f"{number}: {path} does not exist" for path in paths if not (root / path).is_file()]
    if not words:
        faults.append(f"{number}: no statement")
    if state not in STATES:
        faults.append(f"{number}: {state!r} is no state")
    if state == "built" and not any(path.startswith("tests/") for path in paths):
        faults.append(f"{number}: built, and no test")
    if state == "half" and not paths:
        faults.append(f"{number}: half, and no place")
    if state != "built" and not re.match(r"[^`]{12}", where):
        faults.append(f"{number}: {state}, and no reason")
    return faults


def topic_state(topic: str, statements: list[list[str]]) -> str:
    """What the state of a topic must be: whole if nothing about it is open."""
    open_ones = [
        row[0]
        for row in statements
        if topic in re.split(r"[, ]+", row[2]) and row[3] in ("half", "not built yet")
    ]
    return "open: " + ", ".join(open_ones) if open_ones else "whole"


def test_the_page_holds_exactly_the_240_statements() -> None:
    assert [row[0] for row in STATEMENTS] == NUMBERS
    assert len(NUMBERS) == 240
    counts = {state: sum(row[3] == state for row in STATEMENTS) for state in STATES}
    said = re.search(
        r"(\d+) are built, (\d+) is half built, (\d+) are not built yet and (\d+) are", COVERAGE
    )
    assert said is not None
    assert [int(one) for one in said.groups()] == list(counts.values())


def test_every_statement_has_its_place_or_its_reason() -> None:
    assert [fault for row in STATEMENTS for fault in statement_faults(row, ROOT)] == []
    named = {one for row in STATEMENTS for one in re.split(r"[, ]+", row[2]) if one != "-"}
    ranges = {one for one in named if re.fullmatch(r"S\d+-S\d+", one)}
    assert named - ranges <= {row[0] for row in TOPICS}


def test_no_topic_is_whole_while_a_statement_is_open() -> None:
    for number, _, state, lives_in, _ in TOPICS:
        expected = topic_state(number, STATEMENTS) if lives_in else "not built yet"
        assert state == expected, number


def test_planted_faults_are_seen() -> None:
    good = ["A1", "words", "S1", "built", "`tests/test_lectures_page.py`"]
    assert statement_faults(good, ROOT) == []
    for at, cell, fault in (
        (4, "`tests/nowhere.py`", "does not exist"),
        (4, "`docs/coverage.md`", "no test"),
        (3, "whole", "no state"),
        (3, "out", "no reason"),
        (1, "", "no statement"),
    ):
        wrong = [*good[:at], cell, *good[at + 1 :]]
        assert any(fault in one for one in statement_faults(wrong, ROOT)), cell
    assert topic_state("S1", [["A1", "words", "S1, S2", "half", "why"]]) == "open: A1"
    assert topic_state("S1", [["A1", "words", "S12", "half", "why"]]) == "whole"


def test_every_test_that_the_lectures_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", LECTURES)
    assert len(named) > 30
    for path, test in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or re.search(rf"^def {test}\(", text, re.MULTILINE), (path, test)
    for lecture in ("000", "001", "003", "004"):
        assert f"## Lecture {lecture}:" in LECTURES


# --- slips that are shown here ------------------------------------------------------------


def clip(gradient: np.ndarray, norm: float) -> np.ndarray:
    return gradient / max(1.0, float(np.linalg.norm(gradient)) / norm)


def test_clipping_a_batch_does_not_bound_one_record() -> None:
    """Lecture 000, S21: one record turns a clipped batch around, however many others there are."""
    for others in (1, 10, 1000):
        batch = np.full((others, 1), 1e-3)
        for one in (-50.0, 50.0):
            clipped = [clip(np.vstack([batch, [[new]]]).sum(axis=0), 1.0) for new in (one, -one)]
            assert abs(float(clipped[0][0] - clipped[1][0])) == pytest.approx(2.0)
    # Of a *mean* of m clipped examples a record moves 2 C / m; of the clipped mean it moves 2 C.
    each = [
        np.mean([clip(row, 1.0) for row in np.vstack([np.full((9, 1), 1e-3), [[new]]])])
        for new in (50.0, -50.0)
    ]
    assert abs(each[0] - each[1]) == pytest.approx(2.0 / 10)


def test_the_printed_clipping_is_not_clipping() -> None:
    """Lecture 000, S21: min{C, g / norm(g)} stretches short gradients and forgets C."""
    for size, norm in ((0.01, 1.0), (3.0, 5.0)):
        gradient = np.array([size, 0.0])
        printed = np.minimum(norm, gradient / np.linalg.norm(gradient))
        assert clip(gradient, norm).tolist() == gradient.tolist()
        assert float(np.linalg.norm(printed)) == 1.0 != size


def test_sampling_is_unbiased_and_adds_variance() -> None:
    """Lecture 000, S22: all samples of four gradients, each weighed by its probability."""
    gradients, n = np.array([3.0, -1.0, 0.5, 2.0]), 4
    for rate in (0.25, 0.5, 1.0):
        chosen = np.array(list(product((0, 1), repeat=n)))
        chance = np.prod(np.where(chosen, rate, 1 - rate), axis=1)
        estimate = chosen @ gradients / (rate * n)
        mean = float(chance @ estimate)
        assert mean == pytest.approx(gradients.mean())
        variance = float(chance @ (estimate - mean) ** 2)
        assert variance == pytest.approx((1 - rate) / rate * (gradients**2).sum() / n**2)


def test_the_root_of_k_needs_a_delta() -> None:
    """Lecture 000, S5, S23: k answers of eps each."""
    each, k = 0.1, 400
    answers = k * PureDP(each)
    assert answers.epsilon(delta=0) >= k * each
    with_delta = answers.epsilon(delta=1e-6, accountant="advanced")
    assert with_delta < 0.5 * k * each
    assert with_delta == pytest.approx(
        math.sqrt(2 * k * math.log(1e6)) * each + k * each * math.expm1(each), rel=0.35
    )


def test_renyi_accounting_gains_without_sampling() -> None:
    """Lecture 003, S8, S34: the gain is not that of sampling."""
    run = 100 * Gaussian(noise_multiplier=20.0)
    read = {name: run.epsilon(delta=1e-5, accountant=name) for name in ("naive", "advanced", "rdp")}
    assert read["rdp"] < 0.5 * read["advanced"] < 0.5 * read["naive"]


def test_publishing_a_random_record_costs_one_over_n() -> None:
    """Lecture 003, S1: (0, 1/N)-DP under replace, for all data sets of three records."""
    records, values = 3, (0, 1, 2)

    def law(rows: tuple[int, ...]) -> list[float]:
        return [rows.count(value) / records for value in values]

    worst = {0.0: 0.0, 5.0: 0.0}
    for rows in product(values, repeat=records):
        for new in values:
            other = (new, *rows[1:])
            for epsilon in worst:
                found = hockey_stick(law(rows), law(other), epsilon=epsilon)
                worst[epsilon] = max(worst[epsilon], found)
    # No epsilon makes it smaller: a record that comes out is not denied by the neighbour.
    assert worst[0.0] == pytest.approx(1 / records)
    assert worst[5.0] == pytest.approx(1 / records)
    assert worst[0.0] > 1 / (records + 1) + 0.01
