"""Putting a model under a plan: what is checked before anything else happens."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from discreet import _validate
from discreet.errors import InvalidValue, PlanViolation, ResumeRefused
from discreet.learn.dpsgd._plan import TURNS, Plan
from discreet.learn.dpsgd._private import Private
from discreet.learn.dpsgd._requirements import check_pair, require_bare
from discreet.learn.dpsgd._run_directory import RunDirectory
from discreet.learn.dpsgd._setup import Setup
from discreet.learn.dpsgd._step import Watch
from discreet.learn.dpsgd._team import Team
from discreet.learn.dpsgd._trial import probe
from discreet.randomness import Source

# How often each run was begun or resumed in this process.
_ATTEMPTS: dict[str, int] = {}


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    *,
    reduction: str = "mean",
    inputs: Any = None,
    isolation: str = "check",
    after_step: Sequence[Callable[[], object]] = (),
    batch_axis: int | None = None,
    source: Source | None = None,
    team: Team | None = None,
    checkpoint: str | Path | None = None,
    public: Sequence[Any] = (),
    watches: Sequence[Watch] = (),
    losses: Callable[[nn.Module, Any], Tensor] | None = None,
) -> Private:
    """Put a model and its optimizer under a plan; the optimizer stays the user's own.

    ``reduction`` says what ``loss.backward()`` receives: the mean or the sum over the rows of a
    batch. ``inputs`` describes the model's inputs for the isolation check
    (:func:`~discreet.learn.dpsgd.check_isolation`), which then runs here; without it the check
    runs at the first batch, on made-up values in the shapes found there, if the batch is a tensor,
    a tuple of tensors that begins with what ``forward`` must be given, or a mapping with the names
    that it takes. ``isolation="vouched"`` skips it: the caller vouches that no example influences
    another.

    ``after_step`` is called after every step of the plan: put ``scheduler.step`` and
    ``average.update`` there if ``max_physical`` is used, because how often the loop runs then
    depends on the private size of the batches.

    With ``checkpoint``, a directory, :meth:`Private.save` keeps the state of the run there, and the
    same call resumes it, after ``detach()`` or after a crash: the model and the optimizer get their
    saved state, all steps that may have been taken count, and none of them is taken again
    (:mod:`~discreet.learn.dpsgd._run_directory`). Another plan is refused.

    ``public`` lists tensors and modules that the loop uses beside the model and the batch, such as
    class weights, a teacher or the criterion, and that do not depend on private data. The
    certificate states how many others came into the loss. ``watches`` are looks of your own at
    every batch (:class:`Watch`), beside those of the library.

    ``losses(model, batch)`` is how your loop gets one loss for each row. Where batches are padded,
    it is then the losses that must not feel it, and not the outputs, which may be as long as the
    batch.
    """
    if not isinstance(plan, Plan):
        raise InvalidValue("plan", plan, "a discreet.learn.dpsgd.Plan")
    _validate.one_of("reduction", reduction, ("mean", "sum"))
    _validate.one_of("isolation", isolation, ("check", "vouched"))
    if source is not None and not isinstance(source, Source):
        raise InvalidValue("source", source, "a discreet.randomness.Source or None")
    if checkpoint is not None and team is not None:
        raise InvalidValue("checkpoint", str(checkpoint), "None in a team: Trainer can do both")
    if losses is not None and not callable(losses):
        raise InvalidValue("losses", losses, "a function (model, batch) -> one loss for each row")
    for watch in watches:
        if not isinstance(watch, Watch):
            raise InvalidValue("watches", type(watch).__name__, "a discreet.learn.dpsgd.Watch each")
    return wrap(
        model,
        optimizer,
        plan,
        reduction=reduction,
        inputs=inputs,
        isolation=isolation,
        after_step=after_step,
        batch_axis=batch_axis,
        source=source,
        team=team,
        checkpoint=checkpoint,
        public=public,
        watches=tuple(watches),
        losses_of=losses,
    )


def wrap(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    *,
    inputs: Any = None,
    isolation: str,
    source: Source | None,
    checkpoint: str | Path | None = None,
    after_step: Sequence[Callable[[], object]] = (),
    batch_axis: int | None = None,
    writes: frozenset[str] = frozenset(),
    reduction: str = "mean",
    **settings: Any,
) -> Private:
    """Do what :func:`make_private` does, for arguments that were checked.

    ``isolation`` may be ``"checked"``, with the buffers that passes change in ``writes``.
    ``settings`` are further ones of :class:`Setup` and :class:`Private`.
    """
    _validate.one_of("isolation", isolation, ("check", "checked", "vouched"))
    if batch_axis is not None:
        _validate.integer("batch_axis", batch_axis, at_least=0, at_most=1)
    team: Team | None = settings.get("team")
    require_bare(model)
    _check_company(team)
    if team is not None and plan.sampler in TURNS:
        raise InvalidValue(
            "team", team, f"None with the sampler {plan.sampler!r}: groups have one process's keys"
        )
    parameters = check_pair(model, optimizer)
    if inputs is not None and isolation == "check":
        groups = plan.clipping.groups(list(parameters))
        writes = probe(model, inputs, groups=groups, batch_axis=batch_axis, plan=plan)
        isolation, settings["probed"] = "checked", inputs
    beside = ("probed", "public", "watches")
    given = {name: settings.pop(name) for name in beside if name in settings}
    make = partial(Private, isolation=isolation, writes=writes, **given)
    setup = Setup(
        model,
        optimizer,
        plan,
        parameters,
        reduction=reduction,
        after_step=tuple(after_step),
        batch_axis=batch_axis,
        source=source,
        **settings,
    )
    if checkpoint is None:
        return make(setup=setup)
    return _in_directory(RunDirectory(checkpoint, plan), make, setup)


def _in_directory(run: RunDirectory, make: Callable[..., Private], setup: Setup) -> Private:
    """A run that goes on where its directory says, or begins there."""
    private = None
    try:
        if run.load_receipt() is not None:
            raise ResumeRefused("a Trainer charged this run to a ledger: let a Trainer resume it")
        # A directory that knows less than this process has seen of its run is a copy.
        if _ATTEMPTS.get(run.run_id, 0) >= run.attempt:
            raise ResumeRefused(
                f"{run.path.name!r} is a copy of a run that has gone on meanwhile: resumed twice, "
                "it would take the same steps again. Resume the directory that went on"
            )
        _ATTEMPTS[run.run_id] = run.attempt
        # A seeded stream, which exists for experiments, must not be read twice either.
        source = setup.source and setup.source.derive("attempt", run.attempt)
        private = make(setup=replace(setup, source=source, run=run))
        private._enter_directory()
    except BaseException:
        if private is not None:
            private.detach()
        run.close()
        raise
    weakref.finalize(private, run.close)
    return private


def _check_company(team: Team | None) -> None:
    """Refuse to train in one of several processes as if there were no others."""
    if team is not None or not dist.is_available() or not dist.is_initialized():
        return
    processes = dist.get_world_size()
    if processes > 1:
        raise PlanViolation(
            f"this is one of {processes} processes of torch.distributed and has not joined the "
            "others: each would train a model of its own, a release of its own. Give "
            "team=discreet.learn.dpsgd.join(model, plan); for a run by itself, join "
            "with group=dist.new_group([rank], use_local_synchronization=True)"
        )
