"""Places for ledgers: every test that takes ``place`` runs on SQLite and on PostgreSQL."""

import importlib.util
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from discreet.ledger import Ledger
from ledger.postgres_server import find_program, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server that lives as long as the tests."""
    missing = [] if importlib.util.find_spec("psycopg") else ["the Python package psycopg"]
    missing += [f"the program {name}" for name in ("initdb", "pg_ctl") if not find_program(name)]
    if missing:
        reason = f"no PostgreSQL server can be had: {', '.join(missing)} (apt install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with running_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new ledger may be made."""
    if request.param == "sqlite":
        return str(tmp_path / "study.ledger")
    return f"{request.getfixturevalue('server')}&ledger=t{secrets.token_hex(6)}"


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    """A new ledger with a pure and an approximate budget."""
    with Ledger.create(place) as book:
        book.create_dataset("census", epsilon=1, unit="person")
        book.create_dataset("survey", epsilon=1, delta="1e-6")
        yield book


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a new SQLite ledger may be made."""
    return tmp_path / "file.ledger"
