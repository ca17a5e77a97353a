"""RAPPOR: many reports of one value that cost what one memorised answer costs.

The client flips every bit of her value's indicator once, with odds 1 : e^(epsilon/2), and remembers
the result. Each report is a fresh noisy copy of what she remembers (Erlingsson, Pihur and Korolova
2014). However many reports she sends, they are post-processing of the remembered bits, so
together they are epsilon-locally private *for a value that never changes*. Averaging her reports
gives the remembered bits and no more.

A change of value needs fresh bits. With c changes declared, c + 1 rows of bits are remembered in
turn and the reports are (c + 1) epsilon-private between sequences of values that change at the
same times. *When* a value changed is not covered: an observer may see it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, MechanismHalted
from discreet.local._coins import Coins, SystemCoins
from discreet.local._frequency import Domain, FrequencyPlan
from discreet.local._methods import BitReport, flip_indicator
from discreet.local._plans import LocalClient
from discreet.privacy import Loss, PureDP
from discreet.randomness import Source, choose_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@final
class _NoisyMemory(BitReport):
    """A noisy copy of remembered bits: a 1 is sent as 1 with chance ``high``, a 0 with ``low``."""

    name = "RAPPOR"

    def __init__(self, values: int, high: Fraction, low: Fraction) -> None:
        super().__init__(values, 1.0)
        self._high, self._low = high, low

    def chances(self, root: Any) -> tuple[Any, Any]:
        high, low = self._high, self._low
        if not isinstance(root, Fraction):
            high, low = float(high), float(low)  # type: ignore[assignment]
        right, wrong = root / (root + 1), 1 / (root + 1)
        return right * high + wrong * low, wrong * high + right * low

    def copy(self, memory: NDArray[np.bool_], coins: Coins) -> NDArray[np.bool_]:
        """Return bits to send."""
        ones = coins.rational(self._high, memory.size).reshape(memory.shape)
        zeros = coins.rational(self._low, memory.size).reshape(memory.shape)
        return np.where(memory, ones, zeros)

    def bits(self, places: NDArray[np.int64], coins: Coins) -> NDArray[np.bool_]:
        return self.copy(flip_indicator(places, self.values, coins), coins)


@final
class Rappor(FrequencyPlan):
    """A public plan for repeated reports of a value that changes seldom or never.

    :param domain: the values, at most 65,535; anything else becomes the reserved value
    :param epsilon: what all reports of one unchanged value cost together, read exactly
    :param high: how often a remembered 1 is sent as 1, a rational number
    :param low: how often a remembered 0 is sent as 1, a rational number below ``high``
    :param changes: how many times a client's value may change; every change costs epsilon again,
        and the promise does not cover when it happens
    :raises InvalidValue: if an argument is outside its range
    """

    def __init__(
        self,
        domain: int | Sequence[Any],
        epsilon: object,
        *,
        high: object = "3/4",
        low: object = "1/2",
        changes: int = 0,
    ) -> None:
        super().__init__(epsilon)
        self.domain = Domain(domain)
        upper = _validate.fraction("high", high, above=0, at_most=1)
        lower = _validate.fraction("low", low, at_least=0, below=1)
        if lower >= upper:
            raise InvalidValue("low", low, f"less than high, {upper}")
        self._changes = _validate.integer("changes", changes, at_least=0)
        self.covers = "all reports of one value that never changes"
        if self._changes:
            values = f"at most {self._changes + 1} values in turn"
            self.covers = f"all reports of {values}; when the value changed is not covered"
        rates = {"high": str(upper), "low": str(lower), "changes": self._changes}
        method = _NoisyMemory(self.domain.size, upper, lower)
        self._settle("RAPPOR", method, domain=self.domain.identity, **rates)

    @property
    def loss(self) -> PureDP:
        """What all reports of a person cost her together, at given times of change."""
        return PureDP(self._epsilon * (1 + self._changes), relation="replace")

    def one_report_epsilon(self) -> float:
        """Return the epsilon of a single report that is never followed by another.

        It is for comparison: the loss is that of all reports together.
        """
        p, q = self.chances()
        return math.log(p * (1.0 - q) / (q * (1.0 - p)))

    def client(  # type: ignore[override] # any number of reports is paid for
        self,
        *,
        memory: dict[str, Any] | None = None,
        source: Source | None = None,
        insecure_seed: int | None = None,
    ) -> RapporClient:
        """Return the side of one person.

        :param memory: the ``memory`` of an earlier client of hers; without it bits are drawn anew,
            and epsilon is spent again
        :param source: where the bits come from; the operating system by default
        :param insecure_seed: the seed of a reproducible source, for experiments only
        :raises InvalidValue: if ``memory`` is not that of a client of this plan
        """
        return RapporClient(self, choose_source(source, insecure_seed), memory)


@final
class RapporClient(LocalClient):
    """One person's side: it remembers noisy bits of her value and sends noisy copies of them."""

    _plan: Rappor

    def __init__(self, plan: Rappor, source: Source, memory: dict[str, Any] | None) -> None:
        super().__init__(plan, 0, source)
        self._coins = SystemCoins(plan.epsilon, source)
        self._place: int | None = None
        self._memory = np.zeros((1, plan.domain.size), dtype=np.bool_)
        self._changed = 0
        if memory is not None:
            try:
                bits = np.array([[int(bit) for bit in memory["bits"]]], dtype=np.bool_)
                self._place, self._changed = int(memory["place"]), int(memory["changed"])
            except (KeyError, TypeError, ValueError):
                bits = np.empty((0, 0), dtype=np.bool_)
            known = 0 <= (self._place or 0) < bits.shape[1] and 0 <= self._changed <= plan._changes
            if bits.shape != self._memory.shape or not known:
                raise InvalidValue("memory", "withheld", "the memory of a client of this plan")
            self._memory = bits

    @property
    def memory(self) -> dict[str, Any] | None:
        """What a later client must remember, for JSON; it shows her value and stays with her."""
        if self._place is None:
            return None
        bits = "".join(str(int(bit)) for bit in self._memory[0])
        return {"bits": bits, "changed": self._changed, "place": self._place}

    @property
    def loss(self) -> Loss:
        return self._plan.loss

    def randomize(self, value: Any) -> bytes:
        """Return a report of this value, always of the same length.

        :param value: her value now; outside the domain it becomes the reserved value
        :raises MechanismHalted: if the value changed more often than declared; nothing was drawn
        """
        with self._guard:
            return self._randomize(value)

    def _randomize(self, value: Any) -> bytes:
        method: _NoisyMemory = self._plan._method  # type: ignore[assignment]
        places = self._plan.domain.places([value])
        if places[0] != self._place:
            if self._place is not None:
                if self._changed == self._plan._changes:
                    raise MechanismHalted(
                        f"the value changed more than {self._changed} times, which is all that the "
                        "plan pays for: go on reporting the old value, or declare more changes"
                    )
                self._changed += 1
            self._memory = flip_indicator(places, method.values, self._coins)
            self._place = int(places[0])
        self._sent += 1
        bits = method.copy(self._memory, self._coins)
        payload = np.packbits(bits, axis=1, bitorder="little")
        return self._plan._format.write(payload).tobytes()
