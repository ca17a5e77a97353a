"""``discreet shapes``: what models of tables say."""

from __future__ import annotations

from typing import Any

import click

from discreet.cli._app import Command, print_json, print_lines, printable
from discreet.cli._options import output_file


@click.command(cls=Command)
@click.argument("model", metavar="MODEL", help="A directory that discreet train wrote.")
@click.option("--output", "-o", metavar="FILE", help="Where to draw: .png, .svg or .pdf.")
def shapes(model: str, output: str | None, as_json: bool) -> None:
    """Draw the shapes of an additive model, or the questions of a tree.

    What is drawn was released with the model; it costs nothing more. Noise is part of it: where
    few rows are, a step of a shape can be noise alone.

    Examples:
      discreet shapes model --output shapes.png
      discreet shapes model --json
    """
    from discreet.learn import load_model
    from discreet.report import draw_model, model_table

    fitted: Any = load_model(model)
    found = model_table(fitted)
    with output_file(output, ".png", ".svg", ".pdf") as draft:
        if draft is not None:
            draw_model(fitted, draft)
    if as_json:
        print_json({**found, "output": output})
        return
    lines = fitted.describe().splitlines()
    print_lines(map(printable, lines if output is None else [*lines, f"drawn: {output}"]))
