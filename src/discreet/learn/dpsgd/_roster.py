"""Whose parameters a plan trains: the modules and parameters of a model, as they were."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import attrgetter, is_
from typing import Any, final

from torch import nn

from discreet.errors import PlanViolation

# Called from C for every module and every parameter: a loop in Python would take thrice as long.
_values = dict.values
_is_trained = attrgetter("requires_grad")


@final
class Roster:
    """Notices parameters and modules that are added, exchanged, frozen or unfrozen later.

    A parameter that the plan does not know gets plain gradients, without clipping and noise, and
    another optimizer could use them. A look costs some fifty nanoseconds for each parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._tables: list[dict[str, Any]] = []
        for module in model.modules():
            self._tables += [module._parameters, module._modules]
        self._held = list(chain.from_iterable(map(_values, self._tables)))
        self._trained = list(map(_is_trained, self._parameters))

    def check(self) -> None:
        """Raise unless all is as it was."""
        found = list(chain.from_iterable(map(_values, self._tables)))
        if len(found) != len(self._held) or not all(map(is_, found, self._held)):
            raise PlanViolation(
                "a module or a parameter of the model was added, exchanged or removed after the "
                "model was put under the plan: its gradients would be neither clipped nor noisy. "
                "detach(), change the model and make a new plan"
            )
        if list(map(_is_trained, self._parameters)) != self._trained:
            raise PlanViolation(
                "a parameter of the model was frozen or unfrozen after the model was put under "
                "the plan, which knows the others as those to be trained; detach() first"
            )

    def checked(self, rows_of: Callable[[], int | None]) -> Callable[[], int | None]:
        """The same function, with a look whenever a batch is open."""

        def looked() -> int | None:
            rows = rows_of()
            if rows is not None:
                self.check()
            return rows

        return looked
