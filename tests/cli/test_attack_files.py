"""Files of ``discreet attack`` are joined by the names of their columns; outputs are marked."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from cli import attacked_models
from cli.conftest import Run
from discreet.attacks import ATTACKS
from oracles.browser import assert_self_contained


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    with threadpool_limits(1):
        yield tmp_path


def save(name: str, columns: dict[str, Any]) -> None:
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    with Path(name).open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([list(columns), *rows])


def people(seed: int, *, order: str = "abcde") -> dict[str, Any]:
    """Records of which ``a`` is 0 or 1, with their columns in this order."""
    records, labels = attacked_models.people(200, seed)
    columns = {name: records[:, "abcde".index(name)] for name in order}
    return {**columns, "label": labels}


MODEL = ("--model", "attacked_models:memorising")
MEMBERSHIP = ("attack", "membership", "--members", "in.csv", "--nonmembers", "out.csv", "--json")


def figures(run: Run, *arguments: str) -> Any:
    done = run(*arguments)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


# --- columns by name --------------------------------------------------------------------


def test_records_are_joined_by_the_names_of_columns(place: Path, run: Run) -> None:
    given = (*MEMBERSHIP, *MODEL, "--public", "more.csv", "--seed", "1")
    for name, seed in (("in.csv", 1), ("out.csv", 2), ("more.csv", 3)):
        save(name, people(seed))
    expected = figures(run, *given)
    assert {one["attack"] for one in expected["results"]} == {"yeom", "quantile regression"}
    save("out.csv", people(2, order="edcba"))
    save("more.csv", {"label": people(3)["label"], **people(3, order="badec")})
    assert figures(run, *given) == expected


def test_the_hidden_attribute_is_the_named_column_of_every_file(place: Path, run: Run) -> None:
    given = (
        *("attack", "attribute", *MODEL, "--members", "in.csv", "--nonmembers", "out.csv"),
        *("--auxiliary", "more.csv", "--attribute", "a", "--seed", "1", "--json"),
    )
    for name, seed in (("in.csv", 1), ("out.csv", 2), ("more.csv", 3)):
        save(name, people(seed))
    expected = figures(run, *given)
    save("more.csv", people(3, order="bacde"))
    assert figures(run, *given) == expected


def test_queries_of_a_property_are_joined_by_name(place: Path, run: Run) -> None:
    given = (
        *("attack", "property", "--records", "in.csv", "--train", "attacked_models:train"),
        *("--has", "a=1", "--shares", "0.2,0.8", "--size", "40", "--shadows", "24"),
        *("--queries", "out.csv", "--seed", "1", "--json"),
    )
    save("in.csv", people(1))
    save("out.csv", people(2))
    expected = figures(run, *given)
    save("out.csv", people(2, order="edcba"))
    assert figures(run, *given) == expected


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_model_that_knows_its_columns_gets_them(place: Path, run: Run) -> None:
    given = (*MEMBERSHIP, "--model", "attacked_models:memorising_frame")
    for order in ("abcde", "ecbda"):
        save("in.csv", people(1, order=order))
        save("out.csv", people(2, order=order))
        found = figures(run, *given)["results"][0]
        assert found["auc"]["value"] > 0.8
    save("in.csv", {"z" if name == "a" else name: cells for name, cells in people(1).items()})
    done = run(*given)
    assert done.exit_code == 2
    assert (
        "--members = in.csv: expected the columns of the model; it lacks a and has" in done.stderr
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("abcd", "--nonmembers = out.csv: expected the columns of in.csv; it lacks e"),
        ("abcdef", "--nonmembers = out.csv: expected the columns of in.csv; it has also f"),
        ("abcdf", "--nonmembers = out.csv: expected the columns of in.csv; it lacks e and has"),
        ("abcdee", "expected a table with one column 'e'; it is there 2 times"),
    ],
)
def test_other_columns_are_refused(place: Path, run: Run, names: str, message: str) -> None:
    save("in.csv", people(1))
    rows = np.random.default_rng(1).normal(size=(5, len(names))).tolist()
    with Path("out.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([[*names, "label"], *([*row, 1] for row in rows)])
    done = run(*MEMBERSHIP, *MODEL)
    assert done.exit_code == 2
    assert message in done.stderr


def test_columns_with_and_without_names_are_not_joined(place: Path, run: Run) -> None:
    save("in.csv", people(1))
    records, labels = attacked_models.people(20, 2)
    np.savez("out.npz", records=records, labels=labels)
    both = ("attack", "membership", *MODEL, "--members")
    one = run(*both, "in.csv", "--nonmembers", "out.npz")
    assert "--nonmembers = out.npz: expected columns as in in.csv, which have the" in one.stderr
    other = run(*both, "out.npz", "--nonmembers", "in.csv")
    assert "--nonmembers = in.csv: expected columns as in out.npz, which have no" in other.stderr


def answers(name: str, sure: float, *, order: tuple[str, ...], labels: list[Any]) -> None:
    columns = {"no": [1 - sure] * len(labels), "yes": [sure] * len(labels)}
    save(name, {**{key: columns[key.split()[-1]] for key in order}, "label": labels})


def test_answers_are_joined_by_the_names_of_classes(place: Path, run: Run) -> None:
    answers("in.csv", 0.9, order=("no", "yes"), labels=["yes"] * 40)
    answers("out.csv", 0.7, order=("no", "yes"), labels=["yes"] * 40)
    expected = figures(run, *MEMBERSHIP)
    assert expected["results"][0]["auc"]["value"] == 1.0
    answers("out.csv", 0.7, order=("probability of yes", "no"), labels=["yes"] * 40)
    assert figures(run, *MEMBERSHIP) == expected


def test_answers_with_classes_by_number_need_one_order(place: Path, run: Run) -> None:
    answers("in.csv", 0.9, order=("no", "yes"), labels=[1] * 40)
    answers("out.csv", 0.7, order=("yes", "no"), labels=[1] * 40)
    done = run(*MEMBERSHIP)
    assert done.exit_code == 2
    expected = "labels that are names of classes: its columns are in another order than in.csv"
    assert f"--nonmembers = out.csv: expected {expected}" in done.stderr
    answers("out.csv", 0.7, order=("no", "yes"), labels=[1] * 40)
    assert figures(run, *MEMBERSHIP)["results"][0]["auc"]["value"] == 1.0


@pytest.mark.parametrize("twice", [("no", "probability of no"), ("1", "1.0")])
def test_a_class_with_two_columns_is_refused(place: Path, run: Run, twice: tuple[str, str]) -> None:
    columns = dict.fromkeys(twice, [0.5] * 9)
    save("in.csv", {**columns, "label": [twice[0]] * 9})
    save("out.csv", {**columns, "label": [twice[0]] * 9})
    done = run(*MEMBERSHIP)
    assert done.exit_code == 2
    assert "--members = in.csv: expected each column once" in done.stderr


def test_labels_in_two_dimensions_are_refused(place: Path, run: Run) -> None:
    records, labels = attacked_models.people(20, 1)
    np.savez("in.npz", records=records, labels=labels)
    np.savez("out.npz", records=records + 1, labels=labels[:, None])
    both = ("attack", "membership", *MODEL, "--members", "in.npz", "--nonmembers", "out.npz")
    done = run(*both)
    assert done.exit_code == 2
    shown = "out.npz with labels of shape (20, 1): expected one label for each record"
    assert f"--nonmembers = {shown}" in done.stderr


def test_ragged_rows_are_refused(place: Path, run: Run) -> None:
    save("in.csv", people(1))
    save("out.csv", people(2))
    with Path("out.csv").open("a", encoding="utf-8") as stream:
        stream.write("1,2,3\n")
    done = run(*MEMBERSHIP, *MODEL)
    assert done.exit_code == 2
    assert "--nonmembers = out.csv: expected rows of 6 cells, as in its heading; 1" in done.stderr


# --- what a model gives -----------------------------------------------------------------


def test_the_output_of_a_module_can_be_stated(place: Path, run: Run) -> None:
    for name, seed in (("in.csv", 1), ("out.csv", 2)):
        save(name, people(seed))
    softmax = (*MEMBERSHIP, "--model", "attacked_models:softmax_module")
    assert "that sum to 1" in run(*softmax).stderr
    logits = figures(run, *MEMBERSHIP, "--model", "attacked_models:logit_module")["results"][0]
    read = figures(run, *softmax, "--model-output", "probabilities")["results"][0]
    assert read["auc"]["value"] == pytest.approx(logits["auc"]["value"], abs=1e-3)
    # Shadow models are read as the model is, and kept apart from those that are not.
    shadowed = (
        *(*softmax, "--train", "attacked_models:train_softmax", "--attack", "lira"),
        *("--shadows", "30", "--seed", "1", "--pool", "pool", "--model-output"),
    )
    assert figures(run, *shadowed, "probabilities")["results"][0]["attack"] == "lira online"
    figures(run, *shadowed, "logits")
    assert len(list(place.glob("pool/**/*.npy"))) == 60
    wrong = run(*softmax, "--model-output", "odds")
    assert "--model-output = odds: expected one of probabilities, logits, labels" in wrong.stderr
    nothing = run(*MEMBERSHIP, "--model-output", "logits")
    assert "--model-output = logits: expected nothing without a model" in nothing.stderr


@pytest.mark.slow
def test_outputs_of_other_attacks_can_be_stated(place: Path, run: Run) -> None:
    for name, seed in (("in.csv", 1), ("out.csv", 2), ("more.csv", 3)):
        save(name, people(seed))
    softmax = ("--model", "attacked_models:softmax_module", "--json")
    stated = ("--model-output", "probabilities")
    hidden = (
        *("attack", "attribute", *softmax, "--members", "in.csv", "--nonmembers", "out.csv"),
        *("--auxiliary", "more.csv", "--attribute", "a", "--seed", "1"),
    )
    assert "that sum to 1" in run(*hidden).stderr
    assert figures(run, *hidden, *stated)["attribute"] == "a"
    climbed = ("attack", "inversion", *softmax, "--shape", "5", "--steps", "3", "--seed", "1")
    assert len(figures(run, *climbed, *stated)["confidences"]) == attacked_models.CLASSES
    told = (
        *("attack", "property", "--records", "in.csv", "--train", "attacked_models:train_softmax"),
        *("--has", "a=1", "--shares", "0.2,0.8", "--size", "40", "--shadows", "24", "--json"),
        *("--access", "outputs", "--access", "sorted", "--seed", "1"),
    )
    assert "that sum to 1" in run(*told).stderr
    assert len(figures(run, *told, *stated)["results"]) == 2


# --- marks ------------------------------------------------------------------------------


def test_attribute_and_inversion_are_marked_internal(place: Path, run: Run) -> None:
    for name, seed in (("in.csv", 1), ("out.csv", 2), ("more.csv", 3)):
        save(name, people(seed))
    hidden = (
        *("attack", "attribute", *MODEL, "--members", "in.csv", "--nonmembers", "out.csv"),
        *("--auxiliary", "more.csv", "--attribute", "a", "--seed", "1"),
    )
    climbed = (
        *("attack", "inversion", "--model", "attacked_models:linear", "--shape", "16"),
        *("--steps", "3", "--restarts", "1", "--seed", "1"),
    )
    nobody = ("attack", "made-up-tables", "--out", "tables", "--population", "100", "--json")
    assert figures(run, *nobody)["internal"] is False
    for arguments in (hidden, climbed):
        assert figures(run, *arguments, "--json")["internal"] is True
        shown = run(*arguments, "--output", "page.html").stdout
        assert "INTERNAL, unsafe to publish" in shown
        assert "--public" not in shown
        assert "written: page.html (INTERNAL)" in shown


def test_names_that_float_would_read_alike_are_different_columns(place: Path, run: Run) -> None:
    names = dict(zip("abcde", ("1_11", "11_1", "1e2", "100", "e"), strict=True))

    def renamed(columns: dict[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): column for name, column in columns.items()}

    save("in.csv", renamed(people(1)))
    save("out.csv", renamed(people(2)))
    expected = figures(run, *MEMBERSHIP, *MODEL)
    save("out.csv", renamed(people(2, order="edcba")))
    assert figures(run, *MEMBERSHIP, *MODEL) == expected


# --- any attack of the registry, by its name -----------------------------------------------------


OWN_ATTACK = """
from dataclasses import dataclass
from discreet.attacks import Finding, Result, attack

@dataclass(frozen=True)
class Repeated(Result):
    rows: int
    twice: int
    note: str = "<b>&"

    @property
    def finding(self):
        return Finding.of_count("repeated_answers", "answers given twice", self.twice, self.rows)

@attack(family="reconstruction", access="answers")
def repeated_answers(answers, *, least=2):
    "Count the answers that were given more than once."
    listed = list(answers)
    return Repeated(len(listed), sum(listed.count(one) >= least for one in listed))
"""


def test_an_attack_from_a_file_of_ones_own_gets_a_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_registry_attack.py").write_text(OWN_ATTACK, encoding="utf-8")
    Path("answers.csv").write_text("3\n4\n3\n5\n", encoding="utf-8")
    words = ["attack", "run", "repeated_answers", "--module", "own_registry_attack"]
    words += ["--input", "answers=answers.csv"]
    try:
        done = run(*words, "--set", "least=2", "--output", "page.html", "--json")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["finding"]["value"] == 0.5
        page = Path("page.html").read_text(encoding="utf-8")
        assert "answers given twice" in page
        assert "counted: no chance is part of it" in page
        assert "INTERNAL" in page
        assert "&lt;b&gt;&amp;" in page
        assert_self_contained(page)
        known = json.loads(run("attack", "list", "--json").stdout)["attacks"]
        assert "repeated_answers" in {one["name"] for one in known}
        wrong = (("answers=nowhere.csv", 4), ("answers", 2), ("target=x", 2), ("x=1", 2))
        for text, code in wrong:
            assert run(*words[:-1], text, "--output", "other.html").exit_code == code, text
        assert run(*words, "--set", "most=2").exit_code == 2
        assert run(*words[:-2]).exit_code == 2
        assert not Path("other.html").exists()
    finally:
        ATTACKS.pop("repeated_answers", None)
    assert run("attack", "run", "repeated_answers").exit_code == 2
