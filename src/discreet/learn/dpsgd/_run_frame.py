"""The frame of a run: what is charged before it, and what is kept when it ends or breaks off."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, final

from torch import Tensor
from torch.optim import Optimizer

from discreet.certificate import Certificate
from discreet.errors import AlreadyCharged, InvalidValue, LedgerMissing, ResumeRefused
from discreet.learn._declared import check_unit
from discreet.learn.dpsgd import _requirements as earlier
from discreet.learn.dpsgd._batches import first_step_after
from discreet.learn.dpsgd._checkpoint import (
    add_prefix,
    load_model,
    pack_optimizer,
    tensors_of,
    unpack_optimizer,
    without_prefix,
)
from discreet.learn.dpsgd._plan import Plan
from discreet.learn.dpsgd._run_directory import RunDirectory
from discreet.ledger import Charge, Ledger

if TYPE_CHECKING:
    from discreet.learn.dpsgd._private import Private


_log = logging.getLogger("discreet.learn.dpsgd")

State = tuple[dict[str, Tensor], dict[str, Any]]
FactsAfter = Callable[[Mapping[str, Any], int], dict[str, int]]


def class_of(optimizer: Optimizer) -> str:
    """The full name of an optimizer's class."""
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def state_of(private: Private) -> State:
    """All that a run needs to go on, as tensors and plain values."""
    tensors, plain = pack_optimizer(private.optimizer)
    tensors = add_prefix("optimizer", tensors)
    tensors.update(add_prefix("model", tensors_of(private.model)))
    return tensors, {
        "steps_taken": private.steps_taken,
        "clip_norms": list(private.clip_norms),
        "optimizer": plain,
        "optimizer_class": class_of(private.optimizer),
        "scheduler": None,
        "average": None,
        "earlier_plans": earlier.write_plans(private._record.earlier),
        "notes": private.notes,
        "run": private._facts(),
        "looked_at": list(private._record.looked_at),
        "isolation": private._record.isolation,
    }


def continue_from(private: Private, state: State, reserved: int, facts: FactsAfter) -> None:
    """Go on from a state, after the first ``reserved`` steps, which may have been taken.

    ``facts(notes, lost)`` gives what the certificate is to state of what happened before.
    """
    tensors, notes = state
    plan, optimizer = private.plan, private.optimizer
    if notes.get("optimizer_class") != class_of(optimizer):
        raise ResumeRefused(
            f"the run was trained by {notes.get('optimizer_class')}, this one has "
            f"{class_of(optimizer)}"
        )
    before = earlier.read_plans(notes.get("earlier_plans", {}))
    earlier.require_alike(plan, before)
    load_model(private.model, without_prefix("model", tensors))
    unpack_optimizer(optimizer, without_prefix("optimizer", tensors), notes["optimizer"])
    start = first_step_after(plan, reserved)
    if start > notes["steps_taken"]:
        _log.warning(
            "%d steps after the last saved state may have been taken; they are given up",
            start - notes["steps_taken"],
        )
    private._continue_at(
        start,
        clip_norms=notes["clip_norms"],
        earlier_plans=before,
        notes=notes.get("notes", {}),
        facts=facts(notes, start - notes["steps_taken"]),
        looked_at=notes.get("looked_at", ()),
        vouched=notes.get("isolation") == "vouched",
    )


@contextmanager
def save_on_exit(
    run: RunDirectory | None,
    private: Private,
    state: Callable[[Private], State],
) -> Iterator[None]:
    """Save the state at the end and when the loop breaks off, if there is a place for it."""
    try:
        yield
    except BaseException as error:
        private._leave()
        if run is not None:
            try:
                run.save_state(*state(private))
                run.give_back(private.steps_taken)
            except OSError as reason:
                error.add_note(f"and the state could not be saved: {reason}")
        raise
    if run is not None:
        run.save_state(*state(private))


@final
@dataclass(frozen=True)
class Payment:
    """What a run was charged; without a ledger, nothing."""

    receipt: dict[str, Any] | None = None
    find: Callable[[], Charge] | None = None
    charge: Charge | None = None

    def require_open(self) -> None:
        """Raise if another copy of the run has ended since: there is one release for one charge."""
        if self.find is not None and self.find().outcome != "open":
            raise ResumeRefused(
                "another copy of this run has ended meanwhile, and the charge is for one model; "
                "this one takes no more steps"
            )

    def state(self, certificate: Certificate) -> None:
        """Have the ledger know which model the charge was for, and what is said of it."""
        certificate.paid_by(self.charge)


def require_unit(ledger: Ledger, dataset: str, plan: Plan) -> None:
    """Raise unless the budget and the plan speak of the same unit.

    See :func:`discreet.learn.check_unit`: a bound for one example is none for a person
    who owns several.
    """
    try:
        check_unit(ledger, dataset, plan.unit)
    except InvalidValue:
        unit = ledger.show(dataset).unit
        raise InvalidValue(
            "dataset_name",
            dataset,
            f"a dataset with the unit of the plan: its budget is for one {unit}, the plan for one "
            f"{plan.unit} (if no {unit} owns two examples, say Plan(unit={unit!r}))",
        ) from None


@contextmanager
def charged_once(
    ledger: Ledger | None,
    dataset: str | None,
    plan: Plan,
    run: RunDirectory | None,
    *,
    names: Mapping[str, str | None],
) -> Iterator[Payment]:
    """Charge the whole plan once; a resumed run shows its receipt instead.

    A budget for another unit than that of the plan is refused (:func:`require_unit`).
    """
    receipt = None if run is None else run.load_receipt()
    if ledger is None or dataset is None:
        if receipt is not None:
            raise ResumeRefused("the run was charged to a ledger; pass that ledger to resume it")
        yield Payment()
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
    require_unit(ledger, dataset, plan)
    key = secrets.token_hex(16) if run is None else run.run_id
    find = partial(
        ledger.charge, dataset, plan.loss, delta=Fraction(repr(plan.delta)), key=key, **dict(names)
    )
    charge = find()
    if run is None:
        with charge:
            yield Payment(charge.receipt(), charge=charge)
        return
    if receipt is None:
        run.save_receipt(charge.receipt())
    if charge.outcome != "open":
        where = ""
        if charge.outcome == "completed" and _publish_late(run, charge):
            where = "; its model and certificate are in the directory"
        raise ResumeRefused(f"the ledger says that this run was {charge.outcome} already{where}")
    run.discard()
    # Until the run has ended it can be resumed, so a failure is no outcome.
    try:
        with charge.attempt():
            yield Payment(charge.receipt(), find, charge)
    except AlreadyCharged:
        run.discard()  # another copy of the run has ended first
        raise


def _publish_late(run: RunDirectory, charge: Charge) -> bool:
    """After a kill between the outcome and its publication: whether the model is that of it."""
    result = charge.result
    digest = result.get("model_digest") if isinstance(result, dict) else None
    published = run.publish(digest) if isinstance(digest, str) else False
    if published:
        run.finish()
    else:
        run.discard()
    return published
