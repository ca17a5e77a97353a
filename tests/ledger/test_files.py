"""The file: durable, refused when newer, damaged, full or read-only, copied and migrated."""

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

import pytest

from discreet.errors import (
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerFull,
    LedgerMissing,
    LedgerReadOnly,
    LedgerTooNew,
    LedgerUnconfirmed,
)
from discreet.ledger import Ledger, _sqlite_link, _sqlite_store
from discreet.ledger._rows import LATEST
from discreet.privacy import PureDP
from ledger.tampering import query, tamper

TENTH = PureDP("0.1")
RECORDED = Path(__file__).parent / "recorded"


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


def test_the_log_is_kept_and_a_lone_charge_is_flushed_by_itself(
    book: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = []
    begin = _sqlite_link.Link.begin

    def watched(link: _sqlite_link.Link, *, full: bool) -> None:
        begin(link, full=full)
        levels.append(link.rows("PRAGMA synchronous")[0][0])

    monkeypatch.setattr(_sqlite_link.Link, "begin", watched)
    assert query(str(file), "PRAGMA journal_mode") == [("wal",)]
    book.charge("census", TENTH)
    assert levels == [2]  # FULL
    [(made, durable)] = query(str(file), "SELECT made, durable FROM commits")
    assert made == durable


def test_a_charge_that_left_the_flush_to_others_waits_for_it(
    book: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Others seem to be in the queue all the time, and none of them ever flushes.
    monkeypatch.setattr(_sqlite_link.Turns, "nobody_waits", lambda _: False)
    for _ in range(3):
        with book.charge("census", TENTH):
            [(made, durable)] = query(str(file), "SELECT made, durable FROM commits")
            assert durable == made
    # Outcomes alone may wait for the next flush; a receipt may not.
    [(made, durable)] = query(str(file), "SELECT made, durable FROM commits")
    assert durable < made
    book.receipt("census", 1)
    [(made, durable)] = query(str(file), "SELECT made, durable FROM commits")
    assert durable == made


def test_a_charge_whose_flush_fails_does_not_run_its_body(
    book: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LedgerFull("no room")

    monkeypatch.setattr(_sqlite_link.Turns, "nobody_waits", lambda _: False)
    monkeypatch.setattr(_sqlite_store.SqliteStore, "_flush_all", fail)
    with pytest.raises(LedgerUnconfirmed, match="counts as spent"), book.charge("census", TENTH):
        pytest.fail("the body ran")
    monkeypatch.undo()
    assert book.show("census").budget.spent["basic"] == Fraction(1, 10)
    assert book.verify().ok


def test_without_a_queue_everyone_flushes_alone(
    book: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sqlite_link.Turns, "_open", lambda *_: None)
    with Ledger.open(file) as other:
        other.charge("census", TENTH)
        with other.charge("census", TENTH):
            pass
        assert other.verify().ok


def test_the_work_for_a_charge_does_not_grow_with_the_history(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps of SQLite's own machine: the same count in every run.
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    prepare = _sqlite_link.Link.prepare

    def counted(link: _sqlite_link.Link, *, fresh: bool) -> None:
        prepare(link, fresh=fresh)
        link.connection.set_progress_handler(count, 1)

    def steps_of_a_charge(key: str) -> int:
        nonlocal steps
        steps = 0
        with book.charge("census", loss, key=key) as charge:
            charge.record(1)
        assert book.charge("census", loss, key=key).replayed
        return steps

    monkeypatch.setattr(_sqlite_link.Link, "prepare", counted)
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


def test_a_creation_that_was_cut_short_can_be_repeated(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    with Ledger.create(file) as book:
        assert book.datasets() == []


def test_a_damaged_file_is_an_error_and_never_a_grant(book: Ledger, file: Path) -> None:
    for _ in range(9):
        book.charge("census", PureDP("0.01"), purpose="x" * 200)
    book.close()
    whole = file.read_bytes()
    pages = len(whole) // 4096
    for page in range(pages):
        file.write_bytes(whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :])
        outcomes = []
        with suppress(LedgerError), Ledger.open(file) as damaged:
            outcomes.append(damaged.verify().ok)
        assert outcomes in ([], [False]), f"page {page} was damaged and nobody noticed"
    file.write_bytes(whole[: len(whole) // 2])
    verdicts = []
    with suppress(LedgerError), Ledger.open(file) as damaged:
        verdicts.append(damaged.verify().ok)
    assert verdicts in ([], [False])


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
from discreet.ledger import Ledger, _sqlite_link, _sqlite_store
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
            path.chmod(0o444)
            for side in folder.iterdir():
                side.chmod(0o444 if folder_mode == 0o555 else 0o666)
            path.chmod(0o444)
            folder.chmod(folder_mode)
            done = subprocess.run(
                [sys.executable, "-c", AS_NOBODY, str(path)],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            folder.chmod(0o777)
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
    prepare = _sqlite_link.Link.prepare

    def limited(link: _sqlite_link.Link, *, fresh: bool) -> None:
        prepare(link, fresh=fresh)
        [(pages,)] = link.rows("PRAGMA page_count")
        link.run(f"PRAGMA max_page_count = {pages + 8}")

    monkeypatch.setattr(_sqlite_link.Link, "prepare", limited)
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
        closing(sqlite3.connect(file, isolation_level=None)) as hog,
    ):
        hog.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerBusy, match="nothing was charged"):
            hasty.charge("census", TENTH)
        hog.execute("ROLLBACK")
        link = _sqlite_link.Turns(file, timeout=1.0)
        with link.mine(), pytest.raises(LedgerBusy, match=r"more than 0\.2 s"):
            hasty.charge("census", TENTH)
        link.close()
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


def test_charges_after_a_backup_show_when_it_is_restored(
    book: Ledger, file: Path, tmp_path: Path
) -> None:
    book.charge("census", TENTH)
    book.backup(tmp_path / "copy")
    receipt = book.charge("census", TENTH).receipt()
    with Ledger.open(tmp_path / "copy") as restored:
        assert restored.verify().ok
        assert not restored.verify(receipts=[receipt]).ok
        restored.charge("census", TENTH)
        restored.charge("census", TENTH)
        assert not restored.verify(receipts=[receipt]).ok


def test_a_closed_ledger_is_one_file_that_can_be_copied(book: Ledger, file: Path) -> None:
    book.charge("census", TENTH)
    book.close()
    copy = file.with_name("copy")
    shutil.copyfile(file, copy)
    with Ledger.open(copy) as other:
        assert other.show("census").budget.charges == 1
        assert other.verify().ok


# --- versions ------------------------------------------------------------------------------


def old_file(file: Path, version: int) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((RECORDED / f"version_{version}.sql").read_text())


def test_every_older_version_is_recorded() -> None:
    names = sorted(path.name for path in RECORDED.glob("*.sql"))
    assert names == [f"version_{version}.sql" for version in range(1, LATEST + 1)]


@pytest.mark.parametrize("version", range(1, LATEST))
def test_an_older_ledger_is_migrated_with_all_it_holds(file: Path, version: int) -> None:
    old_file(file, version)
    entries = query(str(file), "SELECT seq, text, hash FROM entries ORDER BY dataset, seq")
    with pytest.raises(LedgerReadOnly):
        Ledger.open(file, read_only=True)
    with Ledger.open(file) as ledger:
        assert query(str(file), "SELECT value FROM meta WHERE name='schema'") == [(str(LATEST),)]
        assert (
            query(str(file), "SELECT seq, text, hash FROM entries ORDER BY dataset, seq") == entries
        )
        assert ledger.verify().ok
        assert [row.outcome for row in ledger.history("census")] == ["completed", "open"]
        assert ledger.remaining("census", analyst="ann").spent["basic"] == Fraction(1, 10)
        ledger.charge("census", TENTH, analyst="ann", key="new")
        assert ledger.charge("census", TENTH, analyst="ann", key="new").replayed
        assert ledger.verify().ok


@pytest.mark.parametrize("version", range(1, LATEST))
def test_a_migration_that_fails_leaves_the_old_version(
    file: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_file(file, version)
    before = query(str(file), "SELECT sql FROM sqlite_master ORDER BY name"), content(file)
    run = _sqlite_link.Link.run

    def failing(link: _sqlite_link.Link, statement: str, values: tuple[object, ...] = ()) -> int:
        if statement.startswith("UPDATE meta SET value"):
            raise sqlite3.OperationalError("disk I/O error")
        return run(link, statement, values)

    with monkeypatch.context() as patch:
        patch.setattr(_sqlite_link.Link, "run", failing)
        with pytest.raises(LedgerError):
            Ledger.open(file)
    assert (query(str(file), "SELECT sql FROM sqlite_master ORDER BY name"), content(file)) == (
        before
    )
    with Ledger.open(file) as ledger:
        assert ledger.verify().ok


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
