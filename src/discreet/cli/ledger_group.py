"""The group of ledger commands: what goes wrong with the output is one line, too."""

from __future__ import annotations

import os
import sys
from typing import Any

from typer.core import TyperGroup

from discreet.errors import LedgerError

__all__ = ["LedgerGroup"]


class LedgerGroup(TyperGroup):
    """Commands whose output has arrived when they end with 0.

    A full disk or a closed pipe shows when the last of the output is written, which Python does
    after a command has ended. So it is done here, where a failure still gets its exit code.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run a command and write out what it printed."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (OSError, UnicodeEncodeError) as error:
            _drop_output()
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise LedgerError(f"the output cannot be written ({reason})") from None
        return result


def _drop_output() -> None:
    """What is still waiting to be written must not fail a second time."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # a stream in memory
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
