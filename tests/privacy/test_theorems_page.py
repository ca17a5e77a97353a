"""docs/theorems.md says what the code says, and every theorem has a source and a test."""

import inspect
import re
from types import ModuleType

from discreet.privacy import theorems
from privacy.theorems_page import NEEDS_NO_PAPER, PAGE, faults, functions, page, sources


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_theorem_has_a_source_a_test_and_an_example():
    assert faults(theorems) == []
    assert len(functions(theorems)) >= 60
    assert all(">>>" in (function.__doc__ or "") for _, function in functions(theorems))


def test_only_what_cites_nothing_is_excused():
    known = dict(functions(theorems))
    assert known.keys() >= NEEDS_NO_PAPER
    assert [name for name in NEEDS_NO_PAPER if sources(known[name])] == []


def test_a_planted_theorem_without_source_and_test_is_seen():
    planted = ModuleType("discreet.privacy.theorems._gaussian")

    def nowhere_to_be_found() -> None:
        """Return something that no paper says."""

    nowhere = "nowhere" + "_to_be_found_either"
    nowhere_to_be_found.__module__ = planted.__name__
    setattr(planted, nowhere, nowhere_to_be_found)
    planted.__all__ = [nowhere]
    assert faults(planted) == [f"{nowhere} cites nothing", f"no test names {nowhere}"]


def test_every_theorem_says_what_it_takes_and_returns():
    for name, function in functions(theorems):
        text = inspect.getdoc(function) or ""
        assert "Returns\n-------\n" in text, name
        described = text.partition("Parameters\n----------\n")[2]
        for argument in inspect.signature(function).parameters:
            assert re.search(rf"^[\w, *]*\b{argument}\b[\w, ]* : ", described, re.MULTILINE), name
