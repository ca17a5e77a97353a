"""DuckDB, Spark and the rules of a schema agree on every cell and every aggregate, to the bit."""

import datetime as dt
import gc
import itertools
import math
import os
import random
import signal
import sqlite3
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curator.nasty import COLUMNS, NASTY, TEXTS, write_nasty
from curator.random_expressions import SCHEMA as SIZES
from curator.random_expressions import some_number, some_rows
from curator.test_stored_tables import STORED, check_stored, stored_source
from curator.worlds import KEY, E, bounded_rows, exact, queries, table
from curator.worlds import PERSONS as PEOPLE
from discreet.curator import Curator
from discreet.curator._curator import CuratedDataset
from discreet.curator._plan import QueryPlan, make_plan
from discreet.curator._queries import (
    Count,
    CountPersons,
    GroupBy,
    Histogram,
    Quantile,
    Query,
    Sum,
    ThresholdStream,
    Variance,
)
from discreet.data import Categorical, Date, Real, Schema, read_table
from discreet.engines import (
    Aggregation,
    Bucket,
    Compare,
    Divide,
    Field,
    Lowering,
    Multiply,
    Not,
    Number,
    OneOf,
    StartsWith,
    Subtract,
    Table,
    ToNumber,
    Value,
    open_table,
    stored_columns,
)
from discreet.engines._databases import _whole_persons
from discreet.engines._table import aggregate_part
from discreet.errors import InvalidValue
from discreet.ledger import Ledger
from ledger.postgres_server import running_server


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nasty") / "nasty.parquet"
    write_nasty(path)
    return path


@pytest.fixture(scope="module")
def spark() -> Iterator[None]:
    """One session of Spark for all tests here; datasets find it by themselves."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[1,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    yield
    session.stop()


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """The first table starts Ray; it ends with the tests here."""
    import ray

    yield
    with warnings.catch_warnings():  # it leaves processes to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        ray.shutdown()
        gc.collect()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_server() as url:
        yield url


def kept_rows(found: CuratedDataset) -> list[Any]:
    """The rows that a query without a filter uses."""
    return bounded_rows(found, capped=True)


def test_duckdb_keeps_what_the_schema_reads(nasty: Path) -> None:
    """Cell by cell, against the reader of discreet.data; text columns apart."""
    schema = Schema({name: column for name, column in COLUMNS.items() if name != "text"})
    found = CuratedDataset("nasty", schema=schema, source=nasty, threads=1)
    read = read_table(nasty, schema)
    expected = []
    for stored in stored_columns(schema).values():
        values = read.columns[stored.name]
        factor = 1.0 if stored.labels or stored.grid is None else float(1 / stored.grid.step)
        expected.append([round(float(value) * factor) for value in values])
    assert len(expected[0]) == 300
    assert kept_rows(found) == sorted(zip(*expected, strict=True))


@pytest.mark.slow
def test_a_table_in_memory_and_its_file_are_kept_alike(nasty: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    by_engine = CuratedDataset("nasty", schema=NASTY, source=nasty, key=KEY, threads=1)
    by_rules = CuratedDataset("nasty", schema=NASTY, source=pq.read_table(nasty), key=KEY)
    assert kept_rows(by_engine) == kept_rows(by_rules)


def test_a_file_of_duckdb_is_read(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "people.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1 AS who, 30 AS age FROM range(5)")
    schema = Schema({"age": PEOPLE.columns["age"]}, person="who", rows_per_person=3)
    found = CuratedDataset("visits", schema=schema, source=path, table="visits")
    assert kept_rows(found) == [(30, 1), (30, 2), (30, 3)]


NASTY_QUERIES: list[Query] = [
    Count(epsilon=E),
    Sum(of=Field("double_real"), epsilon=E),
    Sum(of=Field("long"), epsilon=E),
    Sum(of=Multiply(Field("text_real"), Field("decimal")), epsilon=E),
    Sum(
        of=Divide(Field("long"), Field("double_integer"), lower=-9, upper=10**6, default=3),
        epsilon=E,
    ),
    Sum(of=ToNumber("text", lower=-1000, upper="1000.1", default=5), epsilon=E),
    Variance(of=Subtract(Field("long"), Field("text_integer")), epsilon=E),
    Quantile(of=Field("text_real"), share="1/3", epsilon=E),
    Histogram(of=Field("float_real"), edges=("1/10000", "1/1000"), epsilon=E),
    GroupBy(by=(Field("text"), Field("truth")), delta="1/1000000", epsilon=E),
    GroupBy(by=(Field("moment"),), delta="1/1000000", statistic="mean", of=Field("day"), epsilon=E),
    GroupBy(
        by=(Bucket(Field("double_integer"), 10), Field("text_label")), delta="1/1000", epsilon=E
    ),
    ThresholdStream(
        questions=[
            question
            for text in TEXTS
            if text and len(text) < 150 and not any(ord(one) < 32 for one in text)
            for question in (OneOf("text", [text]), StartsWith("text", text[:2]))
        ][::3]
        + [Not(Compare("<", Field("long"), Field("text_real")))],
        threshold=1,
        epsilon=E,
    ),
]


# Ray leaves its processes and files to the garbage collector.
RAY = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


def some_people() -> dict[str, list[Any]]:
    draw = np.random.default_rng(3)
    rows = [
        (
            f"p{draw.integers(30)}",
            int(draw.integers(-5, 130)),
            float(draw.normal(0, 1e5)),
            ["Oslo", "Bergen", "3", "x"][draw.integers(4)],
            bool(draw.integers(2)),
            f"2020-{draw.integers(1, 13):02}-{draw.integers(1, 29):02}",
            ["é'", "12.5", "y", "z\x00\uf8ff", "1e999", "-1e-999"][draw.integers(6)],
        )
        for _ in range(100)
    ]
    return table(rows)


def agree(schema: Schema, source: Any, asked: list[Query], **engine: Any) -> None:
    """The bounded table and every aggregate before the noise are those of Arrow."""
    one = CuratedDataset("t", schema=schema, source=source, key=KEY, engine="arrow")
    other = CuratedDataset("t", schema=schema, source=source, key=KEY, **engine)
    assert len(bounded_rows(one)) > 50
    assert bounded_rows(other) == bounded_rows(one)
    for query in asked:
        plan = make_plan(query, schema)
        plan.check(other.engine())
        assert plan.rows(other.engine()) == plan.rows(one.engine()), query
    other.close()


EVERY = [("people", queries()), ("nasty", NASTY_QUERIES)]


def given(what: str, nasty: Path) -> tuple[Schema, Any]:
    return (PEOPLE, some_people()) if what == "people" else (NASTY, str(nasty))


@pytest.mark.parametrize("parts", [2, 7])
@pytest.mark.parametrize(("what", "asked"), EVERY)
def test_parts_of_arrow_agree(what: str, asked: list[Query], parts: int, nasty: Path) -> None:
    agree(*given(what, nasty), asked, engine="arrow", partitions=parts)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize(("what", "asked"), EVERY)
def test_duckdb_agrees_to_the_bit(what: str, asked: list[Query], parts: int, nasty: Path) -> None:
    agree(*given(what, nasty), asked, engine="duckdb", partitions=parts)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize(("what", "asked"), EVERY)
def test_postgres_agrees_to_the_bit(
    what: str, asked: list[Query], parts: int, nasty: Path, postgres: str
) -> None:
    agree(*given(what, nasty), asked, engine="postgres", address=postgres, partitions=parts)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize(("what", "asked"), EVERY)
def test_spark_agrees_to_the_bit(
    what: str, asked: list[Query], parts: int, nasty: Path, spark: None
) -> None:
    agree(*given(what, nasty), asked, engine="spark", partitions=parts)


@RAY
@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize(("what", "asked"), EVERY)
def test_ray_agrees_to_the_bit(
    what: str, asked: list[Query], parts: int, nasty: Path, ray: None
) -> None:
    agree(*given(what, nasty), asked, engine="ray", partitions=parts)


class InSqlite(Table):
    """An engine from outside: rows as SQLite has them, one table for each part."""

    def __init__(self, schema: Schema, parts: Any, *, place: str) -> None:
        super().__init__(schema)
        self._held = sqlite3.connect(place)
        self._forms: list[Any] = []
        for at, part in enumerate(parts):
            self._forms.append(part.schema)
            self._held.execute(f"CREATE TABLE part{at} ({', '.join(part.column_names)})")
            marks = ", ".join("?" * part.num_columns)
            rows = zip(*(column.to_pylist() for column in part.columns), strict=True)
            self._held.executemany(f"INSERT INTO part{at} VALUES ({marks})", rows)

    def map_parts(self, function: Any, names: Any) -> Any:

        for at, form in enumerate(self._forms):
            asked = f"SELECT {', '.join(names)} FROM part{at} ORDER BY rowid"
            columns = list(zip(*self._held.execute(asked), strict=True)) or [()] * len(names)
            kinds = [form.field(name) for name in names]
            yield function(pa.table(list(map(list, columns)), schema=pa.schema(kinds)))

    def close(self) -> None:
        self._held.close()


@pytest.mark.parametrize(("what", "asked"), EVERY)
def test_an_engine_from_outside_agrees_to_the_bit(
    what: str, asked: list[Query], nasty: Path
) -> None:
    agree(*given(what, nasty), asked, engine=InSqlite, place=":memory:", partitions=3)


@pytest.mark.slow
def test_random_expressions_are_the_same_on_duckdb_and_postgres(postgres: str) -> None:
    draw = random.Random(4)
    lowering = Lowering(stored_columns(SIZES))
    numbers = [lowering.coarser(lowering.number(some_number(draw, 2)), 2**40) for _ in range(25)]
    asked = Aggregation(sums=tuple(numbers))
    source = some_rows(30)
    found = []
    for engine, options in (("arrow", {}), ("duckdb", {}), ("postgres", {"address": postgres})):
        opened = open_table(source, SIZES, engine=engine, **options)
        found.append(opened.aggregate(asked))
        opened.close()
    one, *others = found
    assert len(set(one[()])) > 15
    assert others == [one, one]


def check_killed_worker(folder: Path, monkeypatch: pytest.MonkeyPatch, **engine: Any) -> None:
    """A worker dies while it adds up: the answer comes, exact, and there is one charge."""
    source, mark = stored_source(folder), str(folder / "killed")
    schema = replace(STORED, columns={"age": STORED.columns["age"]})
    people = CuratedDataset("people", schema=schema, source=source, key=KEY, **engine)
    kill, add_up, here = os.kill, aggregate_part, os.getpid()

    def die_once(part: Any, aggregation: Aggregation) -> bytes:  # workers know no test module
        if os.getpid() != here and not Path(mark).exists():
            Path(mark).touch()
            kill(os.getpid(), signal.SIGKILL)
        return add_up(part, aggregation)

    monkeypatch.setattr("discreet.engines._table.aggregate_part", die_once)
    found: list[Any] = []
    rows = QueryPlan.rows
    monkeypatch.setattr(QueryPlan, "rows", lambda *of: found.append(rows(*of)) or found[-1])
    with Ledger.create(folder / "study.ledger") as ledger:
        ledger.create_dataset("people", epsilon=3, unit="person")
        curator = Curator(ledger, {"people": people})
        query = Histogram(of=Field("age"), edges=(0, 20, 40, 120), epsilon=1)
        answer = curator.ask("people", query, analyst="ann")
        assert Path(mark).exists()
        assert ledger.show("people").budget.charges == 1
        again = curator.ask("people", query, analyst="ann")
        assert (again.value, again.answered_before) == (answer.value, True)
        assert ledger.show("people").budget.charges == 1
    people.close()
    monkeypatch.undo()
    plain = CuratedDataset("people", schema=schema, source=source, key=KEY, engine="arrow")
    assert found == [make_plan(query, schema).rows(plain.engine())]


@RAY
@pytest.mark.slow
def test_a_killed_worker_of_ray_changes_neither_answer_nor_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray: None
) -> None:
    check_killed_worker(tmp_path, monkeypatch, engine="ray", partitions=3)


@pytest.mark.slow
def test_a_killed_worker_of_spark_changes_neither_answer_nor_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: None
) -> None:
    check_killed_worker(tmp_path, monkeypatch, engine="spark", partitions=3)


def test_texts_of_queries_are_compared_as_they_are(nasty: Path) -> None:
    """Quotes, backslashes, wildcards and lookalikes mean themselves."""
    found = CuratedDataset("nasty", schema=NASTY, source=nasty, key=KEY, threads=1)
    position = stored_columns(NASTY)["text"].position
    texts = [row[position] for row in kept_rows(found)]
    stream = NASTY_QUERIES[-1]
    assert isinstance(stream, ThresholdStream)
    counts = exact(stream, found)[1][()][1:]
    for question, count in zip(stream.questions[:-1], counts, strict=False):
        if isinstance(question, OneOf):
            assert count == texts.count(question.values[0])
        else:
            assert isinstance(question, StartsWith)
            assert count == sum(text.startswith(question.prefix) for text in texts)


@pytest.mark.slow
def test_spark_puts_nothing_in_place_of_a_text(spark: None) -> None:
    """In SQL it would replace ${...} by settings and variables, quotes too."""
    variable = "${spark.app.name}"
    rows = {"text": [variable, "x"]}
    schema = Schema({"text": Categorical()})
    for engine in ("duckdb", "spark"):
        found = CuratedDataset("found", schema=schema, source=rows, engine=engine)
        for condition in (OneOf("text", [variable]), StartsWith("text", variable)):
            assert exact(Count(epsilon=1, where=condition), found)[1] == {(): (1,)}
        found.close()


def test_days_are_days_everywhere() -> None:
    column = PEOPLE.columns["day"]
    assert column.bounds[0] == (dt.date(2020, 1, 1) - dt.date(1970, 1, 1)).days
    assert not math.isnan(column.bounds[1])
    assert isinstance(Field("day"), Number)
    assert Value(1).value == 1


NORTH = Schema(
    {
        "day": Date(dt.date(2019, 1, 1), dt.date(2021, 12, 31)),
        "plain": Date(dt.date(2019, 1, 1), dt.date(2021, 12, 31)),
    }
)


def zoned_times() -> Any:
    """Moments that are another day in their zone than in UTC."""

    moments = [dt.datetime(2020, 1, 1, hour, tzinfo=dt.UTC) for hour in (3, 12)]
    bare = [moment.replace(tzinfo=None) for moment in moments]
    return pa.table(
        {
            "day": pa.array(moments, type=pa.timestamp("us", tz="America/Los_Angeles")),
            "plain": pa.array(bare, type=pa.timestamp("us")),
        }
    )


def test_a_time_of_a_zone_is_the_day_that_it_was_there(tmp_path: Path) -> None:
    import duckdb
    import pyarrow.parquet as pq

    pq.write_table(zoned_times(), tmp_path / "times.parquet")
    sources = (zoned_times(), tmp_path / "times.parquet")
    one, other = (kept_rows(CuratedDataset("t", schema=NORTH, source=s)) for s in sources)
    first = (dt.date(2020, 1, 1) - dt.date(1970, 1, 1)).days
    assert one == other == [(first - 1, first), (first, first)]
    (tmp_path / "folder").mkdir()
    pq.write_table(zoned_times(), tmp_path / "folder" / "times.parquet")
    with duckdb.connect(str(tmp_path / "times.duckdb")) as connection:
        connection.execute(f"CREATE TABLE t AS FROM '{tmp_path}/times.parquet'")
    assert kept_rows(CuratedDataset("t", schema=NORTH, source=tmp_path / "folder")) == one
    with pytest.raises(InvalidValue, match="times without a zone"):
        CuratedDataset("t", schema=NORTH, source=tmp_path / "times.duckdb", table="t").prepare()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_a_zone_are_taken_in_every_unit(unit: str, tmp_path: Path) -> None:
    """A moment before midnight is the day before, also before 1970; pandas has nanoseconds."""
    import pandas as pd
    import polars as pl
    import pyarrow.parquet as pq

    midnight = 8 * 3600  # the first second of 1970 in Los Angeles
    parts = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    moments = [second * parts + less for second in (midnight, 0) for less in (-1, 0)]
    zoned = pa.array(moments, pa.int64()).cast(pa.timestamp(unit, tz="America/Los_Angeles"))
    table = pa.table({"day": zoned})
    schema = Schema({"day": Date(dt.date(1960, 1, 1), dt.date(2021, 12, 31))})
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "times.parquet", tmp_path / "folder" / "times.parquet"):
        pq.write_table(table, place)
    frames: list[Any] = [table, table.to_pandas(), table.to_pandas(types_mapper=pd.ArrowDtype)]
    if unit != "s":  # polars has no seconds
        frames.append(pl.from_arrow(table))
    for source in (*frames, tmp_path / "times.parquet", tmp_path / "folder"):
        found = CuratedDataset("t", schema=schema, source=source, threads=1)
        assert kept_rows(found) == [(-1,), (-1,), (-1,), (0,)], type(source)
        found.close()


UNFIT = [
    b"ok",
    b"\xff\xfeSECRET",
    b" \xff\xfeSECRET\t",
    b"\xed\xa0\x80",
    b"?",
    b"",
    b"2020-07-01T\xff",
]
OWNERS = [b"\xff", b" \xff\t", b"\xfe", b"?", b"\xff", b"\x00ff", b"FF"]


def unfit_sources(folder: Path) -> dict[str, Any]:
    """The same table, with texts that are not UTF-8, from every source that can hold them."""
    import pandas as pd
    import pyarrow.parquet as pq

    columns = {
        **dict.fromkeys(("text", "label", "number", "day"), pa.array(UNFIT, pa.binary())),
        "who": pa.array(OWNERS, pa.binary()),
    }
    texts = {name: array.view(pa.string()) for name, array in columns.items()}
    coded = {
        name: pa.DictionaryArray.from_arrays(pa.array(range(len(array)), pa.int32()), array)
        for name, array in texts.items()
    }
    for name, arrays in (("texts", texts), ("bytes", columns), ("coded", coded)):
        pq.write_table(pa.table(arrays), folder / f"{name}.parquet")
    (folder / "parts").mkdir(exist_ok=True)
    pq.write_table(pa.table(texts), folder / "parts" / "texts.parquet")
    lines = zip(*(array.to_pylist() for array in columns.values()), strict=True)
    names = ",".join(columns).encode()
    (folder / "rows.csv").write_bytes(b"\n".join([names, *map(b",".join, lines)]))
    large = {name: array.cast(pa.large_binary()) for name, array in columns.items()}
    return {
        "texts": folder / "texts.parquet",
        "bytes": folder / "bytes.parquet",
        "coded": folder / "coded.parquet",
        "parts": folder / "parts",
        "csv": folder / "rows.csv",
        "arrow": pa.table(texts),
        "large": pa.table({name: array.view(pa.large_string()) for name, array in large.items()}),
        "dictionary": pa.table(coded),
        "mapping": {name: array.to_pylist() for name, array in columns.items()},
        "pandas": pd.DataFrame({name: array.to_pylist() for name, array in columns.items()}),
        "pandas in arrow": pa.table(texts).to_pandas(types_mapper=pd.ArrowDtype),
    }


UNFIT_SCHEMA = Schema(
    {
        "text": Categorical(),
        "label": Categorical(["ok", "?", "??SECRET", "SECRET"], missing="none"),
        "number": Real(0.0, 1.0, missing=0.25),
        "day": Date(dt.date(2020, 1, 1), dt.date(2020, 12, 31), missing=dt.date(2020, 2, 2)),
    },
    person="who",
    rows_per_person=2,
)


@pytest.mark.slow
def test_a_text_that_is_not_utf8_is_repaired_in_every_source(tmp_path: Path) -> None:
    """It is no label, number or day, names a person of its own, and shows in no message."""
    kept = {}
    for name, source in unfit_sources(tmp_path).items():
        found = CuratedDataset("t", schema=UNFIT_SCHEMA, source=source, key=KEY, threads=1)
        kept[name] = kept_rows(found)
        persons = make_plan(CountPersons(epsilon=1), UNFIT_SCHEMA).rows(found.engine())
        assert persons == {(): (5,)}, name
        found.close()
    assert all(rows == kept["mapping"] for rows in kept.values()), kept
    labels = Counter(stored_columns(UNFIT_SCHEMA)["label"].labels[row[1]] for row in kept["csv"])  # type: ignore[index]
    assert set(labels) <= {"ok", "?", "none", "other"}
    assert {row[0] for row in kept["csv"]} <= {"ok", "?", "other"}
    assert len({row[3] for row in kept["csv"]}) == 1
    assert len(kept["csv"]) == 6


@pytest.mark.slow
def test_spark_repairs_the_same_texts(tmp_path: Path, spark: None) -> None:
    sources = unfit_sources(tmp_path)
    duck = CuratedDataset("t", schema=UNFIT_SCHEMA, source=sources["csv"], key=KEY, threads=1)
    for name in ("texts", "bytes", "parts"):
        source = str(sources[name])
        other = CuratedDataset("t", schema=UNFIT_SCHEMA, source=source, key=KEY, engine="spark")
        assert kept_rows(other) == kept_rows(duck), name
        other.close()


def test_no_message_about_a_source_has_a_cell_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("SECRET")

    monkeypatch.setattr("discreet.engines._arrow.rank_rows", fails)
    with pytest.raises(InvalidValue, match="records that duckdb can read") as caught:
        CuratedDataset("t", schema=UNFIT_SCHEMA, source=unfit_sources(tmp_path)["csv"]).prepare()
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("other", [{"text": [1]}, {"age": [1]}, {}])
def test_files_of_a_directory_have_the_same_columns(other: Any, tmp_path: Path) -> None:
    """By their declared types: no cell decides."""
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(other), tmp_path / "b.parquet")
    with pytest.raises(InvalidValue, match=r"one (type of )?column 'text'"):
        CuratedDataset("t", schema=Schema({"text": Categorical()}), source=tmp_path).prepare()


NUMBERED = Schema({"age": PEOPLE.columns["age"]}, person="who", rows_per_person=2)
NUMBERS = [math.inf, math.inf, -math.inf, math.nan, None, 1.0, -0.0, 0.0, 0.0, 2.5, 1e18, 2.0**53]


def numbered_sources(folder: Path) -> dict[str, Any]:
    """A column of numbers that name persons, from every source that has such a type."""
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.parquet as pq

    ages = list(range(len(NUMBERS)))
    table = pa.table({"age": ages, "who": pa.array(NUMBERS, pa.float64(), from_pandas=False)})
    pq.write_table(table, folder / "rows.parquet")
    with duckdb.connect(str(folder / "rows.duckdb")) as connection:
        connection.execute(f"CREATE TABLE rows AS FROM '{folder}/rows.parquet'")
    return {
        "parquet": folder / "rows.parquet",
        "duckdb": folder / "rows.duckdb",
        "arrow": table,
        "pandas": table.to_pandas(),
        "pandas in arrow": table.to_pandas(types_mapper=pd.ArrowDtype),
        "polars": pl.from_arrow(table),
        "array": {"age": ages, "who": np.array(NUMBERS, dtype=float)},
        "list": {"age": ages, "who": NUMBERS},
    }


def test_numbers_name_the_same_persons_in_every_source(tmp_path: Path) -> None:
    """NaN names nobody; every other number does, infinities and fractions too."""
    kept = {}
    for name, source in numbered_sources(tmp_path).items():
        table = "rows" if name == "duckdb" else None
        found = CuratedDataset("t", schema=NUMBERED, source=source, table=table, key=KEY, threads=1)
        kept[name] = kept_rows(found)
        persons = make_plan(CountPersons(epsilon=1), NUMBERED).rows(found.engine())
        assert persons == {(): (7,)}, name
        found.close()
        if table is None:
            assert len(read_table(source, NUMBERED)) == 9, name
    assert len(kept["list"]) == 9
    assert all(rows == kept["list"] for rows in kept.values()), kept


def test_long_numbers_name_persons_by_all_their_digits(tmp_path: Path) -> None:
    """Decimals of Parquet and databases, which as doubles would be one person."""
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [Decimal(12345678901234567890 + at) for at in range(3)]
    rows = pa.table({"age": [1, 2, 3], "who": pa.array(names, pa.decimal128(38, 0))})
    pq.write_table(rows, tmp_path / "rows.parquet")
    with duckdb.connect(tmp_path / "rows.duckdb") as connection:
        connection.execute("CREATE TABLE rows AS SELECT age, CAST(who AS HUGEINT) AS who FROM rows")
    schema = Schema({"age": PEOPLE.columns["age"]}, person="who", rows_per_person=1)
    for source, name in ((rows, None), ("rows.parquet", None), ("rows.duckdb", "rows")):
        place = tmp_path / source if isinstance(source, str) else source
        opened = open_table(place, schema, table=name)
        assert opened.aggregate(Aggregation(cap=1)) == {(): (3,)}
        opened.close()


@pytest.mark.slow
def test_numbers_name_the_same_persons_on_spark(tmp_path: Path, spark: None) -> None:
    source = str(numbered_sources(tmp_path)["parquet"])
    found = CuratedDataset("t", schema=NUMBERED, source=source, key=KEY, engine="spark")
    here = CuratedDataset("t", schema=NUMBERED, source=source, key=KEY)
    assert len(kept_rows(found)) == 9
    assert kept_rows(found) == kept_rows(here)
    found.close()


@pytest.mark.parametrize("others", [(), ("x",), ("__HIVE_DEFAULT_PARTITION__",), ("2020-01-01",)])
@pytest.mark.parametrize("address", [False, True])
def test_a_record_in_a_partition_of_its_own_changes_no_other(
    others: tuple[str, ...], address: bool, tmp_path: Path
) -> None:
    """Names of directories are text. As numbers, which one record could end, 01 would be 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for ward in ("01", "02", *others):
        (tmp_path / f"ward={ward}").mkdir()
        rows = pa.table({"age": [30]})
        pq.write_table(rows, tmp_path / f"ward={ward}" / "rows.parquet")
    schema = Schema({"age": PEOPLE.columns["age"], "ward": Categorical(["01", "02"])})
    source = f"file://{tmp_path}/*/*.parquet" if address else tmp_path
    found = kept_rows(CuratedDataset("p", schema=schema, source=source))
    assert sorted(row[1] for row in found) == [0, 1, *[2 for _ in others]]


def test_a_directory_is_read_with_all_its_partitions(tmp_path: Path) -> None:
    """As pyarrow writes them; what else lies in it is refused or, by its name, left out."""
    import pyarrow.dataset as ds

    rows = pa.table({"age": [1, 2, 3, 4], "city": ["Oslo", "Oslo", "Bergen", "3"]})
    ds.write_dataset(
        rows,
        tmp_path / "parts",
        format="parquet",
        partitioning=["city"],
        partitioning_flavor="hive",
    )
    (tmp_path / "parts" / "_SUCCESS").touch()
    (tmp_path / "parts" / ".crc").touch()
    schema = Schema({"age": PEOPLE.columns["age"], "city": PEOPLE.columns["city"]})
    found = CuratedDataset("p", schema=schema, source=tmp_path / "parts")
    in_memory = CuratedDataset("p", schema=schema, source=rows)
    assert kept_rows(found) == kept_rows(in_memory)
    assert len(kept_rows(found)) == 4
    (tmp_path / "parts" / "city=Oslo" / "part-1.csv").touch()
    with pytest.raises(InvalidValue, match=r"Parquet files only, and not 'part-1\.csv'"):
        CuratedDataset("p", schema=schema, source=tmp_path / "parts").prepare()
    (tmp_path / "parts" / "city=Oslo" / "part-1.csv").unlink()
    (tmp_path / "parts" / "city=Hamar").symlink_to(tmp_path / "parts" / "city=3")
    with pytest.raises(InvalidValue, match="directories, and not the link 'city=Hamar'"):
        CuratedDataset("p", schema=schema, source=tmp_path / "parts").prepare()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidValue, match="a directory with Parquet files"):
        CuratedDataset("p", schema=schema, source=tmp_path / "empty").prepare()


@pytest.mark.slow
def test_one_process_runs_spark_at_one_master(spark: None) -> None:
    found = CuratedDataset(
        "p",
        schema=Schema({"text": Categorical()}),
        source={"text": ["x"]},
        engine="spark",
        master="local[2]",
    )
    with pytest.raises(InvalidValue, match=r"local\[1,4\], where this process runs Spark"):
        found.prepare()


@pytest.mark.slow
def test_postgres_fills_its_server_from_a_stored_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: str
) -> None:
    check_stored(tmp_path, monkeypatch, engine="postgres", address=postgres)


@pytest.mark.slow
def test_spark_opens_a_stored_table_without_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: None
) -> None:
    check_stored(tmp_path, monkeypatch, engine="spark", partitions=3)


@RAY
@pytest.mark.slow
def test_ray_opens_a_stored_table_without_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray: None
) -> None:
    check_stored(tmp_path, monkeypatch, engine="ray", partitions=3)


def test_rows_of_a_person_stay_together_however_a_database_cuts_them() -> None:
    rng = np.random.default_rng(0)
    fields = pa.schema([("person", pa.int64()), ("row", pa.int64())])
    for _ in range(50):
        persons = np.sort(rng.integers(0, 6, rng.integers(0, 30)))
        ends = [0, *np.sort(rng.integers(0, persons.size + 1, 3)), persons.size]
        batches = [
            pa.record_batch([persons[low:high], np.arange(low, high)], schema=fields)
            for low, high in itertools.pairwise(ends)
        ]
        parts = list(_whole_persons(pa.RecordBatchReader.from_batches(fields, batches)))
        assert [one for part in parts for one in part["row"].to_pylist()] == [*range(persons.size)]
        assert sum(len(set(part["person"].to_pylist())) for part in parts) == len(set(persons))
        assert len(parts) == 1 or all(part.num_rows for part in parts)


def test_fold_and_batches_hand_out_the_capped_rows() -> None:
    def step(batch: Any) -> Any:
        return np.array([batch.rows, int(batch.columns["age"].sum())])

    found = []
    for engine, options in (("arrow", {"partitions": 7}), ("arrow", {}), ("duckdb", {})):
        table = open_table(some_people(), PEOPLE, engine=engine, key=KEY, **options)
        rows = sum(len(batch) for batch in table.batches(["age", "city"]))
        total = table.fold(step, np.zeros(2, dtype=int), names=["age"]).tolist()
        assert total[0] == rows
        found.append(total)
        with pytest.raises(InvalidValue, match="whole numbers"):
            table.fold(lambda batch: np.array([0.5, 0.5]), np.zeros(2), names=["age"])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("wrong", "named"), [({"engine": "sqlite"}, "engine"), ({"key": b"short"}, "32 secret bytes")]
)
def test_an_engine_that_is_none_and_a_short_key_are_refused(wrong, named):
    schema = Schema({"age": Real(0, 9)})
    with pytest.raises(InvalidValue, match=named):
        open_table({"age": [1.0]}, schema, **wrong)
