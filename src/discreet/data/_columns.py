"""What is publicly known of a column: its type, its bounds or categories, its missing value.

Everything here is declared by whoever knows the domain, never read off the data. Each type turns
one cell into one number by rules that look at that cell alone, and :meth:`Column.to_domain` maps
whatever came into the declared domain: it clips, and it puts the declared value where nothing
could be read. Bounds or categories may be left out; such a column is incomplete and refuses to
map anything until they are declared or learned privately
(:func:`discreet.data.complete_schema`).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from discreet import _validate
from discreet.data import _cells
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST_INTEGER = 2**53
_MOST_GROUPS = 4096
_RULE = re.compile(r"\s*(>=|<=|>|<)\s*(\S+)\s*")
_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
WHOLE_WITH_POINT = re.compile(rb"([+-]?[0-9]+)\.0*")


class Column(ABC):
    """A column of public type; the classes below are all there are."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether everything that :meth:`to_domain` needs is declared."""

    @abstractmethod
    def read_text(self, text: bytes) -> float:
        """Return the number that a text stands for in this column, or NaN."""

    @abstractmethod
    def read_object(self, cell: object) -> float:
        """Return the number that an object stands for in this column, or NaN."""

    def read_array(self, array: NDArray[Any]) -> NDArray[np.float64]:
        """Return what numbers, truth values or times stand for in this column, or NaN."""
        values, codes = np.unique(array, return_inverse=True)
        return np.array([self.read_object(value) for value in values], dtype=np.float64)[codes]

    @abstractmethod
    def to_domain(self, raw: NDArray[np.float64]) -> NDArray[Any]:
        """Return numbers as read, moved into the declared domain one by one."""


class Bounded(Column):
    """A column of numbers in an interval, both ends included; dates are numbers of days."""

    lower: Any
    upper: Any
    missing: Any

    @property
    def complete(self) -> bool:
        """Whether the bounds are declared."""
        return self.lower is not None

    @property
    def bounds(self) -> tuple[float, float]:
        """Both bounds as numbers, or an error where they are not declared."""
        if not self.complete:
            raise NotApplicable(
                f"{self!r} has no bounds: declare them or learn them privately; "
                "they are not read off the data"
            )
        return self._number(self.lower), self._number(self.upper)

    @property
    def fill(self) -> float:
        """The number that stands where nothing can be read: ``missing``, or the middle."""
        lower, upper = self.bounds
        if self.missing is not None:
            return self._number(self.missing)
        return float(self._round(np.array([lower / 2 + upper / 2]))[0])

    def read_text(self, text: bytes) -> float:
        return _cells.number_in_text(text)

    def read_object(self, cell: object) -> float:
        return _cells.read_number(cell)

    def read_array(self, array: NDArray[Any]) -> NDArray[np.float64]:
        if array.dtype.kind == "M":
            return np.full(array.size, math.nan)
        # An x86 long double can lie beyond every double: it becomes infinite, as by float().
        with np.errstate(over="ignore"):
            return array.astype(np.float64)

    def to_domain(self, raw: NDArray[np.float64]) -> NDArray[Any]:
        """Put ``fill`` for NaN, round where the type is whole, and clip to the bounds."""
        lower, upper = self.bounds
        rounded = self._round(np.where(np.isnan(raw), self.fill, raw))
        return np.asarray(np.clip(rounded, lower, upper) + 0.0, dtype=np.float64)

    @abstractmethod
    def _value(self, argument: str, value: object) -> Any:
        """Return a declared value in the type of this column, or raise."""

    def _number(self, value: Any) -> float:
        """Return a declared value as a number."""
        return float(value)

    def _round(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.rint(values)

    def _check(self) -> None:
        if (self.lower is None) != (self.upper is None):
            side = "lower" if self.lower is None else "upper"
            raise InvalidValue(side, None, "both bounds, or neither of them")
        for argument in ("lower", "upper", "missing"):
            value = getattr(self, argument)
            if value is not None:
                object.__setattr__(self, argument, self._value(argument, value))
        if not self.complete:
            return
        lower, upper = self.bounds
        if not lower < upper or math.isinf(upper - lower):
            raise InvalidValue("upper", self.upper, f"a value above the lower bound {self.lower}")
        if self.missing is not None and not lower <= self._number(self.missing) <= upper:
            expected = f"a value from {self.lower} to {self.upper}"
            raise InvalidValue("missing", self.missing, expected)


@final
@dataclass(frozen=True)
class Real(Bounded):
    """Real numbers from ``lower`` to ``upper``.

    >>> Real(0, 10).to_domain(np.array([-5.0, 2.5, np.inf, np.nan]))
    array([ 0. ,  2.5, 10. ,  5. ])
    """

    kind: ClassVar[str] = "real"
    lower: float | None = None
    upper: float | None = None
    _: KW_ONLY
    missing: float | None = None

    def __post_init__(self) -> None:
        self._check()

    def _value(self, argument: str, value: object) -> float:
        return _validate.real(argument, value) + 0.0

    def _round(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values


@final
@dataclass(frozen=True)
class Integer(Bounded):
    """Whole numbers from ``lower`` to ``upper``; others are rounded, halves to even.

    >>> Integer(17, 90, missing=40).to_domain(np.array([16.0, 30.5, np.nan]))
    array([17., 30., 40.])
    """

    kind: ClassVar[str] = "integer"
    lower: int | None = None
    upper: int | None = None
    _: KW_ONLY
    missing: int | None = None

    def __post_init__(self) -> None:
        self._check()

    def _value(self, argument: str, value: object) -> int:
        return _validate.integer(
            argument, value, at_least=-_LARGEST_INTEGER, at_most=_LARGEST_INTEGER
        )


@final
@dataclass(frozen=True)
class Date(Bounded):
    """Days from ``lower`` to ``upper``, as the number of days since 1970-01-01.

    >>> Date(dt.date(2020, 1, 1), dt.date(2020, 12, 31)).bounds
    (18262.0, 18627.0)
    """

    kind: ClassVar[str] = "date"
    lower: dt.date | None = None
    upper: dt.date | None = None
    _: KW_ONLY
    missing: dt.date | None = None

    def __post_init__(self) -> None:
        self._check()

    def read_text(self, text: bytes) -> float:
        return _cells.date_in_text(text)

    def read_object(self, cell: object) -> float:
        return _cells.read_date(cell)

    def read_array(self, array: NDArray[Any]) -> NDArray[np.float64]:
        if array.dtype.kind != "M":
            return np.full(array.size, math.nan)
        days = array.astype("datetime64[D]")
        return np.where(np.isnat(days), math.nan, days.astype(np.int64).astype(np.float64))

    def _value(self, argument: str, value: object) -> dt.date:
        if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
            raise InvalidValue(argument, value, "a date without a time of the day")
        return value

    def _number(self, value: Any) -> float:
        return _cells.to_days(value)


class Labelled(Column):
    """A column that says which of finitely many public labels a record has."""

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of their codes 0, 1, ..."""


@final
@dataclass(frozen=True)
class Boolean(Labelled):
    """True or false, coded 1 and 0; ``missing`` says which one stands for nothing.

    A ``rule`` such as ``"> 0"`` (or >=, <, <=) makes a column of numbers true where it holds.

    >>> Boolean().to_domain(np.array([1.0, 0.0, np.nan]))
    array([1, 0, 0])
    >>> Boolean(rule="> 2.5").read_text(b"3"), Boolean(rule="> 2.5").read_text(b"high")
    (1.0, nan)
    """

    kind: ClassVar[str] = "boolean"
    _: KW_ONLY
    missing: bool = False
    rule: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.missing, bool):
            raise InvalidValue("missing", self.missing, "True or False")
        if self.rule is not None:
            found = _RULE.fullmatch(str(self.rule))
            limit = math.nan if found is None else _cells.number_in_text(found[2].encode())
            if found is None or not math.isfinite(limit):
                raise InvalidValue("rule", self.rule, "a comparison with a number, such as '> 0'")
            object.__setattr__(self, "rule", f"{found[1]} {limit:.17g}")

    def _holds(self, number: float) -> float:
        if math.isnan(number):
            return math.nan
        assert self.rule is not None
        sign, _, limit = self.rule.partition(" ")
        return float(_COMPARISONS[sign](number, float(limit)))

    @property
    def complete(self) -> bool:
        """Always: there is nothing to learn."""
        return True

    @property
    def labels(self) -> tuple[str, ...]:
        return ("false", "true")

    def read_text(self, text: bytes) -> float:
        if self.rule is not None:
            return self._holds(_cells.number_in_text(text))
        return _cells.boolean_in_text(text)

    def read_object(self, cell: object) -> float:
        if self.rule is not None:
            return self._holds(_cells.read_number(cell))
        return _cells.read_boolean(cell)

    def to_domain(self, raw: NDArray[np.float64]) -> NDArray[Any]:
        """Return codes 0 and 1."""
        return np.where(np.isnan(raw), float(self.missing), raw).astype(np.int64)


@final
@dataclass(frozen=True)
class Categorical(Labelled):
    """One of the declared categories, or ``other``.

    A cell is compared as text, without the blanks around it; ``3.0`` also stands for a category
    ``3``. A text that is no category becomes ``other``, an empty cell becomes ``missing``, which
    is ``other`` unless declared. Both may name a category; if they do not, they are labels
    of their own behind the categories.

    >>> sex = Categorical(["Female", "Male"], other="unknown")
    >>> sex.labels, sex.read_text(b" Male "), sex.read_text(b"?"), sex.read_text(b"")
    (('Female', 'Male', 'unknown'), 1.0, 2.0, nan)

    Where there are too many categories to list, ``hashed`` says into how many groups texts fall, by
    a public hash; several texts share a group, and ``other`` is for empty cells.

    >>> code = Categorical(hashed=8)
    >>> code.labels[:3], code.read_text(b"E11.9") == code.read_text(b" E11.9 ")
    (('group 0', 'group 1', 'group 2'), True)
    """

    kind: ClassVar[str] = "categorical"
    categories: Sequence[str | int] | None = None
    _: KW_ONLY
    other: str = "other"
    missing: str | None = None
    hashed: int | None = None
    _codes: dict[bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.hashed is not None:
            groups = _validate.integer("hashed", self.hashed, at_least=2, at_most=_MOST_GROUPS)
            names = tuple(f"group {at}" for at in range(groups))
            if self.categories is not None and tuple(self.categories) != names:
                expected = "None: categories were declared (one of the two, not both)"
                raise InvalidValue("hashed", self.hashed, expected)
            object.__setattr__(self, "hashed", groups)
            object.__setattr__(self, "categories", names)
        if self.categories is not None:
            object.__setattr__(self, "categories", _category_names(self.categories))
        for argument in ("other", "missing"):
            value = getattr(self, argument)
            if argument == "other" or value is not None:
                object.__setattr__(self, argument, _label(argument, value))
        labels = self.labels if self.complete else ()
        codes = {name.encode(): at for at, name in enumerate(labels)}
        object.__setattr__(self, "_codes", codes)

    @property
    def complete(self) -> bool:
        """Whether the categories are declared."""
        return self.categories is not None

    @cached_property
    def labels(self) -> tuple[str, ...]:
        if not self.complete:
            raise NotApplicable(
                f"{self!r} has no categories: declare them or learn them privately; "
                "they are not read off the data"
            )
        extra = (self.other,) if self.missing is None else (self.other, self.missing)
        return tuple(dict.fromkeys((*map(str, self.categories or ()), *extra)))

    @cached_property
    def _code_of_other(self) -> float:
        return float(self.labels.index(self.other))

    def read_text(self, text: bytes) -> float:
        text = text.strip(_cells.BLANKS)
        if not text:
            return _cells.MISSING
        code = self._code(text)
        return self._code_of_other if code is None else float(code)

    def declares(self, text: bytes) -> bool:
        """Whether a text is one of the labels, so that it is not repaired."""
        return self._code(text.strip(_cells.BLANKS)) is not None

    def _code(self, text: bytes) -> int | None:
        if self.hashed is not None:
            whole = WHOLE_WITH_POINT.fullmatch(text)
            digest = hashlib.blake2b(text if whole is None else whole[1], digest_size=8).digest()
            return int.from_bytes(digest, "big") % self.hashed
        code = self._codes.get(text)
        if code is None and (whole := WHOLE_WITH_POINT.fullmatch(text)):
            code = self._codes.get(whole[1])
        return code

    def read_object(self, cell: object) -> float:
        return self.read_text(_cells.text_of(cell))

    def to_domain(self, raw: NDArray[np.float64]) -> NDArray[Any]:
        """Return codes into ``labels``."""
        gap = self.labels.index(self.other if self.missing is None else self.missing)
        return np.where(np.isnan(raw), gap, raw).astype(np.int64)


def _category_names(categories: Sequence[str | int]) -> tuple[str, ...]:
    expected = "a sequence of distinct categories"
    if isinstance(categories, str | bytes) or not isinstance(categories, Sequence):
        raise InvalidValue("categories", categories, expected)
    names = tuple(_label("categories", category) for category in categories)
    if len(set(names)) != len(names):
        raise InvalidValue("categories", list(categories), expected)
    return names


def _label(argument: str, value: object) -> str:
    """Return a text that a cell can be equal to, or raise."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_INTEGER:
        return str(value)
    expected = "a text that is not empty and has no blanks around it, or a whole number"
    if not isinstance(value, str):
        raise InvalidValue(argument, value, expected)
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(argument, value, "a text of Unicode characters") from None
    if not encoded or encoded != encoded.strip(_cells.BLANKS):
        raise InvalidValue(argument, value, expected)
    return value
