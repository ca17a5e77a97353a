"""What holds of every command: its help, its examples, its JSON, its errors and their codes."""

import inspect
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from cli.conftest import Run
from cli.test_pate import SCHEMA, write_rows
from discreet.cli._app import COMMANDS, App, Command, app
from discreet.cli._options import Count, Real
from discreet.errors import InvalidValue


def leaves(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*words, name))
        else:
            yield (*words, name)


EVERY = list(leaves(app))


def find(words: tuple[str, ...]) -> click.Command:
    command: Any = app
    for word in words:
        command = command.get_command(click.Context(command), word)
    assert isinstance(command, click.Command)
    return command


def examples(words: tuple[str, ...]) -> list[list[str]]:
    """The examples of a command, as words of a shell without redirection."""
    text = (find(words).help or "").replace("\\\n", " ")
    lines = re.findall(r"^ *(discreet .*)$", text, re.MULTILINE)
    return [shlex.split(line.partition(" > ")[0]) for line in lines]


def required(words: tuple[str, ...], folder: Path) -> list[str]:
    """A command line that parses: values of no meaning, files that are not there."""
    line = list(words)
    for parameter in find(words).params:
        if not parameter.required:
            continue
        kind = parameter.type
        value = "0.5" if isinstance(kind, Real) else "5" if isinstance(kind, Count) else ""
        name = "nothing.csv" if words[0] == "attack" else "nothing.json"
        value = value or str(folder / "missing" / name)
        line += [parameter.opts[0], value] if isinstance(parameter, click.Option) else [value]
    return line


def test_all_commands_are_here() -> None:
    assert len(EVERY) > 40
    assert {words[0] for words in EVERY} == set(COMMANDS)
    assert all(isinstance(find(words), Command) for words in EVERY)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_has_an_example_that_parses(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: discreet {' '.join(words)} ")
    assert "Example" in done.stdout
    assert "--json" in done.stdout
    shown = examples(words)
    assert any(line[1 : 1 + len(words)] == list(words) for line in shown)
    for line in shown:
        group: click.Command = app
        arguments = line[1:]
        while isinstance(group, click.Group):
            group, arguments = find_in(group, arguments[0]), arguments[1:]
        group.make_context(None, arguments)  # raises where an example does not parse


def find_in(group: click.Group, name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None, name
    return found


NUMBERS = [
    (words, parameter)
    for words in EVERY
    for parameter in find(words).params
    if isinstance(parameter.type, Real | Count) and isinstance(parameter, click.Option)
]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_a_wrong_value_names_its_option(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    for known, parameter in NUMBERS:
        if known != words:
            continue
        option = max(parameter.opts, key=len)
        line = [*required(words, tmp_path), option, "x"]
        done = run(*line)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert done.stderr.startswith(f"{option} = x: expected a")
        told = json.loads(run(*line, "--json").stderr)
        name = option.lstrip("-").replace("-", "_")
        assert (told["code"], told["option"], told["value"]) == (2, name, "x")


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_an_error_is_one_line_of_json(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, "--no-such-option", "--json")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    told = json.loads(done.stderr)
    assert told["code"] == 2
    assert f"discreet {' '.join(words)} --help" in told["error"]


# Commands whose file is in an option, or that refuse something else before they open a file.
MISSING = [
    "account --loss {}/loss.json --delta 1e-6",
    "audit training {}/scores.csv --coins {}/coins.json --epsilon 1",
    "account --from {}/opacus.json --delta 1e-6",
    "compare --points 1 --max-steps 2 --output {}/a.png",
    "explain --epsilon 1 --output {}/a.png",
    "demo --data {}/rows.csv --schema {}/schema.toml --out {}/out",
    "query http://127.0.0.1:9 census {}/query.json",
    "serve {}/study.ledger",
    "release randomized-response --answers {}/said.txt --two-coin",
    "curator token {}/study.ledger --owner",
    "ledger create {}/study.ledger census --epsilon 1",
    "ledger charge {}/study.ledger census --epsilon 1",
    "local plan --size 4 --epsilon 1 --people 9 --out {}/plan.json",
    "local estimate {}/reports.bin --plan {}/plan.json",
    "local admit {}/collection --plan {}/plan.json --people 5 --out {}/tokens.txt",
    "local serve {}/collection --plan {}/plan.json",
    "local simulate --people 10 --out {}/phones",
    "attack run yeom --model {}/model --input members=a.csv --input nonmembers=b.csv",
    "schema draft {}/rows.csv",
    "attack property --records {}/a.npz --train os:getcwd --has 0=1 --shares 0,1 --size 5",
    "attack inversion --model {}/model --shape 4",
    "attack language --model {}/model --canaries {}/canaries.json",
    "certificate keygen {}/clinic",
    (
        "certificate sign {}/certificate.json --key {}/clinic.key --who a --contact b "
        "--intended-use c --valid-until 2999-12-31"
    ),
]
# These open no file.
NO_FILE = {
    ("audit-mechanism",),
    ("calibrate",),
    ("release", "laplace"),
    ("release", "gaussian"),
    ("attack", "list"),
    ("attack", "canaries"),
    ("federated", "simulate"),
}


def command_of(line: str) -> tuple[str, ...]:
    """The words of a line that name its command."""
    words = line.split()
    return next(tuple(words[:n]) for n in (1, 2) if tuple(words[:n]) in EVERY)


BY_ARGUMENTS = [
    words for words in EVERY if words not in NO_FILE | {command_of(line) for line in MISSING}
]


@pytest.mark.parametrize("line", MISSING)
def test_a_missing_file_of_an_option_is_4(run: Run, tmp_path: Path, line: str) -> None:
    done = run(*shlex.split(line.replace("{}", str(tmp_path / "missing"))), "--json")
    told = json.loads(done.stderr.splitlines()[-1])
    assert (done.exit_code, told["code"], done.stdout) == (4, 4, ""), told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", BY_ARGUMENTS, ids=" ".join)
def test_a_missing_file_is_4(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(*required(words, tmp_path), "--json")
    told = json.loads(done.stderr)
    assert (done.exit_code, told["code"], done.stdout) == (4, 4, ""), told
    assert list(tmp_path.iterdir()) == []


ANSWERED = [
    "account --noise-multiplier 2 --delta 1e-5",
    "calibrate --epsilon 1 --delta 1e-5",
    "compare --points 2 --max-steps 10",
    "explain --epsilon 1",
    "release laplace --value 3 --sensitivity 1 --epsilon 1",
    "release gaussian --value 3 --sensitivity 1 --epsilon 1 --delta 1e-6",
    "release count --file rows.csv --column city --equals Oslo --epsilon 1",
    "release histogram --file rows.csv --column city --categories Oslo,Rome --epsilon 1",
    "release exponential --scores scores.json --sensitivity 1 --epsilon 1",
    "release randomized-response --answer yes --two-coin",
    "audit-mechanism --list",
    "ledger create study.ledger census --epsilon 1",
    "ledger show study.ledger",
    "ledger charge study.ledger census --epsilon 0.1",
    "ledger history study.ledger census",
    "ledger verify study.ledger",
    "ledger correct study.ledger",
    "ledger export study.ledger census",
    "ledger export study.ledger census --output census.json",
    "ledger repair study.ledger",
    "curator analyst study.ledger ann",
    "curator token study.ledger --owner",
    "curator show study.ledger",
    "attack list",
    "attack anonymity rows.csv --quasi city",
    "attack linkage rows.csv rows.csv --on city",
    "attack made-up-tables --out tables --population 50",
    "certificate keygen clinic",
    "certificate revoke revoked.json --key clinic.pub --reason lost",
    "recheck tables",
]


# One after the other in one directory, by people who have a table and a schema.
TRAINED = [
    "schema draft patients.csv --target outcome --output drafted.toml",
    "describe patients.csv --schema schema.toml --epsilon 1 --output described.png",
    "train patients.csv --schema schema.toml --epsilon 2 --out model --learner naive-bayes",
    "predict model patients.csv --output said.csv",
    "evaluate model patients.csv --epsilon 1 --by ward",
    (
        "pate patients.csv public.csv --schema schema.toml --epsilon 2 --teachers 40 "
        "--teacher naive-bayes --queries 30 --out student"
    ),
    "synthesize patients.csv --schema schema.toml --epsilon 2 --out made.csv --certificate made",
    "certify model --out certified",
    "certificate verify certified/public/certificate.json",
    "certificate page certified/public/certificate.json --output page.html",
    "certificate keygen clinic",
    (
        "certificate sign certified/public/certificate.json --key clinic.key --who Ward "
        "--contact a@b --intended-use study --valid-until 2999-12-31"
    ),
    (
        "attack membership --model model --members patients.csv --nonmembers public.csv "
        "--overlap allow"
    ),
    (
        "attack attribute --model model --members patients.csv --nonmembers public.csv "
        "--auxiliary other.csv --attribute ward --allow-duplicates"
    ),
    (
        "attack run yeom --model model --input members=patients.csv --input nonmembers=public.csv "
        "--overlap allow"
    ),
    (
        "attack property --records in.npz --train attacked_models:train --has 0=1 "
        "--shares 0.2,0.8 --size 20 --shadows 24"
    ),
    (
        "attack inversion --model attacked_models:logit_module --shape 5 --picture 1x5 --steps 3 "
        "--restarts 1 --smoothing 0"
    ),
    "attack gradients --model attacked_models:digits_network --updates seen.npz --public known.npz",
    "local plan --values north,south --epsilon 2 --people 200 --out plan.json",
    "local collect patients.csv --column ward --plan plan.json --out reports.bin",
    "local estimate reports.bin --plan plan.json --certificate local.json --output local.html",
    "local admit collection --plan plan.json --people 3 --out tokens.txt",
    "curator dataset study.ledger people patients.csv --schema schema.toml --epsilon 1",
    "curator project study.ledger wages --dataset people --epsilon 1/2",
    "curator token study.ledger --owner",
    "curator revoke study.ledger TOKEN",
    "curator forget tables",
    "ledger restore backup.ledger --spent people=0.1",
]
# They need a service, a minute, or a file of version 0.1: each has its own test with --json.
ELSEWHERE = {
    ("attack", "canaries"): "tests/cli/test_attack_language.py",
    ("attack", "language"): "tests/cli/test_attack_language.py",
    ("audit", "coins"): "tests/cli/test_audit_training.py",
    ("audit", "training"): "tests/cli/test_audit_training.py",
    ("demo",): "tests/cli/test_demo.py",
    ("shapes",): "tests/cli/test_train.py",
    ("serve",): "tests/curator/service/test_commands.py",
    ("query",): "tests/curator/service/test_commands.py",
    ("bench", "defences"): "tests/defences/test_command.py",
    ("federated", "run"): "tests/cli/test_federated.py",
    ("federated", "simulate"): "tests/cli/test_federated.py",
    ("local", "serve"): "tests/cli/test_local.py",
    ("local", "simulate"): "tests/cli/test_local.py",
    ("ledger", "migrate"): "tests/cli/test_ledger.py",
}


def test_every_command_answers_in_json_somewhere() -> None:
    assert {command_of(line) for line in [*ANSWERED, *TRAINED]} | set(ELSEWHERE) == set(EVERY)
    for words, path in ELSEWHERE.items():
        text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
        assert "--json" in text
        assert f'"{words[-1]}"' in text


def answer(run: Run, line: str) -> dict[str, Any]:
    done = run(*shlex.split(line), "--json")
    assert done.exit_code == (6 if line.startswith("certificate verify") else 0), (
        line,
        done.stderr,
    )
    assert done.stderr == "", line
    document = json.loads(done.stdout)
    assert isinstance(document, dict), line
    return document


def test_an_answer_is_one_document(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other in one directory: each is one JSON document, and nothing else."""
    (tmp_path / "rows.csv").write_text("city\nOslo\nRome\nOslo\n", encoding="utf-8")
    (tmp_path / "scores.json").write_text('{"a": 1, "b": 2}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for line in ANSWERED:
        answer(run, line)


def write_tables() -> None:
    write_rows("patients.csv", 200, 1, heading="age,ward,outcome")
    write_rows("public.csv", 100, 2, heading="age,ward,outcome")
    write_rows("other.csv", 100, 3, heading="age,ward,outcome")
    Path("schema.toml").write_text(SCHEMA, encoding="utf-8")


@pytest.mark.slow
def test_an_answer_about_a_table_is_one_document(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import attacked_models

    write_tables()
    Path("tables").mkdir()
    records, labels = attacked_models.people(200, 1)
    np.savez("in.npz", records=records, labels=labels)
    pictures = np.random.default_rng(1).random((9, 1, 64))
    np.savez("seen.npz", records=pictures[:4], labels=labels[:4, None])
    np.savez("known.npz", records=pictures[4:, 0], labels=labels[4:9])
    for line in TRAINED:
        if line.startswith("ledger restore"):
            shutil.copytree("study.ledger", "backup.ledger")
        document = answer(run, line.replace("TOKEN", locals().get("token", "")))
        if line.startswith("curator token"):
            token = document["id"]


SPENDING = {
    "train": "train patients.csv --schema schema.toml --learner naive-bayes",
    "pate": "pate patients.csv public.csv --schema schema.toml --teachers 40 "
    "--teacher naive-bayes --queries 30",
    "synthesize": "synthesize patients.csv --schema schema.toml",
}


@pytest.mark.parametrize("name", SPENDING)
def test_a_budget_that_is_short_is_3_and_nothing_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables()
    create = "ledger create study.ledger people --epsilon 1/10 --delta 1e-9 --unit row"
    assert run(*create.split()).exit_code == 0
    before = sorted(path.name for path in tmp_path.iterdir())
    line = f"{SPENDING[name]} --epsilon 2 --out made.csv --ledger study.ledger --dataset people"
    done = run(*line.split(), "--json")
    told = json.loads(done.stderr)
    assert (done.exit_code, told["code"], told["budget"], done.stdout) == (3, 3, "dataset", "")
    assert told["remaining"]["basic"] == "1/10"
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_groups_without_a_command_print_their_help(run: Run) -> None:
    groups = [name for name in COMMANDS if isinstance(find((name,)), click.Group)]
    assert set(groups) == {
        "release", "schema", "certificate", "attack", "bench", "federated", "ledger", "curator",
        "local", "audit",
    }  # fmt: skip
    for name in groups:
        done = run(name)
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == run(name, "--help").stdout


def test_an_option_is_that_of_the_command_that_ran(run: Run, tmp_path: Path) -> None:
    """The library calls it quasi_identifiers; the command that ran calls it --quasi."""
    file = tmp_path / "rows.csv"
    file.write_text("city\nOslo\n", encoding="utf-8")
    done = run("attack", "anonymity", str(file), "--quasi", "city", "--quasi", "city", "--json")
    told = json.loads(done.stderr)
    assert told["error"].startswith("--quasi = ")
    assert told["option"] == "quasi"
    done = run("audit-mechanism", "nothing", "--json")
    told = json.loads(done.stderr)
    assert (done.exit_code, told["option"], told["value"]) == (2, "name", "nothing")
    assert told["error"].startswith("NAME = nothing: ")


def test_the_receipt_that_is_none_is_the_one_that_is_named(run: Run, tmp_path: Path) -> None:
    """Before, the ledger was blamed for a receipt that is none, and the code was 2."""
    place, wrong, damaged = (str(tmp_path / name) for name in ("a.ledger", "b.json", "c.json"))
    assert run("ledger", "create", place, "census", "--epsilon", "1").exit_code == 0
    Path(wrong).write_text('{"a": 1}', encoding="utf-8")
    Path(damaged).write_text("nothing", encoding="utf-8")
    for file, words in ((wrong, "a receipt or an export"), (damaged, "a receipt in JSON")):
        for line, title in (([place, "--receipt", file], "--receipt"), ([file], "LEDGER")):
            done = run("ledger", "verify", *line)
            assert done.exit_code == 4
            assert done.stderr.startswith(f"{title} = {file}: expected {words}")


def test_what_to_do_is_said_in_the_words_of_the_command(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library advises overlap="drop"; whoever types a command is told of --overlap drop."""

    def refuse(*_: Any, **__: Any) -> None:
        advice = 'others (or overlap="drop", allow_duplicates=True)'
        raise InvalidValue("quasi_identifiers", 3, advice)

    monkeypatch.setattr("discreet.attacks.membership_attacks", refuse)
    monkeypatch.setattr("discreet.attacks.read_model", refuse)
    told = json.loads(run("attack", "membership", *BOTH, "--json").stderr)
    assert told["expected"] == "others (or --overlap drop, allow_duplicates=True)"
    assert told["expected"] in told["error"]
    plain = run("attack", "attribute", *BOTH, *HIDDEN, "--json").stderr
    assert json.loads(plain)["expected"] == 'others (or overlap="drop", --allow-duplicates)'


BOTH = ["--members", "a.csv", "--nonmembers", "b.csv"]
HIDDEN = ["--model", "m", "--auxiliary", "c.csv", "--attribute", "x"]


def test_a_planted_wrong_name_would_be_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(App, "_title", lambda self, argument: argument)
    assert not run("explain", "--epsilon", "x").stderr.startswith("--epsilon = x")


LATER = (
    "_attack_language",
    "_audit",
    "_bench",
    "_federated",
    "_local",
    "_schema",
    "_synthesize",
    "_tables",
)


def test_the_command_line_stays_small() -> None:
    """It reads options, calls the library and prints; what computes is in the library.

    Groups of commands that came later have modules of their own, of at most 300 lines each.
    """
    paths = list(Path(inspect.getfile(App)).parent.glob("*.py"))
    lines = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    later = {name for name in lines if name.startswith(LATER)}
    assert all(lines[name] <= 300 for name in later)
    assert sum(lines[name] for name in set(lines) - later) <= 5300
