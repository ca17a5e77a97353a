"""Records: which are equal, and parts and joins of arrays, tensors and data frames.

They are equal by their values, whatever format holds them.

The number 1 is the same as an integer, a float and a truth value, alone in an array or beside
texts in a table. Nothing is cut short: arrays inside of records count with all their values,
and integers with all their digits.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import hashlib
import uuid
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray


# From here on integers are not all floats.
_WHOLE = 2.0**53
OVERLAPS = ("refuse", "drop", "allow")
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
# Their texts say all that they are.
_WRITTEN_OUT = (
    complex,
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    enum.Enum,
    type(None),
    type(Ellipsis),
)
_WRITTEN_OUT_IN = "pandas._libs."  # moments, spans and the missing value of data frames


class Digested(Protocol):
    """Labelled records and their digests; ``records`` is ``None`` where they are not kept."""

    @property
    def digests(self) -> NDArray[np.uint64]: ...
    @property
    def labels(self) -> NDArray[np.int64]: ...
    @property
    def records(self) -> Any: ...


def record_digests(records: Any, labels: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 bits for each record and its label, equal where both are equal.

    >>> one, two = np.array([[1, 2]]), np.array([[True, 2.0]], dtype=object)
    >>> bool(record_digests(one, np.array([0])) == record_digests(two, np.array([0])))
    True
    """
    values = as_array(records)
    codes = labels.astype("<i8")
    digests = np.empty(len(codes), dtype=np.uint64)
    for start in range(0, len(codes), 1024):
        part = values[start : start + 1024].reshape(len(values[start : start + 1024]), -1)
        texts = _number_rows(part) if part.dtype.kind in "biuf" else map(_row, part.tolist())
        for place, text in enumerate(texts, start):
            state = hashlib.blake2b(text, digest_size=8)
            state.update(codes[place].tobytes())
            digests[place] = int.from_bytes(state.digest(), "little")
    return digests


def check_overlap(
    digests: NDArray[np.uint64], members: NDArray[np.bool_], overlap: str
) -> NDArray[np.intp]:
    """Return which records to keep, where some are both member and non-member.

    ``overlap`` says what to do: ``"refuse"`` them, ``"drop"`` the copies among the non-members,
    or ``"allow"`` them.
    """
    copies = ~members & np.isin(digests, digests[members])
    if overlap == "refuse" and copies.any():
        raise InvalidValue(
            "members",
            f"{int(copies.sum())} non-members that are equal to a member",
            'records that are one or the other (or overlap="drop")',
        )
    return np.flatnonzero(~copies | (overlap != "drop"))


def describe_form(records: Any) -> str:
    """Say what holds the records: columns and types, nothing about their values."""
    if hasattr(records, "iloc"):
        return repr([(str(name), str(kind)) for name, kind in records.dtypes.items()])
    values = as_array(records)
    return f"{values.dtype.str} {values.shape}"


def comparable_digests(
    one: Digested, other: Digested
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the digests of both, in the precision of the coarser if their floats differ.

    The same records in single and in double precision are different numbers; rounded to single
    precision they are equal. That is seen where records are arrays of floats alone: a table that
    mixes columns of both precisions, or numbers with texts, is compared as it is. Records that are
    not kept cannot be rounded; digests that were not made from the records are left as they are.
    """
    return _comparable_digests(one, other), _comparable_digests(other, one)


def _comparable_digests(own: Digested, other: Digested) -> NDArray[np.uint64]:
    if own.records is None or other.records is None:
        return own.digests
    if _coarser(as_array(own.records).dtype, as_array(other.records).dtype) is None:
        return own.digests
    if not np.array_equal(own.digests, record_digests(own.records, own.labels)):
        return own.digests
    return digests_beside(own.records, own.labels, other.records)


def digests_beside(records: Any, labels: NDArray[np.int64], others: Any) -> NDArray[np.uint64]:
    """Return digests of ``records``, in the precision of ``others`` if that is the coarser."""
    values = as_array(records)
    coarse = _coarser(values.dtype, as_array(others).dtype)
    if coarse is not None:
        with np.errstate(over="ignore"):
            values = values.astype(coarse)
    return record_digests(values, labels)


def _coarser(own: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    floats = own.kind == other.kind == "f"
    return other if floats and other.itemsize < own.itemsize else None


def value_bytes(value: Any) -> bytes:
    """Return what a value is made of, all of it, behind its length; refuse what hides it."""
    body = _content(value)
    return f"{len(body)}:".encode() + body


def _content(value: Any) -> bytes:
    if isinstance(value, enum.Enum):
        return b"w" + repr(value).encode()
    if isinstance(value, _NUMBERS):
        return b"n" + _number_row([value])
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes | bytearray):
        return b"b" + value
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach"):
        return _array_content(as_array(value))
    if isinstance(value, list | tuple):
        return b"l" + b"".join(value_bytes(one) for one in value)
    if isinstance(value, dict):
        pairs = (value_bytes(key) + value_bytes(item) for key, item in value.items())
        return b"d" + b"".join(sorted(pairs))
    if isinstance(value, _WRITTEN_OUT) or type(value).__module__.startswith(_WRITTEN_OUT_IN):
        return b"w" + repr(value).encode()
    raise InvalidValue(
        "records",
        f"a {type(value).__name__} inside of a record",
        "numbers, texts, dates, and arrays, lists and dictionaries of these",
    )


def _array_content(array: NDArray[Any]) -> bytes:
    kind = array.dtype.str if array.dtype.kind not in "biufOUS" else ""
    head = f"a{array.shape}{kind};".encode()
    if array.dtype.kind in "biuf":
        return head + b"".join(_number_rows(array.reshape(1, -1)))
    if array.dtype.hasobject or array.dtype.kind in "US":
        return head + b"".join(value_bytes(one) for one in array.ravel().tolist())
    return head + np.ascontiguousarray(array).tobytes()


def _row(cells: list[Any]) -> bytes:
    """A row of a table; of numbers alone, it is that of an array of numbers."""
    if all(isinstance(cell, _NUMBERS) for cell in cells):
        return _number_row(cells)
    return b"".join(value_bytes(cell) for cell in cells)


def _number_rows(values: NDArray[Any]) -> list[bytes]:
    near = _one_form(values.astype(np.float64))
    texts = [row.tobytes() for row in near]
    if values.dtype.kind in "iu":
        for place in np.flatnonzero((np.abs(near) >= _WHOLE).any(axis=1)):
            texts[place] = _number_row(values[place].tolist())
    return texts


def _number_row(numbers: list[Any]) -> bytes:
    """The nearest floats, and behind them what integers have beyond theirs."""
    whole = [int(one) if isinstance(one, int | np.integer) else None for one in numbers]
    near = [_nearest(one) for one in numbers]
    beyond = [
        0 if one is None else one - int(float(to)) if np.isfinite(to) else one
        for one, to in zip(whole, near, strict=True)
    ]
    text = _one_form(np.array(near, dtype=np.float64)).tobytes()
    return text + repr(beyond).encode() if any(beyond) else text


def _nearest(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _one_form(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without negative zeros, and with one kind of NaN."""
    same = values + 0.0
    same[np.isnan(same)] = np.nan
    return same


def as_array(records: Any) -> NDArray[Any]:
    """Return records as an array, also those of a tensor or a data frame."""
    if hasattr(records, "detach"):
        records = records.detach().cpu().numpy()
    return np.asarray(records)


def refuse_sparse(name: str, records: Any) -> None:
    """Raise where records are a sparse matrix, which has neither a length nor rows to compare."""
    if hasattr(records, "nnz") and hasattr(records, "toarray"):
        expected = "dense rows, such as x.toarray(), or what the model takes before, such as texts"
        raise InvalidValue(name, f"a {type(records).__name__}", expected)


def take_rows(records: Any, indices: NDArray[np.intp] | slice) -> Any:
    """Return some of the records, of an array, a tensor or a data frame."""
    return records.iloc[indices] if hasattr(records, "iloc") else records[indices]


def join_rows(inside: Any, outside: Any) -> Any:
    """Return both, one after the other, in the form they have."""
    forms = [_form(inside), _form(outside)]
    if forms[0] != forms[1]:
        raise InvalidValue("nonmembers", f"a {forms[1]}", f"a {forms[0]}, as members")
    if forms[0] == "data frame":
        columns = [list(frame.columns) for frame in (inside, outside)]
        if columns[0] != columns[1]:
            raise InvalidValue("nonmembers", f"columns {columns[1]}", f"{columns[0]} as members")
        for one, other in zip(inside.dtypes, outside.dtypes, strict=True):
            _same_precision(one, other)
        return import_module("pandas").concat([inside, outside], ignore_index=True)
    if forms[0] == "array":
        inside, outside = np.asarray(inside), np.asarray(outside)
    shapes = [tuple(records.shape[1:]) for records in (inside, outside)]
    if shapes[0] != shapes[1]:
        raise InvalidValue("nonmembers", f"records of shape {shapes[1]}", f"{shapes[0]} as members")
    _same_precision(inside.dtype, outside.dtype)
    if forms[0] == "tensor":
        return import_module("torch").cat([inside.detach(), outside.detach()])
    return np.concatenate([inside, outside])


def _same_precision(inside: Any, outside: Any) -> None:
    """Refuse floats of two precisions: a rounded record equals none, and gives its side away."""
    if inside != outside and all(_is_float(kind) for kind in (inside, outside)):
        raise InvalidValue("nonmembers", f"numbers of type {outside}", f"{inside}, as members")


def _is_float(kind: Any) -> bool:
    return bool(getattr(kind, "is_floating_point", getattr(kind, "kind", "") == "f"))


def _form(records: Any) -> str:
    if hasattr(records, "iloc") and hasattr(records, "columns"):
        return "data frame"
    return "tensor" if hasattr(records, "detach") else "array"
