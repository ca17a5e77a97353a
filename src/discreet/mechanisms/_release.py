"""The result of a mechanism: a value, its cost and where its noise came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from discreet import _validate
from discreet.errors import NotApplicable
from discreet.privacy import Loss

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
        """Return where the true answer lies; it costs nothing, being post-processing.

        Parameters
        ----------
        confidence : float
            The least probability, over the noise, that it lies there.

        Returns
        -------
        Interval
            Its ends, elementwise for vectors.

        Raises
        ------
        NotApplicable
            If no interval is known for this mechanism.
        """
        level = _validate.real("confidence", confidence, above=0, below=1)
        if self._error_bars is None:
            raise NotApplicable(
                f"a release of {self.provenance.get('mechanism', 'this mechanism')} has no "
                "confidence interval for the true answer"
            )
        return self._error_bars(level)


@dataclass(frozen=True)
class Selection(Release[Value]):
    """A released candidate; ``shortfall`` says how far its score may be from the best one."""

    _shortfall: Callable[[float], float] | None = field(default=None, repr=False, compare=False)

    def shortfall(self, *, confidence: float = 0.95) -> float:
        """Return by how much the chosen score is below the best at most; it costs nothing.

        Parameters
        ----------
        confidence : float
            The least probability that it is no further below.

        Returns
        -------
        float
            The distance, computed from public numbers only.

        Raises
        ------
        NotApplicable
            If no bound is known for this selection.
        """
        level = _validate.real("confidence", confidence, above=0, below=1)
        if self._shortfall is None:
            raise NotApplicable("no utility bound is known for this selection")
        return self._shortfall(1.0 - level)
