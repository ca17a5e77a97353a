"""Commands that the guide shows exist, with every option that is shown."""

import re
import shlex
from pathlib import Path

import click
import pytest

from discreet.cli._app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown(text: str) -> list[str]:
    """The lines of console blocks that call discreet, continued lines in one piece."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        whole = block.replace("\\\n", " ")
        found += [line for line in whole.splitlines() if line.startswith("discreet ")]
    return found


COMMANDS = [
    (path.relative_to(ROOT).as_posix(), line)
    for path in PAGES
    for line in shown(path.read_text(encoding="utf-8"))
]


def faults(line: str) -> list[str]:
    """What is wrong with a command, by its name and the names of its options."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = app
    while isinstance(command, click.Group):
        if not words:
            return ["no command"]
        name, *words = words
        if name.startswith("--"):
            break
        found = command.get_command(click.Context(command), name)
        if found is None:
            return [f"no command {name}"]
        command = found
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    used = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [f"no option {option}" for option in used if option not in known | {"--help"}]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_documented_command_exists(page: str, line: str) -> None:
    assert faults(line) == [], page


def test_commands_were_found_and_wrong_ones_are_seen() -> None:
    assert len(COMMANDS) > 20
    assert {"README.md", "docs/attacks.md", "docs/certificate.md"} <= {page for page, _ in COMMANDS}
    assert faults("discreet fly") == ["no command fly"]
    assert faults("discreet demo --epsilon 3 --fast") == ["no option --fast"]
    assert faults("discreet attack linkage a b --on x --public-records") == []
    assert shown("```console\ndiscreet demo \\\n    --json\n```\n") == ["discreet demo      --json"]
