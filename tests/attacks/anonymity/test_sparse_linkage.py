"""People are found by a few of their ratings, and absent ones as rarely as stated (S30)."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import betabinom

from discreet.attacks import _sparse_linkage, link_ratings, made_up_ratings, run_attack
from discreet.errors import InvalidValue, NotApplicable

MADE = made_up_ratings(1200, 800, seed=1)
KNOWN = range(150)


def found(known: int, **settings: Any) -> float:
    known_ratings = MADE.known_ratings(KNOWN, known, seed=2)
    result = link_ratings(
        MADE.table, known_ratings.table, truth=known_ratings.truth, seed=3, **settings
    )
    assert result.reidentified is not None
    return result.reidentified.share


def test_six_ratings_find_nearly_everybody_and_one_finds_few() -> None:
    """The lecture's 99 % of those with six ratings, on made-up people; days tell most of it."""
    curve = [found(known) for known in (1, 2, 4, 6, 8)]
    assert curve == sorted(curve)
    assert curve[0] < 0.3
    assert curve[3] > 0.95
    assert found(6, day_scale=None) < 0.5


def most_by_chance(people: int, decoys: int, rate: float) -> int:
    """More false matches than this have a chance below 1e-6, for people like the decoys."""
    rank = math.ceil((1 - rate) * (decoys + 1))
    return int(betabinom.isf(1e-6, people, decoys + 1 - rank, rank))


def false_matches(rate: float) -> int:
    release, known = MADE.without(KNOWN), MADE.known_ratings(KNOWN, 6, seed=2)
    result = link_ratings(
        release.table, known.table, truth={}, false_positive_rate=rate, decoys=300, seed=3
    )
    assert result.false_matches is not None
    assert result.reidentified is None
    return result.false_matches.successes


def test_absent_people_are_matched_as_rarely_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The null target; a threshold at the middle of the decoys, planted, is noticed."""
    assert false_matches(0.05) <= most_by_chance(150, 300, 0.05)
    monkeypatch.setattr(_sparse_linkage, "conformal_threshold", lambda leads, _: np.median(leads))
    assert false_matches(0.05) > most_by_chance(150, 300, 0.05)


def test_files_are_linked_by_the_command_of_all_attacks(tmp_path: Path) -> None:
    known = MADE.known_ratings(range(20), 8, seed=5)
    for name, table in (("released", MADE.table), ("register", known.table)):
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
    paths = {name: str(tmp_path / f"{name}.csv") for name in ("released", "register")}
    run = run_attack("link_ratings", paths, truth=known.truth, seed=1)
    assert run.finding is not None
    assert run.finding.leaks
    assert "name 3" not in json.dumps(run.to_json())
    unknown = link_ratings(**paths, seed=1)
    assert unknown.matched > 10
    with pytest.raises(NotApplicable, match="truth"):
        _ = unknown.finding


SMALL = {
    "person": ["a", "a", "b", "c", "d"],
    "item": ["x", "y", "x", "z", "z"],
    "rating": [1, 2, 5, 3, 4],
    "day": [1, 2, 3, 4, 5],
}


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"released": {**SMALL, "rating": ["good"] * 5}}, "released[rating]"),
        ({"released": {**SMALL, "day": [math.inf] * 5}}, "released[day]"),
        ({"register": {"person": ["a"], "item": ["x"]}}, "register"),
        ({"released": {name: cells[:2] for name, cells in SMALL.items()}}, "released"),
        ({"decoys": 5}, "decoys"),
        ({"rating_scale": 0.0}, "rating_scale"),
        ({"false_positive_rate": 1.0}, "false_positive_rate"),
    ],
)
def test_ratings_that_cannot_be_read_are_refused(change: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        link_ratings(**{"released": SMALL, "register": SMALL, **change})
    assert refused.value.argument.startswith(argument)


def test_unknown_items_and_equal_people_match_nobody() -> None:
    same = {**SMALL, "person": ["a", "b", "c", "d", "e"], "item": ["x"] * 5}
    same |= {"rating": [3] * 5, "day": [1] * 5}
    stranger = {"person": ["n"], "item": ["never seen"], "rating": [3], "day": [1]}
    for register in (same, stranger):
        result = link_ratings(same, register, false_positive_rate=0.05, seed=1)
        assert result.matched == 0
