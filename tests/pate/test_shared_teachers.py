"""S17, S24: teachers that share records, each record in at most ``cap`` of them."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from discreet.errors import InvalidValue
from discreet.pate import PATEClassifier, SampledVotes, check_disjoint, partition_records
from discreet.pate import teacher_votes as train
from discreet.pate._stable_votes import lead_distance
from mechanisms.exact_runs import at_least
from oracles.vote_labels import histograms, moved

VALUES = np.array([0, 1, 1, 2, 0, 0, 3, 1, 2, 5, 5, 4])[:, None].astype(float)


def contents(rows: Any, **how: Any) -> list[Any]:
    parts = partition_records(rows, **{"teachers": 6, "cap": 2, "insecure_seed": 3, **how})
    return [rows[parts.members(teacher)].ravel().tolist() for teacher in range(parts.teachers)]


def changed(before: list[Any], after: list[Any]) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_removed_record_changes_at_most_cap_teachers(cap: int) -> None:
    found = set()
    for seed in range(4):
        whole = contents(VALUES, cap=cap, insecure_seed=seed)
        mixed = contents(VALUES[::-1], cap=cap, insecure_seed=seed)
        assert mixed == whole
        for at in range(len(VALUES)):
            less = contents(np.delete(VALUES, at, axis=0), cap=cap, insecure_seed=seed)
            found.add(changed(whole, less))
    assert max(found) == cap
    assert min(found) >= 1


def test_persons_and_replaced_records_have_at_most_cap_teachers() -> None:
    names = np.array(["ann", "bob", "ann", "cy", "", "bob", "ann", "di", "cy", "di", "ann", "bob"])
    numbers = np.arange(12.0)[:, None]
    whole = contents(numbers, persons=names)
    for person in ("ann", "bob", "cy", "di"):
        kept = names != person
        assert 1 <= changed(whole, contents(numbers[kept], persons=names[kept])) <= 2
    assert all(4.0 not in part for part in whole)  # no name, no teacher
    other = numbers.copy()
    other[5] = 99.0
    key = bytes(range(32))
    facts = {"relation": "replace", "key": key}
    assert 1 <= changed(contents(numbers, **facts), contents(other, **facts)) <= 2


def test_each_record_has_about_cap_teachers_and_the_first_is_the_same() -> None:
    rows = np.arange(500.0)[:, None]
    alone, shared = (
        partition_records(rows, teachers=50, cap=cap, insecure_seed=1) for cap in (1, 3)
    )
    seen = np.zeros(500, dtype=int)
    for teacher in range(50):
        members = shared.members(teacher)
        assert len(set(members.tolist())) == len(members)
        assert set(alone.members(teacher).tolist()) <= set(members.tolist())
        seen[members] += 1
    assert seen.max() == 3
    assert 2.8 < seen.mean() <= 3
    assert shared.record["disjoint"] is False
    assert shared.record["teachers_per_record"] == 3
    assert "teachers_per_record" not in alone.record


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_a_record_moves_2_cap_votes_in_l1_and_root_2_times_cap_in_l2(cap: int) -> None:
    """By enumeration of all votes of ``cap`` teachers before and after."""
    classes = 3
    l1, l2 = 0.0, 0.0
    for before in combinations_with_replacement(range(classes), cap):
        for after in product(range(classes), repeat=cap):
            change = np.bincount(before, minlength=classes) - np.bincount(after, minlength=classes)
            l1 = max(l1, float(np.abs(change).sum()))
            l2 = max(l2, float(np.linalg.norm(change)))
    assert l1 == 2 * cap
    assert l2 == pytest.approx(math.sqrt(2) * cap)
    # Planted: votes that move as if each went its own way.
    assert (l2 <= math.sqrt(2 * cap) + 1e-9) == (cap == 1)


def excess(cap: int, claimed: int) -> float:
    """By how much delta of one answer passes the stated one, over all reachable votes."""
    teachers = 4 * claimed
    votes = SampledVotes(classes=3, teachers=teachers, cap=claimed, epsilon="1/2", delta=0.2)
    test = votes.test

    def law(counts: tuple[int, ...]) -> dict[object, float]:
        distance = lead_distance(np.array(counts), cap=claimed)
        passed = float(at_least(2.0, np.array(test.threshold - distance)))
        return {int(np.argmax(counts)): passed, None: 1 - passed}

    worst = -1.0
    for counts in histograms(teachers, 3):
        reached = {counts}
        for _ in range(cap):
            reached |= {other for one in reached for other in moved(one)}
        here = law(counts)
        for other in reached:
            there = law(other)
            found = sum(max(0.0, p - math.exp(0.5) * there.get(o, 0.0)) for o, p in here.items())
            worst = max(worst, found - float(test.delta))
    return worst


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_the_loss_of_an_answer_covers_cap_votes_and_not_twice_as_many(cap: int) -> None:
    assert excess(cap, claimed=cap) <= 1e-12
    assert excess(2 * cap, claimed=cap) > 0.005


def nearest(rows: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
    if not len(y):
        return np.zeros(len(queries), dtype=np.int64)
    return y[np.argmin(np.abs(queries - rows.T), axis=1)]


def test_shared_teachers_are_refused_where_one_vote_is_paid_for() -> None:
    labels = (VALUES[:, 0] > 1).astype(np.int64)
    asked = np.array([[0.0], [3.0]])
    parts = partition_records(VALUES, labels, teachers=6, cap=2, insecure_seed=3)
    with pytest.raises(InvalidValue, match="SampledVotes"):
        train(parts, VALUES, labels, asked, teacher=nearest, classes=2)
    votes = train(parts, VALUES, labels, asked, teacher=nearest, classes=2, cap=2)
    assert votes.sum(axis=1).tolist() == [6, 6]
    with pytest.raises(InvalidValue, match="at most 2 parts"):
        check_disjoint([np.array([0])] * 3, rows=1, cap=2)
    check_disjoint([np.array([0])] * 2, rows=1, cap=2)
    for cap in (0, 7):
        with pytest.raises(InvalidValue, match="cap"):
            partition_records(VALUES, teachers=6, cap=cap)


def test_a_classifier_trains_the_teachers_that_its_aggregator_pays_for() -> None:
    generator = np.random.default_rng(5)
    codes = generator.integers(0, 2, 600)
    rows = np.stack([3.0 * codes, -3.0 * codes], axis=1) + generator.normal(size=(600, 2))
    votes = SampledVotes(classes=2, teachers=60, cap=2, epsilon=2, delta=1e-4)
    model = PATEClassifier(
        classes=[0, 1],
        epsilon=30.0,
        delta=1e-2,
        teacher=GaussianNB(var_smoothing=1e-2),
        aggregator=votes,
        queries=10,
        teachers=60,
        insecure_seed=4,
    ).fit(rows, codes, public=rows[:40] + 0.1)
    plan = model.certificate_.plan
    assert plan["partition"]["disjoint"] is False
    assert plan["partition"]["teachers_per_record"] == plan["aggregator"]["cap"] == 2
    assert model.certificate_.loss == votes.loss(queries=10)
