"""The exception tree.

::

    DiscreetError
    ├── InvalidValue (ValueError)      an argument is outside its domain
    │   └── FileUnusable                   a file is missing, damaged or not writable
    ├── RelationMismatch (ValueError)  two losses speak of different neighbours
    ├── NotApplicable (TypeError)      a theorem does not cover this loss
    ├── SchemaError (ValueError)       a serialised loss cannot be read
    ├── BudgetExceeded (RuntimeError)  a charge would pass the budget
    ├── MechanismHalted (RuntimeError) a mechanism has given all the answers it was paid for
    ├── PlanViolation (RuntimeError)   a training loop does what its plan does not cover
    ├── ResumeRefused (RuntimeError)   a checkpoint does not belong to this run, or is in use
    ├── DataUnavailable (FileNotFoundError)  a public data set is nowhere to be found
    ├── DataCorrupt (ValueError)       a file is not what it should be
    ├── SignatureInvalid (ValueError)  no trusted key signed this content
    └── LedgerError (RuntimeError)     a ledger cannot do what was asked
        ├── LedgerMissing (LookupError)    no such ledger, dataset or entry
        ├── LedgerExists                   there is one of that name already
        ├── LedgerCorrupt                  the file is damaged or is not a ledger
        ├── LedgerTooNew                   written by a newer version
        ├── LedgerReadOnly                 it may be read but not charged
        ├── LedgerFull                     no room left on the disk
        ├── LedgerBusy                     others held it for too long
        ├── LedgerUnconfirmed              spent, but not known to be on the disk
        ├── KeyConflict                    one idempotency key, two requests
        └── AlreadyCharged                 the body of this charge has had its run

Every class also derives from a built-in exception, so callers that know
nothing of Discreet can still catch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

__all__ = [
    "AlreadyCharged",
    "BudgetExceeded",
    "DataCorrupt",
    "DataUnavailable",
    "DiscreetError",
    "FileUnusable",
    "InvalidValue",
    "KeyConflict",
    "LedgerBusy",
    "LedgerCorrupt",
    "LedgerError",
    "LedgerExists",
    "LedgerFull",
    "LedgerMissing",
    "LedgerReadOnly",
    "LedgerTooNew",
    "LedgerUnconfirmed",
    "MechanismHalted",
    "NotApplicable",
    "PlanViolation",
    "RelationMismatch",
    "ResumeRefused",
    "SchemaError",
    "SignatureInvalid",
]


class DiscreetError(Exception):
    """Base of everything this package raises on purpose."""


def _show(value: object) -> str:
    """``repr``, cut where it is long; Python refuses it for integers of very many digits."""
    try:
        shown = repr(value)
    except ValueError:
        return f"<{type(value).__name__} of too many digits>"
    return shown if len(shown) <= 500 else f"{shown[:500]}... ({len(shown)} characters)"


class InvalidValue(DiscreetError, ValueError):
    """An argument is outside its domain.

    ``argument``, ``value`` and ``expected`` are kept as attributes so that the
    command line can name the option that carried the value.
    """

    def __init__(self, argument: str, value: object, expected: str) -> None:
        super().__init__(f"{argument} = {_show(value)}: expected {expected}")
        self.argument = argument
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type[InvalidValue], tuple[str, object, str]]:
        return type(self), (self.argument, self.value, self.expected)


class FileUnusable(InvalidValue):
    """A file that an argument names is missing, damaged or cannot be written."""


class RelationMismatch(DiscreetError, ValueError):
    """Losses under different neighbouring relations were mixed."""


class NotApplicable(DiscreetError, TypeError):
    """No theorem in use here covers the request; nothing was guessed."""


class SchemaError(DiscreetError, ValueError):
    """A serialised object has an unknown version, kind or field."""


class BudgetExceeded(DiscreetError, RuntimeError):
    """A charge would exceed the budget; nothing was charged.

    Raised by a ledger, ``budget`` names the one that is short (``"dataset"`` or, for example,
    ``"analyst:ann"``) and ``remaining`` is what is left of it, exactly.
    """

    def __init__(
        self, message: str, *, budget: str = "", remaining: Mapping[str, Fraction] | None = None
    ) -> None:
        super().__init__(message)
        self.budget = budget
        self.remaining = dict(remaining or {})


class MechanismHalted(DiscreetError, RuntimeError):
    """The mechanism has given all the answers that its loss pays for.

    Whether it is raised follows from the answers already released, never from the
    question that was asked, so it tells nothing new.
    """


class PlanViolation(DiscreetError, RuntimeError):
    """The loop was used in a way that the plan does not cover; nothing was released by it."""


class ResumeRefused(DiscreetError, RuntimeError):
    """A checkpoint does not belong to this run, or is in use; nothing was trained or charged."""


class DataUnavailable(DiscreetError, FileNotFoundError):
    """A data set is in none of the places where it may be."""


class DataCorrupt(DiscreetError, ValueError):
    """A file is not what it should be; nothing of it was used or kept."""


class SignatureInvalid(DiscreetError, ValueError):
    """The content is signed by no key that is trusted, or by one that counts no longer."""


class LedgerError(DiscreetError, RuntimeError):
    """A ledger cannot do what was asked."""


class LedgerMissing(LedgerError, LookupError):
    """There is no such ledger, dataset, budget or entry; nothing was made up."""


class LedgerExists(LedgerError):
    """There is a ledger, dataset or budget of that name already."""


class LedgerCorrupt(LedgerError):
    """The file is damaged, or is not a ledger; nothing was charged."""


class LedgerTooNew(LedgerError):
    """A newer version wrote this ledger; this one must not touch it."""


class LedgerReadOnly(LedgerError):
    """The ledger can be read but not charged; nothing was charged."""


class LedgerFull(LedgerError):
    """There is no room left on the disk; nothing was charged."""


class LedgerBusy(LedgerError):
    """Others held the ledger for longer than the timeout; nothing was charged."""


class LedgerUnconfirmed(LedgerError):
    """The disk did not confirm a charge: it may count as spent, and its body must not run."""


class KeyConflict(LedgerError):
    """An idempotency key came back with another request; nothing was charged."""


class AlreadyCharged(LedgerError):
    """A charge was found by its key, so its body does not run a second time.

    ``outcome`` is ``"completed"``, ``"failed"`` or ``"open"`` and ``result`` is what the body
    recorded.
    """

    def __init__(self, message: str, *, outcome: str = "open", result: object = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.result = result
