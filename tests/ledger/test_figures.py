"""The figures in the documentation are those that were measured."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "ledger.json").read_text("utf-8"))
PAGE = " ".join((ROOT / "docs" / "ledger.md").read_text("utf-8").split())


def test_every_target_was_met() -> None:
    assert len(MEASURED["targets"]) == 6
    assert all(MEASURED["targets"].values())
    assert MEASURED["race"]["processes"] == 16
    assert MEASURED["race"]["attempts"] == 10_000
    assert sum(MEASURED["killing"]["rounds"].values()) == 500
    assert list(MEASURED["cost_by_length"]) == ["100", "1000", "10000", "100000"]


def test_the_page_quotes_what_was_measured() -> None:
    lengths = MEASURED["cost_by_length"].values()
    work = " / ".join(f"{cost['work_ms']:.2f}" for cost in lengths)
    whole = " / ".join(f"{cost['whole_ms']:.2f}" for cost in lengths)
    killing = MEASURED["killing"]
    for quoted in (
        f"a bare flush took {MEASURED['flush_ms']:.2f} ms",
        f"| {MEASURED['race']['charges_per_second']:.0f} |",
        f"| {work} ms; with the flush {whole} ms |",
        f"{killing['charged']:,} charged, {killing['released']:,} released",
    ):
        assert quoted in PAGE
