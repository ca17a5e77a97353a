"""A state machine against a slow and obvious model: plain sums of fractions in dictionaries."""

import itertools
import shutil
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from discreet.errors import BudgetExceeded, KeyConflict, LedgerExists
from discreet.ledger import Ledger, check_receipt
from discreet.ledger import _ledger as ledger_module
from discreet.ledger._budget import charge_all
from discreet.privacy import ApproxDP, PureDP

EPSILONS = st.sampled_from([Fraction(n, 30) for n in (1, 2, 3, 7, 10, 31)])
DELTAS = st.sampled_from([Fraction(0), Fraction(1, 1000), Fraction(1, 300)])
ANALYSTS = st.sampled_from([None, "ann", "bob"])
PURPOSES = st.sampled_from([None, "count"])
KEYS = st.sampled_from([None, None, None, "k1", "k2", "k3"])


class LedgerMachine(RuleBasedStateMachine):
    """Basic budgets: a charge fits if every sum stays within its cap, and that is all."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.place = place
        self.book = Ledger.create(self.place)
        self.caps: dict[str, tuple[Fraction, Fraction]] = {}
        self.sums: dict[str, tuple[Fraction, Fraction]] = {}
        self.keys: dict[str, tuple[Any, int]] = {}
        self.outcomes: dict[int, str] = {}
        self.receipts: list[Any] = []
        self.copies = 0

    @initialize(epsilon=st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(2)]), delta=DELTAS)
    def open_dataset(self, epsilon: Fraction, delta: Fraction) -> None:
        self.book.create_dataset("d", epsilon=epsilon, delta=delta, kind="basic")
        self.caps["dataset"] = (epsilon, delta)
        self.sums["dataset"] = (Fraction(0), Fraction(0))

    @rule(analyst=st.sampled_from(["ann", "bob"]), epsilon=EPSILONS, delta=DELTAS)
    def open_budget(self, analyst: str, epsilon: Fraction, delta: Fraction) -> None:
        label = f"analyst:{analyst}"
        if label in self.caps:
            with pytest.raises(LedgerExists):
                self.book.create_budget("d", analyst=analyst, epsilon=epsilon, kind="basic")
            return
        self.book.create_budget("d", analyst=analyst, epsilon=epsilon, delta=delta, kind="basic")
        self.caps[label], self.sums[label] = (epsilon, delta), (Fraction(0), Fraction(0))

    @rule(
        epsilon=EPSILONS,
        delta=DELTAS,
        analyst=ANALYSTS,
        purpose=PURPOSES,
        key=KEYS,
        body=st.sampled_from(["completed", "failed", "open"]),
    )
    def charge(
        self,
        epsilon: Fraction,
        delta: Fraction,
        analyst: str | None,
        purpose: str | None,
        key: str | None,
        body: str,
    ) -> None:
        loss = PureDP(epsilon) if delta == 0 else ApproxDP(epsilon, delta)
        request = (loss, analyst, purpose)
        ask = {"analyst": analyst, "purpose": purpose, "key": key}
        if key in self.keys:
            known, seq = self.keys[key]
            if known != request:
                with pytest.raises(KeyConflict):
                    self.book.charge("d", loss, **ask)
                return
            again = self.book.charge("d", loss, **ask)
            assert again.replayed
            assert (again.seq, again.outcome) == (seq, self.outcomes[seq])
            return
        labels = [label for label in ("dataset", f"analyst:{analyst}") if label in self.caps]
        after = {
            label: (self.sums[label][0] + epsilon, self.sums[label][1] + delta) for label in labels
        }
        short = [
            label
            for label in labels
            if after[label][0] > self.caps[label][0] or after[label][1] > self.caps[label][1]
        ]
        if short:
            with pytest.raises(BudgetExceeded) as refusal:
                self.book.charge("d", loss, **ask)
            assert refusal.value.budget == short[0]
            return
        charge = self.book.charge("d", loss, **ask)
        assert not charge.replayed
        self.sums |= after
        self.outcomes[charge.seq] = body
        self.receipts.append(charge.receipt())
        if key is not None:
            self.keys[key] = request, charge.seq
        if body == "completed":
            with charge:
                pass
        elif body == "failed":
            with pytest.raises(OSError, match="body"), charge:
                raise OSError("body")

    @rule()
    def reopen(self) -> None:
        self.book.close()
        self.book = Ledger.open(self.place)

    @precondition(lambda self: self.copies < 2 and "://" not in self.place)
    @rule()
    def go_on_with_a_copy(self) -> None:
        self.copies += 1
        copy = self.directory / f"copy{self.copies}"
        self.book.close()
        shutil.copytree(self.place, copy)
        self.place, self.book = str(copy), Ledger.open(copy)

    @invariant()
    def sums_agree(self) -> None:
        if not self.caps:
            return
        shown = {view.label: view for view in self.book.show("d").budgets}
        assert set(shown) == set(self.caps)
        for label, view in shown.items():
            assert (view.spent["basic"], view.spent["delta"]) == self.sums[label]
            assert view.remaining["basic"] == self.caps[label][0] - self.sums[label][0]
        rows = self.book.history("d")
        assert {row.seq: row.outcome for row in rows} == self.outcomes

    def teardown(self) -> None:
        if self.caps:
            verdict = self.book.verify(receipts=self.receipts)
            assert verdict.ok, verdict.problems
            assert verdict.notes == ()
            assert check_receipt(self.book.export("d"), receipts=self.receipts) == []
        self.book.close()
        shutil.rmtree(self.directory)


def run_machine(place: str, **more: Any) -> None:
    numbers = itertools.count()
    run_state_machine_as_test(
        lambda: LedgerMachine(f"{place}_{next(numbers)}"),
        settings=settings(
            max_examples=10 if "://" in place else 25,
            stateful_step_count=25,
            suppress_health_check=[HealthCheck.too_slow],
            **more,
        ),
    )


@pytest.mark.slow
def test_the_ledger_does_what_the_model_does(place: str) -> None:
    run_machine(place)


def only_the_dataset(budgets: Any, loss: Any, claim: Any) -> None:
    charge_all(budgets[:1], loss, claim)


def strictly_below_the_cap(budgets: Any, loss: Any, claim: Any) -> None:
    charge_all(budgets, loss, claim)
    if any(budget.remaining()["basic"] == 0 for _, budget in budgets):
        raise BudgetExceeded("exactly exhausted", budget=budgets[0][0])


def forgotten_deltas(budgets: Any, loss: Any, claim: Any) -> None:
    pure = PureDP(loss.claimed_epsilon) if isinstance(loss, ApproxDP) else loss
    charge_all(budgets, pure, claim)


@pytest.mark.parametrize("bug", [only_the_dataset, strictly_below_the_cap, forgotten_deltas])
def test_the_model_finds_planted_bugs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Any
) -> None:
    monkeypatch.setattr(ledger_module, "charge_all", bug)
    with pytest.raises((AssertionError, BudgetExceeded, pytest.fail.Exception)):
        run_machine(str(tmp_path / "ledger"), phases=[Phase.generate])
