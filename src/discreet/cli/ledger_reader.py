"""Commands that only look at a ledger open it for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from discreet.ledger import Ledger

__all__ = ["open_to_read"]


def open_to_read(place: str) -> Ledger:
    """A ledger for reading, which waits for nobody.

    One who only reads may also open what a writer refuses, and say all that is wrong with it.
    """
    from discreet.errors import LedgerReadOnly
    from discreet.ledger import Ledger

    try:
        return Ledger.open(place, read_only=True)
    except LedgerReadOnly:  # an older schema is brought up to date first
        return Ledger.open(place)
