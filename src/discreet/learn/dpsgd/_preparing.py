"""What a run needs before its first batch is handed out: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from torch import Tensor, nn

from discreet.learn.dpsgd._backward_form import BackwardForm
from discreet.learn.dpsgd._first_steps import StateWatch
from discreet.learn.dpsgd._loss_watch import LossWatch
from discreet.learn.dpsgd._noise import NoiseBank
from discreet.learn.dpsgd._reduction import BackwardWatch
from discreet.learn.dpsgd.engine import GradientEngine
from discreet.learn.dpsgd.engine._layout import contains_sequence_first
from discreet.randomness import NormalStream


class Prepared(NamedTuple):
    """The parts of a run that are attached to its model, and its noise."""

    engine: GradientEngine
    form: BackwardForm
    bank: NoiseBank
    watch: BackwardWatch
    loss_watch: LossWatch
    state_watch: StateWatch


def prepared(
    model: nn.Module,
    parameters: Sequence[Tensor],
    *,
    groups: Sequence[Sequence[str]] | None,
    batch_axis: int | None,
    writes: Collection[str] | None,
    stddev_of: Callable[[int], float],
    first_step: int,
    stream: NormalStream,
    look_at: Callable[[Tensor], None],
) -> Prepared:
    """Make all parts; if one of them cannot be made, the model is left as it was.

    ``writes`` names the buffers that training passes may change, ``None`` that the caller has
    vouched for the model.
    """
    with ExitStack() as undo:
        form = BackwardForm()
        engine = GradientEngine(
            model, groups=groups, batch_axis=batch_axis, before_gradient=form.hear
        )
        undo.callback(engine.detach)
        bank = NoiseBank(parameters, stddev_of=stddev_of, first_step=first_step, stream=stream)
        watch = BackwardWatch(model, look_at)
        undo.callback(watch.end)
        loss_watch = LossWatch(
            None if writes is None else model,
            examples_first=batch_axis != 1 and not contains_sequence_first(model),
        )
        undo.callback(loss_watch.remove)
        state_watch = StateWatch(model, allowed=writes, by_engine=lambda: engine.runs_by_example)
        undo.pop_all()
    return Prepared(engine, form, bank, watch, loss_watch, state_watch)
