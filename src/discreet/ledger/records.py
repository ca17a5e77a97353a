"""The rows of a ledger: the few statements that read and append them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from discreet.errors import LedgerCorrupt, LedgerMissing, SchemaError
from discreet.ledger.budgets import label_of
from discreet.ledger.entries import Entry, Head, parse_entry
from discreet.ledger.store import Session
from discreet.privacy.adaptive import Filter

__all__ = [
    "Row",
    "StoredDataset",
    "append",
    "budget_states",
    "budgets",
    "dataset",
    "dataset_rows",
    "entry_by_key",
    "entry_rows",
    "ledger_id",
    "one_entry",
    "outcome_of",
    "save_budget",
]


class StoredDataset(NamedTuple):
    """A dataset as the store keeps it: its number and where its chain ends."""

    number: int
    name: str
    head: Head


class Row(NamedTuple):
    """An entry as the store keeps it, before anything is believed."""

    seq: int
    kind: str
    refers: int | None
    text: str
    hash: str
    key: str | None


_ROW = "SELECT seq, kind, refers, text, hash, request_key FROM entries"


def ledger_id(session: Session, *, lock: str = "") -> str:
    """The identity of the ledger, which every entry repeats."""
    rows = session.rows(f"SELECT value FROM meta WHERE name = 'ledger'{lock}")
    if len(rows) != 1:
        raise LedgerCorrupt("the ledger has lost its identity")
    return str(rows[0][0])


def dataset(session: Session, name: str, *, lock: str = "") -> StoredDataset:
    """The dataset of a name, or ``LedgerMissing``."""
    rows = session.rows(
        f"SELECT number, genesis, seq, hash FROM datasets WHERE name = ?{lock}", (name,)
    )
    if not rows:
        raise LedgerMissing(f"there is no dataset {name!r} in this ledger")
    number, genesis, seq, hash_ = rows[0]
    return StoredDataset(number, name, Head(ledger_id(session), name, genesis, seq, hash_))


def dataset_rows(session: Session) -> list[tuple[Any, ...]]:
    """Number, name, genesis, length and last hash of every dataset."""
    return session.rows("SELECT number, name, genesis, seq, hash FROM datasets ORDER BY number")


def append(session: Session, number: int, entry: Entry, *, key: str | None = None) -> None:
    """Add an entry and move the end of the chain."""
    refers = entry.content["charge"] if entry.kind == "outcome" else None
    session.run(
        "INSERT INTO entries (dataset, seq, kind, refers, text, hash, request_key)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (number, entry.seq, entry.kind, refers, entry.text, entry.hash, key),
    )
    if entry.kind != "genesis":
        session.run(
            "UPDATE datasets SET seq = ?, hash = ? WHERE number = ?",
            (entry.seq, entry.hash, number),
        )


def budget_states(session: Session, number: int) -> dict[str, str]:
    """The text of every budget of a dataset, by label."""
    rows = session.rows(
        "SELECT scope, name, state FROM budgets WHERE dataset = ? ORDER BY scope, name", (number,)
    )
    return {label_of(scope, name): state for scope, name, state in rows}


def budgets(
    session: Session, number: int, labels: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Filter]:
    """The filters of those named budgets that exist."""
    wanted = " OR ".join("(scope = ? AND name = ?)" for _ in labels)
    rows = session.rows(
        f"SELECT scope, name, state FROM budgets WHERE dataset = ? AND ({wanted})",
        (number, *(value for label in labels for value in label)),
    )
    states = {(scope, name): state for scope, name, state in rows}
    return {label: _filter(states[label], label) for label in labels if label in states}


def _filter(state: str, label: tuple[str, str]) -> Filter:
    try:
        return Filter.from_state(json.loads(state))
    except (SchemaError, ValueError) as error:
        raise LedgerCorrupt(
            f"the budget {label_of(*label)!r} cannot be read, nothing was charged: {error}"
        ) from error


def save_budget(
    session: Session, number: int, label: tuple[str, str], budget: Filter, *, new: bool = False
) -> None:
    """Store the sums of a budget."""
    state = json.dumps(budget.state())
    if new:
        statement = "INSERT INTO budgets (state, dataset, scope, name) VALUES (?, ?, ?, ?)"
    else:
        statement = "UPDATE budgets SET state = ? WHERE dataset = ? AND scope = ? AND name = ?"
    session.run(statement, (state, number, *label))


def entry_rows(session: Session, number: int, *, page: int = 1000) -> Iterator[Row]:
    """Every entry of a dataset in order, a page at a time."""
    last = -1
    while True:
        rows = session.rows(
            f"{_ROW} WHERE dataset = ? AND seq > ? ORDER BY seq LIMIT ?", (number, last, page)
        )
        yield from (Row(*row) for row in rows)
        if len(rows) < page:
            return
        last = rows[-1][0]


def one_entry(session: Session, number: int, seq: int) -> Entry:
    """The entry at a position, or ``LedgerMissing``."""
    rows = session.rows("SELECT text FROM entries WHERE dataset = ? AND seq = ?", (number, seq))
    if not rows:
        raise LedgerMissing(f"there is no entry {seq} in this dataset")
    return _believed(rows[0][0])


def entry_by_key(session: Session, number: int, key: str) -> Entry | None:
    """The charge that was made under an idempotency key."""
    rows = session.rows(
        "SELECT text FROM entries WHERE dataset = ? AND request_key = ?", (number, key)
    )
    return _believed(rows[0][0]) if rows else None


def outcome_of(session: Session, number: int, seq: int) -> Mapping[str, Any] | None:
    """What became of the body of a charge, if that is known."""
    rows = session.rows("SELECT text FROM entries WHERE dataset = ? AND refers = ?", (number, seq))
    return _believed(rows[0][0]).content if rows else None


def _believed(text: str) -> Entry:
    try:
        return parse_entry(text)
    except SchemaError as error:
        raise LedgerCorrupt(f"an entry cannot be read: {error}") from error
