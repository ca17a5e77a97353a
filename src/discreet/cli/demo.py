"""``discreet demo``: claim, attack, audit and certificate on one page, in about a minute."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, real
from discreet.cli.tables import at_least, at_most, print_json, print_lines, print_table
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from discreet.cli.demo_run import Outcome

__all__ = ["demo"]

_NEEDED = {"torch": "torch", "safetensors": "torch", "sklearn": "tables"}


def demo(
    *,
    data: Annotated[
        str,
        typer.Option(
            metavar="digits|mnist|fashion_mnist|adult|FILE",
            help="Public data, or a CSV or Parquet file of your own with --schema.",
        ),
    ] = "digits",
    schema: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The schema of your own file: what is public about it."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="dpsgd|projected_sgd|naive_bayes|pate", help="How to learn privately."
        ),
    ] = "dpsgd",
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="The epsilon to spend.")] = "3",
    delta: Annotated[str, typer.Option(metavar="NUMBER", help="The delta to spend.")] = "1e-5",
    out: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="Where to write; it must not exist.")
    ] = "discreet-demo",
    as_json: Json = False,
) -> None:
    r"""Train with and without privacy, attack both models, audit the private one, certify it.

    Half of the records are learned from, the other half stays outside, so that attacks can be
    judged. The private model is charged to a ledger before a record is read. What may be published
    goes to public/, what was computed from private records to internal/.

    \b
    Examples:
      discreet demo
      discreet demo --method naive_bayes --epsilon 1 --out nb-demo
      discreet demo --data patients.csv --schema schema.toml --out patients-demo
    """
    budget = real("epsilon", epsilon, above=0)
    # The ledger of the demonstration has room for as much again.
    slack = real("delta", delta, above=0, below=0.5)
    missing = sorted({extra for name, extra in _NEEDED.items() if find_spec(name) is None})
    if missing:
        raise NotApplicable(f"the demonstration needs: pip install 'discreet[{','.join(missing)}]'")
    from discreet._files import new_directory
    from discreet.cli.demo_data import load
    from discreet.cli.demo_methods import METHODS, method_of
    from discreet.cli.demo_run import Steps, demonstrate

    if method not in METHODS:
        raise InvalidValue("method", method, f"one of {', '.join(METHODS)}")
    steps = Steps(7, shown=not as_json)
    with new_directory(out) as draft:
        with steps.step(f"data: {data}"):
            found = load(data, schema=schema)
            planned = method_of(method, found, epsilon=budget, delta=slack)
        title = f"{planned.data.title}, {method}"
        outcome = demonstrate(planned, draft, steps=steps, title=title)
    place = Path(out)
    if as_json:
        print_json(_as_json(outcome, place))
    else:
        _print(outcome, place)


def _figures(outcome: Outcome) -> list[dict[str, Any]]:
    """One row for each model: internal figures."""
    from discreet.report import strongest_attack

    rows = []
    for attacked in outcome.internal.attacked:
        best = strongest_attack(attacked.results)
        point = next((one for one in best.operating_points() if one.asked_fpr == 0.01), None)
        right = {
            one.records: one.accuracy.share
            for one in outcome.internal.utility
            if one.model == attacked.model
        }
        rows.append(
            {
                "model": attacked.model,
                "accuracy": right,
                "attack": best.attack,
                "auc": best.auc,
                "tpr_at_fpr_1_percent": None if point is None else point.tpr.share,
            }
        )
    return rows


def _as_json(outcome: Outcome, place: Path) -> dict[str, Any]:
    certificate = outcome.certificate
    return {
        "out": str(place),
        "verdict": certificate["verdict"]["state"],
        "epsilon": certificate["guarantee"]["epsilon"],
        "delta": certificate["guarantee"]["delta"],
        "audits": [
            {key: audit[key] for key in ("method", "verdict", "epsilon_lower", "ceiling")}
            for audit in certificate["audits"]
        ],
        "answers": [
            {key: one[key] for key in ("question", "value", "low", "high", "epsilon")}
            for one in certificate["answers"]
        ],
        "internal": _figures(outcome),
        "files": _places(outcome, place),
    }


def _places(outcome: Outcome, place: Path) -> dict[str, str]:
    # The directory was written under another name and moved to its own.
    return {
        name: (
            place / (path.parent.name if path.suffix != ".ledger" else "") / path.name
        ).as_posix()
        for name, path in outcome.files.items()
    }


def _print(outcome: Outcome, place: Path) -> None:
    certificate = outcome.certificate
    promise = certificate["guarantee"]
    claims = {True: at_most(promise["epsilon"]), False: "no bound"}
    rows = []
    for at, row in enumerate(_figures(outcome)):
        found = row["tpr_at_fpr_1_percent"]
        rows.append(
            [
                row["model"],
                *(f"{100 * share:.1f} %" for share in row["accuracy"].values()),
                f"{row['auc']:.3f}",
                "-" if found is None else f"{100 * found:.1f} %",
                claims[at == 0],
            ]
        )
    print_lines([""])
    print_table(
        (
            "model",
            "right on training",
            "right outside",
            "attack AUC",
            "found at 1 % FPR",
            "epsilon at most",
        ),
        rows,
        numeric=(False, True, True, True, True, True),
    )
    lines = ["(internal figures: computed from private records; chance is AUC 0.5 and 1 % found)"]
    lines += [
        f"audit: epsilon at least {at_least(audit['epsilon_lower'], digits=4)} "
        f"(could have shown {at_least(audit['ceiling'], digits=4)}), claimed at most "
        f"{at_most(audit['claimed_epsilon'], digits=4)}: {audit['verdict']}"
        for audit in certificate["audits"]
    ]
    lines += [f"paid for: {one['question']}: {one['value']:.3f}" for one in certificate["answers"]]
    files = _places(outcome, place)
    lines += [
        "",
        f"may be published   {files['page']}",
        f"must not be        {files['annex_page']}",
        f"ledger             {files['ledger']}",
        "",
        f"check it: discreet certificate verify {files['json']} --ledger {files['ledger']}",
    ]
    print_lines(lines)
