"""Replay chains and verify ledgers, receipts and exports: every hash, position and budget.

Nothing that the store remembers beside the entries is believed. The replay opens fresh filters
from the settings on the chain and spends every charge again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from discreet._json import canonical
from discreet._store import Session, Store, read_answers_name
from discreet.errors import (
    BudgetExceeded,
    DiscreetError,
    InvalidValue,
    LedgerCorrupt,
    LedgerError,
    LedgerUnconfirmed,
    NotApplicable,
    SchemaError,
)
from discreet.ledger import _rows
from discreet.ledger._budget import DATASET, SCOPES, format_label, write_state, write_sums
from discreet.ledger._entry import (
    DIGEST,
    DOCUMENT_VERSION,
    EMPTY_ROLL,
    EXPORT,
    NO_HASH,
    RECEIPT,
    Entry,
    Roll,
    hash_text,
    parse_entry,
    printable,
    read_document,
)
from discreet.privacy import ApproxDP, Filter, Loss, from_json, plan_claim, read_fraction, read_old

_LONGEST_GAP = 1_000_000
# Another version may read the same loss a little differently.
_AGREE = Fraction(1, 10**6)
_NONSENSE = (DiscreetError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where; ``seq`` is ``None`` where no single entry is to blame.

    ``undercharged`` marks an entry that an earlier version charged less than its loss costs;
    :meth:`discreet.ledger.Ledger.correct` mends it.
    """

    dataset: str
    seq: int | None
    what: str
    undercharged: bool = False

    def __str__(self) -> str:
        where = "" if self.seq is None else f", entry {self.seq}"
        return f"{self.dataset}{where}: {self.what}"


@dataclass(frozen=True)
class Undercharge:
    """A charge of an earlier version that cost more than it was charged.

    ``missing`` has the amount that each open sum of each budget lacks; a sum that is not named
    cannot read the loss. ``costs`` is infinite where no theorem bounds the loss.
    """

    seq: int
    sum: str
    charged: float
    costs: float
    reason: str
    missing: Mapping[str, Mapping[str, Fraction]]

    def __str__(self) -> str:
        costs = f"costs {self.costs:.6g}" if math.isfinite(self.costs) else "has no proved cost"
        return f"was charged {self.sum} {self.charged:.6g} by 0.1, {costs}: {self.reason}"


class Replay:
    """Feed it the texts of one chain in order; read ``problems`` and ``notes`` at the end."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.problems: list[Fault] = []
        self.notes: list[Fault] = []
        self.hashes: list[str] = []
        self.genesis: Entry | None = None
        self.last: Entry | None = None
        self.spent: dict[str, dict[str, str]] = {}
        self.rolls: dict[Roll, int] = {}
        self.keys: dict[str, int] = {}
        self.undercharged: dict[int, Undercharge] = {}
        self._filters: dict[str, Filter] = {}
        self._open_charges: set[int] = set()
        self._charges: set[int] = set()

    def feed(self, text: str, stored_hash: str, *, position: int) -> Entry | None:
        """Take the next entry; ``position`` is where the store or the export has it."""
        if position > len(self.hashes):
            self._problem(position, f"entries {len(self.hashes)} to {position - 1} are missing")
            # A position beyond all reason was made up: it is not counted up to.
            self.hashes += [NO_HASH] * min(position - len(self.hashes), _LONGEST_GAP)
        try:
            entry = parse_entry(text)
        except (SchemaError, UnicodeEncodeError) as error:
            self._problem(position, f"cannot be read: {error}")
            self.hashes.append(hash_text(text) if text.isascii() else NO_HASH)
            return None
        self.hashes.append(entry.hash)
        if entry.hash != stored_hash:
            self._problem(position, "was changed: its text does not have the hash stored for it")
        self._check_place(entry, position)
        self._check_roll(entry)
        try:
            getattr(self, f"_take_{entry.kind}")(entry)
        except _NONSENSE as error:
            self._problem(entry.seq, f"does not make sense: {type(error).__name__}: {error}")
        self.last = entry
        return entry

    def _problem(self, seq: int | None, what: str) -> None:
        self.problems.append(Fault(self.dataset, seq, what))

    def _check_place(self, entry: Entry, position: int) -> None:
        if entry.seq != position:
            self._problem(position, f"was moved here from position {entry.seq}")
        if entry.dataset != self.dataset:
            self._problem(position, f"belongs to the dataset {entry.dataset!r}")
        if self.genesis is None:
            if entry.kind != "genesis" or entry.previous != NO_HASH or entry.genesis != NO_HASH:
                self._problem(position, "the chain does not begin here")
            self.genesis = entry
            return
        if entry.kind == "genesis":
            self._problem(position, "the chain begins a second time")
        if entry.ledger != self.genesis.ledger or entry.genesis != self.genesis.hash:
            self._problem(position, "belongs to another chain")
        if self.last is None or entry.previous != self.last.hash:
            self._problem(position, "does not follow the entry before it")

    def _check_roll(self, entry: Entry) -> None:
        """Datasets are only ever added; the ledger itself compares the hashes."""
        if entry.roll is None:
            return
        before = max((roll.count for roll in self.rolls), default=0)
        if entry.roll.count < before:
            self._problem(entry.seq, f"knows {entry.roll.count} datasets, one before it {before}")
        if entry.kind != "genesis":
            self.rolls.setdefault(entry.roll, entry.seq)

    # --- what entries mean -------------------------------------------------------------

    def _take_genesis(self, entry: Entry) -> None:
        opened = Filter.from_state(entry.content["opened"])
        if opened.relation.value != entry.content["relation"] or opened.charges:
            self._problem(entry.seq, "the budget was not opened as a new one")
        self._filters[DATASET] = opened

    def _take_budget(self, entry: Entry) -> None:
        scope, name = entry.content["scope"], entry.content["name"]
        label = format_label(scope, name)
        if scope not in SCOPES or label in self._filters:
            self._problem(entry.seq, f"the budget {label!r} cannot be opened here")
        opened = Filter.from_state(entry.content["opened"])
        if opened.charges or opened.relation is not self._filters[DATASET].relation:
            self._problem(entry.seq, f"the budget {label!r} was not opened as a new one")
        self._filters[label] = opened

    def _take_charge(self, entry: Entry) -> None:
        content = entry.content
        self._charges.add(entry.seq)
        self._open_charges.add(entry.seq)
        key = content.get("key")  # the first version had none
        if key is not None:
            if key in self.keys:
                self._problem(entry.seq, f"the key {key!r} was charged before")
            self.keys[key] = entry.seq
        self._check_required(entry)
        self._spend(entry)

    def _spend(self, entry: Entry) -> None:
        """Charge the budgets that a charge touches, and compare with the sums that it noted."""
        content = entry.content
        labels = [DATASET] + [
            format_label(scope, content[scope]) for scope in SCOPES if content[scope] is not None
        ]
        touched = [label for label in labels if label in self._filters]
        if sorted(content["spent"]) != sorted(touched):
            self._problem(entry.seq, "does not name the budgets that it had to charge")
        old = read_old(content["loss"])
        if old.reason is not None and self._take_old(entry, old.loss, old.reason, touched):
            return
        loss: Loss = old.loss  # also where 0.1 wrote it in a form that is refused today
        claim = None
        if content["delta"] is not None:
            claim = self._claim(entry, loss, read_fraction(content["delta"], "delta"))
            if content.get("by_lane") is not True:
                # Version 0.1 charged every sum with the claim alone.
                loss, claim = claim, None
        for label in touched:
            try:
                self._filters[label].charge(loss, claim=claim)
            except BudgetExceeded as error:
                self._problem(entry.seq, f"the budget {label!r} was exceeded: {error}")
            self._compare(entry, label, content["spent"].get(label, {}))
        self.spent.update(content["spent"])

    def _take_old(self, entry: Entry, loss: Loss, reason: str, touched: Sequence[str]) -> bool:
        """Take a charge that 0.1 read too low, with the sums that it noted; false for others."""
        content = entry.content
        delta = None if content["delta"] is None else read_fraction(content["delta"], "delta")
        right = _cost_now(loss, delta)
        grown = {label: self._growth(label, content["spent"].get(label, {})) for label in touched}
        missing = {label: self._missing(label, right, grown[label]) for label in touched}
        short = [
            (name, float(grown[label][name]), float(grown[label][name] + amount))
            for label in touched
            for name, amount in missing[label].items()
            if amount > grown[label][name] * _AGREE
        ]
        if right is None:
            sums = [(name, float(by)) for at in touched for name, by in grown[at].items()]
            short = [(*sums[0], math.inf)] if sums else []
        if not short:
            return False
        for label in touched:
            amounts = dict(grown[label])
            if min(amounts.values()) < 0:
                self._problem(entry.seq, f"the sums of {label!r} are below what was spent")
            delta_spent = amounts.pop("delta", Fraction(0))
            self._filters[label].raise_sums(amounts, delta=delta_spent, charges=1)
            self._compare(entry, label, content["spent"].get(label, {}))
        self.spent.update(content["spent"])
        name, charged, costs = short[0]
        words = "epsilon" if name == "basic" else name
        found = Undercharge(entry.seq, words, charged, costs, reason, missing)
        self.undercharged[entry.seq] = found
        self.problems.append(Fault(self.dataset, entry.seq, str(found), undercharged=True))
        return True

    def _growth(self, label: str, noted: Mapping[str, str]) -> dict[str, Fraction]:
        """What a charge added to the sums of a budget, by its own note."""
        now = self._filters[label].spent
        return {
            name: read_fraction(noted[name], label) - now[name] for name in now if name in noted
        }

    def _missing(
        self, label: str, right: Loss | None, grown: Mapping[str, Fraction]
    ) -> dict[str, Fraction]:
        """What a charge should have added to the sums of a budget besides."""
        costs = {} if right is None else self._filters[label].costs(right)
        return {n: max(costs[n] - grown[n], Fraction(0)) for n in costs if n in grown}

    def _take_correction(self, entry: Entry) -> None:
        found = self.undercharged.pop(entry.content["charge"], None)
        if found is None:
            self._problem(entry.seq, "corrects an entry that needs no correction")
            return
        for label, amounts in found.missing.items():
            self._filters[label].raise_sums(amounts)
            self._compare(entry, label, entry.content["spent"].get(label, {}))
        self.spent.update(entry.content["spent"])
        fault = Fault(self.dataset, found.seq, str(found), undercharged=True)
        self.problems.remove(fault)
        self.notes.append(replace(fault, what=f"{fault.what}; corrected by entry {entry.seq}"))

    def _take_restored(self, entry: Entry) -> None:
        """Spend again what was forgotten when a backup was restored, as the entry says."""
        how, before = entry.content["how"], len(self.problems)
        if how == "receipts":
            for charge in entry.content["charges"]:
                self._spend(replace(entry, content=charge))
            stated = f"{len(entry.content['charges'])} charges were spent again from receipts"
        elif how == "loss":
            for budget in self._filters.values():
                spend_or_close(budget, from_json(entry.content["loss"]))
            stated = "a declared loss was spent for what is forgotten"
        elif how == "closed":
            for budget in self._filters.values():
                budget.raise_sums({})
            stated = "what was spent since is not known, and all budgets are closed"
        else:
            raise SchemaError(f"unknown way of restoring: {how!r}")
        for label in self._filters:
            self._compare(entry, label, entry.content["spent"].get(label, {}))
        self.spent.update(entry.content["spent"])
        if len(self.problems) == before:
            what = (
                f"restored from a backup of {entry.content['backup'] or 'unknown date'}: {stated}"
            )
            self.notes.append(Fault(self.dataset, entry.seq, what))

    def spend_again(self, receipts: Iterable[Entry]) -> None:
        """Spend charges that follow the chain, in order; raise if one between them is missing."""
        for entry in receipts:
            if entry.kind != "charge":
                continue
            found = len(self.problems), len(self.notes)
            self._spend(entry)
            if (len(self.problems), len(self.notes)) != found:
                raise LedgerError(
                    f"{self.dataset}: the sums after entry {entry.seq} are not those that the "
                    "receipts before it lead to: a receipt is missing, or a budget was opened "
                    "since; give all receipts, or the loss that was spent since"
                )

    def _take_outcome(self, entry: Entry) -> None:
        charge = entry.content["charge"]
        if entry.content["outcome"] not in ("completed", "failed"):
            self._problem(entry.seq, "is neither completed nor failed")
        if charge not in self._charges:
            self._problem(entry.seq, f"is the outcome of entry {charge}, which is no charge")
        elif charge not in self._open_charges:
            self._problem(entry.seq, f"is a second outcome of entry {charge}")
        self._open_charges.discard(charge)

    def _take_publication(self, entry: Entry) -> None:
        charge, digest = entry.content["charge"], entry.content["certificate"]
        if charge not in self._charges:
            self._problem(entry.seq, f"publishes entry {charge}, which is no charge")
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            self._problem(entry.seq, "does not hold the digest of a certificate")

    def _check_required(self, entry: Entry) -> None:
        required = self.genesis.content.get("required", []) if self.genesis else []
        for scope in required:
            name = entry.content[scope]
            if name is None or format_label(scope, name) not in self._filters:
                self._problem(entry.seq, f"was charged without the required budget of its {scope}")

    def _claim(self, entry: Entry, loss: Loss, delta: Fraction) -> ApproxDP:
        """What a plan was read as; never below what can be proved of it today."""
        claim = from_json(entry.content["read_as"])
        if not isinstance(claim, ApproxDP):
            raise SchemaError("the plan was not read at its own delta")
        if claim.claimed_delta != delta or claim.relation is not loss.relation:
            self._problem(entry.seq, "the plan was not read at its own delta")
        elif self._is_short(entry, claim, loss, delta):
            self._problem(entry.seq, "the plan costs more than it was charged")
        return claim

    def _is_short(self, entry: Entry, claim: ApproxDP, loss: Loss, delta: Fraction) -> bool:
        """Whether a claim is below what the plan costs; 0.1 may have read it a little lower."""
        if entry.content.get("by_lane") is not True:
            return claim.claimed_epsilon < Fraction(_certified_lower(loss, float(delta)))
        right = _cost_now(loss, delta)
        epsilon = right.claimed_epsilon if isinstance(right, ApproxDP) else None
        return epsilon is None or claim.claimed_epsilon < epsilon * (1 - _AGREE)

    def _compare(self, entry: Entry, label: str, noted: Mapping[str, Any]) -> None:
        now = self._filters[label].spent
        then = {name: read_fraction(text, label) for name, text in noted.items()}
        if then == now:
            return
        if then.keys() <= now.keys() and all(then[name] >= now[name] for name in then):
            what = f"was charged to {label!r} at more than this version asks"
            self.notes.append(Fault(self.dataset, entry.seq, what))
        else:
            self._problem(entry.seq, f"the sums of {label!r} are below what was spent")

    def finished_spent(self) -> dict[str, dict[str, str]]:
        """The last sums that the chain notes for every budget it opened."""
        zero = {label: dict.fromkeys(budget.spent, "0") for label, budget in self._filters.items()}
        return zero | self.spent

    @property
    def budgets(self) -> dict[str, Filter]:
        """The replayed budgets, by label, which is one for each (scope, name) on the chain."""
        return self._filters


def spend_or_close(budget: Filter, loss: Loss) -> None:
    """Spend a loss that was spent already; a budget that cannot pay for it is closed."""
    try:
        budget.charge(loss)
    except BudgetExceeded:
        budget.raise_sums({})


@lru_cache(maxsize=256)
def _cost_now(loss: Loss, delta: Fraction | None) -> Loss | None:
    """What a loss of 0.1 is charged as today, or None if it has no finite cost at its delta."""
    try:
        return loss if delta is None else plan_claim(loss, delta)
    except NotApplicable:
        return None


@lru_cache(maxsize=256)
def _certified_lower(loss: Loss, delta: float) -> float:
    return loss.epsilon_bounds(delta=delta).lower


# --- receipts and exports ----------------------------------------------------------------


def check_receipt(
    document: Mapping[str, Any] | str, *, receipts: Iterable[Mapping[str, Any]] = ()
) -> list[Fault]:
    """Return what is wrong with a receipt or an export, found offline; an empty list if nothing is.

    For an export this replays the chain with fresh budgets, and asks that every one of
    ``receipts`` is on it. For a receipt it compares the entry with its hash. A document of
    another kind is a ``SchemaError``.
    """
    body = read_document(document) if isinstance(document, str) else document
    if not isinstance(body, Mapping):
        raise InvalidValue("document", printable(document), "a receipt or an export, as JSON")
    schema, fields = body.get("schema"), set(body)
    version = body.get("version")
    known = type(version) is int and version == DOCUMENT_VERSION
    if not known or schema not in (RECEIPT, EXPORT):
        raise SchemaError(f"schema {schema!r}, version {version!r}: not a receipt")
    if schema == RECEIPT:
        if fields != {"schema", "version", "hash", "entry"}:
            raise SchemaError("receipt: the fields are not those of a receipt")
        return _check_entry(body)
    if fields != {"schema", "version", "dataset", "chain"} or not isinstance(body["chain"], list):
        raise SchemaError("receipt: the fields are not those of an export")
    replay = Replay(str(body["dataset"]))
    for position, link in enumerate(body["chain"]):
        if not isinstance(link, Mapping) or set(link) != {"hash", "entry"}:
            raise SchemaError(f"receipt: chain[{position}] is not an entry with its hash")
        try:
            text = canonical(link["entry"])
        except SchemaError as error:
            raise SchemaError(f"receipt: chain[{position}]: {error}") from None
        replay.feed(text, str(link["hash"]), position=position)
    if replay.genesis is None:
        return [Fault(replay.dataset, None, "the chain is empty")]
    return replay.problems + find_missing(replay, receipts)


def _check_entry(receipt: Mapping[str, Any]) -> list[Fault]:
    try:
        entry = parse_entry(canonical(receipt["entry"]))
    except SchemaError as error:
        return [Fault("receipt", None, f"the entry cannot be read: {error}")]
    if entry.hash == receipt["hash"]:
        return []
    return [Fault(entry.dataset, entry.seq, "the entry does not have the hash of the receipt")]


def find_missing(replay: Replay, receipts: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Receipts for this chain that are not on it."""
    problems = []
    for receipt in receipts:
        faults = check_receipt(receipt)
        if receipt.get("schema") != RECEIPT:
            raise SchemaError("receipt: expected the receipt of one entry")
        entry = None if faults else parse_entry(canonical(receipt["entry"]))
        if entry is None:
            problems += faults
        elif replay.genesis is None or entry.ledger != replay.genesis.ledger:
            problems.append(
                Fault(entry.dataset, entry.seq, "the receipt was issued by another ledger")
            )
        elif entry.dataset != replay.dataset:
            problems.append(Fault(entry.dataset, entry.seq, "the receipt is of another dataset"))
        elif entry.seq >= len(replay.hashes) or replay.hashes[entry.seq] != entry.hash:
            what = (
                "the receipt is intact, but its entry is no longer on the chain: "
                f"entries were removed or replaced (the chain has {len(replay.hashes)})"
            )
            problems.append(Fault(entry.dataset, entry.seq, what))
    return problems


def check_receipts(receipts: object) -> list[Mapping[str, Any]]:
    """Receipts as :meth:`discreet.ledger.Ledger.receipt` gives them."""
    expected = "a sequence of receipts"
    if isinstance(receipts, str | bytes | Mapping) or not isinstance(receipts, Iterable):
        raise InvalidValue("receipts", printable(receipts), expected)
    documents = list(receipts)
    for document in documents:
        if not isinstance(document, Mapping):
            raise InvalidValue("receipts", printable(document), expected)
    return documents


# --- a whole ledger ----------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """The verdict on a ledger: what was looked at, and every problem that was found.

    ``notes`` are no problems: charges that a newer version would have read a little lower.
    """

    datasets: int
    entries: int
    problems: tuple[Fault, ...]
    notes: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_store(store: Store, *, receipts: Iterable[Mapping[str, Any]] = ()) -> Verification:
    """Replay every chain of a ledger; see :meth:`discreet.ledger.Ledger.verify`."""
    wanted = list(receipts)
    problems = [Fault("ledger", None, fault) for fault in store.faults()]
    if problems:
        return Verification(0, 0, tuple(problems), ())
    replays: dict[int, Replay] = {}
    try:
        with store.reading() as session:
            problems += _verify_tables(store, session, replays)
    except (LedgerCorrupt, LedgerUnconfirmed) as error:
        problems.append(Fault("ledger", None, str(error)))
    replayed = [replay for _, replay in sorted(replays.items())]
    problems += [problem for replay in replayed for problem in replay.problems]
    notes = [note for replay in replayed for note in replay.notes]
    for receipt in wanted:
        problems += _check_on_chain(receipt, {replay.dataset: replay for replay in replayed})
    entries = sum(len(replay.hashes) for replay in replayed)
    return Verification(len(replays), entries, tuple(problems), tuple(notes))


def _verify_tables(store: Store, session: Session, replays: dict[int, Replay]) -> list[Fault]:
    """Replay every dataset into ``replays``, and say what is wrong with the ledger as a whole."""
    odd = store.differences(session)
    identity = _rows.read_identity(session)
    read_answers_name(session)
    states: dict[int, dict[tuple[str, str], str]] = {}
    for number, scope, name, state in _rows.read_budget_rows(session):
        if (scope, name) in states.setdefault(number, {}):
            odd.append(f"the budget {format_label(scope, name)!r} of dataset {number} has two rows")
        states[number][scope, name] = state
    names = [str(row[0]) for row in session.rows("SELECT name FROM meta ORDER BY name")]
    if [name for name in names if name != "backup"] != ["answers", "ledger", "roll", "schema"]:
        odd.append(f"the ledger describes itself by {', '.join(names)}")
    for row in _rows.read_datasets(session):
        if row.number in replays:
            odd.append(f"dataset number {row.number} is there twice")
        replay = _replay(session, row, identity.ledger)
        _check_memory(row, states.pop(row.number, {}), replay)
        replays[row.number] = replay
    odd += [f"budgets of a dataset number {number} are orphans" for number in sorted(states)]
    problems = [Fault("ledger", None, what) for what in odd]
    return problems + _lost_datasets(session, set(replays)) + _check_rolls(replays, identity.roll)


def _replay(session: Session, dataset: _rows.DatasetRow, identity: str) -> Replay:
    name, replay = dataset.name, Replay(dataset.name)
    try:
        _feed(session, dataset.number, replay)
    except LedgerCorrupt as error:
        replay.problems.append(Fault(name, None, str(error)))
    if replay.genesis is None:
        replay.problems.append(Fault(name, None, "the chain is empty"))
    elif replay.genesis.ledger != identity:
        replay.problems.append(Fault(name, 0, "the chain was made by another ledger"))
    elif replay.genesis.content.get("number") != dataset.number:
        replay.problems.append(Fault(name, 0, "the dataset has another number"))
    return replay


def _feed(session: Session, number: int, replay: Replay) -> None:
    for row in _rows.read_entries(session, number):
        entry = replay.feed(row.text, row.hash, position=row.seq)
        if entry is None:
            continue
        key = entry.content.get("key") if entry.kind == "charge" else None
        refers = entry.content.get("charge") if entry.kind == "outcome" else None
        if (row.kind, row.key, row.refers) != (entry.kind, key, refers):
            what = "the index of the entry was changed"
            replay.problems.append(Fault(replay.dataset, row.seq, what))


def _check_memory(
    row: _rows.DatasetRow, states: Mapping[tuple[str, str], str], replay: Replay
) -> None:
    """The end of the chain and the sums, which the store keeps for speed."""
    if replay.genesis is None or replay.last is None:
        return
    name = replay.dataset
    ends = replay.genesis.hash, replay.last.seq, replay.last.hash
    if (row.genesis, row.seq, row.hash) != ends:
        what = f"the chain ends at entry {replay.last.seq}, the ledger remembers {row.seq}"
        replay.problems.append(Fault(name, None, f"{what}: entries were removed or added"))
    noted = replay.finished_spent()
    # One row for each label: a second one with another name would hide the first.
    labels = {format_label(*key): key for key in states}
    known = (DATASET, "") in states and all(key[0] in (DATASET, *SCOPES) for key in states)
    if not known or len(labels) != len(states) or set(labels) != set(noted) | set(replay.budgets):
        replay.problems.append(Fault(name, None, "the budgets are not those of the chain"))
    for label in sorted(set(labels) & set(noted) & set(replay.budgets)):
        key = (DATASET, "") if label == DATASET else labels[label]
        if key not in states:
            continue
        try:
            kept = _rows.read_filter(states[key], key)
        except LedgerCorrupt as error:
            replay.problems.append(Fault(name, None, f"the budget {label!r}: {error}"))
            continue
        replayed = replay.budgets[label]
        settings = {"epsilon", "delta", "reserved", "relation", "kind", "orders", "charges"}
        mine, theirs = kept.state(), replayed.state()
        caps = [[lane["budget"] for lane in state["lanes"]] for state in (mine, theirs)]
        if (
            write_sums(kept) != noted[label]
            or caps[0] != caps[1]
            or any(mine[field] != theirs[field] for field in settings)
            or write_state(kept) != states[key]
        ):
            what = f"the sums or settings remembered for {label!r} are not those of the chain"
            replay.problems.append(Fault(name, None, what))


def _lost_datasets(session: Session, numbers: set[int]) -> list[Fault]:
    problems = [
        Fault("ledger", None, f"dataset number {number} was removed")
        for number in range(1, len(numbers) + 1)
        if number not in numbers
    ]
    owners = {row[0] for row in session.rows("SELECT DISTINCT dataset FROM entries")}
    orphans = (
        f"entries of a dataset number {n} are orphans" for n in sorted(owners - numbers, key=str)
    )
    return problems + [Fault("ledger", None, what) for what in orphans]


def _check_rolls(replays: Mapping[int, Replay], roll: Roll) -> list[Fault]:
    """Every dataset that was ever opened is still there, as every entry since then says."""
    called = [EMPTY_ROLL]
    for _, replay in sorted(replays.items()):
        called.append(called[-1].append(replay.genesis.hash if replay.genesis else NO_HASH))
    problems = []
    if roll != called[-1]:
        what = f"the ledger has opened {roll.count} datasets and holds {len(replays)}"
        what += ": a dataset was removed, added or replaced"
        problems.append(Fault("ledger", None, what))
    for number, replay in sorted(replays.items()):
        opened = replay.genesis.roll if replay.genesis else None
        if opened is not None and opened.count != number - 1:
            what = f"was opened as dataset {opened.count + 1} and is now {number}"
            problems.append(Fault(replay.dataset, 0, what))
        for noted, seq in [*replay.rolls.items(), *([(opened, 0)] if opened else [])]:
            known = noted.count < len(called) and called[noted.count] == noted
            if not known or (seq > 0 and noted.count < number):
                what = f"was written when the ledger had {noted.count} datasets, and not these"
                problems.append(Fault(replay.dataset, seq, what))
    return problems


def _check_on_chain(receipt: Mapping[str, Any], replays: Mapping[str, Replay]) -> list[Fault]:
    faults = check_receipt(receipt)
    if faults:
        return faults
    entry = receipt.get("entry")
    if not isinstance(entry, Mapping):
        raise SchemaError("receipt: expected the receipt of one entry")
    replay = replays.get(str(entry["dataset"]))
    if replay is None:
        what = "the receipt is intact, but its dataset is gone from the ledger"
        return [Fault(str(entry["dataset"]), entry["seq"], what)]
    return find_missing(replay, [receipt])
