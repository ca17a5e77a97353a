"""S33: every engine and every partitioning counts the same integers."""

import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.data import Schema
from discreet.engines import open_table
from discreet.ledger import Ledger
from discreet.synth import OneShot
from discreet.synth import _counting as counting
from discreet.synth._cells import fine_cells
from discreet.synth._counting import count_tables
from discreet.synth._selection import list_candidates
from ledger.postgres_server import running_server
from synth.worlds import SCHEMA, some_rows

KEY = bytes(range(32))
OWNED = Schema(dict(SCHEMA.columns), person="who", rows_per_person=2, expected_rows=500)


def data_of(schema: Schema) -> dict[str, Any]:
    found = some_rows(700, seed=9)
    return found if schema.person is None else {**found, "who": np.arange(700) % 150}


def all_counts(schema: Schema, engine: str, **options: Any) -> list[np.ndarray]:
    table = open_table(data_of(schema), schema, engine=engine, key=KEY, **options)
    cells = fine_cells(schema, {"paid": 7})
    sets = [(at,) for at in range(len(cells))] + list_candidates(len(cells), 3)[:12]
    found = [counts for _, counts in count_tables(table, cells, [None] * len(cells), sets)]
    table.close()
    return found


def same(schema: Schema, engine: str, **options: Any) -> bool:
    right, found = all_counts(schema, "arrow"), all_counts(schema, engine, **options)
    return all(np.array_equal(a, b) for a, b in zip(right, found, strict=True))


@pytest.mark.parametrize("schema", [SCHEMA, OWNED], ids=["rows", "persons"])
def test_partitions_and_duckdb_count_the_same(schema: Schema) -> None:
    for parts in (1, 2, 7):
        assert same(schema, "arrow", partitions=parts)
    assert same(schema, "duckdb", threads=1)
    rows = 300 if schema.person else 700
    assert all(one.sum() == rows for one in all_counts(schema, "arrow"))


def test_counts_are_those_of_a_slow_twin() -> None:
    data = data_of(SCHEMA)
    ages, ill = data["age"], data["ill"]
    table = open_table(data, SCHEMA, engine="arrow")
    cells = fine_cells(SCHEMA)
    [(_, found)] = count_tables(table, cells, [None] * 5, [(0, 4)])
    for age in range(100):
        for answer in (False, True):
            slow = sum(a == age and i == answer for a, i in zip(ages, ill, strict=True))
            assert found[age, int(answer)] == slow


@pytest.mark.slow
def test_a_seed_gives_the_same_model_on_other_engines() -> None:
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6)
    digests = {
        plan.run(
            data_of(SCHEMA), insecure_seed=1, engine=engine, **options
        ).certificate_.model_digest
        for engine, options in (("arrow", {}), ("arrow", {"partitions": 7}), ("duckdb", {}))
    }
    assert len(digests) == 1


@pytest.fixture(scope="module")
def spark() -> Iterator[None]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[1,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    yield
    session.stop()


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """Ray leaves files and processes to the garbage collector, when it starts and when it ends."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        open_table(data_of(SCHEMA), SCHEMA, engine="ray", partitions=1).close()
        gc.collect()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        ray.shutdown()
        gc.collect()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_spark_counts_the_same() -> None:
    for parts in (1, 2, 7):
        assert same(OWNED, "spark", partitions=parts)
    assert same(SCHEMA, "spark", partitions=2)


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_ray_counts_the_same() -> None:
    for parts in (1, 2, 7):
        assert same(OWNED, "ray", partitions=parts)


def lose_a_worker(monkeypatch: pytest.MonkeyPatch, mark: Path) -> None:
    """Have the first process that counts a part die of it, once."""
    kill, count, here = os.kill, counting.count_part, os.getpid()

    def dying(part: Any, *, recipe: Any) -> bytes:
        if not mark.exists():
            mark.write_text(str(os.getpid()))
            assert os.getpid() != here  # it is a worker that dies
            kill(os.getpid(), signal.SIGKILL)
        return count(part, recipe=recipe)

    monkeypatch.setattr(counting, "count_part", dying)


def check_lost_worker(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that loses a worker releases and charges what a run that loses none does."""
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6)
    right = plan.run(data_of(SCHEMA), insecure_seed=1)
    lose_a_worker(monkeypatch, tmp_path / "died")
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.create_dataset("rows", epsilon=1.2, delta="1e-5", unit="row")
        found = plan.run(
            data_of(SCHEMA),
            ledger=ledger,
            dataset="rows",
            engine=engine,
            partitions=2,
            insecure_seed=1,
        )
        assert ledger.show("rows").budget.charges == 1
    assert (tmp_path / "died").exists()
    assert found.certificate_.model_digest == right.certificate_.model_digest
    assert found.certificate_.loss == right.certificate_.loss


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_a_lost_worker_of_ray_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_lost_worker("ray", tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_lost_worker_of_spark_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_lost_worker("spark", tmp_path, monkeypatch)


@pytest.mark.slow
def test_postgres_counts_the_same() -> None:
    with running_server() as url:
        assert same(SCHEMA, "postgres", address=url)
        assert same(OWNED, "postgres", address=url)
