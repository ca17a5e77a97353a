"""What the training loop raises when it is asked for more than its plan covers."""

from __future__ import annotations

from discreet.errors import DiscreetError

__all__ = ["PlanViolation", "ResumeRefused"]


class PlanViolation(DiscreetError, RuntimeError):
    """The loop was used in a way that the plan does not cover; nothing was released by it."""


class ResumeRefused(DiscreetError, RuntimeError):
    """A checkpoint does not belong to this run, or is in use; nothing was trained or charged."""
