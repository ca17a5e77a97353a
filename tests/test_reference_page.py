"""The API reference is complete: every package, and every name that a module of its name hides."""

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import discreet

ROOT = Path(__file__).resolve().parents[1]
PAGES = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("reference-*.md")]
LISTED = re.findall(r"^::: (\S+)$", "\n".join(PAGES), re.MULTILINE)
# Commands have --help; attacks and learners gather what these hold.
ELSEWHERE = {"discreet", "discreet.cli", "discreet.learn"}


def packages() -> list[str]:
    """The packages with public names of their own."""
    found = [
        module.name
        for module in pkgutil.walk_packages(discreet.__path__, "discreet.")
        if module.ispkg and "._" not in module.name
    ]
    return [name for name in found if getattr(importlib.import_module(name), "__all__", None)]


def hidden(package: ModuleType) -> set[str]:
    """Public names that are also modules: the reference finds the module instead."""
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    return {
        f"{package.__name__}.{name}.{name}"
        for name in package.__all__
        if name in modules and not isinstance(getattr(package, name), ModuleType)
    }


def test_every_entry_exists_once() -> None:
    assert len(set(LISTED)) == len(LISTED) > 15
    for entry in LISTED:
        try:
            importlib.import_module(entry)
        except ModuleNotFoundError:
            home, _, name = entry.rpartition(".")
            assert hasattr(importlib.import_module(home), name)


@pytest.mark.parametrize("name", sorted(set(packages()) - ELSEWHERE))
def test_every_package_is_in_the_reference(name: str) -> None:
    internal = ("discreet.learn.dpsgd.engine", "discreet.learn.dpsgd.isolation")
    if name in internal:
        # What they export is for the package itself.
        assert name not in LISTED
        return
    assert name in LISTED
    assert hidden(importlib.import_module(name)) <= set(LISTED)


def test_names_that_a_module_hides_are_seen(tmp_path: Path) -> None:
    (tmp_path / "calibrate.py").write_text("", encoding="utf-8")
    package = ModuleType("planted")
    package.__path__ = [str(tmp_path)]
    package.__dict__.update(__all__=["calibrate", "other"], calibrate=len, other=len)
    assert hidden(package) == {"planted.calibrate.calibrate"}
    assert hidden(importlib.import_module("discreet.learn")) == set()
