"""Every column of every table, spoilt in turn: an error of the ledger, never one of Python."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from discreet.errors import LedgerCorrupt, LedgerError, LedgerTooNew
from discreet.ledger import Ledger
from discreet.privacy import Gaussian, PureDP
from ledger.tampering import connected, database_of, query, unguarded

TENTH = PureDP("0.1")
COLUMNS = {
    "meta": ("name", "value"),
    "datasets": ("number", "name", "genesis", "seq", "hash"),
    "budgets": ("dataset", "scope", "name", "state"),
    "entries": ("dataset", "seq", "kind", "refers", "text", "hash", "request_key"),
    "commits": ("only", "made"),
}
# As SQL, because some of them cannot even be written in Python.
SQLITE_VALUES = (
    "NULL",
    "''",
    "'x'",
    "'[]'",
    "'{\"a\": 1e999}'",
    "0",
    "-1",
    "2.5",
    "4611686018427387904",
    "9e99",
    "x'ff'",
    "CAST(x'ff' AS TEXT)",
)
POSTGRES_VALUES = ("NULL", "''", "'x'", "-1", "4611686018427387904")
# Whoever comes anew has flushed nothing yet and takes any count.
HARMLESS = {("commits", "made", value) for value in ("0", "2.0")}


def filled(ledger: Ledger) -> None:
    ledger.create_dataset("census", epsilon=1, unit="person")
    ledger.create_dataset("survey", epsilon=1, delta="1e-6")
    ledger.create_budget("census", analyst="ann", epsilon="0.5")
    with ledger.charge("census", TENTH, analyst="ann", key="k") as charge:
        charge.record([1])
    ledger.charge("survey", Gaussian(30.0))


def look_at_everything(ledger: Ledger) -> None:
    """Whatever a ledger offers: it works, or it raises an error of the ledger."""
    deeds: list[Callable[[], Any]] = [
        lambda: ledger.datasets(),
        lambda: ledger.show("census"),
        lambda: ledger.history("census"),
        lambda: ledger.newest("census", limit=2),
        lambda: ledger.export("census"),
        lambda: ledger.receipt("census", 2),
        lambda: ledger.charge("census", TENTH, analyst="ann", key="k"),
        lambda: ledger.charge("census", PureDP("1/1000"), analyst="ann"),
        lambda: ledger.create_budget("census", project="p", epsilon=1),
        lambda: ledger.create_dataset("third", epsilon=1),
    ]
    for deed in deeds:
        with suppress(LedgerError):
            deed()


def spoil(connection: Any, statement: str) -> bool:
    """Whether the tables allowed a statement and it changed anything."""
    try:
        changed = connection.execute(statement).rowcount
    except (sqlite3.Error, psycopg.Error):
        return False
    return bool(changed)


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, names in COLUMNS.items() for column in names]
)
def test_no_spoilt_field_is_an_error_of_python_on_sqlite(
    tmp_path: Path, table: str, column: str
) -> None:
    whole, path = tmp_path / "whole", tmp_path / "spoilt"
    with Ledger.create(whole) as ledger:
        filled(ledger)
    tried = 0
    for value in SQLITE_VALUES:
        shutil.copytree(whole, path)
        raw = f"SELECT typeof({column}), hex({column}) FROM {table} ORDER BY rowid"
        before = query(str(path), raw)
        row = f"(SELECT MAX(rowid) FROM {table})"
        with unguarded(str(path)) as connection:
            statement = f"UPDATE {table} SET {column} = {value} WHERE rowid = {row}"
            spoilt = spoil(connection, statement)
        if not spoilt:  # the tables take no values of another type
            shutil.rmtree(path)
            continue
        after = query(str(path), raw)
        tried += 1
        verdicts = []
        try:
            with Ledger.open(path) as ledger:
                verdicts.append(ledger.verify().ok)
                look_at_everything(ledger)
        except (LedgerCorrupt, LedgerTooNew):
            verdicts.append(False)
        assert all(verdicts) is (before == after or (table, column, value) in HARMLESS), value
        shutil.rmtree(path)
    assert tried >= (0 if column == "only" else 2)


def test_no_spoilt_field_is_an_error_of_python_on_postgres(server: str) -> None:
    place = f"{server}&ledger=fuzz"
    with Ledger.create(place) as ledger:
        filled(ledger)
        with connected(place) as connection:
            tables = [table for table in COLUMNS if table != "commits"]
            for table in tables:
                connection.execute(f"CREATE TEMPORARY TABLE kept_{table} AS SELECT * FROM {table}")
            connection.execute("ALTER TABLE entries DISABLE TRIGGER ALL")
            tried, looked = 0, set[str]()
            for table, column in [(t, c) for t in tables for c in COLUMNS[t]]:
                for value in POSTGRES_VALUES:
                    row = f"(SELECT MAX(ctid) FROM {table})"
                    statement = f"UPDATE {table} SET {column} = {value} WHERE ctid = {row}"
                    if not spoil(connection, statement):
                        continue
                    connection.execute("ALTER TABLE entries ENABLE TRIGGER ALL")
                    tried += 1
                    verdict = ledger.verify()
                    kept = f"SELECT COUNT(*) FROM (TABLE {table} EXCEPT TABLE kept_{table}) AS odd"
                    same = connection.execute(kept).fetchone() == (0,)
                    assert verdict.ok is same, (table, column, value)
                    if column not in looked:
                        look_at_everything(ledger)
                        looked.add(column)
                    connection.execute("ALTER TABLE entries DISABLE TRIGGER ALL")
                    for other in tables:
                        connection.execute(f"DELETE FROM {other}")
                        connection.execute(f"INSERT INTO {other} SELECT * FROM kept_{other}")
            connection.execute("ALTER TABLE entries ENABLE TRIGGER ALL")
            assert tried > 30
        assert ledger.verify().ok


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE meta SET value = 'three' WHERE name = 'schema'", "does not say its version"),
        ("UPDATE meta SET value = '3.0' WHERE name = 'schema'", "does not say its version"),
        ("UPDATE meta SET value = '0' WHERE name = 'schema'", "does not say its version"),
        (
            f"UPDATE meta SET value = '{'9' * 5000}' WHERE name = 'schema'",
            "does not say its version",
        ),
        ("DELETE FROM meta WHERE name = 'ledger'", "lost its identity"),
    ],
)
def test_a_ledger_that_does_not_know_itself_is_corrupt(
    ledger: Ledger, place: str, statement: str, finding: str
) -> None:
    with unguarded(place) as connection:
        connection.execute(statement)
    assert finding in "\n".join(map(str, ledger.verify().problems))
    with pytest.raises(LedgerCorrupt, match=finding):
        ledger.charge("census", TENTH)


def test_entries_below_zero_and_far_beyond_are_seen(ledger: Ledger, place: str) -> None:
    for seq in (-5, 2**62):
        with unguarded(place) as connection:
            connection.execute(
                "INSERT INTO entries (dataset, seq, kind, text, hash)"
                f" SELECT dataset, {seq}, kind, text, hash FROM entries WHERE dataset = 1"
                " AND seq = 0"
            )
        found = "\n".join(map(str, ledger.verify().problems))
        assert f"entry {seq}: was moved here from position 0" in found


def test_a_table_without_its_constraints_is_no_way_in(file: Path) -> None:
    # What only a rewritten schema allows: fields without a value, two rows of one budget.
    with Ledger.create(file) as ledger:
        filled(ledger)
        with closing(sqlite3.connect(database_of(file), isolation_level=None)) as connection:
            connection.execute("ALTER TABLE budgets RENAME TO old")
            connection.execute("CREATE TABLE budgets (dataset, scope, name, state)")
            for _ in range(2):
                connection.execute("INSERT INTO budgets SELECT * FROM old")
            connection.execute("DROP TABLE old")
        found = "\n".join(map(str, ledger.verify().problems))
        assert "the table 'budgets' is not as a ledger has it" in found
        assert "the budget 'analyst:ann' of dataset 1 has two rows" in found
        with pytest.raises(LedgerCorrupt):
            ledger.charge("census", TENTH)
