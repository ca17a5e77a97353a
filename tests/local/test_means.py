"""S27: means in the local model: whole channels, unbiased, with the variances of the papers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue, NotApplicable
from discreet.local import MEAN_METHODS, MeanOracle
from discreet.mechanisms import channel_epsilon
from discreet.privacy import PureDP
from mechanisms.exact_pairs import REJECT


@pytest.mark.parametrize("method", MEAN_METHODS)
def test_the_whole_channel_has_exactly_the_stated_odds_and_means(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discreet.local._means._POINTS", 9)
    root = Fraction(7, 5)
    oracle = MeanOracle(-1, 1, 2 * math.log(1.4), method, steps=4)
    payloads, rows = oracle.channel(root)
    assert len(rows) == 5
    assert all(sum(row) == 1 for row in rows)
    assert max(max(column) / min(column) for column in zip(*rows, strict=True)) == root**2
    assert channel_epsilon(rows) == pytest.approx(2 * math.log(1.4), rel=1e-12)
    # The mean of what the reports say is the number, and the variance is the stated one.
    says = oracle.estimates()[[int.from_bytes(one, "little") for one in payloads]]
    for number, row in zip(np.linspace(-1, 1, 5), rows, strict=True):
        chances = np.array([float(chance) for chance in row])
        assert chances @ says == pytest.approx(number, abs=1e-9)
        variance = chances @ (says - number) ** 2
        assert variance == pytest.approx(oracle.variance(1, number=float(number)), rel=1e-9)


def test_variances_of_the_literature() -> None:
    expected = {
        "Duchi": (16.7, 4.68, 1.72, 1.08),
        "piecewise": (21.2, 5.22, 1.23, 0.241),
        "hybrid": (16.7, 4.29, 1.04, 0.219),
    }
    for method, row in expected.items():
        for epsilon, worst in zip((0.5, 1, 2, 4), row, strict=True):
            oracle = MeanOracle(-1, 1, epsilon, method)
            found = max(oracle.variance(1, number=x) for x in np.linspace(-1, 1, 41))
            assert found == pytest.approx(worst, rel=0.006), (method, epsilon)
    h = math.exp(0.5)
    oracle = MeanOracle(-1, 1, 1, "piecewise")
    for x in (0.0, 0.3, 1.0):
        closed = x**2 / (h - 1) + (h + 3) / (3 * (h - 1) ** 2)
        assert oracle.variance(1, number=x) == pytest.approx(closed, rel=2e-3)
    assert MeanOracle(-1, 1, 4).method == "hybrid"


@pytest.mark.parametrize("method", MEAN_METHODS)
def test_estimates_are_unbiased_and_bad_reports_are_counted(method: str) -> None:
    oracle = MeanOracle(10, 20, 1, method)
    numbers = np.concatenate((np.full(30_000, 12.0), np.full(10_000, 99.0)))  # 99 counts as 20
    reports = oracle.randomize_each(numbers, insecure_seed=8)
    server = oracle.server()
    assert server.aggregate(reports) == 40_000
    found = server.estimate()
    variance = 0.75 * oracle.variance(40_000, number=12) + 0.25 * oracle.variance(40_000, number=20)
    assert abs(found.mean - 14) < stats.norm.isf(REJECT) * math.sqrt(variance)
    assert abs(found.mean - 15) > stats.norm.isf(REJECT) * math.sqrt(variance)
    low, high = found.interval(confidence=1 - REJECT)
    assert low < 14 < high
    assert found.loss == PureDP(1, relation="replace")
    header = reports[0, :12].tobytes()
    other = MeanOracle(10, 20, 2, method).randomize_each([12.0])
    assert server.aggregate([header + b"\xff" * (oracle.report_bytes - 12), b"", None]) == 0
    assert server.aggregate(other) == 0
    assert server.rejected == {
        "impossible": 1,
        "wrong length": 1,
        "not a report": 1,
        "another plan": 1,
    }


def test_what_is_no_number_becomes_the_middle() -> None:
    oracle = MeanOracle(0, 8, 1, steps=8)
    given = [math.nan, None, -math.inf, math.inf, 3.2, -5]
    assert oracle._read(given).tolist() == [4, 4, 0, 8, 3, 0]
    # One person is never silent about a value that cannot be read; a whole batch is refused.
    for odd in ("x", [1.0], 10**400, np.zeros((2, 2)), None, object()):
        assert oracle._identify(odd) == oracle._identify(4.0)
        assert len(oracle.client().randomize(odd)) == oracle.report_bytes
    for wrong in ("abc", [[1.0]], 3.0, [10**400], ["x"]):
        with pytest.raises(InvalidValue, match="withheld"):
            oracle.randomize_each(wrong)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((1, 1, 1), "high"),
        ((-1e308, 1e308, 1), "high"),
        ((math.nan, 1, 1), "low"),
        ((0, 1, 0), "epsilon"),
        ((0, 1, 21), "epsilon"),
        ((0, 1, 1, "Laplace"), "method"),
    ],
)
def test_bad_plans_are_refused(arguments: tuple, name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        MeanOracle(*arguments)
    assert caught.value.argument == name
    with pytest.raises(NotApplicable, match="no report"):
        MeanOracle(0, 1, 1).server().estimate()
