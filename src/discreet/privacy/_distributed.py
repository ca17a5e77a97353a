"""Noise that many participants add together, of which only the sum is seen.

Each of the participants adds a share, and a removed one takes its share along. So what is known is
known under ``zero_out``: one participant's numbers are exchanged for zeros, and its noise stays.
The loss is stated for the *smallest honest number* of participants; a share is 1 / that number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from discreet import _validate
from discreet.errors import RelationMismatch
from discreet.privacy import theorems
from discreet.privacy._loss import Atom, Relation
from discreet.privacy._pair import Array

_ROUNDING = 1.0 + 1e-12


class _Shared(Atom, abstract=True):
    """Abstract base: integers of bounded norms, and noise of the participants."""

    default_relation: ClassVar[Relation] = Relation.ZERO_OUT

    variance: float
    l2: float
    l1: float
    relation: Relation

    def check(self) -> None:
        """Refuse sizes that no vector of integers has, and a relation that says too much."""
        if self.relation is Relation.ADD_REMOVE:
            raise RelationMismatch(
                "noise that participants bring along is private under 'zero_out' or 'replace': a "
                "removed participant takes a share of the noise with it"
            )
        l2 = _validate.real("l2", self.l2, at_least=1)
        self._set(
            variance=_validate.real("variance", self.variance, above=0),
            l2=l2,
            l1=_validate.real("l1", self.l1, at_least=l2),
        )


@final
@dataclass(frozen=True, repr=False)
class Skellam(_Shared):
    """Skellam noise on a sum of integer vectors; upper bounds only.

    Parameters
    ----------
    variance : float
        Of the noise that is certainly in the sum, in each coordinate.
    l2, l1 : float
        The norms of what one participant changes, in whole steps.
    relation : Relation or str
        ``zero_out``, or ``replace`` with the norms of a difference.

    Examples
    --------
    >>> round(Skellam(variance=1e6, l2=1000, l1=10_000).epsilon(delta=1e-5), 2)
    4.75
    """

    variance: float
    l2: float
    l1: float
    relation: Relation = Relation.ZERO_OUT

    def renyi(self, orders: Array) -> Array:
        bound = theorems.rdp_skellam(orders, variance=self.variance, l2=self.l2, l1=self.l1)
        return bound * _ROUNDING


@final
@dataclass(frozen=True, repr=False)
class SummedDiscreteGaussian(_Shared):
    """Discrete Gaussian noise of several participants on a sum; upper bounds only.

    Parameters
    ----------
    variance : float
        The parameter sigma^2 of each share.
    parties : int
        How many shares are certainly in the sum.
    l2, l1 : float
        The norms of what one participant changes, in whole steps.
    dimension : int
        The number of coordinates.
    relation : Relation or str
        ``zero_out``, or ``replace`` with the norms of a difference.

    Examples
    --------
    >>> noise = SummedDiscreteGaussian(variance=1e4, parties=100, l2=1000, l1=10_000, dimension=100)
    >>> round(noise.epsilon(delta=1e-5), 2)
    4.73
    """

    variance: float
    parties: int
    l2: float
    l1: float
    dimension: int
    relation: Relation = Relation.ZERO_OUT

    def check(self) -> None:
        super().check()
        self._set(
            parties=_validate.integer("parties", self.parties, at_least=1),
            dimension=_validate.integer("dimension", self.dimension, at_least=1),
        )

    def renyi(self, orders: Array) -> Array:
        bound = theorems.rdp_summed_discrete_gaussian(
            orders,
            variance=self.variance,
            parties=self.parties,
            l2=self.l2,
            l1=self.l1,
            dimension=self.dimension,
        )
        return bound * _ROUNDING
