"""``discreet attack``: from files to figures, pages and refusals."""

import csv
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from cli import attacked_models
from cli.conftest import Run

SCHEMA = """
target = "outcome"
expected_rows = 400

[columns.age]
type = "integer"
bounds = [0, 100]

[columns.ward]
type = "categorical"
categories = ["north", "south"]

[columns.outcome]
type = "categorical"
categories = ["well", "ill"]
other = "well"
"""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    return tmp_path


def save(name: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    records, labels = attacked_models.people(count, seed)
    np.savez(name, records=records, labels=labels)
    return records, labels


def save_table(name: str, heading: list[str], rows: list[list[Any]]) -> None:
    with Path(name).open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([heading, *rows])


@pytest.fixture
def files(place: Path) -> Path:
    save("in.npz", 200, 1)
    save("out.npz", 200, 2)
    save("more.npz", 200, 3)
    return place


# --- membership -------------------------------------------------------------------------


def answers(name: str, probabilities: np.ndarray, labels: list[Any]) -> None:
    rows = [[*p, label] for p, label in zip(probabilities.tolist(), labels, strict=True)]
    save_table(name, ["probability of a", "b", "label"], rows)


def test_answers_of_a_model_are_enough(place: Path, run: Run) -> None:
    sure, unsure = np.tile([0.9, 0.1], (40, 1)), np.tile([0.6, 0.4], (50, 1))
    answers("seen.csv", sure, ["a"] * 40)
    answers("unseen.csv", unsure, [0] * 50)
    arguments = ("attack", "membership", "--members", "seen.csv", "--nonmembers", "unseen.csv")
    done = run(*arguments, "--json")
    found = json.loads(done.stdout)
    assert found["exposes_records"] is False
    [only] = found["results"]
    assert only["attack"] == "yeom"
    assert (only["members"], only["nonmembers"], only["auc"]["value"]) == (40, 50, 1.0)
    assert only["most_exposed"] == []
    shown = run(*arguments, "--output", "page.html").stdout
    assert "AUC" in shown
    assert "cannot support so small a rate" in shown
    # Success on real members is internal, although no record is listed.
    assert found["internal"] is True
    assert only["decisions"]["threshold_saw_evaluated"] is True
    assert "threshold by the average loss of the evaluated members" in shown
    assert "INTERNAL, unsafe to publish" in shown
    assert "written: page.html (INTERNAL)" in shown
    assert "<strong>INTERNAL</strong>" in (place / "page.html").read_text(encoding="utf-8")
    declared = (*arguments, "--public-members")
    assert json.loads(run(*declared, "--json").stdout)["internal"] is False
    assert "INTERNAL" not in run(*declared, "--output", "page.html").stdout
    assert "<strong>PUBLIC</strong>" in (place / "page.html").read_text(encoding="utf-8")
    assert json.loads(run(*declared, "--exposed", "1", "--json").stdout)["internal"] is True


def test_equal_answers_are_not_taken_for_equal_records(place: Path, run: Run) -> None:
    """A tree says the same of many records: those of the public file are others."""
    sure, unsure = np.tile([0.9, 0.1], (40, 1)), np.tile([0.6, 0.4], (50, 1))
    answers("seen.csv", sure, ["a"] * 40)
    answers("unseen.csv", unsure, ["a"] * 50)
    files = ("--members", "seen.csv", "--nonmembers", "unseen.csv", "--public", "unseen.csv")
    done = run("attack", "membership", *files, "--json")
    assert done.exit_code == 0
    [only] = json.loads(done.stdout)["results"]
    assert (only["members"], only["nonmembers"], only["auc"]["value"]) == (40, 50, 1.0)


def test_columns_that_are_named_by_numbers(place: Path, run: Run) -> None:
    for name, p in (("seen.csv", 0.9), ("unseen.csv", 0.6)):
        save_table(name, ["1", "2", "label"], [[p, 1 - p, 1], [1 - p, p, 2]] * 20)
    save_table("odd.csv", ["1", "2", "label"], [[0.9, 0.1, 1], [0.9, 0.1, 0]])
    save_table("float.csv", ["1.0", "2.0", "label"], [[0.9, 0.1, 1], [0.1, 0.9, 2]])
    both = ("attack", "membership", "--nonmembers", "unseen.csv", "--json", "--members")
    assert json.loads(run(*both, "seen.csv").stdout)["results"][0]["auc"]["value"] == 1.0
    assert json.loads(run(*both, "float.csv").stdout)["results"][0]["auc"]["value"] == 1.0
    # 0 would be the first column, if 1 were not.
    done = run(*both, "odd.csv")
    assert done.exit_code == 2
    assert "'0' does not" in done.stderr


def test_classes_that_are_named_by_numbers(place: Path, run: Run) -> None:
    """Labels of a CSV are numbers; the classes of the model are the texts "1", "2" and "3"."""
    for name, seed in (("in.csv", 1), ("out.csv", 2)):
        x, y = attacked_models.people(200, seed)
        rows = [[*row, int(label) + 1] for row, label in zip(x.tolist(), y, strict=True)]
        save_table(name, [*"abcde", "label"], rows)
    found = {}
    for model in ("memorising_texts", "memorising_signs"):
        done = run(
            *("attack", "membership", "--members", "in.csv", "--nonmembers", "out.csv"),
            *("--model", f"attacked_models:{model}", "--json"),
        )
        found[model] = done
    [only] = json.loads(found["memorising_texts"].stdout)["results"]
    assert only["auc"]["value"] > 0.8
    assert found["memorising_signs"].exit_code == 2
    assert "one of the model's classes, (-1, 0, 1)" in found["memorising_signs"].stderr


@pytest.mark.slow
def test_a_memorising_model_with_shadow_models(files: Path, run: Run) -> None:
    arguments = (
        *("attack", "membership", "--model", "attacked_models:memorising"),
        *("--members", "in.npz", "--nonmembers", "out.npz", "--public", "more.npz"),
        *("--train", "attacked_models:train", "--shadows", "40", "--pool", "pool"),
        *("--attack", "yeom", "--attack", "lira", "--attack", "rmia", "--seed", "1"),
    )
    found = json.loads(run(*arguments, "--json").stdout)
    scores = {result["attack"]: result["auc"]["value"] for result in found["results"]}
    assert set(scores) == {"yeom", "lira online", "rmia offline"}
    assert min(scores.values()) > 0.8
    kept = len(list((files / "pool").rglob("*.np*")))
    assert kept >= 40
    # Shadow models come from the pool the second time; the page names records and says so.
    done = run(*arguments, "--exposed", "3", "--output", "page.html")
    assert "INTERNAL, unsafe to publish" in done.stdout
    assert "written: page.html (INTERNAL)" in done.stdout
    assert "INTERNAL: unsafe to publish" in (files / "page.html").read_text(encoding="utf-8")
    assert len(list((files / "pool").rglob("*.np*"))) == kept


def test_a_model_of_labels_is_attacked_by_labels(files: Path, run: Run) -> None:
    arguments = (
        *("attack", "membership", "--model", "attacked_models:labels_only", "--seed", "1"),
        *("--members", "in.npz", "--nonmembers", "out.npz", "--json"),
    )
    [only] = json.loads(run(*arguments).stdout)["results"]
    assert only["attack"].startswith("label")
    assert only["auc"]["value"] > 0.7
    done = run(*arguments, "--attack", "yeom")
    assert done.exit_code == 2
    assert "--attack = yeom: expected label-only" in done.stderr
    # Records in both files are treated as asked.
    with np.load("in.npz") as inside, np.load("out.npz") as outside:
        both = {
            name: np.concatenate([outside[name], inside[name][:5]])
            for name in ("records", "labels")
        }
    np.savez("out.npz", **both)
    assert "5 non-members that are equal to a member" in run(*arguments).stderr
    [dropped] = json.loads(run(*arguments, "--overlap", "drop").stdout)["results"]
    assert (dropped["members"], dropped["nonmembers"]) == (200, 200)


@pytest.fixture
def trained(place: Path, run: Run) -> Path:
    rng = np.random.default_rng(0)
    for name, count in (("in.csv", 300), ("out.csv", 120), ("more.csv", 120)):
        rows = [
            [int(age), ward, "ill" if age + 20 * (ward == "south") > 60 else "well"]
            for age, ward in zip(
                rng.integers(0, 101, count), rng.choice(["north", "south"], count), strict=True
            )
        ]
        save_table(name, ["age", "ward", "outcome"], rows)
    Path("schema.toml").write_text(SCHEMA, encoding="utf-8")
    arguments = ("in.csv", "--schema", "schema.toml", "--epsilon", "1", "--out", "model")
    done = run("train", *arguments, "--learner", "naive-bayes")
    assert done.exit_code == 0, done.stderr
    return place


def test_a_trained_directory_is_held_to_its_certificate(trained: Path, run: Run) -> None:
    done = run(
        *("attack", "membership", "--model", "model", "--members", "in.csv"),
        *("--nonmembers", "out.csv", "--overlap", "allow", "--output", "page.html"),
        *("--attack", "yeom", "--attack", "lira", "--shadows", "30", "--seed", "3"),
    )
    assert done.exit_code == 0, done.stderr
    text = (trained / "page.html").read_text(encoding="utf-8")
    assert "allowed at most" in text
    assert "At no threshold does a measured curve lie outside of what the certificate" in text
    assert "naive-bayes" in text


def test_an_attribute_of_a_trained_directory(trained: Path, run: Run) -> None:
    done = run(
        *("attack", "attribute", "--model", "model", "--members", "in.csv", "--nonmembers"),
        *("out.csv", "--auxiliary", "more.csv", "--attribute", "ward", "--allow-duplicates"),
        *("--json", "--output", "page.html", "--seed", "1"),
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["attribute"] == "ward"
    assert found["values"][:2] == ["north", "south"]
    assert found["leaks"] is False
    assert "Attribute inference" in (trained / "page.html").read_text(encoding="utf-8")


def test_an_attribute_of_an_imported_model(files: Path, run: Run) -> None:
    done = run(
        *("attack", "attribute", "--model", "attacked_models:memorising", "--members"),
        *("in.npz", "--nonmembers", "out.npz", "--auxiliary", "more.npz", "--attribute", "0"),
        *("--seed", "1"),
    )
    assert done.exit_code == 0, done.stderr
    assert "members:" in done.stdout


def test_a_property_that_models_tell(files: Path, run: Run) -> None:
    done = run(
        *("attack", "property", "--records", "in.npz", "--train", "attacked_models:tell_share"),
        *("--has", "0=1", "--shares", "0.2,0.6", "--size", "50", "--shadows", "40"),
        *("--seed", "1", "--json", "--output", "page.html"),
    )
    assert done.exit_code == 0, done.stderr
    [only] = json.loads(done.stdout)["results"]
    assert only["accuracy"]["share"] == 1.0
    assert only["leaks"] is True
    assert json.loads(done.stdout)["internal"] is True
    page = (files / "page.html").read_text(encoding="utf-8")
    assert "Property inference" in page
    assert "<strong>INTERNAL</strong>" in page


def test_inversion_with_a_judge(place: Path, run: Run) -> None:
    weights = np.linspace(-2, 1, 32).reshape(2, 16)
    records = np.random.default_rng(1).random((200, 1, 4, 4))
    # Around their mean, or one class would have nearly all records.
    labels = ((records.reshape(200, -1) - 0.5) @ weights.T).argmax(axis=1)
    np.savez("real.npz", records=records, labels=labels)
    arguments = (
        *("attack", "inversion", "--model", "attacked_models:linear", "--shape", "1x4x4"),
        *("--steps", "40", "--restarts", "1", "--seed", "1"),
    )
    refused = run(*arguments)
    # Twelve frequencies do not fit into four pixels.
    assert refused.exit_code == 2
    assert "--frequencies = 12: expected" in refused.stderr
    arguments = (*arguments, "--frequencies", "4")
    done = run(*arguments, "--save", "kept.npz", "-o", "page.html")
    assert done.exit_code == 0, done.stderr
    assert "give --judge" in done.stdout
    assert "written: page.html (INTERNAL)" in done.stdout
    with np.load("kept.npz", allow_pickle=False) as kept:
        assert kept["images"].shape == (2, 1, 4, 4)
    known = ("--judge", "attacked_models:judge", "--photographs", "real.npz")
    found = json.loads(run(*arguments, *known, "--json").stdout)
    assert found["recognition"]["rate"]["trials"] == 2
    assert found["recognition"]["photographs"]["share"] == 1.0
    alone = run(*arguments, *known[:2])
    assert "--photographs = none" in alone.stderr


# --- anonymity --------------------------------------------------------------------------


@pytest.mark.slow
def test_made_up_tables_anonymity_and_linkage(place: Path, run: Run) -> None:
    done = run("attack", "made-up-tables", "--out", "t", "--population", "3000", "--seed", "1")
    assert "nobody in them exists" in done.stdout
    quasi = ("--quasi", "zip", "--quasi", "birth", "--quasi", "sex")
    arguments = ("attack", "anonymity", "t/released.csv", *quasi, "--sensitive", "diagnosis")
    found = json.loads(run(*arguments, "--generalise", "birth:year", "--json").stdout)
    assert found["profile"]["rows"] == 300
    assert found["internal"] is True
    declared = run(*arguments, "--public-records", "--output", "a.html")
    assert "INTERNAL" not in declared.stdout
    assert "<strong>PUBLIC</strong>" in (place / "a.html").read_text(encoding="utf-8")
    assert "INTERNAL" in run(*arguments).stdout
    assert "most_exposed_rows" not in found
    assert found["steps"][0]["unique_rows"] < found["profile"]["unique_rows"]
    listed = json.loads(run(*arguments, "--exposed", "4", "--json").stdout)
    assert listed["exposes_records"] is True
    assert len(listed["most_exposed_rows"]) == 4
    done = run(*arguments, "--k", "7", "--exposed", "1", "--output", "a.html")
    assert "< 7" in done.stdout
    assert "INTERNAL" in done.stdout
    link = ("attack", "linkage", "t/released.csv", "t/register.csv")
    keys = ("--on", "zip", "--on", "birth=birth", "--on", "sex", "--tolerance", "birth=1")
    found = json.loads(run(*link, *keys, "--truth", "person", "--json").stdout)
    assert found["truth"]["reidentified"]["share"] > 0.3
    assert "matches" not in found
    assert found["internal"] is True
    assert "INTERNAL" not in run(*link, *keys, "--public-records").stdout
    done = run(*link, *keys, "--output", "l.html", "--exposed", "2")
    assert "is not known" in done.stdout
    assert (place / "l.html").is_file()
    again = run("attack", "made-up-tables", "--out", "t")
    assert again.exit_code == 4


# --- refusals ---------------------------------------------------------------------------

BASE = ("attack", "membership", "--members", "in.npz", "--nonmembers", "out.npz")
MODEL = ("--model", "attacked_models:memorising")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*BASE, *MODEL, "--output", "page.png"), "--output = page.png: expected a file name"),
        ((*BASE, *MODEL, "--output", "no/page.html"), "--output = no/page.html: expected a file"),
        ((*BASE, "--model", "nowhere"), "--model = nowhere: expected a directory"),
        ((*BASE, "--model", "no_module:x"), "--model = no_module:x: expected a name that can"),
        ((*BASE, "--model", "attacked_models:nobody"), "--model = attacked_models:nobody"),
        ((*BASE, "--model", "attacked_models:NUMBER"), "--model = attacked_models:NUMBER"),
        ((*BASE, *MODEL, "--attack", "magic"), "--attack = magic: expected one of"),
        ((*BASE, *MODEL, "--attack", "lira"), "--train = none: expected module:function"),
        ((*BASE, *MODEL, "--attack", "quantile"), "--public = none: expected a file"),
        ((*BASE, "--attack", "label-only"), "--model = none: expected a model"),
        ((*BASE, "--train", "attacked_models:train"), "nothing without --model: shadow models"),
        (
            (*BASE, "--train", "attacked_models:train", "--attack", "yeom"),
            "nothing without --model: shadow models",
        ),
        ((*BASE, *MODEL, "--confidence", "2"), "--confidence = 2"),
        ((*BASE, *MODEL, "--train", "attacked_models:NUMBER"), "--train = attacked_models:NUMBER"),
        (BASE, "--members = in.npz: expected an NPZ file with the arrays probabilities"),
        ((*BASE[:3], "gone.npz", *BASE[4:], *MODEL), "--members = gone.npz"),
        ((*BASE[:5], "in.npz", *MODEL), "non-members that are equal to a member"),
        ((*BASE[:3], "t.csv", *BASE[4:], *MODEL), "--label = label: expected a column of t.csv"),
        ((*BASE[:3], "u.csv", *BASE[4:], *MODEL), "numbers in every cell of the column 'x'"),
        ((*BASE[:3], "evil.npz", *BASE[4:], *MODEL), "without pickled objects"),
        (
            ("attack", "anonymity", "t.csv", "--quasi", "zap"),
            "expected a table with one column 'zap'",
        ),
        (("attack", "anonymity", "t.csv", "--quasi", "x", "--quasi", "x"), "--quasi"),
        (("attack", "linkage", "t.csv", "t.csv", "--on", "x", "--tolerance", "x"), "--tolerance"),
        (("attack", "linkage", "t.csv", "t.csv", "--on", "=x"), "--on"),
        (("attack", "linkage", "t.csv", "t.csv", "--on", "x", "--on", "x"), "--on"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    files: Path, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    save_table("t.csv", ["x", "y"], [[1, 2]])
    save_table("u.csv", ["x", "label"], [["word", 1]])
    np.savez("evil.npz", records=np.array([Planted()], dtype=object), labels=np.array([1]))
    before = sorted(path.name for path in files.iterdir())
    done = run(*arguments)
    assert done.exit_code == (4 if {"no/page.html", "gone.npz", "nowhere"} & set(arguments) else 2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in files.iterdir()) == before
    assert not Planted.woken


class Planted:
    """An object that would leave a trace if anybody unpickled it."""

    woken = False

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _wake, ()


def _wake() -> Planted:
    Planted.woken = True
    return Planted()


def test_the_planted_object_would_be_noticed() -> None:
    assert isinstance(pickle.loads(pickle.dumps(Planted())), Planted)
    assert Planted.woken
    Planted.woken = False


@pytest.mark.parametrize(
    "name",
    [
        "membership",
        "attribute",
        "property",
        "inversion",
        "anonymity",
        "linkage",
        "made-up-tables",
    ],
)
def test_help_has_examples(run: Run, name: str) -> None:
    done = run("attack", name, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.stdout
    assert f"discreet attack {name}" in done.stdout
    assert "--json" in done.stdout


def test_few_shadow_models_serve_rmia_and_too_few_are_refused_before_training(
    files: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    inner = attacked_models.train

    def counting(records: np.ndarray, labels: np.ndarray, seed: int) -> object:
        trained.append(seed)
        return inner(records, labels, seed)

    monkeypatch.setattr(attacked_models, "train", counting)
    monkeypatch.setitem(sys.modules, "attacked_models", attacked_models)
    train = ("--train", "attacked_models:train", "--seed", "1")
    refused = run(*BASE, *MODEL, *train, "--shadows", "2", "--attack", "lira")
    assert refused.exit_code == 2
    assert "--shadows = 2 models, of which a record has only 1" in refused.stderr
    assert trained == [0]  # the target alone
    attacks = ("--attack", "yeom", "--attack", "rmia", "--json")
    for models in ("2", "4", "8"):
        done = run(*BASE, *MODEL, *train, "--shadows", models, *attacks)
        assert done.exit_code == 0, done.stderr
        results = json.loads(done.stdout)["results"]
        marked = [one["attack"] for one in results if "strongest_on" in one["metadata"]]
        assert len(marked) == 1
