"""The shape of a ledger in its database: tables, indexes and guards, and nothing else.

A trigger that somebody added can undo a charge, a missing one lets entries be rewritten, and a
missing index lets a key be charged twice. So writers compare what the database has with what
:mod:`discreet.ledger.schema` makes, and ``verify`` reports every difference.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

from discreet.ledger import _rows
from discreet.ledger._store import Session

_LARGEST = 2**63 - 1
_MOST_IDLE_COMMITS = 1_000_000
Things = Mapping[tuple[str, str], str]

# What ANALYZE makes, as SQLite itself words it; anything else with such a name is an intruder.
_STATISTICS: Things = {
    ("table", "sqlite_stat1"): "sqlite_stat1: CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    ("table", "sqlite_stat4"): (
        "sqlite_stat4: CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)"
    ),
}


def sqlite_differences(session: Session, version: int) -> list[str]:
    """What a SQLite file has that a ledger has not, lacks, or has otherwise."""
    rows = session.rows("SELECT type, name, tbl_name, sql FROM sqlite_master")
    things = _sqlite_things(rows)
    # Statistics of the query planner are welcome: they change no answer.
    for key, text in _STATISTICS.items():
        if things.get(key) == text:
            del things[key]
    return _differences(things, _sqlite_expected(version))


def commits_fault(rows: Sequence[Sequence[Any]], *, entries: int | None = None) -> str:
    """What is wrong with the account of commits, or nothing.

    Every entry is a commit of its own. A migration may have counted them twice, and those who
    come second with a key commit nothing.
    """
    if len(rows) != 1:
        return f"the account of commits has {len(rows)} rows"
    made, durable = rows[0]
    if type(made) is not int or type(durable) is not int or not 0 <= durable <= made < _LARGEST:
        return f"the account of commits is impossible: {made!r} made, {durable!r} durable"
    if entries is not None and not entries <= made <= 2 * entries + _MOST_IDLE_COMMITS:
        return f"the account of commits is impossible: {entries} entries in {made} commits"
    return ""


def postgres_differences(session: Session, name: str) -> list[str]:
    """The same for the schema ``name`` of a PostgreSQL database."""
    found = {
        (str(kind), str(label)): str(text).replace(f"{name}.", "")
        for kind, label, text in session.rows(_POSTGRES_QUERY, (name,) * 6)
    }
    return _differences(found, _POSTGRES_EXPECTED)


def _differences(found: Things, expected: Things) -> list[str]:
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


def _sqlite_things(rows: Sequence[Sequence[Any]]) -> dict[tuple[str, str], str]:
    return {
        (str(kind), str(name)): f"{table}: {' '.join(str(text).split())}"
        for kind, name, table, text in rows
    }


@lru_cache(maxsize=4)
def _sqlite_expected(version: int) -> dict[tuple[str, str], str]:
    """What SQLite says of a ledger that was just made, in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for step in range(1, version + 1):
            for statement in _rows.steps(step, "sqlite"):
                connection.execute(statement)
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return _sqlite_things(rows)


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

_COLUMNS = {
    "meta": ("name", "value"),
    "datasets": ("number 8", "name", "genesis", "seq 8", "hash"),
    "budgets": ("dataset 8", "scope", "name", "state"),
    "entries": ("dataset 8", "seq 8", "kind", "refers 8 ?", "text", "hash", "request_key ?"),
}
_KEYS = {
    "meta_pkey": "meta USING btree (name)",
    "datasets_pkey": "datasets USING btree (number)",
    "datasets_name_key": "datasets USING btree (name)",
    "budgets_pkey": "budgets USING btree (dataset, scope, name)",
    "entries_pkey": "entries USING btree (dataset, seq)",
    "entries_by_key": (
        "entries USING btree (dataset, request_key) WHERE (request_key IS NOT NULL)"
    ),
    "entries_by_charge": "entries USING btree (dataset, refers) WHERE (refers IS NOT NULL)",
}


def _postgres_expected() -> dict[tuple[str, str], str]:
    expected = {("table", table): "r false false" for table in _COLUMNS}
    for table, columns in _COLUMNS.items():
        for column in columns:
            name, *marks = column.split()
            kind = "bigint" if "8" in marks else "text"
            required = "false" if "?" in marks else "true"
            expected["column", f"{table}.{name}"] = f"{kind} {required} false"
    for name, text in _KEYS.items():
        expected["index", name] = f"CREATE UNIQUE INDEX {name} ON {text}"
    expected["trigger", "entries_no_change"] = (
        "O CREATE TRIGGER entries_no_change BEFORE DELETE OR UPDATE OR TRUNCATE ON entries"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    body = _rows.POSTGRES_REFUSAL
    expected["function", "refuse_change"] = body
    return expected


_POSTGRES_EXPECTED = _postgres_expected()
