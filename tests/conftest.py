"""Hypothesis profiles, and which tests are slow because of what they need."""

import gc
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=500)
settings.load_profile("repeatable")

# The fixtures that start a program, what it is, and how Debian has it.
PROGRAMS = {
    "browser": ("a browser", "apt install chromium", ("chromium", "chromium-browser", "chrome")),
    "server": ("PostgreSQL", "apt install postgresql", ("initdb",)),
    "spark": ("Java", "apt install default-jre-headless", ("java",)),
}


def is_there(fixture: str) -> bool:
    """Say whether the program of a fixture can be had on this machine."""
    if fixture == "server" and any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        return True
    return any(map(shutil.which, PROGRAMS[fixture][2]))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests that need a program to `make test-slow`, and out where it is missing.

    In continuous integration nothing is left out: a missing program fails.
    """
    missing = set() if os.environ.get("CI") else {name for name in PROGRAMS if not is_there(name)}
    for item in items:
        if PROGRAMS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    items[:] = [i for i in items if not missing & set(getattr(i, "fixturenames", ()))]


def pytest_collection_finish() -> None:
    """Take the modules and tests that stay anyway out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests were left out, and how to get what they need."""
    if "not slow" in (terminalreporter.config.getoption("-m") or ""):
        return  # `make test` runs none of these anyway
    for name, (what, how, _) in PROGRAMS.items():
        if not os.environ.get("CI") and not is_there(name):
            terminalreporter.write_line(f"NOT run: tests that need {what} ({how})")
