"""Linkage of two tables (S30) against a slow twin, and against known truth."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attacks.anonymity import slow_twins as twins
from discreet.attacks import _linkage as linking_module
from discreet.attacks import link_tables, made_up_population, made_up_tables
from discreet.errors import InvalidValue, NotApplicable

rows = st.lists(
    st.fixed_dictionaries(
        {
            "zip": st.sampled_from(["1", "2", ""]),
            "age": st.sampled_from(["10", "11", "12", "20", ""]),
            "size": st.sampled_from(["5", "5.5", "7"]),
        }
    ),
    min_size=1,
    max_size=12,
)
TOLERANCES: list[dict[str, float]] = [
    {},
    {"age": 1},
    {"age": 0},
    {"age": 1, "size": 0.5},
    {"zip": 1, "age": 2, "size": 0.25},
]


@given(rows, rows, st.sampled_from(TOLERANCES), st.sampled_from([1, 5, 1 << 22]))
def test_candidates_are_those_of_the_definition(
    released: list[dict[str, str]],
    register: list[dict[str, str]],
    tolerance: dict[str, float],
    chunk: int,
) -> None:
    keys = ["zip", "age", "size"]
    slow = [twins.candidates(row, register, keys, tolerance) for row in released]
    people = itertools.count()
    left = _columns(released, keys) | {"who": [f"p{n}" for n in range(len(released))]}
    right = _columns(register, keys) | {"who": [f"p{next(people)}" for _ in register]}
    # One number somewhere, or a tolerance for this column would be refused.
    if any(all(row[key] == "" for row in [*released, *register]) for key in tolerance):
        return
    kept, linking_module._CHUNK_PAIRS = linking_module._CHUNK_PAIRS, chunk
    try:
        found = link_tables(left, right, on=keys, tolerance=tolerance, truth="who")
    finally:
        linking_module._CHUNK_PAIRS = kept
    assert found.match.tolist() == [some[0] if len(some) == 1 else -1 for some in slow]
    assert found.candidate_counts["0"] == sum(not some for some in slow)
    assert sum(found.candidate_counts.values()) == len(released)
    right_rows = [at in some for at, some in enumerate(slow)]
    assert found.correct_matches == sum(
        len(some) == 1 and right for some, right in zip(slow, right_rows, strict=True)
    )
    assert found.truth is not None
    expected = sum(1 / len(some) for some, right in zip(slow, right_rows, strict=True) if right)
    assert found.truth.expected_correct == pytest.approx(expected)
    assert found.truth.people_in_both == min(len(released), len(register))


def _columns(table: list[dict[str, str]], keys: list[str]) -> dict[str, list[str]]:
    return {key: [row[key] for row in table] for key in keys}


def test_hand_made_linkage_with_dates_other_names_and_coarse_keys() -> None:
    released = {
        "plz": ["10115", "10117", "20095"],
        "born": ["1980-01-31", "1980-02-01", ""],
        "sex": ["F", "F", "M"],
    }
    register = {
        "zip": ["10119", "20095", "10115"],
        "birth": ["1980-02-02", "1950-05-05", "1999-09-09"],
        "sex": ["F", "M", "F"],
    }
    names = {"plz": "zip", "born": "birth", "sex": "sex"}
    exact = link_tables(released, register, on=names)
    assert (exact.unique_matches, exact.linkable_rows) == (0, 2)
    wide = link_tables(
        released, register, on=names, tolerance={"born": 2}, generalise=["plz:prefix=3"]
    )
    # Both women are two days or less from the one in the register: two matches, none mutual.
    assert wide.match.tolist() == [0, 0, -1]
    assert (wide.unique_matches, wide.mutual_matches) == (2, 0)
    with pytest.raises(NotApplicable, match="truth"):
        assert wide.correct_matches
    assert wide.to_json()["truth"] is None


def test_the_example_is_re_identified_and_a_shuffled_register_is_not() -> None:
    tables = made_up_tables(20_000, moved=0, misread=0, coverage=1, seed=7)
    keys = ["zip", "birth", "sex"]
    found = link_tables(tables.released, tables.register, on=keys, truth="person")
    assert found.truth is not None
    # The register is complete and without errors: the right row is always a candidate.
    assert found.truth.people_in_both == found.released_rows == 2000
    assert found.truth.precision is not None
    assert found.truth.precision.share == 1.0
    assert found.truth.reidentified.share == found.unique_share > 0.5
    # Names that belong to others: matches as many, but right ones only by chance, 1 in 20,000.
    shuffled = dict(tables.register)
    shuffled["person"] = np.random.default_rng(1).permutation(shuffled["person"])
    planted = link_tables(tables.released, shuffled, on=keys, truth="person")
    assert planted.unique_matches == found.unique_matches
    # Poisson with mean 0.1: 8 or more happen with probability below 1e-13.
    assert planted.correct_matches < 8


def test_errors_in_the_register_cost_matches_and_tolerance_wins_some_back() -> None:
    tables = made_up_tables(5_000, moved=0, misread=0.5, coverage=1, seed=8)
    keys = ["zip", "birth", "sex"]
    exact = link_tables(tables.released, tables.register, on=keys, truth="person")
    near = link_tables(
        tables.released, tables.register, on=keys, tolerance={"birth": 1}, truth="person"
    )
    assert exact.correct_matches < near.correct_matches
    assert near.truth is not None
    assert near.truth.people_in_both == 500


def test_truth_never_helps_to_match() -> None:
    tables = made_up_tables(3_000, seed=9)
    keys = ["zip", "birth", "sex"]
    with_truth = link_tables(tables.released, tables.register, on=keys, truth="person")
    without = link_tables(tables.released, tables.register, on=keys)
    assert with_truth.match.tolist() == without.match.tolist()


def test_the_made_up_population_is_repeatable_and_of_the_documented_shape(tmp_path: Path) -> None:
    people = made_up_population(50_000, seed=1)
    again = made_up_population(50_000, seed=1)
    assert all(np.array_equal(people[name], again[name]) for name in people)
    assert sorted(people["person"].tolist()) == list(range(1, 50_001))
    assert len(set(people["zip"].tolist())) == 6
    ages = (np.datetime64("2024-01-01") - people["birth"]).astype(int) / 365.25
    assert ages.min() >= 0
    assert ages.max() <= 100
    old, young = ages > 80, ages < 20
    assert np.mean(people["sex"][old] == "F") > np.mean(people["sex"][young] == "F")
    ill = people["diagnosis"] != "none"
    assert ill[old].mean() > ill[young].mean() + 0.1
    left, right = made_up_tables(100, seed=1).write(tmp_path)
    assert left.read_text(encoding="utf-8").startswith("person,zip,birth,sex,diagnosis\n")
    assert right.read_text(encoding="utf-8").startswith("person,zip,birth,sex,name\n")
    assert link_tables(left, right, on=["zip", "birth", "sex"], truth="person").correct_matches > 0


ONE = {"zip": ["1"], "age": ["3"], "who": ["a"]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"on": []}, "on"),
        ({"on": "zip"}, "on"),
        ({"on": ["zip", "zip"]}, "on"),
        ({"on": {"zip": "zip", "age": "zip"}}, "on"),
        ({"on": ["zap"]}, "released"),
        ({"on": {"zip": "zap"}}, "register"),
        ({"tolerance": {"who": 1}}, "tolerance"),
        ({"tolerance": {"age": -1}}, "tolerance"),
        ({"tolerance": {"zip": 1}, "generalise": ["zip:prefix=1"]}, "generalise"),
        ({"generalise": ["who:drop"]}, "generalise"),
        ({"truth": "zip"}, "truth"),
        ({"truth": ("who",)}, "truth"),
        ({"truth": "nobody"}, "released"),
        ({"confidence": 1}, "confidence"),
        ({"register": {"zip": [], "age": []}}, "register"),
        ({"register": {**ONE, "who": [""]}, "truth": "who"}, "truth"),
        ({"register": {key: value * 2 for key, value in ONE.items()}, "truth": "who"}, "truth"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], named: str) -> None:
    arguments: dict[str, object] = {"released": ONE, "register": ONE, "on": ["zip", "age"]}
    with pytest.raises(InvalidValue) as caught:
        link_tables(**(arguments | change))  # type: ignore[arg-type]
    assert caught.value.argument == named


def test_a_tolerance_for_texts_and_too_many_pairs_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {"zip": ["x", "y"], "age": ["1", "2"]}
    with pytest.raises(InvalidValue, match="numbers or of dates"):
        link_tables(texts, texts, on=["zip"], tolerance={"zip": 1})
    monkeypatch.setattr(linking_module, "_MOST_PAIRS", 3)
    with pytest.raises(InvalidValue, match="fewer pairs"):
        link_tables(
            {"a": ["1", "1"], "b": ["1", "1"]},
            {"a": ["1", "1"], "b": ["1", "1"]},
            on=["a", "b"],
            tolerance={"a": 1, "b": 1},
        )


def test_whole_numbers_and_times_agree_whatever_wrote_them(tmp_path: Path) -> None:
    """A gap turns a column of numbers into floats; a time of the day, one of days into times."""
    plain = pd.DataFrame({"zip": [2139, 2141, 0], "born": ["1970-01-01", "1970-01-02", ""]})
    gaps = pd.DataFrame({"zip": [2139, 2141, np.nan, -0.0], "born": ["1970-01-01"] * 4})
    gaps["born"] = pd.to_datetime(gaps["born"]) + pd.to_timedelta([0, 24, 25, 26], unit="h")
    forms = []
    for name, frame in (("plain", plain), ("gaps", gaps)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        forms.append([frame, tmp_path / f"{name}.csv"])
    assert "2139.0" in forms[1][1].read_text(encoding="utf-8")
    assert "1970-01-01 00:00:00" in forms[1][1].read_text(encoding="utf-8")
    for released, register in itertools.product(*forms):
        for one, other in ((released, register), (register, released)):
            assert link_tables(one, other, on=["zip"]).unique_matches == 3
            assert link_tables(one, other, on=["zip", "born"]).unique_matches == 2
    texts = {"zip": ["02139", "2139.5", "2139.00"]}
    assert link_tables(texts, plain, on=["zip"]).match.tolist() == [-1, -1, 0]


def test_times_of_the_day_are_not_held_against_days() -> None:
    days = pd.DataFrame({"born": ["1970-01-01", "1970-01-02"]})
    times = pd.DataFrame({"born": pd.to_datetime(days["born"]) + pd.to_timedelta("13h")})
    for one, other in ((days, times), (times, days)):
        with pytest.raises(InvalidValue, match="born:day"):
            link_tables(one, other, on=["born"])
        assert link_tables(one, other, on=["born"], generalise=["born:day"]).unique_matches == 2
        assert link_tables(one, other, on=["born"], tolerance={"born": 0.6}).unique_matches == 2
    assert link_tables(times, times, on=["born"]).unique_matches == 2
