"""Answers, and their storage beside the charges that paid for them.

There is one answer for each dataset, schema and query. Whoever asks the same question again gets
the same answer, at no cost: noise is never drawn twice for one question, so it cannot be averaged
away. An answer and the outcome of its charge are one transaction: both are on the disk before the
answer leaves, or neither is, and then the charge is open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, final

from discreet._html import html_table
from discreet._rounding import at_least, at_most
from discreet._store import Session, Store, read_answers_name
from discreet.curator._plan import Bar
from discreet.curator._queries import Query, query_from_json
from discreet.errors import KeyConflict, LedgerCorrupt
from discreet.privacy import Loss, from_json, to_json


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

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [("value", self.value), ("about", self.about)]
        rows += [(bar.label, f"{_ends(bar)}, with {bar.confidence:.0%}") for bar in self.errors]
        rows += [
            ("cost", repr(self.loss)),
            ("charged", "before" if self.answered_before else "now"),
        ]
        return html_table(f"answer from {self.dataset}", rows)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
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
        """Return the same answer, given another time."""
        return replace(self, answered_before=True)


def _ends(bar: Bar) -> str:
    return f"{_brief(bar.low, at_least)} to {_brief(bar.high, at_most)}"


def _brief(end: float | int | None, rounded: Callable[..., str]) -> str:
    if end is None:
        return "not known"
    return str(end) if float(end).is_integer() else rounded(end, digits=6)


@final
class Answers:
    """The stored answers; ``name`` is the digest of a schema, a query and a chain."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def identify(self) -> str:
        """Return the random name of these answers, which no other store has."""
        with self._store.reading() as session:
            return read_answers_name(session)

    def find(self, dataset: str, name: str, *, analyst: str, key: str | None) -> Answer | None:
        """Return the answer that was given, if any, and note that this analyst has it now.

        Raises ``KeyConflict`` if the idempotency key is bound to another question, whether there
        is an answer or not.
        """
        with self._store.reading() as session:
            bound = _find_bound(session, dataset, key)
            found = _read_answer(session, dataset, name)
            noted = _has_received(session, dataset, name, analyst)
        _refuse_other(bound, name)
        if found is None:
            return None
        if not noted or (key is not None and bound is None):
            with self._store.writing() as session:
                bound = _note(session, dataset, name, analyst=analyst, key=key)
            _refuse_other(bound, name)
        return found.again()

    def read(self, dataset: str, name: str) -> Answer | None:
        """Return the stored answer, whichever analyst paid for it."""
        with self._store.reading() as session:
            return _read_answer(session, dataset, name)

    def received(self, dataset: str, name: str, *, analyst: str, by: float) -> bool:
        """Say whether this analyst has the answer to a charge made no later than ``by``."""
        with self._store.reading() as session:
            noted = _has_received(session, dataset, name, analyst)
            found = _read_answer(session, dataset, name) if noted else None
        # An answer is dated by its charge, in whole seconds; one more covers what was cut off.
        return found is not None and datetime.fromisoformat(found.at).timestamp() + 1 <= by


@final
class NewAnswer:
    """An answer on its way into the store, in the transaction of the outcome of its charge.

    ``result`` is the answer that counts afterwards: if another was stored meanwhile, that one. If
    the key was bound to another question meanwhile, it raises ``KeyConflict``; the answer is stored
    all the same.
    """

    def __init__(self, answer: Answer, name: str, *, analyst: str, key: str | None) -> None:
        self._answer = answer
        self._name, self._analyst, self._key = name, analyst, key
        self._counts: Answer | None = None
        self._bound: str | None = None

    def write(self, session: Session) -> None:
        """Store the answer unless there is one, who has it, and what its key is bound to."""
        dataset = self._answer.dataset
        text = json.dumps(self._answer.to_json(), sort_keys=True)
        changed = session.run(
            "INSERT INTO answers (dataset, name, answer, digest) VALUES (?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (dataset, self._name, text, _digest(text)),
        )
        found = None if changed else _read_answer(session, dataset, self._name)
        self._counts = self._answer if found is None else found.again()
        self._bound = _note(session, dataset, self._name, analyst=self._analyst, key=self._key)

    def result(self) -> Answer | None:
        """Return the answer that counts; None if nothing was written."""
        _refuse_other(self._bound, self._name)
        return self._counts


def _read_answer(session: Session, dataset: str, name: str) -> Answer | None:
    rows = session.rows(
        "SELECT answer, digest FROM answers WHERE dataset = ? AND name = ?", (dataset, name)
    )
    if not rows:
        return None
    text, digest = rows[0]
    try:
        if _digest(text) == digest:
            return Answer.from_json(json.loads(text))
    except (ValueError, KeyError, TypeError):  # a text from elsewhere
        pass
    raise LedgerCorrupt(
        f"a stored answer about {dataset!r} is damaged and is not given; restore a backup"
    )


def _has_received(session: Session, dataset: str, name: str, analyst: str) -> bool:
    statement = "SELECT 1 FROM answer_receivers WHERE dataset = ? AND name = ? AND analyst = ?"
    return bool(session.rows(statement, (dataset, name, analyst)))


def _find_bound(session: Session, dataset: str, key: str | None) -> str | None:
    """Return the question that a key is bound to."""
    if key is None:
        return None
    statement = "SELECT name FROM answer_keys WHERE dataset = ? AND key = ?"
    rows = session.rows(statement, (dataset, key))
    return str(rows[0][0]) if rows else None


def _note(
    session: Session, dataset: str, name: str, *, analyst: str, key: str | None
) -> str | None:
    """Note who has an answer, and bind the key unless it is bound; return what it is bound to."""
    session.run(
        "INSERT INTO answer_receivers (dataset, name, analyst) VALUES (?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (dataset, name, analyst),
    )
    if key is not None:
        session.run(
            "INSERT INTO answer_keys (dataset, key, name) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (dataset, key, name),
        )
    return _find_bound(session, dataset, key)


def _refuse_other(bound: str | None, name: str) -> None:
    if bound not in (None, name):
        raise KeyConflict(
            "this idempotency key was used for another query; its answer does not leave"
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
