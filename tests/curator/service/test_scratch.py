"""Temporary directories: private, gone at the end, and removed after a kill by the next start."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from discreet.curator.service.scratch import Scratch, remove_stale

HOLDER = (
    "import sys, tempfile\n"
    "from discreet.curator.service.scratch import Scratch\n"
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
