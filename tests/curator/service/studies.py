"""A small study to serve, in this process or in one of its own."""

import contextlib
import csv
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from discreet.curator.service import (
    NoDelayProtocol,
    Registry,
    Settings,
    create_app,
    give_budget,
    open_dataset,
)
from discreet.data import Categorical, Integer, Schema
from discreet.ledger import Ledger

CITIES = ("Oslo", "Bergen", "Bodo")
SCHEMA = Schema(
    {"age": Integer(0, 100), "city": Categorical(list(CITIES), other="Oslo")},
    person="person",
    rows_per_person=1,
)
COUNT = {"kind": "count", "epsilon": "1/10"}
Row = tuple[str, object, object]


def people(count: int) -> list[Row]:
    """Public rows: one for each person."""
    return [(f"p{i}", (7 * i) % 101, CITIES[i % 3]) for i in range(count)]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("person", "age", "city"))
        writer.writerows(rows)


@dataclass
class Study:
    """Where everything is, and the tokens of everybody."""

    place: str
    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def token(self, holder: str) -> dict[str, str]:
        """The header that names a holder."""
        return {"Authorization": f"Bearer {self.tokens[holder]}"}


def make_study(
    folder: Path,
    *,
    place: str | None = None,
    rows: Sequence[Row] | None = None,
    epsilon: object = 100,
    analysts: Sequence[str] = ("ann", "bob"),
    each: object = 50,
) -> Study:
    """The dataset ``people`` with a budget, and analysts with budgets and tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "people.csv"
    write_rows(source, people(300) if rows is None else rows)
    study = Study(place or str(folder / "study.ledger"), folder)
    with Ledger.create(study.place) as ledger:
        registry = Registry(ledger)
        opened = open_dataset(
            ledger, registry, "people", schema=SCHEMA, source=str(source), epsilon=epsilon
        )
        opened.close()
        for name in analysts:
            registry.add_analyst(name)
            give_budget(ledger, registry, "people", analyst=name, epsilon=each)
            study.tokens[name] = registry.issue("analyst", analyst=name, datasets=["people"])[0]
        study.tokens["owner"] = registry.issue("owner")[0]
    return study


@dataclass
class Local:
    """A service in this process, and a client of it."""

    app: FastAPI
    http: httpx.Client
    url: str
    server: uvicorn.Server

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request; a body of None is no body."""
        return self.http.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Ask for something."""
        return self.http.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        """Send something."""
        return self.http.post(path, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        """End something."""
        return self.http.delete(path, **options)


@contextlib.contextmanager
def in_process(study: Study, **changes: Any) -> Iterator[Local]:
    """The service in a thread of this process."""
    defaults = {"quantum": 0.001, "rate": 1e5, "burst": 10**5, "refusal_burst": 10**5}
    settings = Settings(ledger=study.place, data=str(study.folder), **{**defaults, **changes})
    app = create_app(settings)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            app, http=NoDelayProtocol, log_config=None, access_log=False, server_header=False
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            with httpx.Client(base_url=url, timeout=120) as http:
                while not server.started:
                    time.sleep(0.005)
                yield Local(app, http, url, server)
        finally:
            server.should_exit = True
            thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """``discreet serve`` as a process of its own."""

    def __init__(self, study: Study, *options: str) -> None:
        self._study = study
        self._options = options
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = study.folder / "serve.log"
        self.temporary = study.folder / "tmp"
        self.temporary.mkdir(exist_ok=True)

    def start(self) -> None:
        """Start, and return when it answers."""
        defaults = ("--quantum", "0.002", "--rate", "1e5", "--burst", "1e5")
        command = ("serve", self._study.place, "--port", str(self.port))
        data = ("--data", str(self._study.folder))
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "discreet.cli", *command, *data, *defaults, *self._options],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)},
            )
        end = time.monotonic() + 120
        with httpx.Client(timeout=5) as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if http.get(f"{self.url}/health").status_code == 200:
                        return
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < end, self.log.read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        """Signal 9: no time to say goodbye."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """The ordinary end."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


@contextlib.contextmanager
def serving(study: Study, *options: str) -> Iterator[Server]:
    """A running service."""
    server = Server(study, *options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
