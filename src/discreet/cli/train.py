"""``discreet train``: a private model from a file, with its certificate."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.options import (
    ChargedDataset,
    ChargedLedger,
    InsecureSeed,
    Json,
    RelationName,
    count,
    real,
)
from discreet.cli.tables import at_most, print_json, print_lines, tracked
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.learn import PlannedTraining, TrainedTable

__all__ = ["train"]


def train(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A CSV or Parquet file.")],
    *,
    schema: Annotated[
        str, typer.Option(metavar="FILE", help="The schema: what is public about the table.")
    ],
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="The epsilon to spend.")],
    out: Annotated[str, typer.Option(metavar="DIRECTORY", help="Where to write the model.")],
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column to predict.  [default: the schema's]"),
    ] = None,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="The delta to spend.  [default: a power of ten, at most 1/(10 rows)]",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER",
            help="The public order of magnitude of rows.  [default: expected_rows of the schema]",
        ),
    ] = None,
    learner: Annotated[
        str,
        typer.Option(
            metavar="auto|logistic|linear|naive-bayes|mlp|compare",
            help="auto chooses by public facts and is free; compare tries several in private "
            "and pays for choosing the best.",
        ),
    ] = "auto",
    learn_schema: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="The share of epsilon for bounds and categories that the schema leaves open.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check and plan everything, say what could be wrong, and charge nothing.",
        ),
    ] = False,
    repaired: Annotated[
        str | None,
        typer.Option(
            metavar="EPSILON",
            help="With --dry-run: spend this to tell the noisy share of repaired cells by column.",
        ),
    ] = None,
    relation: RelationName = None,
    ledger: ChargedLedger = None,
    dataset: ChargedDataset = None,
    insecure_seed: InsecureSeed = None,
    as_json: Json = False,
) -> None:
    r"""Train a private model from a table; write it with its certificate.

    The schema declares what is public; nothing else is read off the data. Options, schema and the
    columns of the file are checked before the ledger is charged, once and for all of it; no
    record can cause an error. How many rows there were and how well the model fits them is
    private and not shown, and how long it took is not meant for others either.

    \b
    Examples:
      discreet train patients.csv --schema schema.toml --target outcome --epsilon 2 --out model
      discreet train patients.csv --schema schema.toml --epsilon 1 --out model \
        --ledger study.ledger --dataset patients
      discreet train patients.csv --schema schema.toml --epsilon 1 --out model --dry-run
    """
    budget = real("epsilon", epsilon, above=0)
    slack = None if delta is None else real("delta", delta, above=0, below=1)
    share = None if learn_schema is None else real("learn_schema", learn_schema, above=0, below=1)
    expected = None if rows is None else count("rows", rows, at_least=1)
    seed = None if insecure_seed is None else count("insecure_seed", insecure_seed)
    from discreet.learn import plan_training
    from discreet.report import write_summary

    plan = plan_training(
        file,
        schema,
        epsilon=budget,
        delta=slack,
        target=target,
        rows=expected,
        learner=learner,
        learn_schema=share,
        relation="add_remove" if relation is None else relation,
        insecure_seed=seed,
    )
    if (ledger is None) != (dataset is None):
        raise InvalidValue("dataset", dataset, "a name if and only if with --ledger")
    if repaired is not None and not dry_run:
        raise InvalidValue("repaired", repaired, "an epsilon with --dry-run only")
    from discreet.ledger import Ledger

    with ExitStack() as opened:
        if dry_run:
            _rehearse(plan, repaired, ledger, dataset, as_json=as_json)
            return
        book = None if ledger is None else opened.enter_context(Ledger.open(ledger))
        done = plan.run(
            ledger=book,
            dataset=dataset,
            out=out,
            track=lambda steps: tracked(list(steps), "training"),
        )
    # The model is in its place: what fails from here on takes nothing of it away.
    unwritten = write_summary(Path(out), done)
    _report(out, done, unwritten, as_json=as_json)


def _rehearse(
    plan: PlannedTraining,
    repaired: str | None,
    ledger: str | None,
    dataset: str | None,
    *,
    as_json: bool,
) -> None:
    """Say what a run costs and what could be wrong, from public facts; pay only if asked to."""
    from discreet.data import plan_repairs
    from discreet.learn import charged
    from discreet.ledger import Ledger

    doubts = list(plan.possible_mistakes())
    shares: dict[str, float] | None = None
    spent = 0.0 if repaired is None else real("repaired", repaired, above=0)
    if repaired is not None:
        repairs = plan_repairs(plan.schema, epsilon=repaired, relation=plan.relation)
        with ExitStack() as opened:
            book = None if ledger is None else opened.enter_context(Ledger.open(ledger))
            purpose = "discreet train: the share of repaired cells"
            with charged(
                book, dataset, loss=repairs.loss, delta=0.0, purpose=purpose, unit=plan.schema.unit
            ):
                shares = repairs.run(plan.file, insecure_seed=plan.seed).value
    cost = plan.loss.epsilon(delta=plan.delta)
    if as_json:
        print_json(
            {
                "epsilon": cost,
                "delta": plan.delta,
                "possible_mistakes": doubts,
                "repaired_shares": shares,
                "epsilon_spent": spent,
            }
        )
        return
    lines = [
        f"a run would cost epsilon {at_most(cost)}, delta {at_most(plan.delta)}",
        "no record was read for what follows; any of it could be there without an error:",
        *(f"- {doubt}" for doubt in doubts),
    ]
    if shares is None:
        lines.append("nothing was charged; --repaired EPSILON tells the noisy share of such cells")
    else:
        lines.append(f"repaired cells, with noise; epsilon {at_most(spent)} is spent for it:")
        lines += [f"- {name}: {share:.1%}" for name, share in shares.items()]
    from discreet.cli.train_summary import printable

    print_lines(map(printable, lines))


def _report(out: str, done: TrainedTable, unwritten: list[str], *, as_json: bool) -> None:
    from discreet.cli.train_summary import printable
    from discreet.report import summary_lines

    certificate = done.certificate
    if as_json:
        print_json(
            {
                "out": out,
                "learner": done.learner,
                "reason": done.reason,
                "task": done.model.schema.task,
                "epsilon": certificate.epsilon,
                "delta": certificate.delta,
                "relation": certificate.relation,
                "unit": done.model.schema.unit,
                "schema_hash": done.model.schema.content_hash,
                "randomness": dict(certificate.randomness),
                "charged": certificate.receipt is not None,
                "files": sorted(path.name for path in Path(out).iterdir()),
            }
        )
        return
    lines = [
        *summary_lines(done),
        f"written: {out} (model, schema, certificate, summary)",
        *unwritten,
        f"epsilon {at_most(certificate.epsilon)} is spent, whatever becomes of the model",
    ]
    print_lines(map(printable, lines))
