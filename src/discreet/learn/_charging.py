"""Charge first, then read: the frame in which a learner touches private data."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from discreet.errors import InvalidValue
from discreet.ledger import Charge, Ledger
from discreet.privacy import Loss

ROW_UNITS = ("row", "record", "example")
"""Words of ledgers that mean one row."""


def charged(
    ledger: Ledger | None,
    dataset: str | None,
    *,
    loss: Loss,
    delta: float,
    purpose: str,
    unit: str | None = None,
) -> AbstractContextManager[Charge | None]:
    """Return the context in which a release of ``loss`` may run; it is spent when this returns.

    Without a ledger nothing is charged. The loss is one plan declared beforehand: a budget adds
    it up as it is where a valid sum can read it (mu^2 of Gaussian noise), and otherwise reads it
    at ``delta``, if that is above 0. ``unit`` is whom the loss speaks of; a dataset of the
    ledger that speaks of others is refused (:func:`check_unit`). None compares nothing.
    """
    if ledger is None:
        if dataset is not None:
            raise InvalidValue("ledger", ledger, f"the ledger that holds the dataset {dataset!r}")
        return nullcontext()
    if not isinstance(ledger, Ledger):
        raise InvalidValue("ledger", ledger, "a discreet.ledger.Ledger or None")
    if dataset is None:
        raise InvalidValue("dataset", dataset, "the name of the dataset to charge in the ledger")
    if unit is not None:
        check_unit(ledger, dataset, unit)
    return ledger.charge(dataset, loss, purpose=purpose, delta=delta if delta > 0.0 else None)


def stated_unit(unit: object, *, persons: bool) -> str:
    """Return whom a fit protects: the word that was given, else a person or a row."""
    if unit is None:
        return "person" if persons else "row"
    if not isinstance(unit, str) or not unit.strip():
        raise InvalidValue("unit", unit, "a word for whose privacy is bounded")
    return unit.strip()


def check_unit(ledger: Ledger, dataset: str, unit: str) -> None:
    """Raise unless the budget of a dataset and a loss speak of the same unit.

    Row, record and example are one and the same; whatever else a ledger names (person, patient,
    user) may own several rows. What a release tells about one row says little about such an
    owner, and what it tells about an owner is another statement than that about one row.
    """
    budgeted = ledger.show(dataset).unit
    ours, theirs = unit.lower(), budgeted.strip().lower()
    if ours == theirs or (ours in ROW_UNITS and theirs in ROW_UNITS):
        return
    if ours == "person" and theirs not in ROW_UNITS:
        return
    raise InvalidValue(
        "dataset",
        dataset,
        f"a dataset whose unit is a {unit}: its budget is for one {budgeted}, and this release "
        f"speaks of one {unit} (say whose rows they are, or that one row is one {budgeted})",
    )
