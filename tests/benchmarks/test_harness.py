"""The harness judges rightly, records only whole runs, and finds documents that fell behind."""

import json
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import Run, Suite, claim, figures, run_suite, take, target, write_between

EVERY = sorted(harness.SUITES)


def draw(record: dict[str, Any], place: Path) -> None:
    from PIL import Image

    Image.new("L", (4, 4), record["value"] % 256).save(place)


def made_up(**changes: Any) -> Suite:
    settings: dict[str, Any] = {
        "run": lambda asked: {"value": 1 if asked.quick else 7},
        "targets": lambda record: [target("value", record["value"], at_least=5)],
        "tables": {("docs/page.md", "made up"): lambda record: f"| {record['value']} |"},
        "pictures": {"made-up.png": draw},
        "numbers": {"value": lambda record: str(record["value"])},
    }
    return Suite("made_up", **{**settings, **changes})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one page with one made-up suite, on a clean tree."""
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    page = "before\n<!-- made up: begin -->\n<!-- made up: end -->\nafter\n"
    (tmp_path / "docs" / "page.md").write_text(page)
    (tmp_path / "docs" / "images" / "made-up.png").touch()
    (tmp_path / "README.md").write_text("It was <!--=made_up.value-->?<!--/--> here.\n")
    for name, value in (
        ("ROOT", tmp_path),
        ("RESULTS", tmp_path / "results"),
        ("BUILD", tmp_path / "build"),
        ("IMAGES", tmp_path / "docs" / "images"),
        ("SUITES", {"made_up": "made_up"}),
        ("load", lambda _: made_up()),
        ("revision", lambda: "abc"),
    ):
        monkeypatch.setattr(harness, name, value)
    return tmp_path


def record_again(**changes: Any) -> None:
    run_suite("made_up", **changes)
    take("made_up")


@pytest.mark.parametrize(
    ("measured", "limit", "met"),
    [
        (1.0, {"at_most": 1.0}, True),
        (1.1, {"at_most": 1.0}, False),
        (1.0, {"at_least": 1.0}, True),
        (0.9, {"at_least": 1.0}, False),
        (None, {"at_most": 1.0}, False),
        (float("nan"), {"at_least": 0.0}, False),
    ],
)
def test_a_target_is_met_or_not(measured: float | None, limit: Any, met: bool) -> None:
    assert target("x", measured, **limit)["met"] is met


def test_a_target_has_one_limit() -> None:
    for limits in ({}, {"at_most": 1.0, "at_least": 0.0}):
        with pytest.raises(ValueError, match="one of at_least and at_most"):
            target("x", 1.0, **limits)
    assert claim("x", False)["met"] is False


def test_a_miss_is_printed_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    targets = [target("a", 1.0, at_most=2), target("b", None, at_least=1, where="row 3")]
    assert harness.report({"targets": targets}) == 1
    assert harness.report({"targets": targets[:1]}) == 0
    assert "MISSED b: not measured (at least 1; row 3)" in capsys.readouterr().out


def test_a_run_leaves_records_and_documents_alone(place: Path) -> None:
    before = (place / "docs" / "page.md").read_text()
    run_suite("made_up")
    assert (place / "docs" / "page.md").read_text() == before
    assert list((place / "results").iterdir()) == []
    assert json.loads((place / "build" / "made_up.json").read_text())["value"] == 7


def test_a_recorded_run_is_shown_and_stale_documents_are_found(place: Path) -> None:
    record_again()
    assert figures(names=["made_up"]) == []
    assert "| 7 |" in (place / "docs" / "page.md").read_text()
    assert "-->7<!--" in (place / "README.md").read_text()
    assert figures(check=True, names=["made_up"]) == []
    record = place / "results" / "made_up.json"
    record.write_text(record.read_text().replace('"value": 7', '"value": 8'))
    assert sorted(figures(check=True, names=["made_up"])) == [
        "README.md does not show its records",
        "docs/images/made-up.png is not that of made_up.json",
        "docs/page.md does not show its records",
        "results/made-up.png is not that of made_up.json",
    ]


def test_only_whole_runs_that_met_their_targets_are_recorded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="was not run"):
        take("made_up")
    run_suite("made_up", quick=True)
    with pytest.raises(SystemExit, match="a quick one"):
        take("made_up")
    monkeypatch.setattr(harness, "revision", lambda: "abc+")
    run_suite("made_up")
    with pytest.raises(SystemExit, match="not committed"):
        take("made_up")
    monkeypatch.setattr(harness, "revision", lambda: "abc")
    monkeypatch.setattr(harness, "load", lambda _: made_up(run=lambda _: {"value": 3}))
    run_suite("made_up")
    with pytest.raises(SystemExit, match="missed value"):
        take("made_up")
    assert not (place / "results" / "made_up.json").exists()
    take("made_up", reason="the machine was slow")
    found = json.loads((place / "results" / "made_up.json").read_text())
    assert found["missed_because"] == "the machine was slow"


def test_parts_are_recorded_beside_older_ones(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(asked: Run) -> dict[str, Any]:
        return {part: {"value": 7} for part in ("a", "b") if asked.wants(part)}

    parts = made_up(run=run, parts=("a", "b"), targets=lambda _: (), tables={}, pictures={})
    monkeypatch.setattr(harness, "load", lambda _: parts)
    record_again(only=["b"])
    record_again(only=["a"])
    found = json.loads((place / "results" / "made_up.json").read_text())
    assert list(found["parts"]) == ["a", "b"]
    assert harness.found(found, "a") == {"value": 7}
    assert harness.found(found, "c") == {}
    with pytest.raises(SystemExit, match="parts: a, b"):
        run_suite("made_up", only=["c"])


def test_an_interrupted_run_goes_on(place: Path) -> None:
    asked = Run(folder=place / "build")
    assert asked.resume("made_up") == {}
    asked.save("made_up", {"runs": [1]})
    assert asked.resume("made_up") == {"runs": [1]}
    run_suite("made_up")
    assert asked.resume("made_up") == {}


def test_a_picture_comes_to_the_page_with_its_part(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are recorded one after the other, and the first may have no picture."""
    (place / "docs" / "images" / "made-up.png").unlink()

    def drawn(record: dict[str, Any], path: Path) -> None:
        if "b" in record["parts"]:
            draw({"value": 1}, path)

    def run(asked: Run) -> dict[str, Any]:
        return {part: {} for part in ("a", "b") if asked.wants(part)}

    def table(record: dict[str, Any]) -> str:
        return "![b](images/made-up.png)" if "b" in record["parts"] else "Not measured yet."

    suite = made_up(
        run=run,
        parts=("a", "b"),
        targets=lambda _: (),
        tables={("docs/page.md", "made up"): table},
        pictures={"made-up.png": drawn},
        numbers={},
    )
    monkeypatch.setattr(harness, "load", lambda _: suite)
    for part, there in (("a", False), ("b", True)):
        record_again(only=[part])
        assert figures(names=["made_up"]) == []
        assert figures(check=True, names=["made_up"]) == []
        assert (place / "docs" / "images" / "made-up.png").exists() is there


def test_text_is_written_between_its_marks_only() -> None:
    marked = "a\n<!-- m: begin -->\nold\n<!-- m: end -->\nb\n"
    assert write_between(marked, "m", "new") == marked.replace("old", "new")
    with pytest.raises(SystemExit, match=r"docs/x\.md needs one"):
        write_between("no marks", "m", "new", "docs/x.md")


def test_a_number_that_no_page_shows_is_listed(place: Path) -> None:
    record_again()
    figures(names=["made_up"])
    (place / "README.md").write_text("nothing\n")
    assert figures(check=True, names=["made_up"]) == ["no page shows made_up.value"]


NOT_RECORDED = {"audit_peers", "defences", "finetuning", "memorisation", "models", "mutants_code"}


@pytest.mark.parametrize("name", EVERY)
def test_every_record_is_judged_and_shown(name: str) -> None:
    """Each table, number and target of a suite is a function of its record alone."""
    suite = harness.load(name)
    record = suite.read()
    if record is None:
        # Not run as a whole yet.
        assert name in NOT_RECORDED
        return
    if not suite.reads:
        record = suite.judge(record)
        names = [(entry["what"], entry.get("where")) for entry in record["targets"]]
        assert len(set(names)) == len(names)
    for (page, marker), table in suite.tables.items():
        assert f"<!-- {marker}: begin -->" in (harness.ROOT / page).read_text(encoding="utf-8")
        assert table(record).strip()
    for show in suite.numbers.values():
        assert show(record)
    shown = "".join(page.read_text(encoding="utf-8") for page in harness.ROOT.glob("docs/*.md"))
    for picture in suite.made:
        assert (harness.IMAGES / picture).exists() is (f"images/{picture}" in shown)
