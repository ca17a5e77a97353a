"""Replaying a chain: every hash, every position, every budget, from the first entry on.

Nothing that the store remembers beside the entries is believed. The replay opens fresh filters
from the settings on the chain and spends every charge again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from discreet.errors import BudgetExceeded, DiscreetError, NotApplicable, SchemaError
from discreet.ledger.budgets import DATASET, SCOPES, label_of
from discreet.ledger.entries import DIGEST, NO_HASH, Entry, Roll, hash_of, parse_entry
from discreet.privacy import ApproxDP, Filter, Loss, from_json, plan_claim, read_fraction, read_old

__all__ = ["Problem", "Replay", "Undercharge"]

_LONGEST_GAP = 1_000_000
# Another version may read the same loss a little differently.
_AGREE = Fraction(1, 10**6)
_NONSENSE = (DiscreetError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Problem:
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
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []
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
            # A position beyond all reason was written by nobody: it is not counted up to.
            self.hashes += [NO_HASH] * min(position - len(self.hashes), _LONGEST_GAP)
        try:
            entry = parse_entry(text)
        except (SchemaError, UnicodeEncodeError) as error:
            self._problem(position, f"cannot be read: {error}")
            self.hashes.append(hash_of(text) if text.isascii() else NO_HASH)
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
        self.problems.append(Problem(self.dataset, seq, what))

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
        label = label_of(scope, name)
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
        labels = [DATASET] + [
            label_of(scope, content[scope]) for scope in SCOPES if content[scope] is not None
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
        self.problems.append(Problem(self.dataset, entry.seq, str(found), undercharged=True))
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
        told = Problem(self.dataset, found.seq, str(found), undercharged=True)
        self.problems.remove(told)
        self.notes.append(replace(told, what=f"{told.what}; corrected by entry {entry.seq}"))

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
            if name is None or label_of(scope, name) not in self._filters:
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
            self.notes.append(Problem(self.dataset, entry.seq, what))
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
