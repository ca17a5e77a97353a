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
from discreet.local._domain import Domain
from discreet.local._frequency import FrequencyServer
from discreet.local._methods import BitReport
from discreet.local._plans import LocalPlan
from discreet.local._reports import ReportFormat
from discreet.privacy import PureDP
from discreet.randomness import Source, choose_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MOST_EPSILON = 100


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

    def remember(self, places: NDArray[np.int64], coins: Coins) -> NDArray[np.bool_]:
        """Return the bits to remember, one row a person."""
        memory = ~coins.tilted(1, 1, places.size * self.values, halves=1)
        memory = memory.reshape(places.size, self.values)
        memory[np.arange(places.size), places] ^= True
        return memory

    def copy(self, memory: NDArray[np.bool_], coins: Coins) -> NDArray[np.bool_]:
        """Return bits to send."""
        ones = coins.rational(self._high, memory.size).reshape(memory.shape)
        zeros = coins.rational(self._low, memory.size).reshape(memory.shape)
        return np.where(memory, ones, zeros)

    def bits(self, places: NDArray[np.int64], coins: Coins) -> NDArray[np.bool_]:
        return self.copy(self.remember(places, coins), coins)


@final
class Rappor(LocalPlan):
    """A public plan for repeated reports of a value that changes seldom or never.

    Parameters
    ----------
    domain : int or sequence of str or int
        The values, at most 65,535; anything else becomes the reserved value.
    epsilon : number or str
        What all reports of one unchanged value cost together, read exactly.
    high, low : number or str
        How often a remembered 1, and a remembered 0, is sent as 1; rational, low < high.
    changes : int
        How many times a client's value may change. Every change costs epsilon again, and the
        promise does not cover when it happens.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> plan = Rappor(["home", "work"], epsilon=2)
    >>> client = plan.client()
    >>> len({len(client.randomize("home")) for _ in range(1000)})
    1
    >>> plan.loss
    PureDP(epsilon=2, relation='replace')
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
        self.domain = Domain(domain)
        self._epsilon = _validate.fraction("epsilon", epsilon, above=0, at_most=_MOST_EPSILON)
        upper = _validate.fraction("high", high, above=0, at_most=1)
        lower = _validate.fraction("low", low, at_least=0, below=1)
        if lower >= upper:
            raise InvalidValue("low", low, f"less than high, {upper}")
        self._changes = _validate.integer("changes", changes, at_least=0)
        self._method = _NoisyMemory(self.domain.size, upper, lower)
        plan = {
            "changes": self._changes,
            "domain": self.domain.identity,
            "epsilon": str(self._epsilon),
            "high": str(upper),
            "low": str(lower),
            "method": "RAPPOR",
        }
        self._format = ReportFormat("RAPPOR", plan, self._method.payload_bytes)

    @property
    def loss(self) -> PureDP:
        """What all reports of a person cost her together, at given times of change."""
        return PureDP(self._epsilon * (1 + self._changes), relation="replace")

    @property
    def covers(self) -> str:
        """What the loss speaks of, in words for a certificate."""
        if self._changes == 0:
            return "all reports of one value that never changes"
        return (
            f"all reports of at most {self._changes + 1} values in turn; when the value changed is "
            "not covered"
        )

    def chances(self) -> tuple[float, float]:
        """Return how often one report supports its own value, and any given other one."""
        p, q = self._method.chances(math.exp(float(self._epsilon) / 2))
        return float(p), float(q)

    def one_report_epsilon(self) -> float:
        """Return the epsilon of a single report that is never followed by another.

        It is for comparison: the loss is that of all reports together.
        """
        p, q = self.chances()
        return math.log(p * (1.0 - q) / (q * (1.0 - p)))

    def client(  # type: ignore[override] # any number of reports is paid for
        self, *, source: Source | None = None, insecure_seed: int | None = None
    ) -> RapporClient:
        """Return the side of one person.

        Parameters
        ----------
        source : Source, optional
            Where the bits come from; the operating system by default.
        insecure_seed : int, optional
            The seed of a reproducible source, for experiments only.

        Returns
        -------
        RapporClient
            A client that remembers nothing yet.
        """
        bits = choose_source(source, insecure_seed)
        return RapporClient(self, SystemCoins(self._epsilon, bits))

    def server(self) -> FrequencyServer:
        """Return an empty collector for one round, in which each person sends one report."""
        return FrequencyServer(self, self._method)

    def channel(self, root: object) -> tuple[list[bytes], list[list[Fraction]]]:
        """Return the exact matrix of one report; see :meth:`FrequencyOracle.channel`.

        Parameters
        ----------
        root : number or str
            A rational number that stands for e^(epsilon/2), at least 1.

        Returns
        -------
        tuple
            All payloads, and a row of their probabilities for every value.
        """
        return self._play(root, np.arange(self.domain.size))

    def _read(self, values: Any) -> NDArray[np.int64]:
        return self.domain.places(values)

    def _randomize(self, values: Any, coins: Coins) -> NDArray[np.uint8]:
        return self._method.randomize(values, coins)


@final
class RapporClient:
    """One person's side: it remembers noisy bits of her value and sends noisy copies of them."""

    def __init__(self, plan: Rappor, coins: SystemCoins) -> None:
        self._plan = plan
        self._coins = coins
        self._place: int | None = None
        self._memory: NDArray[np.bool_] | None = None
        self._changed = 0
        self._sent = 0

    @property
    def sent(self) -> int:
        """How many reports she has sent."""
        return self._sent

    def randomize(self, value: Any) -> bytes:
        """Return a report of this value.

        Parameters
        ----------
        value : object
            Her value now; outside the domain it becomes the reserved value.

        Returns
        -------
        bytes
            The report, always of the same length.

        Raises
        ------
        MechanismHalted
            If the value changed more often than the plan declares; nothing was drawn.
        """
        method = self._plan._method
        places = self._plan.domain.places([value])
        if self._memory is None or places[0] != self._place:
            if self._memory is not None:
                if self._changed == self._plan._changes:
                    raise MechanismHalted(
                        f"the value changed more than {self._changed} times, which is all that the "
                        "plan pays for: go on reporting the old value, or declare more changes"
                    )
                self._changed += 1
            self._memory = method.remember(places, self._coins)
            self._place = int(places[0])
        self._sent += 1
        bits = method.copy(self._memory, self._coins)
        payload = np.packbits(bits, axis=1, bitorder="little")
        return self._plan._format.write(payload).tobytes()
