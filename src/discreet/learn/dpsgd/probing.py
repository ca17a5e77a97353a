"""Trials on made-up inputs that a model must pass before it is trained privately."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from discreet.errors import InvalidValue, NotApplicable, PlanViolation
from discreet.learn.dpsgd.engine import verify_attribution
from discreet.learn.dpsgd.first_steps import CHECKPOINTED
from discreet.learn.dpsgd.isolation import check_isolation
from discreet.learn.dpsgd.loading import template_of
from discreet.learn.dpsgd.plan import Plan

__all__ = ["inputs_like", "probe"]


def inputs_like(data: Any, inputs_of: Callable[[list[Tensor]], Any] | None) -> Any:
    """The shapes of what the model is given, from a batch of which no value is read."""
    parts = template_of(data)
    if parts is None:
        raise InvalidValue(
            "inputs",
            None,
            "a description of the model's inputs for the isolation check, because the batches "
            "are not plain tensors (or isolation='vouched')",
        )
    return parts[0] if inputs_of is None else inputs_of(parts)


def probe(
    model: nn.Module,
    inputs: Any,
    *,
    targets: Any = None,
    loss: Callable[..., Tensor] | None = None,
    groups: Sequence[Sequence[str]] | None = None,
    batch_axis: int | None = None,
    plan: Plan | None = None,
) -> frozenset[str]:
    """Refuse a model that mixes examples, or whose gradients the engine would mistake.

    The answer names the buffers that a training pass changes in a way that does not depend on
    the examples.
    """
    try:
        report = check_isolation(model, inputs=inputs, targets=targets, loss=loss)
        if report.ok:
            phases = () if plan is None else plan.phases
            sizes = [round(phase.expected_batch_size) for phase in phases]
            verify_attribution(
                model, inputs, groups=groups, batch_axis=batch_axis, batch_sizes=sizes
            )
    except RuntimeError as error:
        # Either variant fails in words of torch's own, which advise to use the other one.
        if "torch.utils.checkpoint" in str(error):
            raise PlanViolation(CHECKPOINTED) from error
        raise
    except (InvalidValue, NotApplicable) as error:
        error.add_note(
            "the probes could not run the model, or failed: describe its inputs by inputs=, or "
            "vouch for it by isolation='vouched'"
        )
        raise
    if not report.ok:
        raise PlanViolation(report.explain())
    return frozenset(report.writes)
