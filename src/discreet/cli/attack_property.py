"""``discreet attack property``: what a model tells of its training set as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.attack_output import (
    ModelOutput,
    PageFile,
    PublicRecords,
    Seed,
    page_place,
    print_marked,
)
from discreet.cli.options import Json, count, real
from discreet.cli.tables import print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.cli.attack_records import Records

__all__ = ["property_"]

_ACCESS = {"outputs": "outputs", "sorted": "sorted weights", "sets": "weight sets"}


def property_(
    *,
    records: Annotated[
        str,
        typer.Option(metavar="FILE", help="Records of the attacker, to draw training sets from."),
    ],
    train: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="function(records, labels) returns a model; it is imported and run.",
        ),
    ],
    has: Annotated[
        str,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="What a record has or has not; for NPZ files the number of the column.",
        ),
    ],
    shares: Annotated[
        str,
        typer.Option(
            metavar="LOW,HIGH",
            help="The share of such records in sets without and with the property.",
        ),
    ],
    size: Annotated[str, typer.Option(metavar="INTEGER", help="Records in a training set.")],
    shadows: Annotated[
        str, typer.Option(metavar="INTEGER", help="How many shadow models to train.")
    ] = "100",
    access: Annotated[
        list[str] | None,
        typer.Option(
            metavar="outputs|sorted|sets",
            help="Black box: outputs on queries; white box: weights with neurons sorted, or as "
            "sets. May be given several times.  [default: outputs]",
        ),
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Records to ask models about.  [default: 200 of the records]"
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="The model under attack, if there is one."),
    ] = None,
    model_output: ModelOutput = None,
    label: Annotated[
        str, typer.Option(metavar="NAME", help="The column of the true class in CSV files.")
    ] = "label",
    jobs: Annotated[
        str, typer.Option(metavar="INTEGER", help="Processes that train shadow models.")
    ] = "1",
    confidence: Annotated[str, typer.Option(metavar="NUMBER", help="Of all intervals.")] = "0.95",
    public_records: PublicRecords = False,
    seed: Seed = None,
    output: PageFile = None,
    as_json: Json = False,
) -> None:
    r"""Learn from shadow models whether a training set had a property, such as many smokers.

    The accuracy is that on shadow models that the attack never learned from.

    \b
    Examples:
      discreet attack property --records mine.csv --train study:train --has smokes=1 \
        --shares 0.2,0.5 --size 500 --shadows 100 --jobs 2 --output property.html
    """
    from discreet.attacks import on_records, property_inference, property_sets, train_shadows
    from discreet.cli.attack_records import in_order_of, read_records
    from discreet.cli.attack_subjects import imported, output_kind, read_as, subject

    level = real("confidence", confidence, above=0, below=1)
    start = None if seed is None else count("seed", seed, at_least=0)
    many, rows = count("shadows", shadows, at_least=4), count("size", size, at_least=1)
    workers = count("jobs", jobs, at_least=1)
    kinds = [_kind(name) for name in access or ["outputs"]]
    given = output_kind("model_output", model_output)
    maker: Callable[..., Any] = imported("train", train)
    with page_place(output) as place:
        own = read_records("records", records, label=label)
        asked = own
        if queries is not None:
            asked = read_records("queries", queries, label=label)
            asked = in_order_of(own.columns, "queries", queries, asked, of=records)
        judged = None if target is None else subject(target, label=label).model
        sets = property_sets(
            _mask(own, has), shares=_shares(shares), size=rows, sets=many, seed=start
        )
        models = train_shadows(on_records(maker, own.values, own.labels), sets, n_jobs=workers)
        # Whoever reads weights needs the module itself.
        output_of = {kind: given if kind == "outputs" else None for kind in kinds}
        results = [
            property_inference(
                [read_as(model, output_of[kind]) for model in models],
                sets.holds,
                access=kind,
                queries=asked.values[:200] if queries is None else asked.values,
                target=None if judged is None else read_as(judged, output_of[kind]),
                held_out=sets.held_out,
                confidence=level,
                seed=sets.seed,
            )
            for kind in dict.fromkeys(kinds)
        ]
        if place.wanted:
            from discreet.report import property_page

            about = {"records": records, "property": f"{has} in {shares} of {size} records"}
            place.write(property_page(results, about=about, public_records=public_records))
    if as_json:
        shown = [result.to_json() for result in results]
        print_json({"property": has, "internal": not public_records, "results": shown})
        return
    print_lines(line for result in results for line in str(result).splitlines())
    print_marked(output, internal=not public_records)


def _kind(name: str) -> str:
    if name not in _ACCESS:
        raise InvalidValue("access", name, "one of " + ", ".join(_ACCESS))
    return _ACCESS[name]


def _shares(text: str) -> tuple[float, float]:
    parts = text.split(",")
    if len(parts) != 2:
        raise InvalidValue("shares", text, "two shares, as in 0.2,0.5")
    low, high = (real("shares", part, at_least=0, at_most=1) for part in parts)
    return low, high


def _mask(own: Records, has: str) -> NDArray[Any]:
    import numpy as np

    column, equal, value = has.rpartition("=")
    expected = "COLUMN=VALUE, as in smokes=1"
    if not equal or not column:
        raise InvalidValue("has", has, expected)
    if own.columns is None:
        place = count("has", column, at_least=0)
    elif column in own.columns:
        place = own.columns.index(column)
    else:
        raise InvalidValue("has", has, f"one of the columns {', '.join(own.columns)}")
    if own.values.ndim != 2 or place >= own.values.shape[1]:
        raise InvalidValue("has", has, "a column of the records, from 0")
    return np.asarray(own.values[:, place] == real("has", value), dtype=np.bool_)
