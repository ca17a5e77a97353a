"""S27: reports as bytes, and what a collector does with bad ones."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.local import (
    METHODS,
    CountMeanSketch,
    FrequencyOracle,
    Hierarchy,
    LocalPlan,
    Marginals,
    MeanOracle,
    Rappor,
    VectorOracle,
)
from discreet.randomness import source


def test_the_format_is_the_documented_one() -> None:
    oracle = FrequencyOracle(["a", "b"], "1/2", "GRR")
    report = oracle.client().randomize("a")
    names = hashlib.sha256(json.dumps(["a", "b"]).encode()).hexdigest()
    plan = f'{{"domain":"sha256 {names}","epsilon":"1/2","method":"GRR"}}'
    assert report[:4] == b"DL\x01\x01"
    assert report[4:12] == hashlib.sha256(plan.encode()).digest()[:8]
    assert len(report) == 13 == oracle.report_bytes
    assert report[12] < 3


@pytest.mark.parametrize("method", METHODS)
def test_bad_reports_are_counted_and_the_good_ones_are_not_lost(method: str) -> None:
    oracle = FrequencyOracle(20, 1, method)
    good = [row.tobytes() for row in oracle.randomize_each(range(20))]
    plans = [
        FrequencyOracle(20, 2, method),
        FrequencyOracle(21, 1, method),
        FrequencyOracle([str(n) for n in range(20)], 1, method),
        FrequencyOracle(20, 1, "SUE" if method == "OUE" else "OUE"),
    ]
    others = [other.randomize_each([0])[0].tobytes()[: len(good[0])] for other in plans]
    others = [one for one in others if len(one) == len(good[0])]
    version = good[0][:2] + b"\x02" + good[0][3:]
    impossible = good[0][:12] + b"\xff" * (len(good[0]) - 12)
    bad = [b"", good[0][:-1], good[0] + b"x", 7, None, "text", b"XX" + good[0][2:], version]
    server = oracle.server()
    assert server.aggregate([*bad[:4], *good, *bad[4:], *others, impossible]) == 20
    assert server.accepted == 20
    expected = {"wrong length": 3, "not a report": 4, "another version": 1, "impossible": 1}
    if others:
        expected["another plan"] = len(others)
    assert server.rejected == expected
    clean = oracle.server()
    clean.aggregate(good)
    assert server.estimate().shares.tolist() == clean.estimate().shares.tolist()
    assert server.estimate().rejected == expected


def test_reports_that_no_client_sends_are_impossible() -> None:
    def impossible(method: str, domain: int, payload: bytes) -> int:
        oracle = FrequencyOracle(domain, 1, method)
        server = oracle.server()
        header = oracle.client().randomize(0)[:12]
        assert len(payload) == oracle.report_bytes - 12
        server.aggregate(header + payload)
        return server.rejected["impossible"]

    assert impossible("GRR", 4, b"\x05")
    assert not impossible("GRR", 4, b"\x04")
    assert impossible("OUE", 4, b"\x20")  # a bit after the last value
    assert not impossible("OUE", 4, b"\x1f")
    assert impossible("SS", 9, b"\x00\x00")
    assert impossible("PGR", 9, b"\x00")  # zero is orthogonal to everything
    assert not impossible("OLH", 9, b"\x00")
    assert impossible("HR", 9, b"\x10")


@given(st.sampled_from(METHODS), st.lists(st.binary(max_size=24), max_size=20), st.data())
def test_any_bytes_are_counted_once(method: str, noise: list[bytes], data: st.DataObject) -> None:
    oracle = FrequencyOracle(9, 1, method)
    header = oracle.client().randomize(0)[:12]
    cut = data.draw(st.integers(0, 12))
    hostile = noise + [header[:cut] + one for one in noise] + [header + one for one in noise]
    server = oracle.server()
    accepted = server.aggregate(hostile)
    assert accepted + sum(server.rejected.values()) == len(hostile)
    if accepted:
        shares = server.estimate().shares
        assert np.isfinite(shares).all()


PLANS = [
    Rappor(9, 1),
    MeanOracle(0, 1, 1, "Duchi"),
    MeanOracle(0, 1, 1, "hybrid"),
    Marginals({"a": 2, "b": 3}, 1),
    Hierarchy(0, 1, 1, levels=2),
    CountMeanSketch(1, width=8, rows=3),
    VectorOracle(3, 1),
]


@given(st.sampled_from(PLANS), st.lists(st.binary(max_size=20), max_size=12), st.data())
def test_servers_of_all_plans_count_any_bytes_once(
    plan: LocalPlan, noise: list[bytes], data: st.DataObject
) -> None:
    report = plan._report(None, source())
    payloads = data.draw(st.lists(st.binary(min_size=len(report) - 12, max_size=len(report) - 12)))
    hostile = [*noise, *(report[:12] + one for one in noise + payloads)]
    server = plan.server()
    reasons = [server.refusal(one) for one in hostile]
    accepted = server.aggregate(hostile)
    # What is said of each alone is what becomes of all together.
    assert accepted == reasons.count(None)
    assert server.rejected == Counter(one for one in reasons if one is not None)


def test_what_is_no_batch_at_all_is_refused() -> None:
    server = FrequencyOracle(9, 1).server()
    for wrong in (7, None, np.zeros(5, dtype=np.uint8), np.zeros((2, 13))):
        with pytest.raises(InvalidValue, match="reports"):
            server.aggregate(wrong)
    assert server.aggregate(np.zeros((3, 5), dtype=np.uint8)) == 0
    assert server.rejected == {"wrong length": 3}
    assert server.aggregate([]) == 0
