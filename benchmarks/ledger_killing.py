"""Kill processes with signal 9 at random moments and look at the ledger afterwards.

    python benchmarks/ledger_killing.py DIRECTORY --rounds 25 --seed 1

Three kinds of round take turns: three processes that charge and release, processes that migrate
a ledger of the oldest schema and charge it, and a training run that charges every epoch.
After every round: the ledger opens, every release that got out was charged before, and the
chains verify. Signal 9 leaves what the system has cached, so this shows atomicity and order;
that the disk has it as well rests on the flushes, which the tests look at by themselves.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from discreet._store import Session
from discreet.errors import LedgerError
from discreet.ledger import Ledger
from discreet.privacy import Gaussian, PureDP

VERSION_1 = Path(__file__).parents[1] / "tests" / "ledger" / "recorded" / "version_1.sql"
FRESH_EVERY = 30
SMALL = PureDP("1/100000")
EPOCH = 5 * Gaussian(noise_multiplier=500.0)


def old_ledger(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text(encoding="utf-8"))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


def is_migrated(path: Path) -> bool:
    return path.is_dir()


def release(file: Path, line: str) -> None:
    """One line into the world outside: it cannot be taken back."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def charge_for_ever(path: Path, releases: Path) -> None:
    with Ledger.open(path) as ledger:
        while True:
            with ledger.charge("census", SMALL, purpose="count") as charge:
                release(releases, f"{charge.seq} {charge.hash}")


def migrate_and_charge(path: Path, releases: Path) -> None:
    """Several processes want the same old file; one of them migrates it."""
    while not is_migrated(path):
        with suppress(LedgerError):
            Ledger.migrate(path, timeout=0.05)
    charge_for_ever(path, releases)


def release_first_for_ever(path: Path, releases: Path) -> None:
    """A planted bug: what a ledger would be that let a release out before its commit."""
    with Ledger.open(path) as ledger:
        writing = ledger._store.writing

        @contextmanager
        def too_late(**options: bool) -> Iterator[Session]:
            with writing(**options) as session:
                yield session
                last = "SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1"
                [(seq, hash_)] = session.rows(last)
                release(releases, f"{seq} {hash_}")
                time.sleep(0.005)

        ledger._store.writing = too_late  # type: ignore[method-assign]
        while True:
            ledger.charge("census", SMALL, purpose="count")


def train_for_ever(path: Path, releases: Path) -> None:
    """Noisy gradient descent on public numbers; every epoch is charged before it runs."""
    numbers = np.random.default_rng(os.getpid())
    data = numbers.normal(size=(200, 5))
    target = data @ np.arange(5.0)
    with Ledger.open(path) as ledger:
        weights = np.zeros(5)
        while True:
            with ledger.charge("census", EPOCH, project="training") as charge:
                for _ in range(5):
                    gradient = data.T @ (data @ weights - target) / len(data)
                    weights -= 0.1 * (gradient + numbers.normal(size=5))
                release(releases, f"{charge.seq} {charge.hash}")


def killed(work: Callable[[Path, Path], None], path: Path, releases: Path, delay: float) -> None:
    """Run a piece of work in three processes at once and kill them all."""
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            try:
                work(path, releases)
            finally:
                os._exit(1)  # reached only by an error, which the parent reports
        children.append(child)
    time.sleep(delay)
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit("a process ended before it was killed")


def look(path: Path, releases: Path) -> tuple[int, int]:
    """Charges on the chain and releases that got out; raises if anything does not fit."""
    with Ledger.open(path) as ledger:
        verdict = ledger.verify()
        assert verdict.ok, verdict.problems
        charged = {row.seq: row.hash for row in ledger.history("census")}
    lines = releases.read_text().splitlines() if releases.exists() else []
    released = [line.split() for line in lines]
    for seq, hash_ in released:
        assert charged.get(int(seq)) == hash_, f"entry {seq} was released but is not charged"
    assert len(released) == len({seq for seq, _ in released}), "one charge, two releases"
    return len(charged), len(released)


def rounds(directory: Path, *, count: int, seed: int, planted: bool) -> dict[str, object]:
    chance = random.Random(seed)
    honest = release_first_for_ever if planted else charge_for_ever
    kinds: dict[str, Callable[[Path, Path], None]] = {
        "charges": honest,
        "migration": migrate_and_charge,
        "training": train_for_ever,
    }
    spent = released = cut_short = 0
    done = dict.fromkeys(kinds, 0)
    path = releases = directory
    for number in range(count):
        kind = list(kinds)[number % 3]
        if kind == "migration":
            path, releases = directory / f"old-{number}", directory / f"old-{number}.out"
            old_ledger(path)
        elif number % FRESH_EVERY == 0 or kind != "charges":
            path, releases = directory / f"new-{number}", directory / f"new-{number}.out"
            with Ledger.create(path) as ledger:
                ledger.create_dataset("census", epsilon=100, delta=1e-6, unit="person")
        # Migrations happen in the first milliseconds, charges all along.
        delay = chance.uniform(0.0, 0.01 if kind == "migration" else 0.12)
        killed(kinds[kind], path, releases, delay)
        if not is_migrated(path):
            cut_short += 1
            Ledger.migrate(path)
        charged, out = look(path, releases)
        spent, released = spent + charged, released + out
        done[kind] += 1
    return {
        "rounds": done,
        "charged": spent,
        "released": released,
        "migrations_cut_short": cut_short,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planted", action="store_true", help="release before the commit")
    options = parser.parse_args()
    began = time.monotonic()
    result = rounds(
        options.directory, count=options.rounds, seed=options.seed, planted=options.planted
    )
    json.dump({**result, "seconds": round(time.monotonic() - began, 1)}, sys.stdout)


if __name__ == "__main__":
    main()
