"""What the store takes from SQLite: the order in which log and database are flushed.

With ``synchronous=NORMAL`` no commit waits for the disk, and the ledger flushes the log itself.
That a power cut leaves a whole database rests on SQLite: the log is flushed before pages are copied
into the database, and the database before the log is begun again.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("watched_sqlite.py")
HEADER = 32  # bytes before the first frame of a log


def watched(place: Path, synchronous: str) -> list[tuple[str, str, int]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(place), synchronous],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=place.parent,
    )
    return [tuple(event) for event in json.loads(done.stdout)]


def faults(events: list[tuple[str, str, int]]) -> tuple[list[str], int, int]:
    """What breaks the two rules; how many copied pages and how many new logs were looked at."""
    unflushed = {"log": False, "database": False}
    found, copied, begun = [], 0, 0
    for what, name, offset in events:
        file = "log" if name.endswith("-wal") else "database"
        if what == "flush":
            unflushed[file] = False
            continue
        if file == "database":
            copied += 1
            found += ["a page was copied from a log that was not flushed"] * unflushed["log"]
        elif offset < HEADER:
            begun += 1
            found += ["the log was begun before the database was flushed"] * unflushed["database"]
        unflushed[file] = True
    return found, copied, begun


def test_the_log_is_flushed_before_pages_are_copied_and_they_before_it_begins_again(
    tmp_path: Path,
) -> None:
    found, copied, begun = faults(watched(tmp_path / "book", "NORMAL"))
    assert found == []
    assert [one.name for one in tmp_path.iterdir()] == ["book"]
    assert copied > 20
    assert begun > 5


def test_a_database_that_flushes_nothing_is_noticed(tmp_path: Path) -> None:
    found, _, _ = faults(watched(tmp_path / "book", "OFF"))
    assert len(set(found)) == 2
