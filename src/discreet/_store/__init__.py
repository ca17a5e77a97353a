"""One SQL store for the ledger, the stored answers and the registry of a study.

A store is a directory with a SQLite database in it, or a schema of a PostgreSQL database. It runs
transactions that are atomic, serial where they write, and durable when they say so; it knows
nothing of budgets.
"""

from __future__ import annotations

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
    create_store,
    is_url,
    open_store,
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
