"""Going behind the ledger's back: SQL on its tables, with the guards taken down first."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any


@contextmanager
def connected(place: str) -> Iterator[Any]:
    """A connection to the tables of a ledger, by path or by URL."""
    if "://" not in place:
        with closing(sqlite3.connect(place, isolation_level=None)) as connection:
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


def tamper(place: str, *statements: str) -> None:
    with connected(place) as connection:
        if "://" in place:
            connection.execute("DROP TRIGGER IF EXISTS entries_no_change ON entries")
        else:
            for event in ("update", "delete", "replace"):
                connection.execute(f"DROP TRIGGER IF EXISTS entries_no_{event}")
        for statement in statements:
            connection.execute(statement)
