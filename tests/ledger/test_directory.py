"""The directory of a ledger: renamed, replaced and deleted ones never lose a charge."""

import linecache
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from discreet._store import SqliteStore, _sqlite
from discreet.errors import LedgerCorrupt, LedgerError, LedgerExists, LedgerUnconfirmed
from discreet.ledger import Ledger
from discreet.privacy import PureDP
from ledger.tampering import database_of, query

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


def delete(file: Path) -> None:
    shutil.rmtree(file)


def replace(file: Path) -> None:
    shutil.copytree(file, file.with_name("copy"))
    file.rename(file.with_name("replaced"))
    file.with_name("copy").rename(file)


def link_database(file: Path) -> None:
    os.link(database_of(file), file.with_name("linked.sqlite"))


def delete_database(file: Path) -> None:
    database_of(file).unlink()


def replace_database(file: Path) -> None:
    copy = file.with_name("copy")
    shutil.copyfile(database_of(file), copy)
    copy.replace(database_of(file))


def log_of(file: Path) -> Path:
    return Path(f"{database_of(file)}-wal")


def delete_log(file: Path) -> None:
    log_of(file).unlink()


def replace_log(file: Path) -> None:
    copy = file.with_name("copy")
    shutil.copyfile(log_of(file), copy)
    copy.replace(log_of(file))


def delete_index(file: Path) -> None:
    Path(f"{database_of(file)}-shm").unlink()


OUTSIDE = [rename, delete, replace]
INSIDE = [link_database, delete_database, replace_database, delete_log, replace_log, delete_index]


@pytest.mark.parametrize("deed", OUTSIDE + INSIDE, ids=lambda deed: deed.__name__)
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


@pytest.mark.parametrize("deed", OUTSIDE, ids=lambda deed: deed.__name__)
def test_who_comes_later_never_misses_a_charge(
    book: Ledger, file: Path, deed: Callable[[Path], None], charge_elsewhere: Elsewhere
) -> None:
    # The log moves and is copied with the database, so it is never missed.
    deed(file)
    if file.exists():
        assert charge_elsewhere(file) == "2"
    if file.with_name("renamed").exists():
        assert charge_elsewhere(file.with_name("renamed")) == "2"


@pytest.mark.parametrize("deed", OUTSIDE + INSIDE, ids=lambda deed: deed.__name__)
def test_a_directory_that_moves_during_the_charge_runs_no_body(
    book: Ledger, file: Path, deed: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _sqlite.Link.run

    def commit_and_act(link: _sqlite.Link, statement: str, values: tuple[object, ...] = ()) -> int:
        if statement == "COMMIT":
            deed(file)
        return run(link, statement, values)

    monkeypatch.setattr(_sqlite.Link, "run", commit_and_act)
    with pytest.raises(LedgerUnconfirmed, match="must not run"), book.charge("census", TENTH):
        pytest.fail("the body ran")


def test_without_the_check_a_charge_goes_to_a_ledger_that_nobody_finds(
    book: Ledger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The planted bug: what these tests would see of a ledger that does not look.
    monkeypatch.setattr(_sqlite.Link, "check_files", lambda _: None)
    replace(file)
    book.charge("census", TENTH)
    with Ledger.open(file) as other:
        assert other.show("census").budget.charges == 1


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
    link_database(file)
    with pytest.raises(LedgerError, match="2 hard links"):
        book.charge("census", TENTH)
    file.with_name("linked.sqlite").unlink()
    book.charge("census", TENTH)
    assert charge_elsewhere(file) == "4"
    assert book.verify().ok


def test_a_hard_link_is_refused_at_the_door(book: Ledger, file: Path) -> None:
    book.close()
    link_database(file)
    for read_only in (False, True):
        with pytest.raises(LedgerError, match="hard links"):
            Ledger.open(file, read_only=read_only)


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
        with pytest.raises(LedgerError, match="was replaced, moved or deleted"):
            same.charge("census", TENTH)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(LedgerError):
        Ledger.open(loop)


def test_only_the_owner_may_look_into_a_ledger(book: Ledger, file: Path, tmp_path: Path) -> None:
    book.backup(tmp_path / "copy")
    for place in (file, tmp_path / "copy"):
        assert place.stat().st_mode & 0o777 == 0o700
        for path in place.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600


def test_two_databases_in_one_directory_are_refused(book: Ledger, file: Path) -> None:
    # A backup that was laid over a ledger: no log ever meets another database.
    book.backup(file.with_name("copy"))
    book.close()
    for path in file.with_name("copy").iterdir():
        if path.suffix == ".sqlite":
            shutil.copy(path, file)
    for read_only in (False, True):
        with pytest.raises(LedgerCorrupt, match=r"holds 2 databases.*laid over"):
            Ledger.open(file, read_only=read_only)


def test_a_directory_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("x")
    for _ in range(2):
        with pytest.raises(LedgerExists):
            Ledger.create(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["mine"]


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


def test_a_name_too_long_for_its_side_files_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    with pytest.raises(LedgerError, match="File name too long"):
        Ledger.create(tmp_path / ("x" * 251))
    assert list(tmp_path.iterdir()) == []


def test_an_idle_shell_keeps_nobody_out(book: Ledger, file: Path) -> None:
    book.close()
    with closing(sqlite3.connect(database_of(file))) as shell:
        shell.execute("SELECT * FROM meta").fetchall()
        with Ledger.open(file, timeout=0.3) as writer:
            writer.charge("census", TENTH)
        rows = shell.execute("SELECT seq FROM entries")
        rows.fetchone()  # and neither does one in the middle of a query
        with Ledger.open(file, timeout=0.3) as writer:
            writer.charge("census", TENTH)
            assert writer.verify().ok
        with Ledger.open(file, read_only=True) as reader:
            assert reader.show("census").budget.charges == 3


CLOSING_SLOWLY = """
import sys, time
from discreet.ledger import Ledger
from discreet._store._sqlite import Link
ledger = Ledger.open(sys.argv[1])
ledger.show("census")
def slowly(step):
    def slow(self):
        print(step.__name__, flush=True)
        time.sleep(0.4)
        step(self)
    return slow
Link.abandon = slowly(Link.abandon)
Link.close = slowly(Link.close)
ledger.close()
"""


@pytest.mark.parametrize("step", ["abandon", "close"])
@pytest.mark.slow
def test_who_comes_while_the_last_one_closes_gets_in(book: Ledger, file: Path, step: str) -> None:
    book.close()
    with subprocess.Popen(
        [sys.executable, "-c", CLOSING_SLOWLY, str(file)], stdout=subprocess.PIPE, text=True
    ) as last:
        assert last.stdout is not None
        while last.stdout.readline() != f"{step}\n":
            assert last.poll() is None
        with Ledger.open(file, timeout=60) as ledger:
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
    assert log_of(file).stat().st_size > 0


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


def test_a_crash_alone_is_no_reason_to_refuse(crashed: Path) -> None:
    with Ledger.open(crashed, read_only=True) as ledger:
        assert ledger.show("census").budget.charges == 66
    with Ledger.open(crashed) as ledger:
        assert ledger.show("census").budget.charges == 66
    crash(crashed)
    for path in crashed.iterdir():
        os.utime(path)  # touched since then, and nevertheless the right files
    with Ledger.open(crashed) as ledger:
        assert ledger.show("census").budget.charges == 71
        assert ledger.verify().ok


def test_a_backup_never_meets_the_log_of_a_crash(crashed: Path) -> None:
    # Its database has another name, and SQLite names the log after the database.
    backup = database_of(crashed.with_name("backup"))
    assert backup.name != database_of(crashed).name
    database_of(crashed).unlink()
    shutil.copy(backup, crashed)
    with Ledger.open(crashed, read_only=True) as ledger:
        assert ledger.verify().ok
        assert ledger.show("census").budget.charges == 1


# --- interrupts --------------------------------------------------------------------------------


class Interrupt(BaseException):
    """What Ctrl-C raises, at a line of our choice."""


def interrupted_at(number: int, deed: Callable[[], object]) -> tuple[str, int] | None:
    """Run a deed that is interrupted at a line of the ledger's code; say which line it was."""
    count, place = 0, None

    def trace(frame: Any, _event: str, _argument: object) -> Any:
        return at_line if f"{os.sep}_store{os.sep}" in frame.f_code.co_filename else None

    def at_line(frame: Any, event: str, _argument: object) -> Any:
        nonlocal count, place
        if event == "line" and Path(frame.f_code.co_filename).name in INTERRUPTED:
            # A line that ends a block of the guard is reached again before it is let go, where
            # Python takes no signals.
            source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if "with self._guard" not in source and "with self._flushing" not in source:
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


INTERRUPTED = ("_sqlite.py",)


@pytest.mark.slow
def test_an_interrupt_at_any_line_leaves_no_lock_behind(file: Path) -> None:
    with Ledger.create(file, timeout=0.2) as ledger, Ledger.open(file, timeout=0.2) as other:
        ledger.create_dataset("census", epsilon=1)
        small, lines = PureDP("1/100000"), 0
        store = ledger._store
        assert isinstance(store, SqliteStore)
        while interrupted_at(lines + 1, lambda: ledger.charge("census", small)) is not None:
            lines += 1
            assert not store._leased
            if lines % 3 == 0:
                other.charge("census", small)
        assert lines > 80
        other.charge("census", small)
        assert other.verify().ok
