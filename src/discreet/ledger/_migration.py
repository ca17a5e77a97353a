"""Turn a ledger in a single file, as versions 1 to 3 kept it, into a directory; restore a backup.

Every step of a migration can be repeated after a crash, and until the last one the old file is
there: the rows are copied into a new directory and verified there; the old file notes that it has
version 4, so that older programs refuse it; it moves to ``study.ledger.before-4``; the directory
takes its name. Stored answers (``study.ledger.answers``) and the registry of a service
(``study.ledger.registry``) go the same way, with the name of the answers, which keys of charges
hold.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from discreet._json import canonical
from discreet._store import (
    LATEST,
    BareSession,
    Session,
    SqliteStore,
    adopt_neighbour,
    fill_database,
    hash_datasets,
    is_old_file,
    name_answers,
    read_version,
    sync_path,
)
from discreet.errors import (
    InvalidValue,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerMissing,
)
from discreet.ledger import _rows
from discreet.ledger._budget import DATASET, format_label, parse_label, write_sums
from discreet.ledger._entry import RECEIPT, Entry, Head, Roll, parse_entry
from discreet.ledger._replay import Fault, Replay, check_receipt, spend_or_close, verify_store
from discreet.privacy import Loss, to_json

_SIDE_FILES = ("-wal", "-shm", "-users", "-queue", "-turn", "-sync")
_KEPT = f".before-{LATEST}"


def migrate_file(path: Path, *, timeout: float) -> Path:
    """Make a directory of a ledger in a single file; return where the old file is now."""
    kept = path.with_name(f"{path.name}{_KEPT}")
    old = path if os.path.lexists(path) else kept
    if path.is_dir() or not is_old_file(old):
        raise _refusal(path, old)
    if old is path and kept.exists():
        raise LedgerExists(f"{kept} exists already; nothing was changed: move it away first")
    if old.is_symlink():
        raise LedgerError(f"{old} is a symbolic link; nothing was changed: migrate what it names")
    draft = path.with_name(f"{path.name}.migrating")
    before = os.lstat(old)
    with ExitStack() as opened:
        connection = opened.enter_context(_lock_file(old, timeout))
        # Never opened here a second time: to close it again would drop the locks of SQLite.
        if not os.path.samestat(before, os.lstat(old)) or path.is_dir():
            raise LedgerBusy(f"{path} was migrated by another meanwhile; nothing was changed")
        neighbours = _find_neighbours(path)
        links = {
            kind: opened.enter_context(_lock_file(file, timeout))
            for kind, file in neighbours.items()
        }
        shutil.rmtree(draft, ignore_errors=True)  # what an attempt that was cut short left
        try:
            draft.mkdir(0o700)
            _copy(connection, draft, str(old), links)
            _verify(draft, timeout)
            connection.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (str(LATEST),))
            connection.execute("COMMIT")
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        moving = [(old, connection), *((neighbours[kind], links[kind]) for kind in links)]
        for file, link in moving:
            if link.in_transaction:
                link.execute("ROLLBACK")
            # The log is folded into the file, so that it can be moved.
            link.execute("PRAGMA journal_mode = DELETE").fetchall()
            if not file.name.endswith(_KEPT):
                file.rename(file.with_name(f"{file.name}{_KEPT}"))
                sync_path(path.absolute().parent)
        draft.rename(path)
        sync_path(path.absolute().parent)
    for end in _SIDE_FILES:
        Path(f"{path}{end}").unlink(missing_ok=True)
    return kept


def _find_neighbours(path: Path) -> dict[str, Path]:
    """Return the stored answers and the registry, which may have moved in an earlier attempt."""
    found = {}
    for kind in ("answers", "registry"):
        file = path.with_name(f"{path.name}.{kind}")
        kept = file.with_name(f"{file.name}{_KEPT}")
        if file.exists() and kept.exists():
            raise LedgerExists(f"{kept} exists already; nothing was changed: move it away first")
        if file.exists() or kept.exists():
            found[kind] = file if file.exists() else kept
    return found


def _refusal(path: Path, old: Path) -> LedgerError:
    if path.is_dir():
        return LedgerExists(f"{path} is a directory already; nothing was changed")
    if not old.exists():
        return LedgerMissing(f"{path}: there is no such file")
    return LedgerCorrupt(f"{old} is not a ledger")


@contextmanager
def _lock_file(path: Path, timeout: float) -> Iterator[sqlite3.Connection]:
    """Yield a connection that has the whole file, in a transaction."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout)) as connection:
            connection.isolation_level = None
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = 1")
            # In this mode the first look at the file asks for all of it, if it has a log.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            connection.execute("BEGIN EXCLUSIVE")
            yield connection
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise LedgerBusy(
                f"{path} is in use; nothing was changed: close it everywhere and try again"
            ) from error
        raise LedgerCorrupt(f"{path} cannot be read, nothing was changed ({error})") from error
    except OSError as error:
        raise LedgerError(f"{path}: cannot be migrated ({error.strerror})") from None


def _copy(
    connection: sqlite3.Connection,
    draft: Path,
    place: str,
    beside: Mapping[str, sqlite3.Connection],
) -> None:
    """Fill a new database with the rows of an old one, and of those beside it."""
    session = BareSession(connection)
    version = read_version(session, place)
    known = dict(session.rows("SELECT name, value FROM meta"))
    # An attempt that was cut short may have changed the version already.
    if version > LATEST or not isinstance(known.get("ledger"), str):
        raise LedgerCorrupt(f"{place} is not a ledger of versions 1 to 3; nothing was changed")
    columns = {row[1] for row in session.rows("PRAGMA table_info(entries)")}
    key = "request_key" if "request_key" in columns else "NULL"
    copies = {
        "datasets (number, name, genesis, seq, hash)": "SELECT number, name, genesis, seq, hash",
        "budgets (dataset, scope, name, state)": "SELECT dataset, scope, name, state",
        "entries (dataset, seq, kind, refers, text, hash, request_key)": (
            f"SELECT dataset, seq, kind, refers, text, hash, {key}"
        ),
    }
    database = draft / f"ledger-{os.urandom(4).hex()}.sqlite"
    fill_database(database, str(known["ledger"]))
    with closing(sqlite3.connect(database, isolation_level=None)) as new:
        new.execute("BEGIN")
        for target, query in copies.items():
            table = target.split()[0]
            marks = ", ".join("?" * (target.count(",") + 1))
            rows = connection.execute(f"{query} FROM {table}")
            new.executemany(f"INSERT INTO {target} VALUES ({marks})", rows)
        roll = known.get("roll", hash_datasets(session))
        new.execute("UPDATE meta SET value = ? WHERE name = 'roll'", (roll,))
        for kind, link in beside.items():
            adopt_neighbour(BareSession(new), kind, BareSession(link))
        new.execute("COMMIT")
    sync_path(database)
    sync_path(draft)


def _verify(draft: Path, timeout: float) -> None:
    """Raise unless the copy is a sound ledger; what 0.1 charged too little is corrected later."""
    store = SqliteStore.open(draft, timeout=timeout)
    try:
        faults = [fault for fault in verify_store(store).problems if not fault.undercharged]
    finally:
        store.close()
    if faults:
        raise LedgerCorrupt(f"the ledger is not sound, nothing was changed: {faults[0]}")


# --- restoring a backup ------------------------------------------------------------------


def restore_datasets(
    session: Session,
    receipts: Sequence[Mapping[str, Any]],
    losses: Mapping[str, Loss],
    follow: Callable[[Head, str, Mapping[str, Any], Roll], Entry],
    *,
    at: str,
    lock: str,
) -> None:
    """Spend what a backup has forgotten, say so on every chain, and let it be charged again."""
    marks = session.rows("SELECT value FROM meta WHERE name = 'backup'")
    made = str(marks[0][0]) if marks else None
    names = [row.name for row in _rows.read_datasets(session)]
    unknown = sorted(set(losses) - set(names))
    if unknown:
        raise InvalidValue("spent", unknown[0], "a dataset of this ledger")
    for name in names:
        found = _rows.read_dataset(session, name, lock=lock)
        content = _restore_dataset(session, found, receipts, losses.get(name), made)
        entry = follow(found.head, "restored", content, found.roll)
        _rows.append_entry(session, found.number, entry)
    # A charge of the backup may have got its answer since, and a token its end.
    name_answers(session)
    session.run("UPDATE tokens SET revoked = ? WHERE revoked IS NULL", (at,))
    if made is not None:
        session.run("DELETE FROM meta WHERE name = 'backup'")


def _restore_dataset(
    session: Session,
    found: _rows.StoredDataset,
    receipts: Sequence[Mapping[str, Any]],
    loss: Loss | None,
    made: str | None,
) -> dict[str, Any]:
    """Spend what a backup has forgotten of a dataset; return what its entry says of that."""
    replay = Replay(found.name)
    for row in _rows.read_entries(session, found.number):
        replay.feed(row.text, row.hash, position=row.seq)
    faults = [fault for fault in replay.problems if not fault.undercharged]
    if faults:
        raise LedgerCorrupt(f"{faults[0]}; nothing was restored, run verify")
    # The sums that are kept may be above those of the replay, and never sink.
    labels = [parse_label(label) for label in replay.budgets]
    stored = _rows.read_budgets(session, found.number, labels)
    replay.budgets.update({format_label(*label): budget for label, budget in stored.items()})
    content: dict[str, Any] = {"backup": made}
    mine = _own_receipts(found, receipts, replay)
    if loss is not None:
        if not isinstance(loss, Loss):
            raise InvalidValue("spent", type(loss).__name__, "a loss for each dataset")
        content |= {"how": "loss", "loss": to_json(loss)}
        for budget in replay.budgets.values():
            spend_or_close(budget, loss)
    elif mine:
        later = [entry for entry in mine if entry.seq > found.head.seq]
        replay.spend_again(later)
        charges = [dict(entry.content) for entry in later if entry.kind == "charge"]
        content |= {"how": "receipts", "charges": charges}
    elif made is not None:
        content["how"] = "closed"
        for budget in replay.budgets.values():
            budget.raise_sums({})
    else:
        raise LedgerError(
            f"this is not marked as a backup, and nothing tells what was spent of {found.name!r} "
            "since it was copied; nothing was changed: give receipts or the loss"
        )
    for label, budget in replay.budgets.items():
        _rows.save_budget(session, found.number, parse_label(label), budget)
    content["spent"] = {label: write_sums(budget) for label, budget in replay.budgets.items()}
    return content


def _own_receipts(
    found: _rows.StoredDataset, receipts: Sequence[Mapping[str, Any]], replay: Replay
) -> list[Entry]:
    """Return the entries of a dataset that receipts hold, in order; each must fit its chain."""
    mine: dict[int, Entry] = {}
    for receipt in receipts:
        faults = check_receipt(receipt)
        if faults or receipt.get("schema") != RECEIPT:
            raise LedgerError(f"a receipt cannot be used: {faults[0] if faults else 'an export'}")
        entry = parse_entry(canonical(receipt["entry"]))
        if (entry.ledger, entry.dataset) != (found.head.ledger, found.name):
            continue
        known = replay.hashes[entry.seq] if entry.seq < len(replay.hashes) else entry.hash
        if known != entry.hash or mine.setdefault(entry.seq, entry) != entry:
            raise LedgerError(
                f"the receipt of entry {entry.seq} of {found.name!r} is not of this chain; "
                "nothing was restored"
            )
    return [entry for _, entry in sorted(mine.items())]


# --- correcting charges ------------------------------------------------------------------


def correct_charge(
    session: Session,
    found: _rows.StoredDataset,
    follow: Callable[[Head, str, Mapping[str, Any], Roll], Entry],
) -> Fault | None:
    """Charge what the first undercharged entry lacks; return what was wrong, or None."""
    replay = Replay(found.name)
    for row in _rows.read_entries(session, found.number):
        replay.feed(row.text, row.hash, position=row.seq)
    others = [problem for problem in replay.problems if not problem.undercharged]
    if others:
        raise LedgerCorrupt(f"{others[0]}; nothing was corrected, run verify")
    if not replay.undercharged:
        return None
    wrong = next(iter(replay.undercharged.values()))
    budgets = _rows.read_budgets(session, found.number, [parse_label(at) for at in wrong.missing])
    if (DATASET, "") not in budgets:
        raise LedgerCorrupt(f"{found.name!r} has lost its budget; nothing was corrected")
    for label, budget in budgets.items():
        budget.raise_sums(wrong.missing[format_label(*label)])
    content = {
        "charge": wrong.seq,
        "reason": str(wrong),
        "spent": {format_label(*label): write_sums(budget) for label, budget in budgets.items()},
    }
    entry = follow(found.head, "correction", content, found.roll)
    _rows.append_entry(session, found.number, entry)
    for label, budget in budgets.items():
        _rows.save_budget(session, found.number, label, budget)
    return replay.problems[0]
