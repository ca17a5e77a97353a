"""S33: missing cells, open categories, columns in order: what they cost, and that they hold."""

import datetime as dt
import itertools

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, Date, Integer, Real, Schema
from discreet.engines import open_table
from discreet.errors import InvalidValue
from discreet.privacy import GDP, ApproxDP, Composition, Relation
from discreet.randomness import source
from discreet.synth import AIM, MST, OneShot, SyntheticModel
from discreet.synth._categories import OpenCategories
from discreet.synth._cells import fine_cells, schema_to_read
from discreet.synth._counting import count_tables

METHODS = [OneShot, *(pytest.param(one, marks=pytest.mark.slow) for one in (MST, AIM))]
DAY = dt.date(2020, 1, 1)


# --- missing cells ----------------------------------------------------------------------------

GAPS = Schema(
    {
        "age": Integer(17, 90),
        "paid": Real(0.0, 1000.0),
        "day": Date(DAY, dt.date(2020, 12, 31)),
        "town": Categorical(["ham", "ware"], other="elsewhere"),
    },
    expected_rows=900,
)
NAMES = ("age", "paid", "day", "town")


def rows_with_gaps(count: int) -> dict[str, object]:
    """A third of every column is missing, in the same rows."""
    there = np.arange(count) % 3 > 0
    days = (np.datetime64("2020-01-01") + np.arange(count) % 300).astype("datetime64[D]")
    return {
        "age": np.where(there, 17.0 + np.arange(count) % 70, np.nan),
        "paid": np.where(there, np.arange(count) % 900 + 0.5, np.nan),
        "day": np.where(there, days, np.datetime64("NaT")),
        "town": np.array([("ham" if at else None) for at in there], dtype=object),
    }


def test_missing_cells_are_counted_alone_on_every_engine() -> None:
    data = rows_with_gaps(90)
    cells = fine_cells(GAPS, missing=NAMES)
    for engine in ("arrow", "duckdb"):
        table = open_table(data, schema_to_read(GAPS, NAMES), engine=engine)
        singles = [(at,) for at in range(4)]
        for (at,), counts in count_tables(table, cells, [None] * 4, singles):
            assert counts[cells[at].missing_cell] == 30
            assert counts.sum() == 90
        table.close()


def test_what_lies_outside_is_still_moved_to_the_nearest_value() -> None:
    outside = {
        "age": [-1e300, 16, 0, 1000, None],
        "paid": [-1e300, -0.1, -7.0, 1e300, None],
        "day": [dt.date(1066, 1, 1), dt.date(2019, 12, 31), dt.date(2019, 1, 1), dt.date.max, None],
        "town": ["atlantis", "(missing)", "x", "y", None],
    }
    data = {name: np.array(one, dtype=object) for name, one in outside.items()}
    cells = fine_cells(GAPS, missing=NAMES)
    table = open_table(data, schema_to_read(GAPS, NAMES), engine="arrow")
    for (at,), counts in count_tables(table, cells, [None] * 4, [(0,), (1,), (2,)]):
        assert counts[cells[at].missing_cell] == 1
        assert (counts[0], counts[len(cells[at].starts) - 1]) == (3, 1)
    table.close()


@pytest.mark.parametrize("method", METHODS)
def test_synthetic_rows_have_missing_cells(method: type, tmp_path: object) -> None:
    """The seed is fixed; a third of the cells is missing, in the same rows."""
    plan = method(missing=NAMES).plan(GAPS, epsilon=20.0, delta=1e-6)
    assert plan.loss == method().plan(GAPS, epsilon=20.0, delta=1e-6).loss
    model = plan.run(rows_with_gaps(900), insecure_seed=1)
    rows = model.sample(900, seed=1)
    for name in NAMES:
        assert abs(rows[name].null_count - 300) < 60
    both = rows.to_pandas()
    assert np.mean(both["age"].isna() == both["town"].isna()) > 0.9
    assert model.sample(50, given={"age": None}, seed=2)["age"].null_count == 50
    assert model.marginal("age").labels[0][-1] == "missing"
    assert rows["age"].drop_null().to_numpy().min() >= 17
    model.save(f"{tmp_path}/model.npz")
    again = SyntheticModel.load(f"{tmp_path}/model.npz")
    assert again.sample(50, seed=3).equals(model.sample(50, seed=3))
    table = open_table(rows_with_gaps(9), plan.table_schema, engine="arrow")
    plan.run(table)
    with pytest.raises(InvalidValue, match="table_schema"):
        plan.run(open_table(rows_with_gaps(9), GAPS, engine="arrow"))


@pytest.mark.parametrize(
    ("column", "missing"),
    [
        (Boolean(), ["x"]),
        (Integer(0, 9, missing=3), ["x"]),
        (Categorical(["a"], missing="gone"), ["x"]),
        (Categorical(["(missing)"]), ["x"]),
        (Date(dt.date.min, DAY), ["x"]),
        (Integer(-(2**53), 0), ["x"]),
        (Real(-1e308, 1e307), ["x"]),
        (Integer(0, 9), ["y"]),
        (Integer(0, 9), ["x", "x"]),
        (Integer(0, 9), "x"),
    ],
)
def test_columns_that_cannot_have_missing_cells_are_refused(
    column: object, missing: object
) -> None:
    with pytest.raises(InvalidValue, match="missing"):
        OneShot(missing=missing).plan(Schema({"x": column}), epsilon=1.0, delta=1e-6)


def test_a_target_may_be_missing_and_open() -> None:
    """What is refused is refused by the plan: a run that was charged comes to its end."""
    for column in (Categorical(), Categorical(["no", "yes"], other="no")):
        schema = Schema({"ill": column, "age": Integer(0, 9)}, target="ill", expected_rows=500)
        plan = OneShot(missing=["ill"], evaluations=5).plan(schema, epsilon=50.0, delta=1e-6)
        rows = {"ill": ["yes", None, "no", None] * 100, "age": [1, 2, 3, 4] * 100}
        made = plan.run(rows, insecure_seed=1).sample(400, seed=1)["ill"].to_pylist()
        assert 150 < made.count(None) < 250


@pytest.mark.parametrize(
    "ends", [(0.6590720511731919, 5464732.982335933), (-1e-5, 1e7), (0.1, 0.3)]
)
def test_numbers_stay_inside_their_bounds(ends: tuple[float, float]) -> None:
    """Stored numbers next to a bound may lie a little outside of it; no synthetic row does."""
    schema = Schema({"x": Real(*ends)}, expected_rows=500)
    plan = OneShot(evaluations=5).plan(schema, epsilon=50.0, delta=1e-6)
    model = plan.run({"x": [*ends] * 200}, insecure_seed=1)
    made = model.sample(400, seed=1)["x"].to_numpy()
    assert ends[0] <= made.min() < made.max() <= ends[1]
    for end in ends:
        asked = model.sample(5, given={"x": end}, seed=1)["x"].to_numpy()
        assert ((asked >= ends[0]) & (asked <= ends[1])).all()
        assert np.abs(asked - end).max() < 1e-5 * (ends[1] - ends[0])


# --- open categories --------------------------------------------------------------------------

OPEN = Schema({"town": Categorical(), "age": Integer(0, 9)}, expected_rows=3000)


def test_both_sums_of_the_loss() -> None:
    """Declared categories: one Gaussian. Open ones: a Gaussian and an ApproxDP a column."""
    declared = Schema({"town": Categorical(["ham"]), "age": Integer(0, 9)})
    plan = OneShot().plan(declared, epsilon=1.0, delta=1e-6)
    assert isinstance(plan.loss, GDP)
    left = OneShot().plan(OPEN, epsilon=1.0, delta=1e-6)
    assert isinstance(left.loss, Composition)
    assert left.open is not None
    assert left.loss == left.gaussian.loss + left.open.loss
    assert isinstance(left.open.loss, ApproxDP)
    test = left.open.step.test
    assert left.open.loss == ApproxDP(test.epsilon, test.delta)
    assert float(test.epsilon) == pytest.approx(0.1)
    assert float(test.delta) <= 0.5e-6
    assert 0.95 < left.loss.epsilon(delta=1e-6) <= 1.0
    two = Schema({"a": Categorical(), "b": Categorical()})
    both = OneShot().plan(two, epsilon=1.0, delta=1e-6)
    assert both.open is not None
    assert both.loss == both.gaussian.loss + 2 * both.open.step.loss
    assert any("noisy count" in line for line in both.explain())
    swapped = OneShot().plan(two, epsilon=1.0, delta=1e-6, relation="replace")
    assert swapped.open is not None
    half = swapped.open.step.test
    assert swapped.open.loss == 4 * ApproxDP(half.epsilon, half.delta, "replace")


@pytest.mark.parametrize("method", METHODS)
def test_open_categories_are_found_and_rare_ones_are_not(method: type, tmp_path: object) -> None:
    """The seed is fixed; ham and ware stand 1000 times, everything else once."""
    towns = ["ham", "ware ", "3.0"] * 1000 + [f"farm {at}" for at in range(50)] + [""] * 50
    data = {"town": np.array(towns, dtype=object), "age": np.arange(3100) % 10}
    plan = method().plan(OPEN, epsilon=4.0, delta=1e-6)
    model = plan.run(data, insecure_seed=1)
    assert set(model.schema.columns["town"].labels) == {"ham", "ware", "3", "other"}
    assert set(model.sample(500)["town"].to_pylist()) <= {"ham", "ware", "3", "other"}
    assert model.certificate_.loss == plan.loss
    model.save(f"{tmp_path}/model.npz")
    again = SyntheticModel.load(f"{tmp_path}/model.npz")
    assert again.sample(50, seed=3).equals(model.sample(50, seed=3))
    assert again.plan.loss == plan.loss
    empty = plan.run({"town": [], "age": []})
    assert empty.certificate_.loss == plan.loss
    assert set(empty.sample(5)["town"].to_pylist()) <= {"other"}


def test_no_unit_moves_a_count_of_texts_by_more_than_one() -> None:
    """All tables of up to 2 rows of 3 texts, their neighbours, and a person with 4 rows."""
    seen: list[dict[str, int]] = []

    class Watched:
        def choose(self, counts: dict[str, int], bits: object) -> object:
            seen.append(dict(counts))
            return type("Found", (), {"value": {}})()

    left = OpenCategories.share(OPEN, 1.0, 1e-6, Relation.ADD_REMOVE)
    assert left is not None

    def counts(rows: list[tuple[str, str]], schema: Schema) -> dict[str, int]:
        data = {
            "town": np.array([row[0] for row in rows], dtype=object),
            "age": np.zeros(len(rows)),
            "who": np.array([row[1] for row in rows], dtype=object),
        }
        table = open_table(data, schema, engine="arrow", key=bytes(32))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OpenCategories, "step", Watched())
            left.learn(table, schema, source(insecure_seed=1))
        table.close()
        return seen[-1]

    def apart(first: dict[str, int], second: dict[str, int]) -> int:
        return sum(abs(first.get(one, 0) - second.get(one, 0)) for one in {*first, *second})

    texts = ["x", "y", "1.0"]
    for size in range(3):
        for rows in itertools.combinations_with_replacement(texts, size):
            here = counts([(text, "") for text in rows], OPEN)
            for text in texts:
                there = counts([(one, "") for one in (*rows, text)], OPEN)
                assert apart(here, there) == 1
    owned = Schema(dict(OPEN.columns), person="who", rows_per_person=3)
    others = [("x", "ann"), ("y", "ann"), ("y", "ben")]
    here = counts(others, owned)
    for text in itertools.product(texts, repeat=4):
        there = counts([*others, *[(one, "cat") for one in text]], owned)
        assert apart(here, there) == 1


# --- columns in order -------------------------------------------------------------------------

LIFE = Schema(
    {
        "born": Integer(1900, 2020),
        "married": Integer(1900, 2020),
        "died": Integer(1900, 2020),
        "low": Real(0.0, 10.0),
        "high": Real(-3.0, 20.0),
        "in": Date(DAY, dt.date(2024, 12, 31)),
        "out": Date(dt.date(2019, 1, 1), dt.date(2024, 12, 31)),
    },
    expected_rows=800,
)
ORDER = [("born", "married"), ("married", "died"), ("low", "high"), ("in", "out")]


def lives(count: int) -> dict[str, object]:
    """Rows that break every order, so that nothing but the rule can hold it."""
    rng = np.random.default_rng(1)
    days = np.datetime64("2020-01-01") + rng.integers(0, 1500, (2, count))
    years = rng.integers(1900, 2021, (3, count)).astype(float)
    years[1, ::4] = np.nan
    return {
        "born": years[0],
        "married": years[1],
        "died": years[2],
        "low": rng.uniform(0, 10, count),
        "high": rng.uniform(-3, 20, count),
        "in": days[0],
        "out": days[1],
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("missing", [(), ("married", "out")])
def test_an_order_holds_in_every_row(method: type, missing: tuple[str, ...]) -> None:
    plan = method(ordered=ORDER, missing=missing, groups=8, evaluations=60).plan(
        LIFE, epsilon=2.0, delta=1e-6
    )
    assert plan.loss == method(missing=missing).plan(LIFE, epsilon=2.0, delta=1e-6).loss
    model = plan.run(lives(800), insecure_seed=1)
    asked = [{}, {"born": 1990}, {"out": [DAY, DAY + dt.timedelta(1)]}, {"died": [1950, 1951]}]
    for given in asked:
        rows = model.sample(4000, given=given, seed=1)
        for name, value in given.items():
            assert set(rows[name].to_pylist()) <= set(value if isinstance(value, list) else [value])
        frame = rows.to_pandas()
        for small, large in [*ORDER, ("born", "died")]:
            both = frame[[small, large]].dropna()
            assert not np.any(both[small].to_numpy() > both[large].to_numpy())
        if missing:
            assert frame["married"].isna().any()
    with pytest.raises(InvalidValue, match="neighbouring"):
        model.sample(5, given={"born": [1910, 1950]})
    with pytest.raises(InvalidValue, match="possible together"):
        model.sample(5, given={"born": 1990, "died": 1950})


@pytest.mark.parametrize(
    "ordered",
    [
        ["born"],
        [("born", "weight")],
        [("born", "in")],
        [("born", "born")],
        [("born", "died"), ("died", "born")],
        [("born", "low"), ("low", "high")],
        "bd",
    ],
)
def test_orders_that_cannot_be_are_refused(ordered: object) -> None:
    with pytest.raises(InvalidValue, match="ordered"):
        OneShot(ordered=ordered).plan(LIFE, epsilon=1.0, delta=1e-6)
    apart = Schema({"a": Integer(5, 9), "b": Integer(0, 3)})
    with pytest.raises(InvalidValue, match="possible"):
        OneShot(ordered=[("a", "b")]).plan(apart, epsilon=1.0, delta=1e-6)
