"""``discreet explain``: what a guarantee means for one person (S1)."""

from __future__ import annotations

from typing import Annotated

import typer

from discreet.cli.files import Output, picture_file
from discreet.cli.options import Json, real
from discreet.cli.tables import print_json, print_lines

__all__ = ["explain"]


def explain(
    *,
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="epsilon >= 0.")],
    delta: Annotated[str, typer.Option(metavar="NUMBER", help="0 <= delta < 1.")] = "0",
    prior: Annotated[
        str,
        typer.Option(
            metavar="NUMBER", help="What the attacker believes beforehand: 0 <= prior <= 1."
        ),
    ] = "0.5",
    output: Output = None,
    as_json: Json = False,
) -> None:
    r"""What (epsilon, delta) means for one person, in plain words and as a picture.

    An attacker believes with probability --prior that the person's data was used. How far
    can the release move that belief, and how well can any test tell?

    \b
    Examples:
      discreet explain --epsilon 1 --delta 1e-6 --prior 0.4
      discreet explain --epsilon 8 --delta 1e-5 --output explain.png
    """
    spent = real("epsilon", epsilon, at_least=0)
    failing = real("delta", delta, at_least=0, below=1)
    belief = real("prior", prior, at_least=0, at_most=1)
    with picture_file(output) as place:
        from discreet.privacy import theorems

        explanation = theorems.explain(spent, failing, prior=belief)
        if place is not None:
            from discreet.report import draw_explanation

            draw_explanation(explanation, place)
    if as_json:
        print_json({**explanation.to_json(), "picture": output})
        return
    print_lines(explanation.sentences())
    if output is not None:
        print_lines(["", f"picture: {output}"])
