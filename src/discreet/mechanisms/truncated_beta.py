"""S13: the lecture's continuous example, a coin's parameter by the exponential mechanism.

The score of theta is the log-likelihood of the flips, heads log theta + tails log(1 - theta), on
the interval (margin, 1 - margin), so that theta has the density of a Beta(1 + c heads,
1 + c tails) cut to the interval. One flip changes the score by log theta or log(1 - theta):

=============  =======================  ==========================
relation       sensitivity D            range R of the change
=============  =======================  ==========================
add_remove     -log margin = 2.303      log((1 - margin)/margin) = 2.197
replace        R / 2 = 2.197            2 log((1 - margin)/margin) = 4.394
=============  =======================  ==========================

(figures for margin 0.1). The lecture takes c = epsilon / (2 D); the cost is c R, so that under
add_remove c = epsilon / R, more than twice as large, already suffices.

Theta is drawn exactly, from a fine grid of midpoints. Their logarithms are rounded once to
multiples of 2**-52; the rounded ones, which are public constants, *define* the score, and R is
read off them. So nothing in the guarantee rests on a rounding error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import final

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue
from discreet.mechanisms.parameters import rounded_up, stated_epsilon
from discreet.mechanisms.selection import Selection, utility_bound
from discreet.privacy import Exponential, Relation
from discreet.randomness import Source, choose_source, select

__all__ = ["CALIBRATIONS", "bernoulli_parameter"]

CALIBRATIONS = ("range", "sensitivity")
"""What c is computed from: the range of the score's change, or twice its sensitivity."""

_UNIT = 1 << 52


def bernoulli_parameter(
    heads: int,
    tails: int,
    *,
    epsilon: object,
    relation: Relation | str = Relation.ADD_REMOVE,
    calibration: str = "range",
    margin: object = "0.1",
    points: int = 4096,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Selection[float]:
    """S13: a coin's parameter from a truncated Beta(1 + c heads, 1 + c tails); epsilon-DP.

    ``calibration="range"`` takes c = epsilon / R and spends all of epsilon; ``"sensitivity"``
    is the lecture's c = epsilon / (2 D), which under add_remove costs only
    epsilon log 9 / (2 log 10) = 0.477 epsilon for margin 0.1; the loss says so.
    ``shortfall`` bounds the distance to the best log-likelihood on the grid.

    >>> drawn = bernoulli_parameter(70_000, 30_000, epsilon=0.1, insecure_seed=3)
    >>> abs(drawn.value - 0.7) < 0.05, round(drawn.provenance["concentration"], 5)
    (True, 0.04551)
    >>> lecture = bernoulli_parameter(7, 3, epsilon=0.1, calibration="sensitivity")
    >>> round(lecture.provenance["concentration"], 5)  # 0.1 / (2 * 2.3026)
    0.02171
    >>> lecture.loss.epsilon(delta=0) < 0.048
    True
    """
    neighbours = Relation.parse(relation)
    method = _validate.one_of("calibration", calibration, CALIBRATIONS)
    edge = _validate.fraction("margin", margin, above=0)
    if edge >= Fraction(1, 2):
        raise InvalidValue("margin", margin, "a number with 0 < margin < 1/2")
    table = _table(edge, _validate.integer("points", points, at_least=2, at_most=1 << 20))
    target, _ = stated_epsilon(epsilon)
    # In units of 2**-52, both rounded up by more than their rounding errors.
    odds, least = math.log(float((1 - edge) / edge)), -math.log(float(edge))
    if neighbours is Relation.REPLACE:
        sensitivity, spread = odds, 2.0 * odds
    else:
        sensitivity, spread = least, odds
    width = spread if method == "range" else 2.0 * sensitivity
    concentration = target / (Fraction(math.ceil(width * (1.0 + 1e-14) * _UNIT) + 4) / _UNIT)
    cost = concentration * table.spread(neighbours) / _UNIT
    loss = Exponential(rounded_up("epsilon", epsilon, cost), neighbours)
    bits = choose_source(source, insecure_seed)
    counts = _counted("heads", heads), _counted("tails", tails)
    scores = [counts[0] * a + counts[1] * b for a, b in zip(table.heads, table.tails, strict=True)]
    chosen = select(scores, rate=concentration / _UNIT, source=bits)
    return Selection(
        table.candidates[chosen],
        loss,
        {
            "mechanism": "bernoulli_parameter",
            "concentration": float(concentration),
            "calibration": method,
            "points": points,
            "relation": neighbours.value,
            **bits.provenance,
        },
        _shortfall=partial(_utility, points, concentration),
    )


@final
@dataclass(frozen=True)
class _Table:
    """Midpoints, and the public integers that stand for their log-likelihoods."""

    candidates: tuple[float, ...]
    heads: tuple[int, ...]
    tails: tuple[int, ...]

    def spread(self, relation: Relation) -> int:
        """The exact range of a neighbour's change of the scores, in units of 2**-52."""
        if relation is Relation.REPLACE:
            change = [a - b for a, b in zip(self.heads, self.tails, strict=True)]
            return 2 * max(abs(value) for value in change)
        return max(max(row) - min(row) for row in (self.heads, self.tails))


@lru_cache(maxsize=8)
def _table(margin: Fraction, points: int) -> _Table:
    low, width = float(margin), float(1 - 2 * margin)
    thetas = tuple(low + width * (j + 0.5) / points for j in range(points))
    return _Table(
        thetas,
        tuple(round(math.log(theta) * _UNIT) for theta in thetas),
        tuple(round(math.log1p(-theta) * _UNIT) for theta in thetas),
    )


def _counted(argument: str, value: object) -> int:
    try:
        return _validate.integer(argument, value, at_least=0, at_most=1 << 400)
    except InvalidValue:
        raise withheld(argument, "an integer >= 0") from None


def _utility(points: int, concentration: Fraction, beta: float) -> float:
    return utility_bound(points, rate=concentration, beta=beta)
