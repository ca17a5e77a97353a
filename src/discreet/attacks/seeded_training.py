"""How a training function of the user's takes its seed, if it takes one.

A seed must not end up in another parameter: ``def train(indices, C=1.0, seed=0)`` has its seed
behind a setting of the model, and one without a seed may have nothing but settings.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

__all__ = ["SeededTraining"]


@final
@dataclass(frozen=True)
class SeededTraining:
    """``train``, called with its data and a seed, which it is given only if it takes one.

    The first parameter behind the ``data`` ones gets it if it is called ``seed`` or has no default;
    otherwise a parameter called ``seed`` gets it by name. Settings with a default are left alone,
    and so is a seed that ``functools.partial`` has set already.

    >>> SeededTraining(lambda indices, C=1.0, seed=0: (C, seed))([3], seed=7)
    (1.0, 7)
    >>> SeededTraining(lambda indices, start: start)([3], seed=7)
    7
    >>> SeededTraining(lambda indices, C=1.0: C)([3], seed=7)
    1.0
    """

    train: Callable[..., Any]
    data: int = 1

    def __call__(self, *data: Any, seed: int) -> Any:
        way = self._way()
        if way == "by name":
            return self.train(*data, seed=seed)
        return self.train(*data, seed) if way == "in place" else self.train(*data)

    def _way(self) -> str | None:
        if isinstance(self.train, functools.partial) and "seed" in self.train.keywords:
            return None
        try:
            parameters = list(inspect.signature(self.train).parameters.values())
        except (TypeError, ValueError):  # of a function that is not written in Python
            return None
        placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        behind = [one for one in parameters if one.kind in placed][self.data :]
        if behind and behind[0].name == "seed":  # in place, which wrappers of all kinds hand on
            return "in place"
        if any(
            one.name == "seed" and one.kind in named and (one.kind not in placed or one in behind)
            for one in parameters
        ):
            return "by name"
        if behind and behind[0].default is inspect.Parameter.empty:
            return "in place"
        return None
