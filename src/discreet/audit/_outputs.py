"""Write outputs of any kind as rows of numbers and marks.

An output may be a number, a vector, a string, ``None`` (a refusal), an error, or a
stream of such things whose length varies. Each is laid out as a row of elements: a
number is kept as it is, anything else is NaN with a *mark*, a fixed 62-bit digest of
what it was. The row of an output depends on that output alone, never on the others,
so a set of rows is a set of outputs and can serve as an event.

Drawing outputs: one call at a time, in bulk, or by several processes.

The outputs of one input must be independent draws. In bulk, the mechanism itself
promises that: ``mechanism(data, count)`` or ``mechanism.batch(data, count)`` returns
``count`` independent outputs. An error in a single call is an output of its own
(:class:`~discreet.audit.Raised`). An error in bulk says nothing of the single
draws, so it is passed on.
"""

from __future__ import annotations

import hashlib
import importlib
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import Release

if TYPE_CHECKING:
    from numpy.typing import NDArray


LONGEST = 256
"""How many elements of an output are looked at, and its length beyond that."""

NUMBER = 0
ABSENT = 1


@final
@dataclass(frozen=True)
class Raised:
    """An error that a mechanism raised instead of answering: an output like any other."""

    kind: str
    message: str

    @classmethod
    def from_exception(cls, error: BaseException) -> Raised:
        """Return what the caller of the mechanism would have seen."""
        return cls(type(error).__name__, str(error))

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Outputs, one a row: ``numbers`` (NaN where there is none), ``marks`` and ``lengths``.

    ``words`` says what a mark stands for; it serves descriptions only.
    """

    numbers: NDArray[np.float64]
    marks: NDArray[np.int64]
    lengths: NDArray[np.int64]
    words: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, part: slice) -> Rows:
        return Rows(self.numbers[part], self.marks[part], self.lengths[part], self.words)

    @property
    def width(self) -> int:
        """The number of elements that are looked at."""
        return int(self.numbers.shape[1])

    def in_words(self, index: int) -> str:
        """One output for people to read."""
        shown = min(int(self.lengths[index]), self.width, 12)
        elements = [
            f"{number:.6g}" if mark == NUMBER else self.words.get(int(mark), "?")
            for number, mark in zip(
                self.numbers[index, :shown], self.marks[index, :shown], strict=True
            )
        ]
        if int(self.lengths[index]) > shown:
            elements.append("...")
        return elements[0] if len(elements) == 1 else "(" + ", ".join(elements) + ")"


def widest(raw: Sequence[Any] | NDArray[Any]) -> int:
    """The width that holds the widest of these outputs, at most :data:`LONGEST`."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "biuf":
        return min(max(1, int(np.prod(raw.shape[1:]))), LONGEST)
    return min(max((_length(output) for output in raw), default=1), LONGEST)


def lay_out(raw: Sequence[Any] | NDArray[Any], *, width: int) -> Rows:
    """Lay outputs out as rows of ``width`` elements: longer ones are cut, shorter ones padded."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "biuf":
        return _numeric_rows(raw.reshape(len(raw), -1).astype(np.float64), width)
    kinds = {type(output) for output in raw}
    if kinds <= {int, float, bool, np.float64, np.int64, np.bool_}:
        return _numeric_rows(np.array([_number(output) for output in raw]).reshape(-1, 1), width)
    numbers_ = np.full((len(raw), width), np.nan)
    marks = np.full((len(raw), width), ABSENT, dtype=np.int64)
    lengths = np.zeros(len(raw), dtype=np.int64)
    words: dict[int, str] = {}
    for i, output in enumerate(raw):
        length = 0
        for element in _elements(output):
            if length < width:
                if _is_number(element):
                    numbers_[i, length] = _number(element)
                    marks[i, length] = NUMBER
                else:
                    marks[i, length] = _mark(element, words)
            length += 1
        lengths[i] = length
    return Rows(numbers_, marks, lengths, words)


def _numeric_rows(matrix: NDArray[np.float64], width: int) -> Rows:
    count, length = matrix.shape
    kept = matrix[:, :width]
    padding = width - kept.shape[1]
    marks = np.zeros((count, width), dtype=np.int64)
    if padding > 0:
        kept = np.pad(kept, ((0, 0), (0, padding)), constant_values=np.nan)
        marks[:, width - padding :] = ABSENT
    words: dict[int, str] = {}
    if np.isnan(kept).any():
        # A NaN that was returned is a mark of its own, as it is in a list of outputs.
        is_nan = np.isnan(kept) & (marks == NUMBER)
        marks[is_nan] = _mark(float("nan"), words)
    return Rows(kept, marks, np.full(count, length, dtype=np.int64), words)


def _elements(output: Any) -> Iterator[Any]:
    if isinstance(output, Release):
        yield from _elements(output.value)
    elif isinstance(output, np.ndarray):
        yield from output.ravel().tolist()
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield key if isinstance(key, str) else repr(key)
            yield from _elements(value)
    elif isinstance(output, set | frozenset):
        yield from sorted(output, key=repr)
    elif isinstance(output, Iterable) and not isinstance(output, str | bytes):
        for element in output:
            yield from _elements(element)
    else:
        yield output


def _length(output: Any) -> int:
    return max(1, sum(1 for _ in _elements(output)))


def _is_number(element: Any) -> bool:
    if not isinstance(element, numbers.Real | np.bool_ | Decimal):
        return False
    return bool(element == element)  # NaN has no place on the line: it is a mark


def _number(element: Any) -> float:
    try:
        return float(element)
    except OverflowError:
        return float("inf") if element > 0 else float("-inf")


def _mark(element: Any, words: dict[int, str]) -> int:
    is_nan = isinstance(element, numbers.Real | Decimal)
    text = "nan" if is_nan else f"{type(element).__name__} {element!r}"
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 2
    mark = max(digest, ABSENT + 1)
    words[mark] = f"error {element}" if isinstance(element, Raised) else repr(element)
    return mark


def strip_release(output: Any) -> Any:
    """The value of a release, or the output itself."""
    return output.value if isinstance(output, Release) else output


def check_answers(*halves: Sequence[Any] | NDArray[Any]) -> None:
    """Refuse a mechanism that never answered: its errors would look like perfect privacy."""
    if all(isinstance(output, Raised) for half in halves for output in half):
        raise NotApplicable(f"the mechanism answered neither input; it raised {halves[0][0]}")


@final
@dataclass(frozen=True)
class Sampler:
    """How to draw from a mechanism, checked before the first draw."""

    mechanism: Any
    batch: bool = False
    n_jobs: int = 1

    def __post_init__(self) -> None:
        if not callable(self.mechanism) and not hasattr(self.mechanism, "batch"):
            raise InvalidValue("mechanism", self.mechanism, "a callable, from input to output")
        if not isinstance(self.batch, bool):
            raise InvalidValue("batch", self.batch, "True or False")
        _validate.integer("n_jobs", self.n_jobs, at_least=1)

    def draw(self, data: Any, count: int) -> Sequence[Any] | NDArray[Any]:
        """Return ``count`` independent outputs on ``data``."""
        if self.n_jobs == 1:
            return self._draw(data, count)
        joblib = _joblib()
        shares = [count // self.n_jobs + (i < count % self.n_jobs) for i in range(self.n_jobs)]
        parts = joblib.Parallel(n_jobs=self.n_jobs)(
            joblib.delayed(self._draw)(data, share) for share in shares if share
        )
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts)
        return [output for part in parts for output in part]

    def _draw(self, data: Any, count: int) -> Sequence[Any] | NDArray[Any]:
        in_bulk = self.mechanism if self.batch else getattr(self.mechanism, "batch", None)
        if in_bulk is None:
            return [self._draw_one(data) for _ in range(count)]
        outputs = strip_release(in_bulk(data, count))
        if not isinstance(outputs, Sequence | np.ndarray) or isinstance(outputs, str | bytes):
            raise NotApplicable(
                f"a mechanism in bulk returns a sequence of outputs, not {type(outputs).__name__}"
            )
        if len(outputs) != count:
            raise NotApplicable(
                f"the mechanism was asked for {count} outputs in bulk and returned {len(outputs)}"
            )
        return outputs

    def _draw_one(self, data: Any) -> Any:
        try:
            return strip_release(self.mechanism(data))
        except Exception as error:  # noqa: BLE001 - whatever is raised is what the caller sees
            return Raised.from_exception(error)


def _joblib() -> Any:
    try:
        return importlib.import_module("joblib")
    except ImportError:
        raise NotApplicable("n_jobs above 1 needs the package joblib") from None
