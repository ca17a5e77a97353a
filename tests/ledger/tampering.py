"""Going behind the ledger's back: SQL on its tables, with the guards taken down meanwhile."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any


def database_of(place: str | Path) -> Path:
    """The database of a ledger, or the file itself if it is an old one."""
    path = Path(place)
    if not path.is_dir():
        return path
    [database] = path.glob("ledger-*.sqlite")
    return database


@contextmanager
def connected(place: str) -> Iterator[Any]:
    """A connection to the tables of a ledger, by path or by URL."""
    if "://" not in place:
        with closing(sqlite3.connect(database_of(place), isolation_level=None)) as connection:
            yield connection
        return
    import psycopg

    server, _, name = place.partition("&ledger=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"SET search_path TO discreet_{name}")
        yield connection


def query(place: str, statement: str) -> list[tuple[Any, ...]]:
    with connected(place) as connection:
        return list(connection.execute(statement).fetchall())


def execute(place: str, *statements: str) -> None:
    """Run statements with the guards up."""
    with connected(place) as connection:
        for statement in statements:
            connection.execute(statement)


@contextmanager
def unguarded(place: str) -> Iterator[Any]:
    """A connection without the guards of the entries, which are put back at the end."""
    with connected(place) as connection:
        if "://" in place:
            connection.execute("ALTER TABLE entries DISABLE TRIGGER entries_no_change")
            yield connection
            if connection.execute("SELECT to_regclass('entries')").fetchone() != (None,):
                connection.execute("ALTER TABLE entries ENABLE TRIGGER entries_no_change")
            return
        rows = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE '%_no_%'"
        guards = connection.execute(rows).fetchall()
        for name, _ in guards:
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        for _, sql in guards:
            connection.execute(sql)


def tamper(place: str, *statements: str) -> None:
    with unguarded(place) as connection:
        for statement in statements:
            connection.execute(statement)
