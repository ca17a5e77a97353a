"""The clip norm from step to step: it stays, or follows a quantile of the norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from discreet.learn.dpsgd.clipping import Quantile
from discreet.learn.dpsgd.noise import NoiseBank
from discreet.learn.dpsgd.plan import Plan
from discreet.learn.dpsgd.team import Team

__all__ = ["ClipPath"]


@final
class ClipPath:
    """The clip norm in force and those before it, one for each step; released numbers each."""

    def __init__(self, plan: Plan) -> None:
        self.rule = plan.clipping if isinstance(plan.clipping, Quantile) else None
        self.norm = plan.clip_norm
        self.norms = [plan.clip_norm]
        self._plan = plan
        self._count = 0.0

    def begin_step(self) -> None:
        """Nobody was counted yet."""
        self._count = 0.0

    def count(self, squared_norms: Tensor) -> None:
        """Add the centred bits of examples to those of the step: private until noise is added."""
        if self.rule is not None:
            self._count += float(self.rule.centred_count(squared_norms, clip_norm=self.norm))

    def end_step(self, step: int, bank: NoiseBank, noise_share: float, team: Team | None) -> None:
        """Move by the noisy count of step number ``step``, if there is a rule to move by.

        Each member of a team adds ``noise_share`` of the noise to its own count.
        """
        if self.rule is None:
            return
        count = self._count + bank.scalar(self.rule.count_stddev * noise_share)
        if team is not None:
            total = torch.tensor(count, dtype=torch.float64)
            team.sum_([total])
            count = float(total)
        self.norm = self.rule.next_clip_norm(
            count,
            clip_norm=self.norm,
            initial=self._plan.clip_norm,
            expected_batch_size=self._plan.phase_at(step).expected_batch_size,
        )
        self.norms.append(self.norm)

    def continue_with(self, norms: Sequence[float]) -> None:
        """Take up the path of an earlier run."""
        self.norms = list(norms)
        self.norm = self.norms[-1]
