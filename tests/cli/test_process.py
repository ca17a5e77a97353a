"""The command as a process: exit codes, streams, no colour in a pipe, quick help."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import discreet


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


ACCOUNT = [
    "account",
    "--noise-multiplier",
    "2",
    "--rate",
    "1/50",
    "--steps",
    "50",
    "--delta",
    "1e-5",
]
COMPARE = ["compare", "--points", "2", "--max-steps", "10"]
COMMANDS = ["account", "calibrate", "compare", "explain"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_has_examples_that_name_the_command(run: Any, command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert result.stderr == ""
    examples = result.stdout.partition("Examples:")[2]
    assert f"discreet {command[0] if command else 'account'} --" in examples
    assert "\b" not in result.stdout
    assert "\\b" not in result.stdout
    assert any(line.strip().startswith("discreet ") for line in examples.splitlines())


def test_the_bare_command_prints_its_help(run: Any) -> None:
    assert run().exit_code == 0
    assert run().stdout == run("--help").stdout
    assert all(name in run().stdout for name in COMMANDS)


def test_version(run: Any) -> None:
    assert run("--version").stdout == f"discreet {discreet.__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from discreet.cli import main\n"
        "sys.argv = ['discreet', 'compare', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "heavy = {'numpy', 'scipy', 'matplotlib', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_json_in_a_pipe(spawn: Any) -> None:
    result = spawn(*ACCOUNT, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert 0 < document["epsilon_lower"] <= document["epsilon_upper"]


def test_a_bad_value_ends_with_code_2_and_one_line(spawn: Any) -> None:
    result = spawn("account", "--noise-multiplier", "1", "--delta", "2")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "--delta = 2: expected a number with 0 <= delta < 1\n"


def test_an_unknown_option_ends_with_code_2_and_one_line(spawn: Any) -> None:
    result = spawn("account", "--dleta", "2")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "--dleta" in result.stderr


@pytest.mark.parametrize("command", [ACCOUNT, COMPARE, ["explain", "--epsilon", "1"]])
def test_text_in_a_pipe_is_plain_and_does_not_depend_on_the_environment(
    spawn: Any, run: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """A process that is told to be loud prints what a call that is told to be quiet prints."""
    loud = {"FORCE_COLOR": "1", "COLUMNS": "40", "TERM": "xterm-256color", "PY_COLORS": "1"}
    quiet = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}
    first = spawn(*command, environment=loud)
    for name, value in quiet.items():
        monkeypatch.setenv(name, value)
    second = run(*command)
    assert second.exit_code == 0
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == second.stdout
    assert "\x1b" not in first.stdout
    assert len(first.stdout) > 100


def test_text_survives_a_terminal_that_knows_only_ascii(spawn: Any) -> None:
    result = spawn(*ACCOUNT, environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()


def test_a_bar_is_shown_on_a_terminal_only() -> None:
    terminal, ours = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(
        [sys.executable, "-m", "discreet.cli", *COMPARE],
        stdout=subprocess.PIPE,
        stderr=ours,
        env=environment,
        text=True,
    )
    os.close(ours)
    seen = b""
    while chunk := _read(terminal):
        seen += chunk
    out, _ = child.communicate(timeout=60)
    os.close(terminal)
    assert child.returncode == 0
    assert b"accountants" in seen
    assert "\x1b" not in out
    assert "accountants" not in out


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux reports the end of a terminal as an error.
        return b""


@pytest.mark.slow
def test_pictures_of_a_process(spawn: Any, tmp_path: Path) -> None:
    # PNG by a process: the commands in the readme are run, `compare` among them.
    result = spawn("explain", "--epsilon", "1", "--output", "e.svg", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert b"<svg" in (tmp_path / "e.svg").read_bytes()[:1000]
    assert names(tmp_path) == ["e.svg"]


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "discreet.cli", "explain", "--epsilon", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    complaint = child.stderr.read()
    child.stderr.close()
    child.wait(timeout=60)
    assert "Traceback" not in complaint
