"""``discreet release``: one private answer, with what it cost and how far off it may be."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_most
from discreet._validate import one_of
from discreet.cli._app import Group, finite, print_json, print_lines
from discreet.cli._options import (
    Real,
    combine_options,
    count,
    insecure_seed_option,
    read_text,
    real,
    relation_option,
)
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from discreet.mechanisms import Release


@click.group(cls=Group)
def release() -> None:
    """Release one private answer: its value, its loss and its error bars.

    The noise is exact and comes from the operating system. The epsilon printed is an upper
    bound for everything that the value tells.

    Examples:
      discreet release laplace --value 120 --sensitivity 1 --epsilon 0.1
      discreet release gaussian --value 3.7 --real --sensitivity 0.5 --epsilon 1 --delta 1e-6
      discreet release histogram --file people.csv --column city --categories Oslo,Rome --epsilon 1
      discreet release exponential --scores scores.json --sensitivity 1 --epsilon 0.5
      discreet release randomized-response --answer yes --two-coin
    """


epsilon_option = click.option("--epsilon", type=Real(above=0), help="The epsilon to spend.")
scale_option = click.option(
    "--scale", type=Real(above=0), help="Laplace noise by its scale, instead of --epsilon."
)
answer_options = combine_options(
    click.option(
        "--confidence", type=Real(above=0, below=1), default="0.95", help="Of the error bars."
    ),
    insecure_seed_option,
)
noise_options = combine_options(relation_option, answer_options)
value_options = combine_options(
    click.option(
        "--value",
        metavar="NUMBER",
        required=True,
        help="The true answer: an integer, or any number with --real.",
    ),
    click.option(
        "--sensitivity",
        metavar="NUMBER",
        required=True,
        help="The most that one neighbour changes the answer.",
    ),
    click.option(
        "--real", "is_real", is_flag=True, help="The answer is a real number, released on a grid."
    ),
    click.option(
        "--granularity",
        metavar="NUMBER",
        help="With --real: the step of the grid, a power of two such as 1/1024.  "
        "[default: just below 2^-40 of the noise]",
    ),
    epsilon_option,
    noise_options,
)
column_options = combine_options(
    click.option(
        "--file",
        metavar="FILE",
        required=True,
        help="A CSV file with a heading line; - is stdin.",
    ),
    click.option("--column", metavar="NAME", required=True, help="The column to read."),
    epsilon_option,
    scale_option,
    noise_options,
)


@release.command(short_help="A number plus Laplace noise.")
@value_options
@scale_option
def laplace(confidence: float, as_json: bool, **given: Any) -> None:
    """A number plus Laplace noise; pure DP.

    Examples:
      discreet release laplace --value 120 --sensitivity 1 --epsilon 0.1
      discreet release laplace --value 0.25 --real --sensitivity 0.01 --scale 0.1 --json
    """
    from discreet.mechanisms import laplace_integer, laplace_real

    mechanism = laplace_real if given["is_real"] else laplace_integer
    _show(mechanism(**_number(given)), confidence=confidence, as_json=as_json)


@release.command(short_help="A number plus Gaussian noise.")
@value_options
@click.option(
    "--delta",
    type=Real(above=0, below=1),
    help="0 < delta < 1: with --epsilon, or to read --stddev at.",
)
@click.option("--stddev", type=Real(above=0), help="Noise by its deviation, not --epsilon.")
@click.option(
    "--calibration",
    metavar="analytic|classical",
    default="analytic",
    help="How --epsilon becomes noise.",
)
def gaussian(confidence: float, delta: float | None, as_json: bool, **given: Any) -> None:
    """A number plus discrete Gaussian noise.

    The classical calibration is proved for epsilon < 1 only and refused elsewhere.

    Examples:
      discreet release gaussian --value 120 --sensitivity 1 --epsilon 1 --delta 1e-6
      discreet release gaussian --value 3.7 --real --sensitivity 0.5 --stddev 2 --delta 1e-6
    """
    from discreet.mechanisms import gaussian_integer, gaussian_real

    mechanism = gaussian_real if given["is_real"] else gaussian_integer
    spent = None if given["epsilon"] is None else delta
    released = mechanism(delta=spent, **_number(given))
    _show(released, confidence=confidence, as_json=as_json, delta=delta)


def _number(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a mechanism for one number, an integer unless --real is given."""
    text, sensitivity = given.pop("value"), given.pop("sensitivity")
    granularity = given.pop("granularity")
    given["relation"] = given["relation"] or "add_remove"
    if given.pop("is_real"):
        reach = real("sensitivity", sensitivity, above=0)
        number = {"value": real("value", text), "sensitivity": reach}
        return {**number, "granularity": granularity, **given}
    if granularity is not None:
        raise InvalidValue("granularity", granularity, "only with --real")
    try:
        whole = int(text)
    except ValueError:
        raise InvalidValue("value", text, "an integer, or --real for real numbers") from None
    return {"value": whole, "sensitivity": count("sensitivity", sensitivity, at_least=1), **given}


@release.command("count", short_help="How many rows have a value.")
@column_options
@click.option("--equals", metavar="TEXT", required=True, help="What the column must hold.")
def count_rows(
    file: str,
    column: str,
    equals: str,
    relation: str | None,
    confidence: float,
    as_json: bool,
    **noise: Any,
) -> None:
    """How many rows of a CSV file hold a value, plus Laplace noise.

    Example:
      discreet release count --file people.csv --column city --equals Oslo --epsilon 0.5
    """
    from discreet.mechanisms import laplace_count

    found = _read_column(file, column).count(equals)
    released = laplace_count(found, relation=relation or "add_remove", **noise)
    _show(released, confidence=confidence, as_json=as_json)


@release.command(short_help="The rows in each public category.")
@column_options
@click.option(
    "--categories",
    metavar="A,B,...",
    required=True,
    help="Public categories; other rows are not counted.",
)
def histogram(
    file: str,
    column: str,
    categories: str,
    relation: str | None,
    confidence: float,
    as_json: bool,
    **noise: Any,
) -> None:
    """The number of rows of a CSV file in each public category, plus Laplace noise.

    The categories must not be read off the data. The error bars hold for all together.

    Example:
      discreet release histogram --file people.csv --column city --categories Oslo,Rome --epsilon 1
    """
    from discreet.mechanisms import laplace_histogram

    released = laplace_histogram(
        _read_column(file, column),
        categories=_split(categories),
        relation=relation or "add_remove",
        **noise,
    )
    _show(released, confidence=confidence, as_json=as_json)


@release.command(short_help="One candidate, chosen by its score.")
@click.option(
    "--scores",
    metavar="FILE",
    required=True,
    help="JSON, an object of candidates and scores or a list of scores; or CSV, a candidate and a "
    "score on each line. - is JSON on stdin.",
)
@click.option(
    "--sensitivity",
    type=Real(above=0),
    required=True,
    help="The most that one neighbour changes a score.",
)
@click.option("--epsilon", type=Real(above=0), required=True, help="The epsilon to spend.")
@click.option(
    "--monotone", is_flag=True, help="One record moves all scores in one direction (counts)."
)
@click.option(
    "--by",
    metavar="exponential|permute-and-flip|noisy-max",
    default="exponential",
    help="How it is chosen.",
)
@noise_options
def exponential(
    scores: str, by: str, relation: str | None, confidence: float, as_json: bool, **given: Any
) -> None:
    r"""One of the candidates, the better its score the more likely.

    The candidates are public, the scores are not.

    Examples:
      discreet release exponential --scores scores.json --sensitivity 1 --epsilon 0.5
      discreet release exponential --scores votes.csv --sensitivity 1 --epsilon 1 --monotone \
        --by permute-and-flip
    """
    from discreet.mechanisms import exponential_choice, permute_and_flip, report_noisy_max

    choose: dict[str, Any] = {
        "exponential": exponential_choice,
        "permute-and-flip": permute_and_flip,
        "noisy-max": report_noisy_max,
    }
    mechanism = choose[one_of("by", by, tuple(choose))]
    candidates, numbers = _read_scores(scores)
    released = mechanism(numbers, candidates=candidates, relation=relation or "add_remove", **given)
    _show(released, confidence=confidence, as_json=as_json)


@release.command("randomized-response", short_help="Answers of people, each randomized.")
@click.option("--answer", metavar="TEXT", help="One true answer: yes, no or a category.")
@click.option(
    "--answers", metavar="FILE", help="True answers of many people, one a line; - is stdin."
)
@click.option("--categories", metavar="A,B,...", help="Public categories.  [default: yes,no]")
@epsilon_option
@click.option("--two-coin", is_flag=True, help="Two coins for each answer: epsilon = ln 3.")
@answer_options
def randomized_response(
    answer: str | None,
    answers: str | None,
    categories: str | None,
    epsilon: float | None,
    two_coin: bool,
    confidence: float,
    insecure_seed: int | None,
    as_json: bool,
) -> None:
    """Answers of people, each randomized on its own; what is learnt about the shares.

    Examples:
      discreet release randomized-response --answer yes --two-coin
      discreet release randomized-response --answers said.txt --categories a,b,c --epsilon 1
    """
    from discreet.mechanisms import k_ary_response, two_coin_response

    names = _split("yes,no" if categories is None else categories)
    if (answer is None) == (answers is None):
        raise InvalidValue("answer", answer, "exactly one of --answer and --answers")
    if two_coin and categories is not None:
        raise InvalidValue("categories", categories, "no categories with --two-coin")
    if two_coin == (epsilon is not None):
        raise InvalidValue("epsilon", epsilon, "exactly one of --epsilon and --two-coin")
    given: Any = answer if answers is None else _read_lines("answers", answers)
    people = [given] if answers is None else given
    if not people or any(text not in names for text in people):
        argument = "answer" if answers is None else "answers"
        raise InvalidValue(argument, "withheld", "only " + ", ".join(names))
    if two_coin:
        yes = [text == "yes" for text in people]
        released: Release[Any] = two_coin_response(
            yes[0] if answers is None else yes, insecure_seed=insecure_seed
        )
    else:
        assert epsilon is not None
        released = k_ary_response(
            given, categories=names, epsilon=epsilon, insecure_seed=insecure_seed
        )
    _show(released, confidence=confidence, as_json=as_json)


def _show(
    released: Release[Any], *, confidence: float, as_json: bool, delta: float | None = None
) -> None:
    from discreet.mechanisms import Selection
    from discreet.privacy import to_json

    at = 0.0 if delta is None else delta
    epsilon = released.loss.epsilon(delta=at)
    try:
        ends: Sequence[Any] | None = released.interval(confidence=confidence)
    except NotApplicable:
        ends = None
    chosen = isinstance(released, Selection)
    shortfall = released.shortfall(confidence=confidence) if chosen else None  # type: ignore[attr-defined]
    if as_json:
        print_json(
            {
                "value": _plain(released.value),
                "loss": to_json(released.loss),
                "description": repr(released.loss),
                "relation": released.loss.relation.value,
                "delta": at,
                "epsilon": finite(epsilon),
                "confidence": confidence,
                "interval": None if ends is None else [_plain(end) for end in ends],
                "shortfall": shortfall,
                "provenance": dict(released.provenance),
            }
        )
        return
    lines = _value_lines(released.value, ends)
    if ends is not None:
        lines.append(f"error bars hold with confidence {confidence!r}")
    if shortfall is not None:
        lines.append(
            f"its score is within {at_most(shortfall)} of the best with confidence {confidence!r}"
        )
    cost = f"epsilon {at_most(epsilon)} at delta {at!r}"
    print_lines(
        [
            *lines,
            f"loss {released.loss!r}, relation {released.loss.relation.value}",
            cost
            if math.isfinite(epsilon)
            else "no finite epsilon at delta 0: read it with --delta",
            f"randomness: {released.provenance['randomness']}",
        ]
    )


def _value_lines(value: Any, ends: Sequence[Any] | None) -> list[str]:
    plain = _plain(value)
    if isinstance(plain, dict) and ends is not None:
        return [
            f"{name}: {number} ({_plain(low)} to {_plain(high)})"
            for (name, number), low, high in zip(plain.items(), *ends, strict=True)
        ]
    bars = "" if ends is None else f"{_plain(ends[0])} to {_plain(ends[1])}"
    if isinstance(plain, list):
        return [*map(_word, plain), *([f"share of each: {bars}"] if bars else [])]
    return [f"{_word(plain)} ({bars})" if bars else _word(plain)]


def _word(value: Any) -> str:
    return "yes" if value is True else "no" if value is False else str(value)


def _plain(value: Any) -> Any:
    """A released value as JSON knows it."""
    return value.tolist() if hasattr(value, "tolist") else value


# Files of private data: an error says what was expected and shows nothing of what they hold.


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _read_lines(argument: str, name: str) -> list[str]:
    lines = (line.strip() for line in read_text(argument, name).splitlines())
    return [line for line in lines if line]


def _read_column(name: str, column: str) -> list[str]:
    """Return the cells of one column of a CSV file, without surrounding blanks."""
    try:
        rows = list(csv.reader(io.StringIO(read_text("file", name), newline=""), strict=True))
    except csv.Error:
        raise InvalidValue("file", name, "a CSV file") from None
    heading = [cell.strip() for cell in rows[0]] if rows else []
    if heading.count(column) != 1:
        raise InvalidValue("column", column, "one of the names in the first line of the file")
    place = heading.index(column)
    # A row that is too short has no value there: it counts for nothing, and is no error that
    # would tell of one person's record.
    return [row[place].strip() for row in rows[1:] if len(row) > place]


def _read_scores(name: str) -> tuple[list[str] | None, list[float]]:
    """Return candidates, if they are named, and their scores."""
    text = read_text("scores", name)
    table = name.lower().endswith(".csv")
    expected = "a JSON object of candidates and finite scores, or a list of finite scores"
    if table:
        expected = "a candidate and a finite score on each line"
    try:
        if table:
            rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
            candidates: list[str] | None = [candidate.strip() for candidate, _ in rows]
            numbers: Any = [float(score) for _, score in rows]
        else:
            content = json.loads(text, parse_constant=float)
            named = isinstance(content, dict)
            candidates = list(content) if named else None
            numbers = list(content.values()) if named else content
    except (csv.Error, ValueError, RecursionError):
        raise InvalidValue("scores", name, expected) from None
    if not isinstance(numbers, list) or not all(map(_is_score, numbers)):
        raise InvalidValue("scores", name, expected)
    return candidates, numbers


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
