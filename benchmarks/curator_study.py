"""A million made-up people to serve, and the service as a process of its own."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from discreet.curator.service import Registry, give_budget, open_dataset
from discreet.data import Categorical, Integer, Schema
from discreet.ledger import Ledger

CITIES = ("Oslo", "Bergen", "Tromso", "Bodo")
SCHEMA = Schema(
    {"age": Integer(0, 100), "city": Categorical(list(CITIES), other="Oslo")},
    person="person",
    rows_per_person=1,
    expected_rows=1_000_000,
)


def write_people(path: Path, rows: int) -> None:
    numbers = np.random.default_rng(1)
    table = {
        "person": np.arange(rows),
        "age": numbers.integers(0, 101, rows),
        "city": np.array(CITIES)[numbers.integers(0, len(CITIES), rows)],
    }
    pq.write_table(pa.table(table), path)


def make_study(
    folder: Path, *, rows: int, analysts: Sequence[str], epsilon: object, each: object
) -> dict[str, str]:
    """A ledger with the dataset ``people``; the tokens of the analysts."""
    write_people(folder / "people.parquet", rows)
    tokens = {}
    with Ledger.create(folder / "study.ledger") as ledger:
        registry = Registry(ledger)
        source = str(folder / "people.parquet")
        open_dataset(
            ledger, registry, "people", schema=SCHEMA, source=source, epsilon=epsilon
        ).close()
        for name in analysts:
            registry.add_analyst(name)
            give_budget(ledger, registry, "people", analyst=name, epsilon=each)
            tokens[name] = registry.issue("analyst", analyst=name, datasets=["people"])[0]
    return tokens


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A running service: its port and its process."""
    port = free_port()
    command = [sys.executable, "-m", "discreet.cli", "serve", str(folder / "study.ledger")]
    with (folder / "serve.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), *options],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        await_health(port, process, folder)
        yield port, process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def await_health(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + 180
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5),
        ):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit("the service did not start: " + (folder / "serve.log").read_text()[-2000:])
