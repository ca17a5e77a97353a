"""What holds of every command: its help, its examples, its JSON, its errors and their codes."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from cli.conftest import Run
from discreet.cli._app import COMMANDS, App, Command, app
from discreet.cli._options import Count, Real


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


# What these need names no file, or something else is refused before a file is opened.
NO_FILE = {
    ("account",),
    ("audit-mechanism",),
    ("calibrate",),
    ("compare",),
    ("explain",),
    ("demo",),
    ("query",),
    ("serve",),
    ("release", "laplace"),
    ("release", "gaussian"),
    ("release", "randomized-response"),
    ("curator", "token"),
    ("ledger", "create"),
    ("ledger", "charge"),
    ("local", "plan"),
    ("attack", "list"),
    ("attack", "run"),
    ("attack", "property"),
    ("attack", "inversion"),
    ("certificate", "keygen"),
    ("certificate", "sign"),
}


@pytest.mark.parametrize("words", [w for w in EVERY if w not in NO_FILE], ids=" ".join)
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


def test_an_answer_is_one_document(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other in one directory: each is one JSON document, and nothing else."""
    (tmp_path / "rows.csv").write_text("city\nOslo\nRome\nOslo\n", encoding="utf-8")
    (tmp_path / "scores.json").write_text('{"a": 1, "b": 2}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for line in ANSWERED:
        done = run(*shlex.split(line), "--json")
        assert (done.exit_code, done.stderr) == (0, ""), line
        assert isinstance(json.loads(done.stdout), dict), line


def test_groups_without_a_command_print_their_help(run: Run) -> None:
    groups = [name for name in COMMANDS if isinstance(find((name,)), click.Group)]
    assert set(groups) == {"release", "certificate", "attack", "ledger", "curator", "local"}
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


def test_a_planted_wrong_name_would_be_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(App, "_title", lambda self, argument: argument)
    assert not run("explain", "--epsilon", "x").stderr.startswith("--epsilon = x")
