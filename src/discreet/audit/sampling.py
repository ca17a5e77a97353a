"""Drawing outputs: one call at a time, in bulk, or by several processes.

The outputs of one input must be independent draws. In bulk, the mechanism itself
promises that: ``mechanism(data, count)`` or ``mechanism.batch(data, count)`` returns
``count`` independent outputs. An error in a single call is an output of its own
(:class:`~discreet.audit.outputs.Raised`). An error in bulk says nothing of the single
draws, so it is passed on.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.audit.outputs import Raised, strip_release
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Sampler"]


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
