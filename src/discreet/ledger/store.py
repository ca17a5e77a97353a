"""What a place to keep a ledger has to offer; SQLite and PostgreSQL are two of them.

A store runs transactions and knows nothing of budgets. Statements use ``?`` for values and
only the SQL that both databases share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from discreet.errors import LedgerError

__all__ = ["Meanings", "Session", "Store", "in_words"]

# What a code of the database begins with, which error that is, and what it means.
Meanings = tuple[tuple[str, type[LedgerError], str], ...]


class Session(Protocol):
    """One open transaction."""

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run a statement and return how many rows it touched."""


class Store(Protocol):
    """Transactions that are atomic, serial where they write, and durable when they say so."""

    @property
    def place(self) -> str:
        """The path or the URL without a password, for messages."""

    @property
    def row_lock(self) -> str:
        """What to add to a query so that its rows stay ours until the end."""

    def reading(self) -> AbstractContextManager[Session]:
        """A consistent view; never waits for writers."""

    def writing(self, *, durable: bool = True) -> AbstractContextManager[Session]:
        """A transaction that commits when the block ends and rolls back when it fails.

        When the block has ended, what it wrote is on the disk if ``durable``; otherwise a power
        failure, but not a crash of the process, may undo it.
        """

    def settle(self) -> None:
        """Return when everything that can be seen now is on the disk."""

    def faults(self) -> list[str]:
        """What the database itself finds wrong with its file."""

    def oddities(self, session: Session) -> list[str]:
        """What the tables have or lack that a ledger has not or needs, in one transaction."""

    def close(self) -> None:
        """Let go of all connections; the store may not be used afterwards."""


def in_words(place: str, code: str, text: str, meanings: Meanings) -> LedgerError:
    """The error of a database as an error of a ledger; the first meaning that fits counts."""
    for prefix, kind, meaning in meanings:
        if code.startswith(prefix):
            return kind(f"{place}: {meaning} ({text})")
    return LedgerError(f"{place}: {text}")
