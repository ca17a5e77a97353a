"""Ledgers in a single file become directories, with every entry as it was."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from discreet._store import LATEST
from discreet.errors import (
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerMissing,
)
from discreet.ledger import Ledger, _migration
from discreet.ledger._entry import EMPTY_ROLL
from discreet.privacy import PureDP
from ledger.tampering import query

TENTH = PureDP("0.1")
RECORDED = Path(__file__).parent / "recorded"
VERSIONS = range(1, LATEST)
ENTRIES = "SELECT dataset, seq, kind, refers, text, hash FROM entries ORDER BY dataset, seq"


def old_file(file: Path, version: int, *, log: bool = False) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((RECORDED / f"version_{version}.sql").read_text())
        if log:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()


def test_every_older_version_is_recorded() -> None:
    names = sorted(path.name for path in RECORDED.glob("*.sql"))
    assert names == [f"version_{version}.sql" for version in VERSIONS]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_ledger_is_migrated_with_all_it_holds(file: Path, version: int) -> None:
    old_file(file, version, log=True)
    for end in ("-users", "-queue", "-turn", "-sync"):
        Path(f"{file}{end}").touch()
    entries = query(str(file), ENTRIES)
    budgets = query(str(file), "SELECT * FROM budgets ORDER BY 1, 2, 3")
    for read_only in (False, True):
        with pytest.raises(LedgerError, match=r"single file.*discreet ledger migrate"):
            Ledger.open(file, read_only=read_only)
    kept = Ledger.migrate(file)
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, kept.name]
    with Ledger.open(file) as ledger:
        assert query(str(file), ENTRIES) == entries
        assert query(str(file), "SELECT * FROM budgets ORDER BY 1, 2, 3") == budgets
        assert ledger.verify().ok
        assert [row.outcome for row in ledger.history("census")] == ["completed", "open"]
        assert ledger.remaining("census", analyst="ann").spent["basic"] == Fraction(1, 10)
        if version > 1:
            known = ledger.charge("census", TENTH, analyst="ann", purpose="test", key="first")
            assert known.replayed
        ledger.charge("census", TENTH, analyst="ann", key="new")
        assert ledger.charge("census", TENTH, analyst="ann", key="new").replayed
        assert ledger.verify().ok
        roll = EMPTY_ROLL
        for name in ledger.datasets():
            roll = roll.append(ledger.show(name).genesis)
        assert query(str(file), "SELECT value FROM meta WHERE name = 'roll'") == [(roll.as_text(),)]


def test_the_old_file_is_kept_and_older_programs_refuse_it(file: Path) -> None:
    old_file(file, 3)
    kept = Ledger.migrate(file)
    assert kept == file.with_name(f"{file.name}.before-4")
    # An older program refuses a file whose version is above its own.
    assert query(str(kept), "SELECT value FROM meta WHERE name = 'schema'") == [("4",)]
    with pytest.raises(LedgerExists, match="is a directory already"):
        Ledger.migrate(file)
    shutil.rmtree(file)
    old_file(file, 3)
    with pytest.raises(LedgerExists, match="before-4 exists already"):
        Ledger.migrate(file)
    assert file.is_file()


class Cut(BaseException):
    """The process dies here."""


STEPS: dict[str, tuple[object, str]] = {
    "copy": (_migration, "_copy"),
    "verify": (_migration, "_verify"),
    "first rename": (Path, "rename"),
    "second rename": (Path, "rename"),
    "flush": (_migration, "sync_path"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_migration_that_is_cut_short_can_be_repeated(
    file: Path, version: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_file(file, version)
    entries = query(str(file), ENTRIES)
    owner, name = STEPS[step]
    true: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def cut(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (2 if step == "second rename" else 1):
            raise Cut
        return true(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, cut)
        with pytest.raises(Cut):
            Ledger.migrate(file)
    assert not file.is_dir()
    Ledger.migrate(file)
    with Ledger.open(file) as ledger:
        assert query(str(file), ENTRIES) == entries
        assert ledger.verify().ok


def test_a_ledger_in_use_is_not_migrated(file: Path) -> None:
    old_file(file, 3, log=True)
    with closing(sqlite3.connect(file)) as other:
        other.execute("SELECT * FROM meta").fetchall()
        with pytest.raises(LedgerBusy, match="close it everywhere"):
            Ledger.migrate(file, timeout=0.2)
    Ledger.migrate(file, timeout=0.2)


def test_charges_in_the_log_of_a_crash_are_migrated(file: Path) -> None:
    old_file(file, 3, log=True)
    script = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('UPDATE commits SET made = made + 1')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(file)], check=False, timeout=60)
    assert Path(f"{file}-wal").stat().st_size > 0
    Ledger.migrate(file)
    assert not Path(f"{file}-wal").exists()
    with Ledger.open(file) as ledger:
        assert ledger.verify().ok


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE budgets SET state = replace(state, '1/10', '1/20')",
        "UPDATE datasets SET seq = seq - 1 WHERE number = 1",
        "UPDATE entries SET text = replace(text, '1/10', '1/20')",
        "DELETE FROM entries WHERE dataset = 2",
        "UPDATE entries SET seq = 'x' WHERE seq = 1",
    ],
)
def test_an_unsound_ledger_is_not_migrated(file: Path, damage: str) -> None:
    old_file(file, 3)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(damage)
    before = file.read_bytes()
    with pytest.raises(LedgerCorrupt, match="nothing was changed"):
        Ledger.migrate(file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_trigger_of_the_old_file_stays_behind(file: Path) -> None:
    old_file(file, 3)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(
            "CREATE TRIGGER thief AFTER UPDATE ON budgets BEGIN UPDATE budgets"
            " SET state = OLD.state WHERE rowid = OLD.rowid; END"
        )
    Ledger.migrate(file)
    with Ledger.open(file) as ledger:
        ledger.charge("survey", TENTH)
        assert ledger.verify().ok


def test_what_is_no_old_ledger_is_refused_and_left_alone(file: Path) -> None:
    with pytest.raises(LedgerMissing):
        Ledger.migrate(file)
    for data in (b"", b"text", b"x" * 9000):
        file.write_bytes(data)
        with pytest.raises(LedgerCorrupt, match="not a ledger"):
            Ledger.migrate(file)
        assert file.read_bytes() == data
    file.unlink()
    old_file(file, 3)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = '5' WHERE name = 'schema'")
    with pytest.raises(LedgerCorrupt, match="versions 1 to 3"):
        Ledger.migrate(file)
    alias = file.with_name("alias")
    alias.symlink_to(file)
    with pytest.raises(LedgerError, match="symbolic link"):
        Ledger.migrate(alias)
