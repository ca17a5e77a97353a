"""One meaning for each exit code, in every command."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from cli.conftest import Run
from discreet import errors
from discreet.cli._app import _code_of
from discreet.curator import ServiceRefused, ServiceUnreachable
from discreet.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]

EXPECTED = {
    errors.SignatureInvalid: 1,
    errors.RelationMismatch: 2,
    errors.NotApplicable: 2,
    errors.PlanViolation: 2,
    errors.KeyConflict: 2,
    errors.BudgetExceeded: 3,
    errors.MechanismHalted: 3,
    errors.SchemaError: 4,
    errors.ResumeRefused: 4,
    errors.DataUnavailable: 4,
    errors.DataCorrupt: 4,
    errors.LedgerError: 4,
    errors.LedgerMissing: 4,
    errors.LedgerExists: 4,
    errors.LedgerCorrupt: 4,
    errors.LedgerTooNew: 4,
    errors.LedgerReadOnly: 4,
    errors.LedgerFull: 4,
    errors.LedgerBusy: 4,
    errors.LedgerUnconfirmed: 5,
    errors.AlreadyCharged: 5,
}


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_every_kind_of_error_has_its_code(kind: type[errors.DiscreetError]) -> None:
    if kind in {errors.DiscreetError, errors.InvalidValue, errors.FileUnusable}:
        error = kind("x") if kind is errors.DiscreetError else kind("file", "x", "a file")
        assert _code_of(error) == (4 if kind is errors.FileUnusable else 2)
    else:
        assert _code_of(kind("x")) == EXPECTED[kind]


def test_a_value_is_refused_and_a_file_cannot_be_used() -> None:
    def refused_because(cause: Exception) -> errors.InvalidValue:
        try:
            try:
                raise cause
            except type(cause):
                raise errors.InvalidValue("file", "x", "a readable file") from None
        except errors.InvalidValue as error:
            return error

    assert _code_of(refused_because(FileNotFoundError(2, "No such file"))) == 4
    assert _code_of(refused_because(PermissionError(13, "Permission denied"))) == 4
    assert _code_of(refused_because(EOFError())) == 4
    assert _code_of(refused_because(ValueError("no number"))) == 2


def test_what_a_service_answers_has_its_code() -> None:
    for status, code in ((401, 2), (403, 2), (404, 4), (413, 2), (422, 2), (500, 5), (503, 4)):
        assert _code_of(ServiceRefused("no", status=status, kind="x")) == code
    assert _code_of(ServiceUnreachable("nobody answers", key=None)) == 4


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    path = tmp_path / "study.ledger"
    with Ledger.create(path) as book:
        book.create_dataset("census", epsilon=1)
    return str(path)


def test_what_fails_after_the_charge_ends_with_five(
    ledger: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that fails, and wherever: the budget is spent."""
    failures: Iterator[Exception] = iter(
        [
            errors.InvalidValue("output", "x", "a file that can be written"),
            OSError(28, "No space left on device", "model"),
            MemoryError("an array with shape (12345, 7)"),
            ZeroDivisionError("nobody foresaw this"),
        ]
    )

    def fail(*_: Any, **__: Any) -> None:
        raise next(failures)

    monkeypatch.setattr("discreet.cli._ledger._report", fail)
    for words in ("output = x", "No space left", "memory ran out", "nobody foresaw this"):
        done = run("ledger", "charge", ledger, "census", "--epsilon", "0.1")
        assert done.exit_code == 5, words
        assert words in done.stderr
        assert done.stderr.endswith("(charged before it failed: the budget is spent)\n")
        assert "12345" not in done.stderr
    with Ledger.open(ledger) as book:
        assert book.show("census").budget.charges == 4


def test_the_same_failures_before_a_charge_do_not(
    ledger: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("discreet.cli._ledger._loss", full)
    done = run("ledger", "charge", ledger, "census", "--epsilon", "0.1", "--json")
    assert done.exit_code == 4
    assert json.loads(done.stderr) == {
        "error": "discreet: the output cannot be written (No space left on device)",
        "code": 4,
    }
    with Ledger.open(ledger) as book:
        assert book.show("census").budget.charges == 0


def test_errors_are_json_where_answers_are(ledger: str, run: Run) -> None:
    done = run("account", "--noise-multiplier", "-1", "--delta", "1e-5", "--json")
    assert done.exit_code == 2
    told = json.loads(done.stderr)
    assert (told["code"], told["option"], told["value"]) == (2, "noise_multiplier", "-1")
    assert told["expected"].startswith("a number with")
    short = run("ledger", "charge", ledger, "census", "--epsilon", "5", "--json")
    told = json.loads(short.stderr)
    assert (short.exit_code, told["code"], told["budget"]) == (3, 3, "dataset")
    assert told["remaining"]["basic"] == "1"
    usage = run("account", "--nope", "--json")
    assert json.loads(usage.stderr)["code"] == 2
    # What stands after -- belongs to the command that is run.
    plain = run("ledger", "charge", ledger, "census", "--epsilon", "5", "--", "true", "--json")
    assert plain.stderr.startswith("discreet: the budget")


def test_an_interrupted_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise click.Abort

    monkeypatch.setattr("discreet.privacy.theorems.explain", interrupted)
    assert run("explain", "--epsilon", "1").exit_code == 130


def test_a_mistake_of_our_own_is_never_taken_for_a_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from discreet.cli import _app as application

    def mistaken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr("discreet.privacy.theorems.explain", mistaken)
    monkeypatch.setattr("sys.argv", ["discreet", "explain", "--epsilon", "1"])
    with pytest.raises(SystemExit) as ended:
        application.main()
    assert ended.value.code == 70
    assert "ZeroDivisionError: a mistake" in capsys.readouterr().err


def test_help_and_guide_list_the_same_codes(run: Run) -> None:
    shown = run("--help").stdout
    listed = dict(re.findall(r"^ +(\d)  (.+)$", shown, re.MULTILINE))
    assert sorted(map(int, listed)) == list(range(7))
    guide = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|", guide, re.MULTILINE))
    assert set(listed) <= set(rows)
    assert {"70", "125", "130"} <= set(rows)
    for code in set(listed) - {"4"}:
        assert listed[code].partition(":")[0] == rows[code]


def test_a_name_that_is_taken_is_4_in_every_command(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.key").write_text("mine", encoding="utf-8")
    book = str(tmp_path / "a.ledger")
    assert run("ledger", "create", book, "people", "--epsilon", "1").exit_code == 0
    assert run("ledger", "create", book, "people", "--epsilon", "1").exit_code == 4
    assert run("certificate", "keygen", str(tmp_path / "a")).exit_code == 4
    assert (tmp_path / "a.key").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "a.pub").exists()
