"""Text that a terminal can show, whatever it was made of."""

from __future__ import annotations

import sys

__all__ = ["printable"]


def printable(line: str) -> str:
    """Return a line as the terminal can show it: what it cannot is written as an escape."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in line
    )
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)
