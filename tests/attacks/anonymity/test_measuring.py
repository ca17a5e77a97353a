"""Uniqueness, k-anonymity, l-diversity and t-closeness (S30) against slow twins."""

import datetime as dt
import math
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attacks.anonymity import slow_twins as twins
from discreet.attacks import (
    AnonymityResult,
    Generalisation,
    made_up_population,
    measure_anonymity,
    read_coded,
)
from discreet.errors import InvalidValue

HOSPITAL = {
    "zip": ["02139", "02139", "02139", "02141", "02141", "02142"],
    "sex": ["F", "F", "M", "M", "M", "F"],
    "age": [30, 30, 41, 52, 52, 67],
    "ill": ["flu", "flu", "flu", "flu", "cold", "cancer"],
}


def test_a_table_small_enough_to_count_by_hand() -> None:
    found = measure_anonymity(
        HOSPITAL, quasi_identifiers=["zip", "sex"], sensitive=["ill"], k=[2, 3], diversity=[2]
    )
    profile = found.profile
    # Groups: (02139, F) x 2, (02139, M), (02141, M) x 2, (02142, F).
    assert (profile.rows, profile.groups, profile.k, profile.unique_rows) == (6, 4, 1, 2)
    assert dict(profile.rows_below_k) == {2: 2, 3: 6}
    assert dict(profile.sizes) == {1: 2, 2: 2}
    assert profile.expected_hits == 4 / 6
    assert found.group_size_of_row.tolist() == [2, 2, 1, 2, 2, 1]
    assert found.most_exposed(2).tolist() == [2, 5]
    ill = profile.sensitive[0]
    # Only (02141, M) has two diagnoses.
    assert dict(ill.rows_below_l) == {2: 4}
    assert (ill.distinct_l, ill.entropy_l, ill.distance) == (1, 1.0, "categories")
    # The group of the one cancer: 1/2 (|1 - 1/6| + |0 - 4/6| + |0 - 1/6|).
    assert math.isclose(ill.closeness_t, 5 / 6)
    # The commonest diagnosis of the own group is right for 2 + 1 + 1 + 1 of 6, that of all for 4.
    assert math.isclose(ill.mean_gain, 5 / 6 - 4 / 6)
    by_columns = {profile.columns: profile.k for profile in found.subsets}
    assert by_columns == {("zip",): 1, ("sex",): 3}


small_tables = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ab", ""]),
        st.sampled_from(["0", "1", "x"]),
        st.sampled_from(["1", "2", "5", "7"]),
        st.sampled_from(["flu", "cold", "none"]),
    ),
    min_size=1,
    max_size=30,
)


@given(small_tables)
def test_measures_are_those_of_the_definitions(rows: list[tuple[str, str, str, str]]) -> None:
    columns = dict(zip("abns", map(list, zip(*rows, strict=True)), strict=True))
    found = measure_anonymity(columns, quasi_identifiers=["a", "b"], sensitive=["n", "s"])
    groups = twins.groups_of([row[:2] for row in rows])
    sizes = [len(places) for places in groups.values()]
    assert found.profile.k == min(sizes)
    assert found.profile.groups == len(groups)
    assert found.profile.unique_rows == sizes.count(1)
    for k, below in found.profile.rows_below_k.items():
        assert below == sum(size for size in sizes if size < k)
    numbers, names = found.profile.sensitive
    for profile, values in ((numbers, columns["n"]), (names, columns["s"])):
        inside = [[values[place] for place in places] for places in groups.values()]
        distinct = [len(set(part)) for part in inside]
        assert profile.distinct_l == min(distinct)
        assert math.isclose(profile.entropy_l, min(map(twins.entropy_l, inside)), rel_tol=1e-9)
        for level, below in profile.rows_below_l.items():
            parts = zip(inside, distinct, strict=True)
            assert below == sum(len(part) for part, kinds in parts if kinds < level)
    whole = [float(value) for value in columns["n"]]
    far = max(
        twins.rank_distance([whole[place] for place in places], whole) for places in groups.values()
    )
    assert numbers.distance == "ranks"
    assert math.isclose(numbers.closeness_t, far, abs_tol=1e-9)
    parts = [[columns["s"][place] for place in places] for places in groups.values()]
    far = max(twins.category_distance(part, columns["s"]) for part in parts)
    assert math.isclose(names.closeness_t, far, abs_tol=1e-9)


@given(small_tables, st.randoms(use_true_random=False))
@pytest.mark.slow
def test_the_order_of_rows_does_not_matter(rows: list[tuple[str, ...]], chance: object) -> None:
    shuffled = list(rows)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    results = [
        measure_anonymity(
            dict(zip("abns", map(list, zip(*some, strict=True)), strict=True)),
            quasi_identifiers=["a", "b"],
            sensitive=["n", "s"],
            generalise=["b:drop"],
        ).to_json()
        for some in (rows, shuffled)
    ]
    assert _rounded(results[0]) == _rounded(results[1])


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return round(value, 9) if isinstance(value, float) else value


def as_everything(directory: Path) -> list[object]:
    people = made_up_population(400, seed=5)
    frame = pd.DataFrame(people)
    frame.to_csv(directory / "people.csv", index=False)
    table = pa.Table.from_pandas(frame)
    pq.write_table(table, directory / "people.parquet")
    lists = {name: column.tolist() for name, column in people.items()}
    return [
        people,
        frame,
        frame.astype({"zip": "category"}),
        table,
        lists,
        directory / "people.csv",
        str(directory / "people.parquet"),
    ]


def test_every_form_of_a_table_gives_the_same(tmp_path: Path) -> None:
    shown = [
        measure_anonymity(
            data, quasi_identifiers=["zip", "birth", "sex"], sensitive=["diagnosis"]
        ).to_json()
        for data in as_everything(tmp_path)
    ]
    assert all(each == shown[0] for each in shown)
    assert shown[0]["profile"]["unique_rows"] > 300


def test_a_matrix_has_columns_by_number() -> None:
    matrix = np.array([[1, 2], [1, 2], [1, 3]])
    assert measure_anonymity(matrix, quasi_identifiers=["0", "1"]).profile.unique_rows == 1
    numbers: list[object] = [1]
    assert measure_anonymity(matrix, quasi_identifiers=numbers).profile.unique_rows == 1  # type: ignore[arg-type]


def test_objects_that_are_equal_but_differ_in_text_are_told_apart() -> None:
    cells = [1, True, "1", 1.0, None, float("nan"), "", dt.date(2020, 1, 2), "2020-01-02"]
    coded = read_coded({"x": cells}, ["x"]).columns["x"]
    texts = [coded.texts[code] for code in coded.codes]
    assert texts == [b"1", b"True", b"1", b"1", b"", b"", b"", b"2020-01-02", b"2020-01-02"]


def as_files(directory: Path, frame: pd.DataFrame) -> list[object]:
    """The same table in memory, in Arrow and in two files."""
    frame.to_csv(directory / "table.csv", index=False)
    frame.to_parquet(directory / "table.parquet")
    places = [str(directory / "table.csv"), directory / "table.parquet"]
    return [frame, pa.Table.from_pandas(frame), *places]


def test_times_are_not_cut_to_days_unless_they_are_midnight(tmp_path: Path) -> None:
    times = ["2020-03-01 10:00", "2020-03-01 11:00:30", "2020-03-01 10:00", None, "2020-03-02"]
    frame = pd.DataFrame({"t": pd.to_datetime(times, format="mixed")})
    wanted = [b"2020-03-01 10:00:00", b"2020-03-01 11:00:30", b"2020-03-01 10:00:00"]
    for data in as_files(tmp_path, frame):
        found = read_coded(data, ["t"]).columns["t"]
        assert [found.texts[code] for code in found.codes] == [*wanted, b"", b"2020-03-02"]
        assert measure_anonymity(data, quasi_identifiers=["t"]).profile.unique_rows == 3
        by_month = measure_anonymity(data, quasi_identifiers=["t"], generalise=["t:month"])
        assert by_month.steps[0].unique_rows == 1
    days = frame.dropna().astype("datetime64[s]")
    for data in as_files(tmp_path, days.assign(t=days["t"].dt.normalize())):
        assert read_coded(data, ["t"]).columns["t"].texts == [b"2020-03-01", b"2020-03-02"]
    halves = np.array(["2020-03-01T00:00:00.5", "2020-03-01"], dtype="datetime64[us]")
    texts = read_coded({"t": halves}, ["t"]).columns["t"].texts
    assert sorted(texts) == [b"2020-03-01", b"2020-03-01 00:00:00.5"]
    months = np.array(["2020-03", "NaT"], dtype="datetime64[M]")
    assert read_coded({"t": months}, ["t"]).columns["t"].texts == [b"2020-03-01", b""]


@pytest.mark.parametrize("row", ["02139", "02139,a,b", '"02139,a"', '"02139", "a", ""'])
def test_rows_with_more_or_fewer_cells_are_refused(tmp_path: Path, row: str) -> None:
    place = tmp_path / "ragged.csv"
    place.write_text(f'zip,s\n02139,a\n{row}\n\n"02141","b,c"\n', encoding="utf-8")
    with pytest.raises(InvalidValue, match=r"rows of 2 cells, as in its heading; 1 have") as caught:
        measure_anonymity(place, quasi_identifiers=["zip"])
    assert caught.value.argument == "data"
    place.write_text('zip,s\n02139,a\n\n"02141","b,c"\n', encoding="utf-8")
    assert measure_anonymity(place, quasi_identifiers=["zip"]).profile.rows == 2


def test_many_columns_do_not_overflow() -> None:
    rng = np.random.default_rng(1)
    data = {f"c{at}": rng.integers(0, 2**40, 50) for at in range(12)}
    data = {name: np.concatenate([column, column]) for name, column in data.items()}
    found = measure_anonymity(data, quasi_identifiers=list(data))
    assert (found.profile.groups, found.profile.k) == (50, 2)
    assert {len(profile.columns) for profile in found.subsets} == {1, 11}


@pytest.mark.parametrize(
    ("rule", "text", "coarse"),
    [
        ("zip:prefix=3", b"02139", b"021"),
        ("zip:prefix=2", "äöü".encode(), "äö".encode()),
        ("age:band=10", b"-3", b"[-10, 0)"),
        ("age:band=0.5", b"1.25", b"[1, 1.5)"),
        ("age:band=0.1", b"0.3", b"[0.3, 0.4)"),
        ("age:band=0.1", b"0.29999", b"[0.2, 0.3)"),
        ("age:band=0.1", b"-.3", b"[-0.3, -0.2)"),
        ("age:band=0.1", b"1e-999999999", b"[0, 0.1)"),
        ("age:band=0.1", b"1e17", b"[100000000000000000, 100000000000000000.1)"),
        ("age:band=1e20", b"5", b"[0, 100000000000000000000)"),
        ("age:band=10", b"old", b"old"),
        ("age:band=1", b"12345678", b"[12345678, 12345679)"),
        ("birth:month", b"1999-12-31", b"1999-12"),
        ("birth:year", b"1999-12-31T08:00", b"1999"),
        ("birth:year", b"1999-02-30", b"1999-02-30"),
        ("birth:decade", b"1999-12-31", b"199?"),
        ("a:b:drop", b"x", b"*"),
        ("zip:prefix=3", b"", b""),
    ],
)
def test_generalisations(rule: str, text: bytes, coarse: bytes) -> None:
    parsed = Generalisation.parse(rule)
    assert parsed.text(text) == coarse
    assert Generalisation.parse(str(parsed)) == parsed


def test_steps_build_on_each_other_and_groups_only_grow() -> None:
    people = made_up_population(3000, seed=2)
    found = measure_anonymity(
        people,
        quasi_identifiers=["zip", "birth", "sex"],
        generalise=["birth:month", "zip:prefix=3", "birth:year", "sex:drop"],
    )
    words = [step.generalisations for step in found.steps]
    assert words[2] == ("birth:year", "zip:prefix=3")
    shares = [found.profile.unique_share, *(step.unique_share for step in found.steps)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9 > 0.05 > shares[-1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"quasi_identifiers": []}, "quasi_identifiers"),
        ({"quasi_identifiers": "zip"}, "quasi_identifiers"),
        ({"quasi_identifiers": ["zip", "zip"]}, "quasi_identifiers"),
        ({"quasi_identifiers": ["nowhere"]}, "data"),
        ({"quasi_identifiers": ["zip"], "sensitive": ["zip"]}, "sensitive"),
        ({"quasi_identifiers": ["zip"], "k": [1]}, "k"),
        ({"quasi_identifiers": ["zip"], "k": []}, "k"),
        ({"quasi_identifiers": ["zip"], "diversity": [0]}, "diversity"),
        ({"quasi_identifiers": ["zip"], "generalise": ["age:year"]}, "generalise"),
        ({"quasi_identifiers": ["zip"], "generalise": ["zip:prefix"]}, "generalise"),
        ({"quasi_identifiers": ["zip"], "generalise": ["zip:prefix=2.5"]}, "generalise"),
        ({"quasi_identifiers": ["zip"], "generalise": ["zip:band=0"]}, "generalise"),
        ({"quasi_identifiers": ["zip"], "generalise": ["zip:band=x"]}, "generalise"),
        ({"quasi_identifiers": ["zip"], "generalise": ["zip:month=3"]}, "generalise"),
        ({"quasi_identifiers": ["zip"], "generalise": [3]}, "generalise"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        measure_anonymity(HOSPITAL, **arguments)  # type: ignore[arg-type]
    assert caught.value.argument == named


def test_an_empty_table_and_an_unasked_level_are_refused() -> None:
    with pytest.raises(InvalidValue, match="at least one row"):
        measure_anonymity({"zip": []}, quasi_identifiers=["zip"])
    with pytest.raises(InvalidValue, match="two dimensions"):
        measure_anonymity(np.zeros(3), quasi_identifiers=["0"])
    with pytest.raises(InvalidValue, match="asked for"):
        measure_anonymity(HOSPITAL, quasi_identifiers=["zip"], k=[3]).profile.share_below(4)


def result_of_many(rows: int) -> tuple[AnonymityResult, float]:
    people = made_up_population(rows, seed=3)
    start = time.process_time()
    found = measure_anonymity(
        people, quasi_identifiers=["zip", "birth", "sex"], sensitive=["diagnosis"]
    )
    return found, time.process_time() - start


def test_the_made_up_country_is_as_unique_as_a_real_one_and_quick_to_measure() -> None:
    found, seconds = result_of_many(300_000)
    # Golle (2006): 63 % by zip code, birth date and sex; one column alone tells nobody.
    assert 0.5 < found.profile.unique_share < 0.75
    alone = {each.columns: each.unique_share for each in found.subsets if len(each.columns) == 1}
    assert max(alone.values()) < 0.02
    # 0.5 s where this was written; a loop over rows would take minutes for a million.
    assert seconds < 10
