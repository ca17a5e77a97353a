"""``discreet train``: nothing that is paid for is lost, and nothing fails after the charge.

Findings of a second adversary: a learned column without categories, names that look like
formulas, units that the ledger does not speak of, packages that are missing.
"""

import csv
import gzip
import json
import sys
from pathlib import Path

import pytest

from discreet.certificate import Certificate
from discreet.cli._app import printable
from discreet.data import Categorical, Integer, Schema
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import PrivateEstimator, _train, automatic_learners, choose_learner, load_model
from discreet.learn._train import check_completions, check_installed
from discreet.ledger import Ledger

OPEN = """
target = "outcome"
expected_rows = 600

[columns.age]
type = "integer"
bounds = [0, 100]

[columns.ward]
type = "categorical"

[columns.outcome]
type = "categorical"
categories = ["well", "ill"]
other = "well"
"""
SCHEMA = OPEN.replace(
    '[columns.ward]\ntype = "categorical"',
    '[columns.ward]\ntype = "categorical"\ncategories = ["north", "south"]',
)
PERSONS = '[unit]\nperson = "who"\nrows_per_person = {}\n[columns.age]'
TRAIN = ["train", "patients.csv", "--schema", "schema.toml", "--out", "model"]


def patients(rows: int) -> list[list[str]]:
    wards, states = ("north", "south"), ("well", "ill")
    return [[str(37 * i % 101), wards[i % 2], states[37 * i % 101 > 50]] for i in range(rows)]


def write_csv(path: Path, rows: list[list[str]], heading: str = "age,ward,outcome") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([heading.split(","), *rows])


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text(SCHEMA, encoding="utf-8")
    write_csv(Path("patients.csv"), patients(60))
    return tmp_path


def charges() -> list[str]:
    with Ledger.open("study.ledger") as book:
        return [row.outcome for row in book.history("patients")]


def open_ledger(**more) -> list[str]:
    with Ledger.create("study.ledger") as book:
        book.create_dataset("patients", epsilon=30, delta="1e-3", **more)
    return ["--ledger", "study.ledger", "--dataset", "patients"]


@pytest.mark.parametrize("learner", ["auto", "naive-bayes", "compare"])
def test_a_learned_column_without_categories_is_no_error(run, place, learner):
    Path("schema.toml").write_text(OPEN, encoding="utf-8")
    write_csv(Path("patients.csv"), [])
    paid = open_ledger()
    learned = ["--learn-schema", "0.2", "--learner", learner, "--epsilon", "0.3", *paid]
    done = run(*TRAIN, *learned)
    assert done.exit_code == 0, done.stderr
    assert charges() == ["completed"]
    model = load_model("model")
    assert model.schema.columns["ward"].labels == ("other",)


def test_the_certificate_is_for_all_that_might_have_come_out(run, place, monkeypatch):
    """Which learner follows a learned schema depends on the data, so its own loss is no bound."""
    charged = []
    plain = _train.charged

    def noted(*arguments, **keywords):
        charged.append(keywords)
        return plain(*arguments, **keywords)

    monkeypatch.setattr(_train, "charged", noted)
    Path("schema.toml").write_text(OPEN, encoding="utf-8")
    learned = ["--learn-schema", "0.5", "--epsilon", "1"]
    epsilons = set()
    for rows, number in ((patients(60), 0), ([], 1)):
        write_csv(Path("patients.csv"), rows)
        done = run(*TRAIN[:-1], f"model{number}", *learned, "--json")
        assert done.exit_code == 0, done.stderr
        text = Path(f"model{number}/certificate.json").read_text(encoding="utf-8")
        paper = Certificate.from_json(json.loads(text))
        assert paper.loss == charged[-1]["loss"]
        epsilons |= {paper.epsilon, json.loads(done.stdout)["epsilon"]}
    assert len(epsilons) == 1


def test_all_learners_that_could_follow_are_planned():
    """The learner that is chosen turns on how many categories came out."""
    facts = {"age": Integer(0, 100), "ill": Categorical(["yes", "no"], other="no")}
    schema = Schema({**facts, "ward": Categorical()}, target="ill", expected_rows=72)
    seen = []
    check_completions(schema, seen.append)
    counts = [len(found.columns["ward"].labels) for found in seen]
    assert counts[0] == 1
    assert counts[-1] > 1000
    chosen = {choose_learner(found, epsilon=0.5, delta=5e-6).learner for found in seen}
    assert chosen == {"logistic", "naive-bayes"}
    assert set(automatic_learners(schema)) == chosen | {"additive"}


def test_what_cannot_be_planned_for_some_outcome_is_refused():
    schema = Schema({"ward": Categorical()}, target="ward", expected_rows=10)

    def possible(found: Schema) -> None:
        if len(found.columns["ward"].labels) > 100:
            raise InvalidValue("epsilon", 1.0, "another one")

    with pytest.raises(InvalidValue, match="another one"):
        check_completions(schema, possible)


@pytest.mark.parametrize("name", ["paid_$_net_$_", r"$\frac$"])
def test_names_are_no_formulas(run, place, name):
    text = SCHEMA.replace("columns.age", f"columns.{json.dumps(name)}")
    Path("schema.toml").write_text(text, encoding="utf-8")
    write_csv(Path("patients.csv"), patients(60), f"{name},ward,outcome")
    done = run(*TRAIN, "--epsilon", "2")
    assert done.exit_code == 0, done.stderr
    assert "not written" not in done.stdout
    assert Path("model/summary.png").read_bytes().startswith(b"\x89PNG")


def test_no_picture_takes_a_model_away(run, place, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("no picture today")

    monkeypatch.setattr("discreet.report._training_summary.draw_summary", fails)
    monkeypatch.setattr("discreet.report._training_summary.strengths", fails)
    done = run(*TRAIN, "--epsilon", "2", *open_ledger(), "--json")
    assert done.exit_code == 0, done.stderr
    assert charges() == ["completed"]
    assert load_model("model").certificate_.receipt is not None
    assert not list(Path("model").glob("summary*"))


@pytest.mark.parametrize(
    ("unit", "person", "accepted"),
    [
        ("record", False, True),
        ("row", False, True),
        ("person", False, False),
        ("patient", False, False),
        ("patient", True, True),
        ("record", True, False),
    ],
)
def test_the_ledger_and_the_schema_speak_of_the_same_unit(run, place, unit, person, accepted):
    if person:
        text = SCHEMA.replace("[columns.age]", PERSONS.format(2))
        Path("schema.toml").write_text(text, encoding="utf-8")
        rows = [[f"p{i // 2}", *row] for i, row in enumerate(patients(60))]
        write_csv(Path("patients.csv"), rows, "who,age,ward,outcome")
    done = run(*TRAIN, "--epsilon", "2", *open_ledger(unit=unit))
    assert (done.exit_code == 0) is accepted, done.stderr
    assert len(charges()) == int(accepted)
    assert Path("model").exists() is accepted
    if not accepted:
        assert f"its budget is for one {unit}" in done.stderr


def test_under_replace_a_network_needs_the_number_of_rows(run, place):
    paid = open_ledger(relation="replace")
    wanted = ["--epsilon", "2", "--learner", "mlp", "--relation", "replace", *paid]
    done = run(*TRAIN, *wanted)
    assert done.exit_code == 2
    assert "rows = 600: expected 60" in done.stderr
    assert charges() == []
    done = run(*TRAIN, *wanted, "--rows", "60")
    assert done.exit_code == 0, done.stderr


def test_under_replace_there_are_no_persons(run, place):
    text = SCHEMA.replace("[columns.age]", PERSONS.format(1))
    Path("schema.toml").write_text(text, encoding="utf-8")
    write_csv(Path("patients.csv"), [["", "7", "north", "ill"]] * 9, "who,age,ward,outcome")
    done = run(*TRAIN, "--epsilon", "2", "--relation", "replace", *open_ledger(relation="replace"))
    assert done.exit_code == 2
    assert "relation = replace: expected add_remove with persons" in done.stderr
    assert charges() == []


@pytest.mark.parametrize("package", ["pyarrow", "sklearn", "torch"])
def test_missing_packages_are_named_before_anything_happens(run, place, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotApplicable, match=f"needs {package}: pip install"):
        check_installed("mlp")
    done = run(*TRAIN, "--epsilon", "2", "--learner", "mlp", *open_ledger())
    assert done.exit_code == 2
    assert f"needs {package}" in done.stderr
    assert charges() == []


@pytest.mark.slow
def test_a_plain_terminal_shows_what_it_can(spawn, place):
    """Letters that ASCII lacks are written as escapes, and lose nobody a model."""
    text = SCHEMA.replace("columns.age", 'columns."\u5e74"')
    Path("schema.toml").write_text(text, encoding="utf-8")
    write_csv(Path("patients.csv"), patients(60), "\u5e74,ward,outcome")
    done = spawn(*TRAIN, "--epsilon", "2", environment={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "\\u5e74" in done.stdout
    assert Path("model/summary.png").exists()
    assert printable("a\x1b[31mb") == "a\\x1b[31mb"


def cut_off(rows: int) -> str:
    """Write a packed file that ends too early, as a broken download does."""
    write_csv(Path("whole.csv"), patients(rows))
    packed = gzip.compress(Path("whole.csv").read_bytes())
    Path("cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    return "cut.csv.gz"


def overwritten(rows: int) -> str:
    """Write a Parquet file, with its head and foot as they were and nonsense between."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = zip(*patients(rows), strict=True)
    names = ("age", "ward", "outcome")
    table = pa.table(dict(zip(names, map(list, columns), strict=True)))
    parquet.write_table(table, "damaged.parquet")
    data = bytearray(Path("damaged.parquet").read_bytes())
    data[4:400] = b"\xff" * 396
    Path("damaged.parquet").write_bytes(data)
    return "damaged.parquet"


@pytest.mark.parametrize(
    ("damage", "said"),
    [(cut_off, "a whole file in the gzip format"), (overwritten, "a readable Parquet file")],
)
def test_damaged_files_are_found_before_the_charge(run, place, damage, said):
    paid = open_ledger()
    # So many rows that the damage lies beyond what is read for the heading.
    name = damage(60_000)
    out = run("train", name, *TRAIN[2:], "--epsilon", "1", *paid)
    assert out.exit_code == 4
    assert said in out.stderr
    assert charges() == []


def test_running_out_of_memory_tells_no_number_of_rows(run, place, monkeypatch):
    def too_large(*_, **__):
        raise MemoryError("Unable to allocate 9 GiB for an array with shape (12345, 7)")

    monkeypatch.setattr(PrivateEstimator, "fit", too_large)
    out = run(*TRAIN, "--epsilon", "1", *open_ledger())
    assert out.exit_code == 5
    assert "memory ran out" in out.stderr
    assert "the budget is spent" in out.stderr
    assert "12345" not in out.stdout + out.stderr
    assert charges() == ["failed"]
    assert not Path("model").exists()


def test_numbers_of_thousands_of_digits_are_refused_in_one_line(run, place):
    for digits in (400, 5000):
        text = SCHEMA.replace("expected_rows = 600", "expected_rows = " + "9" * digits)
        Path("schema.toml").write_text(text, encoding="utf-8")
        out = run(*TRAIN, "--epsilon", "1")
        # One is a number that is too large, the other is no TOML.
        assert out.exit_code == (2 if digits == 400 else 4)
        assert len(out.stderr.strip().splitlines()) == 1
