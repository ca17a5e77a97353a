"""The tables of the demonstration: halves of neighbours are neighbours, and nothing is public."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import Run
from cli.test_certify import SCHEMA, write_rows
from discreet.demo import _data
from discreet.errors import InvalidValue


def table(place: Path, count: int, *, expected: int) -> _data.DemoData:
    (place / "schema.toml").write_text(
        SCHEMA.replace("expected_rows = 400", f"expected_rows = {expected}"), encoding="utf-8"
    )
    rows = write_rows(place / "rows.csv", count, seed=3)
    return _data.load(str(rows), schema=str(place / "schema.toml"))


def test_every_record_of_ones_own_has_its_own_coin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record more moves nobody else: a permutation of one more record would move them all."""
    drawn: list[int] = []

    def coins(probability: Any, count: int) -> Any:
        drawn.append(count)
        return np.random.default_rng(len(drawn)).random(count) < float(Fraction(probability))

    monkeypatch.setattr("discreet.randomness.bernoulli", coins)
    table(tmp_path, 301, expected=300)
    rows = (tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    sides = []
    for count in (300, 301):
        (tmp_path / "rows.csv").write_text("".join(rows[: count + 1]), encoding="utf-8")
        drawn.clear()
        made = _data.load(str(tmp_path / "rows.csv"), schema=str(tmp_path / "schema.toml"))
        assert drawn == [count, count]
        sides.append([row.tobytes() for row in made.inside[0]])
    fewer, more = sides
    assert 0 <= len(more) - len(fewer) <= 1
    assert more[: len(fewer)] == fewer


def test_the_parts_are_fair_and_have_nobody_in_common(tmp_path: Path) -> None:
    made = table(tmp_path, 4000, expected=4000)
    inside, outside = len(made.inside[1]), len(made.outside[1])
    assert inside + outside == 4000
    # Seven deviations.
    assert abs(inside - 2000) < 7 * 4000**0.5 / 2


def test_public_sizes_are_those_of_the_parts_and_not_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of right answers is of those who were asked."""
    monkeypatch.setattr(_data, "_MOST", 500)
    made = table(tmp_path, 4000, expected=4000)
    assert (made.planned, made.held_out) == (500, 500)
    for part in (made.inside, made.outside):
        assert abs(len(part[1]) - 500) < 7 * 500**0.5


def test_a_table_much_smaller_than_declared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="expected_rows"):
        table(tmp_path, 60, expected=10**9)
    with pytest.raises(InvalidValue, match="40 usable rows"):
        table(tmp_path, 30, expected=30)


def test_private_records_are_no_public_data_for_a_student(tmp_path: Path, run: Run) -> None:
    table(tmp_path, 400, expected=400)
    out = tmp_path / "demo"
    done = run(
        *("demo", "--data", str(tmp_path / "rows.csv"), "--out", str(out)),
        *("--schema", str(tmp_path / "schema.toml"), "--method", "pate"),
    )
    assert done.exit_code == 2
    assert "a student learns from public records" in done.stderr
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    made = _data.load("digits", schema=None).with_unlabelled()
    assert made.unlabelled is not None
    assert len(made.unlabelled) + len(made.outside[1]) == 898


def test_a_delta_without_room_is_refused_by_its_own_value(tmp_path: Path, run: Run) -> None:
    done = run("demo", "--delta", "0.6", "--out", str(tmp_path / "demo"))
    assert done.exit_code == 2
    assert "--delta = 0.6" in done.stderr
