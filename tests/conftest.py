"""Hypothesis profiles, and which tests are slow because of what they need."""

import gc
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from data.public_directory import public_directory

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=500)
settings.load_profile("repeatable")
# Hypothesis reads the numbers in the source of every loaded module, to draw them now and then. That
# takes many seconds in each worker, and what a test draws would depend on which modules its worker
# happens to have loaded, and on every edit. tests/support/test_draws.py sees that this holds.
providers._get_local_constants = lambda: providers._local_constants

# The fixtures that need a program or data, what it is, and how to get it.
PROGRAMS = {
    "public_data": ("public data sets", "see DISCREET_DATA in docs/install.md", ()),
    "browser": ("a browser", "apt install chromium", ("chromium", "chromium-browser", "chrome")),
    "server": ("PostgreSQL", "apt install postgresql", ("initdb",)),
    "spark": ("Java", "apt install default-jre-headless", ("java",)),
}


def is_there(fixture: str) -> bool:
    """Say whether what a fixture needs can be had on this machine."""
    if fixture == "public_data":
        return public_directory() is not None
    if fixture == "server" and any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        return True
    return any(map(shutil.which, PROGRAMS[fixture][2]))


def may_be_left_out(fixture: str) -> bool:
    """Say whether tests that use a fixture may be left out where what it needs is missing."""
    return fixture == "public_data" or not os.environ.get("CI")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--few-cases",
        action="store_true",
        help="of each parametrized test the first and the last case, of each property few draws",
    )


def ends(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the first and the last case of each parametrized test, and all other tests."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    wanted = {id(item) for found in cases.values() for item in (found[0], found[-1])}
    return [item for item in items if id(item) in wanted]


def draw_less(item: pytest.Item) -> None:
    """Give a property of Hypothesis five draws at most."""
    function = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    if own is not None:
        fewer = settings(own, max_examples=min(5, own.max_examples))
        function._hypothesis_internal_use_settings = fewer


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests that need a program to `make test-slow`, and out where it is missing.

    In continuous integration a missing program fails. Data sets are no programs: the suite passes
    without them everywhere.
    """
    missing = {name for name in PROGRAMS if may_be_left_out(name) and not is_there(name)}
    for item in items:
        if PROGRAMS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    items[:] = [i for i in items if not missing & set(getattr(i, "fixturenames", ()))]
    if config.getoption("--few-cases"):
        items[:] = ends(items)
        for item in items:
            draw_less(item)


@pytest.fixture
def public_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loaders find the published files."""
    monkeypatch.setenv("DISCREET_DATA", str(public_directory()))


def pytest_collection_finish() -> None:
    """Take the modules and tests that stay anyway out of every later collection of garbage."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests were left out, and how to get what they need."""
    if "not slow" in (terminalreporter.config.getoption("-m") or ""):
        return  # `make test` runs none of these anyway
    for name, (what, how, _) in PROGRAMS.items():
        if may_be_left_out(name) and not is_there(name):
            terminalreporter.write_line(f"NOT run: tests that need {what} ({how})")
