"""The recorded detection run is of this zoo, and its verdicts are right."""

import json
from pathlib import Path
from typing import Any

import pytest

from discreet.audit.zoo import SPECIMENS, bundled

ROOT = Path(__file__).resolve().parents[2]
PARTS = json.loads((ROOT / "benchmarks/results/detection.json").read_text(encoding="utf-8"))[
    "parts"
]


def test_the_run_covers_the_zoo_and_the_package() -> None:
    assert list(PARTS) == [*SPECIMENS, *bundled()]


@pytest.mark.parametrize("row", [part["found"] for part in PARTS.values()], ids=list(PARTS))
def test_recorded_verdicts_are_right_and_claims_are_current(row: dict[str, Any]) -> None:
    specimen = {**SPECIMENS, **bundled()}[row["name"]]
    assert (row["broken"], row["about"]) == (specimen.broken, specimen.about)
    assert (row["audit"]["verdict"] == "violated") == specimen.broken
    claimed = specimen.loss.epsilon(delta=specimen.delta)
    assert row["audit"]["claimed_epsilon"] == pytest.approx(claimed, rel=1e-3)
    if not specimen.broken:
        assert all(refuted <= 1 for refuted in row["refuted_of_repeats"].values())
