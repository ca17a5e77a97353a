"""Learners add up where the rows are: the same model on every engine and partitioning."""

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from discreet.data import Boolean, Categorical, Integer, Real, Schema, read_table
from discreet.engines import open_table
from discreet.errors import InvalidValue
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateCategoricalNB,
    PrivateGaussianNB,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
)
from discreet.learn import _intake as intake
from discreet.ledger import Ledger
from ledger.postgres_server import running_server

KEY = bytes(range(32))
AREAS = ["north", "south", "west"]
COLUMNS = {"age": Integer(0, 120), "sum": Real(-10.0, 10.0), "city": Categorical(AREAS)}


def schema(target: Any, **more: Any) -> Schema:
    return Schema({**COLUMNS, "ill": target}, target="ill", expected_rows=300, **more)


CLASSES = schema(Categorical(["no", "perhaps", "yes"], other="no", missing="no"))
NUMBERS = schema(Integer(0, 50))
OWNED = schema(Boolean(), person="who", rows_per_person=2)
PLAIN = Schema({"age": Integer(0, 120), "ill": Boolean()}, target="ill", expected_rows=300)


def records(rows: int = 300) -> dict[str, list[Any]]:
    draw = np.random.default_rng(5)
    return {
        "who": [f"p{at}" for at in draw.integers(0, 90, rows)],
        "age": draw.integers(-5, 130, rows).tolist(),
        "sum": draw.normal(0, 6, rows).tolist(),
        "city": draw.choice([*AREAS, "nowhere", ""], rows).tolist(),
        "ill": draw.choice(["no", "perhaps", "yes", "1", "17", ""], rows).tolist(),
    }


LEARNERS: dict[str, Any] = {
    "counts": PrivateCategoricalNB(epsilon=2.0, schema=CLASSES, bins=5, insecure_seed=1),
    "counts of persons' rows": PrivateCategoricalNB(
        epsilon=2.0, schema=PLAIN, bins=5, insecure_seed=1
    ),
    "moments": PrivateGaussianNB(epsilon=2.0, schema=PLAIN, insecure_seed=1),
    "logistic": PrivateLogisticRegression(epsilon=2.0, schema=CLASSES, max_iter=4, insecure_seed=1),
    "logistic of persons": PrivateLogisticRegression(
        epsilon=2.0, schema=OWNED, max_iter=4, insecure_seed=1
    ),
    "linear": PrivateLinearRegression(epsilon=2.0, schema=NUMBERS, max_iter=4, insecure_seed=1),
    "additive": PrivateAdditiveRegressor(epsilon=2.0, schema=NUMBERS, max_bins=8, insecure_seed=1),
    "additive of persons": PrivateAdditiveClassifier(
        epsilon=2.0, schema=OWNED, max_bins=8, insecure_seed=1
    ),
}


def arrays_of(learner: Any, source: Any) -> dict[str, np.ndarray]:
    fitted = learner.fit(source)
    return {name: np.asarray(value) for name, value in fitted._arrays.items()}


def bounded(learner: Any, engine: str, **options: Any) -> Any:
    return open_table(records(), learner.schema, engine=engine, key=KEY, **options)


def agree(learner: Any, engine: str, **options: Any) -> None:
    expected = arrays_of(learner, bounded(learner, "arrow"))
    table = bounded(learner, engine, **options)
    found = arrays_of(learner, table)
    table.close()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
def test_parts_make_no_difference(learner: Any) -> None:
    for parts in (2, 7):
        agree(learner, "arrow", partitions=parts)


@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
def test_rows_are_added_up_where_they_are(learner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = bounded(learner, "arrow", partitions=2)
    monkeypatch.setattr(
        type(table), "batches", lambda *_, **__: pytest.fail("rows were brought here")
    )
    learner.fit(table)


@pytest.mark.parametrize("name", ["counts of persons' rows", "moments"])
def test_the_model_is_that_of_the_same_rows_in_memory(name: str) -> None:
    """Whole numbers are what they are on the grid of an engine."""
    learner = LEARNERS[name]
    here = arrays_of(learner, read_table(records(), learner.schema))
    there = arrays_of(learner, bounded(learner, "arrow", partitions=3))
    assert all(np.array_equal(here[name], there[name]) for name in here)


@pytest.mark.parametrize("name", ["additive", "additive of persons", "logistic of persons"])
def test_the_model_is_that_of_the_rows_brought_here(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the rows fall into batches: those of a person are in one of them."""
    learner = LEARNERS[name]
    monkeypatch.setattr("discreet.engines._table._CHUNK", 60)
    there = arrays_of(learner, bounded(learner, "arrow", partitions=3))
    monkeypatch.setattr(intake.Rows, "are_elsewhere", False)
    here = arrays_of(learner, bounded(learner, "arrow"))
    assert all(np.array_equal(here[name], there[name]) for name in here)


def test_rows_of_a_person_in_two_batches_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: each row a batch of its own, so that persons are clipped row by row."""
    learner = LEARNERS["additive of persons"]
    right = arrays_of(learner, bounded(learner, "arrow"))
    whole = intake._read_owners_in_line
    monkeypatch.setattr(
        intake, "_read_owners_in_line", lambda persons: whole(np.arange(persons.size))
    )
    wrong = arrays_of(learner, bounded(learner, "arrow"))
    assert not np.array_equal(right["cell_values"], wrong["cell_values"])


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_batches_part_no_person(rows: int) -> None:
    table = bounded(LEARNERS["logistic of persons"], "arrow")
    seen: list[int] = []
    for batch in table.batches(rows=rows):
        own = batch.persons.tolist()
        assert not set(own) & set(seen)
        assert len(own) <= rows + 1  # two rows of a person
        seen += own
    assert len(seen) == sum(batch.rows for batch in table.batches())
    assert max(np.bincount(seen)) == 2


def test_a_fold_that_forgets_the_cap_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: all rows of a person instead of two."""
    learner = LEARNERS["logistic of persons"]
    right = arrays_of(learner, bounded(learner, "arrow"))
    from discreet.engines import _table

    tables = _table.domain_tables

    def uncapped(part: Any, of: Any, rows: int) -> Any:
        ranks = np.ones(part.num_rows, dtype=np.int64)
        at = part.column_names.index("rank")
        return tables(part.set_column(at, "rank", [ranks]), of, rows)

    monkeypatch.setattr(_table, "domain_tables", uncapped)
    wrong = arrays_of(learner, bounded(learner, "arrow"))
    assert not np.array_equal(right["coef"], wrong["coef"])


@pytest.mark.slow
def test_other_learners_take_batches_of_a_bounded_table() -> None:
    learner = PrivateMLPClassifier(
        epsilon=2.0, schema=CLASSES, hidden_layer_sizes=(4,), max_iter=3, insecure_seed=1
    )
    one = arrays_of(learner, bounded(learner, "arrow"))
    assert all(np.isfinite(value).all() for value in one.values() if value.dtype.kind == "f")


def test_the_form_of_a_bounded_table_is_checked_before_the_charge(tmp_path: Any) -> None:
    learner = LEARNERS["counts"]
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        ledger.create_dataset("people", epsilon=5)
        other = bounded(LEARNERS["linear"], "arrow")
        with pytest.raises(InvalidValue, match="the schema that the estimator was told"):
            learner.fit(other, ledger=ledger, dataset="people")
        with pytest.raises(InvalidValue, match="the table has its own"):
            learner.fit(bounded(learner, "arrow"), ["no"], ledger=ledger, dataset="people")
        assert ledger.show("people").budget.charges == 0
        learner.fit(bounded(learner, "arrow"), ledger=ledger, dataset="people")
        assert ledger.show("people").budget.charges == 1
        assert learner.rehearse(bounded(learner, "arrow")).loss == learner.planned_loss()


def test_the_number_of_rows_is_counted_where_it_is_public() -> None:
    learner = PrivateLogisticRegression(
        epsilon=2.0, schema=CLASSES, relation="replace", insecure_seed=1
    )
    opened = intake.open_rows(
        learner, learner._declared(), bounded(learner, "arrow", partitions=3), None
    )
    assert opened.rows == 300


@pytest.fixture(scope="module")
def spark() -> Iterator[None]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1,4]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    yield
    session.stop()


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
def test_duckdb_gives_the_same_model(learner: Any) -> None:
    agree(learner, "duckdb")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["counts", "logistic of persons"])
def test_spark_gives_the_same_model(name: str, spark: None) -> None:
    agree(LEARNERS[name], "spark", partitions=3)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
@pytest.mark.slow
def test_ray_gives_the_same_model() -> None:
    import ray

    for name in ("counts", "logistic of persons"):
        agree(LEARNERS[name], "ray", partitions=3)
    with warnings.catch_warnings():  # it leaves processes to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        ray.shutdown()
        gc.collect()


@pytest.mark.slow
def test_postgres_gives_the_same_model() -> None:
    with running_server() as url:
        for name in ("counts", "logistic of persons"):
            agree(LEARNERS[name], "postgres", address=url)
