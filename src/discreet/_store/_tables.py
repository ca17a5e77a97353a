"""The tables of a store, and what a database has that is not one of them.

A trigger that somebody added can undo a charge, a missing one lets entries be rewritten, and a
missing index lets a key be charged twice. So writers compare what the database has with what is
made here, and ``verify`` reports every difference. Entries refuse to be changed or deleted by any
SQL that goes through the database.

Version 1 knew no idempotency keys. Version 2 added them, and one outcome at most per charge.
Version 3 added the roll of datasets, which every entry repeats. Up to then a SQLite ledger was a
single file. Version 4 is a directory; its tables take no values of another type. It also holds the
stored answers and the registry of the service, which had files or schemas of their own.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Any

from discreet._store._store import Session
from discreet.errors import LedgerCorrupt, LedgerTooNew

LATEST = 4
APPEND_ONLY = "entries of a ledger are append-only"
POSTGRES_REFUSAL = f" BEGIN RAISE EXCEPTION '{APPEND_ONLY}'; END "
Things = Mapping[tuple[str, str], str]

_COLUMNS = {
    "meta": "name TEXT PRIMARY KEY, value TEXT NOT NULL",
    "datasets": (
        "number BIGINT PRIMARY KEY, name TEXT NOT NULL UNIQUE, genesis TEXT NOT NULL,"
        " seq BIGINT NOT NULL, hash TEXT NOT NULL"
    ),
    "budgets": (
        "dataset BIGINT NOT NULL, scope TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,"
        " PRIMARY KEY (dataset, scope, name)"
    ),
    "entries": (
        "dataset BIGINT NOT NULL, seq BIGINT NOT NULL, kind TEXT NOT NULL, refers BIGINT,"
        " text TEXT NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (dataset, seq)"
    ),
}
# The stored answers with the SHA-256 of each, and the registry of the service.
_SERVED = {
    "answers": (
        "dataset TEXT NOT NULL, name TEXT NOT NULL, answer TEXT NOT NULL, digest TEXT NOT NULL,"
        " PRIMARY KEY (dataset, name)"
    ),
    "answer_receivers": (
        "dataset TEXT NOT NULL, name TEXT NOT NULL, analyst TEXT NOT NULL,"
        " PRIMARY KEY (dataset, name, analyst)"
    ),
    "answer_keys": (
        "dataset TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (dataset, key)"
    ),
    "served_datasets": (
        "name TEXT PRIMARY KEY, schema TEXT NOT NULL, source TEXT NOT NULL, part TEXT NOT NULL,"
        " engine TEXT NOT NULL, created TEXT NOT NULL"
    ),
    "analysts": "name TEXT PRIMARY KEY, created TEXT NOT NULL",
    "tokens": (
        "id TEXT PRIMARY KEY, digest TEXT NOT NULL, role TEXT NOT NULL, analyst TEXT, project TEXT,"
        " datasets TEXT NOT NULL, note TEXT NOT NULL, created TEXT NOT NULL, expires TEXT NOT NULL,"
        " revoked TEXT"
    ),
}
_KEY = "request_key TEXT"
_INDEXES = (
    (
        "CREATE UNIQUE INDEX entries_by_key ON entries (dataset, request_key)"
        " WHERE request_key IS NOT NULL"
    ),
    "CREATE UNIQUE INDEX entries_by_charge ON entries (dataset, refers) WHERE refers IS NOT NULL",
)
# So that the few entries that tell of a restored backup are found without reading the chain.
_RESTORED = "CREATE INDEX entries_restored ON entries (dataset, seq) WHERE kind = 'restored'::text"
_SOURCES = "CREATE UNIQUE INDEX served_sources ON served_datasets (source, part)"
# INSERT OR REPLACE deletes without asking the guard against deletions. One question for each
# unique index: a single condition with OR would read the whole chain.
_REPLACED = " OR ".join(
    f"EXISTS (SELECT 1 FROM entries WHERE dataset = NEW.dataset AND {column} = NEW.{column})"
    for column in ("seq", "request_key", "refers")
)


def _sqlite_statements() -> list[str]:
    tables = _COLUMNS | _SERVED
    tables["entries"] = tables["entries"].replace(" PRIMARY KEY", f" {_KEY}, PRIMARY KEY")
    # How many commits there were: what says whether anything was written since the last flush.
    tables["commits"] = "only BIGINT PRIMARY KEY CHECK (only = 1), made BIGINT NOT NULL"
    statements = [
        f"CREATE TABLE {name} ({columns.replace('BIGINT', 'INTEGER')}) STRICT"
        for name, columns in tables.items()
    ]
    for name, event in (
        ("update", "UPDATE ON entries"),
        ("delete", "DELETE ON entries"),
        ("replace", f"INSERT ON entries WHEN {_REPLACED}"),
    ):
        statements.append(
            f"CREATE TRIGGER entries_no_{name} BEFORE {event}"
            f" BEGIN SELECT RAISE(ABORT, '{APPEND_ONLY}'); END"
        )
    indexes = (*_INDEXES, _RESTORED.removesuffix("::text"), _SOURCES)
    return [*statements, *indexes, "INSERT INTO commits (only, made) VALUES (1, 0)"]


def _postgres_statements(version: int) -> list[str]:
    """Return the statements that lead to a version from the one before."""
    if version == 1:
        return [
            *(f"CREATE TABLE {name} ({columns})" for name, columns in _COLUMNS.items()),
            (
                "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql"
                f" AS $${POSTGRES_REFUSAL}$$"
            ),
            (
                "CREATE TRIGGER entries_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON entries"
                " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            ),
        ]
    if version == 4:
        served = (f"CREATE TABLE {name} ({columns})" for name, columns in _SERVED.items())
        return [_RESTORED, *served, _SOURCES]
    return [f"ALTER TABLE entries ADD COLUMN {_KEY}", *_INDEXES] if version == 2 else []


def make_sqlite(session: Session, ledger: str) -> None:
    """Make the tables in an empty SQLite database, with the random name of the ledger."""
    for statement in _sqlite_statements():
        session.run(statement)
    for name, value in (("schema", str(LATEST)), ("ledger", ledger), ("roll", "0:")):
        session.run("INSERT INTO meta (name, value) VALUES (?, ?)", (name, value))
    name_answers(session)


def name_answers(session: Session, name: str | None = None) -> None:
    """Name the stored answers, by default anew: the key of a charge for an answer holds the name.

    A charge that was made under another name is not found again, so nothing is released once more
    under a charge whose answer is not here.
    """
    session.run("DELETE FROM meta WHERE name = 'answers'")
    values = (secrets.token_hex(16) if name is None else name,)
    session.run("INSERT INTO meta (name, value) VALUES ('answers', ?)", values)


def read_answers_name(session: Session) -> str:
    """Return the name of the stored answers."""
    rows = session.rows("SELECT value FROM meta WHERE name = 'answers'")
    if len(rows) != 1 or not re.fullmatch(r"[0-9a-f]{32}", str(rows[0][0])):
        raise LedgerCorrupt("the stored answers have lost their name; run verify")
    return str(rows[0][0])


def make_postgres(session: Session, schema: str, *, start: int, ledger: str | None = None) -> None:
    """Take the steps from a version to the latest inside the open transaction."""
    for version in range(start + 1, LATEST + 1):
        for statement in _postgres_statements(version):
            session.run(statement)
        if version == 3:
            session.run(
                "INSERT INTO meta (name, value) VALUES ('roll', ?)", (hash_datasets(session),)
            )
        if version == 4:
            name_answers(session)
            if start > 0:
                _adopt_schemas(session, schema)
    if start == 0:
        session.run("INSERT INTO meta (name, value) VALUES ('schema', ?)", (str(LATEST),))
        session.run("INSERT INTO meta (name, value) VALUES ('ledger', ?)", (ledger,))
    else:
        session.run("UPDATE meta SET value = ? WHERE name = 'schema'", (str(LATEST),))


# What the tables were called that had a file or a schema of their own, up to version 3.
_NEIGHBOURS = {
    "answers": {"answers": "answers", "receivers": "answer_receivers", "keys": "answer_keys"},
    "registry": {"datasets": "served_datasets", "analysts": "analysts", "tokens": "tokens"},
}


def adopt_neighbour(session: Session, kind: str, old: Session, *, schema: str = "") -> None:
    """Copy the ``answers`` or the ``registry`` of an earlier version, with the name of the answers.

    ``old`` reads the old place, there in the ``schema`` with its dot, if any.
    """
    if kind == "answers":
        [(name,)] = old.rows(f"SELECT name FROM {schema}stores")
        name_answers(session, str(name))
    for table, new in _NEIGHBOURS[kind].items():
        columns = [column[0] for column in _split_columns(_SERVED[new])]
        known = columns[:-1] if new == "answers" else columns  # the digest of an answer is new
        rows = old.rows(f"SELECT {', '.join(known)} FROM {schema}{table}")
        if new == "answers":
            rows = [(*row, hashlib.sha256(str(row[-1]).encode()).hexdigest()) for row in rows]
        marks = ", ".join("?" * len(columns))
        for row in rows:
            session.run(f"INSERT INTO {new} ({', '.join(columns)}) VALUES ({marks})", row)


def _adopt_schemas(session: Session, schema: str) -> None:
    """Adopt the schemas beside that of a ledger; they stay, and nothing reads them again."""
    end = schema.removeprefix("discreet")
    # The mark is a table that a ledger has not, which may have the name of such a schema as well.
    for kind, place, mark in (
        ("answers", f"discreet_answers{end}", "stores"),
        ("registry", f"curator{end}", "facts"),
    ):
        if session.rows("SELECT to_regclass(?)::text", (f"{place}.{mark}",)) != [(None,)]:
            adopt_neighbour(session, kind, session, schema=f"{place}.")


def _split_columns(text: str) -> list[list[str]]:
    """Return name, type and marks of each column."""
    return [column.split() for column in text.partition(", PRIMARY KEY (")[0].split(", ")]


def hash_datasets(session: Session) -> str:
    """Return the roll of the datasets that there are (see ``Roll`` of the ledger)."""
    count, digest = 0, ""
    for (genesis,) in session.rows("SELECT genesis FROM datasets ORDER BY number"):
        count, digest = count + 1, hashlib.sha256(f"{digest}:{genesis}".encode()).hexdigest()
    return f"{count}:{digest}"


def read_version(session: Session, place: str) -> int:
    """Return the version that a ledger says it has."""
    rows = session.rows("SELECT value FROM meta WHERE name = 'schema'")
    if len(rows) != 1 or not re.fullmatch(r"[1-9][0-9]{0,8}", str(rows[0][0])):
        raise LedgerCorrupt(f"{place} is not a ledger: it does not say its version")
    return int(rows[0][0])


def check_version(session: Session, place: str) -> int:
    """Return the version, or refuse one that a newer program wrote."""
    version = read_version(session, place)
    if version > LATEST:
        raise LedgerTooNew(
            f"{place} has version {version} of the schema, this program knows {LATEST}: "
            "update discreet; nothing was changed"
        )
    return version


# --- comparison --------------------------------------------------------------------------

# What ANALYZE makes, as SQLite itself words it; anything else with such a name is an intruder.
_STATISTICS: Things = {
    ("table", "sqlite_stat1"): "sqlite_stat1: CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    ("table", "sqlite_stat4"): (
        "sqlite_stat4: CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"
    ),
}
_MASTER = "SELECT type, name, tbl_name, sql FROM sqlite_master"


def compare_sqlite(session: Session) -> list[str]:
    """Return what a SQLite database has that a ledger has not, lacks, or has otherwise."""
    things = _describe(session.rows(_MASTER))
    # Statistics of the query planner are welcome: they change no answer.
    for key, text in _STATISTICS.items():
        if things.get(key) == text:
            del things[key]
    return _compare(things, _expect_sqlite())


def compare_postgres(session: Session, name: str) -> list[str]:
    """Return the same for the schema ``name`` of a PostgreSQL database."""
    found = {
        (str(kind), str(label)): str(text).replace(f"{name}.", "")
        for kind, label, text in session.rows(_POSTGRES_QUERY, (name,) * 6)
    }
    return _compare(found, _expect_postgres())


def _compare(found: Things, expected: Things) -> list[str]:
    faults = [
        f"the {kind} {name!r} is missing" for kind, name in sorted(expected.keys() - found.keys())
    ]
    faults += [
        f"the {kind} {name!r} is not part of a ledger"
        for kind, name in sorted(found.keys() - expected.keys())
    ]
    common = sorted(found.keys() & expected.keys())
    faults += [
        f"the {kind} {name!r} is not as a ledger has it"
        for kind, name in common
        if found[kind, name] != expected[kind, name]
    ]
    return faults


def _describe(rows: Sequence[Sequence[Any]]) -> dict[tuple[str, str], str]:
    return {
        (str(kind), str(name)): f"{table}: {' '.join(str(text).split())}"
        for kind, name, table, text in rows
    }


@cache
def _expect_sqlite() -> Things:
    """Return what SQLite says of a ledger that was just made, in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in _sqlite_statements():
            connection.execute(statement)
        return _describe(connection.execute(_MASTER).fetchall())


# Relations with how they hide or rewrite rows; columns; indexes; constraints beyond those that
# indexes and columns show; triggers; functions.
_POSTGRES_QUERY = """
SELECT CASE c.relkind WHEN 'r' THEN 'table' ELSE 'relation' END, c.relname::text,
       c.relkind::text || ' ' || c.relrowsecurity::text || ' ' || c.relhasrules::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = ? AND c.relkind NOT IN ('i', 't')
UNION ALL
SELECT 'column', c.relname || '.' || a.attname,
       format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull::text || ' '
       || (a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '')::text
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = ? AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'index', indexname::text, indexdef FROM pg_indexes WHERE schemaname = ?
UNION ALL
SELECT 'constraint', o.conname::text, pg_get_constraintdef(o.oid)
  FROM pg_constraint o JOIN pg_namespace n ON n.oid = o.connamespace
 WHERE n.nspname = ? AND o.contype NOT IN ('p', 'u', 'n')
UNION ALL
SELECT 'trigger', t.tgname::text, t.tgenabled::text || ' ' || pg_get_triggerdef(t.oid)
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = ? AND NOT t.tgisinternal
UNION ALL
SELECT 'function', p.proname::text, p.prosrc
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = ?
"""


@cache
def _expect_postgres() -> Things:
    """Return what the query says of the tables above."""
    expected: dict[tuple[str, str], str] = {}
    for table, text in (_COLUMNS | _SERVED).items():
        expected["table", table] = "r false false"
        composite = text.partition(", PRIMARY KEY (")[2]
        if composite:
            _expect_index(expected, f"{table}_pkey", f"{table} USING btree ({composite}")
        extra = [_KEY.split()] if table == "entries" else []
        for name, kind, *marks in _split_columns(text) + extra:
            required = "NOT" in marks or "PRIMARY" in marks
            what = f"{kind.lower()} {str(required).lower()} false"
            expected["column", f"{table}.{name}"] = what
            if "PRIMARY" in marks:
                _expect_index(expected, f"{table}_pkey", f"{table} USING btree ({name})")
            if "UNIQUE" in marks:
                _expect_index(expected, f"{table}_{name}_key", f"{table} USING btree ({name})")
    for statement in (*_INDEXES, _RESTORED, _SOURCES):
        written = re.sub(r" ON (\w+) ", r" ON \1 USING btree ", statement)
        written = re.sub(r"WHERE (.*)", r"WHERE (\1)", written)
        expected["index", written.partition(" INDEX ")[2].split()[0]] = written
    expected["trigger", "entries_no_change"] = (
        "O CREATE TRIGGER entries_no_change BEFORE DELETE OR UPDATE OR TRUNCATE ON entries"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    expected["function", "refuse_change"] = POSTGRES_REFUSAL
    return expected


def _expect_index(expected: dict[tuple[str, str], str], name: str, definition: str) -> None:
    expected["index", name] = f"CREATE UNIQUE INDEX {name} ON {definition}"
