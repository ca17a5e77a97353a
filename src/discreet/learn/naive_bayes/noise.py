"""S20: how much noise the tables of a naive Bayes model get, and what it costs.

A model of D features is a set of D tables, one for each feature, with a block of cells for each
class. One record adds non-negative integers of sum at most ``unit`` to the cells of its class in
each table (a count adds 1 to one cell). Hence

* add_remove: each of the D tables moves by at most ``unit`` in L1 norm and in L2 norm;
* replace: each moves by at most ``unit`` upwards on some cells and by as much downwards on
  others (what cancels in a cell only helps): twice as many movements.

So the whole release has L1 sensitivity D and 2D, L2 sensitivity sqrt(D) and sqrt(2D), times
``unit``. **Laplace**: scale D / epsilon (2D / epsilon), pure DP; the loss is that of D (2D)
independent shifts by ``unit``, each dominated by one coordinate that takes all of it
(:func:`discreet.mechanisms.laplace_integers`). **Gaussian**: mu-GDP by the domination theorem
(:func:`discreet.mechanisms.discrete_gaussian_mu`), calibrated to (epsilon, delta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import (
    discrete_gaussian_mu,
    gaussian_integers,
    laplace_integers,
    read_epsilon,
    round_up,
)
from discreet.privacy import GDP, ZCDP, DiscreteLaplace, Loss, Relation
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NOISES", "TableNoise"]

NOISES = ("auto", "laplace", "gaussian")
"""``auto`` takes the smaller variance of the two; with delta 0 that is always Laplace."""

# Arrays are drawn in 64 bits (discreet.mechanisms): the noise has fewer steps than this.
_MOST_STEPS = 2.0**51
_LARGEST_ANSWER = 1 << 62


@final
@dataclass(frozen=True)
class TableNoise:
    """Noise for D tables of integers: ``kind``, its parameter in steps, and the exact loss.

    >>> TableNoise.plan(features=10, unit=1, epsilon=1.0, delta=0.0, relation="replace").loss
    20 * DiscreteLaplace(scale=20.0, relation='replace')
    """

    kind: str
    parameter: float
    tables: int
    unit: int
    changed: int
    loss: Loss

    @classmethod
    def plan(
        cls,
        *,
        features: int,
        unit: int,
        epsilon: float,
        delta: float,
        relation: Relation | str,
        noise: str = "auto",
        changed_cells: int = 1,
    ) -> TableNoise:
        """Calibrate to (epsilon, delta); ``changed_cells`` is how many one record touches a table.

        Everything here is public, so the plan can be charged before data is read.
        """
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, at_least=0, below=1)
        chosen = _validate.one_of("noise", noise, NOISES)
        kind = Relation.parse(relation)
        tables = features * (2 if kind is Relation.REPLACE else 1)
        if chosen == "gaussian" and point == 0.0:
            raise InvalidValue("delta", delta, "a number with 0 < delta < 1 for Gaussian noise")
        laplace = cls._laplace(tables, unit, target, kind)
        if chosen == "laplace" or point == 0.0:
            return laplace
        rough = math.sqrt(tables) * unit / gaussian_mu(target, point)
        if chosen == "auto" and laplace.stddev <= rough:
            return laplace
        return cls._gaussian(tables, unit, target, point, kind, changed_cells, rough)

    @classmethod
    def _laplace(cls, tables: int, unit: int, epsilon: float, relation: Relation) -> TableNoise:
        scale = round_up("epsilon", epsilon, tables * unit / read_epsilon(epsilon)[0])
        loss = tables * DiscreteLaplace(scale, unit, relation)
        return cls("laplace", _small_enough(scale, epsilon), tables, unit, tables, loss)

    @classmethod
    def _gaussian(
        cls,
        tables: int,
        unit: int,
        epsilon: float,
        delta: float,
        relation: Relation,
        changed_cells: int,
        stddev: float,
    ) -> TableNoise:
        shift = _l2_shift(tables, unit)
        changed = tables * changed_cells
        for _ in range(2000):
            mu = discrete_gaussian_mu(stddev, shift, coordinates=changed)
            loss: Loss = (
                GDP(mu, relation)
                if mu is not None
                else ZCDP(0.5 * (shift / stddev) ** 2 * (1.0 + 2.0**-48), relation)
            )
            if loss.epsilon(delta=delta) <= epsilon:
                parameter = _small_enough(stddev, epsilon)
                return cls("gaussian", parameter, tables, unit, changed, loss)
            # Discrete noise needs about 4 / stddev^2 more, relatively, than continuous noise.
            stddev *= 1.0 + min(2.0**-6, 2.0**-46 + stddev**-2)
        raise NotApplicable(
            f"no Gaussian noise was certified for epsilon {epsilon!r} and delta {delta!r}"
        )

    @property
    def stddev(self) -> float:
        """The standard deviation of the noise in each cell, in steps (sqrt 2 scales, at most)."""
        return math.sqrt(2.0) * self.parameter if self.kind == "laplace" else self.parameter

    def release(self, cells: NDArray[Any], source: Source) -> NDArray[np.int64]:
        """Return the private cells with noise added to each of them.

        Cells are cut to 62 bits first, which brings no two tables further apart.
        """
        cut = np.clip(cells, -_LARGEST_ANSWER, _LARGEST_ANSWER).astype(np.int64)
        if self.kind == "laplace":
            return laplace_integers(
                cut,
                sensitivity=self.tables * self.unit,
                scale=self.parameter,
                relation=self.loss.relation,
                source=source,
            ).value
        return gaussian_integers(
            cut,
            sensitivity=Fraction(_l2_shift(self.tables, self.unit)),
            changed=min(self.changed, cut.size),
            stddev=self.parameter,
            relation=self.loss.relation,
            source=source,
        ).value


def _l2_shift(tables: int, unit: int) -> float:
    return math.sqrt(tables) * unit * (1.0 + 2.0**-50)


def _small_enough(steps: float, epsilon: float) -> float:
    if steps >= _MOST_STEPS:
        raise InvalidValue("epsilon", epsilon, "a value whose noise has fewer than 2**51 steps")
    return steps
