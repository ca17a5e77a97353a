"""What a place to keep a ledger has to offer; SQLite and PostgreSQL are two of them.

A store runs transactions and knows nothing of budgets. Statements use ``?`` for values and
only the SQL that both databases share.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from discreet import _validate
from discreet.errors import InvalidValue, LedgerError
from discreet.ledger._entry import printable

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

    def flush(self) -> None:
        """Return when everything that can be seen now is on the disk."""

    def faults(self) -> list[str]:
        """What the database itself finds wrong with its file."""

    def differences(self, session: Session) -> list[str]:
        """What the tables have or lack that a ledger has not or needs, in one transaction."""

    def close(self) -> None:
        """Let go of all connections; the store may not be used afterwards."""


def translate_error(place: str, code: str, text: str, meanings: Meanings) -> LedgerError:
    """The error of a database as an error of a ledger; the first meaning that fits counts."""
    for prefix, kind, meaning in meanings:
        if code.startswith(prefix):
            return kind(f"{place}: {meaning} ({text})")
    return LedgerError(f"{place}: {text}")


_LONGEST_WAIT = 1e6  # seconds; the databases count milliseconds in 32 bits
_URLS = ("postgresql://", "postgres://")


def find_url(place: object) -> str | None:
    """The place if it is the URL of a server."""
    return place if isinstance(place, str) and place.startswith(_URLS) else None


def check_path(argument: str, place: object) -> Path:
    """The place as a path."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text or "://" in text:
        expected = "the path of a file"
        if argument == "place":
            expected += " or a postgresql:// URL"
        raise InvalidValue(argument, printable(place), expected)
    return Path(text)


def check_timeout(timeout: object) -> float:
    """Seconds to wait for others."""
    if isinstance(timeout, int) and abs(timeout) > _LONGEST_WAIT:
        timeout = float("inf")
    return _validate.real("timeout", timeout, above=0, at_most=_LONGEST_WAIT)
