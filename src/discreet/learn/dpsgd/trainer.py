"""A whole private run: charge, train, validate on public data, checkpoint, certify."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from discreet import _validate
from discreet.errors import InvalidValue, LedgerMissing
from discreet.learn.dpsgd.averaging import ParameterAverage
from discreet.learn.dpsgd.checkpoint import (
    digest_of,
    load_model,
    pack_optimizer,
    prefixed,
    tensors_of,
    unpack_optimizer,
    without_prefix,
)
from discreet.learn.dpsgd.loading import Collate, length_of, template_of
from discreet.learn.dpsgd.making import make_private
from discreet.learn.dpsgd.plan import Plan
from discreet.learn.dpsgd.private import Private
from discreet.learn.dpsgd.probing import probe
from discreet.learn.dpsgd.progress import Display
from discreet.learn.dpsgd.refusals import ResumeRefused
from discreet.learn.dpsgd.run_directory import RunDirectory
from discreet.learn.dpsgd.sampling import first_step_after
from discreet.learn.dpsgd.trained import Trained, save
from discreet.ledger import Ledger
from discreet.randomness import Source

__all__ = ["Trainer"]

_log = logging.getLogger("discreet.learn.dpsgd")

Losses = Callable[[nn.Module, Any], Tensor]


@final
class Trainer:
    """Trains a model under a plan.

    ``loss(outputs, targets)`` gives one loss for each example: a torch loss with
    ``reduction="none"``, or any function. Batches are taken as ``(inputs..., targets)``; for
    others give ``losses(model, batch)`` instead, which returns one loss for each row.
    ``optimizer`` is an optimizer of the model or a function that makes one from its parameters,
    ``scheduler`` likewise from the optimizer; it moves once a step. With ``average`` the
    trained model is the exponential moving average with that decay.

    What may be released: the model, its certificate and history. During training nothing that
    depends on private examples is shown or kept but the parameters, whose every step the plan
    has paid for. The training loss is not among it: see ``show_private_loss`` in :meth:`fit`.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        *,
        optimizer: Optimizer | Callable[[Any], Optimizer],
        loss: Callable[[Any, Any], Tensor] | None = None,
        losses: Losses | None = None,
        scheduler: LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
        average: float | None = None,
        inputs: Any = None,
        isolation: str = "check",
        batch_axis: int | None = None,
        source: Source | None = None,
    ) -> None:
        if (loss is None) == (losses is None):
            raise InvalidValue("loss", loss, "either loss or losses, not both")
        reduction = getattr(loss, "reduction", "none")
        if reduction != "none":
            raise InvalidValue(
                "loss",
                f"reduction={reduction!r}",
                "a loss of reduction='none': one for each example",
            )
        if not isinstance(model, nn.Module):
            raise InvalidValue("model", model, "a torch.nn.Module")
        self.model = model
        self.plan = plan
        self.optimizer = (
            optimizer
            if isinstance(optimizer, Optimizer)
            else optimizer([p for p in model.parameters() if p.requires_grad])
        )
        if scheduler is not None and not isinstance(scheduler, LRScheduler):
            scheduler = scheduler(self.optimizer)
        self.scheduler = scheduler
        self._loss = loss
        self._losses: Losses = losses or self._default_losses
        self._average = None if average is None else ParameterAverage(model, decay=average)
        self._inputs = inputs
        self._isolation = isolation
        self._batch_axis = batch_axis
        self._source = source

    def fit(
        self,
        dataset: Any,
        *,
        ledger: Ledger | None = None,
        dataset_name: str | None = None,
        purpose: str | None = None,
        analyst: str | None = None,
        project: str | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int | None = None,
        validation: Any = None,
        validate_every: int | None = None,
        collate: Collate | None = None,
        max_physical: int | None = None,
        workers: int = 0,
        progress: bool | None = None,
        show_private_loss: bool = False,
    ) -> Trained:
        """Train by the plan and return the model with its certificate.

        With ``ledger`` the loss of the whole plan is charged to ``dataset_name``, once and
        before any example is read. With ``checkpoint``, a directory, a killed run can be
        resumed by the same call: it is not charged again, takes no step twice
        (:mod:`~discreet.learn.dpsgd.run_directory`), and refuses a changed plan. At the end
        the model and its certificate are in that directory too.

        The isolation check runs before the charge if ``inputs`` described the model's inputs
        or ``validation`` shows their shapes, otherwise at the first batch, which is after it.

        ``validation`` is *public* data: figures on it are shown and kept. ``show_private_loss``
        shows the training loss as well, marked as not for release; it is not part of what was
        paid for and is not kept.
        """
        plan, steps = self.plan, self.plan.steps
        if (ledger is None) != (dataset_name is None):
            raise InvalidValue("dataset_name", dataset_name, "a name if and only if with a ledger")
        saves = max(1, steps // 20) if checkpoint_every is None else checkpoint_every
        _validate.integer("checkpoint_every", saves, at_least=1)
        looks = max(1, steps // 10) if validate_every is None else validate_every
        _validate.integer("validate_every", looks, at_least=1)
        length = length_of(dataset)
        if plan.public_examples and length != plan.examples:
            raise InvalidValue(
                "dataset", f"{length} examples", f"the public number {plan.examples} of the plan"
            )
        if validation is not None:
            length_of(validation)
        for warning in plan.warnings:
            _log.warning("%s", warning)
        with ExitStack() as stack:
            run = None
            if checkpoint is not None:
                run = RunDirectory(checkpoint, plan)
                stack.callback(run.close)
            source = self._source
            if source is not None and run is not None:
                source = source.derive("attempt", run.attempt)
            probed = self._probe(validation, collate)
            private = make_private(
                self.model,
                self.optimizer,
                plan,
                inputs=self._inputs,
                isolation="vouched" if probed is not None else self._isolation,
                after_step=list(self._after_step()),
                batch_axis=self._batch_axis,
                source=source,
            )
            stack.callback(private.detach)
            if probed is not None:
                private._isolation, private._writes = "checked", probed
            if self._loss is not None:
                private._inputs_of = _all_but_targets
            if run is not None:
                self._restore(run, private)
                private._reserve = run.reserve
            with _charged(
                ledger,
                dataset_name,
                plan,
                run,
                names={"purpose": purpose, "analyst": analyst, "project": project},
            ) as receipt:
                history: list[Mapping[str, float]] = []
                with Display(private, shown=progress) as display, _kept(run, private, self._state):
                    batches: Iterator[Any] = iter(())
                    if private.steps_taken < steps:
                        batches = private.batches(
                            dataset, collate=collate, max_physical=max_physical, workers=workers
                        )
                    self.model.train()
                    for batch in batches:
                        losses = self._losses(self.model, self._moved(batch))
                        private.backward(losses)
                        self.optimizer.step()
                        if not private.stepped:
                            continue
                        taken = private.steps_taken
                        if validation is not None and (taken % looks == 0 or taken == steps):
                            figures = self._validated(validation, collate)
                            history.append({"step": taken, **figures})
                            display.public(figures)
                        if display.is_on:
                            shown = float(losses.detach().mean()) if show_private_loss else None
                            display.step(private_loss=shown)
                        if run is not None and taken % saves == 0 and taken < steps:
                            run.save_state(*self._state(private))
                if self._average is not None:
                    self._average.exchange()
                certificate = private.certificate(receipt=receipt)
                digest = digest_of(tensors_of(self.model))
                certificate = replace(certificate, model_digest=digest)
                if run is not None:
                    save(run.path, self.model, certificate)
                    run.finish()
        self.model.eval()
        return Trained(self.model, certificate, tuple(history))

    def _default_losses(self, model: nn.Module, batch: Any) -> Tensor:
        *inputs, targets = batch
        assert self._loss is not None
        return self._loss(model(*inputs), targets)

    def _moved(self, batch: Any) -> Any:
        """The batch where the model is."""
        device = next(self.model.parameters()).device
        if device.type == "cpu":
            return batch
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)

    def _after_step(self) -> Iterator[Callable[[], object]]:
        if self.scheduler is not None:
            yield self.scheduler.step
        if self._average is not None:
            yield self._average.update

    def _probe(self, validation: Any, collate: Collate | None) -> frozenset[str] | None:
        """Look for mixing before anything is charged, if public data show the shapes."""
        if self._isolation != "check" or self._inputs is not None or validation is None:
            return None
        loader: DataLoader[Any] = DataLoader(validation, batch_size=1, collate_fn=collate)
        parts = template_of(next(iter(loader)))
        if parts is None or self._loss is None or len(parts) < 2:
            return None
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        return probe(
            self.model,
            tuple(parts[:-1]),
            targets=parts[-1],
            loss=self._loss,
            groups=self.plan.clipping.groups(names),
            batch_axis=self._batch_axis,
        )

    def _validated(self, validation: Any, collate: Collate | None) -> dict[str, float]:
        """Mean loss and, for classifiers, accuracy on public data."""
        loader: DataLoader[Any] = DataLoader(validation, batch_size=512, collate_fn=collate)
        if self._average is not None:
            self._average.exchange()
        self.model.eval()
        total, right, judged, count = 0.0, 0, 0, 0
        try:
            with torch.no_grad():
                for batch in map(self._moved, loader):
                    if self._loss is None:
                        losses = self._losses(self.model, batch)
                    else:
                        *inputs, targets = batch
                        outputs = self.model(*inputs)
                        losses = self._loss(outputs, targets)
                        if _is_classification(outputs, targets):
                            right += int((outputs.argmax(1) == targets).sum())
                            judged += len(targets)
                    total += float(losses.sum())
                    count += losses.shape[0]
        finally:
            self.model.train()
            if self._average is not None:
                self._average.exchange()
        figures = {"validation loss": total / count}
        if judged:
            figures["accuracy"] = right / judged
        return figures

    # --- state -------------------------------------------------------------------------

    def _state(self, private: Private) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, plain = pack_optimizer(self.optimizer)
        tensors = prefixed("optimizer", tensors)
        tensors.update(prefixed("model", tensors_of(self.model)))
        notes: dict[str, Any] = {
            "steps_taken": private.steps_taken,
            "clip_norms": list(private.clip_norms),
            "optimizer": plain,
            "optimizer_class": _class_of(self.optimizer),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "average": None,
        }
        if self._average is not None:
            tensors.update(prefixed("average", self._average.tensors()))
            notes["average"] = self._average.updates
        return tensors, notes

    def _restore(self, run: RunDirectory, private: Private) -> None:
        """Continue from the last state, or keep the first one: what cannot be kept shows now."""
        found = run.load_state()
        if found is None:
            run.save_state(*self._state(private))
            return
        tensors, notes = found
        if notes.get("optimizer_class") != _class_of(self.optimizer):
            raise ResumeRefused(
                f"the run was trained by {notes.get('optimizer_class')}, this trainer has "
                f"{_class_of(self.optimizer)}"
            )
        if (notes["scheduler"] is None) != (self.scheduler is None):
            raise ResumeRefused("the run had a scheduler, or had none; this trainer differs")
        if (notes["average"] is None) != (self._average is None):
            raise ResumeRefused("the run averaged parameters, or did not; this trainer differs")
        load_model(self.model, without_prefix("model", tensors))
        unpack_optimizer(self.optimizer, without_prefix("optimizer", tensors), notes["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(notes["scheduler"])
        if self._average is not None:
            averages = without_prefix("average", tensors)
            self._average.restore(averages, updates=int(notes["average"]))
        start = first_step_after(self.plan, run.reserved)
        if start > notes["steps_taken"]:
            _log.warning(
                "%d steps after the last saved state may have been taken; they are given up",
                start - notes["steps_taken"],
            )
        private._continue_at(start, clip_norms=notes["clip_norms"])


@contextmanager
def _kept(
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
def _charged(
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
    if run is not None and receipt is None:
        run.save_receipt(charge.receipt())
    if not charge.replayed:
        with charge:
            yield charge.receipt()
        return
    if charge.outcome == "completed":
        raise ResumeRefused("the ledger says that this run was completed already")
    yield charge.receipt()


def _class_of(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _all_but_targets(parts: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(parts[:-1])


def _is_classification(outputs: object, targets: object) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.ndim == 2
        and targets.ndim == 1
        and not targets.is_floating_point()
    )
