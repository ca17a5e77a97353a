"""The frame of a run: what is charged before it, and what is kept when it ends or breaks off."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from torch import Tensor

from discreet.errors import LedgerMissing, ResumeRefused
from discreet.learn.dpsgd.plan import Plan
from discreet.learn.dpsgd.private import Private
from discreet.learn.dpsgd.run_directory import RunDirectory
from discreet.ledger import Ledger

__all__ = ["charged_once", "kept"]


@contextmanager
def kept(
    run: RunDirectory | None,
    private: Private,
    state: Callable[[Private], tuple[dict[str, Tensor], dict[str, Any]]],
) -> Iterator[None]:
    """Save the state at the end and when the loop breaks off, if there is a place for it."""
    try:
        yield
    except BaseException as error:
        private._abandon()
        if run is not None:
            try:
                run.save_state(*state(private))
                run.give_back(private.steps_taken)
            except OSError as reason:
                error.add_note(f"and the state could not be saved: {reason}")
        raise
    if run is not None:
        run.save_state(*state(private))


@contextmanager
def charged_once(
    ledger: Ledger | None,
    dataset: str | None,
    plan: Plan,
    run: RunDirectory | None,
    *,
    names: Mapping[str, str | None],
) -> Iterator[dict[str, Any] | None]:
    """Charge the whole plan once; a resumed run shows its receipt instead."""
    receipt = None if run is None else run.load_receipt()
    if ledger is None or dataset is None:
        if receipt is not None:
            raise ResumeRefused("the run was charged to a ledger; pass that ledger to resume it")
        yield None
        return
    if receipt is not None:
        entry = receipt["entry"]
        try:
            known = entry["dataset"] == dataset and ledger.receipt(dataset, entry["seq"]) == receipt
        except LedgerMissing:
            known = False
        if not known:
            raise ResumeRefused("the run was charged to another ledger or dataset")
    if receipt is None and run is not None and run.reserved:
        raise ResumeRefused("the run took steps without being charged to a ledger")
    key = secrets.token_hex(16) if run is None else run.run_id
    charge = ledger.charge(
        dataset, plan.loss, delta=Fraction(repr(plan.delta)), key=key, **dict(names)
    )
    if run is None:
        with charge:
            yield charge.receipt()
        return
    if receipt is None:
        run.save_receipt(charge.receipt())
    if charge.outcome != "open":
        where = ""
        if charge.outcome == "completed" and (run.path / "certificate.json").exists():
            run.finish()  # it was killed just before this
            where = "; its model and certificate are in the directory"
        raise ResumeRefused(f"the ledger says that this run was {charge.outcome} already{where}")
    # Until the run has ended it can be resumed, so a failure is no outcome.
    with charge.attempt():
        yield charge.receipt()
