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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable, PlanViolation
from discreet.learn.dpsgd import _earlier as earlier
from discreet.learn.dpsgd import _step as violations
from discreet.learn.dpsgd._batches import Chunk, Collate, Loading, length_of
from discreet.learn.dpsgd._certificate import certify_run
from discreet.learn.dpsgd._checkpoint import digest_of, released_tensors
from discreet.learn.dpsgd._clipping import ClipPath
from discreet.learn.dpsgd._first_steps import StateWatch, refuse_several_passes
from discreet.learn.dpsgd._lineage import FromBatch, Lineage, OutputMark, guard_loading, plain
from discreet.learn.dpsgd._loss_watch import LossWatch
from discreet.learn.dpsgd._noise import NoiseBank
from discreet.learn.dpsgd._padding import Paddings, PaddingWatch, require_padding_ignored
from discreet.learn.dpsgd._plan import Plan, certified, loss_of_all
from discreet.learn.dpsgd._preparing import prepared
from discreet.learn.dpsgd._reduction import BackwardWatch, check_reduction
from discreet.learn.dpsgd._requirements import (
    ForwardGuard,
    claim,
    is_inside_step_of,
    refuse_closure,
    release,
    same_parameters,
)
from discreet.learn.dpsgd._roster import Roster
from discreet.learn.dpsgd._run_directory import RunDirectory
from discreet.learn.dpsgd._run_frame import leave, state_of
from discreet.learn.dpsgd._sampling import draws
from discreet.learn.dpsgd._step import (
    StepFactors,
    losses_of,
    outputs_of,
    wrong_loss_shape,
)
from discreet.learn.dpsgd._team import Team
from discreet.learn.dpsgd._tensors import exchanged, leaves_behind
from discreet.learn.dpsgd._trial import inputs_like, probe
from discreet.learn.dpsgd._unfit import Compute, blanked
from discreet.learn.dpsgd._written import WriteWatch
from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine._layout import contains_sequence_first
from discreet.learn.dpsgd.engine._recorder import refuse_autocast
from discreet.ledger import Charge
from discreet.privacy import Loss
from discreet.randomness import NormalStream, Source


@final
class Private:
    """A model under a plan; made by :func:`~discreet.learn.dpsgd.make_private`.

    The guarantee: everything that leaves the loop through the model's parameters is together
    as private as ``plan.loss`` says, provided that no example influences the gradient of another
    inside the model and the loss. Sampler, clip norm, noise and normaliser come from the plan and
    cannot be replaced.
    """

    __slots__ = (  # noqa: SIM905 - one name a line takes sixty lines
        "__weakref__ _after_step _bank _batch_axis _begun _broken _chunk _clip _counters "
        "_depth _drawn _earlier _engine _factors _form _frozen _given _guard _handles _held "
        "_ids _inputs_of _isolation _last_factor _lineage _loss_watch _losses_of _mark _model "
        "_names _noisy _notes _optimizer _paddings _parameters _pid _plan _reduction "
        "_remembering _reserve _rows _run _run_id _running _scale _source _state_watch _step "
        "_stepped _stream _team _watch _writes _written"
    ).split()

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        plan: Plan,
        *,
        parameters: dict[str, nn.Parameter],
        reduction: str,
        isolation: str,
        after_step: tuple[Callable[[], object], ...],
        batch_axis: int | None,
        source: Source | None,
        team: Team | None,
        public: Sequence[Any] = (),
        writes: frozenset[str] = frozenset(),
        inputs_of: Callable[[list[Tensor]], Any] | None = None,
        losses_of: Callable[[nn.Module, Any], Any] | None = None,
    ) -> None:
        self._earlier = earlier.plans_of(model, optimizer)
        earlier.require_alike(plan, self._earlier)
        self._model = model
        self._optimizer = optimizer
        self._plan = plan
        self._run: RunDirectory | None = None
        self._run_id = secrets.token_hex(16)
        self._mark: str | None = None
        self._notes: dict[str, Any] = {}
        self._reduction = reduction
        self._isolation = isolation
        self._after_step = after_step
        self._batch_axis = batch_axis
        self._team = team
        self._source = source
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._ids = {id(parameter) for parameter in self._parameters}
        self._frozen = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) not in self._ids
        ]
        self._held = [list(group["params"]) for group in optimizer.param_groups]
        label = ("noise",) if team is None else ("noise", team.rank)
        self._stream = NormalStream(source=None if source is None else source.derive(*label))
        self._clip = ClipPath(plan)
        self._factors = StepFactors(plan, ranks=1 if team is None else team.ranks)
        self._pid = os.getpid()
        self._step = self._begun = self._drawn = 0
        self._engine: GradientEngine | None = None
        self._bank: NoiseBank | None = None
        self._noisy: list[Tensor] | None = None
        self._chunk: Chunk | None = None
        self._rows = 0
        self._counters: list[tuple[Tensor, Tensor]] = []
        self._running = False
        self._given: list[Tensor] | None = None
        self._depth = 0
        self._broken = False
        self._stepped = False
        self._scale = 1.0
        self._watch: BackwardWatch | None = None
        self._loss_watch = LossWatch(None)
        self._state_watch: StateWatch | None = None
        self._writes = writes
        self._reserve: Callable[[int], None] | None = None
        self._inputs_of = inputs_of
        self._losses_of = losses_of
        self._paddings = Paddings()
        axes = (0, 1) if batch_axis == 1 or contains_sequence_first(model) else (0,)
        rows_of = Roster(model).checked(lambda: self._rows if self._chunk else None)
        self._lineage = Lineage(model, public, self._refuse_outside_parameters)
        self._guard = ForwardGuard(rows_of, axes, self._lineage)
        self._written = WriteWatch(
            model,
            optimizer,
            self._parameters,
            allowed=lambda: None if self._isolation == "vouched" else self._writes,
            note=lambda: self._lineage.note_write(self._step),
        )
        self._remembering = earlier.Remembering(self._parameters, lambda: self._mark)
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self._guard, with_kwargs=True),
            model.register_forward_hook(OutputMark(self._lineage), prepend=True),
            *guard_loading(model, lambda: self._engine is not None),
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_optimizer),
            model.register_state_dict_post_hook(self._remembering),  # type: ignore[no-untyped-call]
        ]
        claim(self)

    # --- what is planned and what was done ---------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan; it cannot be replaced."""
        return self._plan

    @property
    def model(self) -> nn.Module:
        """The user's own model."""
        return self._model

    @property
    def optimizer(self) -> Optimizer:
        """The user's own optimizer."""
        return self._optimizer

    @property
    def loss(self) -> Loss:
        """What the whole plan reveals; charge it before the first batch.

        What plans that the model was under before have cost is not part of it.
        """
        return self._plan.loss

    @property
    def earlier_plans(self) -> tuple[Plan, ...]:
        """The plans that the model was under before, as far as it shows."""
        return tuple(self._earlier.values())

    @property
    def run_id(self) -> str:
        """The id of this run: that of its checkpoint, so that a resumed run has the same.

        As the ``key`` of a ledger's charge it lets a resumed run find what it was charged.
        """
        return self._run_id

    @property
    def notes(self) -> dict[str, Any]:
        """What :meth:`save` was given for the state that this run was resumed from."""
        return dict(self._notes)

    @property
    def steps_taken(self) -> int:
        """How many steps of the plan were taken, or had to be given up."""
        return self._step

    @property
    def stepped(self) -> bool:
        """Whether the last ``optimizer.step()`` ended a step of the plan."""
        return self._stepped

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
        return certified(loss_of_all([*self.earlier_plans, self._plan]), self._plan.delta)

    def spent(self) -> float:
        """Epsilon of the steps so far, to be shown; the guarantee is :meth:`epsilon`.

        When to stop may depend on what was seen, and then the cost of the steps taken is not
        a bound (S9a). Earlier plans of the model count as a whole.
        """
        losses = [plan.loss for plan in self.earlier_plans]
        loss = self._plan.loss_of(self._step)
        if loss is not None:
            losses.append(loss)
        return certified(reduce(operator.add, losses), self._plan.delta) if losses else 0.0

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
            digest = digest_of(released_tensors(self._model))
        except InvalidValue:
            digest = None  # its state holds more than tensors: save refuses it
        self._written.check()
        return certify_run(
            self._plan,
            steps_taken=self._step,
            randomness=self._stream.provenance,
            isolation=self._isolation,
            final_clip_norm=self._clip.norm,
            model_digest=digest,
            receipt=receipt,
            earlier_plans=self.earlier_plans,
            **self._lineage.facts,
        ).paid_by(charge)

    def owns(self, parameter: Tensor) -> bool:
        """Whether the plan trains this parameter."""
        return id(parameter) in self._ids

    # --- batches -----------------------------------------------------------------------

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
        iterator is read at a time. With ``workers``, other processes read the examples.
        """
        loading = Loading(dataset, collate, max_physical, workers, self._plan.augmentations)
        self._check_may_read()
        self._draws(dataset)
        return self._iterate(loading)

    def _check_may_read(self) -> None:
        self._check_alive()
        if self._running:
            raise PlanViolation("the batches of this plan are being read elsewhere already")
        if not same_parameters(self._optimizer, self._held):
            raise PlanViolation("the optimizer's parameters were changed after it was wrapped")
        if self._step >= self._plan.steps:
            raise PlanViolation(
                f"all {self._plan.steps} steps of the plan were taken; more steps need a new "
                "plan and a charge of its own"
            )

    def _check_alive(self) -> None:
        if not self._handles:
            raise PlanViolation("this plan was ended by detach()")
        if self._pid != os.getpid():
            raise PlanViolation("a forked process would take the steps of its parent again")

    def _draws(self, dataset: Any) -> Iterator[Any]:
        """The examples of the steps that are left from now on."""
        start = self._step
        source = self._source and self._source.derive("sampling", start)
        steps = draws(self._plan, population=length_of(dataset), start=start, source=source)
        return steps if self._team is None else map(self._team.share, steps)

    def _counted(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Have every step on record before its batch is drawn."""
        for step in range(self._step, self._plan.steps):
            if self._reserve is not None:
                self._reserve(step)
            if self._mark is None:
                self._put_mark()
            self._drawn = step + 1
            yield next(steps)

    def _iterate(self, loading: Loading) -> Iterator[Any]:
        # Not when the iterator was made: another one may have taken steps since.
        self._check_may_read()
        self._running = True
        try:
            chunks = loading.chunks(self._counted(self._draws(loading.dataset)))
            while (item := self._read(loading, chunks)) is not None:
                if not item[0].last and self._isolation == "checked":
                    refuse_several_passes(self._writes)
                self._open(item[0])
                yield self._handed_out(item[1])
                self._check_alive()
                self._close()
        finally:
            self._running = False
            self._leave()

    def _handed_out(self, data: Any) -> Any:
        watched = self._watch is not None and self._watch.is_on
        marked = self._lineage.hand_out(data, self._step, watched=watched)
        if self._guard.padding is not None:
            self._guard.padding.hand_out(marked)
        return marked

    def _read(
        self, loading: Loading, chunks: Iterator[tuple[Chunk, Any]]
    ) -> tuple[Chunk, Any] | None:
        try:
            item = next(chunks, None)
            if item is not None and self._engine is None:
                self._prepare(item[1])
            if item is not None and not item[0].empty and self._isolation == "checked":
                self._look_at_padding(loading, *item)
        except BaseException:
            # Which of the drawn steps made it fail cannot be known: all of them count.
            self._begun = self._drawn
            raise
        return item

    def _look_at_padding(self, loading: Loading, chunk: Chunk, data: Any) -> None:
        """Have it tried out once whether padding is felt, if batches are padded."""
        pair = self._paddings.new_pair(loading, chunk.places, data)
        if pair is None:
            return
        if self._losses_of is not None:
            require_padding_ignored(self._model, pair, self._losses_of)
        else:
            self._guard.padding = PaddingWatch(pair)
        self._paddings.settled = True

    def _prepare(self, data: Any) -> None:
        """Before the first batch is handed out: isolation, engine, noise, a look at the loss."""
        groups = self._plan.clipping.groups(self._names)
        if self._isolation == "check":
            inputs = inputs_like(data, self._inputs_of)
            axis, plan = self._batch_axis, self._plan
            self._writes = probe(self._model, inputs, groups=groups, batch_axis=axis, plan=plan)
            self._isolation = "checked"
        made = prepared(
            self._model,
            self._parameters,
            groups=groups,
            batch_axis=self._batch_axis,
            writes=None if self._isolation == "vouched" else self._writes,
            stddev_of=self._factors.unit if self._clip.rule else self._factors.stddev,
            first_step=self._step,
            stream=self._stream,
            look_at=self._look_at,
        )
        _, _, self._bank, self._watch, self._loss_watch, self._state_watch = made
        # Buffers that a pass may change: of a pass that is taken again they must not tell.
        self._counters = [
            (buffer, buffer)
            for name, buffer in self._model.named_buffers()
            if self._isolation == "vouched" or name in self._writes
        ]
        made.watch.note = self._lineage.note_made
        self._form = made.form
        if not self._step:
            self._written.seal()
        self._engine = made.engine  # last: it says that all is there

    def _open(self, chunk: Chunk) -> None:
        assert self._engine is not None
        self._engine.expect(chunk.units, rows_per_unit=self._plan.augmentations)
        self._chunk = chunk
        self._form.kind = None
        self._stepped = False
        self._depth = 0
        self._given = None
        self._begun = self._step + 1
        self._rows = rows = chunk.units * self._plan.augmentations
        self._scale = float(rows) if self._reduction == "mean" else 1.0
        if self._counters:
            self._counters = [(buffer, buffer.clone()) for buffer, _ in self._counters]
        self._written.open()
        hooks: Any = self._model._forward_pre_hooks
        hooks.move_to_end(self._handles[0].id)  # those of others see what is marked
        if self._watch is not None:
            self._watch.start()
        if self._state_watch is not None:
            self._state_watch.start()

    def _close(self) -> None:
        """The loop asks for the next batch."""
        if self._state_watch is not None and self._stepped and not self._loss_watch.is_on:
            self._state_watch.remove()
            self._state_watch = None
        if self._broken:
            raise PlanViolation(violations.BROKEN_OFF)
        chunk = self._chunk
        if chunk is None:
            return
        if chunk.last:
            raise PlanViolation(violations.SKIPPED)
        self._absorb(chunk)

    def _leave(self) -> None:
        """Leave the loop: nothing of an unfinished step is kept, and it counts as taken."""
        self._step = max(self._step, self._begun)
        self._chunk = None
        self._noisy = None
        self._depth = 0
        self._broken = False
        if self._given is not None:
            self._given = None
            self._drop_gradients()
            self._written.abandon()
        if self._guard.padding is not None:  # to be tried out at another batch
            self._guard.padding, self._paddings = None, Paddings()
        self._lineage.end_batch()
        self._loss_watch.forget()
        if self._watch is not None:
            self._watch.leave()
        if self._state_watch is not None:
            self._state_watch.forget()
        if self._engine is not None:
            self._engine.forget()

    def _look_at(self, loss: Tensor) -> None:
        if self._chunk is not None and not self._form.is_ours:
            loss = plain(loss)
            self._refuse_outside_parameters(loss)
            self._form.require_total()
            check_reduction(loss, declared=self._reduction, rows=self._rows)
            self._loss_watch.judge(loss, rows=self._rows)

    def _refuse_outside_parameters(self, loss: Tensor) -> None:
        for leaf in leaves_behind(loss):
            if not hasattr(leaf, "of_engine") and not self.owns(leaf):
                raise PlanViolation(violations.OUTSIDE)

    # --- one step ----------------------------------------------------------------------

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
        self._optimizer.step()

    def _losses_of_fit(self, compute: Compute, batch: Any) -> Tensor:
        """The losses of a batch, without those of examples that the model or the loss refuses."""
        try:
            return compute(self._model, batch)
        except (PlanViolation, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if self._chunk is None or self._engine is None:
                raise
            failure = error
        self._engine.forget()  # the model is itself again
        with torch.no_grad():
            for buffer, value in self._counters:
                buffer.copy_(value)
        axis = self._batch_axis or 0
        # Without marks: what is tried out here must not count as brought in from outside.
        unmarked = exchanged(batch, plain)
        found = blanked(compute, self._model, unmarked, rows=self._rows, axis=axis)
        self._open(self._chunk)
        if found is None:
            raise failure  # out here, where it has no other error behind it
        losses = plain(compute(self._model, self._lineage.mark(found[0])))
        fit: Tensor = self._lineage.mark(losses.masked_fill(found[1].to(losses.device), 0.0))
        return fit

    def backward(self, losses: Tensor) -> None:
        """Backward from one loss for each row of the batch: the recommended form.

        The losses must not be reduced. Whatever ``reduction`` was declared does not matter here.
        """
        if self._chunk is None:
            raise PlanViolation("backward() outside of a batch of private.batches(...)")
        if losses.ndim != 1 or losses.shape[0] != self._rows:
            raise wrong_loss_shape(losses)
        self._form.require_each()
        if isinstance(losses, FromBatch):
            self._lineage.require_current(losses)
            losses = plain(losses)
        self._refuse_outside_parameters(losses)
        if self._loss_watch.is_on:
            self._loss_watch.judge(losses, rows=self._rows)
        if self._watch is not None:
            self._watch.heard = True  # it stays on, for passes that are not ours
        self._scale = 1.0
        self._form.backward(losses)

    def _before_step(self, _: Optimizer, args: Any, kwargs: Any) -> None:
        self._check_alive()
        if self._depth:
            if is_inside_step_of(self._optimizer):  # of a subclass, calling that of its parent
                self._depth += 1
                return
            self._depth = 0  # an earlier call broke off
        chunk = self._chunk
        if chunk is None or self._broken:
            raise PlanViolation(violations.NO_BATCH)
        refuse_closure(args, kwargs)
        if not same_parameters(self._optimizer, self._held):
            raise PlanViolation("the optimizer's parameters were changed after it was wrapped")
        self._absorb(chunk)
        self._depth = 1
        self._lineage.look_at_settings(self._optimizer.param_groups)
        self._drop_gradients()  # without them the optimizer leaves everything as it is
        if not chunk.last:
            return
        noisy = self._noisy
        assert noisy is not None
        self._noisy = None
        if self._team is not None:
            self._team.sum_(noisy)
        assert self._bank is not None
        self._clip.end_step(self._step, self._bank, self._factors.noise_share, self._team)
        self._written.check()
        self._step += 1
        self._given = noisy
        for parameter, gradient in zip(self._parameters, noisy, strict=True):
            parameter.grad = gradient
        self._written.give(noisy)
        self._broken = False

    def _absorb(self, chunk: Chunk) -> None:
        """Clip what was recorded and add it to the noisy sum of the step, once."""
        engine = self._engine
        assert engine is not None
        refuse_autocast()
        # Until all is done: what was added already could not be told, so nothing of it is used.
        self._broken = True
        watch = self._watch
        unseen = watch is not None and not watch.has_heard
        if watch is not None:
            watch.stop()
        norms = engine.squared_norms(scale=self._scale) if engine.heard else None
        if norms is None or unseen:
            self._broken = False
            if watch is not None:
                watch.start()
            unheard = norms is None
            raise PlanViolation(violations.NO_BACKWARD if unheard else violations.UNSEEN_BACKWARD)
        self._chunk = None
        self._add(engine, chunk, norms)
        engine.forget()
        self._broken = chunk.last

    def _add(self, engine: GradientEngine, chunk: Chunk, norms: Tensor) -> None:
        self._lineage.end_batch()
        if self._state_watch is not None:
            self._state_watch.judge()
            self._loss_watch.end_batch()
        if self._noisy is None:
            self._begin_step()
        if not chunk.empty:
            self._clip.count(norms)
        factor = 0.0 if chunk.empty else self._last_factor
        weights = self._plan.clipping.weights(norms, clip_norm=self._clip.norm, factor=factor)
        noisy = self._noisy
        assert noisy is not None
        engine.add_clipped_sum(weights, noisy)

    def _begin_step(self) -> None:
        """Take fresh noise."""
        if self._step >= self._factors.steps:
            raise PlanViolation(f"all {self._factors.steps} steps of the plan were taken")
        assert self._bank is not None
        self._noisy = self._bank.take(self._step)
        self._last_factor = self._factors.normaliser(self._step)
        self._clip.begin_step()
        if self._clip.rule is not None:
            stddev = self._clip.norm * self._factors.stddev_over_clip(self._step)
            torch._foreach_mul_(self._noisy, stddev)

    def _after_optimizer(self, *_: object) -> None:
        self._depth -= 1
        if self._depth > 0 or self._given is None:
            return
        self._depth = 0
        self._given = None
        self._stepped = True
        self._drop_gradients()
        assert self._bank is not None
        self._bank.prepare(self._step)
        for call in self._after_step:
            call()
        if self._watch is not None and self._running:
            self._watch.start()  # what the loop reads before the next batch

    def _drop_gradients(self) -> None:
        for parameter in chain(self._parameters, self._frozen):
            parameter.grad = None

    # --- continuing and ending ---------------------------------------------------------

    def _put_mark(self) -> None:
        self._mark = earlier.mark(self._model, self._optimizer, self._plans())

    def _plans(self) -> dict[str, Plan]:
        return {**self._earlier, self._run_id: self._plan}

    def save(self, notes: Mapping[str, Any] | None = None) -> None:
        """Keep the state of the run in the directory that ``make_private(checkpoint=...)`` got.

        Parameters, optimizer, clip norms and the number of steps are kept, in place of what was
        kept before. ``notes`` are plain values of your own, such as ``scheduler.state_dict()``;
        the run that is resumed from here has them in :attr:`notes`. Steps that are taken after the
        last save are lost if the process dies: they count, and are not taken again.
        """
        if self._run is None:
            raise NotApplicable(
                "there is no place to save to: give make_private(..., checkpoint=directory)"
            )
        self._check_alive()
        try:
            self._notes = json.loads(json.dumps({} if notes is None else dict(notes)))
        except (TypeError, ValueError) as error:
            raise InvalidValue("notes", type(notes).__name__, f"plain values ({error})") from None
        self._run.save_state(*state_of(self))

    def detach(self) -> None:
        """End the plan: the model and the optimizer are as they were before, but trained.

        A mark stays, by which a later certificate knows of this plan. With a checkpoint the state
        is saved once more, and the directory can be resumed.
        """
        self._leave()
        self._remembering()
        if self._mark is not None:
            earlier.mark_averages(self._model, self._plans())
        self._loss_watch.remove()
        if self._state_watch is not None:
            self._state_watch.remove()
        if self._watch is not None:
            self._watch.end()
        if self._engine is not None:
            self._engine.detach()
        self._written.check()
        self._written.remove()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._bank = None  # lets its thread and its buffers go
        release(self)
        leave(self)

    def _record_in(self, run: RunDirectory) -> None:
        """Have every step, and what happens in it, on record in a directory beforehand."""
        self._run_id = run.run_id
        self._reserve, self._lineage.keep = run.reserve, run.note

    def _save_to(self, run: RunDirectory | None) -> RunDirectory | None:
        """Have :meth:`save` write into another directory, or none; return the one before."""
        before, self._run = self._run, run
        return before

    def _state_for(self, facts: Mapping[str, int]) -> None:
        """Have the certificate state what happened here or elsewhere in a team."""
        self._lineage.go_on_from(facts)

    def _facts(self) -> dict[str, int]:
        """What happened beside the steps, looked at now."""
        self._written.check()
        return self._lineage.facts

    def _continue_at(
        self,
        step: int,
        *,
        clip_norms: Sequence[float],
        earlier_plans: dict[str, Plan],
        notes: dict[str, Any],
        facts: Mapping[str, int],
        vouched: bool,
    ) -> None:
        """Resume a run whose first ``step`` steps were taken or given up.

        All that the model and the optimizer held before was replaced by the state of that run.
        """
        assert self._engine is None
        self._earlier, self._notes = earlier_plans, notes
        self._lineage.go_on_from(facts)
        if vouched:  # what was not probed stays so
            self._isolation = "vouched"
        self._step = self._begun = step
        self._put_mark()
        self._written.seal()
        self._stream = self._stream.derive("from step", step)  # not that of step 0 again
        self._clip.continue_with(clip_norms)

    def __reduce__(self) -> NoReturn:
        raise NotApplicable("a model under a plan cannot be copied: both would spend one charge")
