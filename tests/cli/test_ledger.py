"""``discreet ledger``: every command, its tables, its JSON, its picture and its refusals."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from discreet.cli._app import app
from discreet.ledger import Ledger, check_receipt
from discreet.privacy import Gaussian, PureDP, from_json, to_json
from ledger.tampering import database_of


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a dataset and the budget of an analyst, made by the command line."""
    path = tmp_path_factory.mktemp("made") / "study.ledger"
    create = ["ledger", "create", str(path), "census"]
    for options in (
        ["--epsilon", "1", "--delta", "1e-6", "--unit", "person"],
        ["--epsilon", "0.3", "--analyst", "ann"],
    ):
        assert CliRunner().invoke(app, [*create, *options]).exit_code == 0
    return path


@pytest.fixture
def place(tmp_path: Path, made: Path) -> str:
    """A copy of it, for each test its own."""
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return str(tmp_path / made.name)


# What is told of files and ledgers that cannot be used; all other refusals are of values.
UNUSABLE = (
    "a dataset 'census' already",
    "cannot be used (File name too long)",
    "File name too long",
    "--receipt = ",
    "--output = ",
    "a readable file",
)


def answer(run: Any, *arguments: str, code: int = 0) -> Any:
    result = run("ledger", *arguments, "--json")
    assert result.exit_code == code, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def refusal(run: Any, *arguments: str, code: int = 2) -> str:
    result = run("ledger", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def test_create_and_show(run: Any, place: str) -> None:
    shown = answer(run, "show", place)
    [dataset] = shown["datasets"]
    assert (dataset["name"], dataset["unit"], dataset["entries"]) == ("census", "person", 2)
    labels = {budget["label"]: budget for budget in dataset["budgets"]}
    assert labels["dataset"]["epsilon"] == "1"
    assert labels["dataset"]["kind"] == "auto"
    assert labels["analyst:ann"]["remaining"] == {"basic": "3/10", "delta": "0"}
    table = run("ledger", "show", place, "census").stdout
    assert "unit person, relation add_remove" in table
    assert "analyst:ann" in table
    assert "rho" in table


def test_the_filter_of_a_budget_can_be_chosen(run: Any, tmp_path: Path) -> None:
    settings = ["--epsilon", "2", "--delta", "1e-5", "--kind", "rdp", "--reserved", "1e-6"]
    orders = ["--order", "16", "--order", "8"]
    asked = ["create", str(tmp_path / "x"), "d", *settings, *orders, "--require", "analyst"]
    [dataset] = answer(run, *asked)["datasets"]
    assert dataset["required"] == ["analyst"]
    assert dataset["budgets"][0]["remaining"].keys() == {"rdp@8.0", "rdp@16.0", "delta"}
    assert dataset["budgets"][0]["remaining"]["delta"] == "1/1000000"


def test_charge_spends_exactly_and_refuses_on_one_line(run: Any, place: str) -> None:
    for _ in range(3):
        made = answer(run, "charge", place, "census", "--epsilon", "0.1", "--analyst", "ann")
        assert made["outcome"] == "open"
        assert check_receipt(made["receipt"]) == []
    asked = ("charge", place, "census", "--epsilon", "1e-9", "--analyst", "ann")
    line = refusal(run, *asked, code=3)
    assert "the budget 'analyst:ann' cannot pay for this charge, nothing was charged" in line
    told = json.loads(run("ledger", *asked, "--json").stderr)
    assert (told["code"], told["budget"]) == (3, "analyst:ann")
    assert told["remaining"] == {"basic": "0", "delta": "0"}
    with Ledger.open(place) as ledger:
        assert ledger.show("census").budget.charges == 3


def test_charge_takes_every_kind_of_loss(run: Any, place: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(to_json(Gaussian(90.0))), encoding="utf-8")
    for options in (
        ["--epsilon", "1/20", "--delta", "1e-9"],
        ["--laplace-scale", "50"],
        ["--noise-multiplier", "80", "--steps", "2"],
        ["--noise-multiplier", "30", "--rate", "0.01", "--steps", "10", "--delta", "1e-8"],
        ["--loss", str(plan)],
    ):
        answer(run, "charge", place, "census", *options)
    rows = answer(run, "history", place, "census")["charges"]
    assert [repr(from_json(row["loss"])) for row in rows][1:3] == [
        "Laplace(scale=50.0)",
        "2 * Gaussian(noise_multiplier=80.0)",
    ]
    assert rows[3]["delta"] == "1/100000000"
    assert answer(run, "verify", place)["ok"] is True


@pytest.mark.slow
def test_charge_runs_a_command_after_the_charge_and_keeps_failures(
    run: Any, spawn: Any, place: str
) -> None:
    command = [sys.executable, "-c", "print('released')"]
    done = spawn("ledger", "charge", place, "census", "--epsilon", "0.1", "--", *command)
    assert done.returncode == 0
    assert "released" in done.stdout
    failing = [sys.executable, "-c", "raise SystemExit(7)"]
    result = run("ledger", "charge", place, "census", "--epsilon", "0.1", "--", *failing)
    assert result.exit_code == 7
    missing = run("ledger", "charge", place, "census", "--epsilon", "0.1", "--", "no-such-program")
    assert missing.exit_code == 125
    assert "no-such-program: expected a program" in missing.stderr
    rows = answer(run, "history", place, "census")["charges"]
    assert [row["outcome"] for row in rows] == ["completed", "failed", "failed"]


def test_a_command_never_runs_without_its_charge_nor_twice_under_a_key(
    run: Any, place: str, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    command = [sys.executable, "-c", f"open({str(mark)!r}, 'a').write('x')"]
    refusal(run, "charge", place, "census", "--epsilon", "9", "--", *command, code=3)
    assert not mark.exists()
    for expected in (False, True):
        ask = ["--epsilon", "0.1", "--key", "k"]
        made = run("ledger", "charge", place, "census", *ask, "--json", "--", *command)
        assert json.loads(made.stdout)["replayed"] is expected
    assert mark.read_text() == "x"
    assert "was used for another request" in refusal(
        run, "charge", place, "census", "--epsilon", "0.2", "--key", "k"
    )


def test_history_draws_the_budget_over_time(run: Any, place: str, tmp_path: Path) -> None:
    assert run("ledger", "history", place, "census").stdout == "no charges yet\n"
    empty = tmp_path / "empty.svg"
    assert run("ledger", "history", place, "census", "--output", str(empty)).exit_code == 0
    assert empty.read_text(encoding="utf-8").startswith("<?xml")
    with Ledger.open(place) as ledger:
        for number in range(5):
            with ledger.charge("census", PureDP("1/50"), analyst="ann", purpose=f"q{number}"):
                pass
        with pytest.raises(OSError, match="no"), ledger.charge("census", Gaussian(60.0)):
            raise OSError("no")
    picture = tmp_path / "budget.png"
    result = run("ledger", "history", place, "census", "--output", str(picture))
    assert result.exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = result.stdout.splitlines()
    assert sum("completed" in line for line in lines) == 5
    assert sum("failed" in line for line in lines) == 1
    assert "q4, ann" in result.stdout


def test_verify_and_export(run: Any, place: str, tmp_path: Path) -> None:
    run("ledger", "charge", place, "census", "--epsilon", "0.1")
    receipt, chain = tmp_path / "receipt.json", tmp_path / "chain.json"
    receipt.write_text(run("ledger", "export", place, "census", "--entry", "2").stdout)
    assert run("ledger", "export", place, "census", "--output", str(chain)).exit_code == 0
    for what in ([place], [str(chain)], [str(receipt)], [place, "--receipt", str(receipt)]):
        assert "everything fits" in run("ledger", "verify", *what).stdout
    with closing(sqlite3.connect(database_of(place), isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER entries_no_update")
        connection.execute("UPDATE entries SET text = replace(text, '1/10', '1/90') WHERE seq = 2")
    verdict = answer(run, "verify", place, "--receipt", str(receipt), code=1)
    assert verdict["ok"] is False
    assert "the trigger 'entries_no_update' is missing" in verdict["problems"][0]["what"]
    assert verdict["problems"][1]["entry"] == 2
    result = run("ledger", "verify", place)
    assert result.exit_code == 1
    assert "census, entry 2: was changed" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["show", "{nowhere}"], "there is no such ledger"),
        (["show", "{place}", "nothing"], "there is no dataset 'nothing'"),
        (["create", "{new}", "d", "--epsilon", "x"], "--epsilon = x: expected an exact number"),
        (["create", "{new}", "d", "--epsilon", "1", "--kind", "gdp"], "--kind = gdp: expected"),
        (["create", "{place}", "census", "--epsilon", "5"], "a dataset 'census' already"),
        (
            ["create", "{place}", "census", "--epsilon", "1", "--analyst", "b", "--unit", "p"],
            "--unit = p: expected only for",
        ),
        (
            ["create", "{new}", "d", "--epsilon", "1", "--order", "1"],
            "--order = 1: expected a number with 1 < order",
        ),
        (["charge", "{place}", "census"], "mechanism = none: expected one of"),
        (
            ["charge", "{place}", "census", "--epsilon", "1", "--steps", "3"],
            "--epsilon = 1: expected only without",
        ),
        (["charge", "{place}", "census", "--epsilon", "0.1", "--relation", "replace"], "relation"),
        (["export", "{place}", "census", "--entry", "99"], "there is no entry 99"),
        (["export", "{place}", "census", "--entry", str(10**23)], "--entry = 1000000000000"),
        (["export", "{place}", "census", "--entry", "1e23"], "--entry = 1e23: expected an integer"),
        (["export", "{place}", "census", "-o", "{pipe}"], "expected the name of a file"),
        (["export", "{place}", "census", "-o", "x" * 300], "--output = "),
        (["export", "{place}", "census", "-o", ""], "--output = '': expected the name of a file"),
        (["show", "{place}", "x" * 300], "DATASET = xxx"),
        (["show", "{place}", "\udcff"], "DATASET = '\\udcff': expected a printable name"),
        (["charge", "{place}", "census", "--epsilon", "0.1", "--key", "\udcff"], "--key = "),
        (["create", "{place}", "\udcff", "--epsilon", "1"], "name = '\\udcff': expected"),
        (["show", "{long}"], "cannot be used (File name too long)"),
        (["create", "{long}", "d", "--epsilon", "1"], "cannot be used (File name too long)"),
        (["show", "postgresql://[bad/x"], "LEDGER = postgresql://: expected a URL"),
        (["create", "postgresql://[bad/x", "d", "--epsilon", "1"], "expected a URL such as"),
        (["show", "postgresql://\udcff/x"], "expected a URL such as"),
        (["verify", "{long}"], "File name too long"),
        (["verify", "{place}", "--receipt", "{long}"], "--receipt = "),
        (["export", "{place}", "census", "-o", "{nowhere}/x"], "--output = "),
        (["history", "{place}", "census", "-o", "x.pdf"], "--output = x.pdf"),
        (["verify", "{place}", "--receipt", "{nowhere}"], "--receipt = "),
        (["verify", "{nowhere}.json"], "a readable file"),
    ],
)
def test_refusals_are_one_line_and_make_nothing(
    run: Any, place: str, tmp_path: Path, arguments: list[str], line: str
) -> None:
    # Neither a file nor a directory, as a device is; a device itself is nothing to try this on.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = sorted(path.name for path in tmp_path.iterdir())
    names = {"place": place, "new": str(tmp_path / "new"), "nowhere": str(tmp_path / "no" / "x")}
    names |= {"long": str(tmp_path / ("x" * 300)), "pipe": str(pipe)}
    missing = line in UNUSABLE or line.startswith("there is no")
    words = [word.format(**names) for word in arguments]
    assert line in refusal(run, *words, code=4 if missing else 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert pipe.is_fifo()


def test_export_takes_json_like_every_other_command(run: Any, place: str, tmp_path: Path) -> None:
    plain = run("ledger", "export", place, "census").stdout
    assert json.loads(plain) == answer(run, "export", place, "census")
    target = str(tmp_path / "chain.json")
    assert answer(run, "export", place, "census", "-o", target) == {"written": target}
    assert check_receipt(Path(target).read_text(encoding="utf-8")) == []


def test_a_file_whose_name_is_not_utf_8(run: Any, spawn: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "\udcff.ledger")
    assert run("ledger", "create", path, "census", "--epsilon", "1").exit_code == 0
    verdict = spawn("ledger", "verify", path)
    assert (verdict.returncode, verdict.stderr) == (0, "")
    assert "\\udcff.ledger': 1 entry, everything fits" in verdict.stdout
    assert "there is no such ledger" in refusal(run, "show", path + "2", code=4)


@pytest.mark.parametrize("command", [["show"], ["export", "census"]], ids=["show", "export"])
def test_output_that_cannot_be_written_is_one_line_and_no_success(
    place: str, command: list[str]
) -> None:
    name, *options = command
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "discreet.cli", "ledger", name, place, *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 4
    assert done.stderr == "discreet: the output cannot be written (No space left on device)\n"


def test_a_ledger_with_a_foreign_guard_is_verified_and_not_charged(run: Any, place: str) -> None:
    with closing(sqlite3.connect(database_of(place), isolation_level=None)) as connection:
        connection.execute(
            "CREATE TRIGGER thief AFTER UPDATE ON budgets BEGIN UPDATE budgets"
            " SET state = OLD.state WHERE rowid = OLD.rowid; END"
        )
    assert "'thief' is not part of a ledger" in refusal(
        run, "charge", place, "census", "--epsilon", "0.1", code=4
    )
    verdict = answer(run, "verify", place, code=1)
    assert [problem["what"] for problem in verdict["problems"]] == [
        "the trigger 'thief' is not part of a ledger"
    ]


def test_commands_that_only_look_wait_for_nobody(run: Any, place: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(database_of(place))) as shell:
        shell.execute("SELECT * FROM meta").fetchall()
        for words in (
            ("show", place),
            ("history", place, "census"),
            ("export", place, "census"),
            ("export", place, "census", "--entry", "0"),
            ("verify", place),
        ):
            assert run("ledger", *words).exit_code == 0


def test_a_budget_too_long_to_be_written_makes_no_file(run: Any, tmp_path: Path) -> None:
    new = tmp_path / "new.ledger"
    assert "--epsilon = " in refusal(run, "create", str(new), "census", "--epsilon", "1e-5000")
    assert not new.exists()


def test_an_old_file_is_migrated_by_one_command(run: Any, tmp_path: Path) -> None:
    place = tmp_path / "old.ledger"
    recorded = Path(__file__).parents[1] / "ledger" / "recorded" / "version_3.sql"
    with closing(sqlite3.connect(place)) as connection:
        connection.executescript(recorded.read_text())
    for words in (("show", str(place)), ("charge", str(place), "census", "--epsilon", "0.1")):
        assert f"run discreet ledger migrate {place}" in refusal(run, *words, code=4)
    done = answer(run, "migrate", str(place))
    assert done == {"ledger": str(place), "old": f"{place}.before-4"}
    assert answer(run, "verify", str(place))["ok"]
    assert "is a directory already" in refusal(run, "migrate", str(place), code=4)


def test_a_backup_is_restored_by_one_command(run: Any, place: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with Ledger.open(place) as book:
        for copy in ("told", "guessed", "closed"):
            book.backup(tmp_path / copy)
        receipt = book.charge("census", PureDP("0.1")).receipt()
        spent = book.show("census").budget.spent["basic"]
    (kept / "receipt.json").write_text(json.dumps(receipt), encoding="utf-8")
    told, guessed, closed = (str(tmp_path / copy) for copy in ("told", "guessed", "closed"))
    text = refusal(run, "charge", told, "census", "--epsilon", "0.1", code=4)
    assert f"discreet ledger restore {told}" in text
    done = answer(run, "restore", told, "--receipts", str(kept))
    [census] = [one for one in done["datasets"] if one["name"] == "census"]
    assert census["budgets"][0]["spent"]["basic"] == str(spent)
    assert run("ledger", "restore", guessed, "--spent", "census=0.1").exit_code == 0
    assert "restored from a backup: entry" in run("ledger", "show", guessed, "census").stdout
    assert "note: census, entry" in run("ledger", "verify", guessed).stdout
    assert run("ledger", "charge", guessed, "census", "--epsilon", "0.01").exit_code == 0
    assert "census: closed" in run("ledger", "restore", closed).stdout
    assert run("ledger", "charge", closed, "census", "--epsilon", "0.01").exit_code == 3
    assert "DATASET=EPSILON" in refusal(run, "restore", closed, "--spent", "nobody=1")


def test_repair_says_whether_there_was_anything(run: Any, place: str) -> None:
    assert answer(run, "repair", place) == {"ledger": place, "repaired": False}
    (Path(place) / "unflushed").touch()
    assert "discreet ledger repair" in refusal(
        run, "charge", place, "census", "--epsilon", "0.1", code=4
    )
    assert answer(run, "repair", place) == {"ledger": place, "repaired": True}
    assert answer(run, "verify", place)["ok"]
