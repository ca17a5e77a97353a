"""What a mechanism gives back: a value, what it cost and where it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from discreet import _validate
from discreet.errors import NotApplicable
from discreet.privacy import Loss

__all__ = ["Interval", "Release"]

Value = TypeVar("Value")


class Interval(NamedTuple):
    """A confidence interval for the true answer (elementwise for vectors)."""

    lower: Any
    upper: Any


@dataclass(frozen=True)
class Release(Generic[Value]):
    """A released value with the exact loss that it cost.

    ``provenance`` says which mechanism and which parameters made it and where its
    randomness came from; a run with an insecure seed is marked there. It never holds
    anything read off the private data.
    """

    value: Value
    loss: Loss
    provenance: Mapping[str, Any]
    _error_bars: Callable[[float], Interval] | None = field(default=None, repr=False, compare=False)

    def interval(self, *, confidence: float = 0.95) -> Interval:
        """Where the true answer lies, with at least this confidence over the noise.

        It is post-processing of the released value and costs nothing.
        """
        level = _validate.real("confidence", confidence, above=0, below=1)
        if self._error_bars is None:
            raise NotApplicable(
                f"a release of {self.provenance.get('mechanism', 'this mechanism')} has no "
                "confidence interval for the true answer"
            )
        return self._error_bars(level)
