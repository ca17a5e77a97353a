"""Text for people: tables on a terminal, the same plain text in a pipe."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO, TypeVar

from discreet._rounding import at_least, at_most

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "at_least",
    "at_most",
    "finite",
    "print_json",
    "print_lines",
    "print_table",
    "tracked",
]

_PLAIN_WIDTH = 100
T = TypeVar("T")


def finite(value: float) -> float | None:
    """JSON has no infinity: ``None`` says that no finite number holds."""
    return value if math.isfinite(value) else None


def print_json(value: object) -> None:
    """Print strict JSON: a number is finite or it is not printed."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_lines(lines: Iterable[str]) -> None:
    """Print sentences: folded to the width of a terminal, unfolded in a pipe."""
    console = _console(sys.stdout)
    for line in lines:
        console.print(line, soft_wrap=not sys.stdout.isatty())


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[bool]
) -> None:
    """Print a table; columns of numbers are set flush right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading, right in zip(headings, numeric, strict=True):
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = _console(sys.stdout)
    with console.capture() as captured:
        console.print(table)
    # Cells are padded to their column; lines need not end in blanks.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def tracked(items: Sequence[T], description: str) -> Iterator[T]:
    """Go through ``items`` under a progress bar, which only a terminal on stderr shows."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.progress import track

    yield from track(items, description, console=_console(sys.stderr), transient=True)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    if stream.isatty():
        return Console(file=stream, markup=False, highlight=False, emoji=False)
    # In a pipe the text depends neither on COLUMNS nor on a request for colour.
    return Console(
        file=stream,
        force_terminal=False,
        color_system=None,
        no_color=True,
        width=_PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )
