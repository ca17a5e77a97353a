"""Tokens: 256 random bits that are shown once and kept as a hash.

A token reads ``dsc_<id>_<secret>``. The id finds the row; the SHA-256 of the secret is compared
with the row in constant time. A slow hash is for passwords that can be guessed: nobody guesses
256 random bits, so a fast one gives nothing away and costs nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

__all__ = ["Secret", "digest_of", "matches", "new_secret", "parse"]

_FORM = re.compile(r"dsc_([0-9a-f]{16})_([0-9a-f]{64})")
NOBODY = hashlib.sha256(b"no token has this digest").hexdigest()


class Secret(NamedTuple):
    """A token in two parts."""

    id: str
    secret: str

    def as_text(self) -> str:
        """The token as its holder keeps it."""
        return f"dsc_{self.id}_{self.secret}"


def new_secret() -> Secret:
    """A new token; ``secrets`` draws from the cryptographic source of the system."""
    return Secret(secrets.token_hex(8), secrets.token_hex(32))


def parse(text: str) -> Secret | None:
    """Read a token; None if the text has not the form of one.

    >>> parse("dsc_0123_4567") is None
    True
    >>> made = new_secret()
    >>> parse(made.as_text()) == made
    True
    """
    match = _FORM.fullmatch(text)
    return None if match is None else Secret(match[1], match[2])


def digest_of(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def matches(secret: str, stored: str | None) -> bool:
    """Whether a secret has the stored digest, in a time that does not tell how nearly.

    Without a stored digest the comparison is made all the same, and fails.
    """
    same = hmac.compare_digest(digest_of(secret), NOBODY if stored is None else stored)
    return same and stored is not None
