"""``discreet demo``: claim, attack, audit and certificate on one page, in about a minute."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_least, at_most
from discreet.cli._app import Command, is_quiet, print_json, print_lines, print_table
from discreet.cli._options import Real
from discreet.errors import NotApplicable

if TYPE_CHECKING:
    from discreet.demo import Demonstration

_NEEDED = {"torch": "torch", "safetensors": "torch", "sklearn": "tables"}


@click.command(cls=Command)
@click.option(
    "--data",
    metavar="digits|mnist|fashion_mnist|adult|FILE",
    default="digits",
    help="Public data, or a CSV or Parquet file of your own with --schema.",
)
@click.option(
    "--schema", metavar="FILE", help="The schema of your own file: what is public about it."
)
@click.option(
    "--method",
    metavar="dpsgd|projected_sgd|naive_bayes|pate|synthesize|federated",
    default="dpsgd",
    help="How to learn privately.",
)
@click.option("--epsilon", type=Real(above=0), default="3", help="The epsilon to spend.")
# The ledger of the demonstration has room for as much delta again.
@click.option("--delta", type=Real(above=0, below=0.5), default="1e-5", help="The delta to spend.")
@click.option(
    "--out",
    metavar="DIRECTORY",
    default="discreet-demo",
    help="Where to write; it must not exist.",
)
def demo(out: str, as_json: bool, **asked: Any) -> None:
    """Train with and without privacy, attack both models, audit the private one, certify it.

    Half of the records are learned from, the other half stays outside, so that attacks can be
    judged. The private model is charged to a ledger before a record is read. What may be published
    goes to public/, what was computed from private records to internal/.

    Examples:
      discreet demo
      discreet demo --method naive_bayes --epsilon 1 --out nb-demo
      discreet demo --data patients.csv --schema schema.toml --out patients-demo
    """
    missing = sorted({extra for name, extra in _NEEDED.items() if find_spec(name) is None})
    if missing:
        raise NotApplicable(f"the demonstration needs: pip install 'discreet[{','.join(missing)}]'")
    from discreet.demo import demonstrate

    outcome = demonstrate(**asked, out=out, say=None if as_json or is_quiet() else _say)
    if as_json:
        print_json({"out": out, **outcome.to_json()})
    else:
        _print(outcome)


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _print(outcome: Demonstration) -> None:
    certificate = outcome.certificate
    promise = certificate["guarantee"]
    claims = {True: at_most(promise["epsilon"]), False: "no bound"}
    rows = []
    for at, row in enumerate(outcome.internal_figures()):
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
        numbers=range(1, 6),
    )
    lines = ["(internal figures: computed from private records; chance is AUC 0.5 and 1 % found)"]
    lines += [
        f"audit: epsilon at least {at_least(audit['epsilon_lower'], digits=4)} "
        f"(could have shown {at_least(audit['ceiling'], digits=4)}), claimed at most "
        f"{at_most(audit['claimed_epsilon'], digits=4)}: {audit['verdict']}"
        for audit in certificate["audits"]
    ]
    lines += [f"paid for: {one['question']}: {one['value']:.3f}" for one in certificate["answers"]]
    files = outcome.files
    lines += [
        "",
        f"may be published   {files['page']}",
        f"must not be        {files['annex_page']}",
        f"ledger             {files['ledger']}",
        "",
        f"check it: discreet certificate verify {files['json']} --ledger {files['ledger']}",
    ]
    print_lines(lines)
