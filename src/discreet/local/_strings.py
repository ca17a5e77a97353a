"""Values without a list: the count-mean sketch, and frequent strings found letter by letter."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._validate import withheld
from discreet.errors import InvalidValue, MechanismHalted
from discreet.local._coins import Coins
from discreet.local._estimates import chernoff_bounds
from discreet.local._frequency import FrequencyOracle
from discreet.local._methods import SymmetricUnary, read_integers, write_integers
from discreet.local._plans import LocalPlan, LocalServer
from discreet.local._reports import ReportFormat
from discreet.mechanisms import Interval
from discreet.privacy import Loss
from discreet.randomness import Source, choose_source, uniform_integers

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_MOST_EPSILON = 100
_MOST_CANDIDATES = 1 << 20


@final
class CountMeanSketch(LocalPlan):
    """A public plan for shares of values that nobody has listed, such as words.

    Each person draws one of ``rows`` public hash functions without a look at her value, and sends
    the indicator of her value's bucket with every bit flipped with odds 1 : e^(epsilon/2) (Apple
    2017). Other values fall into the same bucket in some rows; that error does not fall as people
    come.

    Parameters
    ----------
    epsilon : number or str
        The loss of one report, read exactly.
    width : int
        The number of buckets, a power of two.
    rows : int
        The number of hash functions.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> plan = CountMeanSketch(epsilon=4, width=64, rows=32)
    >>> server = plan.server()
    >>> server.aggregate(plan.randomize_each(["tea"] * 700 + ["coffee"] * 300))
    1000
    >>> [round(float(share)) for share in server.estimate(["tea", "milk"]).shares]
    [1, 0]
    """

    def __init__(self, epsilon: object, *, width: int = 1024, rows: int = 256) -> None:
        self._epsilon = _validate.fraction("epsilon", epsilon, above=0, at_most=_MOST_EPSILON)
        self.width = _validate.integer("width", width, at_least=2, at_most=1 << 16)
        if self.width & (self.width - 1):
            raise InvalidValue("width", width, "a power of two")
        self.rows = _validate.integer("rows", rows, at_least=1, at_most=1 << 16)
        root = math.exp(float(self._epsilon) / 2)
        self._bits = SymmetricUnary(self.width, root)
        self.chances = self._bits.chances(root)
        plan = {"epsilon": str(self._epsilon), "rows": self.rows, "width": self.width}
        payload = 2 + self._bits.payload_bytes
        self._format = ReportFormat("sketch", {"method": "sketch", **plan}, payload)

    def buckets(self, value: Any) -> NDArray[np.int64]:
        """Return the bucket of a value in every row; equal values of one type share it.

        Parameters
        ----------
        value : object
            A str, bytes or int; anything else counts as one unknown value.

        Returns
        -------
        array
            A bucket for every row.
        """
        known = isinstance(value, str | bytes | int) and not isinstance(value, bool)
        text = f"{type(value).__name__} {value!r}" if known else "unknown"
        stream = hashlib.shake_256(text.encode("utf-8", "surrogatepass")).digest(4 * self.rows)
        return np.frombuffer(stream, dtype="<u4").astype(np.int64) % self.width

    def _read(self, values: Any) -> NDArray[np.int64]:
        if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
            raise withheld("values", "a row with one value for each person")
        given = values.tolist() if isinstance(values, np.ndarray) else list(values)
        known: dict[Any, NDArray[np.int64]] = {}
        rows = np.empty((len(given), self.rows), dtype=np.int64)
        for at, value in enumerate(given):
            key = (type(value), value) if isinstance(value, str | bytes | int) else None
            if key not in known:
                known[key] = self.buckets(value)
            rows[at] = known[key]
        return rows

    def _randomize(self, values: Any, coins: Coins) -> Bytes:
        rows = coins.uniform(self.rows, len(values))
        bits = self._bits.randomize(values[np.arange(len(values)), rows], coins)
        return np.concatenate([write_integers(rows, 2), bits], axis=1)

    def channel(self, root: object) -> tuple[list[bytes], list[list[Fraction]]]:
        """Return the exact matrix; a row for every combination of buckets.

        Parameters
        ----------
        root : number or str
            A rational number that stands for e^(epsilon/2), at least 1.

        Returns
        -------
        tuple
            All payloads, and a row of their probabilities for every combination.

        Raises
        ------
        NotApplicable
            If there are too many outcomes to play.
        """
        every = product(range(self.width), repeat=self.rows)
        return self._play(root, np.array(list(every), dtype=np.int64))

    def server(self) -> SketchServer:
        """Return an empty collector of this plan."""
        return SketchServer(self)


@final
class SketchServer(LocalServer):
    """Counts reports of a :class:`CountMeanSketch`."""

    def __init__(self, plan: CountMeanSketch) -> None:
        super().__init__(plan, np.zeros((plan.rows, plan.width), dtype=np.int64))
        self._sketch = plan

    def _valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        good = read_integers(payloads[:, :2]) < self._sketch.rows
        return np.asarray(good & self._sketch._bits.valid(payloads[:, 2:]))

    def _add(self, payloads: Bytes) -> None:
        rows = read_integers(payloads[:, :2])
        for row in np.unique(rows):
            self._sketch._bits.add(self._tally[row], payloads[rows == row, 2:])

    def estimate(self, values: Sequence[Any]) -> SketchEstimate:
        """Return the shares of the given values.

        Parameters
        ----------
        values : sequence
            What to ask for; this choice needs no privacy.

        Returns
        -------
        SketchEstimate
            Shares and intervals that hold together.

        Raises
        ------
        NotApplicable
            If no report was accepted.
        """
        people, plan = self._count_people(), self._sketch
        places = plan._read(values)
        counts = self._tally[np.arange(plan.rows), places].sum(axis=1)
        return SketchEstimate(list(values), counts, people, plan, plan.loss, dict(self.rejected))


@final
@dataclass(frozen=True)
class SketchEstimate:
    """Estimated shares of some values; unbiased over the choice of the hash functions."""

    values: list[Any]
    counts: NDArray[np.int64]
    people: int
    plan: CountMeanSketch
    loss: Loss
    rejected: dict[str, int]

    def _as_shares(self, seen: Any) -> Any:
        p, q = self.plan.chances
        width = self.plan.width
        return ((seen - q) / (p - q) - 1.0 / width) * width / (width - 1.0)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The estimated shares."""
        return np.asarray(self._as_shares(self.counts / self.people))

    def interval(self, *, confidence: float = 0.95) -> Interval:
        """Return where the true shares lie, over the coins and the hash functions together.

        The hash functions are taken as random. Half of the allowed failure goes to collisions,
        whose share in all rows is at most that of ``rows`` independent coins.

        Parameters
        ----------
        confidence : float
            The least probability that all shares are inside.

        Returns
        -------
        Interval
            Two arrays in the order of ``values``.

        Raises
        ------
        InvalidValue
            If ``confidence`` is not in [0.5, 1).
        """
        level = _validate.real("confidence", confidence, at_least=0.5, below=1)
        error = (1.0 - level) / 4.0 / len(self.values)
        p, q = self.plan.chances
        ends = chernoff_bounds(self.counts / self.people, self.people, error)
        # What the buckets of a value hold is f + (1 - f) c, c the share of collisions in [0, most].
        low, high = ((end - q) / (p - q) for end in ends)
        chance = 1.0 / self.plan.width
        most = _largest_mean(chance, self.plan.rows, 2.0 * error)
        return Interval(np.clip((low - most) / (1.0 - most), 0.0, 1.0), np.clip(high, 0.0, 1.0))


def _largest_mean(chance: float, count: int, error: float) -> float:
    """Return what a mean of coins exceeds with probability at most ``error``, by Chernoff."""
    low, high = chance, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        far = middle * math.log(middle / chance)
        far += (1 - middle) * math.log((1 - middle) / (1 - chance)) if middle < 1 else 0.0
        low, high = (low, middle) if count * far > math.log(1 / error) else (middle, high)
    return min(high, 1.0 - 1e-9)


@final
class HeavyHitters:
    """Finds frequent strings by extending frequent prefixes, round by round (Wang et al. 2021).

    Each person belongs to one round, drawn without a look at her string, and sends one report in
    it: her prefix among the candidates of the round, or the reserved value. So each
    report costs epsilon, and what is found is post-processing.

    Parameters
    ----------
    alphabet : str
        The letters; any other becomes unknown and ends the known part of a string.
    length : int
        How many letters are found at most; shorter strings are filled up by an end mark.
    epsilon : number or str
        The loss of one report, read exactly.
    step : int
        How many letters a round adds.
    survivors : int
        How many prefixes go on to the next round.

    Raises
    ------
    InvalidValue
        If an argument is outside its range.

    Examples
    --------
    >>> hunt = HeavyHitters("ab", 4, epsilon=4, step=2, survivors=2)
    >>> people = ["abba"] * 3000 + ["aab"] * 2000
    >>> sorted(text for text, _ in hunt.run(people, insecure_seed=5))
    ['aab', 'abba']
    """

    END = "\0"

    def __init__(
        self, alphabet: str, length: int, epsilon: object, *, step: int = 1, survivors: int = 32
    ) -> None:
        if not (alphabet and isinstance(alphabet, str)) or self.END in alphabet:
            raise InvalidValue("alphabet", alphabet, "letters, without the character 0")
        self._letters = [*dict.fromkeys(alphabet), self.END]
        self.length = _validate.integer("length", length, at_least=1, at_most=1 << 12)
        self._step = _validate.integer("step", step, at_least=1, at_most=self.length)
        self._survivors = _validate.integer("survivors", survivors, at_least=1)
        if len(self._letters) ** self._step * self._survivors > _MOST_CANDIDATES:
            raise InvalidValue("step", step, f"at most {_MOST_CANDIDATES} candidates in a round")
        self._epsilon = _validate.fraction("epsilon", epsilon, above=0, at_most=_MOST_EPSILON)
        self.rounds = -(-self.length // self._step)
        self.round = 0
        self.found: list[tuple[str, float]] = []
        self._start([""])

    @property
    def loss(self) -> Loss:
        """What the one report of a person costs her."""
        return self.oracle.loss

    def _start(self, prefixes: list[str]) -> None:
        self._reach = min(self.length, (self.round + 1) * self._step)
        more = self._reach - self.round * self._step
        endings = ["".join(letters) for letters in product(self._letters, repeat=more)]
        # After an end mark only end marks follow.
        candidates = (prefix + ending for prefix in prefixes for ending in endings)
        good = [text for text in candidates if text.rstrip(self.END).count(self.END) == 0]
        self.oracle = FrequencyOracle(good, self._epsilon)

    def prefix(self, text: Any) -> str:
        """Return what a client reports of her string in this round, before it is randomized.

        Parameters
        ----------
        text : object
            Her string; what is none has no prefix among the candidates.

        Returns
        -------
        str
            Her prefix, filled up by end marks.
        """
        whole = text if isinstance(text, str) and self.END not in text else "\ufffd"
        return whole[: self._reach].ljust(self._reach, self.END)

    def randomize_each(
        self,
        texts: Sequence[Any],
        *,
        source: Source | None = None,
        insecure_seed: int | None = None,
    ) -> Bytes:
        """Return one report of each person of this round.

        Parameters
        ----------
        texts : sequence
            One string of each person; what is not among the candidates becomes the reserved value.
        source : Source, optional
            Where the bits come from; the operating system by default.
        insecure_seed : int, optional
            The seed of a reproducible source, for experiments only.

        Returns
        -------
        array of uint8
            A row a person.
        """
        bits = choose_source(source, insecure_seed)
        return self.oracle.randomize_each([self.prefix(text) for text in texts], source=bits)

    def close_round(self, reports: Any) -> list[str]:
        """Count the reports of the round, and go on with the most frequent prefixes.

        Parameters
        ----------
        reports : iterable of bytes, bytes, or array of uint8
            What the people of this round sent.

        Returns
        -------
        list of str
            The prefixes that go on; after the last round ``found`` has strings and shares.

        Raises
        ------
        MechanismHalted
            If all rounds are closed.
        NotApplicable
            If no report was accepted; the round stays open.
        """
        if self.round == self.rounds:
            raise MechanismHalted("all rounds are closed: see found")
        server = self.oracle.server()
        server.aggregate(reports)
        estimate = server.estimate()
        order = np.argsort(-estimate.shares[:-1], kind="stable")[: self._survivors]
        # The largest of as many shares of 0 would hardly reach this.
        noise = np.sqrt(2.0 * math.log(10 * estimate.shares.size) * estimate.variances[order])
        sure = estimate.shares[order] > noise
        best = [(str(estimate.values[at]), float(estimate.shares[at])) for at in order[sure]]
        self.round += 1
        if self.round == self.rounds or not best:
            self.round = self.rounds
            self.found = [(text.rstrip(self.END), share) for text, share in best]
        else:
            self._start([text for text, _ in best])
        return [text for text, _ in best]

    def run(
        self,
        texts: Sequence[Any],
        *,
        source: Source | None = None,
        insecure_seed: int | None = None,
    ) -> list[tuple[str, float]]:
        """Draw a round for each person, run all rounds and return the strings and their shares.

        Parameters
        ----------
        texts : sequence
            One string of each person.
        source : Source, optional
            Where the bits come from; the operating system by default.
        insecure_seed : int, optional
            The seed of a reproducible source, for experiments only.

        Returns
        -------
        list of tuple
            Strings and estimated shares, the most frequent first.
        """
        bits = choose_source(source, insecure_seed)
        groups = uniform_integers(self.rounds, len(texts), source=bits)
        while self.round < self.rounds:
            chosen = [texts[int(at)] for at in np.flatnonzero(groups == self.round)]
            self.close_round(self.randomize_each(chosen, source=bits))
        return self.found
