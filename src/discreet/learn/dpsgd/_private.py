"""Private training in the user's own loop.

::

    private = make_private(model, optimizer, plan)
    for inputs, targets in private.batches(dataset):
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

The optimizer stays the user's own: a hook hands it the noisy gradient just before it steps. The
safest form of the middle lines is ``private.backward(criterion(model(inputs), targets))`` with a
criterion of ``reduction="none"``, because there no reduction can hide or mix examples.

What may be shown or kept: the parameters after any step, and everything computed from them and
from public data. What may not, unless it is paid for: the training loss, the realised batch
size, gradients, the number of physical batches, which examples had gradients that are not finite.
"""

from __future__ import annotations

import json
import operator
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable, PlanViolation
from discreet.learn.dpsgd import _requirements as requirements
from discreet.learn.dpsgd._batches import Chunk, Collate, Loading, draws, length_of
from discreet.learn.dpsgd._certificate import certify_run
from discreet.learn.dpsgd._checkpoint import digest_of, released_tensors
from discreet.learn.dpsgd._clipping import ClipPath
from discreet.learn.dpsgd._collating import CollateWatch
from discreet.learn.dpsgd._lineage import FromBatch, Lineage, OutputMark, guard_loading, plain
from discreet.learn.dpsgd._losses import LossWatch
from discreet.learn.dpsgd._noise import NoiseBank, NoiseSource
from discreet.learn.dpsgd._padding import PaddingWatch
from discreet.learn.dpsgd._people import require_owners
from discreet.learn.dpsgd._plan import Plan, compute_epsilon, loss_of_all
from discreet.learn.dpsgd._run_frame import continue_from, state_of
from discreet.learn.dpsgd._setup import Setup
from discreet.learn.dpsgd._step import (
    HALF,
    NO_BACKWARD,
    UNSEEN_BACKWARD,
    Compute,
    GradientSource,
    OpenBatch,
    State,
    Step,
    Watch,
    blank_rows,
    is_inside_step_of,
    losses_of,
    outputs_of,
    refuse_closure,
    wrong_loss_shape,
)
from discreet.learn.dpsgd._tensors import exchange_tensors
from discreet.learn.dpsgd._trial import SecondLook, inputs_like, probe
from discreet.learn.dpsgd._watches import (
    ForwardWatch,
    LayoutWatch,
    MembershipWatch,
    ReductionWatch,
    StateWatch,
    WriteWatch,
    claim,
    refuse_several_passes,
    release,
)
from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine._layout import contains_sequence_first
from discreet.learn.dpsgd.engine._recorder import refuse_autocast
from discreet.ledger import Charge
from discreet.privacy import Loss
from discreet.randomness import NormalStream


@final
@dataclass
class _Record:
    """What a run says about itself beside its steps."""

    run_id: str
    earlier: dict[str, Plan]
    isolation: str
    writes: frozenset[str]
    lineage: Lineage
    written: WriteWatch
    remembering: requirements.Remembering
    probed: Any = None
    layout: LayoutWatch | None = None
    looked_at: list[int] = field(default_factory=list)
    saves: bool = False
    mark: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@final
class Private:
    """A model under a plan; made by :func:`~discreet.learn.dpsgd.make_private`.

    The guarantee: everything that leaves the loop through the model's parameters is together
    as private as ``plan.loss`` says, provided that no example influences the gradient of another
    inside the model and the loss. Sampler, clip norm, noise and normaliser come from the plan and
    cannot be replaced.

    A step goes through the states of :class:`~discreet.learn.dpsgd._step.State`; gradients come
    from one source, noise from another, and all that looks for mistakes is one list of watches.
    """

    __slots__ = (
        "__weakref__",
        "_clip",
        "_gradients",
        "_handles",
        "_noise",
        "_record",
        "_setup",
        "_step",
        "_watches",
    )

    def __init__(
        self,
        setup: Setup,
        *,
        isolation: str,
        writes: frozenset[str] = frozenset(),
        probed: Any = None,
        public: Sequence[Any] = (),
        watches: Sequence[Watch] = (),
    ) -> None:
        model, optimizer, plan, run = setup.model, setup.optimizer, setup.plan, setup.run
        source, team, trained = setup.source, setup.team, setup.trained
        assert setup.held  # as they are now
        earlier = requirements.plans_of(model, optimizer)
        requirements.require_alike(plan, earlier)
        self._setup = setup
        self._step = Step()
        self._clip = ClipPath(plan)
        self._gradients: GradientSource | None = None
        label = ("noise",) if team is None else ("noise", team.rank)
        self._noise: NoiseSource = NoiseBank(
            trained,
            stddev_of=setup.factors.unit if self._clip.rule else setup.factors.stddev,
            stream=NormalStream(source=None if source is None else source.derive(*label)),
            correlated=None if setup.turns is None else setup.turns.noise(),
        )
        axes = (0, 1) if setup.batch_axis == 1 or contains_sequence_first(model) else (0,)
        lineage = Lineage(
            model,
            public,
            trained=trained,
            axes=axes,
            on_backward=self._hear_total,
            keep=None if run is None else run.note,
        )
        written = WriteWatch(
            model,
            optimizer,
            trained,
            allowed=lambda: None if self._record.isolation == "vouched" else self._record.writes,
            note=lambda: lineage.note_write(self._step.number),
        )
        self._record = _Record(
            run_id=secrets.token_hex(16) if run is None else run.run_id,
            earlier=earlier,
            isolation=isolation,
            writes=writes,
            lineage=lineage,
            written=written,
            remembering=requirements.Remembering(trained, lambda: self._record.mark),
            probed=probed,
        )
        membership = MembershipWatch(model, optimizer)
        forward = ForwardWatch(model, self._step, lineage, membership, axes=axes)
        self._watches: list[Watch] = [
            *watches,
            membership,
            forward,
            written,
            ReductionWatch(),
            lineage,
        ]
        self._handles: list[Any] = [
            forward.handle,
            model.register_forward_hook(OutputMark(lineage), prepend=True),
            *guard_loading(model, lambda: self._gradients is not None),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_optimizer),
            *written.handles,
            model.register_state_dict_post_hook(self._record.remembering),  # type: ignore[no-untyped-call]
        ]
        claim(self)

    @property
    def plan(self) -> Plan:
        """The plan; it cannot be replaced."""
        return self._setup.plan

    @property
    def model(self) -> nn.Module:
        """The user's own model."""
        return self._setup.model

    @property
    def optimizer(self) -> Optimizer:
        """The user's own optimizer."""
        return self._setup.optimizer

    @property
    def loss(self) -> Loss:
        """What the whole plan reveals; charge it before the first batch.

        What plans that the model was under before have cost is not part of it.
        """
        return self._setup.plan.loss

    @property
    def earlier_plans(self) -> tuple[Plan, ...]:
        """The plans that the model was under before, as far as it shows."""
        return tuple(self._record.earlier.values())

    @property
    def run_id(self) -> str:
        """The id of this run: that of its checkpoint, so that a resumed run has the same.

        As the ``key`` of a ledger's charge it lets a resumed run find what it was charged.
        """
        return self._record.run_id

    @property
    def notes(self) -> dict[str, Any]:
        """What :meth:`save` was given for the state that this run was resumed from."""
        return dict(self._record.notes)

    @property
    def steps_taken(self) -> int:
        """How many steps of the plan were taken, or had to be given up."""
        return self._step.number

    @property
    def stepped(self) -> bool:
        """Whether the last ``optimizer.step()`` ended a step of the plan."""
        return self._step.stepped

    @property
    def clip_norm(self) -> float:
        """The clip norm in force; it changes under :class:`Quantile` only."""
        return self._clip.norm

    @property
    def clip_norms(self) -> tuple[float, ...]:
        """The path of the clip norm, one entry for each step; a released number each."""
        return tuple(self._clip.norms)

    def epsilon(self) -> float:
        """The certified epsilon of the whole plan at its delta: an upper bound.

        If the model was under earlier plans, it is that of all of them together.
        """
        return compute_epsilon(
            loss_of_all([*self.earlier_plans, self._setup.plan]), self._setup.plan.delta
        )

    def spent(self) -> float:
        """Epsilon of the steps so far, to be shown; the guarantee is :meth:`epsilon`.

        When to stop may depend on what was seen, and then the cost of the steps taken is not
        a bound (S9a). Earlier plans of the model count as a whole.
        """
        losses = [plan.loss for plan in self.earlier_plans]
        loss = self._setup.plan.loss_of(self._step.number)
        if loss is not None:
            losses.append(loss)
        return (
            compute_epsilon(reduce(operator.add, losses), self._setup.plan.delta) if losses else 0.0
        )

    def certificate(
        self, *, charge: Charge | None = None, receipt: dict[str, Any] | None = None
    ) -> Certificate:
        """The certificate of the model as it is: the loss of the whole plan.

        If the model was under earlier plans, it says so and states the sum.
        Pass the ``charge`` in whose body the loop ran: the ledger then records the digests of
        the certificate and of the model, so that no other model can claim the entry. With a
        ``receipt`` alone nobody can check that later.
        """
        try:
            digest = digest_of(released_tensors(self._setup.model))
        except InvalidValue:
            digest = None  # its state holds more than tensors: save refuses it
        self._record.written.check()
        statements: dict[str, Any] = dict(self._record.lineage.facts)
        if self._record.layout is not None:
            statements["examples_apart"] = self._record.layout.look_in_the_end()
        return certify_run(
            self._setup.plan,
            steps_taken=self._step.number,
            randomness=self._noise.provenance,
            isolation=self._record.isolation,
            final_clip_norm=self._clip.norm,
            model_digest=digest,
            receipt=receipt,
            earlier_plans=self.earlier_plans,
            **statements,
        ).paid_by(charge)

    def owns(self, parameter: Tensor) -> bool:
        """Whether the plan trains this parameter."""
        return any(parameter is one for one in self._setup.trained)

    def batches(
        self,
        dataset: Any,
        *,
        collate: Collate | None = None,
        max_physical: int | None = None,
        workers: int = 0,
    ) -> Iterator[Any]:
        """Batches of the steps that are left, drawn by the plan's sampler.

        Each batch must be followed by a backward pass and ``optimizer.step()``. A step whose
        batch is larger than ``max_physical`` comes in several batches; the optimizer moves
        after the last of them. A step without any example comes as one example of zeros that
        is not counted. A step whose batch was drawn counts, even if reading it failed or the
        loop was left: drawing again until a batch suits would not be the planned sampling. One
        iterator is read at a time, in one thread. With ``workers``, other processes read the
        examples.
        """
        loading = Loading(dataset, collate, max_physical, workers, self._setup.plan.augmentations)
        self._check_may_read()
        require_owners(self._setup.plan, dataset)
        self._draws(dataset)
        return self._iterate(loading)

    def _check_may_read(self) -> None:
        self._check_alive()
        if self._step.thread is not None:
            raise PlanViolation("the batches of this plan are being read elsewhere already")
        for watch in self._watches:
            if isinstance(watch, MembershipWatch):
                watch.require_same_groups()
        if self._step.number >= self._setup.plan.steps:
            raise PlanViolation(
                f"all {self._setup.plan.steps} steps of the plan were taken; more steps need a new "
                "plan and a charge of its own"
            )

    def _check_alive(self) -> None:
        if self._step.state is State.ENDED:
            raise PlanViolation("this plan was ended by detach()")
        if self._setup.pid != os.getpid():
            raise PlanViolation("a forked process would take the steps of its parent again")

    def _draws(self, dataset: Any) -> Iterator[Any]:
        """The examples of the steps that are left from now on."""
        setup, start = self._setup, self._step.number
        source = setup.source and setup.source.derive("sampling", start)
        length, turns = length_of(dataset), setup.turns
        groups = None if turns is None else turns.groups(dataset, length)
        steps = draws(setup.plan, population=length, start=start, source=source, groups=groups)
        return steps if setup.team is None else map(setup.team.share, steps)

    def _reserve_steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Have every step on record before its batch is drawn."""
        for step in range(self._step.number, self._setup.plan.steps):
            if self._setup.run is not None:
                self._setup.run.reserve(step)
            if self._record.mark is None:
                self._put_mark()
            self._step.drawn = step + 1
            yield next(steps)

    def _iterate(self, loading: Loading) -> Iterator[Any]:
        # Not when the iterator was made: another one may have taken steps since.
        self._check_may_read()
        self._step.thread = threading.get_ident()
        try:
            chunks = loading.chunks(self._reserve_steps(self._draws(loading.dataset)))
            while (item := self._read(chunks)) is not None:
                yield self._hand_out(*item, loading)
                self._check_alive()
                self._step.require_thread()
                piece = self._step.require_closed()
                if piece is not None:
                    self._add_to_sum(piece)
        finally:
            self._leave()

    def _read(self, chunks: Iterator[tuple[Chunk, Any]]) -> tuple[Chunk, Any] | None:
        try:
            item = next(chunks, None)
            if item is not None and self._gradients is None:
                self._prepare(item[1])
        except BaseException:
            # Which of the drawn steps made it fail cannot be known: all of them count.
            self._step.begun = self._step.drawn
            raise
        return item

    def _prepare(self, data: Any) -> None:
        """Before the first batch is handed out: isolation, engine, noise, more watches.

        If one of them cannot be made, the model is left as it was.
        """
        setup, record = self._setup, self._record
        model, axis = setup.model, setup.batch_axis
        groups = setup.plan.clipping.groups(list(setup.parameters))
        if record.isolation == "check":
            inputs = inputs_like(model, data, setup.inputs_of)
            record.writes = probe(model, inputs, groups=groups, batch_axis=axis, plan=setup.plan)
            record.isolation, record.probed = "checked", inputs
        vouched = record.isolation == "vouched"
        with ExitStack() as undo:
            engine = GradientEngine(
                model, groups=groups, batch_axis=axis, before_gradient=self._hear_gradient
            )
            undo.callback(engine.detach)
            writes = None if vouched else record.writes
            first: list[Watch] = [
                StateWatch(
                    model,
                    allowed=writes,
                    by_engine=lambda: engine.runs_by_example or engine.in_checkpoint,
                )
            ]
            if not vouched:
                in_order = axis != 1 and not contains_sequence_first(model)
                first += [
                    LossWatch(model, examples_first=in_order),
                    CollateWatch(),
                    PaddingWatch(model, setup.losses_of),
                ]
            if not vouched and record.probed is not None:
                look = SecondLook(model, record.probed, batch_axis=axis)
                record.layout = LayoutWatch(
                    model, look, calls_of=lambda: engine.calls, looked_at=record.looked_at
                )
                first.append(record.layout)
            self._noise.prepare(self._step.number)
            undo.pop_all()
        self._watches[:0] = first  # in front: hooks of theirs come before that of the forward watch
        if not self._step.number:
            record.written.seal()
        self._gradients = engine  # last: it says that all is there

    def _hand_out(self, chunk: Chunk, data: Any, loading: Loading) -> Any:
        setup, record = self._setup, self._record
        if not chunk.last and record.isolation == "checked":
            refuse_several_passes(record.writes)
        number, rows = self._step.number, chunk.units * setup.plan.augmentations
        followed = 0 if record.isolation == "vouched" else rows
        batch = OpenBatch(
            step=number,
            rows=rows,
            reduction=setup.reduction,
            chunk=chunk,
            data=record.lineage.hand_out(data, number, rows=followed),
            loading=loading,
        )
        self._open(batch)
        return batch.data

    def _open(self, batch: OpenBatch) -> None:
        engine = self._gradients
        assert engine is not None
        self._step.open(batch)
        # Buffers that a pass may change: of a pass that is taken again they must not tell.
        vouched, writes = self._record.isolation == "vouched", self._record.writes
        if vouched or writes:
            batch.buffers = [
                (buffer, buffer.clone())
                for name, buffer in self._setup.model.named_buffers()
                if vouched or name in writes
            ]
        engine.expect(batch.chunk.units, rows_per_unit=self._setup.plan.augmentations)
        for watch in self._watches:
            watch.open(batch)

    def _leave(self) -> None:
        """Leave the loop: nothing of an unfinished step is kept, and it counts as taken."""
        if self._step.leave():
            self._drop_gradients()
            self._record.written.abandon()
        for watch in self._watches:
            watch.remove()
        if self._gradients is not None:
            self._gradients.forget()

    def step(self, loss: Callable[[Any, Any], Tensor], *batch: Any) -> None:
        """Do all that a batch is for: forward, loss, backward, ``optimizer.step()``.

        The batch is ``(*inputs, targets)``, and ``loss(model(*inputs), targets)`` gives one loss
        for each row (``reduction="none"``). An example that the model or the loss cannot take,
        such as one whose target is no class, adds nothing.
        """
        if len(batch) < 2:
            raise InvalidValue("batch", f"{len(batch)} parts", "the inputs and then the targets")

        def compute(model: nn.Module, parts: Any) -> Tensor:
            *inputs, targets = parts
            return losses_of(loss, outputs_of(model, inputs), targets)

        self.backward(self._losses_of_fit(compute, batch))
        self._setup.optimizer.step()

    def _losses_of_fit(self, compute: Compute, data: Any) -> Tensor:
        """The losses of a batch, without those of examples that the model or the loss refuses."""
        model, lineage, batch = self._setup.model, self._record.lineage, self._step.batch
        try:
            return compute(model, data)
        except (PlanViolation, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if batch is None or self._gradients is None:
                raise
            failure = error
        self._gradients.forget()  # the model is itself again
        with torch.no_grad():
            for buffer, value in batch.buffers:
                buffer.copy_(value)
        # Without marks: what is tried out here must not count as brought in from outside.
        unmarked = exchange_tensors(data, plain)
        axis = self._setup.batch_axis or 0
        found = blank_rows(compute, model, unmarked, rows=batch.rows, axis=axis)
        self._open(batch)
        if found is None:
            raise failure  # out here, where it has no other error behind it
        losses = compute(model, lineage.mark(found[0]))
        return losses.masked_fill(lineage.mark(found[1].to(losses.device)), 0.0)

    def backward(self, losses: Tensor) -> None:
        """Backward from one loss for each row of the batch: the recommended form.

        The losses must not be reduced. Whatever ``reduction`` was declared does not matter here.
        """
        batch = self._step.batch
        if batch is None:
            raise PlanViolation("backward() outside of a batch of private.batches(...)")
        self._step.require_thread()
        if losses.ndim != 1 or losses.shape[0] != batch.rows:
            raise wrong_loss_shape(losses)
        batch.require("each")
        given = losses
        if isinstance(losses, FromBatch):
            self._record.lineage.require_current(losses)
            losses = plain(losses)
        batch.is_ours = True
        try:
            for watch in self._watches:
                watch.backward(losses, batch)
            self._record.lineage.require_losses_apart(given)
            batch.form = "each"
            losses.sum().backward()  # type: ignore[no-untyped-call]
        finally:
            batch.is_ours = False

    def _hear_total(self, loss: Tensor) -> None:
        """Look at a loss of the model before ``loss.backward()``."""
        batch = self._step.batch
        if batch is None or batch.is_ours:
            return
        batch.require("total")
        if self._setup.reduction == "mean" and self._gradients and self._gradients.is_half:
            raise PlanViolation(HALF)
        for watch in self._watches:
            watch.backward(plain(loss), batch)
        self._record.lineage.require_losses_apart(loss)
        batch.was_seen = True

    def _hear_gradient(self) -> None:
        """A gradient arrives in the recording, however it was sent."""
        if self._step.batch is not None:
            self._step.batch.hear()

    def _before_step(self, _: Optimizer, args: Any, kwargs: Any) -> None:
        self._check_alive()
        setup, step = self._setup, self._step
        step.require_thread()
        if step.depth:
            if is_inside_step_of(setup.optimizer):
                step.depth += 1  # a step of a subclass calls that of its parent
                return
            step.depth = 0  # an earlier call broke off
        batch = step.require_open()
        refuse_closure(args, kwargs)
        self._add_to_sum(batch)
        step.depth = 1
        self._record.lineage.look_at_settings(setup.optimizer.param_groups)
        self._drop_gradients()  # without them the optimizer leaves everything as it is
        if not batch.last:
            return
        assert step.sum is not None
        noisy, step.sum = step.sum, None
        if setup.team is not None:
            setup.team.sum_(noisy)
        self._clip.end_step(step.number, self._noise, setup.factors.noise_share, setup.team)
        self._record.written.check()
        step.number += 1
        # All that was private is covered by now, so a rounding to half precision shows no more.
        noisy = [one.to(kept.dtype) for one, kept in zip(noisy, setup.trained, strict=True)]
        for parameter, gradient in zip(setup.trained, noisy, strict=True):
            parameter.grad = gradient
        self._record.written.give(noisy)
        step.state = State.DELIVERING

    def _add_to_sum(self, batch: OpenBatch) -> None:
        """Clip what was recorded and add it to the noisy sum of the step, once."""
        gradients, step = self._gradients, self._step
        assert gradients is not None
        refuse_autocast()
        if not gradients.heard:
            raise PlanViolation(NO_BACKWARD)
        if batch.form == "total" and not batch.was_seen:
            raise PlanViolation(UNSEEN_BACKWARD)
        # Until all is done: what was added already could not be told, so nothing of it is used.
        step.state = State.BROKEN
        self._record.lineage.pause()
        norms = gradients.squared_norms(scale=batch.scale)
        step.batch = None
        for watch in [one for one in self._watches if not one.close(batch)]:
            self._watches.remove(watch)
            watch.remove()
        if step.sum is None:
            self._begin_step()
        assert step.sum is not None
        if not batch.chunk.empty:
            self._clip.count(norms)
        plan, factor = self._setup.plan, self._setup.factors.normaliser(batch.step)
        weights = plan.clipping.weights(
            norms, clip_norm=self._clip.norm, factor=0.0 if batch.chunk.empty else factor
        )
        gradients.add_clipped_sum(weights, step.sum)
        gradients.forget()
        if not batch.last:
            step.state = State.PARTIAL

    def _begin_step(self) -> None:
        """Take fresh noise."""
        factors, number = self._setup.factors, self._step.number
        if number >= factors.steps:
            raise PlanViolation(f"all {factors.steps} steps of the plan were taken")
        self._step.sum = noisy = self._noise.take(number)
        self._clip.begin_step()
        if self._clip.rule is not None:
            torch._foreach_mul_(noisy, self._clip.norm * factors.stddev_over_clip(number))

    def _after_optimizer(self, *_: object) -> None:
        step = self._step
        step.depth -= 1
        if step.depth > 0 or step.state is not State.DELIVERING:
            return
        step.depth = 0
        step.state, step.stepped = State.IDLE, True
        self._drop_gradients()
        self._noise.prepare(step.number)
        for call in self._setup.after_step:
            call()
        if step.thread is not None:
            self._record.lineage.look_on()

    def _drop_gradients(self) -> None:
        for parameter in self._setup.held:
            parameter.grad = None

    def _put_mark(self) -> None:
        setup = self._setup
        self._record.mark = requirements.mark(setup.model, setup.optimizer, self._plans())

    def _plans(self) -> dict[str, Plan]:
        return {**self._record.earlier, self._record.run_id: self._setup.plan}

    def save(self, notes: Mapping[str, Any] | None = None) -> None:
        """Keep the state of the run in the directory that ``make_private(checkpoint=...)`` got.

        Parameters, optimizer, clip norms and the number of steps are kept, in place of what was
        kept before. ``notes`` are plain values of your own, such as ``scheduler.state_dict()``;
        the run that is resumed from here has them in :attr:`notes`. Steps that are taken after the
        last save are lost if the process dies: they count, and are not taken again.
        """
        if self._setup.run is None or not self._record.saves:
            raise NotApplicable(
                "there is no place to save to: give make_private(..., checkpoint=directory)"
            )
        self._check_alive()
        try:
            self._record.notes = json.loads(json.dumps({} if notes is None else dict(notes)))
        except (TypeError, ValueError) as error:
            raise InvalidValue("notes", type(notes).__name__, f"plain values ({error})") from None
        self._setup.run.save_state(*state_of(self))

    def _enter_directory(self) -> None:
        """Go on from what the directory of the run holds, or keep the first state there."""
        run = self._setup.run
        assert run is not None
        found = run.load_state()
        if found is not None:
            continue_from(self, found, run.reserved, run.facts_after)
        self._record.saves = True  # not before: a run that cannot go on leaves the state as it is
        if found is None:
            self.save()

    def detach(self) -> None:
        """End the plan: the model and the optimizer are as they were before, but trained.

        A mark stays, by which a later certificate knows of this plan. With a checkpoint the state
        is saved once more, and the directory can be resumed.
        """
        setup, record = self._setup, self._record
        self._leave()
        record.remembering()
        if record.mark is not None:
            requirements.mark_averages(setup.model, self._plans())
        if self._gradients is not None:
            self._gradients.detach()
        record.written.check()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._step.state = State.ENDED
        self._noise.close()
        release(self)
        run, saves, record.saves = setup.run, record.saves, False
        if run is not None and saves and setup.pid == os.getpid():
            try:
                run.save_state(*state_of(self))
                run.give_back(self.steps_taken)
                if self.steps_taken == setup.plan.steps:
                    run.remove_secrets()
            finally:
                run.close()

    def _facts(self) -> dict[str, int]:
        """What happened beside the steps, looked at now."""
        self._record.written.check()
        return self._record.lineage.facts

    def _state_for(self, facts: Mapping[str, int]) -> None:
        """Have the certificate state what happened here or elsewhere in a team."""
        self._record.lineage.go_on_from(facts)

    def _continue_at(
        self,
        step: int,
        *,
        clip_norms: Sequence[float],
        earlier_plans: dict[str, Plan],
        notes: dict[str, Any],
        facts: Mapping[str, int],
        looked_at: Sequence[int],
        vouched: bool,
    ) -> None:
        """Resume a run whose first ``step`` steps were taken or given up.

        All that the model and the optimizer held before was replaced by the state of that run.
        """
        assert self._gradients is None
        record = self._record
        record.earlier, record.notes = earlier_plans, notes
        record.looked_at = list(looked_at)
        record.lineage.go_on_from(facts)
        if vouched:  # what was not probed stays so
            record.isolation = "vouched"
        self._step.number = self._step.begun = step
        self._put_mark()
        record.written.seal()
        turns = self._setup.turns
        # Not the noise of step 0 again.
        self._noise.continue_at(step, None if turns is None else turns.noise())
        self._clip.continue_with(clip_norms)

    def __reduce__(self) -> NoReturn:
        raise NotApplicable("a model under a plan cannot be copied: both would spend one charge")
