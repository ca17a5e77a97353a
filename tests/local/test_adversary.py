"""An adversary at the public doors: every channel by brute force, coins bit by bit, crashes."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from discreet.errors import NotApplicable
from discreet.local import (
    METHODS,
    CountMeanSketch,
    FrequencyOracle,
    Hierarchy,
    LocalPlan,
    Marginals,
    MeanOracle,
    PersonLedger,
    Rappor,
    VectorOracle,
)
from discreet.local import _coins as coins
from discreet.local import _plans as plans
from discreet.mechanisms import channel_epsilon


def play_client(
    plan: LocalPlan, value: Any, root: Fraction, monkeypatch: pytest.MonkeyPatch
) -> dict[bytes, Fraction]:
    """The exact law of ``plan.client().randomize(value)``: the coins are played, nothing else."""

    def run(played: coins.Coins) -> bytes:
        monkeypatch.setattr(plans, "SystemCoins", lambda *_: played)
        monkeypatch.setattr("discreet.local._rappor.SystemCoins", lambda *_: played)
        return plan.client().randomize(value)

    return coins.play_all(run, root)


def worst_ratio(plan: LocalPlan, values: list[Any], root: Fraction, patch: Any) -> Fraction:
    rows = [play_client(plan, value, root, patch) for value in values]
    assert len({len(report) for row in rows for report in row}) == 1  # one form for all
    assert all(sum(row.values()) == 1 for row in rows)
    _, matrix = coins.tabulate(rows)
    # Every report can come from every value: otherwise the ratio would be infinite.
    assert all(chance > 0 for row in matrix for chance in row)
    assert channel_epsilon(matrix) <= 2 * math.log(root) * (1 + 1e-9) + 1e-15
    return max(max(column) / min(column) for column in zip(*matrix, strict=True))


# Epsilon decides the parameters of a method, and the root stands for e^(epsilon/2).
ODD = [("1e-6", Fraction(1000001, 1000000)), (1, Fraction(7, 5)), (20, Fraction(22026))]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("domain", [1, 2, 3, 4, 5])
def test_every_channel_through_the_door_of_a_client(
    method: str, domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epsilon, root in ODD:
        plan = FrequencyOracle(domain, epsilon, method)
        values = [*range(domain), "not among them"]
        assert worst_ratio(plan, values, root, monkeypatch) == root**2


OTHERS: list[tuple[str, Callable[[Any], LocalPlan], list[Any]]] = [
    ("rappor", lambda e: Rappor(2, e), [0, 1, None]),
    ("Duchi", lambda e: MeanOracle(0, 1, e, "Duchi", steps=2), [0.0, 0.5, 1.0, None, "x"]),
    ("sketch", lambda e: CountMeanSketch(e, width=4, rows=2), ["a", "b", 7, None, 10**9999]),
    ("marginals", lambda e: Marginals({"a": 1, "b": 1}, e), [(0, 0), (5, 0), "odd", None]),
    ("hierarchy", lambda e: Hierarchy(0, 1, e, levels=2, fanout=2), [0.1, 0.9, None, "x", -9]),
]


@pytest.mark.parametrize(("epsilon", "root"), ODD)
@pytest.mark.parametrize("name", [name for name, _, _ in OTHERS])
def test_the_other_plans_through_the_door_of_a_client(
    name: str, epsilon: Any, root: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, values = next((make, values) for one, make, values in OTHERS if one == name)
    assert worst_ratio(make(epsilon), values, root, monkeypatch) <= root**2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["piecewise", "hybrid"])
@pytest.mark.parametrize("epsilon", ["1e-6", 20])
def test_means_on_few_points(method: str, epsilon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discreet.local._means._POINTS", 12)
    root = dict(ODD)[epsilon]
    plan = MeanOracle(0, 1, epsilon, method, steps=4)
    values = [0.0, 0.3, 0.5, 1.0, math.nan, "x"]
    assert worst_ratio(plan, values, root, monkeypatch) <= root**2


class Recorder:
    """A source whose first byte takes every value."""

    def words8(self, size: int) -> np.ndarray:
        assert size == 256
        return np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("epsilon", ["1e-6", "1/3", 1, 20, 100])
@pytest.mark.parametrize(("inside", "outside", "halves"), [(1, 1, 1), (1, 4, 2), (40, 81, 2)])
def test_a_coin_is_exact_in_every_bit(
    epsilon: Any, inside: int, outside: int, halves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 256 first bytes: decided ones have their share, and the open ones the exact rest."""
    rests: list[Callable[[int], tuple[int, int]]] = []

    def open_coins(bounds: Any, size: int, source: object) -> np.ndarray:
        assert size == 1
        rests.append(bounds)
        return np.zeros(size, dtype=bool)

    monkeypatch.setattr(coins, "enclosed_bernoulli", open_coins)
    drawn = coins.SystemCoins(Fraction(epsilon), Recorder())  # type: ignore[arg-type]
    sure = int(drawn.tilted(inside, outside, 256, halves=halves).sum())
    with mpmath.workdps(80):
        exact = mpmath.mpf(Fraction(epsilon).numerator) / Fraction(epsilon).denominator
        odds = inside * mpmath.exp(exact * halves / 2)
        chance = odds / (odds + outside)
        for bits in (1, 8, 40, 100):
            # What the open bytes must still give, of 2^bits each.
            low = sum(rest(bits)[0] for rest in rests)
            high = sum(rest(bits)[1] for rest in rests)
            rest = (256 * chance - sure) * 2**bits
            assert low - mpmath.mpf(10) ** -30 <= rest <= high + mpmath.mpf(10) ** -30
            assert high - low <= 2 * max(1, len(rests))


def test_no_channel_of_unit_vectors_is_claimed() -> None:
    with pytest.raises(NotApplicable):
        VectorOracle(2, 1).channel(2)


KILLED = """
import os, signal, sys
from discreet.local import FrequencyOracle, PersonLedger, Rappor
import discreet.local._person as person
file, where, kind = sys.argv[1:]
plan = Rappor(4, 1) if kind == "rappor" else FrequencyOracle(4, 1)
ledger = PersonLedger.open(file)
saves = 0
write = person.write_file

def dying(*given, **more):
    global saves
    saves += 1
    if where == f"before {saves}":
        os.kill(os.getpid(), signal.SIGKILL)
    write(*given, **more)
    if where == f"after {saves}":
        os.kill(os.getpid(), signal.SIGKILL)

person.write_file = dying
print(ledger.report(plan, 1, repeat=kind == "repeat").hex(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "repeat", "rappor"])
def test_a_kill_never_gives_a_report_for_nothing(kind: str, tmp_path: Path) -> None:
    """Killed before and after every write: whatever was printed has been paid for on the disk."""
    for where in ("before 1", "after 1", "before 2", "after 2", "never"):
        file = tmp_path / f"{kind} {where}.json"
        PersonLedger(2, file=file)
        command = [sys.executable, "-c", KILLED, str(file), where, kind]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        ledger = PersonLedger.open(file)
        printed = bool(done.stdout.strip())
        assert ledger.spent >= printed
        assert ledger.spent == (where != "before 1")
        if printed and kind == "repeat":
            # The remembered report is the one that was sent, and costs nothing again.
            again = ledger.report(FrequencyOracle(4, 1), 1, repeat=True)
            assert again.hex() == done.stdout.strip()
            assert ledger.spent == 1
