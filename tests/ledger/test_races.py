"""Processes, threads, forks and two ledgers at once; and signal 9 at random moments."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from discreet._store import _sqlite
from discreet.errors import AlreadyCharged, BudgetExceeded
from discreet.ledger import Ledger
from discreet.privacy import PureDP

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TENTH = PureDP("0.1")


def run(program: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_python(script: str, *arguments: str) -> str:
    # Newer versions of Python warn of any fork beside threads; the ledger must bear it.
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_racing_processes_share_one_budget_exactly(place: str) -> None:
    result = run("ledger_race.py", place, "--processes", "6", "--attempts", "240", "--fit", "200")
    assert (result["granted"], result["refused"], result["spent"]) == (200, 40, "1")
    assert result["every_grant_on_chain"]
    assert result["verified"]


@pytest.mark.slow
def test_signal_9_at_random_moments(tmp_path: Path) -> None:
    result = run("ledger_killing.py", str(tmp_path), "--rounds", "25", "--seed", "7")
    assert sum(result["rounds"].values()) == 25
    assert min(result["rounds"].values()) >= 8
    assert result["charged"] >= result["released"] > 0


def test_signal_9_finds_a_ledger_that_releases_before_it_commits(tmp_path: Path) -> None:
    # Each of the 14 rounds that charge finds it with a chance of about 4/5.
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "ledger_killing.py"), str(tmp_path)]
        + ["--rounds", "42", "--planted"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert "was released but is not charged" in done.stderr


def test_threads_share_one_ledger(ledger: Ledger) -> None:
    granted: list[int] = []
    refused: list[BudgetExceeded] = []

    def work(_: int) -> None:
        for _ in range(5):
            try:
                with ledger.charge("census", PureDP("1/30")) as charge:
                    granted.append(charge.seq)
            except BudgetExceeded as error:
                refused.append(error)

    in_threads(8, work)
    assert len(granted) == len(set(granted)) == 30
    assert len(refused) == 10
    assert ledger.show("census").budget.spent["basic"] == 1
    assert {row.outcome for row in ledger.history("census")} == {"completed"}
    assert ledger.verify().ok


@pytest.mark.parametrize("loss", [TENTH, PureDP(1)], ids=["a tenth", "all of it"])
def test_one_key_in_many_threads_is_charged_once(ledger: Ledger, loss: PureDP) -> None:
    ran: list[int] = []
    replayed: list[int] = []

    def work(number: int) -> None:
        try:
            with ledger.charge("census", loss, key="once") as charge:
                ran.append(number)
                charge.record(number)
        except AlreadyCharged:
            replayed.append(number)

    in_threads(8, work)
    assert (len(ran), len(replayed)) == (1, 7)
    assert ledger.charge("census", loss, key="once").result == ran[0]
    assert ledger.show("census").budget.spent["basic"] == loss.pure_epsilon


def test_the_flush_is_shared_between_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[float] = []
    sync = _sqlite.sync

    def slow(descriptor: int) -> None:
        flushes.append(0.0)
        time.sleep(0.004)
        sync(descriptor)

    monkeypatch.setattr(_sqlite, "sync", slow)
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("census", epsilon=1)

        def work(_: int) -> None:
            for _ in range(10):
                ledger.charge("census", PureDP("1/1000"))

        in_threads(8, work)
        assert ledger.show("census").budget.charges == 80
    assert len(flushes) < 80  # fewer flushes than durable charges


def test_two_ledgers_in_one_process_do_not_mix(ledger: Ledger, place: str) -> None:
    with Ledger.create(place + "2") as second, Ledger.open(place) as same:
        second.create_dataset("census", epsilon=2)
        with ledger.charge("census", TENTH), second.charge("census", PureDP(2)):
            same.charge("census", PureDP("0.2"))
        assert ledger.show("census").budget.spent["basic"] == Fraction(3, 10)
        assert same.show("census") == ledger.show("census")
        assert second.show("census").budget.spent["basic"] == 2
        assert ledger.show("census").genesis != second.show("census").genesis
        assert ledger.verify().ok
        assert second.verify().ok


FORKING = """
import os, sys
from discreet.ledger import Ledger
from discreet.privacy import PureDP
ledger = Ledger.open(sys.argv[1])
loss = PureDP("1/100")
ledger.charge("census", loss)
children = []
with ledger.charge("census", loss) as charge:
    for _ in range(4):
        child = os.fork()
        if child == 0:
            break
        children.append(child)
    for _ in range(5):
        with ledger.charge("census", loss):
            pass
# Children leave the body of their parent's charge, too, and must not write its outcome.
if not children or child == 0:
    ledger.close()
    os._exit(0)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
print(ledger.show("census").budget.charges, ledger.verify().ok)
print(sorted(row.outcome for row in ledger.history("census")).count("completed"))
"""


def test_a_ledger_survives_fork(ledger: Ledger, place: str) -> None:
    out = run_python(FORKING, place).split()
    assert out == ["27", "True", "26"]
    assert ledger.show("census").budget.charges == 27


FORK_WHILE_WRITING = """
import os, sys, threading
from discreet.ledger import Ledger
from discreet.privacy import PureDP
ledger = Ledger.open(sys.argv[1], timeout=20)
loss, go_on = PureDP("1/100000"), True
def write():
    while go_on:
        ledger.charge("census", loss)
thread = threading.Thread(target=write)
thread.start()
made = 0
for _ in range(10):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ledger.charge("census", loss)
            code = 0
        finally:
            os._exit(code)
    made += os.waitpid(child, 0)[1] == 0
go_on = False
thread.join()
print(made, ledger.verify().ok)
"""


def test_a_fork_while_another_thread_writes(ledger: Ledger, place: str) -> None:
    assert run_python(FORK_WHILE_WRITING, place).split() == ["10", "True"]


def test_a_fork_inside_a_transaction_keeps_no_lock_and_is_refused_the_file(tmp_path: Path) -> None:
    # The parent is killed in its turn; its child lives on and must not hold up the others.
    script = """
import os, signal, sys, time
from discreet.errors import LedgerError
from discreet.ledger import Ledger
from discreet.privacy import PureDP
def say(word):  # one write, so that lines of several processes do not mix
    os.write(1, f"{word}\\n".encode())
path = sys.argv[1]
ledger = Ledger.create(path)
ledger.create_dataset("census", epsilon=1)
child = os.fork()
if child == 0:
    ledger.show("census")
    with ledger._store.writing():
        grandchild = os.fork()
        if grandchild == 0:
            for used in (lambda: ledger.show("census"), lambda: Ledger.open(path)):
                try:
                    used()
                    say("not refused")
                except LedgerError as error:
                    say("forked while" in str(error))
            os.close(1), os.close(2)
            time.sleep(60)
            os._exit(0)
        say(grandchild)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
assert os.waitpid(child, 0)[1] == signal.SIGKILL
with Ledger.open(path, timeout=60) as other:
    other.charge("census", PureDP("0.1"))
    say(other.verify().ok)
"""
    words = run_python(script, str(tmp_path / "ledger")).split()
    grandchild = next((word for word in words if word.isdecimal()), "none")
    assert sorted(words) == sorted([grandchild, "True", "True", "True"])
    os.kill(int(grandchild), 9)  # it slept with the ledger inherited, and nobody waited for it


PARENT_LEAVES_FIRST = """
import os, sys, time
from discreet.ledger import Ledger
from discreet.privacy import PureDP
ledger = Ledger.open(sys.argv[1])
ledger.charge("census", PureDP("0.1"))
read, write = os.pipe()
child = os.fork()
if child == 0:
    ledger.charge("census", PureDP("0.1"))
    os.read(read, 1)
    charge = ledger.charge("census", PureDP("0.1"))
    print(charge.hash, flush=True)
    os._exit(0)
time.sleep(0.3)
ledger.close()  # the last connection of this process folds the log into the file
os.write(write, b"x")
os.waitpid(child, 0)
"""


def test_a_child_goes_on_when_its_parent_has_closed(tmp_path: Path) -> None:
    # With connections inherited over a fork, the child would write to a log that was deleted.
    path = tmp_path / "ledger"
    with Ledger.create(path) as ledger:
        ledger.create_dataset("census", epsilon=1)
    hash_ = run_python(PARENT_LEAVES_FIRST, str(path)).strip()
    with Ledger.open(path) as ledger:
        rows = ledger.history("census")
        assert [row.seq for row in rows] == [1, 2, 3]
        assert rows[-1].hash == hash_
