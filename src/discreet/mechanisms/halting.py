"""Mechanisms with a memory: one run, one loss, and an end that cannot be undone.

The guarantee of the sparse vector technique holds for *one* run that stops by
itself. Whatever would continue or repeat a run is refused: a question after
the end, a copy, a pickle, and the copy that a fork makes of a process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, final

from discreet.errors import MechanismHalted, NotApplicable
from discreet.privacy import Loss

__all__ = ["Charge", "MechanismHalted", "SingleRun"]

Charge = Callable[[Loss], Any]


class SingleRun:
    """Abstract base of the stateful mechanisms: thread-safe, never copied.

    ``charge`` is called once with the loss, before anything is drawn; if it raises
    (a ledger without budget) there is no mechanism. All answers of the run share
    this one loss: adding up the losses of two answers of one run would be safe, and
    would pay twice.
    """

    def __init__(self, *, loss: Loss, charge: Charge | None) -> None:
        self._loss = loss
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._halted = False
        self._asked = 0
        if charge is not None:
            charge(loss)

    @property
    @final
    def loss(self) -> Loss:
        """What the whole run costs, whatever is asked and however early it is left."""
        return self._loss

    @property
    @final
    def halted(self) -> bool:
        """Whether the run is over; a function of the answers released so far."""
        return self._halted

    @property
    @final
    def asked(self) -> int:
        """How many questions have been answered."""
        return self._asked

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the run for one question, or raise because it is over."""
        if os.getpid() != self._pid:
            raise NotApplicable(
                f"this {type(self).__name__} was copied by a fork; two runs with one noisy "
                "threshold are not covered by its loss"
            )
        with self._lock:
            if self._halted:
                raise MechanismHalted(
                    f"this {type(self).__name__} has halted: its loss covers no further answer; "
                    "build a new one and pay for it"
                )
            yield

    def __copy__(self) -> NoReturn:
        self._refuse_copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self._refuse_copy()

    def __reduce__(self) -> NoReturn:
        self._refuse_copy()

    def _refuse_copy(self) -> NoReturn:
        raise NotApplicable(
            f"a {type(self).__name__} cannot be copied or pickled: the copy could be asked "
            "again after the original has halted"
        )
