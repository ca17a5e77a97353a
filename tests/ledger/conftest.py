"""Places for ledgers: every test that takes ``place`` runs on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from discreet.ledger import Ledger
from ledger.places import place, server

__all__ = ["place", "server"]


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
