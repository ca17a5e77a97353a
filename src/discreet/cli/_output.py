"""Text for people: tables on a terminal, the same plain text in a pipe."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_WIDTH = 100
_INTERNAL = "INTERNAL, unsafe to publish: computed from private records outside of any mechanism"
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


def printable(line: str) -> str:
    """Return a line as the terminal can show it: what it cannot is written as an escape."""
    text = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in line
    )
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_marked(*written: str | None, internal: bool, unless: str | None = None) -> None:
    """Say that what was printed is internal, if it is, and which files were written.

    ``unless`` tells when it would not be, and how to say so; ``None`` if it is in any case.
    """
    if internal:
        print_lines([_INTERNAL + ("." if unless is None else f" (if {unless}).")])
    mark = " (INTERNAL)" if internal else ""
    print_lines([f"written: {file}{mark}" for file in written if file is not None])


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()
) -> None:
    """Print a table; the columns at ``numbers`` are set flush right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, heading in enumerate(headings):
        side: Literal["right", "left"] = "right" if place in numbers else "left"
        table.add_column(heading, justify=side, overflow="fold")
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
