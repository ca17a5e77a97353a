"""The tables, version by version.

``steps(n)`` turns version n - 1 into version n; version 0 is empty. A new ledger takes every
step, an old one those that it lacks, and each migration is one transaction. Entries refuse
to be changed or deleted by any SQL that goes through the database.

Version 1 knew no idempotency keys. Version 2 adds them, and one outcome at most per charge.
Version 3 adds the roll of datasets (:class:`~discreet.ledger.entries.Roll`), which every entry
repeats, and counts the commits from the entries that there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from discreet.errors import LedgerCorrupt, LedgerTooNew
from discreet.ledger.entries import EMPTY_ROLL
from discreet.ledger.store import Session

__all__ = ["LATEST", "POSTGRES_REFUSAL", "check_version", "migrate", "steps", "stored_version"]

LATEST = 3
POSTGRES_REFUSAL = " BEGIN RAISE EXCEPTION 'entries of a ledger are append-only'; END "

_TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    (
        "CREATE TABLE datasets (number BIGINT PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
        " genesis TEXT NOT NULL, seq BIGINT NOT NULL, hash TEXT NOT NULL)"
    ),
    (
        "CREATE TABLE budgets (dataset BIGINT NOT NULL, scope TEXT NOT NULL, name TEXT NOT NULL,"
        " state TEXT NOT NULL, PRIMARY KEY (dataset, scope, name))"
    ),
    (
        "CREATE TABLE entries (dataset BIGINT NOT NULL, seq BIGINT NOT NULL, kind TEXT NOT NULL,"
        " refers BIGINT, text TEXT NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (dataset, seq))"
    ),
    "INSERT INTO meta (name, value) VALUES ('schema', '1')",
)

_SQLITE_GUARDS = tuple(
    f"CREATE TRIGGER entries_no_{event.lower()} BEFORE {event} ON entries"
    " BEGIN SELECT RAISE(ABORT, 'entries of a ledger are append-only'); END"
    for event in ("UPDATE", "DELETE")
) + (
    # How many commits there were, and how many of them are known to be on the disk.
    "CREATE TABLE commits (made INTEGER NOT NULL, durable INTEGER NOT NULL)",
    "INSERT INTO commits (made, durable) VALUES (0, 0)",
)

_POSTGRES_GUARDS = (
    (f"CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $${POSTGRES_REFUSAL}$$"),
    (
        "CREATE TRIGGER entries_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON entries"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    ),
)

_KEYS = (
    "ALTER TABLE entries ADD COLUMN request_key TEXT",
    (
        "CREATE UNIQUE INDEX entries_by_key ON entries (dataset, request_key)"
        " WHERE request_key IS NOT NULL"
    ),
    "CREATE UNIQUE INDEX entries_by_charge ON entries (dataset, refers) WHERE refers IS NOT NULL",
    "UPDATE meta SET value = '2' WHERE name = 'schema'",
)


# INSERT OR REPLACE deletes without asking the guard against deletions. One question for each
# unique index: a single condition with OR would read the whole chain.
_SQLITE_REPLACE_GUARD = (
    "CREATE TRIGGER entries_no_replace BEFORE INSERT ON entries WHEN "
    + " OR ".join(
        f"EXISTS (SELECT 1 FROM entries WHERE dataset = NEW.dataset AND {column} = NEW.{column})"
        for column in ("seq", "request_key", "refers")
    )
    + " BEGIN SELECT RAISE(ABORT, 'entries of a ledger are append-only'); END",
)

_ROLL = (
    f"INSERT INTO meta (name, value) VALUES ('roll', '{EMPTY_ROLL.as_text()}')",
    "UPDATE meta SET value = '3' WHERE name = 'schema'",
)
# Every entry is a commit of its own; the migration itself is flushed with all before it.
_SQLITE_COMMITS = (
    (
        "UPDATE commits SET made = made + (SELECT COUNT(*) FROM entries),"
        " durable = made + (SELECT COUNT(*) FROM entries)"
    ),
)


def steps(version: int, dialect: str) -> Sequence[str]:
    """The statements that lead to a version from the one before."""
    lite = dialect == "sqlite"
    return {
        1: _TABLES + (_SQLITE_GUARDS if lite else _POSTGRES_GUARDS),
        2: _KEYS + (_SQLITE_REPLACE_GUARD if lite else ()),
        3: _ROLL + (_SQLITE_COMMITS if lite else ()),
    }[version]


def stored_version(session: Session, place: str) -> int:
    """The version that a ledger says it has."""
    rows = session.rows("SELECT value FROM meta WHERE name = 'schema'")
    if len(rows) != 1 or not re.fullmatch(r"[1-9][0-9]{0,8}", str(rows[0][0])):
        raise LedgerCorrupt(f"{place} is not a ledger: it does not say its version")
    return int(rows[0][0])


def check_version(session: Session, place: str) -> int:
    """The version, refused if a newer program wrote it."""
    version = stored_version(session, place)
    if version > LATEST:
        raise LedgerTooNew(
            f"{place} has version {version} of the schema, this program knows {LATEST}: "
            "update discreet; nothing was changed"
        )
    return version


def migrate(session: Session, dialect: str, *, start: int, target: int = LATEST) -> None:
    """Take the steps from one version to another inside the open transaction."""
    for version in range(start + 1, target + 1):
        for statement in steps(version, dialect):
            session.run(statement)
        if version == 3:
            _call_the_roll(session)


def _call_the_roll(session: Session) -> None:
    """Enter the datasets that there are already."""
    roll = EMPTY_ROLL
    for (genesis,) in session.rows("SELECT genesis FROM datasets ORDER BY number"):
        roll = roll.after(str(genesis))
    session.run("UPDATE meta SET value = ? WHERE name = 'roll'", (roll.as_text(),))
