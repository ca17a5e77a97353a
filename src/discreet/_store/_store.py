"""What a store offers, and the places where one can be: a path, or a ``postgresql://`` URL.

Statements use ``?`` for values and only the SQL that SQLite and PostgreSQL share.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from discreet import _validate
from discreet.errors import InvalidValue, LedgerError

_LONGEST_WAIT = 1e6  # seconds; the databases count milliseconds in 32 bits
_EXPECTED_URL = "a URL such as postgresql://user@host/database?ledger=name"
_LARGEST_PRINTED = 10_000  # bits; Python prints at most 4,300 digits

# What a code of the database begins with, which error that is, and what it means.
Meanings = tuple[tuple[str, type[LedgerError], str], ...]


class Session(Protocol):
    """One open transaction."""

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""

    def run(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run a statement and return how many rows it touched."""


class Store(Protocol):
    """Transactions on one place; made by ``create_store`` and ``open_store`` of this package."""

    @property
    def place(self) -> str:
        """The path, or the URL without a password, for messages."""

    @property
    def row_lock(self) -> str:
        """What to add to a query so that its rows stay ours until the end."""

    @property
    def local(self) -> bool:
        """Whether reading never waits for a network."""

    def reading(self, *, durable: bool = True) -> AbstractContextManager[Session]:
        """Run queries on one consistent view; never waits for writers.

        When the block has ended, everything that it could see is on the disk, unless ``durable``
        is false: then nothing that was read may leave the process.
        """

    def writing(self, *, durable: bool = True) -> AbstractContextManager[Session]:
        """Run a transaction that commits when the block ends and rolls back when it fails.

        When the block has ended, what it wrote and saw is on the disk if ``durable``; otherwise a
        power failure, but not a crash of the process, may undo it.
        """

    def faults(self) -> list[str]:
        """Return what the database itself finds wrong with its file."""

    def differences(self, session: Session) -> list[str]:
        """Return how the tables differ from those of a ledger."""

    def close(self) -> None:
        """Let go of all connections; the store may not be used afterwards."""


def is_url(place: object) -> bool:
    """Say whether a place is the URL of a server."""
    return isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))


def check_path(argument: str, place: object) -> Path:
    """Return a place as a path, or raise ``InvalidValue``."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text or "://" in text:
        expected = "a path"
        if argument == "place":
            expected += " or a postgresql:// URL"
        if isinstance(place, int) and place.bit_length() > _LARGEST_PRINTED:
            place = f"an integer of {place.bit_length()} bits"
        raise InvalidValue(argument, place, expected)
    return Path(text)


def check_timeout(timeout: object) -> float:
    """Return how many seconds to wait for others, or raise ``InvalidValue``."""
    if isinstance(timeout, int) and abs(timeout) > _LONGEST_WAIT:
        timeout = float("inf")
    return _validate.real("timeout", timeout, above=0, at_most=_LONGEST_WAIT)


class Address(NamedTuple):
    """A URL: what the driver connects to, the ledger's name, and a text without the password."""

    conninfo: str
    name: str
    shown: str


def parse_url(url: str) -> Address:
    """Read ``postgresql://user@host/database?ledger=name``, or raise ``InvalidValue``."""
    try:
        if not url.isprintable():
            raise ValueError(url)
        parts = urlsplit(url)
        host_in_url = parts.hostname
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        # The whole text may hold a password, and is not shown.
        raise InvalidValue("place", url.partition("://")[0] + "://", _EXPECTED_URL) from None
    name = options.pop("ledger", "")
    if not re.fullmatch(r"[a-z0-9_]{0,50}", name):
        raise InvalidValue("ledger", name, "a name of small letters, digits and _ in the URL")
    query = f"?{urlencode(options)}" if options else ""
    user = f"{parts.username}@" if parts.username else ""
    host = host_in_url or options.get("host", "")
    shown = f"postgresql://{user}{host}{parts.path}" + (f"?ledger={name}" if name else "")
    return Address(f"postgresql://{parts.netloc}{parts.path}{query}", name, shown)


def translate_error(place: str, code: str, text: str, meanings: Meanings) -> LedgerError:
    """Return a database's error as an error of a ledger; the first meaning that fits counts."""
    for prefix, kind, meaning in meanings:
        if code.startswith(prefix):
            return kind(f"{place}: {meaning} ({text})")
    return LedgerError(f"{place}: {text}")
