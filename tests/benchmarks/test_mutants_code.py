"""The mutants of the code that decides privacy: what is changed, and how it is judged."""

import ast
from importlib.util import module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mutants_code
from mutants_code import changed, mutants_of, text_of

PAIRS = [
    ("a < b", "a <= b"),
    ("a == b", "a != b"),
    ("a + b", "a - b"),
    ("a / b", "a * b"),
    ("a and b", "a or b"),
    ("x if a else y", "x if not a else y"),
    ("min(a, b)", "max(a, b)"),
    ("2", "3"),
    ("True", "False"),
]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_each_kind_of_change(before: str, after: str) -> None:
    node = ast.parse(before, mode="eval").body
    assert [ast.unparse(new) for _, new in changed(node)] == [after]
    assert ast.unparse(node) == before


def test_one_place_of_a_module_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "discreet"
    package.mkdir(parents=True)
    (package / "made_up.py").write_text(
        "def f(a, b):\n    if a < b:\n        return 1\n    return 1\n"
    )
    monkeypatch.setattr(mutants_code, "ROOT", tmp_path)
    found = mutants_of("made_up.py")
    assert sorted((each.kind, each.before, each.after) for each in found) == [
        ("branch", "a < b", "not a < b"),
        ("comparison", "a < b", "a <= b"),
        ("constant", "1", "2"),
        ("constant", "1", "2"),
    ]
    texts = [text_of(each) for each in found]
    assert len(set(texts)) == 4
    assert "def f(a, b):\n    if a <= b:\n        return 1\n    return 1" in texts


def test_a_process_can_have_a_changed_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "privacy/_filters.py"
    monkeypatch.setattr(mutants_code, "text_of", lambda mutant: "changed = 1")
    found = next(each for each in mutants_of(module) if each.kind == "comparison")
    loader = mutants_code.Changed(found)
    assert loader.find_spec("discreet.privacy._pair") is None
    spec = loader.find_spec("discreet.privacy._filters")
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.changed == 1
    assert Path(made.__file__).read_text(encoding="utf-8") != "changed = 1"


def test_tests_of_the_changed_line_run_first_and_others_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = mutants_code.Order(["near", "far"], first=1)
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in ("unknown", "far", "near")]
    order.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["near", "far", "unknown"]
    for item in items:
        order.pytest_runtest_setup(item)
    monkeypatch.setattr(mutants_code, "REST", -1)
    order.pytest_runtest_setup(items[0])
    with pytest.raises(pytest.exit.Exception, match="no test noticed"):
        order.pytest_runtest_setup(items[1])


def test_every_module_and_every_test_file_is_there() -> None:
    for module, files in mutants_code.TESTS.items():
        assert (mutants_code.ROOT / "src" / "discreet" / module).is_file(), module
        assert all((mutants_code.ROOT / "tests" / name).is_file() for name in files), files
    chosen = mutants_code.chosen(mutants_code.MUTANTS)
    assert {each.module for each in chosen} == set(mutants_code.TESTS)
    assert abs(len(chosen) - mutants_code.MUTANTS) <= len(mutants_code.TESTS)
    assert chosen == mutants_code.chosen(mutants_code.MUTANTS)


def test_a_survivor_without_a_reason_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    row: dict[str, Any] = {"mutant": "m:a -> b", "verdict": "survived"}
    rows = [row, *({"mutant": "m:c -> d", "verdict": "noticed"} for _ in range(599))]
    monkeypatch.setattr(mutants_code, "reasons", dict)
    assert [each["met"] for each in mutants_code.targets({"rows": rows})] == [True, False]
    monkeypatch.setattr(mutants_code, "reasons", lambda: {"m:a -> b": "both are zero"})
    assert all(each["met"] for each in mutants_code.targets({"rows": rows}))
    assert not all(each["met"] for each in mutants_code.targets({"rows": rows[:10]}))
