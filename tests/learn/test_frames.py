"""Estimators that were told a schema read frames themselves: what fits is learned, what does not
is refused before the charge, and no single record decides which of the two happens.
"""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone

from discreet.data import Boolean, Categorical, Date, Encoding, Integer, Real, Schema, read_table
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import (
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    _intake,
)
from discreet.learn.projected_sgd import (
    PrivateProjectedSGDClassifier,
    PrivateProjectedSGDRegressor,
)
from discreet.ledger import Ledger
from discreet.pate import PATEClassifier
from discreet.randomness import source
from discreet.synth import Synthesizer

ROWS = 1200
COLUMNS = {
    "age": Integer(0, 90),
    "ward": Categorical(["north", "south"]),
    "born": Date(dt.date(1930, 1, 1), dt.date(2020, 12, 31)),
    "ill": Categorical(["well", "ill"], other="well"),
}
SCHEMA = Schema(COLUMNS, target="ill", expected_rows=ROWS)
NUMBERS = Schema(
    {"age": Integer(0, 90), "smokes": Boolean(), "ill": COLUMNS["ill"]},
    target="ill",
    expected_rows=ROWS,
)
COST = Schema(
    {"age": Integer(0, 90), "ward": COLUMNS["ward"], "cost": Real(0, 200)},
    target="cost",
    expected_rows=ROWS,
)


def columns(rows=ROWS):
    rng = np.random.default_rng(4)
    age = rng.integers(0, 91, rows)
    ward = rng.choice(["north", "south"], rows)
    score = age + 25.0 * (ward == "south") + rng.normal(0, 4, rows)
    return {
        "born": [dt.date(2020, 1, 1) - dt.timedelta(days=int(year * 365)) for year in age],
        "extra": ["not in the schema"] * rows,
        "ward": ward.tolist(),
        "smokes": (score > 40).tolist(),
        "age": age.tolist(),
        "cost": np.clip(score, 0, 200).tolist(),
        "ill": np.where(score > 55, "ill", "well").tolist(),
    }


FRAMES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "batch": lambda data: pa.RecordBatch.from_pydict(data),
    "mapping": dict,
}
SEED = {"insecure_seed": 1}
MODELS = {
    "logistic": (
        SCHEMA,
        lambda s, **k: PrivateLogisticRegression(schema=s, epsilon=2.0, **SEED, **k),
    ),
    "network": (
        SCHEMA,
        lambda s, **k: PrivateMLPClassifier(
            schema=s, epsilon=2.0, hidden_layer_sizes=(4,), max_iter=30, **SEED, **k
        ),
    ),
    "categorical": (
        SCHEMA,
        lambda s, **k: PrivateCategoricalNB(schema=s, bins=9, epsilon=2.0, **SEED, **k),
    ),
    "gaussian": (
        NUMBERS,
        lambda s, **k: PrivateGaussianNB(schema=s, epsilon=2.0, **SEED, **k),
    ),
    "projected": (
        SCHEMA,
        lambda s, **k: PrivateProjectedSGDClassifier(
            schema=s, epsilon=4.0, steps=3000, **SEED, **k
        ),
    ),
    "linear": (
        COST,
        lambda s, **k: PrivateLinearRegression(schema=s, epsilon=2.0, **SEED, **k),
    ),
    "network of numbers": (
        COST,
        lambda s, **k: PrivateMLPRegressor(
            schema=s, epsilon=2.0, hidden_layer_sizes=(4,), max_iter=30, **SEED, **k
        ),
    ),
    "projected numbers": (
        COST,
        lambda s, **k: PrivateProjectedSGDRegressor(schema=s, epsilon=4.0, steps=3000, **SEED, **k),
    ),
}
QUICK = ["logistic", "categorical", "gaussian", "linear"]
REPLACED = ("projected", "projected numbers")


def slow_unless(quick, names):
    """Those that take long run in make test-slow."""
    marks = {True: (), False: pytest.mark.slow}
    return [pytest.param(name, marks=marks[name in quick]) for name in names]


def learned(model):
    if hasattr(model, "layers_"):
        return np.concatenate([np.ravel(part) for layer in model.layers_ for part in layer])
    if hasattr(model, "feature_log_prob_"):
        return np.concatenate([np.ravel(part) for part in model.feature_log_prob_])
    return np.ravel(model.theta_ if hasattr(model, "theta_") else model.coef_)


@pytest.fixture
def book(tmp_path):
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.create_dataset("d", epsilon=100, delta="1e-2", unit="row")
        ledger.create_dataset("r", epsilon=100, delta="1e-2", unit="row", relation="replace")
        yield ledger


def spent(book):
    return book.show("d").budget.charges + book.show("r").budget.charges


def paid(name, book):
    return {"ledger": book, "dataset": "r" if name in REPLACED else "d"}


# --- what fits ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow_unless(QUICK, MODELS))
def test_every_container_is_read_like_a_table(name, book):
    schema, make = MODELS[name]
    data = columns()
    table = read_table(data, schema)
    expected = make(schema).fit(table)
    assert expected.score(table) > (0.8 if schema.task == "classification" else 0.6)
    for kind in FRAMES if name in QUICK else ("pandas", "polars", "arrow"):
        frame = FRAMES[kind](data)
        model = make(schema).fit(frame, **paid(name, book))
        assert np.array_equal(learned(model), learned(expected))
        assert model.score(frame) == expected.score(table)
        assert np.array_equal(model.predict(frame), expected.predict(table))
    if schema.task == "classification":
        assert set(model.predict(frame)) == {"well", "ill"}
        assert set(model.classes_) == {"well", "ill"}


def test_a_synthesizer_reads_every_container_alike():
    schema = Schema(COLUMNS, expected_rows=ROWS)
    made = [
        Synthesizer(schema=schema, epsilon=2.0, groups=4, **SEED).fit(frame(columns())).model_
        for frame in FRAMES.values()
    ]
    first = made[0].sample(50, seed=1)
    assert first.column_names == list(schema.columns)
    for one in made[1:]:
        assert one.sample(50, seed=1) == first


def test_a_frame_and_its_target_apart_are_what_the_issue_was_about(book):
    """With 0.1: charged, and an accuracy of .5, because encoded rows were expected."""
    frame = pd.DataFrame(columns())
    for target in (frame["ill"], frame["ill"].to_numpy(), list(frame["ill"]), frame[["ill"]]):
        model = PrivateLogisticRegression(schema=SCHEMA, epsilon=2.0, **SEED)
        model.fit(frame.drop(columns="ill"), target, ledger=book, dataset="d")
        assert model.score(frame.drop(columns="ill"), target) > 0.85
    assert spent(book) == 4


def test_encoded_rows_have_a_door_of_their_own():
    table = read_table(columns(), SCHEMA)
    encoding = Encoding(SCHEMA)
    rows, codes = encoding.features(table, dtype=np.float32), encoding.target(table)
    told = PrivateLogisticRegression(schema=SCHEMA, epsilon=2.0, **SEED)
    words = np.array(SCHEMA.classes)[codes]
    model = told.for_encoded_rows().fit(rows, words)
    # The words are sorted, as scikit-learn has it: "ill" is the first.
    assert model.classes_.tolist() == ["ill", "well"]
    assert np.array_equal(model.coef_, told.fit(table).coef_)
    assert np.array_equal(told.encoded(table), rows)
    assert np.array_equal(told.targets_of(table), words)
    fitted = told.for_encoded_rows()
    assert np.array_equal(fitted.predict_proba(rows), told.predict_proba(table))
    assert (fitted.n_features_in_, told.n_features_in_) == (rows.shape[1], 3)
    assert told.encoded_names_.tolist() == list(encoding.names)
    with pytest.raises(NotApplicable, match="save the one that was fitted"):
        fitted.save("nowhere.npz")
    with pytest.raises(NotApplicable, match="no schema"):
        fitted.for_encoded_rows()


def test_saving_cloning_and_truth_values(tmp_path):
    schema = Schema({"age": Integer(0, 90), "smokes": Boolean()}, target="smokes", expected_rows=9)
    frame = pd.DataFrame(columns())
    model = clone(PrivateLogisticRegression(schema=schema, epsilon=90.0, delta=0.1, **SEED))
    assert model.fit(frame).predict(frame).dtype == np.bool_
    model.save(tmp_path / "m.npz")
    again = PrivateLogisticRegression.load(tmp_path / "m.npz")
    assert again.schema == schema
    assert np.array_equal(again.predict_proba(frame), model.predict_proba(frame))
    bayes = PrivateCategoricalNB(schema=SCHEMA, bins=5, **SEED).fit(frame)
    bayes.save(tmp_path / "b.npz")
    assert PrivateCategoricalNB.load(tmp_path / "b.npz").score(frame) == bayes.score(frame)


def test_persons_are_a_column_or_an_argument(book):
    schema = Schema(COLUMNS, target="ill", expected_rows=ROWS, person="name", rows_per_person=2)
    frame = pd.DataFrame(columns())
    names = [f"p{row // 2}" for row in range(ROWS)]
    book.create_dataset("p", epsilon=10, delta="1e-3", unit="person")
    make = MODELS["logistic"][1]
    one = make(schema).fit(frame.assign(name=names), ledger=book, dataset="p")
    other = make(schema).fit(frame, persons=names)
    assert np.array_equal(learned(one), learned(other))
    assert one.score(frame) > 0.8
    with pytest.raises(InvalidValue, match="'name'; it is not there"):
        make(schema).fit(frame)
    with pytest.raises(InvalidValue, match="rows are the unit"):
        make(SCHEMA).fit(frame, persons=names)


# --- what does not fit --------------------------------------------------------------------


def misfits():
    data = columns(50)
    frame = pd.DataFrame(data)
    table = read_table(data, SCHEMA)
    times = pa.array([0] * 50, pa.timestamp("s"))
    yield (frame[["age", "ward", "born"]].to_numpy(), data["ill"]), "was told a schema"
    yield (Encoding(SCHEMA).features(table), data["ill"]), "for_encoded_rows"
    yield ([[1, "north", None]] * 50, data["ill"]), "was told a schema"
    yield (pl.LazyFrame(data),), "was told a schema"
    yield (frame.drop(columns="ill"),), "'ill'; it is not there"
    yield (frame.drop(columns="age"),), "'age'; it is not there"
    yield (pd.concat([frame, frame["age"]], axis=1),), "2 dimensions"
    yield (frame, data["ill"][:-1]), "another length"
    yield (frame, np.zeros((50, 2))), "2 dimensions"
    yield (pa.table({**data, "age": times}),), "'age'.*it holds times"
    yield (pl.DataFrame({**data, "ward": range(50)}),), "'ward'.*it holds numbers"
    yield ({**data, "ward": np.ones(50, bool)},), "'ward'.*it holds truth"
    yield ({**data, "age": np.ones(50, complex)},), "'age'.*it holds complex"
    yield (frame, np.zeros(50)), "'ill'.*it holds numbers"
    yield (read_table(data, NUMBERS),), "a table of the schema"
    yield (table, data["ill"]), "the table has its own"


@pytest.mark.parametrize("name", ["logistic", "network", "categorical", "projected"])
def test_what_does_not_fit_by_public_facts_is_refused_before_the_charge(name, book):
    for arguments, message in misfits():
        with pytest.raises(InvalidValue, match=message):
            MODELS[name][1](SCHEMA).fit(*arguments, **paid(name, book))
    assert spent(book) == 0


# --- no record decides --------------------------------------------------------------------


class Unwilling:
    def __float__(self):
        raise RuntimeError("a record that wants to be noticed")

    def __str__(self):
        raise RuntimeError("likewise")


ODD = [
    None,
    np.nan,
    np.inf,
    -1e300,
    10**30,
    2j,
    True,
    "",
    "maybe",
    b"\xff",
    Decimal("NaN"),
    pd.NA,
    pd.NaT,
    pd.Timestamp("1800-01-01"),
    pd.Timedelta(1, "ns"),
    dt.date(1, 1, 1),
    [1, 2],
    {"a": 1},
    np.array([1.0, 2.0]),
    Unwilling(),
    object,
]


def schema_fit(name, frame, book, y=None):
    schema, make = MODELS[name]
    return make(schema).fit(frame, y, **paid(name, book))


@pytest.mark.parametrize("name", slow_unless(QUICK, MODELS))
def test_neighbours_that_differ_in_one_odd_record_both_succeed(name, book):
    """In every column, the target among them; pandas changes the type of a column for it."""
    schema, make = MODELS[name]
    data = {key: column for key, column in columns(30).items() if key in schema.columns}
    usual = pd.DataFrame(data)
    read = read_cells(make(schema), usual)
    fits = 0
    for place, odd in enumerate(ODD):
        for column in data if name in QUICK else [schema.target]:
            cells = {key: [*values, values[0]] for key, values in data.items()}
            cells[column][-1] = odd
            frame = pd.DataFrame(cells)
            found = read_cells(make(schema), frame)
            assert np.array_equal(found.features[:-1], read.features)
            assert np.array_equal(found.targets[:-1], read.targets)
            if place % 10 == 0:
                schema_fit(name, frame, book)
                fits += 1
    assert spent(book) == fits


def read_cells(model, frame):
    declared = model._declared()
    opened = _intake.open_rows(model, declared, frame, None)
    return _intake.Rows(opened, declared, source(insecure_seed=3)).all()


DECLARED = {
    "logistic": lambda: PrivateLogisticRegression(
        classes=["ill", "well"], bounds=(0.0, 3.0), expected_rows=20, max_iter=2, **SEED
    ),
    "linear": lambda: PrivateLinearRegression(
        target_bounds=(0.0, 1.0), bounds=(0.0, 3.0), expected_rows=20, max_iter=2, **SEED
    ),
    "gaussian": lambda: PrivateGaussianNB(classes=["ill", "well"], bounds=(0.0, 3.0), **SEED),
    "categorical": lambda: PrivateCategoricalNB(classes=["ill", "well"], categories=4, **SEED),
    "values": lambda: PrivateCategoricalNB(
        classes=["ill", "well"], categories=[[0.0, 1.0], ["a", "b"]], **SEED
    ),
    "projected": lambda: PrivateProjectedSGDClassifier(
        classes=["ill", "well"], feature_norm=3.0, steps=20, **SEED
    ),
    "pate": lambda: PATEClassifier(
        classes=["ill", "well"], epsilon=5.0, delta=1e-3, teachers=3, **SEED
    ),
}


@pytest.mark.parametrize("name", slow_unless((*QUICK, "values"), DECLARED))
@pytest.mark.parametrize("where", ["X", "y"])
def test_without_a_schema_no_record_decides_either(name, where, book):
    """The types that pandas reads off the cells are complex, times, delays and objects in turn."""
    rows = np.random.default_rng(1).uniform(0, 3, (30, 2))
    public = {"public": pd.DataFrame(rows, columns=["a", "b"])} if name == "pate" else {}
    for odd in ODD:
        labels = ["ill", "well"] * 10
        x = pd.DataFrame({"a": [0.5] * 19 + [odd if where == "X" else 1.0], "b": [1.0] * 20})
        y = pd.Series([*labels[:19], odd if where == "y" else "well"])
        DECLARED[name]().fit(x, y, **public)
    # Whole columns of one odd kind, as where all records are of it.
    for odd in (2j, pd.Timestamp("1800-01-01"), pd.Timedelta(1, "ns"), "x", True):
        x = pd.DataFrame({"a": [odd if where == "X" else 1.0] * 20, "b": [1.0] * 20})
        y = pd.Series([odd if where == "y" else "well"] * 20)
        DECLARED[name]().fit(x, y, **public, **paid(name, book))
    assert spent(book) == 5


@pytest.mark.parametrize("name", [name for name in DECLARED if name not in ("values", "pate")])
@pytest.mark.parametrize("told", [False, True])
def test_a_rehearsal_costs_nothing_and_knows_the_cost(name, told, book):
    if told and name in MODELS:
        schema, make = MODELS[name]
        model, arguments = make(schema), (pd.DataFrame(columns(40)),)
    else:
        targets = [0.0, 1.0] * 10 if name == "linear" else ["ill", "well"] * 10
        model, arguments = DECLARED[name](), (np.ones((20, 2)), targets)
    rehearsal = model.rehearse(*arguments)
    assert not hasattr(model, "n_features_in_")
    assert spent(book) == 0
    assert any(
        "declared" in mistake or "bounds" in mistake for mistake in str(rehearsal).split("-")
    )
    model.fit(*arguments, **paid(name, book))
    assert model.certificate_.loss == rehearsal.loss
    with pytest.raises(InvalidValue):
        model.rehearse(arguments[0], [1, 2])


class Noting(float):
    """A number that notes how much had been charged when it was read."""

    book: Ledger
    seen: set[int] = set()  # noqa: RUF012

    def __float__(self):
        type(self).seen.add(spent(self.book))
        return 1.0


@pytest.mark.parametrize("name", [name for name in DECLARED if name not in ("values", "pate")])
@pytest.mark.parametrize("told", [False, True])
def test_cells_are_read_inside_the_charge(name, told, book):
    if told and name not in MODELS:
        return
    Noting.book, Noting.seen = book, set()
    cells = [Noting(2.0) for _ in range(20)]
    if told:
        schema, make = MODELS[name]
        data = {key: list(values) for key, values in columns(20).items() if key in schema.columns}
        make(schema).fit({**data, "age": cells}, **paid(name, book))
    else:
        x = np.array([[cell, 1.0] for cell in cells], dtype=object)
        targets = [0.0, 1.0] * 10 if name == "linear" else ["ill", "well"] * 10
        DECLARED[name]().fit(x, targets, **paid(name, book))
    assert Noting.seen == {1}


@pytest.mark.parametrize("name", slow_unless([*QUICK, *REPLACED], MODELS))
def test_a_table_without_rows_is_learned_from_like_any_other(name, book):
    """Their number never refuses: the model is charged for and knows nothing."""
    schema, make = MODELS[name]
    dataset = "r" if name in REPLACED else "d"
    typed = pa.table(columns(3)).slice(0, 0)
    for frame in (typed, typed.to_pandas()):
        model = make(schema).fit(frame, ledger=book, dataset=dataset)
        assert len(model.predict(frame)) == 0
        assert np.all(np.isfinite(learned(model)))
    assert len(list(book.history(dataset))) >= 2
