"""A whole private run: charge, train, validate on public data, checkpoint, certify."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from discreet import _validate
from discreet._rounding import at_most
from discreet.errors import DiscreetError, InvalidValue, ResumeRefused
from discreet.learn.dpsgd._batches import (
    Collate,
    Loading,
    length_of,
    template_of,
    template_of_table,
)
from discreet.learn.dpsgd._checkpoint import add_prefix, without_prefix
from discreet.learn.dpsgd._collating import require_rows_apart
from discreet.learn.dpsgd._making import wrap
from discreet.learn.dpsgd._padding import MOST, padded_pair, require_padding_ignored
from discreet.learn.dpsgd._people import require_owners
from discreet.learn.dpsgd._plan import Plan
from discreet.learn.dpsgd._private import Private
from discreet.learn.dpsgd._requirements import GROUP_ENTRY
from discreet.learn.dpsgd._run_directory import RunDirectory
from discreet.learn.dpsgd._run_frame import (
    FactsAfter,
    Payment,
    State,
    charged_once,
    class_of,
    continue_from,
    require_unit,
    save_on_exit,
    state_of,
)
from discreet.learn.dpsgd._step import Watch, losses_of
from discreet.learn.dpsgd._team import Members
from discreet.learn.dpsgd._tensors import exchange_tensors
from discreet.learn.dpsgd._trained import ParameterAverage, Trained, save
from discreet.learn.dpsgd._trial import probe
from discreet.learn.dpsgd.isolation._subject import describe
from discreet.ledger import Ledger
from discreet.randomness import Source

if TYPE_CHECKING:
    from discreet.learn.dpsgd._team import Team


_log = logging.getLogger("discreet.learn.dpsgd")

Losses = Callable[[nn.Module, Any], Tensor]
_READING_SECONDS = 2.0


@final
class Trainer:
    """Trains a model under a plan.

    ``loss(outputs, targets)`` gives one loss for each example: a torch loss with
    ``reduction="none"``, or any function. Batches are taken as ``(inputs..., targets)``; for
    others give ``losses(model, batch)`` instead, which returns one loss for each row.
    ``inputs`` and ``targets`` describe an example (:class:`TensorSpec`): with them the run is
    rehearsed before it is charged, and batches get the declared types.
    ``optimizer`` is an optimizer of the model or a function that makes one from its parameters,
    ``scheduler`` likewise from the optimizer; it moves once a step. With ``average`` the
    trained model is the exponential moving average with that decay. ``public`` and
    ``watches`` are those of :func:`make_private`.

    What may be released: the model, its certificate and history. During training nothing that
    depends on private examples is shown or kept but the parameters, whose every step the plan
    has paid for. The training loss is not among it: see ``show_private_loss`` in :meth:`fit`.

    With ``team`` (:func:`discreet.learn.dpsgd.join`) several processes train one
    model. All of them make the same trainer and call :meth:`fit`; the first alone charges its
    ledger, writes its checkpoint and shows its progress, and all get the same model and
    certificate.
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
        targets: Any = None,
        isolation: str = "check",
        batch_axis: int | None = None,
        source: Source | None = None,
        team: Team | None = None,
        public: Sequence[Any] = (),
        watches: Sequence[Watch] = (),
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
        if not isinstance(plan, Plan):
            raise InvalidValue("plan", plan, "a discreet.learn.dpsgd.Plan")
        if source is not None and not isinstance(source, Source):
            raise InvalidValue("source", source, "a discreet.randomness.Source or None")
        self.model = model
        self.plan = plan
        self.optimizer = _optimizer_of(model, optimizer)
        self.scheduler = _scheduler_of(self.optimizer, scheduler)
        self._loss = loss
        self._losses: Losses = losses or self._default_losses
        self._average = None if average is None else ParameterAverage(model, decay=average)
        self._inputs = inputs
        self._targets = targets
        if targets is not None and inputs is None:
            raise InvalidValue("targets", targets, "None, or a description beside that of inputs")
        self._isolation = isolation
        self._batch_axis = batch_axis
        self._source = source
        self._team = team
        self._types: list[torch.dtype] | None = None
        self._is_whole = True
        self._public = public
        self._watches = tuple(watches)

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
        before any example is read; its budget must be for the plan's unit. With ``checkpoint``,
        a directory, a killed run can be resumed by the same call: it is not charged again, takes
        no step twice (:mod:`~discreet.learn.dpsgd._run_directory`), and refuses a changed plan. At
        the end the model and its certificate are in that directory too.

        The run is rehearsed before the charge, on public or made-up examples: isolation, shapes
        and types. What an example looks like is known from ``inputs``, from ``validation``, or from
        ``dataset`` if it is a ``TensorDataset`` (nothing of it is read). With a ledger one of them
        is required; without one the isolation check may wait for the first batch. Real examples
        are read after the charge, and none of them makes the run fail: one that the model or
        the loss cannot take, such as one whose label is no class, adds nothing
        (:mod:`~discreet.learn.dpsgd._step`).

        ``validation`` is *public* data: figures on it are shown and kept. ``show_private_loss``
        shows the training loss as well, marked as not for release; it is not part of what was
        paid for and is not kept.
        """
        plan, steps = self.plan, self.plan.steps
        members = Members(self._team)
        with members.fail_together():
            save_every, look_every = self._check_options(
                dataset,
                validation=validation,
                names=(ledger, dataset_name),
                every=(checkpoint_every, validate_every),
                collate=collate,
                max_physical=max_physical,
                workers=workers,
            )
        self._agree(members, dataset)
        members.require_on_leader("ledger", given=ledger is not None)
        members.require_on_leader("checkpoint", given=checkpoint is not None)
        if members.leads:
            for warning in plan.warnings:
                _log.warning("%s", warning)
        with ExitStack() as stack:
            run = None
            with members.fail_together():
                if checkpoint is not None and members.leads:
                    run = RunDirectory(checkpoint, plan)
                    stack.callback(run.close)
            source = self._source
            attempt = members.broadcast_from_leader(lambda: None if run is None else run.attempt)
            if source is not None and attempt is not None:
                source = source.derive("attempt", attempt)
            members.begin(self.model)
            with members.fail_together():
                shapes = self._shapes(dataset, validation, collate)
                if ledger is not None:
                    self._require_known(shapes, validation)
                private = self._wrap(shapes, source, run)
                stack.callback(private.detach)
                self._try_out(shapes, validation, collate)
            self._restore(run, private, members)
            paid = stack.enter_context(ExitStack())
            names = {"purpose": purpose, "analyst": analyst, "project": project}
            payment = Payment()

            def pay() -> dict[str, Any] | None:
                nonlocal payment
                payment = paid.enter_context(
                    charged_once(ledger, dataset_name, plan, run, names=names)
                )
                return payment.receipt

            receipt = members.broadcast_from_leader(pay)
            history: list[Mapping[str, float]] = []
            shown = progress if members.leads else False
            with Display(private, shown=shown) as display, save_on_exit(run, private, self._state):
                batches: Iterator[Any] = iter(())
                if private.steps_taken < steps:
                    batches = private.batches(
                        dataset, collate=collate, max_physical=max_physical, workers=workers
                    )
                self.model.train()
                losses: Tensor | None = None
                for batch in map(self._move, batches):
                    if self._loss is not None and not show_private_loss:
                        private.step(self._loss, *batch)
                    else:
                        losses = private._losses_of_fit(self._losses, batch)
                        assert losses is not None
                        private.backward(losses)
                        self.optimizer.step()
                    if not private.stepped:
                        continue
                    taken = private.steps_taken
                    if validation is not None and (taken % look_every == 0 or taken == steps):
                        figures = self._validate(validation, collate)
                        history.append({"step": taken, **figures})
                        display.public(figures)
                    if display.is_on:
                        shown_loss = losses if show_private_loss else None
                        seen = None if shown_loss is None else float(shown_loss.detach().mean())
                        display.step(private_loss=seen)
                    if run is not None and taken % save_every == 0 and taken < steps:
                        payment.require_open()
                        run.save_state(*self._state(private))
            if self._average is not None:
                self._average.exchange()
            members.synchronise_models(self.model)
            private._state_for(members.largest(private._facts()))
            certificate = private.certificate(receipt=receipt)
            # Seeded members differ in this; the certificate is the leader's.
            own = (dict(certificate.randomness), dict(certificate.run))
            randomness, said = members.broadcast_from_leader(lambda: list(own))
            certificate = replace(certificate, randomness=randomness, run=said)
            with members.fail_together():
                if run is not None:
                    save(run.unpublished, self.model, certificate)
                payment.state(certificate)
                # The outcome is in the ledger before the model is in its place and the directory
                # says that all is done: a crash between can be resumed, and of two copies of a
                # run only the one that the ledger has heard of leaves a model.
                paid.close()
                if run is not None:
                    run.publish(str(certificate.model_digest))
                    run.finish()
        self.model.eval()
        return Trained(self.model, certificate, tuple(history))

    def rehearse(
        self, dataset: Any, *, validation: Any = None, collate: Collate | None = None
    ) -> None:
        """Try out, on public or made-up examples, what :meth:`fit` with a ledger would before it.

        Nothing is charged, and no example of ``dataset`` is read.

        Parameters
        ----------
        dataset, validation, collate
            As for :meth:`fit`.

        Raises
        ------
        InvalidValue
            If model, loss and examples do not fit, or what an example looks like is not known.
        """
        shapes = self._shapes(dataset, validation, collate)
        self._require_known(shapes, validation)
        private = self._wrap(shapes, None, None)
        try:
            self._try_out(shapes, validation, collate)
        finally:
            private.detach()

    def _check_options(
        self,
        dataset: Any,
        *,
        validation: Any,
        names: tuple[Ledger | None, str | None],
        every: tuple[int | None, int | None],
        collate: Collate | None,
        max_physical: int | None,
        workers: int,
    ) -> tuple[int, int]:
        """Refuse what can be refused at once; how often to save and to validate."""
        plan, steps = self.plan, self.plan.steps
        ledger, dataset_name = names
        checkpoint_every, validate_every = every
        if (ledger is None) != (dataset_name is None):
            raise InvalidValue("dataset_name", dataset_name, "a name if and only if with a ledger")
        saves = max(1, steps // 20) if checkpoint_every is None else checkpoint_every
        _validate.integer("checkpoint_every", saves, at_least=1)
        looks = max(1, steps // 10) if validate_every is None else validate_every
        _validate.integer("validate_every", looks, at_least=1)
        if ledger is not None and not isinstance(ledger, Ledger):
            raise InvalidValue("ledger", ledger, "a discreet.ledger.Ledger or None")
        if ledger is not None and dataset_name is not None:
            # Again before the charge; here no directory is taken for a plan that cannot be paid.
            require_unit(ledger, dataset_name, plan)
        length = length_of(dataset)
        require_owners(plan, dataset)
        if plan.public_examples and length != plan.examples:
            raise InvalidValue(
                "dataset", f"{length} examples", f"the public number {plan.examples} of the plan"
            )
        if validation is not None:
            length_of(validation, "validation")
        Loading(dataset, collate, max_physical, workers)
        if self._team is not None and workers:
            raise InvalidValue("workers", workers, "0: the members of a team stay in step")
        return saves, looks

    def _agree(self, members: Members, dataset: Any) -> None:
        """What would let the models of the members drift apart."""
        own = ("params", GROUP_ENTRY)
        groups = [
            {key: repr(value) for key, value in group.items() if key not in own}
            for group in self.optimizer.param_groups
        ]
        members.agree(
            {
                "plan": self.plan.content_hash,
                "dataset": length_of(dataset),
                "optimizer": [class_of(self.optimizer), groups],
                "scheduler": type(self.scheduler).__qualname__,
                "average": None if self._average is None else self._average.decay,
                "isolation": self._isolation,
                # A seed that one member uses takes the privacy of all.
                "source": self._source is not None and "INSECURE" in str(self._source.provenance),
            }
        )

    def _wrap(
        self, shapes: list[Tensor] | None, source: Source | None, run: RunDirectory | None
    ) -> Private:
        """The model under its plan, probed if the shapes are known."""
        writes = self._probe(shapes)
        return wrap(
            self.model,
            self.optimizer,
            self.plan,
            inputs=self._inputs,
            isolation=self._isolation if writes is None else "checked",
            after_step=list(self._after_step()),
            batch_axis=self._batch_axis,
            source=source,
            team=self._team,
            public=self._public,
            writes=writes or frozenset(),
            probed=None if writes is None else self._inputs_in(shapes),
            inputs_of=None if self._loss is None else _drop_targets,
            losses_of=self._losses,
            run=run,
            watches=self._watches,
        )

    def _default_losses(self, model: nn.Module, batch: Any) -> Tensor:
        *inputs, targets = batch
        assert self._loss is not None
        return losses_of(self._loss, model(*inputs), targets)

    def _move(self, batch: Any) -> Any:
        """The batch where the model is, in the types that were declared for it."""
        if self._types is not None and isinstance(batch, list | tuple):
            # Not of single examples: one of another type may have changed that of all.
            batch = [
                part.to(kind) if kind is not None and isinstance(part, Tensor) else part
                for part, kind in zip(batch, [*self._types, *[None] * len(batch)], strict=False)
            ]
        device = next(self.model.parameters()).device
        if device.type == "cpu":
            return batch
        return exchange_tensors(batch, lambda tensor: tensor.to(device))

    def _after_step(self) -> Iterator[Callable[[], object]]:
        if self.scheduler is not None:
            yield self.scheduler.step
        if self._average is not None:
            yield self._average.update

    def _shapes(
        self, dataset: Any, validation: Any, collate: Collate | None
    ) -> list[Tensor] | None:
        """What a batch looks like, by declaration, public data or a table of which nothing is read.

        The types are kept, because batches get them.
        """
        self._types = None
        known = table = template_of_table(dataset, collate)
        if validation is not None:
            known = template_of(next(iter(_loader(validation, 1, collate))))
        declared = self._declared_shapes()
        if declared is not None:
            given = [] if known is None else known
            if table is not None:  # of which the shapes are public as well
                pairs = zip(declared, table, strict=False)
                declared = [has.to(says.dtype) for says, has in pairs]
            known = [*declared, *given[len(declared) :]]
            if len(known) == len(declared) and self._targets is None:
                known += self._make_targets(known)
            self._is_whole = len(known) > len(declared) or self._targets is not None
        if known is not None and (self._is_whole or self._loss is not None):
            self._types = [part.dtype for part in known]
        return known

    def _declared_shapes(self) -> list[Tensor] | None:
        if self._inputs is None:
            return None
        declared = describe(self._inputs, self._targets)
        specs = [*declared.positional, *declared.targets]
        if not declared.positional or any(spec.batch_dim for spec in specs):
            return None
        return [torch.empty(1, *spec.shape, dtype=spec.dtype, device="meta") for spec in specs]

    def _make_targets(self, inputs: list[Tensor]) -> list[Tensor]:
        """The targets of a loss over classes: one for each output, as torch has it."""
        if type(self._loss) not in (nn.CrossEntropyLoss, nn.NLLLoss):
            return []
        with torch.no_grad(), _quiet(self.model):
            outputs = self._run_on_zeros(lambda batch: self.model(*batch), inputs)
        if not isinstance(outputs, Tensor) or outputs.ndim < 2:
            return []
        return [torch.empty(1, *outputs.shape[2:], dtype=torch.int64, device="meta")]

    def _require_known(self, shapes: list[Tensor] | None, validation: Any) -> None:
        """Refuse to charge what cannot be rehearsed."""
        if self._inputs is not None or shapes is not None:
            return
        if validation is None or self._isolation == "check":
            raise InvalidValue(
                "inputs",
                None,
                "a TensorSpec of what the model takes (and targets=), or validation= of plain "
                "tensors: with a ledger the run is rehearsed on made-up examples before it is "
                "charged, and what they look like is not known without reading private ones. "
                "Nothing was charged",
            )

    def _run_on_zeros(self, call: Callable[[Any], Any], shapes: list[Tensor]) -> Any:
        """What a call gives for made-up examples: zeros, as in a step that draws nobody."""
        batch = [torch.zeros(2, *part.shape[1:], dtype=part.dtype) for part in shapes]
        try:
            return call(self._move(batch))
        except DiscreetError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            described = ", ".join(f"{tuple(part.shape[1:])} {part.dtype}" for part in shapes)
            raise InvalidValue(
                "inputs",
                described,
                f"examples that the model and the loss take; on zeros they raised "
                f"{type(error).__name__}: {error}. Nothing was charged",
            ) from error

    def _try_out(
        self, shapes: list[Tensor] | None, validation: Any, collate: Collate | None
    ) -> None:
        """Compute losses once before anything is charged, of public or of made-up examples."""
        with torch.no_grad(), _quiet(self.model):
            if validation is not None:
                count = min(2, length_of(validation))
                batch = next(iter(_loader(validation, count, collate)))
                self._check_losses(self._losses(self.model, self._move(batch)), count)
                if collate is not None and self._isolation != "vouched":
                    examples = [validation[at] for at in range(min(MOST, length_of(validation)))]
                    require_rows_apart(examples, collate)
                    pair = padded_pair(examples, collate)
                    if pair is not None:
                        require_padding_ignored(self.model, pair, self._losses)
                self._validate(validation, collate)  # all of it: what is public costs nothing
            if shapes is not None and self._is_whole:
                self._check_losses(
                    self._run_on_zeros(lambda batch: self._losses(self.model, batch), shapes), 2
                )
            elif shapes is not None:
                self._run_on_zeros(lambda batch: self.model(*batch), shapes)

    def _check_losses(self, losses: object, rows: int) -> None:
        if not isinstance(losses, Tensor) or losses.shape != (rows,):
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            name = "losses" if self._loss is None else "loss"
            raise InvalidValue(
                name, found, f"one loss for each example, of shape ({rows},) for {rows} of them"
            )

    def _probe(self, parts: list[Tensor] | None) -> frozenset[str] | None:
        """Look for mixing before anything is charged, if the shapes are known."""
        if self._isolation != "check" or self._inputs is not None:
            return None
        if parts is None or (self._loss is not None and len(parts) < 2):
            return None
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        return probe(
            self.model,
            self._inputs_in(parts),
            targets=None if self._loss is None else parts[-1],
            loss=self._loss,
            groups=self.plan.clipping.groups(names),
            batch_axis=self._batch_axis,
            plan=self.plan,
        )

    def _inputs_in(self, parts: list[Tensor] | None) -> Any:
        """What the model is given, of the shapes of a batch."""
        assert parts is not None
        return parts[0] if self._loss is None else tuple(parts[:-1])

    def _validate(self, validation: Any, collate: Collate | None) -> dict[str, float]:
        """Mean loss and, for classifiers, accuracy on public data."""
        loader = _loader(validation, 512, collate)
        if self._average is not None:
            self._average.exchange()
        self.model.eval()
        total, right, judged, count = 0.0, 0, 0, 0
        try:
            with torch.no_grad():
                for batch in map(self._move, loader):
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

    def _state(self, private: Private) -> State:
        tensors, notes = state_of(private)
        notes["scheduler"] = None if self.scheduler is None else self.scheduler.state_dict()
        if self._average is not None:
            tensors.update(add_prefix("average", self._average.tensors()))
            notes["average"] = self._average.updates
        return tensors, notes

    def _restore(self, run: RunDirectory | None, private: Private, members: Members) -> None:
        """Continue from the last state, or keep the first one: what cannot be kept shows now."""
        found = None
        with members.fail_together():
            if run is not None:
                found = run.load_state()
                if found is None:
                    run.save_state(*self._state(private))
        found = members.state(found)
        if found is None:
            return
        reserved = members.broadcast_from_leader(lambda: 0 if run is None else run.reserved)

        def facts(notes: Mapping[str, Any], lost: int) -> dict[str, int]:
            return {} if run is None else run.facts_after(notes, lost)  # the leader's count

        with members.fail_together():
            self._continue(private, found, reserved, facts)

    def _continue(self, private: Private, found: State, reserved: int, facts: FactsAfter) -> None:
        tensors, notes = found
        if (notes["scheduler"] is None) != (self.scheduler is None):
            raise ResumeRefused("the run had a scheduler, or had none; this trainer differs")
        if (notes["average"] is None) != (self._average is None):
            raise ResumeRefused("the run averaged parameters, or did not; this trainer differs")
        continue_from(private, found, reserved, facts)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(notes["scheduler"])
        if self._average is not None:
            averages = without_prefix("average", tensors)
            self._average.restore(averages, updates=int(notes["average"]))


def _optimizer_of(model: nn.Module, given: Any) -> Optimizer:
    if isinstance(given, Optimizer):
        return given
    chosen = [p for p in model.parameters() if p.requires_grad]
    if not chosen:
        raise InvalidValue("model", type(model).__name__, "at least one trainable parameter")
    made = given(chosen) if callable(given) else None
    if not isinstance(made, Optimizer):
        raise InvalidValue(
            "optimizer", given, "a torch.optim.Optimizer, or a function from parameters to one"
        )
    return made


def _scheduler_of(optimizer: Optimizer, given: Any) -> LRScheduler | None:
    if given is None or isinstance(given, LRScheduler):
        return given
    made = given(optimizer) if callable(given) else None
    if not isinstance(made, LRScheduler):
        raise InvalidValue(
            "scheduler", given, "a scheduler of torch, or a function from the optimizer to one"
        )
    return made


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """The model in evaluation, and then as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _loader(dataset: Any, rows: int, collate: Collate | None) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=rows, collate_fn=collate)


def _drop_targets(parts: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(parts[:-1])


def _is_classification(outputs: object, targets: object) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.ndim == 2
        and targets.ndim == 1
        and not targets.is_floating_point()
    )


@final
class Display:
    """A progress bar on a terminal, and nothing elsewhere unless it is asked for.

    It shows public numbers only. The training loss is a function of the private data that no noise
    covers; whoever writes it into a log or a screenshot publishes it. So losses and accuracies are
    those on *public* validation data, beside the epsilon of the steps taken and of the plan. With
    ``show_private_loss=True`` the training loss is shown as well, marked as not for release; it is
    never kept.
    """

    def __init__(
        self, private: Private, *, shown: bool | None, console: Console | None = None
    ) -> None:
        self._private = private
        self._planned = private.epsilon()
        self._on = sys.stderr.isatty() if shown is None else shown
        self._bar: Progress | None = None
        self._console = console
        self._text = ""
        self._read_at = 0.0
        self._spent = 0.0
        self._task: Any = None

    def __enter__(self) -> Display:
        if self._on:
            self._bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=self._console or Console(stderr=True),
            )
            self._bar.start()
            total = self._private.plan.steps
            self._task = self._bar.add_task("", total=total, figures="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._read_at = 0.0
            self.step()
            self._bar.stop()

    @property
    def is_on(self) -> bool:
        """Whether anything is shown."""
        return self._bar is not None

    def public(self, figures: Mapping[str, float]) -> None:
        """New figures on public data."""
        self._text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())

    def step(self, *, private_loss: float | None = None) -> None:
        """A step was taken."""
        if self._bar is None:
            return
        now = time.monotonic()
        if now - self._read_at > _READING_SECONDS:
            self._read_at = now
            self._spent = self._private.spent()
        parts = [
            f"epsilon {at_most(self._spent, digits=3)} of {at_most(self._planned, digits=3)}",
            self._text,
        ]
        if private_loss is not None:
            parts.append(f"[red]private loss {private_loss:.4g}, NOT FOR RELEASE[/red]")
        figures = "  ".join(part for part in parts if part)
        self._bar.update(self._task, completed=self._private.steps_taken, figures=figures)
