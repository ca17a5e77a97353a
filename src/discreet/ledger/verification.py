"""Verifying a ledger: the chains replayed, and the store's own memory held against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from discreet.errors import LedgerCorrupt, SchemaError
from discreet.ledger import records
from discreet.ledger.budgets import DATASET, SCOPES, label_of, spent_of, state_of
from discreet.ledger.entries import EMPTY_ROLL, NO_HASH, Roll
from discreet.ledger.receipts import check_receipt, missing_from_chain
from discreet.ledger.replay import Problem, Replay
from discreet.ledger.store import Session, Store

__all__ = ["Verification", "verify_store"]


@dataclass(frozen=True)
class Verification:
    """The verdict on a ledger: what was looked at, and every problem that was found.

    ``notes`` are no problems: charges that a newer version would have read a little lower.
    """

    datasets: int
    entries: int
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_store(store: Store, *, receipts: Iterable[Mapping[str, Any]] = ()) -> Verification:
    """Replay every chain of a ledger; see :meth:`discreet.ledger.Ledger.verify`."""
    wanted = list(receipts)
    problems = [Problem("ledger", None, fault) for fault in store.faults()]
    if problems:
        return Verification(0, 0, tuple(problems), ())
    replays: dict[int, Replay] = {}
    try:
        with store.reading() as session:
            problems += _verify_tables(store, session, replays)
    except LedgerCorrupt as error:
        problems.append(Problem("ledger", None, str(error)))
    replayed = [replay for _, replay in sorted(replays.items())]
    problems += [problem for replay in replayed for problem in replay.problems]
    notes = [note for replay in replayed for note in replay.notes]
    for receipt in wanted:
        problems += _check_on_chain(receipt, {replay.dataset: replay for replay in replayed})
    entries = sum(len(replay.hashes) for replay in replayed)
    return Verification(len(replays), entries, tuple(problems), tuple(notes))


def _verify_tables(store: Store, session: Session, replays: dict[int, Replay]) -> list[Problem]:
    """Replay every dataset into ``replays``, and say what is wrong with the ledger as a whole."""
    odd = store.oddities(session)
    identity = records.identity(session)
    states: dict[int, dict[tuple[str, str], str]] = {}
    for number, scope, name, state in records.budget_rows(session):
        if (scope, name) in states.setdefault(number, {}):
            odd.append(f"the budget {label_of(scope, name)!r} of dataset {number} has two rows")
        states[number][scope, name] = state
    names = [str(row[0]) for row in session.rows("SELECT name FROM meta ORDER BY name")]
    if names != ["ledger", "roll", "schema"]:
        odd.append(f"the ledger describes itself by {', '.join(names)}")
    for row in records.dataset_rows(session):
        if row.number in replays:
            odd.append(f"dataset number {row.number} is there twice")
        replay = _replay(session, row, identity.ledger)
        _check_memory(row, states.pop(row.number, {}), replay)
        replays[row.number] = replay
    odd += [f"budgets of a dataset number {number} are orphans" for number in sorted(states)]
    problems = [Problem("ledger", None, what) for what in odd]
    return problems + _lost_datasets(session, set(replays)) + _check_rolls(replays, identity.roll)


def _replay(session: Session, dataset: records.DatasetRow, identity: str) -> Replay:
    name, replay = dataset.name, Replay(dataset.name)
    try:
        _feed(session, dataset.number, replay)
    except LedgerCorrupt as error:
        replay.problems.append(Problem(name, None, str(error)))
    if replay.genesis is None:
        replay.problems.append(Problem(name, None, "the chain is empty"))
    elif replay.genesis.ledger != identity:
        replay.problems.append(Problem(name, 0, "the chain was made by another ledger"))
    elif replay.genesis.content.get("number") != dataset.number:
        replay.problems.append(Problem(name, 0, "the dataset has another number"))
    return replay


def _feed(session: Session, number: int, replay: Replay) -> None:
    for row in records.entry_rows(session, number):
        entry = replay.feed(row.text, row.hash, position=row.seq)
        if entry is None:
            continue
        key = entry.content.get("key") if entry.kind == "charge" else None
        refers = entry.content.get("charge") if entry.kind == "outcome" else None
        if (row.kind, row.key, row.refers) != (entry.kind, key, refers):
            what = "the index of the entry was changed"
            replay.problems.append(Problem(replay.dataset, row.seq, what))


def _check_memory(
    row: records.DatasetRow, states: Mapping[tuple[str, str], str], replay: Replay
) -> None:
    """The end of the chain and the sums, which the store keeps for speed."""
    if replay.genesis is None or replay.last is None:
        return
    name = replay.dataset
    ends = replay.genesis.hash, replay.last.seq, replay.last.hash
    if (row.genesis, row.seq, row.hash) != ends:
        what = f"the chain ends at entry {replay.last.seq}, the ledger remembers {row.seq}"
        replay.problems.append(Problem(name, None, f"{what}: entries were removed or added"))
    noted = replay.finished_spent()
    # One row for each label: a second one with another name would hide the first.
    labels = {label_of(*key): key for key in states}
    known = (DATASET, "") in states and all(key[0] in (DATASET, *SCOPES) for key in states)
    if not known or len(labels) != len(states) or set(labels) != set(noted) | set(replay.budgets):
        replay.problems.append(Problem(name, None, "the budgets are not those of the chain"))
    for label in sorted(set(labels) & set(noted) & set(replay.budgets)):
        key = (DATASET, "") if label == DATASET else labels[label]
        if key not in states:
            continue
        try:
            kept = records.filter_of(states[key], key)
        except LedgerCorrupt as error:
            replay.problems.append(Problem(name, None, f"the budget {label!r}: {error}"))
            continue
        replayed = replay.budgets[label]
        settings = {"epsilon", "delta", "reserved", "relation", "kind", "orders", "charges"}
        mine, theirs = kept.state(), replayed.state()
        caps = [[lane["budget"] for lane in state["lanes"]] for state in (mine, theirs)]
        if (
            spent_of(kept) != noted[label]
            or caps[0] != caps[1]
            or any(mine[field] != theirs[field] for field in settings)
            or state_of(kept) != states[key]
        ):
            what = f"the sums or settings remembered for {label!r} are not those of the chain"
            replay.problems.append(Problem(name, None, what))


def _lost_datasets(session: Session, numbers: set[int]) -> list[Problem]:
    problems = [
        Problem("ledger", None, f"dataset number {number} was removed")
        for number in range(1, len(numbers) + 1)
        if number not in numbers
    ]
    owners = {row[0] for row in session.rows("SELECT DISTINCT dataset FROM entries")}
    orphans = (
        f"entries of a dataset number {n} are orphans" for n in sorted(owners - numbers, key=str)
    )
    return problems + [Problem("ledger", None, what) for what in orphans]


def _check_rolls(replays: Mapping[int, Replay], roll: Roll) -> list[Problem]:
    """Every dataset that was ever opened is still there, as every entry since then says."""
    called = [EMPTY_ROLL]
    for _, replay in sorted(replays.items()):
        called.append(called[-1].after(replay.genesis.hash if replay.genesis else NO_HASH))
    problems = []
    if roll != called[-1]:
        what = f"the ledger has opened {roll.count} datasets and holds {len(replays)}"
        what += ": a dataset was removed, added or replaced"
        problems.append(Problem("ledger", None, what))
    for number, replay in sorted(replays.items()):
        opened = replay.genesis.roll if replay.genesis else None
        if opened is not None and opened.count != number - 1:
            what = f"was opened as dataset {opened.count + 1} and is now {number}"
            problems.append(Problem(replay.dataset, 0, what))
        for noted, seq in [*replay.rolls.items(), *([(opened, 0)] if opened else [])]:
            known = noted.count < len(called) and called[noted.count] == noted
            if not known or (seq > 0 and noted.count < number):
                what = f"was written when the ledger had {noted.count} datasets, and not these"
                problems.append(Problem(replay.dataset, seq, what))
    return problems


def _check_on_chain(receipt: Mapping[str, Any], replays: Mapping[str, Replay]) -> list[Problem]:
    faults = check_receipt(receipt)
    if faults:
        return faults
    entry = receipt.get("entry")
    if not isinstance(entry, Mapping):
        raise SchemaError("receipt: expected the receipt of one entry")
    replay = replays.get(str(entry["dataset"]))
    if replay is None:
        what = "the receipt is intact, but its dataset is gone from the ledger"
        return [Problem(str(entry["dataset"]), entry["seq"], what)]
    return missing_from_chain(replay, [receipt])
