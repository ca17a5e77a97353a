"""What a person sees while a model trains: public numbers only.

The training loss is a function of the private data that no noise covers; whoever writes it into
a log or a screenshot publishes it. The display therefore shows losses and accuracies on *public*
validation data, and the epsilon of the steps taken and of the plan. With
``show_private_loss=True`` the training loss is shown as well, marked as not for release; it is
never kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from discreet._rounding import at_most
from discreet.learn.dpsgd._private import Private

_READING_SECONDS = 2.0


@final
class Display:
    """A progress bar on a terminal, and nothing elsewhere unless it is asked for."""

    def __init__(
        self, private: Private, *, shown: bool | None, console: Console | None = None
    ) -> None:
        self._private = private
        self._planned = private.epsilon()
        self._on = sys.stderr.isatty() if shown is None else shown
        self._bar: Progress | None = None
        self._console = console
        self._text = ""
        self._read_at = 0.0
        self._spent = 0.0
        self._task: Any = None

    def __enter__(self) -> Display:
        if self._on:
            self._bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=self._console or Console(stderr=True),
            )
            self._bar.start()
            total = self._private.plan.steps
            self._task = self._bar.add_task("", total=total, figures="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._read_at = 0.0
            self.step()
            self._bar.stop()

    @property
    def is_on(self) -> bool:
        """Whether anything is shown."""
        return self._bar is not None

    def public(self, figures: Mapping[str, float]) -> None:
        """New figures on public data."""
        self._text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())

    def step(self, *, private_loss: float | None = None) -> None:
        """A step was taken."""
        if self._bar is None:
            return
        now = time.monotonic()
        if now - self._read_at > _READING_SECONDS:
            self._read_at = now
            self._spent = self._private.spent()
        parts = [
            f"epsilon {at_most(self._spent, digits=3)} of {at_most(self._planned, digits=3)}",
            self._text,
        ]
        if private_loss is not None:
            parts.append(f"[red]private loss {private_loss:.4g}, NOT FOR RELEASE[/red]")
        figures = "  ".join(part for part in parts if part)
        self._bar.update(self._task, completed=self._private.steps_taken, figures=figures)
