"""What selections have in common: scores, the cost of a rate, and how far from the best.

A selection draws one candidate by scores u(D, y), the higher the better. Scores may all be moved
by the same amount without any effect, so what a neighbour can do is measured by the *range*

    R = max over neighbours of (max over y of d(y) - min over y of d(y)),  d = u(D') - u(D).

With |d(y)| <= sensitivity it is at most 2 sensitivity; if moreover all scores move in one
direction (``monotone``, such as counts under add_remove) at most sensitivity. A caller who knows
better states ``score_range``. A selection at ``rate`` then costs epsilon = rate R.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar, final

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms.parameters import either, flag, rounded_up, stated_epsilon
from discreet.mechanisms.release import Release
from discreet.privacy import Relation

__all__ = ["Pace", "Selection", "pick", "stated_range", "utility_bound"]

Value = TypeVar("Value")

_FASTEST = 1 << 500


@dataclass(frozen=True)
class Selection(Release[Value]):
    """A released candidate; ``shortfall`` says how far its score may be from the best one."""

    _shortfall: Callable[[float], float] | None = field(default=None, repr=False, compare=False)

    def shortfall(self, *, confidence: float = 0.95) -> float:
        """The most by which the chosen score is below the best, with at least this confidence.

        Computed from public numbers only; it costs nothing.
        """
        level = _validate.real("confidence", confidence, above=0, below=1)
        if self._shortfall is None:
            raise NotApplicable("no utility bound is known for this selection")
        return self._shortfall(1.0 - level)


@final
@dataclass(frozen=True)
class Pace:
    """The rate of a selection and what it costs; ``reported`` is a double not below it."""

    rate: Fraction
    epsilon: Fraction
    reported: float
    relation: Relation

    @classmethod
    def stated(
        cls,
        *,
        sensitivity: object,
        score_range: object,
        monotone: bool,
        epsilon: object,
        rate: object,
        relation: Relation | str,
    ) -> Pace:
        """Read the range of the scores, and ``epsilon`` or ``rate``, exactly one of them."""
        neighbours = Relation.parse(relation)
        width = stated_range(sensitivity, score_range, monotone, neighbours)
        if either(epsilon=epsilon, rate=rate) == "rate":
            pace = _validate.fraction("rate", rate, above=0)
            if pace > _FASTEST:
                raise InvalidValue("rate", rate, "at most 2**500")
            cost = pace * width
            return cls(pace, cost, rounded_up("rate", rate, cost), neighbours)
        target, reported = stated_epsilon(epsilon)
        if target / width > _FASTEST:
            raise InvalidValue("epsilon", epsilon, "at most 2**500 times the range of the scores")
        return cls(target / width, target, reported, neighbours)


def stated_range(
    sensitivity: object, score_range: object, monotone: bool, relation: Relation
) -> Fraction:
    """Return the range R of the score differences that the caller vouches for."""
    one_way = flag("monotone", monotone)
    if either(sensitivity=sensitivity, score_range=score_range) == "score_range":
        if one_way:
            raise InvalidValue("monotone", monotone, "False where score_range says everything")
        return _validate.fraction("score_range", score_range, above=0)
    if one_way and relation is not Relation.ADD_REMOVE:
        raise InvalidValue(
            "monotone", monotone, "False under replace: one record leaves and another comes"
        )
    return _validate.fraction("sensitivity", sensitivity, above=0) * (1 if one_way else 2)


def utility_bound(candidates: int, *, rate: object, beta: float) -> float:
    """S13: (1 / rate) (ln candidates + ln 1/beta); with rate = eps / (2 D) the lecture's bound.

    The exponential mechanism and permute-and-flip choose a candidate whose score is at least this
    far below the best with probability at most ``beta``: there are fewer than ``candidates`` of
    them, and each is exp(-rate times the distance) times as likely as the best one
    (McSherry and Talwar 2007, theorem 6); for permute-and-flip each wins only if its own coin,
    of that probability, falls heads.

    >>> round(utility_bound(100, rate=0.5, beta=0.05), 3)
    15.202
    """
    count = _validate.integer("candidates", candidates, at_least=1)
    pace = _validate.fraction("rate", rate, above=0)
    risk = _validate.real("beta", beta, above=0, below=1)
    return (math.log(count) - math.log(risk)) * (1.0 + 1e-14) / float(pace)


def pick(candidates: Sequence[Any] | None, count: int) -> Callable[[int], Any]:
    """Return what turns the number of a candidate into the candidate, or raise."""
    if candidates is None:
        return lambda index: index
    if not hasattr(candidates, "__getitem__") or not hasattr(candidates, "__len__"):
        raise InvalidValue("candidates", candidates, "a sequence, one entry for each score")
    if len(candidates) != count:
        raise InvalidValue("candidates", f"{len(candidates)} entries", f"{count}, one for a score")
    return candidates.__getitem__
