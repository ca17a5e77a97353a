"""Errors as answers: a status, a kind and a sentence, from public facts only.

Every error that an analyst can cause follows from the question, the schema, the token or the
budget. Whatever else goes wrong has one fixed text, because its own words might speak of a
record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from discreet.errors import (
    BudgetExceeded,
    DiscreetError,
    InvalidValue,
    KeyConflict,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerFull,
    LedgerMissing,
    MechanismHalted,
    NotApplicable,
    SchemaError,
)

__all__ = ["FAILED", "Problem", "problem_of"]

_LONGEST = 500


class Problem(NamedTuple):
    """What is sent instead of an answer."""

    status: int
    kind: str
    message: str
    argument: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The body of the response."""
        return {"kind": self.kind, "message": self.message, "argument": self.argument}


UNKNOWN_TOKEN = Problem(401, "unauthorized", "this token is not valid (any more)")
NO_TOKEN = Problem(401, "unauthorized", "send the header Authorization: Bearer <token>")
FORBIDDEN = Problem(403, "forbidden", "this token is not for that")
TOO_FAST = Problem(429, "too_many_requests", "too many requests; come again later")
TOO_LARGE = Problem(413, "too_large", "the request is larger than this service accepts")
TOO_SLOW = Problem(408, "too_slow", "the request took too long to arrive")
FULL = Problem(507, "full", "the disk of the service is full; nothing was charged")
DAMAGED = Problem(
    503, "damaged", "the ledger is damaged; no question is answered until it is mended"
)
BUSY = Problem(503, "busy", "the service has too much to do; nothing was charged, come again")
FAILED = Problem(500, "failed", "the service failed; what was charged stays charged")
NO_DATASET = Problem(404, "missing", "there is no such dataset for this token")

_KINDS: tuple[tuple[type[DiscreetError], int, str], ...] = (
    (BudgetExceeded, 409, "budget_exceeded"),
    (KeyConflict, 409, "key_conflict"),
    (LedgerExists, 409, "exists"),
    (MechanismHalted, 409, "halted"),
    (LedgerMissing, 404, "missing"),
    (InvalidValue, 422, "invalid"),
    (NotApplicable, 422, "invalid"),
    (SchemaError, 422, "invalid"),
)


def problem_of(error: BaseException) -> Problem:
    """What to send for an error; a kind that is not known here has the fixed text."""
    # Their own words name files of the server.
    if isinstance(error, LedgerFull):
        return FULL
    # Its files were replaced, moved or deleted while in use, or cannot be opened.
    if isinstance(error, LedgerCorrupt) or type(error) is LedgerError:
        return DAMAGED
    if isinstance(error, LedgerBusy):
        return BUSY
    for type_, status, kind in _KINDS:
        if isinstance(error, type_):
            argument = error.argument if isinstance(error, InvalidValue) else None
            return Problem(status, kind, _short(str(error)), argument)
    return FAILED


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
