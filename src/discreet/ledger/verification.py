"""Verifying a ledger: the chains replayed, and the store's own memory held against them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from discreet.errors import SchemaError
from discreet.ledger import records
from discreet.ledger.budgets import spent_of
from discreet.ledger.receipts import check_receipt, missing_from_chain
from discreet.ledger.replay import Problem, Replay
from discreet.ledger.store import Session, Store
from discreet.privacy.adaptive import Filter

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
    notes: list[Problem] = []
    entries = 0
    replays: dict[str, Replay] = {}
    with store.reading() as session:
        identity = records.ledger_id(session)
        numbers = set()
        for number, name, *stored in records.dataset_rows(session):
            numbers.add(number)
            replay = _replay(session, number, name, identity)
            _check_memory(session, number, stored, replay)
            problems += replay.problems
            notes += replay.notes
            entries += len(replay.hashes)
            replays[name] = replay
        problems += _lost_datasets(session, numbers)
    for receipt in wanted:
        problems += _check_on_chain(receipt, replays)
    return Verification(len(replays), entries, tuple(problems), tuple(notes))


def _replay(session: Session, number: int, name: str, identity: str) -> Replay:
    replay = Replay(name)
    for row in records.entry_rows(session, number):
        entry = replay.feed(row.text, row.hash, position=row.seq)
        if entry is None:
            continue
        key = entry.content.get("key") if entry.kind == "charge" else None
        refers = entry.content.get("charge") if entry.kind == "outcome" else None
        if (row.kind, row.key, row.refers) != (entry.kind, key, refers):
            replay.problems.append(Problem(name, row.seq, "the index of the entry was changed"))
    if replay.genesis is None:
        replay.problems.append(Problem(name, None, "the chain is empty"))
    elif replay.genesis.ledger != identity:
        replay.problems.append(Problem(name, 0, "the chain was made by another ledger"))
    elif replay.genesis.content.get("number") != number:
        replay.problems.append(Problem(name, 0, "the dataset has another number"))
    return replay


def _check_memory(session: Session, number: int, stored: list[Any], replay: Replay) -> None:
    """The end of the chain and the sums, which the store keeps for speed."""
    if replay.genesis is None or replay.last is None:
        return
    name, (genesis, seq, hash_) = replay.dataset, stored
    if (genesis, seq, hash_) != (replay.genesis.hash, replay.last.seq, replay.last.hash):
        what = f"the chain ends at entry {replay.last.seq}, the ledger remembers {seq}"
        replay.problems.append(Problem(name, None, f"{what}: entries were removed or added"))
    states = records.budget_states(session, number)
    noted = replay.finished_spent()
    if set(states) != set(noted) or set(states) != set(replay.budgets):
        replay.problems.append(Problem(name, None, "the budgets are not those of the chain"))
        return
    for label, text in states.items():
        try:
            kept = Filter.from_state(json.loads(text))
        except (SchemaError, ValueError) as error:
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
        ):
            what = f"the sums or settings remembered for {label!r} are not those of the chain"
            replay.problems.append(Problem(name, None, what))


def _lost_datasets(session: Session, numbers: set[int]) -> list[Problem]:
    problems = [
        Problem("ledger", None, f"dataset number {number} was removed")
        for number in range(1, max(numbers, default=0) + 1)
        if number not in numbers
    ]
    owners = {row[0] for row in session.rows("SELECT DISTINCT dataset FROM entries")}
    orphans = (f"entries of a dataset number {n} are orphans" for n in sorted(owners - numbers))
    return problems + [Problem("ledger", None, what) for what in orphans]


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
