"""``discreet train`` and ``discreet predict``: from a file to a certified model and back.

The lines of bad input of the issue are each tried: what is public is refused before the ledger is
charged, and what could turn on a single record is repaired, never reported.
"""

import csv
import json
import re
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from discreet.certificate import Certificate, content_hash
from discreet.cli._app import app
from discreet.data import Schema
from discreet.errors import InvalidValue, SchemaError
from discreet.learn import load_model
from discreet.learn._model_file import read_model, write_model
from discreet.ledger import Ledger
from discreet.privacy import GDP, to_json

SCHEMA = """
target = "outcome"
expected_rows = 600

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


def patients(rows: int) -> list[list[str]]:
    rng = np.random.default_rng(0)
    age = rng.integers(0, 101, rows)
    ward = rng.choice(["north", "south"], rows)
    ill = age + 20 * (ward == "south") + rng.normal(0, 10, rows) > 60
    states = np.where(ill, "ill", "well")
    return [[str(a), str(w), str(o)] for a, w, o in zip(age, ward, states, strict=True)]


def write_csv(path: Path, rows: list[list[str]], heading: str = "age,ward,outcome") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([heading.split(","), *rows])
    return path


def read_csv(name: str) -> list[dict[str, str]]:
    with Path(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def entries() -> int:
    with Ledger.open("study.ledger") as book:
        return len(book.history("patients"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text(SCHEMA, encoding="utf-8")
    write_csv(Path("patients.csv"), patients(600))
    return tmp_path


TRAIN = ["train", "patients.csv", "--schema", "schema.toml", "--out", "model"]
SEEDED = [*TRAIN, "--epsilon", "2", "--insecure-seed", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What SEEDED writes, for the tests of what comes after training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("made"))
        Path("schema.toml").write_text(SCHEMA, encoding="utf-8")
        write_csv(Path("patients.csv"), patients(600))
        assert CliRunner().invoke(app, SEEDED).exit_code == 0
        return Path("model").resolve()


@pytest.fixture
def trained(place, made):
    shutil.copytree(made, "model")
    return place


def test_train_and_predict(run, place):
    done = run(*TRAIN, "--target", "outcome", "--epsilon", "2")
    assert done.exit_code == 0, done.stderr
    names = ["certificate.json", "model.json", "model.npz", "schema.toml", "summary.png"]
    assert sorted(path.name for path in Path("model").iterdir()) == [*names, "summary.txt"]
    paper = Certificate.from_json(json.loads(Path("model/certificate.json").read_text()))
    assert 1.99 < paper.epsilon <= 2.0
    assert paper.plan["schema_hash"] == Schema.from_toml(SCHEMA).content_hash
    assert Path("model/summary.png").read_bytes().startswith(b"\x89PNG")
    assert "epsilon 2 at delta 1e-05 for one row added or removed" in done.stdout
    assert "no ledger was charged" in done.stdout
    new = write_csv(Path("new.csv"), [["95", "south"], ["2", "north"], ["", "east"]], "age,ward")
    done = run("predict", "model", str(new), "--output", "out.csv")
    assert done.exit_code == 0, done.stderr
    rows = read_csv("out.csv")
    assert [row["outcome"] for row in rows[:2]] == ["ill", "well"]
    assert len(rows) == 3
    assert float(rows[0]["probability of ill"]) + float(
        rows[0]["probability of well"]
    ) == pytest.approx(1.0, abs=1e-4)


def test_what_is_printed_does_not_depend_on_the_records(run, place):
    """Row count and fit are private: one record more or other labels change no printed word."""
    outputs = []
    for rows in (patients(600), [*patients(600), ["7", "south", "ill"]], patients(3)):
        write_csv(Path("patients.csv"), rows)
        done = run(*SEEDED, "--json")
        assert done.exit_code == 0
        outputs.append(done.stdout)
        for path in Path("model").iterdir():
            path.unlink()
        Path("model").rmdir()
    assert outputs[0] == outputs[1] == outputs[2]
    report = json.loads(outputs[0])
    assert report["learner"] == "additive"
    assert not re.search(r"\b60[01]\b", outputs[0])
    assert "INSECURE" in report["randomness"]["randomness"]


def test_the_ledger_is_charged_and_receipted(run, place):
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon="2.5", delta="1e-4")
    before = entries()
    charged = ["--epsilon", "2", "--ledger", "study.ledger", "--dataset", "patients"]
    done = run(*TRAIN, *charged)
    assert done.exit_code == 0, done.stderr
    receipt = json.loads(Path("model/certificate.json").read_text())["receipt"]
    with Ledger.open("study.ledger") as book:
        assert book.verify(receipts=[receipt]).ok
    after = entries()
    assert after > before
    done = run(*TRAIN[:-1], "second", *charged)
    assert done.exit_code == 3, "two times epsilon 2 do not fit into 2.5"
    assert entries() == after
    assert not Path("second").exists()
    assert not list(Path().glob(".second*"))


def test_a_dry_run_reads_no_record_and_charges_nothing(run, place):
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon=3, delta="1e-4")
    paid = ["--ledger", "study.ledger", "--dataset", "patients"]
    outputs = []
    for rows in (patients(600), [["x", "?", ""]] * 3, []):
        write_csv(Path("patients.csv"), rows)
        done = run(*TRAIN, "--epsilon", "2", "--dry-run", *paid, "--json")
        assert done.exit_code == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == outputs[2]
    told = json.loads(outputs[0])
    assert 1.99 < told["epsilon"] <= 2.0
    assert any("outcome: labels that were not declared" in one for one in told["possible_mistakes"])
    assert entries() == 0
    assert not Path("model").exists()
    done = run(*TRAIN, "--epsilon", "2", "--dry-run")
    assert "nothing was charged" in done.stdout
    # What does not fit is refused as it would be without it.
    write_csv(Path("patients.csv"), [], heading="age;ward;outcome")
    assert run(*TRAIN, "--epsilon", "2", "--dry-run").exit_code == 2


def test_the_share_of_repaired_cells_is_paid_for(run, place):
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon=1)
    rows = [[f"{row[0]} years", *row[1:]] for row in patients(600)]
    write_csv(Path("patients.csv"), rows)
    paid = ["--ledger", "study.ledger", "--dataset", "patients", "--insecure-seed", "1"]
    ask = [*TRAIN, "--epsilon", "2", "--dry-run", "--repaired", "0.75", *paid]
    done = run(*ask, "--json")
    assert done.exit_code == 0, done.stderr
    shares = json.loads(done.stdout)["repaired_shares"]
    assert shares["age"] > 0.9
    assert max(shares["ward"], shares["outcome"]) < 0.1
    with Ledger.open("study.ledger") as book:
        assert book.show("patients").budget.spent["basic"] == pytest.approx(Fraction(3, 4))
        assert book.verify().ok
    assert run(*ask).exit_code != 0  # the rest does not pay for a second time
    assert entries() == 1
    assert run(*TRAIN, "--epsilon", "2", "--repaired", "0.1").exit_code == 2
    write_csv(Path("patients.csv"), patients(600))
    done = run(*TRAIN, "--epsilon", "2", "--dry-run", "--repaired", "0.5", "--insecure-seed", "1")
    assert "- age: " in done.stdout
    assert "epsilon 0.5 is spent" in done.stdout


def test_numbers_as_targets(run, place):
    done = run(*SEEDED, "--target", "age", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["learner"] == "additive"
    done = run("predict", "model", "patients.csv", "-o", "ages.csv", "--json")
    assert json.loads(done.stdout)["rows"] == 600
    ages = [float(row["age"]) for row in read_csv("ages.csv")]
    assert min(ages) >= 0.0
    assert max(ages) <= 100.0


@pytest.mark.parametrize("learner", ["naive-bayes", "additive", "mlp", "compare"])
def test_other_learners(run, place, learner):
    done = run(*SEEDED, "--learner", learner)
    assert done.exit_code == 0, done.stderr
    paper = Certificate.from_json(json.loads(Path("model/certificate.json").read_text()))
    assert paper.epsilon <= 2.0
    assert load_model("model").certificate_ == paper
    assert run("predict", "model", "patients.csv", "-o", "out.csv").exit_code == 0
    if learner == "compare":
        free = [row for row in Path("model/certificate.json").read_text().splitlines() if row]
        assert any("comparison" in row for row in free)
        # Choosing was paid for: the loss is that of selection, not of the run that won.
        assert ".best_of(mean=12.0" in repr(paper.loss)


def test_the_schema_can_be_learned_for_a_share(run, place):
    open_ = SCHEMA.replace("bounds = [0, 100]\n", "").replace(
        'categories = ["north", "south"]\n', ""
    )
    Path("schema.toml").write_text(open_, encoding="utf-8")
    refused = run(*SEEDED)
    assert refused.exit_code == 2
    assert "--learn-schema = none" in refused.stderr
    assert "age, ward" in refused.stderr
    done = run(*SEEDED, "--learn-schema", "0.5")
    assert done.exit_code == 0, done.stderr
    learned = Schema.from_file("model/schema.toml")
    assert not learned.incomplete
    assert set(learned.columns["ward"].categories) == {"north", "south"}
    paper = Certificate.from_json(json.loads(Path("model/certificate.json").read_text()))
    assert paper.epsilon <= 2.0
    assert "DiscreteLaplace" in repr(paper.loss)


OPEN = SCHEMA.replace("bounds = [0, 100]\n", "").replace(
    'categories = ["well", "ill"]\nother = "well"\n', ""
)
LEARNED = ["--learn-schema", "0.5", "--ledger", "study.ledger", "--dataset", "patients"]


def test_learning_the_schema_and_the_model_is_one_charge(run, place):
    """Whatever is public is refused before anything is spent, and so is what is not affordable."""
    Path("schema.toml").write_text(OPEN, encoding="utf-8")
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon=3, delta="1e-4")
    before = entries()
    for code, refused in (
        (2, [*SEEDED, "--learner", "linear"]),
        (3, [*SEEDED[:-4], "--epsilon", "4"]),
        (2, [*SEEDED, "--learner", "compare", "--relation", "replace"]),
        (3, [*SEEDED, "--delta", "1e-3"]),
    ):
        assert run(*refused, *LEARNED).exit_code == code, refused
        assert entries() == before
        assert not Path("model").exists()
    done = run(*SEEDED, *LEARNED)
    assert done.exit_code == 0, done.stderr
    with Ledger.open("study.ledger") as book:
        receipt = json.loads(Path("model/certificate.json").read_text())["receipt"]
        assert book.verify(receipts=[receipt]).ok
    assert entries() == before + 1
    learned = Schema.from_file("model/schema.toml")
    assert sorted(learned.classes) == ["ill", "well"]


@pytest.mark.parametrize(
    ("rows", "classes"),
    [([], {"other", "none"}), ([["38", "north", "ill"]] * 600, {"ill", "other"})],
    ids=["none", "one"],
)
def test_a_learned_target_of_less_than_two_classes_is_no_error(run, place, rows, classes):
    Path("schema.toml").write_text(OPEN, encoding="utf-8")
    write_csv(Path("patients.csv"), rows)
    done = run(*SEEDED, "--learn-schema", "0.5")
    assert done.exit_code == 0, done.stderr
    assert set(Schema.from_file("model/schema.toml").classes) == classes
    assert run("predict", "model", "patients.csv", "-o", "out.csv").exit_code == 0


@pytest.mark.slow
def test_a_comparison_at_a_large_epsilon_is_planned_before_it_is_charged(run, place):
    done = run(*TRAIN, "--epsilon", "80", "--insecure-seed", "1", "--learner", "compare")
    assert done.exit_code == 0, done.stderr
    document = json.loads(Path("model/certificate.json").read_text())
    paper = Certificate.from_json(document)
    assert 60 < paper.epsilon <= 80
    # The best of several runs costs more than the plan of the winner, and is verified as such.
    verified = run("certificate", "verify", "model/certificate.json")
    assert "ok           the loss is that of the plan" in verified.stdout
    cheap = GDP(0.01).best_of(paper.loss.mean)
    document |= {"loss": to_json(cheap), "epsilon": cheap.epsilon(delta=paper.delta)}
    document["hash"] = content_hash(document)
    Path("model/certificate.json").write_text(json.dumps(document))
    refused = run("certificate", "verify", "model/certificate.json")
    assert refused.exit_code == 1
    assert "WRONG        the loss is that of the plan" in refused.stdout


def test_networks_protect_persons_with_all_their_rows(run, place):
    schema = SCHEMA.replace(
        "[columns.age]", '[unit]\nperson = "name"\nrows_per_person = 3\n\n[columns.age]'
    )
    Path("schema.toml").write_text(schema, encoding="utf-8")
    rows = [[*row, f"p{i % 200}"] for i, row in enumerate(patients(600))]
    write_csv(Path("patients.csv"), rows, "age,ward,outcome,name")
    done = run(*SEEDED, "--learner", "mlp")
    assert done.exit_code == 0, done.stderr
    paper = json.loads(Path("model/certificate.json").read_text())
    assert paper["plan"]["training"]["examples"] == 200
    assert paper["unit"] == "person"
    assert "not what else was read off" in paper["covers"]


def test_persons_are_protected_with_all_their_rows(run, place):
    schema = SCHEMA.replace(
        "[columns.age]", '[unit]\nperson = "name"\nrows_per_person = 2\n\n[columns.age]'
    )
    Path("schema.toml").write_text(schema, encoding="utf-8")
    rows = [[*row, f"p{i % 20}"] for i, row in enumerate(patients(600))]
    write_csv(Path("patients.csv"), rows, "age,ward,outcome,name")
    done = run(*SEEDED)
    assert done.exit_code == 0, done.stderr
    assert "for one person added or removed" in done.stdout
    paper = json.loads(Path("model/certificate.json").read_text())
    assert paper["plan"]["rows_per_person"] == 2


# --- whatever could turn on one record is repaired ---------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [["38", "north", "ill"]],
        [["38", "north", "ill"]] * 50,
        [["old", "west", "dead"], ["NaN", "", ""], ["1e999", "north", "well"], ["5"]],
    ],
    ids=["empty file", "one row", "one class, constant target", "cells that break the schema"],
)
def test_records_are_repaired_not_reported(run, place, rows):
    write_csv(Path("patients.csv"), rows)
    done = run(*SEEDED)
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""


# --- what is public is refused before the ledger is charged ------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--epsilon", "0"], "--epsilon = 0: expected"),
        (["--epsilon", "two"], "--epsilon = two: expected"),
        (["--epsilon", "1", "--delta", "0"], "--delta = 0: expected"),
        (["--epsilon", "1", "--target", "weight"], "--target = weight: expected a column"),
        (["--epsilon", "1", "--learner", "jungle"], "--learner = jungle: expected one of"),
        (["--epsilon", "1", "--learner", "linear"], "--learner = linear: expected a learner for"),
        (["--epsilon", "1", "--rows", "0"], "--rows = 0: expected"),
        (["--epsilon", "1", "--learn-schema", "0.5"], "--learn-schema = 0.5: expected none"),
        (["--epsilon", "1", "--relation", "swap"], "--relation = swap: expected one of"),
        (["--epsilon", "1", "--insecure-seed", "x"], "--insecure-seed = x: expected"),
    ],
)
def test_bad_options_are_refused_in_one_line(run, place, arguments, line):
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon=3, delta="1e-4")
    before = entries()
    done = run(*TRAIN, *arguments, "--ledger", "study.ledger", "--dataset", "patients")
    assert done.exit_code == 2
    assert done.stderr.startswith(line), done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("model").exists()
    assert entries() == before


@pytest.mark.parametrize(
    ("heading", "said"),
    [
        ("age,ward", "outcome"),
        ("age,ward,outcome,outcome", "outcome"),
        ("years,ward,outcome", "age"),
    ],
    ids=["target missing", "target twice", "schema and file disagree"],
)
def test_files_that_do_not_fit_the_schema_are_refused(run, place, heading, said):
    Path("patients.csv").write_text(f"{heading}\n1,north,ill,ill\n", encoding="utf-8")
    done = run(*SEEDED)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "north" not in done.stderr
    assert not Path("model").exists()


def test_no_file_no_schema_no_rows_and_half_a_ledger(run, place):
    assert run("train", "none.csv", *SEEDED[2:]).exit_code == 4
    assert run("train", "patients.csv", "--schema", "no.toml", *SEEDED[4:]).exit_code == 4
    half = run(*SEEDED, "--dataset", "patients")
    assert half.exit_code == 2
    assert half.stderr.startswith("--dataset = patients: expected")
    text = SCHEMA.replace("expected_rows = 600\n", "")
    Path("schema.toml").write_text(text, encoding="utf-8")
    done = run(*SEEDED)
    assert done.stderr.startswith("--rows = none: expected the public order of magnitude")
    assert run(*SEEDED, "--rows", "1e3").exit_code == 0
    Path("schema.toml").write_text(text.replace("[0, 100]", "[5, 5]"), encoding="utf-8")
    wrong = run(*SEEDED[:-4], "--out", "other", *SEEDED[-4:])
    assert wrong.exit_code == 2
    assert "columns.age" in wrong.stderr


def test_under_replace_no_records_are_refused_before_the_charge(run, place):
    write_csv(Path("patients.csv"), [])
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon=3, delta="1e-4", relation="replace")
    ledger = ["--ledger", "study.ledger", "--dataset", "patients"]
    done = run(*SEEDED, "--relation", "replace", *ledger)
    assert done.exit_code == 2
    assert "under replace" in done.stderr
    assert entries() == 0


def test_an_existing_directory_is_left_alone(run, place):
    Path("model").mkdir()
    done = run(*SEEDED)
    assert done.exit_code == 4
    assert done.stderr.startswith("--out = model: expected a directory that does not exist yet")
    assert list(Path("model").iterdir()) == []
    assert run(*SEEDED[:-6], "--out", "no/such/model", *SEEDED[-4:]).exit_code == 4


def test_a_model_that_was_tampered_with_is_refused(run, trained):
    text = Path("model/schema.toml").read_text(encoding="utf-8")
    Path("model/schema.toml").write_text(text.replace("100", "99"), encoding="utf-8")
    with pytest.raises(SchemaError, match="do not belong together"):
        load_model("model")
    done = run("predict", "model", "patients.csv", "-o", "out.csv")
    assert done.exit_code == 4
    with pytest.raises(InvalidValue, match="discreet train"):
        load_model("nowhere")
    with pytest.raises(SchemaError, match="not a saved model"):
        load_model("schema.toml")
    Path("model/model.json").write_text('{"format": "discreet.model", "version": 9}')
    with pytest.raises(SchemaError, match="not known"):
        load_model("model")


def test_a_model_and_its_certificate_belong_together(run, trained):
    written = Path("model/certificate.json").read_text(encoding="utf-8")
    paper = json.loads(written)
    for change in ({"epsilon": paper["epsilon"] + 1}, {"learner": "another"}, {"delta": 1e-3}):
        Path("model/certificate.json").write_text(json.dumps({**paper, **change}))
        with pytest.raises(SchemaError):
            load_model("model")
    for text in ("", "[]", "{}"):
        Path("model/certificate.json").write_text(text)
        with pytest.raises(SchemaError):
            load_model("model")
    Path("model/certificate.json").write_text(written, encoding="utf-8")
    whole = Path("model/model.npz").read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:300] + b"\0" * 60 + whole[360:]):
        Path("model/model.npz").write_bytes(damaged)
        done = run("predict", "model", "patients.csv", "-o", "out.csv")
        assert done.exit_code == 4
        assert done.stderr.count("\n") == 1
    Path("model/model.npz").unlink()
    assert run("predict", "model", "patients.csv", "-o", "out.csv").exit_code == 4
    assert not Path("out.csv").exists()


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ([], "bounds", [[-2.0] * 4, [1.0] * 4]),
        ([], "rows_per_person", 2),
        ([], "schema", None),
        (["--target", "age"], "target_bounds", [-1.0, 100.0]),
        (["--learner", "naive-bayes"], "categories", [8, 4]),
        (["--learner", "naive-bayes"], "bins", 7),
    ],
)
def test_a_model_was_told_what_its_schema_declares(run, place, options, name, value):
    assert run(*SEEDED, *options).exit_code == 0
    kind = type(load_model("model")).__name__
    head, arrays = read_model("model/model.npz", kind=kind)
    assert head["parameters"][name] != value
    head["parameters"][name] = value
    write_model("model/model.npz", kind=kind, head=head, arrays=arrays)
    with pytest.raises(SchemaError):
        load_model("model")


def test_predict_writes_over_nothing_that_it_reads(run, trained):
    Path("alias.csv").symlink_to("patients.csv")
    Path("twin.csv").hardlink_to("patients.csv")
    content = Path("patients.csv").read_bytes()
    for output in ("patients.csv", "./model/../patients.csv", "alias.csv", "twin.csv"):
        done = run("predict", "model", "patients.csv", "-o", output)
        assert done.exit_code == 2, output
        assert "another file than the one that is read" in done.stderr
    for output in ("model/model.npz", "model/more.csv"):
        done = run("predict", "model", "patients.csv", "-o", output)
        assert "outside of the directory of the model" in done.stderr
    assert Path("patients.csv").read_bytes() == content
    assert len(list(Path("model").iterdir())) == 6


@pytest.mark.parametrize("name", ["x" * 300, "no/such/x", "", ".", "a\0b"], ids=repr)
def test_impossible_names_are_refused_in_one_line(run, place, name):
    done = run(*SEEDED[:-6], "--out", name, *SEEDED[-4:])
    assert done.exit_code == 4
    assert done.stderr.startswith("--out = ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["x" * 300, "", "."], ids=repr)
def test_impossible_outputs_are_refused_in_one_line(run, trained, name):
    done = run("predict", "model", "patients.csv", "-o", name)
    assert done.exit_code == (4 if len(name) > 1 else 2)
    assert done.stderr.startswith("--output = ")
    assert done.stderr.count("\n") == 1


def test_predict_refuses_before_writing(run, trained):
    assert run("predict", "nothing", "patients.csv", "-o", "out.csv").exit_code == 4
    write_csv(Path("wrong.csv"), [["1"]], "age")
    assert run("predict", "model", "wrong.csv", "-o", "out.csv").exit_code == 2
    assert run("predict", "model", "patients.csv", "-o", "no/out.csv").exit_code == 4
    assert run("predict", "model", "patients.csv", "-o", "model").exit_code == 2
    assert not Path("out.csv").exists()


@pytest.mark.slow
def test_in_a_pipe_nothing_is_shown_but_the_report(spawn, place):
    done = spawn(*TRAIN, "--epsilon", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["charged"] is False


@pytest.mark.parametrize("learner", ["tree", "forest", "additive"])
def test_readable_models_are_shown_and_drawn(place, run, learner):
    done = run(*SEEDED, "--learner", learner)
    assert done.exit_code == 0, done.stderr
    assert "strongest columns: age, ward" in Path("model/summary.txt").read_text(encoding="utf-8")
    shown = run("shapes", "model", "--output", "shapes.png")
    assert shown.exit_code == 0, shown.stderr
    assert Path("shapes.png").read_bytes().startswith(b"\x89PNG")
    assert ("age: from -" if learner == "additive" else "age < ") in shown.stdout
    found = json.loads(run("shapes", "model", "--json").stdout)
    assert set(found["shapes"] if learner == "additive" else {"age", "ward"}) == {"age", "ward"}
    if learner != "additive":
        assert len(found["trees"]) == (1 if learner == "tree" else 4)
        assert {node[3] for node in found["trees"][0]} == {"well", "ill"}


def test_models_without_shapes_and_regression_by_trees_are_refused(place, run):
    assert run(*SEEDED, "--learner", "logistic").exit_code == 0
    done = run("shapes", "model", "--output", "shapes.png")
    assert done.exit_code == 2
    assert "an additive model, a tree or a forest" in done.stderr
    assert not Path("shapes.png").exists()
    text = SCHEMA.replace('target = "outcome"', 'target = "age"')
    Path("schema.toml").write_text(text, encoding="utf-8")
    refused = run(*TRAIN[:-1], "other", "--epsilon", "1", "--learner", "tree")
    assert refused.exit_code == 2
    assert "a learner for regression" in refused.stderr
