"""The numbers that each step of a plan needs, ready for the loop."""

from __future__ import annotations

import math
from typing import final

from discreet.learn.dpsgd.plan import Plan

__all__ = ["StepFactors"]


@final
class StepFactors:
    """Noise and normaliser by the number of the step; ``ranks`` members share the noise."""

    def __init__(self, plan: Plan, *, ranks: int) -> None:
        self.noise_share = 1.0 / math.sqrt(ranks)
        self._ends: list[int] = []
        self._values: list[tuple[float, float, float]] = []
        end = 0
        for phase in plan.phases:
            end += phase.steps
            size = phase.expected_batch_size
            ratio = plan.noise_multiplier * phase.noise_factor * self.noise_share / size
            self._ends.append(end)
            self._values.append((ratio * plan.clip_norm, ratio, 1.0 / size))
        self.steps = end

    def _at(self, step: int) -> tuple[float, float, float]:
        for end, values in zip(self._ends, self._values, strict=True):
            if step < end:
                return values
        return self._values[-1]  # noise may be prepared for steps that do not come

    def stddev(self, step: int) -> float:
        """Of the noise in the normalised gradient."""
        return self._at(step)[0]

    def stddev_over_clip(self, step: int) -> float:
        """The same for a clip norm of 1."""
        return self._at(step)[1]

    def normaliser(self, step: int) -> float:
        """One over the expected batch size."""
        return self._at(step)[2]

    def unit(self, _: int) -> float:
        """Where the clip norm is not known beforehand: scaled when it is used."""
        return 1.0
