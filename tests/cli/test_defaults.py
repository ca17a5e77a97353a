"""Defaults of a directory, silence, and colours."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from discreet.cli._app import is_quiet, shows_progress
from discreet.ledger import Ledger

ROWS = "age,ill\n" + "".join(f"{at % 90},{('no', 'yes')[at % 2]}\n" for at in range(200))
SCHEMA = """
expected_rows = 200
[columns.age]
type = "integer"
bounds = [0, 100]
"""
DESCRIBE = ("describe", "people.csv", "--schema", "schema.toml", "--epsilon", "1")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a table, its schema, a ledger, and defaults that name the ledger."""
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(ROWS)
    Path("schema.toml").write_text(SCHEMA)
    with Ledger.create("study.ledger") as book:
        book.create_dataset("people", epsilon=3, delta="1e-3", unit="row")
    Path("discreet.toml").write_text('ledger = "study.ledger"\ndataset = "people"\n')
    return tmp_path


def charges() -> int:
    with Ledger.open("study.ledger") as book:
        return book.show("people").budget.charges


def test_a_command_that_charges_takes_ledger_and_dataset_from_the_file(
    study: Path, run: Any
) -> None:
    done = run(*DESCRIBE)
    assert done.exit_code == 0
    assert "discreet.toml: --dataset people --ledger study.ledger" in done.stderr
    assert charges() == 1
    said = json.loads(run(*DESCRIBE, "--json").stdout)
    assert said["charged"] is True
    assert charges() == 2


def test_an_option_counts_more_than_the_file(study: Path, run: Any) -> None:
    done = run(*DESCRIBE, "--dataset", "others")
    assert done.exit_code == 4
    assert "others" in done.stderr
    assert charges() == 0


def test_a_check_of_a_certificate_is_not_held_against_the_ledger_of_the_directory(
    study: Path, run: Any
) -> None:
    assert "discreet.toml" not in run("certificate", "verify", "nothing.json").stderr


def test_the_unit_is_that_of_new_datasets(study: Path, run: Any) -> None:
    Path("discreet.toml").write_text('unit = "household"\n')
    assert run("ledger", "create", "new.ledger", "people", "--epsilon", "1").exit_code == 0
    with Ledger.open("new.ledger") as book:
        assert book.show("people").unit == "household"


@pytest.mark.parametrize("text", ["ledger", "epsilon = 3", "ledger = 3", 'ledger = ""', "\xe9"])
def test_a_file_that_cannot_be_read_is_refused_before_a_charge(
    text: str, study: Path, run: Any
) -> None:
    Path("discreet.toml").write_text(text, encoding="latin-1")
    done = run(*DESCRIBE)
    assert done.exit_code == 4
    assert "discreet.toml" in done.stderr
    assert charges() == 0


def test_quiet_says_nothing_where_the_result_is_a_file(study: Path, run: Any) -> None:
    done = run(*DESCRIBE, "--quiet", "--output", "people.png")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert (study / "people.png").is_file()
    assert "rows" in run(*DESCRIBE, "--quiet").stdout  # an answer that was paid for is shown
    refused = run(*DESCRIBE, "--quiet", "--output", "people.txt")
    assert refused.exit_code == 2
    assert refused.stderr


def test_quiet_turns_progress_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert shows_progress()
    with click.Context(click.Command("any")) as context:
        context.meta["quiet"] = True
        assert is_quiet()
        assert not shows_progress()


@pytest.mark.parametrize("colours", [True, False])
def test_no_color_is_obeyed(colours: bool) -> None:
    code = (
        "from discreet.cli._app import _console, sys; _console(sys.stdout).print('a', style='red')"
    )
    environment = {**os.environ, "TERM": "xterm", **({} if colours else {"NO_COLOR": "1"})}
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", code]
    with os.fdopen(follower, "wb") as terminal:
        subprocess.run(command, stdout=terminal, env=environment, check=True)
    with os.fdopen(leader, "rb") as screen:
        assert (b"\x1b[31m" in os.read(screen.fileno(), 100)) is colours


@pytest.mark.parametrize(
    ("typed", "found"),
    [("discreet cert", "certificate"), ("discreet ledger cr", "create"), ("discreet ", "train")],
)
def test_the_shell_completes_commands(typed: str, found: str, study: Path) -> None:
    Path("discreet.toml").write_text("nothing that can be read")
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    environment = {**os.environ, **asked, "_DISCREET_COMPLETE": "bash_complete"}
    code = "from discreet.cli import main; main()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"plain,{found}" in done.stdout.splitlines()
