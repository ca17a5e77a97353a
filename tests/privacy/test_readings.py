"""No reading of a loss changes by a digit: ledgers compare exact fractions and hash reprs."""

import json
import math
from typing import Any

import pytest

from discreet.privacy import from_json, to_json
from privacy.readings import (
    EXPRESSIONS,
    FILTERS,
    RECORDED,
    arithmetic,
    charged,
    make,
    reading,
    readings,
)

STORED: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
LOSSES: dict[str, Any] = STORED["losses"]
# Last digits depend on the machine's exp and log; on another one a few of them may differ.
SAME_MACHINE = arithmetic() == STORED["arithmetic"]


def differences(now: Any, then: Any, where: str = "") -> list[str]:
    """What differs between two readings, in any digit (on another machine: in the ninth)."""
    if isinstance(now, dict) and isinstance(then, dict):
        missing = (
            [f"{where}: {sorted(now)} instead of {sorted(then)}"]
            if now.keys() != then.keys()
            else []
        )
        return missing + [
            text
            for name in now.keys() & then.keys()
            for text in differences(now[name], then[name], f"{where}/{name}")
        ]
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [
            text
            for i, pair in enumerate(zip(now, then, strict=True))
            for text in differences(*pair, f"{where}[{i}]")
        ]
    if now == then or (not SAME_MACHINE and close(now, then)):
        return []
    return [f"{where}: {now} instead of {then}"]


def close(now: Any, then: Any) -> bool:
    try:
        return math.isclose(float(now), float(then), rel_tol=1e-9, abs_tol=1e-12)
    except (TypeError, ValueError):
        return False


def test_every_kind_and_combinator_is_recorded():
    assert list(LOSSES) == EXPRESSIONS
    kinds = {row["json"]["kind"] for row in LOSSES.values()}
    assert kinds == {
        "ApproxDP", "Composition", "DiscreteGaussian", "DiscreteLaplace", "Exponential",
        "FinitePair", "GDP", "Gaussian", "Grouped", "Laplace", "PoissonSampled", "PureDP",
        "RandomizedResponse", "RenyiDP", "SampledWithoutReplacement", "ZCDP",
    }  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_ledgers_hash_and_compare_stays(expression):
    loss, then = make(expression), LOSSES[expression]
    assert repr(loss) == then["repr"]
    assert to_json(loss)["loss"] == then["json"]
    assert list(to_json(loss)["loss"]) == list(then["json"])
    assert from_json(to_json(loss)) == loss
    now = {kind: reading(lambda k=kind: charged(loss, k)) for kind in FILTERS}
    assert differences(now, then["charges"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_reading_stays(expression):
    assert differences(readings(make(expression)), LOSSES[expression]) == []


def test_a_changed_last_digit_is_seen():
    then = LOSSES["Laplace(1.3)"]
    now = readings(make("Laplace(1.3)"))
    now["epsilon"][1] = repr(math.nextafter(float(now["epsilon"][1]), math.inf))
    assert not SAME_MACHINE or len(differences(now, then)) == 1
    now["epsilon"][1] = repr(1.001 * float(now["epsilon"][1]))
    assert len(differences(now, then)) == 1
