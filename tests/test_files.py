"""Files and directories are complete or absent, with the rights they should have."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from discreet._files import create_file, new_directory, replace_file, write_file
from discreet.errors import InvalidValue


def test_a_file_is_replaced_when_the_block_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "picture.svg"
    target.write_text("old")
    with replace_file(target) as draft:
        assert draft.suffix == ".svg"  # libraries choose the format by it
        assert draft.parent == tmp_path
        draft.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_an_older_file_stays_when_the_block_fails(tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.json", "old")

    def write_half() -> None:
        with replace_file(target) as draft:
            draft.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_private_file_is_never_readable_for_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with replace_file(tmp_path / "private", private=True) as draft:
            assert draft.stat().st_mode & 0o777 == 0o600
        write_file(tmp_path / "public", b"x")
        assert create_file(tmp_path / "made", "x", private=True)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"private": 0o600, "public": 0o644, "made": 0o600}


def test_a_missing_directory_is_an_error_before_the_block(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replace_file(tmp_path / "no" / "file"):
        raise AssertionError("the block was entered")


def test_of_many_one_creates_the_file(tmp_path: Path) -> None:
    target = tmp_path / "seed"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda text: create_file(target, text), map(str, range(32))))
    assert sum(made) == 1
    assert target.read_text() == str(made.index(True))
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_is_created_without_hard_links_too(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    assert create_file(tmp_path / "seed", "1", private=True)
    assert not create_file(tmp_path / "seed", "2")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("seed", "1")]


def test_content_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch) -> None:
    flushed: list[int] = []
    flush = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(handle), flush(handle)))
    replace = Path.replace
    seen: list[int] = []
    monkeypatch.setattr(
        Path, "replace", lambda path, goal: (seen.append(len(flushed)), replace(path, goal))
    )
    write_file(tmp_path / "a", "x")
    assert seen == [1]
    assert len(flushed) == 2  # the file, then its directory


def fail_halfway(out: Path) -> None:
    with new_directory(out) as draft:
        (draft / "half").write_text("x")
        raise RuntimeError


def test_a_failure_leaves_no_directory(tmp_path):
    with pytest.raises(RuntimeError):
        fail_halfway(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


ENDED_HALFWAY = """
import os, signal, sys, time
from discreet._files import new_directory
with new_directory(sys.argv[1]) as draft:
    (draft / "half").write_text("x")
    heard, told = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.write(told, b".")
        time.sleep(60)
        os._exit(1)
    os.read(heard, 1)  # a signal before that would be lost: a new process forgets those
    os.kill(worker, signal.SIGTERM)
    _, status = os.waitpid(worker, 0)
    print(os.waitstatus_to_exitcode(status), (draft / "half").exists(), flush=True)
    time.sleep(60)
"""


def test_a_process_that_is_told_to_end_leaves_no_directory(tmp_path):
    words = [sys.executable, "-c", ENDED_HALFWAY, str(tmp_path / "model")]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        # The end of a worker ends nothing else.
        assert process.stdout.readline() == f"{128 + signal.SIGTERM} True\n"
        assert [path.name for path in tmp_path.iterdir()] != []
        process.terminate()
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_signals_are_left_as_they_were(tmp_path):
    kept = signal.getsignal(signal.SIGTERM)
    before = signal.SIG_DFL
    signal.signal(signal.SIGTERM, before)
    with new_directory(tmp_path / "first"):
        during = signal.getsignal(signal.SIGTERM)
    assert during is not before
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(RuntimeError):
        fail_halfway(tmp_path / "second")
    assert signal.getsignal(signal.SIGTERM) is before

    def decide(*_: object) -> None:
        """Somebody else's."""

    signal.signal(signal.SIGTERM, decide)
    try:
        with new_directory(tmp_path / "third"):
            assert signal.getsignal(signal.SIGTERM) is decide
    finally:
        signal.signal(signal.SIGTERM, kept)


def test_what_was_paid_for_is_kept_where_its_place_was_taken(tmp_path):
    out = tmp_path / "out"

    def take_it_meanwhile() -> None:
        with new_directory(out) as draft:
            (draft / "model").write_text("paid for", encoding="utf-8")
            out.mkdir()
            (out / "other").touch()

    with pytest.raises(InvalidValue, match="is complete, in") as error:
        take_it_meanwhile()
    kept = Path(error.value.expected.rpartition(" in ")[2])
    assert (kept / "model").read_text(encoding="utf-8") == "paid for"
    assert [path.name for path in out.iterdir()] == ["other"]
