"""Answers in PostgreSQL, in a schema of their own beside the ledger's: for several workers."""

from __future__ import annotations

import json
import queue
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, final
from urllib.parse import parse_qsl, urlencode, urlsplit

from discreet.curator.answers import OTHER_QUERY, Answer
from discreet.errors import InvalidValue, KeyConflict, LedgerError

__all__ = ["PostgresAnswers"]

_TABLES = """
CREATE TABLE IF NOT EXISTS answers (dataset TEXT NOT NULL, name TEXT NOT NULL,
    answer TEXT NOT NULL, PRIMARY KEY (dataset, name));
CREATE TABLE IF NOT EXISTS receivers (dataset TEXT NOT NULL, name TEXT NOT NULL,
    analyst TEXT NOT NULL, PRIMARY KEY (dataset, name, analyst));
CREATE TABLE IF NOT EXISTS keys (dataset TEXT NOT NULL, key TEXT NOT NULL,
    name TEXT NOT NULL, PRIMARY KEY (dataset, key));
CREATE TABLE IF NOT EXISTS stores (only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    name TEXT NOT NULL);
"""
_CREATION = 0x44534341  # the advisory lock under which the tables are made
_IDLE = 8


@final
class PostgresAnswers:
    """The store at ``postgresql://user@host/database?ledger=name``; commits are synchronous."""

    def __init__(self, url: str) -> None:
        try:
            self._driver = import_module("psycopg")
        except ImportError as error:
            raise LedgerError(
                f"answers in PostgreSQL need psycopg: pip install 'discreet[postgres]' ({error})"
            ) from error
        self._conninfo, self._schema = _parse(url)
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue(maxsize=_IDLE)
        with self._session() as session:
            session.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION,))
            # The name is checked letter by letter by _parse.
            session.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            ledger = session.execute("SELECT to_regclass(%s)", (f"{self._schema}.meta",)).fetchone()
            if ledger[0] is not None:  # version 0.1 let a ledger have such a name
                raise LedgerError(
                    f"the schema {self._schema} is that of a ledger: answers cannot be stored "
                    "there; use a ledger of another name, or answers= elsewhere"
                )
            session.execute(_TABLES)
            session.execute(
                "INSERT INTO stores VALUES (1, %s) ON CONFLICT DO NOTHING", (secrets.token_hex(16),)
            )

    @contextmanager
    def _session(self) -> Iterator[Any]:
        """A transaction on a session of the pool; a session that failed is not used again."""
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._driver.connect(self._conninfo, autocommit=True)
            connection.execute(f"SET search_path = {self._schema}")
            connection.execute("SET synchronous_commit = on")
        try:
            with connection.transaction():
                yield connection
        except BaseException:
            connection.close()
            raise
        try:
            self._idle.put_nowait(connection)
        except queue.Full:
            connection.close()

    def identity(self) -> str:
        with self._session() as session:
            return str(session.execute("SELECT name FROM stores").fetchone()[0])

    def find(self, dataset: str, name: str) -> Answer | None:
        with self._session() as session:
            row = _answer_text(session, dataset, name)
        return None if row is None else Answer.from_json(json.loads(row))

    def keep(
        self, dataset: str, name: str, answer: Answer, *, analyst: str, key: str | None
    ) -> Answer:
        text = json.dumps(answer.to_json(), sort_keys=True)
        with self._session() as session:
            session.execute(
                "INSERT INTO answers VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                (dataset, name, text),
            )
            session.execute(
                "INSERT INTO receivers VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                (dataset, name, analyst),
            )
            _bind(session, dataset, key, name)
            kept = _answer_text(session, dataset, name)
        if key is not None:
            self.check_key(dataset, key, name)
        if kept is None or kept == text:
            return answer
        return Answer.from_json(json.loads(kept)).again()

    def received(self, dataset: str, name: str, *, analyst: str) -> bool:
        with self._session() as session:
            row = session.execute(
                "SELECT 1 FROM receivers WHERE dataset = %s AND name = %s AND analyst = %s",
                (dataset, name, analyst),
            ).fetchone()
        return row is not None

    def note(self, dataset: str, name: str, *, analyst: str, key: str | None) -> None:
        with self._session() as session:
            session.execute(
                "INSERT INTO receivers VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                (dataset, name, analyst),
            )
            _bind(session, dataset, key, name)
        if key is not None:
            self.check_key(dataset, key, name)

    def check_key(self, dataset: str, key: str, name: str) -> None:
        with self._session() as session:
            row = session.execute(
                "SELECT name FROM keys WHERE dataset = %s AND key = %s", (dataset, key)
            ).fetchone()
        if row is not None and row[0] != name:
            raise KeyConflict(OTHER_QUERY)

    def last_receipts(self) -> list[Mapping[str, Any]]:
        with self._session() as session:
            rows = session.execute(
                "SELECT DISTINCT ON (dataset, entry ->> 'ledger') answer FROM (SELECT dataset, "
                "answer, answer::json -> 'receipt' -> 'entry' AS entry FROM answers) AS paid "
                "ORDER BY dataset, entry ->> 'ledger', (entry ->> 'seq')::bigint DESC"
            ).fetchall()
        return [json.loads(answer)["receipt"] for (answer,) in rows]

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return


def _bind(session: Any, dataset: str, key: str | None, name: str) -> None:
    if key is not None:
        session.execute(
            "INSERT INTO keys VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (dataset, key, name)
        )


def _answer_text(session: Any, dataset: str, name: str) -> str | None:
    row = session.execute(
        "SELECT answer FROM answers WHERE dataset = %s AND name = %s", (dataset, name)
    ).fetchone()
    return None if row is None else str(row[0])


def _parse(url: str) -> tuple[str, str]:
    """What the driver connects to, and the schema of the answers."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = options.pop("ledger", "")
    if not re.fullmatch(r"[a-z0-9_]{0,40}", name):
        raise InvalidValue("ledger", name, "a name of small letters, digits and _ in the URL")
    query = f"?{urlencode(options)}" if options else ""
    schema = f"discreet_answers_{name}" if name else "discreet_answers"
    return f"postgresql://{parts.netloc}{parts.path}{query}", schema
