"""``discreet attack attribute``: what a model tells of a hidden attribute of its members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.attack_output import ModelOutput, PageFile, Seed, page_place, print_marked
from discreet.cli.options import Json, count, real
from discreet.cli.tables import print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.attacks import Attribute
    from discreet.cli.attack_records import Records
    from discreet.cli.attack_subjects import Subject

__all__ = ["attribute"]

_MOST_VALUES = 100


def attribute(
    *,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="A directory that discreet train wrote, or module:name in Python, which is "
            "imported and run.",
        ),
    ],
    members: Annotated[
        str, typer.Option(metavar="FILE", help="Records that the model was trained on.")
    ],
    nonmembers: Annotated[
        str,
        typer.Option(metavar="FILE", help="Records of the same kind that it was not trained on."),
    ],
    auxiliary: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Records that the attacker has without the model, to impute the attribute from.",
        ),
    ],
    attribute_name: Annotated[
        str,
        typer.Option(
            "--attribute",
            metavar="COLUMN",
            help="The hidden column; for NPZ files its number from 0, several with commas.",
        ),
    ],
    model_output: ModelOutput = None,
    label: Annotated[
        str, typer.Option(metavar="NAME", help="The column of the true class in CSV files.")
    ] = "label",
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--value",
            metavar="VALUE",
            help="A candidate value of the column.  [default: those that are declared or occur]",
        ),
    ] = None,
    prior: Annotated[
        str,
        typer.Option(
            metavar="uniform|marginal|imputed",
            help="What the attacker believes of the attribute before asking the model.",
        ),
    ] = "uniform",
    allow_duplicates: Annotated[
        bool,
        typer.Option(
            "--allow-duplicates", help="Equal records in two files belong to different people."
        ),
    ] = False,
    confidence: Annotated[str, typer.Option(metavar="NUMBER", help="Of all intervals.")] = "0.95",
    seed: Seed = None,
    output: PageFile = None,
    as_json: Json = False,
) -> None:
    r"""Guess a hidden attribute from the model's confidence in the true label.

    The guess is compared with imputation, which needs no model, and with records that the
    model never saw: what is guessed as well without the model, or for everybody, is no leak.
    CSV and Parquet files are joined by the names of their columns. The output is INTERNAL.

    \b
    Examples:
      discreet attack attribute --model model --members train.csv --nonmembers test.csv \
        --auxiliary other.csv --attribute smokes --output attribute.html
      discreet attack attribute --model study:target --members in.npz --nonmembers out.npz \
        --auxiliary more.npz --attribute 3,4,5
    """
    from discreet.attacks import attribute_inference
    from discreet.cli.attack_subjects import subject

    level = real("confidence", confidence, above=0, below=1)
    start = None if seed is None else count("seed", seed, at_least=0)
    with page_place(output) as place:
        asked = subject(model, label=label, output=model_output)
        sets = asked.read_all(
            {"members": members, "nonmembers": nonmembers, "auxiliary": auxiliary}
        )
        result = attribute_inference(
            asked.target,
            attribute=_attribute(asked, attribute_name, values, sets["auxiliary"]),
            members=sets["members"].pair,
            nonmembers=sets["nonmembers"].pair,
            auxiliary=sets["auxiliary"].pair,
            prior=prior,
            allow_duplicates=allow_duplicates,
            confidence=level,
            seed=start,
        )
        if place.wanted:
            from discreet.report import attribute_page

            place.write(attribute_page(result, about={"model": asked.title, **asked.about}))
    if as_json:
        print_json({"model": asked.title, "internal": True, **result.to_json()})
        return
    print_lines(str(result).splitlines())
    print_marked(output, internal=True, unless=None)


def _attribute(
    asked: Subject, name: str, values: list[str] | None, auxiliary: Records
) -> Attribute:
    from discreet.attacks import Attribute

    if asked.learner is None:
        return _by_columns(name, values, auxiliary)
    features = asked.learner.schema.features
    if name not in features:
        raise InvalidValue("attribute", name, f"one of the columns {', '.join(features)}")
    if asked.learner.takes_codes:
        # Codes of labels, or of parts of an interval, one column for each feature.
        place = list(features).index(name)
        labels = getattr(features[name], "labels", None)
        found = [float(code) for code in range(len(labels))] if labels else None
        codes = found or sorted(set(auxiliary.values[:, place].tolist()))
        names = list(labels) if labels else [f"part {code:g}" for code in codes]
        return Attribute(name, columns=place, candidates=codes, values=names)
    from discreet.data import Encoding

    chosen = None if values is None else [_typed(features[name].kind, value) for value in values]
    return Attribute.from_encoding(Encoding(asked.learner.schema), name, values=chosen)


def _typed(kind: str, value: str) -> object:
    if kind == "boolean":
        if value.lower() not in {"true", "false"}:
            raise InvalidValue("value", value, "true or false")
        return value.lower() == "true"
    return value if kind == "categorical" else real("value", value)


def _by_columns(name: str, values: list[str] | None, auxiliary: Records) -> Attribute:
    import numpy as np

    from discreet.attacks import Attribute

    if auxiliary.columns is not None:
        if name not in auxiliary.columns:
            expected = f"one of the columns {', '.join(auxiliary.columns)}"
            raise InvalidValue("attribute", name, expected)
        places = [auxiliary.columns.index(name)]
    else:
        places = [count("attribute", part, at_least=0) for part in name.split(",")]
        if auxiliary.values.ndim != 2 or max(places) >= auxiliary.values.shape[1]:
            expected = "numbers of columns of records, from 0"
            raise InvalidValue("attribute", name, expected)
    if values is not None:
        if len(places) > 1:
            raise InvalidValue("value", ", ".join(values), "nothing, for several columns")
        rows = np.array([[real("value", value)] for value in values])
    else:
        rows = np.unique(np.asarray(auxiliary.values, dtype=np.float64)[:, places], axis=0)
    if len(rows) > _MOST_VALUES:
        expected = f"a column with at most {_MOST_VALUES} values (or --value); it has {len(rows)}"
        raise InvalidValue("attribute", name, expected)
    return Attribute(name, columns=places, candidates=rows)
