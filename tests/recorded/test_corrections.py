"""What version 0.1 charged too little is found, charged and listed; nothing else changes."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import pytest

from cli.conftest import Run
from discreet.errors import BudgetExceeded
from discreet.ledger import Ledger, check_receipt
from discreet.privacy import PureDP
from discreet.report import recheck
from recorded.version_0_1 import HERE, LOSSES, open_ledger, write_ledger

AFFECTED = {one["name"] for one in LOSSES if one["item"] is not None}


def purposes(ledger: Ledger, found: list[tuple[str, int | None]]) -> set[str]:
    rows = {
        (name, row.seq): row.purpose for name in ledger.datasets() for row in ledger.history(name)
    }
    return {str(rows[dataset, seq]).removesuffix(", by the filter") for dataset, seq in found}


@pytest.mark.parametrize("name", ["items_1_and_2.ledger", "item_3.ledger"])
def test_undercharged_entries_are_found_and_charged(name: str, tmp_path: Path) -> None:
    with open_ledger(name, tmp_path) as ledger:
        verdict = ledger.verify()
        assert verdict.problems
        assert all(problem.undercharged for problem in verdict.problems)
        found = purposes(ledger, [(p.dataset, p.seq) for p in verdict.problems])
        assert found <= AFFECTED
        expected = {"1", "2"} if "1_and_2" in name else {"3"}
        # At its delta the sampled pair costs nothing in either order.
        right = {one["name"] for one in LOSSES if one["item"] in expected} - {"item 1: sampled"}
        assert found == right
        before = {at: ledger.show(at).budget.spent for at in ledger.datasets()}
        corrected = [problem for at in ledger.datasets() for problem in ledger.correct(at)]
        assert corrected == list(verdict.problems)
        again = ledger.verify()
        assert again.ok
        assert len([note for note in again.notes if note.undercharged]) == len(corrected)
        for at in ledger.datasets():
            budget = ledger.show(at).budget
            assert budget.closed or any(budget.spent[n] > before[at][n] for n in budget.spent)
            assert ledger.correct(at) == []
            assert check_receipt(ledger.export(at)) == []
            assert ledger.history(at)


def test_the_difference_is_charged_to_every_budget(tmp_path: Path) -> None:
    with open_ledger("items_1_and_2.ledger", tmp_path) as ledger:
        before = ledger.show("replace")
        wrong = [p for p in ledger.verify().problems if p.dataset == "replace"]
        assert any("was charged epsilon 0.161268 by 0.1, costs 2.70" in p.what for p in wrong)
        ledger.correct("replace")
        after = ledger.show("replace")
        for old, new in zip(before.budgets, after.budgets, strict=True):
            assert new.spent["basic"] > old.spent["basic"] + Fraction("2.5")
            assert new.charges == old.charges


def test_a_budget_that_is_exceeded_is_closed(tmp_path: Path) -> None:
    with open_ledger("tight.ledger", tmp_path) as ledger:
        assert [str(problem) for problem in ledger.correct("study")] != []
        for budget in ledger.show("study").budgets:
            assert budget.closed
            assert budget.used == 1.0
        with pytest.raises(BudgetExceeded):
            ledger.charge("study", PureDP("1/1000000", "replace"))
        assert ledger.verify().ok


def test_a_correction_that_is_too_small_is_found(tmp_path: Path) -> None:
    with open_ledger("items_1_and_2.ledger", tmp_path) as ledger:
        ledger.correct("replace")
        export = ledger.export("replace")
    from discreet._json import canonical
    from discreet.ledger._entry import hash_text

    link = next(one for one in export["chain"] if one["entry"]["kind"] == "correction")
    link["entry"]["content"]["spent"]["dataset"]["basic"] = "1"
    link["hash"] = hash_text(canonical(link["entry"]))
    assert any("below what was spent" in problem.what for problem in check_receipt(export))


def test_an_entry_that_needs_no_correction_is_not_corrected(tmp_path: Path) -> None:
    with open_ledger("sound.ledger", tmp_path) as ledger:
        before = {at: ledger.show(at) for at in ledger.datasets()}
        assert [ledger.correct(at) for at in ledger.datasets()] == [[], []]
        assert {at: ledger.show(at) for at in ledger.datasets()} == before


@pytest.mark.slow
def test_recheck_lists_everything_that_0_1_wrote(tmp_path: Path, run: Run) -> None:
    shutil.copytree(HERE, tmp_path / "old")
    open_ledger("sound.ledger", tmp_path / "old").close()
    write_ledger("items_1_and_2.ledger", tmp_path / "old")  # as 0.1 left it, and never touched
    (tmp_path / "old" / "unrelated.json").write_text('{"a": 1}', encoding="utf-8")
    (tmp_path / "old" / "broken").mkdir()
    (tmp_path / "old" / "broken" / "certificate.json").write_text("{", encoding="utf-8")
    found = {one.path: one for one in recheck(tmp_path / "old")}
    for path in HERE.rglob("*certificate.json"):
        name = path.relative_to(HERE).as_posix()
        state = "not checked" if name.startswith("dpsgd") else "sound"
        assert found[name].state == ("affected" if name.startswith("affected") else state), name
    wrong = found["affected.certificate.json"]
    assert wrong.old is not None
    assert wrong.new is not None
    assert wrong.old < 1.95 < 2.583 <= wrong.new
    assert found["saved/logistic.npz"].state == "sound"
    assert found["sound.ledger"].state == "sound"
    assert sum(one.kind == "ledger" and one.state == "affected" for one in found.values()) >= 3
    assert found["broken/certificate.json"].state == "not checked"
    assert "unrelated.json" not in found
    assert (tmp_path / "old" / "items_1_and_2.ledger").is_file()
    done = run("recheck", str(tmp_path / "old"), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["affected"] >= 4
    assert run("recheck", str(tmp_path / "old" / "saved")).exit_code == 0
    assert run("recheck", str(tmp_path / "old" / "dpsgd-trainer")).exit_code == 6
    assert run("recheck", str(tmp_path / "nowhere")).exit_code == 4


def test_the_command_corrects_and_says_so(tmp_path: Path, run: Run) -> None:
    open_ledger("items_1_and_2.ledger", tmp_path).close()
    place = str(tmp_path / "items_1_and_2.ledger")
    checked = run("ledger", "verify", place)
    assert checked.exit_code == 1
    assert "discreet ledger correct" in checked.stdout
    corrected = run("ledger", "correct", place)
    assert corrected.exit_code == 0
    assert "corrected" in corrected.stdout
    assert run("ledger", "verify", place).exit_code == 0
    assert run("ledger", "history", place, "replace").exit_code == 0
    assert run("ledger", "show", place).exit_code == 0
