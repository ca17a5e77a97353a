"""The values that reports are about, and the reserved one for everything else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._validate import withheld
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 1 << 30


@final
class _Else:
    """The label of everything outside a domain."""

    def __repr__(self) -> str:
        return "ELSE"


ELSE = _Else()


@final
class Domain:
    """A public list of values, numbered from 0; the last number stands for anything else.

    ``size`` counts the reserved value, and ``identity`` is what a plan says about the domain.
    """

    def __init__(self, domain: int | Sequence[Any]) -> None:
        expected = "a number of values, or a list of distinct names (str) or numbers (int)"
        self._numbers: dict[Any, int] | None = None
        if isinstance(domain, int | np.integer) and not isinstance(domain, bool):
            if not 1 <= domain <= _MOST:
                raise InvalidValue("domain", domain, f"1 <= domain <= {_MOST}")
            self.size = int(domain) + 1
            self.identity = str(int(domain))
            return
        if isinstance(domain, str | bytes) or not isinstance(domain, Iterable):
            raise InvalidValue("domain", domain, expected)
        names = [name.item() if isinstance(name, np.generic) else name for name in domain]
        if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in names):
            raise InvalidValue("domain", domain, expected)
        self._numbers = {name: number for number, name in enumerate(names)}
        if not names or len(self._numbers) != len(names):
            raise InvalidValue("domain", domain, expected)
        self.size = len(names) + 1
        text = json.dumps(names, ensure_ascii=True).encode("ascii")
        self.identity = f"sha256 {hashlib.sha256(text).hexdigest()}"

    @property
    def labels(self) -> Sequence[Any]:
        """The values in order; the last label, ``ELSE``, stands for anything else."""
        named = range(self.size - 1) if self._numbers is None else self._numbers
        return [*named, ELSE]

    def places(self, values: Any) -> NDArray[np.int64]:
        """Return the numbers of the values; what is not in the domain gets the reserved one."""
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise withheld("values", "a flat row with one value for each person")
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise withheld("values", "a row with one value for each person")
        last = self.size - 1
        if self._numbers is None:
            if not isinstance(values, np.ndarray):
                values = _as_integers(list(values))
            if values.dtype.kind in "iu":
                inside = (values >= 0) & (values < last)
                return np.where(inside, values, last).astype(np.int64)
        if isinstance(values, np.ndarray):
            values = values.tolist()
        return np.array([self._place(value) for value in values], dtype=np.int64)

    def _place(self, value: Any) -> int:
        last = self.size - 1
        if isinstance(value, bool | np.bool_):
            return last
        try:
            if self._numbers is not None:
                return self._numbers.get(value, last)
            return int(value) if value in range(last) else last
        except (TypeError, ValueError):
            return last


def _as_integers(values: list[Any]) -> NDArray[Any]:
    """Return an array of integers if all values are plain ones that fit, else of objects."""
    if all(type(value) is int and abs(value) < 1 << 62 for value in values):
        return np.array(values, dtype=np.int64)
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects
