"""``discreet release``: one private answer, with what it cost and how far off it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from discreet.cli.options import InsecureSeed, Json, RelationName, count, real
from discreet.cli.private_files import (
    read_column,
    read_lines,
    read_scores,
    split_categories,
)
from discreet.cli.tables import at_most, print_json, print_lines
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from discreet.mechanisms import Release

__all__ = ["release"]


class ReleaseCommands(TyperGroup):
    """The mechanisms; an error about an argument names the option that carried it."""

    def invoke(self, ctx: Any) -> Any:
        """Run a subcommand."""
        try:
            return super().invoke(ctx)
        except InvalidValue as error:
            option = "--" + error.argument.replace("_", "-")
            known = {
                spelling
                for command in self.commands.values()
                for parameter in command.params
                for spelling in parameter.opts
            }
            value = "none" if error.value is None else error.value
            name = option if option in known else error.argument
            raise InvalidValue(name, value, error.expected) from None


release = typer.Typer(
    name="release",
    cls=ReleaseCommands,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Value = Annotated[
    str,
    typer.Option(metavar="NUMBER", help="The true answer: an integer, or any number with --real."),
]
Epsilon = Annotated[str | None, typer.Option(metavar="NUMBER", help="The epsilon to spend.")]
Scale = Annotated[
    str | None,
    typer.Option(metavar="NUMBER", help="Laplace noise by its scale, instead of --epsilon."),
]
Real = Annotated[
    bool, typer.Option("--real", help="The answer is a real number, released on a grid.")
]
Granularity = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="With --real: the step of the grid, a power of two such as 1/1024.  "
        "[default: just below 2^-40 of the noise]",
    ),
]
Confidence = Annotated[str, typer.Option(metavar="NUMBER", help="Of the error bars.")]
File = Annotated[
    str, typer.Option("--file", metavar="FILE", help="A CSV file with a heading line; - is stdin.")
]
Column = Annotated[str, typer.Option(metavar="NAME", help="The column to read.")]


@release.callback(invoke_without_command=True)
def overview(context: typer.Context) -> None:
    r"""Release one private answer: its value, its loss and its error bars.

    The noise is exact and comes from the operating system. The epsilon printed is an upper
    bound for everything that the value tells.

    \b
    Examples:
      discreet release laplace --value 120 --sensitivity 1 --epsilon 0.1
      discreet release gaussian --value 3.7 --real --sensitivity 0.5 --epsilon 1 --delta 1e-6
      discreet release histogram --file people.csv --column city --categories Oslo,Rome --epsilon 1
      discreet release exponential --scores scores.json --sensitivity 1 --epsilon 0.5
      discreet release randomized-response --answer yes --two-coin
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@release.command(short_help="A number plus Laplace noise.")
def laplace(
    *,
    value: Value,
    sensitivity: Annotated[
        str, typer.Option(metavar="NUMBER", help="The most that one neighbour changes the answer.")
    ],
    epsilon: Epsilon = None,
    scale: Scale = None,
    is_real: Real = False,
    granularity: Granularity = None,
    relation: RelationName = None,
    confidence: Confidence = "0.95",
    insecure_seed: InsecureSeed = None,
    as_json: Json = False,
) -> None:
    r"""A number plus Laplace noise; pure DP.

    \b
    Examples:
      discreet release laplace --value 120 --sensitivity 1 --epsilon 0.1
      discreet release laplace --value 0.25 --real --sensitivity 0.01 --scale 0.1 --json
    """
    from discreet.mechanisms import laplace_integer, laplace_real

    noise: dict[str, Any] = {
        "epsilon": _optional("epsilon", epsilon),
        "scale": _optional("scale", scale),
        "relation": relation or "add_remove",
        "insecure_seed": _seed(insecure_seed),
    }
    level = real("confidence", confidence, above=0, below=1)
    if is_real:
        released: Release[Any] = laplace_real(
            real("value", value),
            sensitivity=real("sensitivity", sensitivity, above=0),
            granularity=granularity,
            **noise,
        )
    else:
        _only_with_real(granularity)
        released = laplace_integer(
            _integer_value(value),
            sensitivity=count("sensitivity", sensitivity, at_least=1),
            **noise,
        )
    _show(released, confidence=level, as_json=as_json)


@release.command(short_help="A number plus Gaussian noise.")
def gaussian(
    *,
    value: Value,
    sensitivity: Annotated[
        str, typer.Option(metavar="NUMBER", help="The most that one neighbour changes the answer.")
    ],
    epsilon: Epsilon = None,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="0 < delta < 1: with --epsilon, or to read --stddev at."
        ),
    ] = None,
    stddev: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Noise by its deviation, not --epsilon.")
    ] = None,
    calibration: Annotated[
        str, typer.Option(metavar="analytic|classical", help="How --epsilon becomes noise.")
    ] = "analytic",
    is_real: Real = False,
    granularity: Granularity = None,
    relation: RelationName = None,
    confidence: Confidence = "0.95",
    insecure_seed: InsecureSeed = None,
    as_json: Json = False,
) -> None:
    r"""A number plus discrete Gaussian noise.

    The classical calibration is proved for epsilon < 1 only and refused elsewhere.

    \b
    Examples:
      discreet release gaussian --value 120 --sensitivity 1 --epsilon 1 --delta 1e-6
      discreet release gaussian --value 3.7 --real --sensitivity 0.5 --stddev 2 --delta 1e-6
    """
    from discreet.mechanisms import gaussian_integer, gaussian_real

    at = None if delta is None else real("delta", delta, above=0, below=1)
    noise: dict[str, Any] = {
        "epsilon": _optional("epsilon", epsilon),
        "delta": None if epsilon is None else at,
        "stddev": _optional("stddev", stddev),
        "calibration": calibration,
        "relation": relation or "add_remove",
        "insecure_seed": _seed(insecure_seed),
    }
    level = real("confidence", confidence, above=0, below=1)
    if is_real:
        released: Release[Any] = gaussian_real(
            real("value", value),
            sensitivity=real("sensitivity", sensitivity, above=0),
            granularity=granularity,
            **noise,
        )
    else:
        _only_with_real(granularity)
        released = gaussian_integer(
            _integer_value(value),
            sensitivity=count("sensitivity", sensitivity, at_least=1),
            **noise,
        )
    _show(released, confidence=level, as_json=as_json, delta=at)


@release.command("count", short_help="How many rows have a value.")
def count_rows(
    *,
    file: File,
    column: Column,
    equals: Annotated[str, typer.Option(metavar="TEXT", help="What the column must hold.")],
    epsilon: Epsilon = None,
    scale: Scale = None,
    relation: RelationName = None,
    confidence: Confidence = "0.95",
    insecure_seed: InsecureSeed = None,
    as_json: Json = False,
) -> None:
    r"""How many rows of a CSV file hold a value, plus Laplace noise.

    \b
    Example:
      discreet release count --file people.csv --column city --equals Oslo --epsilon 0.5
    """
    from discreet.mechanisms import laplace_count

    noise: dict[str, Any] = {
        "epsilon": _optional("epsilon", epsilon),
        "scale": _optional("scale", scale),
        "relation": relation or "add_remove",
        "insecure_seed": _seed(insecure_seed),
    }
    level = real("confidence", confidence, above=0, below=1)
    rows = read_column(file, column)
    _show(laplace_count(rows.count(equals), **noise), confidence=level, as_json=as_json)


@release.command(short_help="The rows in each public category.")
def histogram(
    *,
    file: File,
    column: Column,
    categories: Annotated[
        str, typer.Option(metavar="A,B,...", help="Public categories; other rows are not counted.")
    ],
    epsilon: Epsilon = None,
    scale: Scale = None,
    relation: RelationName = None,
    confidence: Confidence = "0.95",
    insecure_seed: InsecureSeed = None,
    as_json: Json = False,
) -> None:
    r"""The number of rows of a CSV file in each public category, plus Laplace noise.

    The categories must not be read off the data. The error bars hold for all together.

    \b
    Example:
      discreet release histogram --file people.csv --column city --categories Oslo,Rome --epsilon 1
    """
    from discreet.mechanisms import laplace_histogram

    noise: dict[str, Any] = {
        "epsilon": _optional("epsilon", epsilon),
        "scale": _optional("scale", scale),
        "relation": relation or "add_remove",
        "insecure_seed": _seed(insecure_seed),
    }
    level = real("confidence", confidence, above=0, below=1)
    names = split_categories(categories)
    rows = read_column(file, column)
    _show(laplace_histogram(rows, categories=names, **noise), confidence=level, as_json=as_json)


@release.command(short_help="One candidate, chosen by its score.")
def exponential(
    *,
    scores: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="JSON, an object of candidates and scores or a list of scores; or CSV, a "
            "candidate and a score on each line. - is JSON on stdin.",
        ),
    ],
    sensitivity: Annotated[
        str, typer.Option(metavar="NUMBER", help="The most that one neighbour changes a score.")
    ],
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="The epsilon to spend.")],
    monotone: Annotated[
        bool,
        typer.Option("--monotone", help="One record moves all scores in one direction (counts)."),
    ] = False,
    mechanism: Annotated[
        str,
        typer.Option(
            "--by", metavar="exponential|permute-and-flip|noisy-max", help="How it is chosen."
        ),
    ] = "exponential",
    relation: RelationName = None,
    confidence: Confidence = "0.95",
    insecure_seed: InsecureSeed = None,
    as_json: Json = False,
) -> None:
    r"""One of the candidates, the better its score the more likely.

    The candidates are public, the scores are not.

    \b
    Examples:
      discreet release exponential --scores scores.json --sensitivity 1 --epsilon 0.5
      discreet release exponential --scores votes.csv --sensitivity 1 --epsilon 1 --monotone \
        --by permute-and-flip
    """
    from discreet._validate import one_of
    from discreet.mechanisms import exponential_choice, permute_and_flip, report_noisy_max

    choose: dict[str, Any] = {
        "exponential": exponential_choice,
        "permute-and-flip": permute_and_flip,
        "noisy-max": report_noisy_max,
    }
    chosen_by = choose[one_of("by", mechanism, tuple(choose))]
    parameters: dict[str, Any] = {
        "sensitivity": real("sensitivity", sensitivity, above=0),
        "epsilon": real("epsilon", epsilon, above=0),
        "monotone": monotone,
        "relation": relation or "add_remove",
        "insecure_seed": _seed(insecure_seed),
    }
    level = real("confidence", confidence, above=0, below=1)
    candidates, numbers = read_scores(scores)
    released = chosen_by(numbers, candidates=candidates, **parameters)
    _show(released, confidence=level, as_json=as_json)


@release.command("randomized-response", short_help="Answers of people, each randomized.")
def randomized_response(
    *,
    answer: Annotated[
        str | None, typer.Option(metavar="TEXT", help="One true answer: yes, no or a category.")
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="True answers of many people, one a line; - is stdin."),
    ] = None,
    categories: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Public categories.  [default: yes,no]"),
    ] = None,
    epsilon: Epsilon = None,
    two_coin: Annotated[
        bool, typer.Option("--two-coin", help="The lecture's two coins: epsilon = ln 3.")
    ] = False,
    confidence: Confidence = "0.95",
    insecure_seed: InsecureSeed = None,
    as_json: Json = False,
) -> None:
    r"""Answers of people, each randomized on its own; what is learnt about the shares.

    \b
    Examples:
      discreet release randomized-response --answer yes --two-coin
      discreet release randomized-response --answers said.txt --categories a,b,c --epsilon 1
    """
    from discreet.mechanisms import k_ary_response, two_coin_response

    level = real("confidence", confidence, above=0, below=1)
    names = split_categories("yes,no" if categories is None else categories)
    if (answer is None) == (answers is None):
        raise InvalidValue("answer", answer, "exactly one of --answer and --answers")
    if two_coin and categories is not None:
        raise InvalidValue("categories", categories, "no categories with --two-coin")
    if two_coin == (epsilon is not None):
        raise InvalidValue("epsilon", epsilon, "exactly one of --epsilon and --two-coin")
    told = [answer] if answers is None else read_lines("answers", answers)
    if not told or any(text not in names for text in told):
        raise InvalidValue(
            "answer" if answers is None else "answers", "withheld", "only " + ", ".join(names)
        )
    seed = _seed(insecure_seed)
    given: Any = told[0] if answers is None else told
    if two_coin:
        yes = [text == "yes" for text in told]
        released: Release[Any] = two_coin_response(
            yes[0] if answers is None else yes, insecure_seed=seed
        )
    else:
        spent = real("epsilon", str(epsilon), above=0)
        released = k_ary_response(given, categories=names, epsilon=spent, insecure_seed=seed)
    _show(released, confidence=level, as_json=as_json)


def _optional(argument: str, text: str | None) -> float | None:
    return None if text is None else real(argument, text, above=0)


def _seed(text: str | None) -> int | None:
    return None if text is None else count("insecure_seed", text)


def _integer_value(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidValue("value", text, "an integer, or --real for real numbers") from None


def _only_with_real(granularity: str | None) -> None:
    if granularity is not None:
        raise InvalidValue("granularity", granularity, "only with --real")


def _show(
    released: Release[Any], *, confidence: float, as_json: bool, delta: float | None = None
) -> None:
    from discreet.privacy import to_json

    at = 0.0 if delta is None else delta
    epsilon = released.loss.epsilon(delta=at)
    ends = _ends(released, confidence)
    shortfall = _shortfall(released, confidence)
    if as_json:
        print_json(
            {
                "value": _plain(released.value),
                "loss": to_json(released.loss),
                "description": repr(released.loss),
                "relation": released.loss.relation.value,
                "delta": at,
                "epsilon": epsilon if math.isfinite(epsilon) else None,
                "confidence": confidence,
                "interval": None if ends is None else [_plain(end) for end in ends],
                "shortfall": shortfall,
                "provenance": dict(released.provenance),
            }
        )
        return
    cost = (
        f"epsilon {at_most(epsilon)} at delta {at!r}"
        if math.isfinite(epsilon)
        else "no finite epsilon at delta 0: read it with --delta"
    )
    lines = _value_lines(released.value, ends)
    if ends is not None:
        lines.append(f"error bars hold with confidence {confidence!r}")
    if shortfall is not None:
        lines.append(
            f"its score is within {at_most(shortfall)} of the best with confidence {confidence!r}"
        )
    lines += [
        f"loss {released.loss!r}, relation {released.loss.relation.value}",
        cost,
        f"randomness: {released.provenance['randomness']}",
    ]
    print_lines(lines)


def _ends(released: Release[Any], confidence: float) -> Sequence[Any] | None:
    try:
        return released.interval(confidence=confidence)
    except NotApplicable:
        return None


def _shortfall(released: Release[Any], confidence: float) -> float | None:
    from discreet.mechanisms import Selection

    return released.shortfall(confidence=confidence) if isinstance(released, Selection) else None


def _value_lines(value: Any, ends: Sequence[Any] | None) -> list[str]:
    plain = _plain(value)
    if isinstance(plain, dict) and ends is not None:
        return [
            f"{name}: {number} ({_plain(low)} to {_plain(high)})"
            for (name, number), low, high in zip(plain.items(), *ends, strict=True)
        ]
    if isinstance(plain, list):
        words = ["yes" if x is True else "no" if x is False else str(x) for x in plain]
        shares = [] if ends is None else [f"share of each: {_plain(ends[0])} to {_plain(ends[1])}"]
        return [*words, *shares]
    word = "yes" if plain is True else "no" if plain is False else str(plain)
    return [word if ends is None else f"{word} ({_plain(ends[0])} to {_plain(ends[1])})"]


def _plain(value: Any) -> Any:
    """A released value as JSON knows it."""
    return value.tolist() if hasattr(value, "tolist") else value
