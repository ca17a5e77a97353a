"""One SQL store for the ledger, the stored answers and the registry of a study.

A store is a directory with a SQLite database in it, or a schema of a PostgreSQL database. It runs
transactions that are atomic, serial where they write, and durable when they say so; it knows
nothing of budgets.
"""

from __future__ import annotations

from pathlib import Path

from discreet._store._sqlite import (
    DATABASES,
    MARK,
    BareSession,
    SqliteStore,
    fill_database,
    is_old_file,
    new_directory,
    sync_path,
)
from discreet._store._store import (
    Session,
    Store,
    check_path,
    check_timeout,
    is_url,
)
from discreet._store._tables import (
    LATEST,
    adopt_neighbour,
    hash_datasets,
    name_answers,
    read_answers_name,
    read_version,
)

__all__ = [
    "DATABASES",
    "LATEST",
    "MARK",
    "BareSession",
    "Session",
    "SqliteStore",
    "Store",
    "adopt_neighbour",
    "check_path",
    "check_timeout",
    "create_store",
    "fill_database",
    "hash_datasets",
    "is_old_file",
    "is_url",
    "name_answers",
    "new_directory",
    "open_store",
    "read_answers_name",
    "read_version",
    "sync_path",
]


def create_store(place: str | Path, *, timeout: float, ledger: str) -> Store:
    """Make a new store at a path or a URL; an existing one is refused."""
    if is_url(place):
        from discreet._store._postgres import PostgresStore

        return PostgresStore.create(str(place), timeout=timeout, ledger=ledger)
    return SqliteStore.create(check_path("place", place), timeout=timeout, ledger=ledger)


def open_store(
    place: str | Path, *, timeout: float, read_only: bool = False, backup: bool = False
) -> Store:
    """Open an existing store; only with ``backup`` may a backup be written to."""
    if is_url(place):
        from discreet._store._postgres import PostgresStore

        return PostgresStore.open(str(place), timeout=timeout, read_only=read_only, backup=backup)
    path = check_path("place", place)
    return SqliteStore.open(path, timeout=timeout, read_only=read_only, backup=backup)
