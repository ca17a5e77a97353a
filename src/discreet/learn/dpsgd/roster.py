"""Whose parameters a plan trains: the modules and parameters of a model, as they were."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, final

from torch import nn

from discreet.errors import PlanViolation

__all__ = ["Roster"]


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
        # Held, so that their ids are not given to others.
        self._held = list(chain.from_iterable(table.values() for table in self._tables))
        self._ids = [id(one) for one in self._held]
        self._trained = [one.requires_grad for one in self._parameters]

    def check(self) -> None:
        """Raise unless all is as it was."""
        found = [id(one) for table in self._tables for one in table.values()]
        if found != self._ids:
            raise PlanViolation(
                "a module or a parameter of the model was added, exchanged or removed after the "
                "model was put under the plan: its gradients would be neither clipped nor noisy. "
                "detach(), change the model and make a new plan"
            )
        if [one.requires_grad for one in self._parameters] != self._trained:
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
