"""Temporary directories: private, gone at the end, and removed after a kill by the next start."""

import gc
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from discreet.curator import CuratedDataset
from discreet.data import Integer, Schema
from discreet.engines import PrivateFolder, Scratch, remove_stale

HOLDER = (
    "import sys, tempfile\n"
    "from discreet.engines import Scratch\n"
    "scratch = Scratch()\n"
    "open(tempfile.mkdtemp(prefix='discreet-curator-') + '/rows.parquet', 'w').close()\n"
    "print(scratch.folder, flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_everything_temporary_is_inside_and_goes_with_it(parent: Path) -> None:
    scratch = Scratch()
    inside = Path(tempfile.mkdtemp(prefix="discreet-curator-"))
    assert inside.parent == scratch.folder
    assert scratch.folder.parent == parent
    assert stat.S_IMODE(scratch.folder.stat().st_mode) == 0o700
    assert (scratch.folder / "pid").read_text() == f"{os.getpid()}\n"
    assert remove_stale(str(parent)) == []
    scratch.close()
    assert list(parent.iterdir()) == []
    assert tempfile.gettempdir() == str(parent)


def test_only_what_a_dead_service_left_is_removed(parent: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(parent)},
        text=True,
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        assert left.parent == parent
        # While it lives nobody touches it, even if its number looks like that of nobody.
        (left / "pid").write_text("999999999\n")
        assert remove_stale() == []
        process.kill()
    assert (left / "pid").exists()
    # What looks alike but is not a service's stays: no pid, a file, a link to somewhere else.
    bare = parent / "discreet-curator-service-bare"
    bare.mkdir()
    (parent / "discreet-curator-service-file").touch()
    other = parent / "other"
    other.mkdir()
    (other / "pid").touch()
    (parent / "discreet-curator-service-link").symlink_to(other)
    stolen = parent / "discreet-curator-service-pidlink"
    stolen.mkdir()
    (stolen / "pid").symlink_to(other / "pid")
    (parent / "discreet-curator-older").mkdir()
    before = set(parent.iterdir())
    assert remove_stale() == [left]
    assert set(parent.iterdir()) == before - {left}
    assert (other / "pid").exists()


def test_directories_of_other_users_stay(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = parent / "discreet-curator-service-theirs"
    left.mkdir()
    (left / "pid").touch()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert remove_stale() == []
    monkeypatch.undo()
    assert remove_stale(str(parent)) == [left]


AGES = Schema({"age": Integer(0, 120)})
OPENED = (
    "import os, sys\n"
    "from discreet.curator import CuratedDataset\n"
    "from discreet.data import Integer, Schema\n"
    "schema = Schema({'age': Integer(0, 120)})\n"
    "people = CuratedDataset('people', schema=schema, source={'age': [1, 2]})\n"
    "people.prepare()\n"
    "print('open', flush=True)\n"
    "sys.stdin.readline()\n"
)


def people() -> CuratedDataset:
    found = CuratedDataset("people", schema=AGES, source={"age": [1, 2]})
    found.prepare()
    return found


def test_the_directory_of_a_dataset_is_private_and_goes_when_it_is_closed_or_forgotten(
    parent: Path,
) -> None:
    closed, forgotten = people(), people()
    folders = list(parent.iterdir())  # what was staged is gone, what may be spilled to is here
    assert len(folders) == 2
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o700 for one in folders)
    closed.close()
    assert len(list(parent.iterdir())) == 1
    del forgotten
    gc.collect()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("how", ["kill", pytest.param("end", marks=pytest.mark.slow)])
def test_a_process_that_is_killed_or_ends_leaves_nothing_for_long(parent: Path, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OPENED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(parent)},
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        (theirs,) = parent.iterdir()
        mine = people()  # while the other lives, its directory stays
        assert theirs.exists()
        mine.close()
        if how == "kill":
            process.kill()
        else:
            process.communicate("\n")
    assert theirs.exists() == (how == "kill")
    people().close()
    assert list(parent.iterdir()) == []


def test_a_forked_child_removes_nothing(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PrivateFolder()
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    folder.close()
    assert (folder.path / "pid").exists()
    assert remove_stale() == [folder.path]
