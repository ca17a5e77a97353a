"""Places for ledgers, as fixtures: whoever takes ``place`` runs on SQLite and on PostgreSQL."""

import importlib.util
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.postgres_server import find_program, running_server

__all__ = ["place", "server"]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server that lives as long as the tests."""
    missing = [] if importlib.util.find_spec("psycopg") else ["the Python package psycopg"]
    missing += [f"the program {name}" for name in ("initdb", "pg_ctl") if not find_program(name)]
    if missing:
        pytest.fail(f"no PostgreSQL server: {', '.join(missing)} missing (apt install postgresql)")
    with running_server() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new ledger may be made."""
    if request.param == "sqlite":
        return str(tmp_path / "study.ledger")
    return f"{request.getfixturevalue('server')}&ledger=t{secrets.token_hex(6)}"
