"""Output files: checked before anything is computed, complete or absent afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from discreet._files import replace_file
from discreet.errors import InvalidValue

__all__ = ["Output", "picture_file"]

_FORMATS = (".png", ".svg")

Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write a picture (.png or .svg)."),
]


@contextmanager
def picture_file(output: str | None) -> Iterator[Path | None]:
    """A place to draw a picture, which replaces ``output`` when the block succeeds.

    Entering the block proves that the directory can be written. If the block fails,
    nothing is left behind and an older file of that name is untouched.
    """
    if output is None:
        yield None
        return
    target = Path(output)
    if target.suffix.lower() not in _FORMATS:
        raise InvalidValue("output", output, "a file name that ends in .png or .svg")
    with _refused(output):
        if target.exists() and not target.is_file():
            raise InvalidValue("output", output, "the name of a file")
        with replace_file(target) as draft:
            yield draft


@contextmanager
def _refused(output: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidValue("output", output, f"a file that can be written ({reason})") from None
