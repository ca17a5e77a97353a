"""Randomizers of one value: direct, unary and subset responses.

A report *supports* a set of values. Its own value is supported with probability p, any other with
probability q, so the number of supporting reports gives an unbiased estimate of the share of a
value (Wang, Blocki, Li and Jha 2017). The methods differ in the sets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from discreet.errors import InvalidValue
from discreet.local._coins import Coins

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Integers = NDArray[np.int64]

_MOST_BITS = 1 << 16
_MOST_VALUES = 1 << 31


class Randomizer(ABC):
    """How values become payloads, and how payloads are counted.

    The tally has ``cells`` counts. A payload is the number of a cell unless a subclass has its own.
    """

    cells: int
    payload_bytes: int

    @abstractmethod
    def inputs(self) -> NDArray[Any]:
        """Return every value that can be randomized, one a row."""

    @abstractmethod
    def randomize(self, places: NDArray[Any], coins: Coins) -> Bytes:
        """Return one payload a row for values as ``inputs`` has them."""

    def new_tally(self) -> Integers:
        """Return the empty state of a server."""
        return np.zeros(self.cells, dtype=np.int64)

    def valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        """Say which payloads some client could have sent."""
        return read_integers(payloads) < self.cells

    def add(self, tally: Integers, payloads: Bytes) -> None:
        """Count valid payloads."""
        np.add.at(tally, read_integers(payloads), 1)


class Method(Randomizer):
    """A randomizer of ``values`` numbered values whose reports support sets of them.

    ``parameters`` are the public numbers that it chose for itself, and ``decoding`` is about how
    many steps one report costs the server.
    """

    name: ClassVar[str]
    values: int
    decoding: float = 1.0

    @property
    def parameters(self) -> dict[str, int]:
        return {}

    @abstractmethod
    def chances(self, root: Any) -> tuple[Any, Any]:
        """Return p and q for e^(epsilon/2) = ``root``, a float or a Fraction."""

    def inputs(self) -> NDArray[Any]:
        return np.arange(self.values)

    def supports(self, tally: Integers) -> Integers:
        """Return how many of the counted reports support each value."""
        return tally.copy()


def variance_at(chances: tuple[Any, Any], share: Any = 0.0) -> Any:
    """Return n times the variance of the estimate of a share or of several, from p and q."""
    p, q = chances
    return q * (1.0 - q) / (p - q) ** 2 + share * (1.0 - p - q) / (p - q)


def bytes_below(count: int) -> int:
    """Return how many bytes the integers below ``count`` need."""
    return ((count - 1).bit_length() + 7) // 8


def write_integers(numbers: Integers, width: int) -> Bytes:
    """Return little-endian integers, one a row."""
    return numbers.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].copy()


def read_integers(rows: Bytes) -> Integers:
    """Read what :func:`write_integers` wrote."""
    wide = np.zeros((len(rows), 8), dtype=np.uint8)
    wide[:, : rows.shape[1]] = rows
    return wide.view("<i8").ravel().astype(np.int64, copy=False)


@final
class DirectResponse(Method):
    """GRR: the value itself, or any other one with odds 1 : e^epsilon (Kairouz et al. 2016)."""

    name = "GRR"

    def __init__(self, values: int, root: float) -> None:
        check_size(values, _MOST_VALUES, self.name)
        self.values = self.cells = values
        self.payload_bytes = bytes_below(values)

    def chances(self, root: Any) -> tuple[Any, Any]:
        whole = root * root + self.values - 1
        return root * root / whole, 1 / whole

    def randomize(self, places: Integers, coins: Coins) -> Bytes:
        honest = coins.tilted(1, self.values - 1, places.size)
        away = 1 + coins.uniform(self.values - 1, int((~honest).sum()))
        said = places.copy()
        said[~honest] = (said[~honest] + away) % self.values
        return write_integers(said, self.payload_bytes)


class BitReport(Method):
    """Shared part of the methods that report one bit for every value."""

    def __init__(self, values: int, root: float) -> None:
        check_size(values, _MOST_BITS, self.name)
        self.values = self.cells = values
        self.payload_bytes = (values + 7) // 8
        self.decoding = 1.0 + values / 8

    @abstractmethod
    def bits(self, places: Integers, coins: Coins) -> NDArray[np.bool_]:
        """Return the bits that are sent, one row a person."""

    def randomize(self, places: Integers, coins: Coins) -> Bytes:
        payloads = np.empty((places.size, self.payload_bytes), dtype=np.uint8)
        step = max(1, (1 << 23) // self.values)
        for start in range(0, places.size, step):
            part = slice(start, start + step)
            bits = self.bits(places[part], coins)
            payloads[part] = np.packbits(bits, axis=1, bitorder="little")
        return payloads

    def valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        # Bits after the last value must be 0: a report has one form only.
        return np.asarray(payloads[:, -1] >> np.uint8((self.values - 1) % 8) <= 1)

    def add(self, tally: Integers, payloads: Bytes) -> None:
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        columns = np.asfortranarray(payloads)
        for column in range(self.payload_bytes):
            seen = np.bincount(columns[:, column], minlength=256) @ bits.astype(np.int64)
            part = tally[8 * column : 8 * column + 8]
            part += seen[: part.size]


def flip_indicator(places: Integers, values: int, coins: Coins) -> NDArray[np.bool_]:
    """Return the indicators of the values with every bit flipped with odds 1 : e^(epsilon/2)."""
    sent = ~coins.tilted(1, 1, places.size * values, halves=1).reshape(places.size, values)
    sent[np.arange(places.size), places] ^= True
    return sent


@final
class SymmetricUnary(BitReport):
    """SUE: every bit of the indicator flipped with odds 1 : e^(epsilon/2); one-time RAPPOR."""

    name = "SUE"

    def chances(self, root: Any) -> tuple[Any, Any]:
        return root / (root + 1), 1 / (root + 1)

    def bits(self, places: Integers, coins: Coins) -> NDArray[np.bool_]:
        return flip_indicator(places, self.values, coins)


@final
class OptimisedUnary(BitReport):
    """OUE: the bit of the value is a fair coin, the others are set with odds 1 : e^epsilon."""

    name = "OUE"

    def chances(self, root: Any) -> tuple[Any, Any]:
        return Fraction(1, 2) if isinstance(root, Fraction) else 0.5, 1 / (root * root + 1)

    def bits(self, places: Integers, coins: Coins) -> NDArray[np.bool_]:
        sent = ~coins.tilted(1, 1, places.size * self.values)
        sent = sent.reshape(places.size, self.values)
        sent[np.arange(places.size), places] = coins.uniform(2, places.size) == 1
        return sent


@final
class SubsetSelection(BitReport):
    """SS: a set of w values that holds the person's own with better odds (Ye and Barg 2018)."""

    name = "SS"

    def __init__(self, values: int, root: float) -> None:
        super().__init__(values, root)
        share = values / (root * root + 1.0)
        sizes = {min(max(1, size), values - 1) for size in (math.floor(share), math.ceil(share))}

        def variance(size: int) -> float:
            self.size = size
            return float(variance_at(self.chances(root)))

        self.size = min(sorted(sizes), key=variance)

    @property
    def parameters(self) -> dict[str, int]:
        return {"size": self.size}

    def chances(self, root: Any) -> tuple[Any, Any]:
        d, w, odds = self.values, self.size, root * root
        whole = w * odds + d - w
        return w * odds / whole, ((w - 1) * w * odds + (d - w) * w) / ((d - 1) * whole)

    def bits(self, places: Integers, coins: Coins) -> NDArray[np.bool_]:
        # Of all sets of w values, the share w / d holds the own value.
        own = coins.tilted(self.size, self.values - self.size, places.size)
        sent = np.zeros((places.size, self.values), dtype=np.bool_)
        for holds, size in ((True, self.size - 1), (False, self.size)):
            rows = np.flatnonzero(own == holds)
            others = _choose_subsets(self.values - 1, size, rows.size, coins)
            # Columns of the others, with a gap at the own value.
            people, columns = np.nonzero(others)
            columns += columns >= places[rows[people]]
            sent[rows[people], columns] = True
            sent[rows, places[rows]] = holds
        return sent

    def valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        counts = np.bitwise_count(payloads).sum(axis=1, dtype=np.int64)
        return np.asarray(super().valid(payloads) & (counts == self.size))


def _choose_subsets(below: int, size: int, count: int, coins: Coins) -> NDArray[np.bool_]:
    """Return uniform subsets of ``size`` of {0, ..., below - 1} by Floyd's algorithm."""
    chosen = np.zeros((count, below), dtype=np.bool_)
    everyone = np.arange(count)
    for last in range(below - size, below):
        pick = coins.uniform(last + 1, count)
        chosen[everyone, np.where(chosen[everyone, pick], last, pick)] = True
    return chosen


def check_size(values: int, most: int, method: str) -> None:
    """Raise if a method cannot serve a domain of this size."""
    if values > most:
        raise InvalidValue("domain", values - 1, f"at most {most - 1} values for {method}")
