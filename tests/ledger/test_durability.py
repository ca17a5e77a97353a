"""Visible is durable: power cuts, failed flushes, and what is repaired afterwards.

The double of the disk keeps what was flushed: after a power cut the database is as it was made
and the log is as it was when it was last flushed. Nothing here is so long that SQLite copies pages
from the log into the database.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from discreet._store import MARK, _sqlite
from discreet.errors import LedgerCorrupt, LedgerError, LedgerUnconfirmed
from discreet.ledger import Ledger
from discreet.privacy import PureDP
from ledger.disk import Disk
from ledger.tampering import database_of
from ledger.test_races import in_threads

TENTH = PureDP("0.1")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def book(disk: Disk, file: Path) -> Iterator[Ledger]:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
        yield ledger


def charges(place: Path) -> int:
    with Ledger.open(place, read_only=True) as ledger:
        verdict = ledger.verify()
        assert verdict.ok, verdict.problems
        return ledger.show("census").budget.charges


def test_a_charge_survives_a_power_cut_in_its_body(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path
) -> None:
    for number in range(1, 4):
        with book.charge("census", TENTH):
            assert charges(disk.cut_power(file, tmp_path / f"after{number}")) == number


def test_without_the_flush_a_power_cut_forgets_the_charge(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The planted bug: the double would show it.
    monkeypatch.setattr(_sqlite.Link, "flush_log", lambda _: None)
    with book.charge("census", TENTH):
        assert charges(disk.cut_power(file, tmp_path / "after")) == 0


def seen_by_another(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path, look: Callable[[Ledger], Any]
) -> tuple[Any, int]:
    """What a second worker shows of a charge whose own flush hangs, and what a power cut leaves."""
    hangs, go_on = threading.Event(), threading.Event()
    writer = threading.current_thread()

    def wait() -> None:
        if threading.current_thread() is writer:
            hangs.set()
            assert go_on.wait(60)

    def charge() -> None:
        with book.charge("census", TENTH, key="k") as made:
            made.record(7)

    with Ledger.open(file) as second:
        second.show("census")
        disk.before = wait
        writer = threading.Thread(target=charge)
        writer.start()
        try:
            assert hangs.wait(60)
            shown = look(second)
            left = charges(disk.cut_power(file, tmp_path / "after"))
        finally:
            go_on.set()
            writer.join()
    return shown, left


LOOKS: dict[str, Callable[[Ledger], Any]] = {
    "by its key": lambda ledger: ledger.charge("census", TENTH, key="k").replayed,
    "a receipt": lambda ledger: bool(ledger.receipt("census", 1)),
    "the sums": lambda ledger: ledger.show("census").budget.charges == 1,
    "the history": lambda ledger: len(ledger.history("census")) == 1,
    "an export": lambda ledger: len(ledger.export("census")["chain"]) == 2,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_what_a_second_worker_shows_survives_a_power_cut(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path, look: Callable[[Ledger], Any]
) -> None:
    assert seen_by_another(disk, book, file, tmp_path, look) == (True, 1)


def test_without_the_flush_of_readers_what_was_shown_is_forgotten(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = _sqlite.SqliteStore.reading
    monkeypatch.setattr(
        _sqlite.SqliteStore, "reading", lambda store, *, durable=True: reading(store, durable=False)
    )
    look = LOOKS["by its key"]
    assert seen_by_another(disk, book, file, tmp_path, look) == (True, 0)


# --- a slow disk -----------------------------------------------------------------------------


def test_on_a_slow_disk_no_power_cut_forgets_a_charge_whose_body_runs(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path
) -> None:
    """Six threads charge, each flush takes 20 ms, and power is cut in every body."""
    disk.before = lambda: time.sleep(0.02)
    cuts: dict[str, Path] = {}

    def work(number: int) -> None:
        for turn in range(3):
            key = f"{number}-{turn}"
            with book.charge("census", PureDP("1/100"), key=key):
                cuts[key] = disk.cut_power(file, tmp_path / f"after-{key}")

    in_threads(6, work)
    disk.before = lambda: None
    assert len(cuts) == 18
    for key, place in cuts.items():
        with Ledger.open(place, read_only=True) as ledger:
            assert ledger.verify().ok
            assert key in {row.key for row in ledger.history("census")}
    assert book.show("census").budget.charges == 18


@pytest.mark.parametrize("shares", [False, True])
def test_a_flush_that_began_before_the_commit_does_not_cover_it(
    disk: Disk,
    book: Ledger,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shares: bool,
) -> None:
    """A charge is made while the flush of another hangs; power is cut in its body.

    The planted bug is ``shares``: whoever waits for another's flush takes it for its own.
    """
    hangs, arrived, flushed = threading.Event(), threading.Event(), threading.Event()
    flush, cuts = _sqlite.SqliteStore._flush, []

    def wait() -> None:
        if threading.current_thread() is first and not flushed.is_set():
            hangs.set()
            assert arrived.wait(60)

    def watched(store: Any, link: Any, number: int) -> None:
        if threading.current_thread() is second:
            arrived.set()
            if shares:
                assert flushed.wait(60)
                return
        flush(store, link, number)
        if hangs.is_set() and threading.current_thread() is first:
            flushed.set()

    def charge_second() -> None:
        with book.charge("census", TENTH):
            cuts.append(disk.cut_power(file, tmp_path / "after"))

    first = threading.Thread(target=book.charge, args=("census", TENTH))
    second = threading.Thread(target=charge_second)
    disk.before = wait
    monkeypatch.setattr(_sqlite.SqliteStore, "_flush", watched)
    first.start()
    assert hangs.wait(60)
    second.start()
    first.join()
    second.join()
    assert [charges(place) for place in cuts] == [1 if shares else 2]


# --- failed flushes --------------------------------------------------------------------------


def test_a_failed_flush_runs_no_body_and_nothing_rests_on_it(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path
) -> None:
    book.charge("census", TENTH)
    with Ledger.open(file) as second:
        second.show("census")
        disk.fails = True
        with pytest.raises(LedgerUnconfirmed, match="must not run"), book.charge("census", TENTH):
            pytest.fail("the body ran")
        disk.fails = False  # as a kernel does it, that reports an error once
        for ledger in (book, second):
            for attempt in (
                lambda ledger=ledger: ledger.charge("census", TENTH),
                lambda ledger=ledger: ledger.show("census"),
                lambda ledger=ledger: ledger.receipt("census", 2),
            ):
                with pytest.raises(LedgerError, match="discreet ledger repair"):
                    attempt()
        with Ledger.open(file) as third, pytest.raises(LedgerError, match="repair"):
            third.charge("census", TENTH)
        verdict = second.verify()  # which looks at everything, and says why it is not sound
        assert verdict.entries == 3
        assert ["discreet ledger repair" in str(fault) for fault in verdict.problems] == [True]
    # After a power cut nothing is missing that was confirmed, and the mark is still there.
    after = disk.cut_power(file, tmp_path / "after")
    with Ledger.open(after) as ledger, pytest.raises(LedgerError, match="repair"):
        ledger.charge("census", TENTH)
    assert Ledger.repair(after)
    assert charges(after) == 1


def test_without_the_mark_a_charge_would_rest_on_a_lost_one(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The planted bug: a failed flush of one, a charge of another, a power cut that leaves a hole.
    monkeypatch.setattr(_sqlite.SqliteStore, "_check_mark", lambda *_: None)
    log = Path(f"{database_of(file)}-wal")
    book.charge("census", TENTH)
    start = log.stat().st_size
    disk.fails = True
    with pytest.raises(LedgerUnconfirmed):
        book.charge("census", TENTH)
    end = log.stat().st_size
    disk.fails = False
    with Ledger.open(file) as second:
        second.charge("census", TENTH)
        assert second.show("census").budget.charges == 3
    whole = disk.flushed[log]
    disk.flushed[log] = whole[:start] + b"\0" * (end - start) + whole[end:]
    assert charges(disk.cut_power(file, tmp_path / "after")) == 1


def test_repair_keeps_every_charge_and_lets_others_in_again(
    disk: Disk, book: Ledger, file: Path, tmp_path: Path
) -> None:
    assert not Ledger.repair(file)
    book.charge("census", TENTH)
    disk.fails = True
    with pytest.raises(LedgerUnconfirmed):
        book.charge("census", TENTH)
    disk.fails = False
    before = database_of(file).name
    assert Ledger.repair(file)
    assert database_of(file).name != before
    assert sorted(path.suffix for path in file.iterdir()) == ["", ".sqlite"]
    for path in file.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    # Who had the old database open must open it again.
    with pytest.raises(Exception, match="nothing was charged"):
        book.charge("census", TENTH)
    with Ledger.open(file) as ledger:
        assert ledger.show("census").budget.spent["basic"] == Fraction(2, 10)
        ledger.charge("census", TENTH)
        assert ledger.verify().ok
    assert not Ledger.repair(file)


class Cut(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("name", ["rename", "unlink"])
@pytest.mark.parametrize("number", range(1, 5))
def test_a_repair_that_is_cut_short_can_be_repeated(
    disk: Disk, book: Ledger, file: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.charge("census", TENTH)
    disk.fails = True
    with pytest.raises(LedgerUnconfirmed):
        book.charge("census", TENTH)
    disk.fails = False
    book.close()
    true, calls = getattr(Path, name), 0

    def cut(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise Cut
        return true(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, cut)
        try:
            Ledger.repair(file)
        except Cut:
            if not any(file.glob("ledger-*.sqlite")):
                with pytest.raises(LedgerCorrupt, match="run discreet ledger repair"):
                    Ledger.open(file)
    Ledger.repair(file)
    assert not (file / MARK).exists()
    assert charges(file) == 2


def test_a_log_that_cannot_be_flushed_by_a_child_process_is_marked(file: Path) -> None:
    # In another process, through the system: the descriptor of the log is closed behind its back.
    script = """
import os, sys
from discreet._store import _sqlite
from discreet.errors import LedgerUnconfirmed
from discreet.ledger import Ledger
from discreet.privacy import PureDP
with Ledger.open(sys.argv[1]) as ledger:
    ledger.show("census")
    [link] = ledger._store._idle
    os.close(link._log)
    try:
        ledger.charge("census", PureDP("0.1"))
    except LedgerUnconfirmed:
        print("unconfirmed")
    link._log = None
"""
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ},
    )
    assert done.stdout == "unconfirmed\n", done.stderr
    with Ledger.open(file) as ledger, pytest.raises(LedgerError, match="repair"):
        ledger.charge("census", TENTH)
    assert Ledger.repair(file)
    assert charges(file) == 1
