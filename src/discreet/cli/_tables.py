"""``discreet describe``, ``shapes`` and ``evaluate``: what tables and models of them say."""

from __future__ import annotations

from typing import Any

import click

from discreet._rounding import at_most
from discreet.cli._app import Command, print_json, print_lines, printable
from discreet.cli._options import (
    ChargedLedger,
    Real,
    dataset_option,
    insecure_seed_option,
    ledger_option,
    output_file,
)


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


@click.command(cls=Command)
@click.argument("model", metavar="MODEL", help="A directory that discreet train wrote.")
@click.argument("file", metavar="FILE", help="A private CSV or Parquet file with the target.")
@click.option("--epsilon", type=Real(above=0), required=True, help="The epsilon to spend.")
@click.option("--by", metavar="COLUMN", help="A column of categories: who is served how well.")
@ledger_option
@dataset_option
@insecure_seed_option
def evaluate(
    model: str,
    file: str,
    epsilon: float,
    by: str | None,
    ledger: str | None,
    dataset: str | None,
    insecure_seed: int | None,
    as_json: bool,
) -> None:
    """Pay for one noisy histogram of how a model does on a private file.

    Every row is in one cell: its score, its label, its slice. Accuracy, AUC, average precision,
    the confusion and their intervals follow from the noisy counts at no further cost.

    Examples:
      discreet evaluate model patients_kept_apart.csv --epsilon 0.5
      discreet evaluate model patients_kept_apart.csv --epsilon 0.5 --by ward --json
    """
    from discreet.learn import evaluate as release
    from discreet.learn import load_model

    fitted: Any = load_model(model)
    charged = ChargedLedger(ledger, dataset)
    charged.check()
    with charged.open() as book:
        found = release(
            fitted,
            file,
            epsilon=epsilon,
            by=by,
            ledger=book,
            dataset=dataset,
            insecure_seed=insecure_seed,
        )
    spent = found.loss.epsilon(delta=0.0)
    if as_json:
        print_json({**found.to_json(), "epsilon": spent, "charged": book is not None})
        return
    print_lines(map(printable, [*found.lines(), f"epsilon {at_most(spent)} is spent"]))


@click.command(cls=Command)
@click.argument("file", metavar="FILE", help="A private CSV or Parquet file.")
@click.option("--schema", metavar="FILE", required=True, help="What is public about the table.")
@click.option("--epsilon", type=Real(above=0), required=True, help="The epsilon to spend.")
@click.option("--delta", type=Real(above=0, below=1), help="The delta to spend.")
@click.option("--output", "-o", metavar="FILE", help="Where to draw: .png, .svg or .pdf.")
@ledger_option
@dataset_option
@insecure_seed_option
def describe(
    file: str,
    schema: str,
    output: str | None,
    ledger: str | None,
    dataset: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Release a private report of a table: histograms, shares, means and quantiles.

    All columns are counted in public cells, with Gaussian noise once; everything else follows at
    no further cost. Brackets are error bars of 95 % for what is in the table, or for the rows that
    are kept of each person.

    Examples:
      discreet describe patients.csv --schema schema.toml --epsilon 0.5
      discreet describe patients.csv --schema schema.toml --epsilon 0.5 --output patients.png
    """
    from discreet.data import Schema
    from discreet.learn import describe as release
    from discreet.report import draw_description

    facts = Schema.from_file(schema)
    charged = ChargedLedger(ledger, dataset)
    charged.check()
    with output_file(output, ".png", ".svg", ".pdf") as draft:
        with charged.open() as book:
            found = release(file, facts, ledger=book, dataset=dataset, **asked)
        if draft is not None:
            draw_description(found, draft)
    if as_json:
        print_json({**found.to_json(), "output": output, "charged": ledger is not None})
        return
    drawn = [] if output is None else [f"drawn: {output}"]
    spent = f"epsilon {at_most(found.epsilon)}, delta {at_most(found.delta)}"
    print_lines(map(printable, [*found.lines(), *drawn, f"{spent} for one {found.unit} is spent"]))
