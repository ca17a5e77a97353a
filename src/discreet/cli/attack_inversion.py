"""``discreet attack inversion``: the input that a class of a model stands for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.attack_output import ModelOutput, PageFile, Seed, page_place, print_marked
from discreet.cli.options import Json, count, real
from discreet.cli.tables import print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.attacks import InversionResult, RecognitionResult

__all__ = ["inversion"]


def inversion(
    *,
    model: Annotated[
        str,
        typer.Option(metavar="MODULE:NAME", help="The model, in Python; it is imported and run."),
    ],
    shape: Annotated[
        str,
        typer.Option(metavar="SHAPE", help="Of one record as the model takes it: 1x64x64, 4096."),
    ],
    model_output: ModelOutput = None,
    picture: Annotated[
        str | None,
        typer.Option(
            metavar="HEIGHTxWIDTH",
            help="Of the picture in a flat record.  [default: the last two numbers of the shape]",
        ),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="LIST", help="0,1,5.  [default: all]")
    ] = None,
    bounds: Annotated[
        str, typer.Option(metavar="LOW,HIGH", help="The range of valid values.")
    ] = "0,1",
    steps: Annotated[str, typer.Option(metavar="INTEGER", help="Of gradient ascent.")] = "200",
    restarts: Annotated[str, typer.Option(metavar="INTEGER", help="Starts for a class.")] = "3",
    smoothing: Annotated[
        str, typer.Option(metavar="NUMBER", help="Width of the blur in pixels.")
    ] = "1",
    total_variation: Annotated[
        str, typer.Option(metavar="NUMBER", help="Weight of the total variation.")
    ] = "1e-3",
    frequencies: Annotated[
        str,
        typer.Option(
            metavar="INTEGER",
            help="Of a picture in each direction, along which a black box is climbed.",
        ),
    ] = "12",
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="A model that was trained apart, to recognise the inverted inputs.",
        ),
    ] = None,
    judge_output: ModelOutput = None,
    photographs: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="NPZ of real records and labels to test the judge on."),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Keep the inverted inputs (.npz). Internal."),
    ] = None,
    seed: Seed = None,
    output: PageFile = None,
    as_json: Json = False,
) -> None:
    r"""Climb to the input of which a model is surest, for every class.

    Where a class is a person, that input may be a picture of the person. The output is INTERNAL.

    \b
    Examples:
      discreet attack inversion --model study:faces --shape 1x64x64 --judge study:judge \
        --photographs photographs.npz --output inversion.html
    """
    from discreet.attacks import invert, recognition
    from discreet.cli.attack_records import read_records
    from discreet.cli.attack_subjects import output_kind, subject

    if (judge is None) != (photographs is None):
        raise InvalidValue("photographs", photographs, "a file if and only if with --judge")
    output_kind("judge_output", judge_output)
    if save is not None and not save.lower().endswith(".npz"):
        raise InvalidValue("save", save, "a file name that ends in .npz")
    start = None if seed is None else count("seed", seed, at_least=0)
    low, high = _pair("bounds", bounds)
    wanted = None if classes is None else [count("classes", c) for c in classes.split(",")]
    size = None if picture is None else _sizes("picture", picture)
    if size is not None and len(size) != 2:
        raise InvalidValue("picture", picture, "a height and a width, as in 64x64")
    with page_place(output) as place:
        asked = subject(model, label="label", output=model_output)
        result = invert(
            asked.model,
            output=model_output,
            shape=_sizes("shape", shape),
            classes=wanted,
            picture=None if size is None else (size[0], size[1]),
            bounds=(low, high),
            steps=count("steps", steps, at_least=1),
            restarts=count("restarts", restarts, at_least=1),
            smoothing=real("smoothing", smoothing, at_least=0),
            frequencies=count("frequencies", frequencies, at_least=1),
            total_variation=real("total_variation", total_variation, at_least=0),
            seed=start,
        )
        recognised = None
        if judge is not None and photographs is not None:
            known = read_records("photographs", photographs, label="label")
            other = subject(judge, label="label", output=judge_output).model
            recognised = recognition(
                result,
                other,
                output=judge_output,
                photographs=known.values,
                labels=known.labels,
            )
        if save is not None:
            _save(save, result)
        if place.wanted:
            from discreet.report import inversion_page

            about = {"model": asked.title, **({} if judge is None else {"judge": judge})}
            names = asked.class_names
            place.write(
                inversion_page(result, recognised=recognised, about=about, class_names=names)
            )
    if as_json:
        print_json(_as_json(asked.title, result, recognised))
        return
    print_lines([str(result), *([] if recognised is None else [str(recognised)])])
    if recognised is None:
        print_lines(["Confidence is what was climbed: give --judge to see who is recognised."])
    print_marked(save, output, internal=True, unless=None)


def _as_json(
    title: str, result: InversionResult, recognised: RecognitionResult | None
) -> dict[str, Any]:
    judged = None if recognised is None else recognised.to_json()
    return {"model": title, "internal": True, **result.to_json(), "recognition": judged}


def _save(path: str, result: InversionResult) -> None:
    import numpy as np

    try:
        with Path(path).open("wb") as stream:
            np.savez_compressed(
                stream, images=result.images, classes=np.array(result.classes, dtype=np.int64)
            )
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidValue("save", path, f"a file that can be written ({reason})") from None


def _sizes(argument: str, text: str) -> tuple[int, ...]:
    return tuple(count(argument, part, at_least=1) for part in text.lower().split("x"))


def _pair(argument: str, text: str) -> tuple[float, float]:
    parts = text.split(",")
    if len(parts) != 2:
        raise InvalidValue(argument, text, "two numbers, as in 0,1")
    return real(argument, parts[0]), real(argument, parts[1])
