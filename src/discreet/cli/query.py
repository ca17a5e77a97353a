"""``discreet query``: ask a service one question, or what it would cost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json
from discreet.cli.tables import at_least, at_most, print_json, print_lines, print_table
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.curator import Client

__all__ = ["query"]

TOKEN_VARIABLE = "DISCREET_TOKEN"


def query(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the service is.")],
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="Without it: what there is.")
    ] = None,
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERY]", help="JSON, a file that holds it, or - for standard input."
        ),
    ] = None,
    *,
    cost: Annotated[
        bool, typer.Option("--cost", help="Only say what it would cost; nothing is charged.")
    ] = False,
    token_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help=f"Holds the token.  [default: ${TOKEN_VARIABLE}]"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Idempotency: the same key is charged once."),
    ] = None,
    receipt: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the receipt to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Ask a service a question; the answer comes with error bars and a receipt.

    Attempts that got no answer are repeated under one idempotency key, so a question is
    charged once. The same question again costs nothing and has the same answer.

    \b
    Examples:
      discreet query http://127.0.0.1:8080
      discreet query http://127.0.0.1:8080 census '{"kind": "count", "epsilon": "1/10"}' --cost
      discreet query http://127.0.0.1:8080 census count.json --receipt receipt.json
    """
    from discreet.curator import Client

    if receipt is not None and (cost or question is None):
        raise InvalidValue("receipt", receipt, "a file only where a question is asked")
    asked = None if question is None else _read_question(question)
    with Client(url, token=_token(token_file)) as client:
        if dataset is None:
            _print_overview(client, as_json=as_json)
        elif asked is None:
            _print_facts(client.facts(dataset), as_json=as_json)
        elif cost:
            _print_quote(client.quote(dataset, asked), as_json=as_json)
        else:
            answer = client.ask(dataset, asked, key=key)
            _keep_receipt(receipt, answer)
            _print_answer(answer, as_json=as_json)


def _token(token_file: str | None) -> str:
    if token_file is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            expected = f"a file, or the token in the variable {TOKEN_VARIABLE}"
            raise InvalidValue("token_file", None, expected)
        return token
    try:
        return Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise InvalidValue("token_file", token_file, f"a readable file ({reason})") from None


def _read_question(text: str) -> dict[str, Any]:
    from discreet._json import read_json
    from discreet.errors import SchemaError

    try:
        if text == "-":
            written = sys.stdin.read()
        elif text.lstrip().startswith("{"):
            written = text
        else:
            written = Path(text).read_text(encoding="utf-8")
        content = read_json(written, "question")
    except OSError as error:
        expected = f"JSON, or a readable file ({error.strerror})"
        raise InvalidValue("question", text[:80], expected) from None
    except (SchemaError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidValue("question", text[:80], f"a query in JSON ({reason})") from None
    if not isinstance(content, dict):
        raise InvalidValue("question", text[:80], "a JSON object with a kind and an epsilon")
    return content


def _keep_receipt(receipt: str | None, answer: dict[str, Any]) -> None:
    if receipt is None:
        return
    import json

    try:
        Path(receipt).write_text(json.dumps(answer["receipt"], indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"discreet: the receipt cannot be written ({error.strerror})", file=sys.stderr)


def _print_overview(client: Client, *, as_json: bool) -> None:
    found = client.datasets()
    if as_json:
        print_json({"datasets": found})
    elif not found:
        print_lines(["no datasets for this token"])
    else:
        for facts in found:
            _print_facts(facts, as_json=False)


def _print_facts(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    print_lines([f"{facts['name']}: unit {facts['unit']}, relation {facts['relation']}", ""])
    rows = [
        (
            budget["label"],
            budget["epsilon"],
            budget["delta"],
            str(budget["charges"]),
            f"{100 * budget['used']:.1f} %",
        )
        for budget in facts["budgets"]
    ]
    headings = ("budget", "epsilon", "delta", "charges", "used")
    print_table(headings, rows, numeric=(False, True, True, True, True))


def _print_quote(quote: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(quote)
        return
    print_lines([f"costs epsilon {quote['epsilon']}, delta {quote['delta']}; {quote['about']}"])
    print_lines(
        f"{error['label']}: within {at_most(error['half_width'], digits=6)} "
        f"at {100 * error['confidence']:g} %"
        for error in quote["expected_error"]
    )


def _print_answer(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    value = answer["value"]
    for one in value if isinstance(value, list) else [value]:
        print_lines([_told(one)])
    rows = [
        (bar["label"], _end(bar["low"], at_least), _end(bar["high"], at_most))
        for bar in answer["errors"]
    ]
    confidence = max((bar["confidence"] for bar in answer["errors"]), default=0)
    print_lines(["", answer["about"]])
    print_lines([f"error bars, which hold together at {100 * confidence:g} %:", ""])
    print_table(("of", "from", "to"), rows, numeric=(False, True, True))
    entry = answer["receipt"]["entry"]["seq"]
    free = "asked before, at no cost" if answer["answered_before"] else "charged"
    print_lines(["", f"{free}: entry {entry} of the ledger"])


def _told(value: object) -> str:
    """One cell of an answer in words."""
    if isinstance(value, dict):
        fields = {**value}
        number = fields.pop("value", None)
        group = fields.pop("group", None)
        named = [", ".join(map(str, group))] if isinstance(group, list) else []
        named += [f"{name} {field}" for name, field in fields.items() if field is not None]
        return f"{' '.join(named)}: {_told(number)}"
    if value is None:
        return "no answer"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _end(value: float | None, rounded: Callable[..., str]) -> str:
    return "unknown" if value is None else rounded(value, digits=7)
