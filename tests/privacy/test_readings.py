"""No reading of a loss changes: ledgers hash reprs, and compare charges to a millionth."""

import json
import math
from fractions import Fraction
from typing import Any

import pytest

from discreet.privacy import from_json, to_json
from discreet.privacy._loss import KINDS
from privacy.readings import (
    EXPRESSIONS,
    FILTERS,
    RECORDED,
    charged,
    make,
    reading,
    readings,
)

STORED: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
LOSSES: dict[str, Any] = STORED["losses"]
# Last digits depend on the machine's exp and log, and sums of products on where the numbers lie.
TOLERANCE = 1e-9


def differences(now: Any, then: Any, tolerance: float, where: str = "") -> list[str]:
    """What differs between two readings by more than a relative tolerance."""
    if isinstance(now, dict) and isinstance(then, dict):
        names = [] if now.keys() == then.keys() else [f"{where}: {sorted(now)}, {sorted(then)}"]
        return names + [
            text
            for name in now.keys() & then.keys()
            for text in differences(now[name], then[name], tolerance, f"{where}/{name}")
        ]
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [
            text
            for i, pair in enumerate(zip(now, then, strict=True))
            for text in differences(*pair, tolerance, f"{where}[{i}]")
        ]
    if now == then or close(now, then, tolerance):
        return []
    return [f"{where}: {now} instead of {then}"]


def close(now: Any, then: Any, tolerance: float) -> bool:
    try:
        numbers = float(Fraction(now)), float(Fraction(then))
    except (TypeError, ValueError):
        return False
    return math.isclose(*numbers, rel_tol=tolerance, abs_tol=tolerance * 1e-3)


def test_every_kind_and_combinator_is_recorded():
    assert list(LOSSES) == EXPRESSIONS
    recorded = {row["json"]["kind"] for row in LOSSES.values()}
    known = {name for name, kind in KINDS.items() if kind.__module__.startswith("discreet.")}
    assert recorded == known
    assert len(known) >= 24


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_ledgers_hash_and_compare_stays(expression):
    loss, then = make(expression), LOSSES[expression]
    assert repr(loss) == then["repr"]
    assert to_json(loss)["loss"] == then["json"]
    assert list(to_json(loss)["loss"]) == list(then["json"])
    assert from_json(to_json(loss)) == loss
    now = {kind: reading(lambda k=kind: charged(loss, k)) for kind in FILTERS}
    assert differences(now, then["charges"], TOLERANCE) == []


@pytest.mark.slow
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_reading_stays(expression):
    assert differences(readings(make(expression)), LOSSES[expression], TOLERANCE) == []


def test_a_changed_digit_is_seen():
    now, then = readings(make("Laplace(1.3)")), LOSSES["Laplace(1.3)"]
    assert differences(now, then, 1e-9) == []
    now["charges"]["zcdp"]["zcdp"] += "1"
    now["epsilon"][1] = repr(1.0001 * float(now["epsilon"][1]))
    assert len(differences(now, then, 1e-9)) == 2
    last = {"x": repr(math.nextafter(1.0, 2.0))}
    assert differences(last, {"x": "1.0"}, 0.0) == ["/x: 1.0000000000000002 instead of 1.0"]
