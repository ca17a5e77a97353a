"""The exception tree.

::

    DiscreetError
    ├── InvalidValue (ValueError)      an argument is outside its domain
    ├── RelationMismatch (ValueError)  two losses speak of different neighbours
    ├── NotApplicable (TypeError)      a theorem does not cover this loss
    ├── SchemaError (ValueError)       a serialised loss cannot be read
    └── BudgetExceeded (RuntimeError)  a charge would pass the budget

Every class also derives from a built-in exception, so callers that know
nothing of Discreet can still catch it.
"""

from __future__ import annotations

__all__ = [
    "BudgetExceeded",
    "DiscreetError",
    "InvalidValue",
    "NotApplicable",
    "RelationMismatch",
    "SchemaError",
]


class DiscreetError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidValue(DiscreetError, ValueError):
    """An argument is outside its domain.

    ``argument``, ``value`` and ``expected`` are kept as attributes so that the
    command line can name the option that carried the value.
    """

    def __init__(self, argument: str, value: object, expected: str) -> None:
        super().__init__(f"{argument} = {value!r}: expected {expected}")
        self.argument = argument
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[type[InvalidValue], tuple[str, object, str]]:
        return type(self), (self.argument, self.value, self.expected)


class RelationMismatch(DiscreetError, ValueError):
    """Losses under different neighbouring relations were mixed."""


class NotApplicable(DiscreetError, TypeError):
    """No theorem in use here covers the request; nothing was guessed."""


class SchemaError(DiscreetError, ValueError):
    """A serialised object has an unknown version, kind or field."""


class BudgetExceeded(DiscreetError, RuntimeError):
    """A charge would exceed the budget; nothing was charged."""
