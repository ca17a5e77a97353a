"""What attack commands write: JSON, lines for people, and an HTML page that is whole or absent."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.tables import print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.report import Page

__all__ = [
    "Exposed",
    "ModelOutput",
    "PageFile",
    "PublicRecords",
    "Seed",
    "page_place",
    "print_marked",
]

_INTERNAL = "INTERNAL, unsafe to publish: computed from private records outside of any mechanism"
_PUBLIC_RECORDS = "the records are public or made up, say --public-records"

PageFile = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write a page with pictures (.html)."),
]
Exposed = Annotated[
    str,
    typer.Option(
        metavar="INTEGER",
        help="List so many of the most exposed records. The output is internal then in any case: "
        "it points at single people.",
    ),
]
PublicRecords = Annotated[
    bool,
    typer.Option(
        "--public-records",
        help="The records are public or made up. Without it the output is marked INTERNAL, because "
        "it is computed from private records.",
    ),
]
ModelOutput = Annotated[
    str | None,
    typer.Option(
        metavar="probabilities|logits|labels",
        help="What a model in Python gives: say it of a torch module that ends in a softmax.  "
        "[default: logits of torch modules; others say it themselves]",
    ),
]
Seed = Annotated[
    str | None, typer.Option(metavar="INTEGER", help="Make the experiment repeatable.")
]


def print_marked(
    *written: str | None, internal: bool, unless: str | None = _PUBLIC_RECORDS
) -> None:
    """Say that what was printed is internal, if it is, and which files were written.

    ``unless`` tells when it would not be, and how to say so; ``None`` if it is in any case.
    """
    if internal:
        print_lines([_INTERNAL + ("." if unless is None else f" (if {unless}).")])
    mark = " (INTERNAL)" if internal else ""
    print_lines([f"written: {file}{mark}" for file in written if file is not None])


class Place:
    """Where a page goes, proved to be writable before anything is computed."""

    def __init__(self, target: Path | None) -> None:
        self._target = target

    @property
    def wanted(self) -> bool:
        """Whether a page was asked for."""
        return self._target is not None

    def write(self, page: Page) -> None:
        """Write the page under its name."""
        if self._target is not None:
            with _refused(str(self._target)):
                page.write(self._target)


@contextmanager
def page_place(output: str | None) -> Iterator[Place]:
    """Check ``--output`` before the work of the block: its name, its directory."""
    if output is None:
        yield Place(None)
        return
    target = Path(output)
    if target.suffix.lower() not in {".html", ".htm"}:
        raise InvalidValue("output", output, "a file name that ends in .html")
    probe = target.with_name(f".{target.stem[:64]}.{secrets.token_hex(8)}")
    with _refused(output):
        if target.exists() and not target.is_file():
            raise InvalidValue("output", output, "the name of a file")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        probe.unlink()
    yield Place(target)


@contextmanager
def _refused(output: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidValue("output", output, f"a file that can be written ({reason})") from None
