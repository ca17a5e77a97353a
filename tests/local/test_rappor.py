"""S27: RAPPOR: what memorised answers cover, and what they do not."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue, MechanismHalted
from discreet.local import FrequencyOracle, Rappor
from discreet.mechanisms import channel_epsilon
from discreet.privacy import PureDP
from mechanisms.exact_pairs import REJECT

LN3 = math.log(3)


def test_one_report_has_the_epsilon_of_the_closed_form() -> None:
    plan = Rappor(2, "3/2", high="3/4", low="1/2")
    root = Fraction(7, 5)
    payloads, rows = plan.channel(root)
    assert len(payloads) == 8
    p, q = plan._method.chances(root)
    ratio = max(max(column) / min(column) for column in zip(*rows, strict=True))
    assert ratio == p * (1 - q) / (q * (1 - p)) < root**2
    # With f of the paper: p* = f (p + q) / 2 + (1 - f) p, where f/2 is the chance of a flip.
    half = Fraction(5, 12)
    assert p == half * Fraction(5, 4) + (1 - 2 * half) * Fraction(3, 4)
    assert plan.one_report_epsilon() < 1.5


def law_of_reports(memory: list[Fraction], high: Fraction, low: Fraction, reports: int):
    """The law of the number of ones among the reports of one bit."""
    law = {}
    for ones in range(reports + 1):
        law[ones] = sum(
            chance * rate**ones * (1 - rate) ** (reports - ones)
            for chance, rate in zip(memory, (low, high), strict=True)
        )
    return law


def test_any_number_of_reports_of_one_value_stays_within_epsilon() -> None:
    # Two bits differ between two values; each has odds 3 when epsilon is 2 ln 3.
    right, wrong = Fraction(3, 4), Fraction(1, 4)
    high, low = Fraction(3, 4), Fraction(1, 2)
    for reports in (1, 5, 60):
        one = law_of_reports([wrong, right], high, low, reports)
        zero = law_of_reports([right, wrong], high, low, reports)
        assert max(one[k] / zero[k] for k in one) < 3
        assert max(zero[k] / one[k] for k in one) < 3
    assert float(max(one[k] / zero[k] for k in one)) == pytest.approx(3, abs=0.01)
    # Fresh noise for every report, without memory, costs far more.
    fresh = (right * high + wrong * low) / (wrong * high + right * low)
    assert fresh**60 > 3**6


def test_when_a_value_changed_is_not_covered() -> None:
    """12 reports of one bit that changes once: 2 epsilon does not bound another time of change."""

    def law(
        segments: list[int], values: tuple[int, ...], high: float, low: float
    ) -> dict[tuple[int, ...], float]:
        found = {}
        for ones in product(*(range(size + 1) for size in segments)):
            total = 0.0
            for bits in product((0, 1), repeat=2):
                weight = math.prod(0.75 if bits[value] == value else 0.25 for value in (0, 1))
                for size, count, value in zip(segments, ones, values, strict=True):
                    rate = high if bits[value] else low
                    weight *= rate**count * (1 - rate) ** (size - count)
                total += weight
            found[ones] = total
        return found

    def worst(first: int, second: int, high: float = 0.75, low: float = 0.5) -> float:
        segments = [first, second - first, 12 - second]
        early, late = (law(segments, (0, change, 1), high, low) for change in (1, 0))
        return max(abs(math.log(early[ones] / late[ones])) for ones in early)

    found = max(worst(a, b) for a in range(1, 11) for b in range(a + 1, 12))
    assert found == pytest.approx(2.713, abs=0.001)
    assert found > 2 * LN3
    # With the rates 2/3 and 1/3, changes after the second and after the sixth report.
    assert worst(2, 6, 2 / 3, 1 / 3) == pytest.approx(2.62, abs=0.005)
    assert "when the value changed is not covered" in Rappor(2, LN3, changes=1).covers
    assert "never changes" in Rappor(2, LN3).covers


@pytest.mark.parametrize(
    "change", [{"bits": "1"}, {"bits": "01x"}, {"place": 9}, {"place": -1}, {"changed": -1}]
)
def test_a_memory_that_was_changed_is_refused(change: dict[str, Any]) -> None:
    """One with fewer changes than there were would give some for nothing."""
    plan = Rappor(2, 1, changes=2)
    client = plan.client()
    client.randomize(1)
    assert plan.client(memory=client.memory).memory == client.memory
    with pytest.raises(InvalidValue, match="memory"):
        plan.client(memory={**(client.memory or {}), **change})


def test_averaging_finds_the_memory_and_not_the_value() -> None:
    plan = Rappor(7, 1, high="3/4", low="1/4")
    wrong = 0
    for seed in range(30):
        client = plan.client(insecure_seed=seed)
        reports = np.frombuffer(b"".join(client.randomize(3) for _ in range(100)), dtype=np.uint8)
        bits = np.unpackbits(reports.reshape(100, -1)[:, 12:], axis=1, bitorder="little")
        assert client.sent == 100
        remembered = bits.mean(axis=0) > 0.5
        assert remembered.tolist() == client._memory[0].tolist()
        wrong += not remembered[3]
    # Her own bit is remembered wrongly with chance 1 / (1 + sqrt(e)) = 0.38.
    assert stats.binomtest(wrong, 30, 1 / (1 + math.exp(0.5))).pvalue > REJECT
    assert wrong > 2
    # Without memory the average of 200 reports shows the value every time.
    oracle = FrequencyOracle(7, 1, "SUE")
    for seed in range(5):
        server = oracle.server()
        server.aggregate(oracle.randomize_each([3] * 200, insecure_seed=seed))
        assert int(np.argmax(server.estimate().shares)) == 3


def test_a_second_value_is_refused_unless_it_was_declared() -> None:
    client = Rappor(["a", "b"], 1).client()
    first = client.randomize("a")
    with pytest.raises(MechanismHalted, match="declare more changes"):
        client.randomize("b")
    with pytest.raises(MechanismHalted):
        client.randomize(None)  # outside the domain is another value too
    assert client.sent == 1
    assert len(client.randomize("a")) == len(first)
    plan = Rappor(["a", "b"], "1/2", changes=2)
    assert plan.loss == PureDP("3/2", relation="replace")
    client = plan.client()
    for value in ("a", "a", "b", "b", "a"):  # the old value is remembered afresh
        client.randomize(value)
    with pytest.raises(MechanismHalted):
        client.randomize("b")


def test_a_round_is_estimated_without_bias() -> None:
    plan = Rappor(3, 3)
    clients = [(plan.client(insecure_seed=seed), seed % 2) for seed in range(800)]
    for _ in range(2):
        server = plan.server()
        assert server.aggregate(client.randomize(value) for client, value in clients) == 800
        found = server.estimate()
        error = np.abs(found.shares - [0.5, 0.5, 0, 0]) / np.sqrt(found.variances)
        assert error.max() < stats.norm.isf(REJECT / 8)
    other = Rappor(3, 3, changes=1).server()
    other.aggregate(clients[0][0].randomize(0))
    assert other.rejected == Counter({"another plan": 1})
    assert channel_epsilon(Rappor(1, 3).channel(2)[1]) < 2 * math.log(2)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"high": "1/2", "low": "1/2"}, "low"),
        ({"high": 1.1}, "high"),
        ({"low": -1}, "low"),
        ({"changes": -1}, "changes"),
        ({"epsilon": 0}, "epsilon"),
        ({"domain": 2**16}, "domain"),
    ],
)
def test_bad_plans_are_refused(arguments: dict, name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Rappor(**{"domain": 3, "epsilon": 1, **arguments})
    assert caught.value.argument == name
