"""One file, one log: renamed, linked, replaced and deleted ledgers never lose a charge."""

import linecache
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from discreet.errors import LedgerCorrupt, LedgerError, LedgerUnconfirmed
from discreet.ledger import Ledger, _sqlite_link, _sqlite_store
from discreet.ledger._custody import Custody
from discreet.privacy import PureDP
from ledger.tampering import query

TENTH = PureDP("0.1")
Elsewhere = Callable[[Path], str]

# Another process: for every path that it is told it opens the ledger, charges it once, and says
# how many charges it sees, or that it was refused.
OTHER = """
import sys
from discreet.errors import LedgerError
from discreet.ledger import Ledger
from discreet.privacy import PureDP
for line in sys.stdin:
    try:
        with Ledger.open(line.rstrip("\\n"), timeout=0.3) as ledger:
            ledger.charge("census", PureDP("0.1"))
            print(ledger.show("census").budget.charges, flush=True)
    except LedgerError as error:
        print("refused", error, flush=True)
"""


@pytest.fixture(scope="module")
def charge_elsewhere() -> Iterator[Callable[[Path], str]]:
    """Charge a ledger in another process."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        told, said = other.stdin, other.stdout

        def ask(path: Path) -> str:
            told.write(f"{path}\n")
            told.flush()
            return said.readline().strip()

        yield ask
        told.close()


@pytest.fixture
def book(file: Path) -> Iterator[Ledger]:
    with Ledger.create(file, timeout=2) as ledger:
        ledger.create_dataset("census", epsilon=1)
        ledger.charge("census", TENTH)
        yield ledger


def rename(file: Path) -> None:
    file.rename(file.with_name("renamed"))


def link(file: Path) -> None:
    os.link(file, file.with_name("linked"))


def delete(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    copy = file.with_name("copy")
    shutil.copyfile(file, copy)
    copy.replace(file)


def delete_log(file: Path) -> None:
    Path(f"{file}-wal").unlink()


def replace_log(file: Path) -> None:
    copy = file.with_name("copy")
    shutil.copyfile(f"{file}-wal", copy)
    copy.replace(f"{file}-wal")


def delete_index(file: Path) -> None:
    Path(f"{file}-shm").unlink()


DEEDS = [rename, link, delete, replace, delete_log, replace_log, delete_index]


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_who_has_the_ledger_open_is_refused(
    book: Ledger, file: Path, deed: Callable[[Path], None]
) -> None:
    deed(file)
    for attempt in (
        lambda: book.charge("census", TENTH),
        lambda: book.create_dataset("other", epsilon=1),
        lambda: book.show("census"),
        lambda: book.verify(),
        lambda: book.receipt("census", 1),
    ):
        with pytest.raises(LedgerError, match="nothing was charged"):
            attempt()


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_who_comes_later_never_misses_a_charge(
    book: Ledger, file: Path, deed: Callable[[Path], None], charge_elsewhere: Elsewhere
) -> None:
    # The first process still holds its log; a second one may charge only if it sees that log.
    deed(file)
    for path in (file, file.with_name("renamed"), file.with_name("linked")):
        if path.exists():
            assert charge_elsewhere(path).startswith("refused")
            with suppress(LedgerError), Ledger.open(path, timeout=0.2) as same_process:
                pytest.fail(f"opened {same_process!r}")


def test_a_ledger_that_was_closed_may_be_renamed(
    book: Ledger, file: Path, charge_elsewhere: Elsewhere
) -> None:
    book.close()
    rename(file)
    assert charge_elsewhere(file.with_name("renamed")) == "2"


def test_a_name_that_is_given_back_is_welcome_again(
    book: Ledger, file: Path, charge_elsewhere: Elsewhere
) -> None:
    rename(file)
    with pytest.raises(LedgerError, match="no longer there"):
        book.charge("census", TENTH)
    file.with_name("renamed").rename(file)
    book.charge("census", TENTH)
    link(file)
    with pytest.raises(LedgerError, match="2 hard links"):
        book.charge("census", TENTH)
    file.with_name("linked").unlink()
    book.charge("census", TENTH)
    assert charge_elsewhere(file) == "4"
    assert book.verify().ok


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_a_file_that_moves_during_the_charge_runs_no_body(
    book: Ledger, file: Path, deed: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _sqlite_link.Link.run

    def commit_and_act(link_: _sqlite_link.Link, statement: str, values: tuple[object, ...] = ()):
        if statement == "COMMIT":
            deed(file)
        return run(link_, statement, values)

    monkeypatch.setattr(_sqlite_link.Link, "run", commit_and_act)
    with pytest.raises(LedgerUnconfirmed, match="must not run"), book.charge("census", TENTH):
        pytest.fail("the body ran")


def test_without_the_checks_a_charge_is_lost(
    book: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The planted bug: what these tests would see of a ledger that does not look.
    monkeypatch.setattr(Custody, "check", lambda _: None)
    monkeypatch.setattr(Custody, "_compare", lambda *_: None)
    monkeypatch.setattr(_sqlite_link.Link, "_is_free", lambda _: True)
    monkeypatch.setattr("discreet.ledger._custody.identity_of", lambda _: "-")
    rename(file)
    book.charge("census", TENTH)
    script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
    script += "print(c.execute('SELECT COUNT(*) FROM sqlite_master').fetchone()[0])"
    seen = subprocess.run(
        [sys.executable, "-c", script, str(file.with_name("renamed"))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(seen.stdout) == 0  # everything is in the log of the old name


def test_a_hard_link_is_refused_at_the_door(book: Ledger, file: Path) -> None:
    book.close()
    link(file)
    for name in ("file.ledger", "linked"):
        for read_only in (False, True):
            with pytest.raises(LedgerError, match="hard links"):
                Ledger.open(file.with_name(name), read_only=read_only)


def test_symbolic_links_lead_to_one_ledger(book: Ledger, file: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    alias = tmp_path / "sub" / "alias"
    alias.symlink_to(file)
    with Ledger.open(alias) as same:
        same.charge("census", TENTH)
        assert book.show("census").budget.charges == 2
        assert [path.name for path in (tmp_path / "sub").iterdir()] == ["alias"]
        other = tmp_path / "other"
        with Ledger.create(other) as ledger:
            ledger.create_dataset("census", epsilon=1)
        alias.unlink()
        alias.symlink_to(other)
        with pytest.raises(LedgerError, match="leads to another file"):
            same.charge("census", TENTH)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(LedgerError):
        Ledger.open(loop)


def test_a_ledger_stays_where_it_is_when_the_process_moves(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger.create("here") as ledger:
        ledger.create_dataset("census", epsilon=1)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        ledger.charge("census", TENTH)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_may_be_renamed_and_all_still_share_one_log(
    tmp_path: Path, charge_elsewhere: Elsewhere
) -> None:
    (tmp_path / "a").mkdir()
    with Ledger.create(tmp_path / "a" / "ledger") as ledger:
        ledger.create_dataset("census", epsilon=1)
        ledger.charge("census", TENTH)
        (tmp_path / "a").rename(tmp_path / "b")
        with pytest.raises(LedgerError, match="no longer there"):
            ledger.charge("census", TENTH)
        # The log moved with the file, so nothing is missed here.
        assert charge_elsewhere(tmp_path / "b" / "ledger") == "2"


def test_a_file_replaced_between_connections_is_another_ledger(file: Path) -> None:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
        ledger._store._close_idle()  # type: ignore[attr-defined]
        replace(file)
        with pytest.raises(LedgerError, match="replaced since it was opened"):
            ledger.charge("census", TENTH)


def test_readers_and_writers_come_and_go(file: Path, charge_elsewhere: Elsewhere) -> None:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
    with Ledger.open(file, read_only=True) as reader:
        assert reader.show("census").budget.charges == 0
        assert charge_elsewhere(file) == "1"
        with Ledger.open(file) as writer:
            writer.charge("census", TENTH)
            assert reader.show("census").budget.spent["basic"] == Fraction(1, 5)
        assert reader.verify().ok
    assert charge_elsewhere(file) == "3"


def test_a_writer_who_cannot_register_is_refused(file: Path, charge_elsewhere: Elsewhere) -> None:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
    users = Path(f"{file}-users")
    assert users.stat().st_mode & 0o666 == file.stat().st_mode & 0o666
    users.unlink()
    users.mkdir()
    with pytest.raises(LedgerError, match="-users cannot be opened"):
        Ledger.open(file)
    # One who only reads may go on, and keeps nobody from the file.
    with Ledger.open(file, read_only=True) as reader:
        assert reader.show("census").budget.charges == 0
        users.rmdir()
        assert charge_elsewhere(file) == "1"
        assert reader.verify().ok


def test_a_name_too_long_for_its_side_files_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    with pytest.raises(LedgerError, match="File name too long"):
        Ledger.create(tmp_path / ("x" * 251))
    assert list(tmp_path.iterdir()) == []


READING = """
import sys
from discreet.ledger import Ledger
with Ledger.open(sys.argv[1], read_only=True) as ledger:
    for _ in range(2):
        print(ledger.show("census").budget.charges, flush=True)
        sys.stdin.readline()
"""


def test_a_reader_vouches_for_nobody(book: Ledger, file: Path, charge_elsewhere: Elsewhere) -> None:
    # What is in the main file is seen under the second name; the log is not.
    book.close()
    second = file.with_name("renamed")
    with Ledger.open(file) as first:
        first.charge("census", TENTH)
        rename(file)
        with subprocess.Popen(
            [sys.executable, "-c", READING, str(second)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            for _ in range(2):
                assert reader.stdout.readline() == "1\n"
                assert "another name" in charge_elsewhere(second)
                reader.stdin.write("\n")
                reader.stdin.flush()
        second.rename(file)
        assert first.show("census").budget.charges == 2
        assert charge_elsewhere(file) == "3"


def test_a_reader_is_refused_where_the_log_of_the_users_is_gone(book: Ledger, file: Path) -> None:
    assert book.show("census").budget.charges == 1
    delete_log(file)
    with pytest.raises(LedgerError, match="replaced, moved or deleted"):
        Ledger.open(file, read_only=True, timeout=0.1)


def test_a_ledger_is_not_created_over_one_in_use_under_another_name(
    tmp_path: Path, charge_elsewhere: Elsewhere
) -> None:
    # Whatever is at the name, even an empty file, is asked for alone.
    path = tmp_path / "ledger"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert path.stat().st_size == 0
        with pytest.raises(LedgerError, match="in use"):
            Ledger.create(path, timeout=0.1)
        other.execute("ROLLBACK")
        Ledger.create(path).close()


def test_an_idle_shell_keeps_writers_out_for_their_timeout_and_readers_never(
    book: Ledger, file: Path
) -> None:
    book.close()
    with closing(sqlite3.connect(file)) as shell:
        shell.execute("SELECT * FROM meta").fetchall()
        began = time.monotonic()
        with pytest.raises(LedgerError, match=r"database shell.*close it there"):
            Ledger.open(file, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 2
        with Ledger.open(file, read_only=True) as reader:
            assert reader.verify().ok
            assert reader.receipt("census", 1) == reader.receipt("census", 1)
    Ledger.open(file, timeout=0.3).close()


CLOSING_SLOWLY = """
import sys, time
from discreet.ledger import Ledger
from discreet.ledger._sqlite_link import Link
ledger = Ledger.open(sys.argv[1])
ledger.show("census")
def slowly(step):
    def slow(self):
        print(step.__name__, flush=True)
        time.sleep(0.4)
        step(self)
    return slow
Link._leave = slowly(Link._leave)
Link.roll_back = slowly(Link.roll_back)
ledger.close()
"""


@pytest.mark.parametrize("step", ["_leave", "roll_back"])
def test_who_comes_while_the_last_one_closes_gets_in(book: Ledger, file: Path, step: str) -> None:
    book.close()
    with subprocess.Popen(
        [sys.executable, "-c", CLOSING_SLOWLY, str(file)], stdout=subprocess.PIPE, text=True
    ) as last:
        assert last.stdout is not None
        while last.stdout.readline() != f"{step}\n":
            assert last.poll() is None
        with Ledger.open(file, timeout=5) as ledger:
            ledger.charge("census", TENTH)
            assert ledger.show("census").budget.charges == 2
        last.stdout.read()


CROWD = """
import os, sys
from discreet.ledger import Ledger
from discreet.privacy import PureDP
def enter():
    with Ledger.open(sys.argv[1]) as ledger:
        ledger.charge("census", PureDP("1/100"))
for _ in range(5):
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            try:
                enter()
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    print(sum(os.waitpid(child, 0)[1] == 0 for child in children))
"""


def test_many_who_open_at_once_all_get_in(file: Path) -> None:
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
    done = subprocess.run(
        [sys.executable, "-c", CROWD, str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["6"] * 5, done.stderr
    assert query(str(file), "SELECT COUNT(*) FROM entries") == [(31,)]


def test_a_file_that_is_not_a_ledger_is_still_named_as_such(file: Path) -> None:
    file.write_bytes(b"x" * 9000)
    for read_only in (False, True):
        with pytest.raises(LedgerCorrupt, match="not a ledger"):
            Ledger.open(file, read_only=read_only)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


# --- a log that a crash left behind -----------------------------------------------------------

CRASH = """
import os, sys
from discreet.ledger import Ledger
from discreet.privacy import PureDP
ledger = Ledger.open(sys.argv[1])
for _ in range(5):
    ledger.charge("census", PureDP("1/10000"))
os.kill(os.getpid(), 9)
"""


def crash(file: Path) -> None:
    subprocess.run([sys.executable, "-c", CRASH, str(file)], check=False, timeout=60)
    assert Path(f"{file}-wal").stat().st_size > 0


@pytest.fixture
def crashed(file: Path) -> Path:
    """A ledger with five charges in its log, and an older backup beside it."""
    with Ledger.create(file) as ledger:
        ledger.create_dataset("census", epsilon=1)
        ledger.charge("census", PureDP("1/10000"))
        ledger.backup(file.with_name("backup"))
        for _ in range(60):
            ledger.charge("census", PureDP("1/10000"))
    crash(file)
    return file


def copy_over(file: Path) -> None:
    shutil.copyfile(file.with_name("backup"), file)


def move_over(file: Path) -> None:
    shutil.copyfile(file.with_name("backup"), file.with_name("again"))
    file.with_name("again").replace(file)


@pytest.mark.parametrize("restore", [copy_over, move_over])
def test_a_backup_is_not_mixed_with_the_log_of_a_crash(
    crashed: Path, restore: Callable[[Path], None]
) -> None:
    restore(crashed)
    restored = crashed.read_bytes()
    with pytest.raises(LedgerCorrupt, match=r"do not belong together.*delete -wal and -shm"):
        Ledger.open(crashed)
    assert crashed.read_bytes() == restored
    for end in ("-wal", "-shm"):
        Path(f"{crashed}{end}").unlink()
    with Ledger.open(crashed) as ledger:
        assert ledger.verify().ok
        assert ledger.show("census").budget.charges == 1


def test_a_crash_alone_is_no_reason_to_refuse(
    crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # The log was written last, so nothing has to be replayed.
        patch.setattr(_sqlite_store.SqliteStore, "_examine", lambda _: pytest.fail("examined"))
        with Ledger.open(crashed) as ledger:
            assert ledger.show("census").budget.charges == 66
    crash(crashed)
    crashed.chmod(0o644)  # touched since then, and nevertheless the right file
    with Ledger.open(crashed) as ledger:
        assert ledger.show("census").budget.charges == 71
        assert ledger.verify().ok


def test_a_log_that_was_deleted_after_a_crash_is_missed(crashed: Path) -> None:
    kept = Path(f"{crashed}-wal").read_bytes()
    delete_log(crashed)
    with pytest.raises(LedgerCorrupt, match=r"-wal is missing.*put it back"):
        Ledger.open(crashed)
    Path(f"{crashed}-wal").write_bytes(kept)
    with Ledger.open(crashed) as ledger:
        assert ledger.show("census").budget.charges == 66


# --- interrupts --------------------------------------------------------------------------------


class Interrupt(BaseException):
    """What Ctrl-C raises, at a line of our choice."""


def interrupted_at(number: int, deed: Callable[[], object]) -> tuple[str, int] | None:
    """Run a deed that is interrupted at a line of the ledger's code; say which line it was."""
    count, place = 0, None

    def trace(frame: Any, _event: str, _argument: object) -> Any:
        return at_line if f"{os.sep}ledger{os.sep}" in frame.f_code.co_filename else None

    def at_line(frame: Any, event: str, _argument: object) -> Any:
        nonlocal count, place
        if event == "line" and Path(frame.f_code.co_filename).name in INTERRUPTED:
            # A line that ends a block of the guard is reached again before it is let go, where
            # Python takes no signals.
            source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if "with self._guard" not in source:
                count += 1
                if count == number:
                    place = Path(frame.f_code.co_filename).name, frame.f_lineno
                    sys.settrace(None)
                    raise Interrupt
        return at_line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        deed()
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
    return place


INTERRUPTED = ("turns.py", "_sqlite_store.py", "_sqlite_link.py")


def test_an_interrupt_at_any_line_leaves_no_lock_behind(file: Path) -> None:
    with Ledger.create(file, timeout=0.2) as ledger, Ledger.open(file, timeout=0.2) as other:
        ledger.create_dataset("census", epsilon=1)
        small, lines = PureDP("1/100000"), 0
        store = ledger._store
        assert isinstance(store, _sqlite_store.SqliteStore)
        while interrupted_at(lines + 1, lambda: ledger.charge("census", small)) is not None:
            lines += 1
            assert not store._leased
            for link_ in store._idle:
                [(level,)] = link_.rows("PRAGMA synchronous")
                assert link_._full is None or link_._full is (level == 2)
            if lines % 3 == 0:
                other.charge("census", small)
        assert lines > 80
        other.charge("census", small)
        assert other.verify().ok
