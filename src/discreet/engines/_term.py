"""Integer terms as data: what is computed on one row, evaluated by numpy or written as SQL.

A term is a tree of operations on 64-bit integers, truth values and texts; :class:`Lowering`
makes them so that no number passes 2**62. Doubles occur only where IEEE 754 fixes the result to the
bit: conversions of integers below 2**53, multiplication by powers of two, one correctly rounded
quotient, comparison, floor. So every engine computes the same integers.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from discreet.data import number_in_text
from discreet.errors import NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_SIZE = 20_000

# How many nodes an operation is in SQL, and how often it mentions each operand.
_WEIGHTS: dict[str, tuple[int, tuple[int, ...]]] = {
    "quotient": (12, (1, 3)),
    "shift": (4, (1,)),
    "spelled": (250, (1,)),
}


@final
class Term:
    """An operation, the terms that it works on, and its constants.

    Terms are equal if they are the same tree. ``size`` is how many nodes it has once it is
    written out for a database, where shared parts are written again.
    """

    __slots__ = ("args", "digest", "of", "op", "size")
    size: int
    digest: bytes

    def __init__(self, op: str, of: Sequence[Term] = (), args: tuple[Any, ...] = ()) -> None:
        self.op, self.of, self.args = op, tuple(of), args
        own, times = _WEIGHTS.get(op, (1 + len(args), ()))
        factors = times or (1,) * len(self.of)
        self.size = own + sum(k * one.size for k, one in zip(factors, self.of, strict=True))
        parts = [repr((op, args)).encode(), *(one.digest for one in self.of)]
        self.digest = hashlib.blake2b(b"".join(parts), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Term) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Term {self.op} of size {self.size}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Term, (self.op, self.of, self.args)

    def check_size(self) -> None:
        """Raise ``NotApplicable`` if a database would plan for too long."""
        if self.size > LARGEST_SIZE:
            raise NotApplicable("the query is too large once it is written out for the engine")

    @property
    def columns(self) -> set[str]:
        """The stored names of the columns that the term reads."""
        found: set[str] = set()
        seen: set[bytes] = set()
        ahead = [self]
        while ahead:
            one = ahead.pop()
            if one.digest not in seen:
                seen.add(one.digest)
                found |= {one.args[0]} if one.op == "column" else set()
                ahead += one.of
        return found


def constant(value: int) -> Term:
    """Return a stated integer."""
    return Term("constant", (), (value,))


def truth(value: bool) -> Term:
    """Return a stated truth value."""
    return Term("truth", (), (value,))


class Texts(NamedTuple):
    """A column of texts: the distinct ones, and for each row which one it has."""

    codes: NDArray[np.int64]
    values: Sequence[str]

    def map_texts(self, wanted: Callable[[str], Any], kind: Any = np.bool_) -> NDArray[Any]:
        """Return what a function says of the text of each row."""
        said = np.array([wanted(value) for value in self.values], dtype=kind)
        return said[self.codes] if said.size else np.zeros(self.codes.size, dtype=kind)


def evaluate(term: Term, columns: Mapping[str, Any], known: dict[bytes, Any] | None = None) -> Any:
    """Return a term on all rows at once: an array, or a single value for a constant.

    Parameters
    ----------
    term
        What to compute.
    columns
        Stored names to arrays of integers, or to :class:`Texts`.
    known
        What was computed on these rows before, by digest.

    Returns
    -------
    numpy.ndarray or scalar
        64-bit integers or truth values.

    """
    known = {} if known is None else known
    found = known.get(term.digest)
    if found is None:
        of = [evaluate(one, columns, known) for one in term.of]
        if term.op == "column":
            found = columns[term.args[0]]
        else:
            found = _OPERATIONS[term.op](of, *term.args)
        known[term.digest] = found
    return found


def _shift(of: list[Any], bits: int) -> Any:
    return np.floor(np.asarray(of[0], dtype=np.float64) / 2.0**bits).astype(np.int64)


def _quotient(of: list[Any], factor: float, low: int, high: int, default: int) -> Any:
    left, right = of
    nothing = np.equal(right, 0)
    divisor = np.where(nothing, 1, right).astype(np.float64)
    steps = np.asarray(left, dtype=np.float64) / divisor * factor
    cut = np.minimum(np.maximum(steps, float(low)), float(high))
    return np.where(nothing, np.int64(default), np.floor(cut).astype(np.int64))


def _read_spelled(of: list[Any], factor: float, low: int, high: int, default: int) -> Any:
    numbers = of[0].map_texts(lambda text: number_in_text(text.encode()), np.float64)
    known = np.where(np.isnan(numbers), default / factor, numbers)
    steps = np.clip(known, low / factor, high / factor) * factor
    return np.rint(steps).astype(np.int64)


def _one_of(of: list[Any], *values: Any) -> Any:
    if isinstance(of[0], Texts):
        return of[0].map_texts(frozenset(values).__contains__)
    return np.isin(of[0], np.array(values, dtype=np.int64))


def _cases(of: list[Any]) -> Any:
    """Conditions and values in turn, and what holds otherwise."""
    found = of[-1]
    for at in range(len(of) - 3, -1, -2):
        found = np.where(of[at], of[at + 1], found)
    return found


COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "constant": lambda _, value: np.int64(value),
    "truth": lambda _, value: np.bool_(value),
    "add": lambda of: of[0] + of[1],
    "subtract": lambda of: of[0] - of[1],
    "multiply": lambda of: of[0] * of[1],
    "least": lambda of: np.minimum(*of),
    "greatest": lambda of: np.maximum(*of),
    "shift": _shift,
    "quotient": _quotient,
    "spelled": _read_spelled,
    "cases": _cases,
    "compare": lambda of, how: COMPARED[how](*of),
    "one_of": _one_of,
    "starts_with": lambda of, prefix: of[0].map_texts(lambda text: text.startswith(prefix)),
    "all_of": lambda of: reduce(np.logical_and, of),
    "any_of": lambda of: reduce(np.logical_or, of),
    "negation": lambda of: np.logical_not(of[0]),
}
