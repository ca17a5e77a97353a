"""Walk through the tutorials as a newcomer would, in a fresh environment, and time it.

python benchmarks/walks_docs.py [--here] [NAME ...]

For each tutorial an environment is made, Discreet is installed from this checkout with the extras
that the page names, and every example and command of the page is run in an empty directory. With
--here the environment is that of this interpreter, so that the time is that of the page alone. A
walk that fails, or takes longer than it may, is a miss.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = """
import doctest, sys
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
text = open(sys.argv[1], encoding="utf-8").read()
test = doctest.DocTestParser().get_doctest(text, {}, sys.argv[1], sys.argv[1], 0)
sys.exit(doctest.DocTestRunner(optionflags=flags).run(test).failed)
"""


@dataclass(frozen=True)
class Walk:
    """Who walks, along which page, with which extras, and how many minutes it may take."""

    who: str
    page: str
    extras: str
    minutes: float
    commands: bool


WALKS = {
    "engineer": Walk("engineer", "tutorial-network.md", "[tables,torch]", 5, commands=False),
    "officer": Walk("privacy officer", "tutorial-release.md", "[demo]", 3, commands=True),
    "student": Walk("student", "tutorial-figure.md", "", 10, commands=True),
    # The commands of that page are for a table of the reader's own.
    "scientist": Walk("data scientist", "tutorial-table.md", "[tables]", 5, commands=False),
}


def steps(page: str, *, commands: bool) -> list[tuple[str, str]]:
    """Return the examples and commands of a page in their order; all examples are one script."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    found = [(kind, text) for kind, text in fence.findall(page) if kind in ("python", "console")]
    script = "\n".join(text for kind, text in found if kind == "python")
    done = [("console", text) for kind, text in found if kind == "console" and commands]
    return done + ([("python", script)] if script else [])


def environment(folder: Path, extras: str) -> Path:
    """Make an environment with Discreet from this checkout; return its programs."""
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    programs = folder / "env" / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--no-input"]
    constraint = ["--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, *constraint, f"{ROOT}{extras}"], check=True)
    return programs


def walk(one: Walk, *, here: bool) -> float:
    """Return how many minutes a walk takes; raise if a step fails."""
    page = (ROOT / "docs" / one.page).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), time.perf_counter()
        programs = Path(sys.executable).parent if here else environment(folder, one.extras)
        for kind, text in steps(page, commands=one.commands):
            if kind == "python":
                (folder / "examples.py").write_text(EXAMPLES, encoding="utf-8")
                (folder / "page.txt").write_text(text, encoding="utf-8")
                command = [str(programs / "python"), "examples.py", "page.txt"]
                subprocess.run(command, cwd=folder, check=True)
                continue
            for line in text.replace("\\\n", " ").splitlines():
                words = f'PATH="{programs}:$PATH"; {line}'
                code = subprocess.run(
                    ["bash", "-c", words], cwd=folder, check=False, stdout=subprocess.DEVNULL
                ).returncode
                if code not in (0, 6):  # 6: nothing is wrong, something was not checked
                    raise SystemExit(f"{one.page}: {line} ends with {code}")
        return (time.perf_counter() - start) / 60


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help=", ".join(WALKS))
    parser.add_argument("--here", action="store_true", help="in the environment of this Python")
    options = parser.parse_args()
    missed = 0
    for name in options.names or WALKS:
        one = WALKS[name]
        minutes = walk(one, here=options.here)
        met = minutes <= one.minutes
        missed += not met
        shown = f"{one.who}, {one.page}: {minutes:.1f} minutes (at most {one.minutes:g})"
        print("met   " if met else "MISSED", shown, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
