"""GNMax: the class with most votes after Gaussian noise (S23)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.pate.aggregator import Costs, QueryByQuery
from discreet.pate.noise import argmax_loss, gaussian_winners, noise_level
from discreet.pate.session import Outcome, Plan, Runner
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GNMax"]


@final
@dataclass(frozen=True, kw_only=True)
class GNMax(QueryByQuery):
    """The largest of all counts with Gaussian noise of deviation ``noise``; answers all (S23).

    **Guarantee.** GDP(sqrt(2) / noise) for each query (Papernot et al. 2018, with the exact
    curve in the place of its Renyi bound). For one query it is attained: with two classes
    the label is a test of N(gap, 2 noise^2) against N(gap - 2, 2 noise^2).

    >>> GNMax(classes=10, teachers=250, noise=40).loss(queries=100).epsilon(delta=1e-5)
    1.356...
    """

    noise: object

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(noise=noise_level("noise", self.noise))

    @property
    def answer_noise(self) -> Fraction:
        """The deviation of the noise on every count, in votes."""
        return noise_level("noise", self.noise)

    @property
    def costs(self) -> Costs:
        return Costs(argmax_loss(self.answer_noise, self.neighbours), None)

    def _runner(self, plan: Plan, source: Source) -> Runner:
        noise = self.answer_noise

        def run(table: NDArray[np.int64], _: Any) -> Iterator[Outcome]:
            for label in gaussian_winners(table, noise=noise, source=source):
                yield Outcome(int(label), True)

        return run
