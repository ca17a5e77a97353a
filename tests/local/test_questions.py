"""Marginals, ranges and quantiles: one question a person, whole channels, joint intervals."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from discreet.errors import InvalidValue, NotApplicable
from discreet.local import ELSE, Hierarchy, Marginals
from discreet.local._coins import Coins
from discreet.mechanisms import channel_epsilon

ROOT = Fraction(7, 5)
PEOPLE = {"sex": ["f", "m"], "smokes": ["no", "yes"], "age": 3}


@pytest.mark.parametrize(
    "plan",
    [
        Marginals({"a": 1, "b": 1, "c": 1}, "1/2", ways=1),
        Marginals({"a": 1, "b": 2}, 1, ways=2),
        Hierarchy(0, 1, 1, levels=2, fanout=2),
    ],
    ids=["one way", "two ways", "hierarchy"],
)
def test_the_whole_channel_has_exactly_the_stated_odds(plan: Marginals | Hierarchy) -> None:
    _, rows = plan.channel(ROOT)
    assert all(sum(row) == 1 for row in rows)
    columns = list(zip(*rows, strict=True))
    assert max(max(column) / min(column) for column in columns) == ROOT**2
    assert channel_epsilon(rows) == pytest.approx(2 * math.log(1.4), rel=1e-12)


def test_a_question_that_looks_at_the_value_shows_in_the_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Marginals({"a": 1, "b": 1}, 1, ways=1)
    honest = plan._method.randomize

    def peek(places: np.ndarray, coins: Coins) -> np.ndarray:
        good = honest(places, coins)
        good[:, 0] = places[:, 0]  # the question follows the value
        return good

    monkeypatch.setattr(plan._method, "randomize", peek)
    assert channel_epsilon(plan.channel(ROOT)[1]) == math.inf


def test_marginals_are_covered_together() -> None:
    rng = np.random.default_rng(3)
    plan = Marginals(PEOPLE, 3)
    rows = [
        (str(s), str(k), int(a))
        for s, k, a in zip(
            rng.choice(["f", "m", "x"], 30_000, p=[0.5, 0.45, 0.05]),
            rng.choice(["no", "yes"], 30_000, p=[0.8, 0.2]),
            rng.integers(0, 4, 30_000),
            strict=True,
        )
    ]
    server = plan.server()
    assert server.aggregate(plan.randomize_each(rows, insecure_seed=1)) == 30_000
    found, seen = server.estimate(), Counter(rows)
    assert list(found) == [("sex", "smokes"), ("sex", "age"), ("smokes", "age")]
    for names, estimate in found.items():
        at = [list(PEOPLE).index(name) for name in names]
        low, high = estimate.interval(confidence=1 - 1e-7)
        for cell, a, b in zip(estimate.values, low, high, strict=True):
            if cell is ELSE:
                assert a == 0
                continue
            true = sum(
                count
                for row, count in seen.items()
                if all(
                    one == row[i] or (one is ELSE and row[i] in ("x", 3))
                    for one, i in zip(cell, at, strict=True)
                )
            ) / len(rows)
            assert a <= true <= b
            assert b - a < 0.2


def test_rows_that_are_none_are_reported_all_the_same() -> None:
    plan = Marginals(PEOPLE, 1)
    odd = [None, "f", ("f",), {"sex": "f"}, {"sex": ["f"], "other": 1}, 7, ("f", "no", math.nan)]
    reports = plan.randomize_each(odd)
    assert reports.shape == (len(odd), plan.report_bytes)
    assert plan.server().aggregate(reports) == len(odd)
    for wrong in ("text", 5):
        with pytest.raises(InvalidValue, match="values"):
            plan.randomize_each(wrong)
    for domains, ways in (({}, 1), ({"a": 2}, 2), ([1], 1)):
        with pytest.raises(InvalidValue):
            Marginals(domains, 1, ways=ways)  # type: ignore[arg-type]


def test_hostile_reports_of_a_question_are_counted_not_believed() -> None:
    plan = Hierarchy(0, 1, 1, levels=3)
    good = plan.randomize_each([0.5] * 50)
    beyond = good.copy()
    beyond[:, 12] = 200  # no such question
    padded = good.copy()
    padded[:, -1] |= 128
    server = plan.server()
    assert server.aggregate(beyond) == 0
    assert server.rejected == {"impossible": 50}
    assert server.aggregate(good) == 50
    server.aggregate(padded)
    assert server.rejected["impossible"] > 50
    other = Hierarchy(0, 2, 1, levels=3).server()
    assert other.aggregate(good) == 0
    assert other.rejected == {"another plan": 50}
    with pytest.raises(InvalidValue):
        server.merge(other)
    with pytest.raises(NotApplicable):
        other.estimate()


def test_ranges_and_quantiles() -> None:
    plan = Hierarchy(0, 100, 4, levels=3, fanout=4)
    numbers = np.concatenate([np.random.default_rng(5).normal(40, 10, 40_000), [np.nan] * 100])
    server, second = plan.server(), plan.server()
    server.aggregate(plan.randomize_each(numbers[:20_000], insecure_seed=2))
    second.aggregate(plan.randomize_each(numbers[20_000:], insecure_seed=3))
    server.merge(second)
    found = server.estimate()
    for low, high in ((0, 25), (25, 50), (31.25, 46.875), (0, 100), (50, 51.5625)):
        share, variance = found.share(low, high)
        true = np.mean((numbers >= low) & (numbers < high))
        assert abs(share - true) < 6 * math.sqrt(variance) + 6 * math.sqrt(true / 13_000)
        a, b = found.interval(low, high, confidence=1 - 1e-7)
        assert a <= true <= b
    for level, value in ((0.25, 33.3), (0.5, 40.0), (0.9, 52.8)):
        assert abs(found.quantile(level) - value) < 4
    with pytest.raises(InvalidValue, match="level"):
        found.quantile(1.0)
    with pytest.raises(InvalidValue, match="high"):
        found.share(50, 40)
    for wrong in (
        {"low": 1, "high": 0},
        {"low": 0, "high": 1, "levels": 20},
        {"low": 0, "high": math.inf},
    ):
        with pytest.raises(InvalidValue):
            Hierarchy(epsilon=1, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="values"):
        plan.randomize_each([[1.0]])


def test_nodes_of_every_range_make_it_up_exactly_once() -> None:
    plan = Hierarchy(0, 27, 1, levels=3, fanout=3)
    server = plan.server()
    server.aggregate(plan.randomize_each(np.arange(27.0).repeat(20)))
    found = server.estimate()
    for start in range(27):
        for end in range(start + 1, 28):
            seen = np.zeros(27, dtype=int)
            nodes = found._nodes(start, end)
            for level, which in nodes:
                width = 3 ** (2 - level)
                seen[which.start * width : which.stop * width] += 1
            assert seen[start:end].tolist() == [1] * (end - start)
            assert seen.sum() == end - start
            assert sum(which.stop - which.start for _, which in nodes) <= 3 * 4
