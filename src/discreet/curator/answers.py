"""Answers and where they are kept: an answer is on the disk before it leaves the curator.

The store holds one answer for each dataset, schema and query. Whoever asks the same question
again gets the same answer, at no cost: noise is never drawn twice for one question, so it cannot be
averaged away, and a crash between charge and answer cannot release two draws for one charge.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, final

from discreet.curator.planning import Bar
from discreet.curator.queries import Query, query_from_json
from discreet.errors import KeyConflict, LedgerCorrupt
from discreet.privacy import Loss, from_json, to_json

__all__ = ["Answer", "AnswerStore", "SqliteAnswers", "open_answers"]


@final
@dataclass(frozen=True)
class Answer:
    """A released answer: value, error bars, what it cost, and the receipt of the charge.

    ``about`` says of what value and error bars speak: all rows, persons, or the rows kept.
    """

    dataset: str
    query: Query
    value: Any
    errors: tuple[Bar, ...]
    loss: Loss
    receipt: Mapping[str, Any]
    answered_before: bool
    at: str
    about: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "dataset": self.dataset,
            "query": self.query.to_json(),
            "value": self.value,
            "errors": [bar.to_json() for bar in self.errors],
            "loss": to_json(self.loss),
            "receipt": dict(self.receipt),
            "answered_before": self.answered_before,
            "at": self.at,
            "about": self.about,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Answer:
        """Read what :meth:`to_json` wrote."""
        return cls(
            dataset=document["dataset"],
            query=query_from_json(document["query"]),
            value=document["value"],
            errors=tuple(Bar(**bar) for bar in document["errors"]),
            loss=from_json(document["loss"]),
            receipt=document["receipt"],
            answered_before=document["answered_before"],
            at=document["at"],
            about=document.get("about", ""),  # version 0.1 wrote none
        )

    def again(self) -> Answer:
        """The same answer, given another time."""
        return replace(self, answered_before=True)


class AnswerStore(Protocol):
    """Where answers are kept; ``name`` is the digest of a schema, a query and a chain."""

    def identity(self) -> str:
        """A random name that the store got when it was made; no other store has it."""

    def find(self, dataset: str, name: str) -> Answer | None:
        """The answer that was given, if any."""

    def keep(
        self, dataset: str, name: str, answer: Answer, *, analyst: str, key: str | None
    ) -> Answer:
        """Keep an answer durably, unless there is one; return the one that counts.

        The idempotency ``key`` is bound to the question in the same transaction; if it was bound
        to another one meanwhile, ``KeyConflict`` is raised and no answer leaves.
        """

    def received(self, dataset: str, name: str, *, analyst: str) -> bool:
        """Whether this analyst was given the answer."""

    def note(self, dataset: str, name: str, *, analyst: str, key: str | None) -> None:
        """Note that an analyst was given a stored answer, and bind the key as ``keep`` does."""

    def check_key(self, dataset: str, key: str, name: str) -> None:
        """Raise ``KeyConflict`` if an idempotency key is bound to another question."""

    def last_receipts(self) -> list[Mapping[str, Any]]:
        """The receipt of the last charge of each chain that an answer was paid from."""

    def close(self) -> None:
        """Let go of all connections."""


OTHER_QUERY = "this idempotency key was used for another query; its answer does not leave"

_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
    dataset TEXT NOT NULL, name TEXT NOT NULL, answer TEXT NOT NULL,
    PRIMARY KEY (dataset, name)
);
CREATE TABLE IF NOT EXISTS receivers (
    dataset TEXT NOT NULL, name TEXT NOT NULL, analyst TEXT NOT NULL,
    PRIMARY KEY (dataset, name, analyst)
);
CREATE TABLE IF NOT EXISTS keys (
    dataset TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (dataset, key)
);
CREATE TABLE IF NOT EXISTS stores (only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL);
"""


class _Pending:
    """A write that waits for the next commit."""

    def __init__(self, statements: list[tuple[str, tuple[str, ...]]]) -> None:
        self.statements = statements
        self.changed: list[bool] = []
        self.done = threading.Event()
        self.error: BaseException | None = None


@final
class SqliteAnswers:
    """Answers in a SQLite file; threads that write at the same time share one flush."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        # Only its owner may read it, from the first moment.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._local = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._waiting: list[_Pending] = []
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        try:
            self._connection().executescript(_TABLES)
            # Of two that make the store at the same time, the first one names it.
            self._write([("INSERT OR IGNORE INTO stores VALUES (1, ?)", (secrets.token_hex(16),))])
            damage = self._connection().execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError:  # it is busy, or the disk is full
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            damage = str(error)
        if damage != "ok":
            self.close()
            raise LedgerCorrupt(
                f"{self._path}: the stored answers are damaged ({damage}); restore a backup of "
                "them. Without them no answer is given again, and each is paid for again"
            )

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(
                self._path, timeout=60.0, isolation_level=None, check_same_thread=False
            )
            found.execute("PRAGMA journal_mode = WAL")
            found.execute("PRAGMA synchronous = FULL")
            self._local.connection = found
            with self._guard:
                self._all.append(found)
        return found

    def identity(self) -> str:
        return str(self._connection().execute("SELECT name FROM stores").fetchone()[0])

    def find(self, dataset: str, name: str) -> Answer | None:
        row = (
            self._connection()
            .execute("SELECT answer FROM answers WHERE dataset = ? AND name = ?", (dataset, name))
            .fetchone()
        )
        return None if row is None else Answer.from_json(json.loads(row[0]))

    def keep(
        self, dataset: str, name: str, answer: Answer, *, analyst: str, key: str | None
    ) -> Answer:
        text = json.dumps(answer.to_json(), sort_keys=True)
        statements: list[tuple[str, tuple[str, ...]]] = [
            ("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (dataset, name, text)),
            ("INSERT OR IGNORE INTO receivers VALUES (?, ?, ?)", (dataset, name, analyst)),
        ]
        if self._write_bound(statements, dataset, key, name):
            return answer
        kept = self.find(dataset, name)
        assert kept is not None
        return kept.again()

    def received(self, dataset: str, name: str, *, analyst: str) -> bool:
        row = (
            self._connection()
            .execute(
                "SELECT 1 FROM receivers WHERE dataset = ? AND name = ? AND analyst = ?",
                (dataset, name, analyst),
            )
            .fetchone()
        )
        return row is not None

    def note(self, dataset: str, name: str, *, analyst: str, key: str | None) -> None:
        bound = key is None or self._bound(dataset, key) == name
        if bound and self.received(dataset, name, analyst=analyst):
            return
        statement = "INSERT OR IGNORE INTO receivers VALUES (?, ?, ?)"
        self._write_bound([(statement, (dataset, name, analyst))], dataset, key, name)

    def _write_bound(
        self,
        statements: list[tuple[str, tuple[str, ...]]],
        dataset: str,
        key: str | None,
        name: str,
    ) -> bool:
        """Write, and bind the key if there is one; whether the first statement changed anything.

        Raises if the key was bound to another question before.
        """
        if key is None:
            return self._write(statements)[0]
        binding = ("INSERT OR IGNORE INTO keys VALUES (?, ?, ?)", (dataset, key, name))
        changed = self._write([*statements, binding])
        if not changed[-1]:
            self.check_key(dataset, key, name)
        return changed[0]

    def check_key(self, dataset: str, key: str, name: str) -> None:
        if self._bound(dataset, key) not in {None, name}:
            raise KeyConflict(OTHER_QUERY)

    def _bound(self, dataset: str, key: str | None) -> str | None:
        """The question that a key is bound to."""
        row = (
            self._connection()
            .execute("SELECT name FROM keys WHERE dataset = ? AND key = ?", (dataset, key))
            .fetchone()
        )
        return None if row is None else str(row[0])

    def last_receipts(self) -> list[Mapping[str, Any]]:
        rows = self._connection().execute(
            "SELECT answer, max(json_extract(answer, '$.receipt.entry.seq')) FROM answers "
            "GROUP BY dataset, json_extract(answer, '$.receipt.entry.ledger')"
        )
        return [json.loads(answer)["receipt"] for answer, _ in rows]

    def _write(self, statements: list[tuple[str, tuple[str, ...]]]) -> list[bool]:
        """Run statements in a transaction; whoever gets the turn commits for all who wait.

        Returns which of them changed a row.
        """
        mine = _Pending(statements)
        with self._guard:
            self._waiting.append(mine)
        with self._writing:
            if not mine.done.is_set():
                with self._guard:
                    batch, self._waiting = self._waiting, []
                self._commit(batch)
        if mine.error is not None:
            raise mine.error
        return mine.changed

    def _commit(self, batch: list[_Pending]) -> None:
        connection = self._connection()
        error: BaseException | None = None
        try:
            connection.execute("BEGIN IMMEDIATE")
            for one in batch:
                one.changed = [
                    connection.execute(statement, values).rowcount > 0
                    for statement, values in one.statements
                ]
            connection.execute("COMMIT")
        except BaseException as raised:  # noqa: BLE001 - every one who waits must hear of it
            error = raised
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        for one in batch:
            one.error = error
            one.done.set()

    def close(self) -> None:
        with self._guard:
            for connection in self._all:
                connection.close()
            self._all.clear()
        self._local = threading.local()


def open_answers(place: str | Path) -> AnswerStore:
    """The store at a path or a ``postgresql://`` URL."""
    if str(place).startswith(("postgresql://", "postgres://")):
        from discreet.curator.postgres_answers import PostgresAnswers

        return PostgresAnswers(str(place))
    return SqliteAnswers(place)
