"""The file: durable, refused when newer, damaged, full or read-only, copied and migrated."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from discreet._store import LATEST, _sqlite
from discreet.errors import (
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerFull,
    LedgerMissing,
    LedgerReadOnly,
    LedgerTooNew,
)
from discreet.ledger import Ledger
from discreet.privacy import PureDP
from ledger.tampering import database_of, query, tamper

TENTH = PureDP("0.1")


@pytest.fixture
def book(file: Path) -> Iterator[Ledger]:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
        yield ledger


def content(file: Path) -> list[tuple[object, ...]]:
    return [
        row
        for table in ("meta", "datasets", "budgets", "entries")
        for row in query(str(file), f"SELECT * FROM {table} ORDER BY 1, 2")
    ]


# --- durable -------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits and flushes of the log as they happen."""
    seen: list[str] = []
    run, flush_log = _sqlite.Link.run, _sqlite.Link.flush_log

    def watched_run(link: _sqlite.Link, statement: str, values: tuple[object, ...] = ()) -> int:
        if statement == "COMMIT":
            seen.append("commit")
        return run(link, statement, values)

    def watched_flush(link: _sqlite.Link) -> None:
        flush_log(link)
        seen.append("flush")

    monkeypatch.setattr(_sqlite.Link, "run", watched_run)
    monkeypatch.setattr(_sqlite.Link, "flush_log", watched_flush)
    return seen


def test_the_log_is_flushed_between_the_commit_and_the_body(
    book: Ledger, file: Path, steps: list[str]
) -> None:
    assert query(str(file), "PRAGMA journal_mode") == [("wal",)]
    with book.charge("census", TENTH):
        assert steps == ["commit", "flush"]
    # An outcome without a result may wait for the next flush; nothing that shows it may.
    assert steps == ["commit", "flush", "commit"]
    book.receipt("census", 1)
    assert steps == ["commit", "flush", "commit", "flush"]
    # What this process has flushed already is not flushed again.
    book.receipt("census", 1)
    book.show("census")
    assert steps == ["commit", "flush", "commit", "flush"]


@pytest.mark.parametrize(
    "look",
    [
        lambda reader: reader.show("census"),
        lambda reader: reader.history("census"),
        lambda reader: reader.newest("census"),
        lambda reader: reader.export("census"),
        lambda reader: reader.receipt("census", 1),
        lambda reader: reader.datasets(),
        lambda reader: reader.charge("census", TENTH, key="k"),
    ],
)
def test_whatever_another_shows_is_flushed_first(
    book: Ledger, file: Path, steps: list[str], look: Callable[[Ledger], object]
) -> None:
    with Ledger.open(file) as reader:
        book.charge("census", TENTH, key="k")
        del steps[:]
        look(reader)
        assert steps == ["flush"]


def test_the_flush_goes_through_the_log_and_never_through_the_database(
    book: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To close any descriptor of the database would drop the locks of SQLite.
    flushed: list[str] = []
    opened: list[str] = []
    sync, open_ = _sqlite.sync, os.open

    def watched_sync(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def watched_open(path: object, *arguments: Any, **options: Any) -> int:
        opened.append(str(path))
        return open_(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(_sqlite, "sync", watched_sync)
    monkeypatch.setattr(os, "open", watched_open)
    with Ledger.open(file) as other:
        other.show("census")
        database = str(database_of(file))
        # A log that was just made is listed in its directory before anything rests on it.
        assert flushed == [f"{database}-wal", str(file)]
        other.charge("census", TENTH)
        assert flushed == [f"{database}-wal", str(file), f"{database}-wal"]
        book.backup(file.with_name("copy"))
    assert database not in opened


@pytest.mark.slow
def test_the_work_for_a_charge_does_not_grow_with_the_history(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps of SQLite's own machine: the same count in every run.
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    prepare = _sqlite.Link._prepare

    def counted(link: _sqlite.Link, *, read_only: bool) -> None:
        prepare(link, read_only=read_only)
        link.connection.set_progress_handler(count, 1)

    def steps_of_a_charge(key: str) -> int:
        nonlocal steps
        steps = 0
        with book.charge("census", loss, key=key) as charge:
            charge.record(1)
        assert book.charge("census", loss, key=key).replayed
        return steps

    monkeypatch.setattr(_sqlite.Link, "_prepare", counted)
    loss = PureDP("1/1000000")
    with Ledger.create(file) as book:
        book.create_dataset("census", epsilon=1)
        steps_of_a_charge("first")
        early = steps_of_a_charge("early")
        for number in range(400):
            book.charge("census", loss, key=f"k{number}")
        late = steps_of_a_charge("late")
    assert early > 100
    assert late < 1.2 * early


# --- files that are not what they should be -----------------------------------------------


def test_a_mistyped_name_is_not_a_fresh_budget(tmp_path: Path) -> None:
    with pytest.raises(LedgerMissing, match=r"Ledger\.create"):
        Ledger.open(tmp_path / "typo.ledger")
    with pytest.raises(LedgerMissing):
        Ledger.open(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LedgerMissing):
        Ledger.open(tmp_path / "empty")
    (tmp_path / "empty").rmdir()
    with pytest.raises(LedgerMissing, match="no directory"):
        Ledger.create(tmp_path / "no" / "such")
    assert list(tmp_path.iterdir()) == []


def test_a_newer_ledger_is_refused_and_left_alone(book: Ledger, file: Path) -> None:
    tamper(str(file), f"UPDATE meta SET value = '{LATEST + 1}' WHERE name = 'schema'")
    before = content(file)
    with pytest.raises(LedgerTooNew, match="update discreet"):
        Ledger.open(file)
    # Also by those who had it open when somebody else updated it.
    with pytest.raises(LedgerTooNew):
        book.charge("census", TENTH)
    with pytest.raises(LedgerTooNew):
        book.show("census")
    assert content(file) == before


@pytest.mark.parametrize("data", [b"", b"not a ledger at all, but text", b"\x00" * 8192])
def test_other_files_are_refused_and_left_alone(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    with pytest.raises(LedgerCorrupt, match="not a ledger"):
        Ledger.open(file)
    assert file.read_bytes() == data


def test_another_database_is_refused_and_left_alone(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE meta (name, value)")
    before = file.read_bytes()
    with pytest.raises(LedgerCorrupt, match="not a ledger"):
        Ledger.open(file)
    with pytest.raises(LedgerExists):
        Ledger.create(file)
    assert file.read_bytes() == before


def test_a_creation_that_was_cut_short_can_be_repeated(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_sqlite, "sync", fail)
        with pytest.raises(LedgerFull):
            Ledger.create(file)
    assert list(file.parent.iterdir()) == []
    (file.parent / f"{file.name}.new-1-ab").mkdir()  # what a process that was killed leaves
    with Ledger.create(file) as book:
        assert book.datasets() == []


def test_a_damaged_file_is_an_error_and_never_a_grant(book: Ledger, file: Path) -> None:
    for _ in range(9):
        book.charge("census", PureDP("0.01"), purpose="x" * 200)
    book.close()
    database = database_of(file)
    whole = database.read_bytes()
    pages = len(whole) // 4096
    for page in range(pages):
        database.write_bytes(whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :])
        outcomes = []
        with suppress(LedgerError), Ledger.open(file) as damaged:
            outcomes.append(damaged.verify().ok)
        assert outcomes in ([], [False]), f"page {page} was damaged and nobody noticed"
    database.write_bytes(whole[: len(whole) // 2])
    verdicts = []
    with suppress(LedgerError), Ledger.open(file) as damaged:
        verdicts.append(damaged.verify().ok)
    assert verdicts in ([], [False])


def test_bytes_that_change_under_an_open_ledger_are_found(book: Ledger, file: Path) -> None:
    """SQLite keeps pages in memory; a verification reads the file."""
    book.charge("census", PureDP("0.01"), purpose="zebra")
    assert book.verify().ok
    # By another process: to close the file in this one would drop the locks of SQLite.
    flip = (
        "import sys\nfor name in sys.argv[1:]:\n with open(name, 'r+b') as file:\n"
        "  text = file.read()\n  file.seek(0)\n  file.write(text.replace(b'zebra', b'zebrb'))"
    )
    names = [str(path) for path in file.glob("ledger-*.sqlite*") if path.suffix != ".sqlite-shm"]
    subprocess.run([sys.executable, "-c", flip, *names], check=True)
    assert not book.verify().ok


# --- read-only and full --------------------------------------------------------------------


def test_a_ledger_opened_for_reading_cannot_be_charged(book: Ledger, file: Path) -> None:
    book.charge("census", TENTH)
    with Ledger.open(file, read_only=True) as reader:
        assert reader.show("census").budget.charges == 1
        assert reader.verify().ok
        assert reader.export("census") == book.export("census")
        with pytest.raises(LedgerReadOnly, match="nothing was charged"):
            reader.charge("census", TENTH)
        with pytest.raises(LedgerReadOnly):
            reader.create_dataset("other", epsilon=1)
    assert book.show("census").budget.charges == 1


AS_NOBODY = """
import os, sys
from discreet.errors import LedgerError
from discreet.ledger import Ledger
from discreet.privacy import Filter, PureDP
Filter(epsilon=1).charge(PureDP("0.1"))
if os.getuid() == 0:  # permissions do not bind root, and nobody may not import
    os.setgid(65534), os.setuid(65534)
try:
    with Ledger.open(sys.argv[1]) as ledger:
        print(ledger.show("census").budget.charges)
        ledger.charge("census", PureDP("0.1"))
except LedgerError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("folder_mode", [0o777, 0o555])
def test_a_file_without_write_permission(folder_mode: int) -> None:
    folder = Path(tempfile.mkdtemp())  # nobody may not look into the folders of pytest
    folder.chmod(0o777)
    try:
        path = folder / "study.ledger"
        with Ledger.create(path) as ledger:
            ledger.create_dataset("census", epsilon=1)
            for inside in path.iterdir():
                inside.chmod(0o444 if folder_mode == 0o555 else 0o666)
            database_of(path).chmod(0o444)
            path.chmod(folder_mode)
            done = subprocess.run(
                [sys.executable, "-c", AS_NOBODY, str(path)],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            path.chmod(0o777)
            assert done.returncode == 0, done.stderr
            assert "LedgerReadOnly" in done.stdout
            assert "nothing was charged" in done.stdout
            assert ledger.show("census").budget.charges == 0
            assert ledger.verify().ok
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


def test_a_full_disk_is_an_error_and_nothing_is_half_written(
    book: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = _sqlite.Link._prepare

    def limited(link: _sqlite.Link, *, read_only: bool) -> None:
        prepare(link, read_only=read_only)
        [(pages,)] = link.rows("PRAGMA page_count")
        link.run(f"PRAGMA max_page_count = {pages + 8}")

    monkeypatch.setattr(_sqlite.Link, "_prepare", limited)
    granted = 0

    def charge_until_full(ledger: Ledger) -> None:
        nonlocal granted
        while True:
            ledger.charge("census", PureDP("1/100000"), purpose="x" * 200)
            granted += 1

    with Ledger.open(file) as full:
        with pytest.raises(LedgerFull, match="nothing was charged"):
            charge_until_full(full)
        before = content(file)
        with pytest.raises(LedgerFull):
            full.charge("census", PureDP("1/100000"), purpose="x" * 200)
        assert content(file) == before
        assert full.verify().ok
    assert granted > 5
    monkeypatch.undo()
    book.charge("census", TENTH)
    assert book.show("census").budget.charges >= granted + 1
    assert book.verify().ok


FILE_TOO_LARGE = """
import resource, signal, sys
from discreet.errors import LedgerError
from discreet.ledger import Ledger
from discreet.privacy import PureDP
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
granted = 0
with Ledger.open(sys.argv[1]) as ledger:
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
    try:
        while True:
            with ledger.charge("census", PureDP("1/100000")) as charge:
                granted = charge.seq
    except LedgerError as error:
        print(granted, type(error).__name__)
"""


def test_a_disk_that_refuses_to_write_is_an_error_and_the_file_stays_whole(
    book: Ledger, file: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILE_TOO_LARGE, str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    released, error = done.stdout.split()
    assert int(released) > 0
    assert error in ("LedgerFull", "LedgerUnconfirmed")
    assert book.verify(receipts=[book.receipt("census", int(released))]).ok
    book.charge("census", TENTH)
    assert book.verify().ok


def test_a_ledger_that_others_hold_too_long_says_so(book: Ledger, file: Path) -> None:
    with (
        Ledger.open(file, timeout=0.2) as hasty,
        closing(sqlite3.connect(database_of(file), isolation_level=None)) as hog,
    ):
        hog.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerBusy, match="nothing was charged"):
            hasty.charge("census", TENTH)
        hog.execute("ROLLBACK")
        store = book._store
        assert isinstance(store, _sqlite.SqliteStore)
        with (
            store._link() as link,
            link.write_lock(),
            pytest.raises(LedgerBusy, match=r"more than 0\.2 s"),
        ):
            hasty.charge("census", TENTH)
        hasty.charge("census", TENTH)
    assert book.show("census").budget.charges == 1


# --- copies --------------------------------------------------------------------------------


def test_a_backup_is_whole_while_others_charge(book: Ledger, file: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom discreet.ledger import Ledger\nfrom discreet.privacy import PureDP\n"
        "ledger = Ledger.open(sys.argv[1])\nprint('ready', flush=True)\n"
        "while True:\n    ledger.charge('census', PureDP('1/1000000'))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        lengths = []
        for number in range(8):
            target = tmp_path / f"copy-{number}"
            book.backup(target)
            with Ledger.open(target, read_only=True) as copy:
                assert copy.verify().ok
                lengths.append(copy.show("census").entries)
        other.kill()
    assert lengths == sorted(lengths)
    assert book.show("census").entries >= lengths[-1]
    with pytest.raises(LedgerExists):
        book.backup(tmp_path / "copy-0")
    with pytest.raises(LedgerError):
        book.backup(tmp_path / "no" / "copy")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_backup_can_be_read_and_not_charged(book: Ledger, file: Path, tmp_path: Path) -> None:
    book.charge("census", TENTH)
    book.backup(tmp_path / "copy")
    receipt = book.charge("census", TENTH).receipt()
    with Ledger.open(tmp_path / "copy") as copy:
        assert copy.show("census").budget.charges == 1
        assert copy.verify().ok
        assert not copy.verify(receipts=[receipt]).ok
        for attempt in (
            lambda: copy.charge("census", TENTH),
            lambda: copy.create_dataset("other", epsilon=1),
        ):
            with pytest.raises(LedgerReadOnly, match=r"is a backup.*discreet ledger restore"):
                attempt()


def test_a_closed_ledger_is_a_directory_that_can_be_copied(book: Ledger, file: Path) -> None:
    book.charge("census", TENTH)
    book.close()
    copy = file.with_name("copy")
    shutil.copytree(file, copy)
    with Ledger.open(copy) as other:
        assert other.show("census").budget.charges == 1
        assert other.verify().ok


# --- clocks --------------------------------------------------------------------------------


def test_the_clock_decides_nothing(file: Path) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC)
    jumps = iter(
        [
            start,
            start + timedelta(days=400),
            start - timedelta(days=400),
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(2026, 5, 1, 12, tzinfo=timezone(timedelta(hours=14))),
            start,
        ]
    )
    with Ledger.create(file, clock=lambda: next(jumps)) as ledger:
        ledger.create_dataset("census", epsilon=1)
        for _ in range(5):
            ledger.charge("census", TENTH)
        rows = ledger.history("census")
        assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
        assert [row.at[:10] for row in rows] == [
            "2027-06-05",
            "2025-03-27",
            "1970-01-01",
            "2026-04-30",
            "2026-05-01",
        ]
        assert ledger.show("census").budget.spent["basic"] == Fraction(1, 2)
        assert ledger.verify().ok


def test_what_was_charged_before_is_found_where_nothing_can_be_written(
    book: Ledger, file: Path
) -> None:
    with book.charge("census", TENTH, key="k") as charge:
        charge.record(7)
    with Ledger.open(file, read_only=True) as reader:
        for _ in range(2):  # the second time the loss is known
            with pytest.raises(LedgerReadOnly):
                reader.charge("census", TENTH, key="new")
            found = reader.charge("census", TENTH, key="k")
            assert found.replayed
            assert found.result == 7
