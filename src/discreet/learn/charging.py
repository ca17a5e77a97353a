"""Charge first, then read: the frame in which a learner touches private data."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from discreet.errors import InvalidValue
from discreet.ledger import Charge, Ledger
from discreet.privacy import Loss

__all__ = ["charged"]


def charged(
    ledger: Ledger | None, dataset: str | None, *, loss: Loss, delta: float, purpose: str
) -> AbstractContextManager[Charge | None]:
    """Return the context in which a release of ``loss`` may run; it is spent when this returns.

    Without a ledger nothing is charged. With ``delta`` > 0 the loss is one plan declared
    beforehand and is read at that delta.
    """
    if ledger is None:
        if dataset is not None:
            raise InvalidValue("ledger", ledger, f"the ledger that holds the dataset {dataset!r}")
        return nullcontext()
    if not isinstance(ledger, Ledger):
        raise InvalidValue("ledger", ledger, "a discreet.ledger.Ledger or None")
    if dataset is None:
        raise InvalidValue("dataset", dataset, "the name of the dataset to charge in the ledger")
    return ledger.charge(dataset, loss, purpose=purpose, delta=delta if delta > 0.0 else None)
