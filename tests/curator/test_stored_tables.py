"""Bounded tables that are stored where their holder says: complete, private, and the same rows."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curator.worlds import KEY
from curator.worlds import PERSONS as PEOPLE
from discreet.data import Categorical, Integer, Schema
from discreet.engines import (
    Aggregation,
    Field,
    Lowering,
    ToNumber,
    forget_tables,
    open_table,
    stored_columns,
)
from discreet.engines._scratch import Storage
from discreet.errors import FileUnusable, InvalidValue

STORED = Schema(
    {"age": PEOPLE.columns["age"], "text": Categorical()}, person="who", rows_per_person=3
)


def stored_source(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = range(60)
    columns = {
        "who": [f"p{at % 9}" for at in rows],
        "age": list(rows),
        "text": [["x", "12"][at % 2] for at in rows],
    }
    pq.write_table(pa.table(columns), folder / "people.parquet")
    return folder / "people.parquet"


def by_age(opened: Any) -> Any:
    lowering = Lowering(stored_columns(STORED))
    number = lowering.number(ToNumber("text", lower=0, upper=20, default=1))
    keys = (lowering.key(Field("age")).term,)
    return opened.aggregate(Aggregation(keys=keys, sums=(number,), cap=3))


def check_stored(folder: Path, monkeypatch: pytest.MonkeyPatch, **engine: Any) -> None:
    """The second opening reads no source; both have the rows of a table that is not stored."""
    source, keep = stored_source(folder), folder / "stored"
    plain = open_table(source, STORED, engine="arrow", key=KEY)
    first = open_table(source, STORED, key=KEY, keep=keep, **engine)
    assert by_age(first) == by_age(plain)
    first.close()
    (home,) = keep.iterdir()
    for place in (keep, home, *home.iterdir()):
        assert place.stat().st_mode & 0o77 == 0, place
    with monkeypatch.context() as patch:
        for module in ("_arrow.read_rows", "_clusters.parquet_table"):
            patch.setattr(f"discreet.engines.{module}", None)
        again = open_table(source, STORED, key=KEY, keep=keep, **engine)
    assert by_age(again) == by_age(plain)
    again.close()
    assert forget_tables(keep) == 1
    assert list(keep.iterdir()) == []


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_a_stored_table_is_opened_without_reading(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_stored(tmp_path, monkeypatch, engine=engine)


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_any_change_builds_another_stored_table(engine: str, tmp_path: Path) -> None:
    """Source, schema, person column, rules and key: each is in the digest."""
    source, keep = stored_source(tmp_path), tmp_path / "stored"

    def homes(schema: Schema = STORED, key: bytes | None = KEY) -> set[Path]:
        opened = open_table(source, schema, engine=engine, key=key, keep=keep)
        opened.close()
        return {one for one in keep.iterdir() if one.is_dir()}

    seen = [homes()]
    assert homes() == seen[0]
    seen += [
        homes(replace(STORED, columns={**STORED.columns, "age": Integer(0, 99)})),
        homes(replace(STORED, person="text", columns={"age": Integer(0, 120)})),
        homes(key=bytes(32)),
        homes(key=None),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("discreet.engines._open.RULES", 0)
        seen.append(homes())
    content = source.read_bytes()
    state = source.stat()
    source.write_bytes(content)  # the same bytes, size and time of change, written again
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns))
    seen.append(homes())
    assert [len(one) for one in seen] == [1, 2, 3, 4, 5, 6, 7]
    assert forget_tables(keep) == 7
    assert list(keep.iterdir()) == []


def test_a_stored_table_needs_a_private_directory_and_a_source_with_a_state(tmp_path: Path) -> None:
    source, keep = stored_source(tmp_path), tmp_path / "open"
    keep.mkdir(mode=0o750)
    with pytest.raises(InvalidValue, match="only its owner may read"):
        open_table(source, STORED, engine="arrow", keep=keep)
    assert list(keep.iterdir()) == []
    with pytest.raises(InvalidValue, match="not known"):
        open_table({"who": ["a"], "age": [1], "text": ["x"]}, STORED, keep=tmp_path / "stored")
    with pytest.raises(FileUnusable, match="a directory with bounded tables"):
        forget_tables(tmp_path / "nowhere")


def test_a_build_that_fails_or_is_killed_leaves_no_table(tmp_path: Path) -> None:
    source, keep = stored_source(tmp_path), tmp_path / "stored"
    killed = (
        "import os, signal, sys\n"
        "from discreet.engines import _open, open_table\n"
        "from discreet.data import Integer, Schema\n"
        "_open.write_part = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "schema = Schema({'age': Integer(0, 120)}, person='who', rows_per_person=3)\n"
        "open_table(sys.argv[1], schema, engine='arrow', keep=sys.argv[2])\n"
    )
    done = subprocess.run([sys.executable, "-c", killed, source, keep], check=False)
    assert done.returncode == -signal.SIGKILL
    left = [one.name for one in keep.iterdir() if one.is_dir()]
    assert [one[:17] for one in left] == ["discreet-curator-"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("discreet.engines._open.write_part", None)
        with pytest.raises(TypeError):
            open_table(source, STORED, engine="arrow", keep=keep)
    assert sorted(one.name for one in keep.iterdir()) == ["key"]
    opened = open_table(source, STORED, engine="arrow", keep=keep)
    assert by_age(open_table(source, STORED, engine="arrow", keep=keep)) == by_age(opened)
    assert len(list(keep.iterdir())) == 2


def test_of_two_builders_one_wins(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "stored", KEY)

    def build(new: Path) -> None:
        (new / "first").touch()
        storage.find("t", lambda other: (other / "second").touch())

    home = storage.find("t", build)
    assert [one.name for one in home.iterdir()] == ["second"]
    assert list(storage.folder.iterdir()) == [home]


LARGE = """
import resource, sys
from discreet.data import Real, Schema
from discreet.engines import Aggregation, _arrow, open_table

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

schema = Schema({f"x{at}": Real(0, 1) for at in range(8)}, person="who", rows_per_person=2)
few = {name: [0.5] for name in schema.columns} | {"who": ["a"]}
open_table(few, schema).aggregate(Aggregation())  # everything is imported
_arrow._IN_MEMORY = 1 << 23
before = peak()
table = open_table(sys.argv[1], schema, memory="60MB")
count = table.aggregate(Aggregation(cap=2))[()][0]
print(count, peak() - before)
"""


@pytest.mark.slow
def test_a_table_larger_than_the_memory_that_it_may_use(tmp_path: Path) -> None:
    """Ten columns of 8 bytes for 4 million rows: the process needs less than half of that."""
    import duckdb

    source = tmp_path / "large.parquet"
    columns = ", ".join(f"random() AS x{at}" for at in range(8))
    duckdb.execute(
        f"COPY (SELECT range // 4 AS who, {columns} FROM range(4000000)) TO '{source}' "
        "(FORMAT parquet, ROW_GROUP_SIZE 50000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", LARGE, source], stdout=subprocess.PIPE, text=True, check=True
    )
    count, used = map(int, done.stdout.split())
    assert count == 2_000_000
    assert used < 160_000_000, used
