"""Simple PATE: the class with most votes after Laplace noise (S23)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.mechanisms.parameters import either
from discreet.pate.aggregator import Costs, QueryByQuery
from discreet.pate.noise import laplace_votes_loss, laplace_winners, noise_level
from discreet.pate.session import Outcome, Plan, Runner
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LaplaceMax"]


@final
@dataclass(frozen=True, kw_only=True)
class LaplaceMax(QueryByQuery):
    """The largest of all counts with noise Lap(``scale``); every query is answered (S23).

    **Guarantee.** (2 / scale)-DP for each query (pure): one moved vote changes two counts by
    one. Given ``epsilon`` instead, the scale is 2 / epsilon; the printed 1 / epsilon is
    2 epsilon-DP. At delta > 0 a stream costs less than the pure sum, see
    :mod:`discreet.pate.noise`.

    >>> simple = LaplaceMax(classes=3, teachers=100, epsilon="0.1")
    >>> simple.scale, simple.loss(queries=10).epsilon(delta=0)
    (Fraction(20, 1), 1.0)
    >>> session = simple.open(queries=2, insecure_seed=1)
    >>> session.answer([100, 0, 0])
    0
    """

    epsilon: object = None
    scale: object = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if either(epsilon=self.epsilon, scale=self.scale) == "epsilon":
            self._set(scale=2 / _validate.fraction("epsilon", self.epsilon, above=0))
            try:
                noise_level("scale", self.scale)
            except InvalidValue:
                expected = "a number with 2e-06 <= epsilon <= 20"
                raise InvalidValue("epsilon", self.epsilon, expected) from None
        level = noise_level("scale", self.scale)
        self._set(scale=level, epsilon=2 / level)

    @property
    def noise(self) -> Fraction:
        """The scale of the noise, in votes."""
        return noise_level("scale", self.scale)

    @property
    def costs(self) -> Costs:
        return Costs(laplace_votes_loss(self.noise, self.neighbours), None)

    def _runner(self, plan: Plan, source: Source) -> Runner:
        scale = self.noise

        def run(table: NDArray[np.int64], _: Any) -> Iterator[Outcome]:
            for label in laplace_winners(table, scale=scale, source=source):
                yield Outcome(int(label), True)

        return run
