"""Private reports of tables: what moves, what is charged, and bars that cover."""

import gzip
import math

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, Date, Integer, Real, Schema, plan_schema
from discreet.errors import (
    BudgetExceeded,
    InvalidValue,
    NotApplicable,
    RelationMismatch,
)
from discreet.learn import _description, describe
from discreet.ledger import Ledger
from discreet.mechanisms import Release
from discreet.privacy.theorems import discrete_gaussian_mu
from discreet.report import draw_description

FACTS = {
    "age": Integer(18, 95),
    "size": Real(0, 10),
    "ward": Categorical(["north", "south"]),
    "smokes": Boolean(),
}
SCHEMA = Schema(FACTS, expected_rows=2000)


def table(rows, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "age": rng.integers(18, 96, rows),
        "size": np.clip(rng.gamma(2.0, 1.0, rows), 0, 10),
        "ward": rng.choice(["north", "south"], rows, p=[0.7, 0.3]),
        "smokes": rng.random(rows) < 0.2,
    }


def exact_counts(monkeypatch, data, schema=SCHEMA, **options):
    """Return the counts before their noise, and the sensitivity that was stated."""
    seen = {}

    def recorded(values, *, sensitivity, stddev, relation, source):
        seen.update(values=np.asarray(values), sensitivity=float(sensitivity), stddev=stddev)
        return Release(np.asarray(values), None, {})

    monkeypatch.setattr(_description, "gaussian_integers", recorded)
    describe(data, schema, epsilon=1.0, delta=1e-6, **options)
    return seen


@pytest.mark.parametrize(
    "odd", [("40", 3.0, "north", "yes"), (None, "?", "?", "?"), (1e400, -5, 7, 2)]
)
def test_a_row_moves_the_counts_no_further_than_is_charged(monkeypatch, odd):
    data = {name: list(values) for name, values in table(50).items()}
    more = {name: [*values, cell] for (name, values), cell in zip(data.items(), odd, strict=True)}
    before, after = (exact_counts(monkeypatch, one) for one in (data, more))
    moved = np.linalg.norm(after["values"] - before["values"])
    assert moved <= before["sensitivity"]
    assert moved == pytest.approx(before["sensitivity"])
    other = {
        name: [cell, *values[1:]] for (name, values), cell in zip(data.items(), odd, strict=True)
    }
    pair = [exact_counts(monkeypatch, one, relation="replace") for one in (data, other)]
    assert np.linalg.norm(pair[1]["values"] - pair[0]["values"]) <= pair[0]["sensitivity"]


def test_a_person_moves_them_by_all_rows_that_count(monkeypatch):
    schema = Schema(FACTS, person="who", rows_per_person=3, expected_rows=2000)
    data = {name: list(values) for name, values in table(20).items()} | {"who": list(range(20))}
    row = {"age": 30, "size": 1.0, "ward": "north", "smokes": True, "who": "new"}
    more = {name: [*values, *[row[name]] * 5] for name, values in data.items()}
    before, after = (exact_counts(monkeypatch, one, schema) for one in (data, more))
    moved = np.linalg.norm(after["values"] - before["values"])
    assert moved <= before["sensitivity"]
    assert moved == pytest.approx(before["sensitivity"])


def test_where_rows_are_dropped_the_figures_say_of_which_rows_they_speak():
    """Persons of 90 years have nine rows each: the mean is 82 of all rows, and 50 of those kept."""
    who = [*range(500), *np.repeat(np.arange(500, 1000), 9).tolist()]
    data = {"age": [10] * 500 + [90] * 4500, "who": who}
    schema = Schema({"age": Integer(0, 99)}, person="who", rows_per_person=1, expected_rows=1000)
    found = describe(data, schema, epsilon=2.0, insecure_seed=1)
    low, high = found.columns["age"].mean()[1:]
    assert low < 50 < high < 82
    assert found.about == found.to_json()["about"]
    assert found.about.startswith("of the rows kept: at most 1 of each person's rows")
    assert f"all figures are {found.about}" in found.lines()
    alone = Schema({"age": Integer(0, 99)}, expected_rows=1000)
    whole = describe({"age": data["age"]}, alone, epsilon=2.0)
    assert whole.about == "of all rows"
    assert not [line for line in whole.lines() if "kept" in line]


def test_the_loss_is_that_of_the_noise(monkeypatch):
    seen = exact_counts(monkeypatch, table(10))
    found = describe(table(10), SCHEMA, epsilon=1.0, delta=1e-6)
    assert 0.99 < found.epsilon <= 1.0
    mu = discrete_gaussian_mu(seen["stddev"], seen["sensitivity"], coordinates=4)
    assert found.loss.epsilon(delta=1e-6) >= discrete_epsilon(mu)
    assert seen["sensitivity"] >= 1024 * math.sqrt(len(FACTS))


def discrete_epsilon(mu):
    from discreet.privacy import GDP

    return GDP(mu).epsilon(delta=1e-6) * (1 - 1e-9)


def test_bars_cover_what_is_in_the_table():
    """40 seeds and 11 bars of 95 %: 418 are expected to cover; 395 or fewer once in 10^5 runs."""
    data = table(2000)
    truth = {
        ("age", "mean"): data["age"].mean(),
        ("size", "mean"): data["size"].mean(),
        **{("age", q): np.quantile(data["age"], q) for q in (0.25, 0.5, 0.9)},
        **{("size", q): np.quantile(data["size"], q) for q in (0.05, 0.5, 0.75)},
        ("ward", "north"): np.mean(data["ward"] == "north"),
        ("smokes", "true"): np.mean(data["smokes"]),
    }
    covered, widths = 0, []
    for seed in range(40):
        found = describe(data, SCHEMA, epsilon=0.5, delta=1e-6, insecure_seed=seed)
        covered += found.rows[1] <= 2000 <= found.rows[2]
        for (name, what), value in truth.items():
            column = found.columns[name]
            if what == "mean":
                middle, low, high = column.mean()
            elif column.labels:
                middle, low, high = column.share(what)
            else:
                middle, low, high = column.quantile(what)
            assert low <= middle <= high
            covered += low <= value <= high
            widths.append((high - low) / (77 if name == "age" else 10 if name == "size" else 1))
    assert covered > 395
    assert np.median(widths) < 0.2, "bars as wide as the bounds say nothing"


def test_an_empty_table_is_data_like_any_other():
    found = describe({name: [] for name in FACTS}, SCHEMA, epsilon=0.5)
    assert found.columns["age"].mean()[1:] == (18.0, 95.0)
    assert found.columns["ward"].share("north")[1:] == (0.0, 1.0)
    assert len(found.lines()) == 5
    assert found.to_json()["columns"]["size"]["quantiles"]["0.5"]


def test_the_charge_comes_first(tmp_path, monkeypatch):
    read = []
    real = _description.table_batches
    monkeypatch.setattr(
        _description, "table_batches", lambda *a, **k: read.append(1) or real(*a, **k)
    )
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=0.6, delta=1e-5, unit="row")
        seen = describe(table(100), SCHEMA, epsilon=0.5, ledger=book, dataset="people")
        assert (seen.unit, read) == ("row", [1])
        with pytest.raises(BudgetExceeded):
            describe(table(100), SCHEMA, epsilon=0.5, ledger=book, dataset="people")
        assert read == [1]


def test_wrong_arguments_are_named():
    with pytest.raises(InvalidValue, match="delta"):
        describe(table(3), Schema(FACTS), epsilon=1.0)
    with pytest.raises(NotApplicable, match="ward"):
        describe(table(3), SCHEMA.with_columns({"ward": Categorical()}), epsilon=1.0)
    with pytest.raises(InvalidValue, match="age"):
        describe({"size": [1.0]}, SCHEMA, epsilon=1.0)
    column = describe(table(3), SCHEMA, epsilon=1.0).columns["ward"]
    with pytest.raises(NotApplicable, match="labels"):
        column.mean()


def test_a_picture_is_drawn(tmp_path):
    import datetime as dt

    facts = {**FACTS, "day": Date(dt.date(2020, 1, 1), dt.date(2020, 12, 31))}
    data = {**table(30), "day": ["2020-05-01"] * 30}
    draw_description(
        describe(data, Schema(facts, expected_rows=30), epsilon=3.0), tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_an_unpaid_schema_is_part_of_the_cost(tmp_path):
    data = table(400)
    open_facts = Schema({**FACTS, "size": Real()}, expected_rows=400)
    learned = plan_schema(open_facts, epsilon=0.5).run(data).value
    found = describe(data, learned, epsilon=1.0, delta=1e-6)
    unpaid = learned.unpaid_loss()
    assert found.epsilon > 1.3, "the report alone would be 1"
    alone = describe(data, SCHEMA, epsilon=1.0, delta=1e-6).loss
    assert found.epsilon == (alone + unpaid).epsilon(delta=1e-6)
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=1.2, delta=1e-5, unit="row")
        with pytest.raises(BudgetExceeded):
            describe(data, learned, epsilon=1.0, delta=1e-6, ledger=book, dataset="people")
    with pytest.raises(RelationMismatch):
        describe(data, learned, epsilon=1.0, delta=1e-6, relation="replace")


def test_a_damaged_file_costs_nothing(tmp_path):
    place = tmp_path / "people.csv.gz"
    lines = "age,size,ward,smokes\n" + "".join(f"{at},3,north,yes\n" for at in range(30_000))
    place.write_bytes(gzip.compress(lines.encode(), 1)[:-20])
    with Ledger.create(tmp_path / "study.ledger") as book:
        book.create_dataset("people", epsilon=1, delta=1e-5, unit="row")
        with pytest.raises(InvalidValue, match="gzip"):
            describe(place, SCHEMA, epsilon=0.5, ledger=book, dataset="people")
        assert book.show("people").budget.charges == 0
