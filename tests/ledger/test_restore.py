"""A restored backup has forgotten charges: they are told, or the budgets are closed."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from discreet.errors import BudgetExceeded, InvalidValue, LedgerCorrupt, LedgerError
from discreet.ledger import Ledger, check_receipt
from discreet.privacy import ApproxDP, Gaussian, PureDP
from ledger.tampering import query, tamper

TENTH = PureDP("0.1")


@pytest.fixture
def book(file: Path) -> Iterator[Ledger]:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1, unit="person")
        ledger.create_budget("census", analyst="ann", epsilon="0.5")
        ledger.create_dataset("survey", epsilon=2, delta="1e-5")
        with ledger.charge("census", TENTH, analyst="ann"):
            pass
        yield ledger


@pytest.fixture
def copy(book: Ledger, tmp_path: Path) -> Path:
    """A backup; three charges follow it."""
    book.backup(tmp_path / "copy")
    return tmp_path / "copy"


def charge_more(book: Ledger) -> list[dict[str, Any]]:
    with book.charge("census", TENTH, analyst="ann", key="k") as first:
        first.record(1)
    second = book.charge("census", PureDP("0.2"))
    third = book.charge("survey", Gaussian(40.0), delta="1e-6")
    fourth = book.charge("survey", PureDP("0.1"))
    return [charge.receipt() for charge in (first, second, third, fourth)]


def sums(ledger: Ledger) -> dict[str, dict[str, dict[str, Fraction]]]:
    return {
        name: {view.label: dict(view.spent) for view in ledger.show(name).budgets}
        for name in ledger.datasets()
    }


def test_receipts_are_spent_again_and_the_sums_are_those_of_the_lost_ledger(
    book: Ledger, copy: Path
) -> None:
    receipts = charge_more(book)
    with Ledger.restore(copy, receipts=receipts[::-1]) as restored:
        assert sums(restored) == sums(book)
        for name in ("census", "survey"):
            view = restored.show(name)
            assert view.restored == (view.entries - 1,)
            assert [b.charges for b in view.budgets] == [b.charges for b in book.show(name).budgets]
        verdict = restored.verify()
        assert verdict.ok, verdict.problems
        assert len(verdict.notes) == 2
        assert "2 charges were spent again from receipts" in str(verdict.notes[0])
        restored.charge("census", TENTH, analyst="ann", key="k")  # paid again, never free
        assert restored.show("census").budget.spent["basic"] == Fraction(5, 10)
        assert restored.verify().ok
        assert check_receipt(restored.export("census")) == []


def test_a_receipt_that_is_missing_between_is_noticed(book: Ledger, copy: Path) -> None:
    receipts = charge_more(book)
    with pytest.raises(LedgerError, match="a receipt is missing"):
        Ledger.restore(copy, receipts=receipts[1:])
    with Ledger.open(copy, read_only=True) as ledger:
        assert ledger.show("census").restored == ()
        assert ledger.verify().ok


def test_receipts_of_another_chain_are_refused(book: Ledger, copy: Path, tmp_path: Path) -> None:
    with Ledger.open(copy, read_only=True) as old:
        fits = old.receipt("census", 2)
    forged = {**fits, "entry": {**fits["entry"], "at": "2020"}}
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger.restore(copy, receipts=[forged])
    with pytest.raises(LedgerError, match="an export"):
        Ledger.restore(copy, receipts=[book.export("census")])
    # Two backups that went on apart have two entries in one place.
    charge_more(book)
    book.backup(tmp_path / "later")
    with Ledger.restore(copy, spent={"census": TENTH, "survey": TENTH}) as apart:
        other = apart.charge("census", TENTH).receipt()
    with pytest.raises(LedgerError, match="is not of this chain"):
        Ledger.restore(tmp_path / "later", receipts=[other])


def test_a_declared_loss_is_spent_from_every_budget(book: Ledger, copy: Path) -> None:
    losses = {"census": PureDP("0.3"), "survey": ApproxDP("1/2", "1e-6")}
    with Ledger.restore(copy, spent=losses) as restored:
        assert sums(restored)["census"]["dataset"]["basic"] == Fraction(4, 10)
        assert sums(restored)["census"]["analyst:ann"]["basic"] == Fraction(4, 10)
        assert restored.show("survey").budget.spent["delta"] == Fraction(1, 10**6)
        assert restored.verify().ok
        assert "a declared loss" in str(restored.verify().notes[0])


def test_a_budget_that_cannot_pay_what_was_declared_is_closed(book: Ledger, copy: Path) -> None:
    losses = {"census": PureDP("0.45"), "survey": TENTH}
    with Ledger.restore(copy, spent=losses) as restored:
        whole, ann = restored.show("census").budgets
        assert not whole.closed
        assert ann.closed
        restored.charge("census", TENTH)
        with pytest.raises(BudgetExceeded):
            restored.charge("census", PureDP("1/1000000"), analyst="ann")
        assert restored.verify().ok


def test_what_nothing_is_told_of_is_closed(book: Ledger, copy: Path) -> None:
    with Ledger.restore(copy, spent={"survey": TENTH}) as restored:
        assert all(view.closed for view in restored.show("census").budgets)
        for analyst in (None, "ann"):
            with pytest.raises(BudgetExceeded):
                restored.charge("census", PureDP("1/1000000"), analyst=analyst)
        restored.charge("survey", TENTH)
        verdict = restored.verify()
        assert verdict.ok
        assert "all budgets are closed" in str(verdict.notes[0])
    with Ledger.open(copy) as again, pytest.raises(BudgetExceeded):
        again.charge("census", PureDP("1/1000000"))


def test_a_copy_without_a_mark_is_closed_by_nobody(book: Ledger, file: Path) -> None:
    with pytest.raises(LedgerError, match="not marked as a backup"):
        Ledger.restore(file)
    with pytest.raises(InvalidValue, match="spent"):
        Ledger.restore(file, spent={"nobody": TENTH})
    with Ledger.restore(file, spent={"census": TENTH, "survey": TENTH}) as told:
        assert told.show("census").budget.spent["basic"] == Fraction(2, 10)


@pytest.mark.parametrize(
    "change",
    [
        "replace(text, '\"0.3\"', '\"0.1\"')",
        "replace(text, '3/10', '1/10')",
        'replace(text, \'"how":"loss"\', \'"how":"other"\')',
    ],
)
def test_an_entry_that_tells_too_little_is_found(copy: Path, change: str) -> None:
    losses = {"census": PureDP("0.3"), "survey": PureDP("0.3")}
    with Ledger.restore(copy, spent=losses) as restored:
        entry = "kind = 'restored' AND dataset = 1"
        [(before,)] = query(str(copy), f"SELECT text FROM entries WHERE {entry}")
        tamper(str(copy), f"UPDATE entries SET text = {change} WHERE {entry}")
        [(after,)] = query(str(copy), f"SELECT text FROM entries WHERE {entry}")
        assert restored.verify().ok is (before == after)


def test_an_unsound_backup_is_not_restored(copy: Path) -> None:
    tamper(str(copy), "UPDATE entries SET text = replace(text, '1/10', '1/20') WHERE seq = 2")
    with pytest.raises(LedgerCorrupt, match="nothing was restored"):
        Ledger.restore(copy, spent={"census": TENTH, "survey": TENTH})
