"""The few statements that read and append the rows of a ledger.

Nothing that is read is believed before its type was looked at: a field that somebody spoilt is a
``LedgerCorrupt``. Every statement that writes must change exactly one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from discreet._json import read_json
from discreet._store import Session
from discreet.errors import LedgerCorrupt, LedgerMissing, SchemaError
from discreet.ledger._budget import format_label, write_state
from discreet.ledger._entry import Entry, Head, Roll, parse_entry
from discreet.privacy import Filter


class Identity(NamedTuple):
    """What every entry repeats of its ledger."""

    ledger: str
    roll: Roll


class StoredDataset(NamedTuple):
    """A dataset as the store keeps it: its number, where its chain ends, and the roll."""

    number: int
    name: str
    head: Head
    roll: Roll


class DatasetRow(NamedTuple):
    """A row of the datasets."""

    number: int
    name: str
    genesis: str
    seq: int
    hash: str


class Row(NamedTuple):
    """An entry as the store keeps it, before anything but the types is believed."""

    seq: int
    kind: str
    refers: int | None
    text: str
    hash: str
    key: str | None


_ROW = "SELECT seq, kind, refers, text, hash, request_key FROM entries"
_ROW_TYPES = (int, str, (int, type(None)), str, str, (str, type(None)))
_DATASET_TYPES = (int, str, str, int, str)
_KNOWN: dict[str, Filter] = {}  # by the text that describes it, which is all that counts
_MOST_KNOWN = 256
_MALFORMED = (SchemaError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError)


def read_identity(session: Session, *, lock: str = "") -> Identity:
    """The name and the roll of the ledger."""
    rows = session.rows(f"SELECT name, value FROM meta WHERE name IN ('ledger', 'roll'){lock}")
    found = dict(check_types(row, (str, str), "the identity of the ledger") for row in rows)
    if len(rows) != 2 or len(found) != 2:
        raise LedgerCorrupt("the ledger has lost its identity")
    try:
        return Identity(found["ledger"], Roll.parse(found["roll"]))
    except SchemaError as error:
        raise LedgerCorrupt(f"the ledger has lost its identity: {error}") from error


def read_dataset(session: Session, name: str, *, lock: str = "") -> StoredDataset:
    """The dataset of a name, or ``LedgerMissing``."""
    rows = session.rows(
        f"SELECT number, name, genesis, seq, hash FROM datasets WHERE name = ?{lock}", (name,)
    )
    if not rows:
        raise LedgerMissing(f"there is no dataset {name!r} in this ledger")
    if len(rows) > 1:
        raise LedgerCorrupt(f"there are {len(rows)} datasets {name!r}; nothing was charged")
    row = DatasetRow(*check_types(rows[0], _DATASET_TYPES, f"the row of the dataset {name!r}"))
    # The roll is read after the row was locked, so that it only grows along a chain.
    ledger, roll = read_identity(session)
    head = Head(ledger, name, row.genesis, row.seq, row.hash)
    return StoredDataset(row.number, name, head, roll)


def read_datasets(session: Session) -> list[DatasetRow]:
    """Every dataset, in the order in which they were opened."""
    rows = session.rows("SELECT number, name, genesis, seq, hash FROM datasets ORDER BY number")
    return [DatasetRow(*check_types(row, _DATASET_TYPES, "the row of a dataset")) for row in rows]


def save_dataset(session: Session, number: int, entry: Entry, roll: Roll) -> None:
    """Enter a dataset with its first entry, and the roll that now includes it."""
    _write_one(
        session,
        "INSERT INTO datasets (number, name, genesis, seq, hash) VALUES (?, ?, ?, ?, ?)",
        (number, entry.dataset, entry.hash, 0, entry.hash),
    )
    _write_one(session, "UPDATE meta SET value = ? WHERE name = 'roll'", (roll.as_text(),))
    append_entry(session, number, entry)


def append_entry(session: Session, number: int, entry: Entry, *, key: str | None = None) -> None:
    """Add an entry and move the end of the chain."""
    refers = entry.content["charge"] if entry.kind == "outcome" else None
    _write_one(
        session,
        "INSERT INTO entries (dataset, seq, kind, refers, text, hash, request_key)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (number, entry.seq, entry.kind, refers, entry.text, entry.hash, key),
    )
    if entry.kind != "genesis":
        _write_one(
            session,
            "UPDATE datasets SET seq = ?, hash = ? WHERE number = ? AND hash = ?",
            (entry.seq, entry.hash, number, entry.previous),
        )


def read_budget_rows(session: Session) -> list[tuple[int, str, str, str]]:
    """Dataset, scope, name and state of every budget in the ledger."""
    rows = session.rows("SELECT dataset, scope, name, state FROM budgets ORDER BY 1, 2, 3")
    return [check_types(row, (int, str, str, str), "the row of a budget") for row in rows]


def read_budgets(
    session: Session, number: int, labels: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Filter]:
    """The filters of those named budgets that exist."""
    wanted = " OR ".join("(scope = ? AND name = ?)" for _ in labels)
    rows = session.rows(
        f"SELECT scope, name, state FROM budgets WHERE dataset = ? AND ({wanted})",
        (number, *(value for label in labels for value in label)),
    )
    states = {(scope, name): state for scope, name, state in rows}
    if len(states) != len(rows):
        raise LedgerCorrupt("a budget has two rows; nothing was charged, run verify")
    return {label: read_filter(states[label], label) for label in labels if label in states}


def read_filter(state: object, label: tuple[str, str]) -> Filter:
    """The budget that a state describes, or ``LedgerCorrupt``."""
    try:
        if not isinstance(state, str):
            raise SchemaError("the state is not a text")
        return copy(_read(state))
    except _MALFORMED as error:
        raise LedgerCorrupt(
            f"the budget {format_label(*label)!r} cannot be read, nothing was charged: {error}"
        ) from error


def _read(state: str) -> Filter:
    """What a text says never changes; whoever spends from it takes a copy."""
    known = _KNOWN.get(state)
    return (
        _remember(state, Filter.from_state(read_json(state, "state"))) if known is None else known
    )


def _remember(state: str, budget: Filter) -> Filter:
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[state] = budget
    return budget


def save_budget(
    session: Session, number: int, label: tuple[str, str], budget: Filter, *, new: bool = False
) -> None:
    """Store the sums of a budget."""
    state = write_state(budget)
    _remember(state, copy(budget))
    if new:
        statement = "INSERT INTO budgets (state, dataset, scope, name) VALUES (?, ?, ?, ?)"
    else:
        statement = "UPDATE budgets SET state = ? WHERE dataset = ? AND scope = ? AND name = ?"
    _write_one(session, statement, (state, number, *label))


def read_entries(session: Session, number: int, *, page: int = 1000) -> Iterator[Row]:
    """Every entry of a dataset in order, a page at a time."""
    last = -(2**63)
    while True:
        rows = session.rows(
            f"{_ROW} WHERE dataset = ? AND seq > ? ORDER BY seq LIMIT ?", (number, last, page)
        )
        for row in rows:
            yield Row(*check_types(row, _ROW_TYPES, f"entry {row[0]!r} of dataset {number}"))
        if len(rows) < page:
            return
        last = rows[-1][0]


def read_restored(session: Session, number: int) -> tuple[int, ...]:
    """Return the positions of the entries that tell of a restored backup."""
    rows = session.rows(
        "SELECT seq FROM entries WHERE dataset = ? AND kind = 'restored' ORDER BY seq", (number,)
    )
    return tuple(check_types(row, (int,), "an entry of a restored backup")[0] for row in rows)


def read_charges_before(
    session: Session, found: StoredDataset, end: int, *, page: int
) -> Iterator[Entry]:
    """Charges below a position, the newest first, a page at a time."""
    while True:
        rows = session.rows(
            "SELECT text, hash FROM entries WHERE dataset = ? AND kind = 'charge' AND seq < ?"
            " ORDER BY seq DESC LIMIT ?",
            (found.number, end, page),
        )
        for row in rows:
            entry = _parse_row(row, found)
            if entry.kind != "charge" or entry.seq >= end:
                raise LedgerCorrupt(f"entry {entry.seq} of {found.name!r} was moved; run verify")
            end = entry.seq
            yield entry
        if len(rows) < page:
            return


def read_entry(session: Session, found: StoredDataset, seq: int) -> Entry:
    """The entry at a position, or ``LedgerMissing``."""
    entry = _one(session, found, "seq", seq)
    if entry is None:
        raise LedgerMissing(f"there is no entry {seq} in this dataset")
    if entry.seq != seq or (seq == 0) is not (entry.kind == "genesis"):
        raise LedgerCorrupt(f"entry {seq} of {found.name!r} is not what it should be; run verify")
    return entry


def find_charge(session: Session, found: StoredDataset, key: str) -> Entry | None:
    """The charge that was made under an idempotency key."""
    entry = _one(session, found, "request_key", key)
    if entry is not None and (entry.kind != "charge" or entry.content.get("key") != key):
        raise LedgerCorrupt(f"the key {key!r} leads to another entry; run verify")
    return entry


def find_outcome(session: Session, found: StoredDataset, seq: int) -> Mapping[str, Any] | None:
    """What became of the body of a charge, if that is known."""
    entry = _one(session, found, "refers", seq)
    if entry is None:
        return None
    content = entry.content
    if (
        entry.kind != "outcome"
        or content.get("charge") != seq
        or content.get("outcome") not in ("completed", "failed")
        or "result" not in content
    ):
        raise LedgerCorrupt(f"the outcome of entry {seq} is another entry; run verify")
    return content


def _one(session: Session, found: StoredDataset, column: str, value: object) -> Entry | None:
    statement = f"SELECT text, hash FROM entries WHERE dataset = ? AND {column} = ?"
    rows = session.rows(statement, (found.number, value))
    if not rows:
        return None
    if len(rows) > 1:
        raise LedgerCorrupt(f"{len(rows)} entries of {found.name!r} have one {column}; run verify")
    return _parse_row(rows[0], found)


def _parse_row(row: Sequence[Any], found: StoredDataset) -> Entry:
    text, hash_ = check_types(row, (str, str), f"an entry of {found.name!r}")
    try:
        entry = parse_entry(text)
    except SchemaError as error:
        raise LedgerCorrupt(f"an entry cannot be read: {error}") from error
    if (entry.hash, entry.dataset, entry.ledger) != (hash_, found.name, found.head.ledger):
        raise LedgerCorrupt(f"an entry of {found.name!r} was changed or moved; run verify")
    return entry


def check_types(row: Sequence[Any], kinds: Sequence[Any], what: str) -> Any:
    for value, kind in zip(row, kinds, strict=True):
        if not isinstance(value, kind):
            raise LedgerCorrupt(f"{what} holds {value!r} where it cannot be; run verify")
    return tuple(row)


def _write_one(session: Session, statement: str, values: Sequence[object]) -> None:
    changed = session.run(statement, values)
    if changed != 1:
        table = statement.split()[2 if statement.startswith("INSERT") else 1]
        raise LedgerCorrupt(
            f"a statement changed {changed} rows of {table!r} instead of one; nothing was charged, "
            "run verify"
        )
