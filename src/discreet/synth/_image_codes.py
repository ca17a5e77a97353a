"""Pictures as short rows of integers, one function of each picture alone, and back.

A picture is slanted upright (each row moves sideways, by the slant that its own moments say), and
the low frequencies of its cosine transform are its code; the slant itself is one more number.
Upright pictures of one kind differ less, so that few directions tell most about them. All sums are
of integers, and exact: no code depends on other pictures, on their order or on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNIT = 1 << 8
"""How many steps of a code one unit of the picture is; pictures have values from 0 to 1."""

_STEEPEST = 51  # in 64ths of a pixel for each row
_SLANT = 64
_LEVELS = 255
_COSINE = 1 << 12
_AT_ONCE = 4_096
# How much a slant of one pixel a row counts beside the values of pixels.
_WEIGHT = 5


@final
@dataclass(frozen=True)
class ImageCode:
    """How pictures of one shape are written as codes of ``size`` integers."""

    height: int
    width: int
    kept: int

    @property
    def size(self) -> int:
        """How many integers a code has."""
        return min(self.kept, self.height) * min(self.kept, self.width) + 1

    @cached_property
    def _cosines(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _cosines(self.height, self.kept), _cosines(self.width, self.kept)

    def encode(self, pictures: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the codes of pictures: integers, as floats."""
        found = np.empty((len(pictures), self.size))
        down, across = (np.rint(one * _COSINE) for one in self._cosines)
        for start in range(0, len(pictures), _AT_ONCE):
            some = pictures[start : start + _AT_ONCE].astype(np.int64)
            slant = self._slants(some)
            upright = self._move(some, -slant).astype(np.float64)
            # Integers below 2**53 throughout, so that no order of adding them matters.
            low = np.matmul(np.matmul(down, upright), across.T).reshape(len(some), -1)
            scale = _COSINE**2 * _SLANT * _LEVELS // UNIT
            rows = found[start : start + _AT_ONCE]
            rows[:, :-1] = np.trunc(low / scale)
            rows[:, -1] = slant * (UNIT * _WEIGHT // _SLANT)
        return found

    def decode(self, codes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return pictures of values from 0 to 1 for codes, which may be any numbers."""
        down, across = self._cosines
        found = np.empty((len(codes), self.height, self.width))
        for start in range(0, len(codes), _AT_ONCE):
            some = codes[start : start + _AT_ONCE] / UNIT
            low = some[:, :-1].reshape(len(some), len(down), len(across))
            upright = np.clip(np.matmul(np.matmul(down.T, low), across), 0.0, 1.0)
            slant = np.rint(some[:, -1] * (_SLANT / _WEIGHT)).clip(-_STEEPEST, _STEEPEST)
            moved = self._move(upright, slant.astype(np.int64)) / _SLANT
            found[start : start + _AT_ONCE] = moved
        return found.clip(0.0, 1.0)

    def _slants(self, pictures: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return by how many 64ths of a pixel each row of a picture leans beyond the one above."""
        y, x = np.arange(self.height), np.arange(self.width)
        rows, columns = pictures.sum(axis=2), pictures.sum(axis=1)
        mass, down, across = rows.sum(axis=1), rows @ y, columns @ x
        both, twice = (pictures @ x) @ y, rows @ (y * y)
        # Covariance and variance, times the square of the mass.
        lean, spread = both * mass - down * across, twice * mass - down * down
        safe = np.maximum(spread, 1)
        slant: NDArray[np.int64] = np.clip((lean * _SLANT) // safe, -_STEEPEST, _STEEPEST)
        return np.asarray(slant * (spread > 0))

    def _move(self, pictures: NDArray[Any], slant: NDArray[np.int64]) -> NDArray[Any]:
        """Return 64 times the pictures, with each row moved by its distance from the middle."""
        rows = 2 * np.arange(self.height) - (self.height - 1)
        steps = (slant[:, None] * rows[None, :]) // 2  # in 64ths of a pixel
        place = _SLANT * np.arange(self.width)[None, None, :] - steps[:, :, None]
        first, rest = place // _SLANT, place % _SLANT
        moved = np.zeros_like(pictures)
        for shift, weight in ((0, _SLANT - rest), (1, rest)):
            at = first + shift
            inside = (at >= 0) & (at < self.width)
            taken = np.take_along_axis(pictures, at.clip(0, self.width - 1), axis=2)
            moved += np.where(inside, weight, 0) * taken
        return moved


def _cosines(size: int, kept: int) -> NDArray[np.float64]:
    """Return the first rows of the orthonormal cosine transform."""
    order, place = np.arange(min(kept, size))[:, None], np.arange(size)[None, :]
    waves: NDArray[np.float64] = np.cos(np.pi * (place + 0.5) * order / size) * np.sqrt(2.0 / size)
    waves[0] /= np.sqrt(2.0)
    return waves


def read_pictures(argument: str, pictures: Any) -> NDArray[np.uint8]:
    """Return pictures as bytes, from bytes or from numbers between 0 and 1.

    A list is refused: one picture of numbers in a list of bytes would change how all are read.

    Raises
    ------
    InvalidValue
        If it is no array (pictures, height, width) of numbers. What the numbers are is private.
    """
    if not hasattr(pictures, "__array__"):
        expected = "an array (pictures, height, width) of numbers"
        raise InvalidValue(argument, type(pictures).__name__, expected)
    array = np.asarray(pictures)
    if array.ndim != 3 or array.dtype.kind not in "buif":
        shown = f"{array.dtype} of shape {array.shape}"
        raise InvalidValue(argument, shown, "an array (pictures, height, width) of numbers")
    if array.dtype == np.uint8:
        return array
    values = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    levels: NDArray[np.uint8] = np.rint(values.clip(0.0, 1.0) * _LEVELS).astype(np.uint8)
    return levels


def read_labels(labels: Any, classes: Sequence[Any], count: int) -> NDArray[np.int64]:
    """Return the place of each label among the classes, and -1 for any other.

    Each label is read by itself. numpy writes all labels as texts if one of them is a text, and as
    fractions if one is missing; so a text or a fraction that says a class is that class.

    Raises
    ------
    InvalidValue
        If there are not as many labels as pictures.
    """
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise InvalidValue("labels", type(labels).__name__, f"{count} labels")
    listed = np.asarray(labels).tolist() if hasattr(labels, "__array__") else list(labels)
    if len(listed) != count:
        raise InvalidValue("labels", f"{len(listed)} labels", f"{count} labels")
    places = {str(one): at for at, one in enumerate(classes)}
    whole = isinstance(classes[0], int)
    return np.array([places.get(_label_text(one, whole), -1) for one in listed], dtype=np.int64)


def _label_text(label: Any, whole: bool) -> str:
    """Return a label as text; one that is or spells a whole number as that, if classes are such."""
    if isinstance(label, bytes):
        label = label.decode("utf-8", "replace")
    if not isinstance(label, str | int | float | np.generic):
        return ""
    text = str(label)
    if not whole:
        return text
    try:
        number = float(label)
        return str(int(number)) if number.is_integer() else ""
    except (TypeError, ValueError, OverflowError):
        return ""
