"""A budget for each record, of which records with small contributions spend little.

Noise is calibrated to the largest contribution, but most records add less. Feldman and Zrnic
(2021) let each record pay for what it adds itself, and leave it out of a step
that it cannot pay any more; Koskela, Tobaben and Honkela (2023) do the same with Gaussian privacy.

**Proof.** Compare a data set with record i and without it, given the same earlier answers. Every
other record decides by its own contributions and the earlier answers, so the same others take part
in both. The next answer then differs by the contribution x of i only: N(x, s^2 I) against N(0, s^2
I), which is (n/s)-GDP for x of norm n, if i takes part, and not at all otherwise. Whether i takes
part is known before the answer is drawn, and the sum of its charges stays within the budget on
every path. That is what the filters of :mod:`discreet.privacy._filters` ask for: sums of mu^2 for
Gaussian privacy, and of Renyi divergences at one order that is fixed in advance. A record that is
passed over may take part in later, cheaper steps, since it was charged for nothing. On a Poisson
sample the answer with i is a mixture, (1 - q) N(0) + q N(x), whether or not i was drawn, so every
record that may be drawn is charged.
"""

# S9a of docs/coverage.md.

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable, RelationMismatch
from discreet.privacy._claims import RenyiDP
from discreet.privacy._gaussian import GDP, Gaussian
from discreet.privacy._loss import Loss, Relation, check_loss
from discreet.privacy._pair import Array

# Sampled contributions are rounded up to multiples of 2^(1/8), so that few curves are computed.
_LEVELS = 8.0
_UPWARD = 1.0 + 2.0**-48
# How much more than the budget the guarantee states: a budget can be used up exactly although every
# sum is rounded up.
_ROUNDING = 1.0 + 1e-12


@final
class IndividualFilter:
    """A privacy budget for each of the records of a data set; see the module for the proof.

    For anyone who sees only the noisy answers they have the loss ``guarantee``, the budget but for
    rounding, under add_remove. The masks and what a record has spent depend on the records: never
    show them, nor how many records still take part.

    Parameters
    ----------
    budget
        ``GDP(mu)`` or a Gaussian, or ``RenyiDP([order], [value])`` with one order.
    records
        How many records there are.

    Raises
    ------
    RelationMismatch
        If the budget is not under add_remove.
    NotApplicable
        If there is no filter for such a budget.

    Examples
    --------
    >>> from discreet.privacy import GDP
    >>> budget = IndividualFilter(GDP(1.0), records=3)
    >>> for step in range(3):
    ...     print(budget.admit([0.1, 1.0, 0.5], stddev=1.0).tolist())
    [True, True, True]
    [True, False, True]
    [True, False, True]
    """

    def __init__(self, budget: Loss, *, records: int) -> None:
        if check_loss("budget", budget).relation is not Relation.ADD_REMOVE:
            raise RelationMismatch("budgets of single records speak of add_remove")
        mu = budget.gaussian_mu()
        self._order: float | None = None
        if mu is not None:
            self._cap = mu * mu * _ROUNDING
            self.guarantee: Loss = GDP(mu * _ROUNDING)
        elif isinstance(budget, RenyiDP) and len(budget.orders) == 1:
            self._order, self._cap = budget.orders[0], budget.epsilons[0] * _ROUNDING
            self.guarantee = RenyiDP(budget.orders, (budget.epsilons[0] * _ROUNDING * _UPWARD,))
        else:
            raise NotApplicable(
                f"no budget of single records is known for {budget!r}: use GDP(mu), or RenyiDP "
                "at one order"
            )
        self._spent = np.zeros(_validate.integer("records", records, at_least=0))

    def __repr__(self) -> str:
        return f"IndividualFilter({self.guarantee!r})"

    def admit(self, norms: object, *, stddev: float, rate: float = 1.0) -> np.ndarray:
        """Return which records may take part in the next step, and charge those.

        Parameters
        ----------
        norms
            For each record the norm of what it adds to the sum, or a bound to which it is
            clipped. It may depend on the record itself and on earlier answers, on nothing else. A
            record whose norm is no number does not take part.
        stddev
            Of the Gaussian noise on the sum.
        rate
            With which each record that may take part is drawn into the step, independently. Below
            1 the budget must be a Renyi one.

        Returns
        -------
        numpy.ndarray
            True for the records that may take part. It is private.

        Raises
        ------
        InvalidValue
            If there is not one norm for each record.
        NotApplicable
            If records are sampled and the budget is a Gaussian one.
        """
        noise = _validate.real("stddev", stddev, above=0)
        chance = _validate.real("rate", rate, above=0, at_most=1)
        sizes = np.asarray(norms, dtype=np.float64)
        if sizes.shape != self._spent.shape:
            raise InvalidValue("norms", type(norms).__name__, "one number for each record")
        if self._order is None and chance < 1.0:
            raise NotApplicable("sampled steps have a Renyi budget only: RenyiDP([order], [value])")
        with np.errstate(invalid="ignore", over="ignore"):
            mu = np.where(sizes >= 0.0, sizes, math.inf) / noise
            charge = self._charges(mu, chance)
            # Sums are rounded to the next float above, so rounding never makes room.
            after = np.where(
                charge > 0.0, np.nextafter(self._spent + charge, math.inf), self._spent
            )
        active: np.ndarray = self._has_room(self._spent, after)
        self._spent = np.where(active, after, self._spent)
        return active

    def _has_room(self, before: Array, after: Array) -> np.ndarray:
        return after <= self._cap

    def _charges(self, mu: Array, rate: float) -> Array:
        if self._order is None:
            charges: Array = mu * mu * _UPWARD
        elif rate == 1.0:
            charges = 0.5 * self._order * mu * mu * _UPWARD
        else:
            known = {
                float(size): self._divergence_at(float(size), rate)
                for size in np.unique(_round_up(mu))
            }
            charges = np.array([known[size] for size in _round_up(mu).tolist()])
        # A contribution that underflows is not free.
        return np.where(mu > 0.0, np.maximum(charges, 1e-300), 0.0)

    def _divergence_at(self, mu: float, rate: float) -> float:
        assert self._order is not None
        return _sampled_divergence(self._order, mu, rate)


def _round_up(mu: Array) -> Array:
    """Round up to a power of 2^(1/8); 0 and infinity stay."""
    with np.errstate(divide="ignore"):
        level = np.ceil(_LEVELS * np.log2(mu) - 1e-9)
    rounded: Array = np.maximum(np.exp2(level / _LEVELS) * _UPWARD, mu)
    return rounded


@lru_cache(maxsize=4096)
def _sampled_divergence(order: float, mu: float, rate: float) -> float:
    if mu == 0.0:
        return 0.0
    if not mu < 1e9:
        return math.inf
    return float(Gaussian(1.0 / mu).poisson(rate=rate).rdp([order])[0]) * _UPWARD
