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
from discreet.errors import InvalidValue, MechanismHalted
from discreet.local._coins import Coins
from discreet.local._frequency import FrequencyOracle, chernoff_bounds, list_people
from discreet.local._methods import Randomizer, SymmetricUnary, read_integers, write_integers
from discreet.local._plans import LocalPlan, LocalServer
from discreet.mechanisms import Interval
from discreet.privacy import Loss
from discreet.randomness import Source, choose_source, uniform_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_MOST_CANDIDATES = 1 << 20


@final
class _SketchRow(Randomizer):
    """The noisy indicator of a bucket in one of several rows; a value is a bucket in each row."""

    def __init__(self, rows: int, width: int, root: float) -> None:
        self.rows, self.bits = rows, SymmetricUnary(width, root)
        self.cells = rows * width
        self.payload_bytes = 2 + self.bits.payload_bytes

    def inputs(self) -> NDArray[np.int64]:
        every = product(range(self.bits.values), repeat=self.rows)
        return np.array(list(every), dtype=np.int64)

    def randomize(self, places: NDArray[np.int64], coins: Coins) -> Bytes:
        rows = coins.uniform(self.rows, len(places))
        bits = self.bits.randomize(places[np.arange(len(places)), rows], coins)
        return np.concatenate([write_integers(rows, 2), bits], axis=1)

    def valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        good = read_integers(payloads[:, :2]) < self.rows
        return np.asarray(good & self.bits.valid(payloads[:, 2:]))

    def add(self, tally: NDArray[np.int64], payloads: Bytes) -> None:
        rows, table = read_integers(payloads[:, :2]), tally.reshape(self.rows, -1)
        for row in np.unique(rows):
            self.bits.add(table[row], payloads[rows == row, 2:])


@final
class CountMeanSketch(LocalPlan):
    """A public plan for shares of values without a list, such as words.

    Each person draws one of ``rows`` public hash functions without a look at her value, and sends
    the indicator of her value's bucket with every bit flipped with odds 1 : e^(epsilon/2) (Apple
    2017). Other values fall into the same bucket in some rows; that error does not fall as people
    come.

    :param epsilon: the loss of one report, read exactly
    :param width: the number of buckets, a power of two
    :param rows: the number of hash functions
    :raises InvalidValue: if an argument is outside its range

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
        super().__init__(epsilon)
        self.width = _validate.integer("width", width, at_least=2, at_most=1 << 16)
        if self.width & (self.width - 1):
            raise InvalidValue("width", width, "a power of two")
        self.rows = _validate.integer("rows", rows, at_least=1, at_most=1 << 16)
        method = _SketchRow(self.rows, self.width, self._root)
        self.chances = method.bits.chances(self._root)
        self._settle("sketch", method, rows=self.rows, width=self.width)

    def buckets(self, value: Any) -> NDArray[np.int64]:
        """Return the bucket of a value in every row; equal values of one type share it.

        :param value: a str, bytes or int; anything else counts as one unknown value
        """
        known = isinstance(value, str | bytes | int) and not isinstance(value, bool)
        # Python writes no number of more than some thousands of digits in decimal.
        shown = hex(value) if isinstance(value, int) and abs(value) >> 64 else repr(value)
        text = f"{type(value).__name__} {shown}" if known else "unknown"
        stream = hashlib.shake_256(text.encode("utf-8", "surrogatepass")).digest(4 * self.rows)
        return np.frombuffer(stream, dtype="<u4").astype(np.int64) % self.width

    def _read(self, values: Any) -> NDArray[np.int64]:
        given = list_people(values)
        given = given.tolist() if isinstance(given, np.ndarray) else given
        known: dict[Any, NDArray[np.int64]] = {}
        rows = np.empty((len(given), self.rows), dtype=np.int64)
        for at, value in enumerate(given):
            key = (type(value), value) if isinstance(value, str | bytes | int) else None
            if key not in known:
                known[key] = self.buckets(value)
            rows[at] = known[key]
        return rows

    def server(self) -> SketchServer:
        return SketchServer(self)


@final
class SketchServer(LocalServer):
    """Counts reports of a :class:`CountMeanSketch`."""

    _plan: CountMeanSketch

    def estimate(self, values: Sequence[Any]) -> SketchEstimate:
        """Return the shares of the given values, with intervals that hold together.

        :param values: what to ask for; this choice needs no privacy
        :raises NotApplicable: if no report was accepted
        """
        people, plan = self._count_people(), self._plan
        table = self._tally.reshape(plan.rows, plan.width)
        counts = table[np.arange(plan.rows), plan._read(values)].sum(axis=1)
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

        :param confidence: the least probability that all shares are inside
        :raises InvalidValue: if ``confidence`` is not in [0.5, 1)
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

    :param alphabet: the letters; any other becomes unknown and ends the known part of a string
    :param length: how many letters are found at most; shorter strings are filled up by an end mark
    :param epsilon: the loss of one report, read exactly
    :param step: how many letters a round adds
    :param survivors: how many prefixes go on to the next round
    :raises InvalidValue: if an argument is outside its range
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
        self._epsilon = FrequencyOracle(1, epsilon).epsilon
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
        """Return the prefix that a client reports in this round, before it is randomized.

        :param text: her string; what is none has no prefix among the candidates
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
        """Return one report of each person of this round, one a row.

        :param texts: one string of each person; what is no candidate becomes the reserved value
        :param source: where the bits come from; the operating system by default
        :param insecure_seed: the seed of a reproducible source, for experiments only
        """
        bits = choose_source(source, insecure_seed)
        return self.oracle.randomize_each([self.prefix(text) for text in texts], source=bits)

    def close_round(self, reports: Any) -> list[str]:
        """Count the reports of the round, and return the prefixes that go on to the next.

        After the last round ``found`` has strings and shares.

        :param reports: what the people of this round sent
        :raises MechanismHalted: if all rounds are closed
        :raises NotApplicable: if no report was accepted; the round stays open
        """
        if self.round == self.rounds:
            raise MechanismHalted("all rounds are closed; the result is in found")
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
        """Draw a round for each person, run all, and return strings and shares, largest first.

        :param texts: one string of each person
        :param source: where the bits come from; the operating system by default
        :param insecure_seed: the seed of a reproducible source, for experiments only
        """
        bits = choose_source(source, insecure_seed)
        groups = uniform_integers(self.rounds, len(texts), source=bits)
        while self.round < self.rounds:
            chosen = [texts[int(at)] for at in np.flatnonzero(groups == self.round)]
            self.close_round(self.randomize_each(chosen, source=bits))
        return self.found
