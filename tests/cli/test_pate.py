"""``discreet pate``: from two files to a certified student, and to predictions by it (S23)."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.certificate import Certificate
from discreet.errors import SchemaError
from discreet.learn import load_model
from discreet.ledger import Ledger

SCHEMA = """
target = "outcome"
expected_rows = 1000

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
PERSONS = SCHEMA.replace(
    "[columns.age]", '[unit]\nperson = "who"\nrows_per_person = 3\n\n[columns.age]', 1
)
COMMAND = (
    "pate patients.csv public.csv --schema schema.toml --epsilon 2 --teachers 40 "
    "--teacher naive-bayes --queries 30 --insecure-seed 1"
)


def write_rows(name: str, count: int, seed: int, *, heading: str) -> None:
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 101, count)
    ward = rng.choice(["north", "south"], count)
    ill = np.where(age + 20 * (ward == "south") > 60, "ill", "well")
    columns: dict[str, Any] = {
        "age": age,
        "ward": ward,
        "outcome": ill,
        "who": [f"p{place // 2}" for place in range(count)],
    }
    names = heading.split(",")
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*(columns[each] for each in names), strict=True))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text(SCHEMA, encoding="utf-8")
    Path("persons.toml").write_text(PERSONS, encoding="utf-8")
    write_rows("patients.csv", 1000, 1, heading="age,ward,outcome,who")
    write_rows("public.csv", 120, 2, heading="age,ward")
    return tmp_path


@pytest.fixture
def cli(run):
    """Run a command that must end with ``code``; return what it printed."""

    def invoke(*arguments: str, code: int = 0) -> str:
        done = run(*arguments)
        assert done.exit_code == code, done.stderr
        return str(done.stderr if code else done.stdout)

    return invoke


@pytest.mark.slow
def test_a_student_its_certificate_and_its_predictions(place, cli):
    output = cli(*COMMAND.split(), "--out", "student")
    assert "40 teachers" in output
    assert "INSECURE" in output
    names = {path.name for path in Path("student").iterdir()}
    assert names == {
        "certificate.json",
        "flow.png",
        "model.json",
        "model.npz",
        "schema.toml",
        "summary.txt",
    }
    text = Path("student/certificate.json").read_text(encoding="utf-8")
    paper = Certificate.from_json(json.loads(text))
    assert paper.epsilon <= 2.0
    assert paper.delta == 1e-5
    assert paper.plan["unit"] == "row"
    write_rows("fresh.csv", 300, 3, heading="age,ward,outcome")
    cli("predict", "student", "fresh.csv", "--output", "said.csv")
    with (
        Path("said.csv").open(encoding="utf-8") as said,
        Path("fresh.csv").open(encoding="utf-8") as truth,
    ):
        pairs = list(zip(csv.DictReader(said), csv.DictReader(truth), strict=True))
    assert sum(a["outcome"] == b["outcome"] for a, b in pairs) > 240


def test_persons_a_ledger_and_json(place, cli):
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon=2.5, delta=1e-4, unit="patient")
    command = [*COMMAND.replace("schema.toml", "persons.toml").split(), "--json"]
    charged = ["--ledger", "study.ledger", "--dataset", "patients"]
    answer = json.loads(cli(*command, "--out", "student", *charged))
    assert answer["unit"] == "person"
    assert answer["charged"] is True
    assert answer["epsilon"] <= 2.0
    cli("certificate", "verify", "student/certificate.json", "--ledger", "study.ledger")
    cli("certify", "student", "--ledger", "study.ledger")
    public = "student-certificate/public/certificate.json"
    cli("certificate", "verify", public, "--ledger", "study.ledger")
    message = cli(*command, "--out", "again", *charged, code=3)
    assert "budget" in message
    assert not Path("again").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("--epsilon 0", "--epsilon = 0"),
        ("--teachers 1", "--teachers = 1"),
        ("--teacher oracle", "--teacher = oracle"),
        ("--method magic", "--method = magic"),
        ("--agreement 1", "--agreement = 1"),
        ("--queries 0", "--queries = 0"),
        ("--target age", "--target = age"),
        ("--target nobody", "--target = nobody"),
        ("--dataset x", "--dataset = x"),
        ("--relation sideways", "--relation = sideways"),
        ("--schema persons.toml --relation replace", "--relation = replace"),
    ],
)
def test_what_cannot_be_accepted_is_one_line_and_nothing_is_written(place, cli, changes, message):
    output = cli(*COMMAND.split(), "--out", "student", *changes.split(), code=2)
    assert message in output
    assert not Path("student").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("--cache no/such/place", "--cache = no/such/place"),
        ("--cache patients.csv", "--cache = patients.csv"),
        ("--cache damaged", "partition.key"),
    ],
)
def test_a_bad_cache_is_told_before_the_ledger_is_charged(place, cli, changes, message):
    Path("damaged").mkdir()
    Path("damaged/partition.key").write_bytes(b"short")
    assert message in refused(cli, changes.split(), code=4)


@pytest.mark.parametrize(("count", "said"), [(0, "public"), (1, "1 rows")])
def test_too_few_public_rows_are_told_before_the_ledger_is_charged(place, cli, count, said):
    write_rows("public.csv", count, 2, heading="age,ward")
    assert said in refused(cli, [])


def refused(cli, changes, *, code=2) -> str:
    """Run with a ledger what must be refused; nothing may be charged."""
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon=20, delta=1e-3)
    charged = ["--ledger", "study.ledger", "--dataset", "patients"]
    output = cli(*COMMAND.split(), "--out", "student", *charged, *changes, code=code)
    assert not Path("student").exists()
    with Ledger.open("study.ledger") as book:
        assert not list(book.history("patients"))
    return output


def test_a_student_that_was_tampered_with_is_refused(place, cli):
    cli(*COMMAND.split(), "--out", "student", "--cache", "votes")
    assert len(list(Path("votes").iterdir())) == 41  # one for each teacher, and the key
    assert Path("votes").stat().st_mode & 0o077 == 0
    path = Path("student/certificate.json")
    text = path.read_text(encoding="utf-8")
    claim = json.loads(text)
    path.write_text(json.dumps({**claim, "delta": 1e-4}), encoding="utf-8")
    with pytest.raises(SchemaError):
        load_model("student")
    path.write_text(json.dumps({**claim, "epsilon": 0.1}), encoding="utf-8")
    with pytest.raises(SchemaError, match="claims epsilon"):
        load_model("student")
    path.write_text(text, encoding="utf-8")
    Path("student/model.npz").write_bytes(b"nothing")
    assert "student" in cli("predict", "student", "public.csv", "--output", "x.csv", code=4)


def test_a_student_is_certified_and_attacked(place, cli):
    cli(*COMMAND.split(), "--out", "student")
    write_rows("members.csv", 200, 1, heading="age,ward,outcome")
    write_rows("others.csv", 200, 5, heading="age,ward,outcome")
    files = ["--members", "members.csv", "--nonmembers", "others.csv"]
    overlap = ["--overlap", "allow"]  # in a table of two columns many people share a row
    found = json.loads(
        cli("attack", "membership", "--model", "student", *files, *overlap, "--json")
    )
    assert [one["attack"] for one in found["results"]] == ["yeom"]
    inputs = ["--input", "members=members.csv", "--input", "nonmembers=others.csv"]
    run = ["attack", "run", "yeom", "--model", "student", *inputs, *overlap]
    said = json.loads(cli(*run, "--json", "--output", "yeom.html"))
    assert said["result"]["auc"] == found["results"][0]["auc"]
    assert "INTERNAL" in Path("yeom.html").read_text(encoding="utf-8")
    assert "needs members" in cli(*run[:7], code=2)
    assert "needs shadows" in cli("attack", "run", "lira", *run[3:], code=2)
    said = json.loads(cli("certify", "student", *files, "--json"))
    assert said["internal"] is True
    assert said["epsilon"] <= 2
    said = cli("predict", "student", "nowhere.csv", "--output", "p.csv", code=4)
    assert said.startswith("FILE = nowhere.csv")
    # Neither teachers nor public rows are in the directory: no shadow student can be trained.
    refused = cli("certify", "student", *files, "--shadows", "4", "--out", "x", code=2)
    assert "shadows" in refused
    assert "trained again" in refused
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train nowhere.csv --schema schema.toml --epsilon 1 --out m", "FILE = nowhere.csv"),
        ("train patients.txt --schema schema.toml --epsilon 1 --out m", "FILE = patients.txt"),
        (COMMAND.replace("patients.csv", "nowhere.csv") + " --out m", "FILE = nowhere.csv"),
        (COMMAND.replace("public.csv", "nowhere.csv") + " --out m", "PUBLIC = nowhere.csv"),
        ("certify nowhere", "MODEL = nowhere"),
        ("demo --data nowhere.csv --out m", "--data = nowhere.csv"),
    ],
)
def test_errors_name_what_the_command_has(place, cli, command, words):
    said = cli(*command.split(), code=2 if command.startswith("demo") else 4)
    assert words in said
    assert "--data" not in said or command.startswith("demo")
