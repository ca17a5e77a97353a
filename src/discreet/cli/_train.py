"""``discreet train``, ``pate`` and ``predict``: private models of files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_most
from discreet.cli._app import Command, print_json, print_lines, printable, show_progress
from discreet.cli._options import (
    ChargedLedger,
    Count,
    Real,
    output_file,
    training_options,
)
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.certificate import Certificate
    from discreet.data import Schema
    from discreet.learn import PlannedTraining, TrainedTable


@click.command(cls=Command)
@click.argument("file", metavar="FILE", help="A CSV or Parquet file.")
@training_options("Where to write the model.")
@click.option(
    "--rows",
    type=Count(at_least=1),
    help="The public order of magnitude of rows.  [default: expected_rows of the schema]",
)
@click.option(
    "--learner",
    metavar="auto|logistic|linear|naive-bayes|additive|tree|forest|mlp|compare",
    default="auto",
    help="auto chooses by public facts and is free; compare tries several in private and pays for "
    "choosing the best.",
)
@click.option(
    "--learn-schema",
    metavar="SHARE",
    type=Real(above=0, below=1),
    help="The share of epsilon for bounds and categories that the schema leaves open.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check and plan everything, say what could be wrong, and charge nothing.",
)
@click.option(
    "--repaired",
    metavar="EPSILON",
    type=Real(above=0),
    help="With --dry-run: spend this to tell the noisy share of repaired cells by column.",
)
def train(
    file: str,
    schema: str,
    out: str,
    relation: str | None,
    charged: ChargedLedger,
    dry_run: bool,
    repaired: float | None,
    as_json: bool,
    **asked: Any,
) -> None:
    r"""Train a private model from a table; write it with its certificate.

    The schema declares what is public; nothing else is read off the data. Options, schema and the
    columns of the file are checked before the ledger is charged, once and for all of it; no
    record can cause an error. How many rows there were and how well the model fits them is
    private and not shown, and how long it took is not meant for others either.

    Examples:
      discreet train patients.csv --schema schema.toml --target outcome --epsilon 2 --out model
      discreet train patients.csv --schema schema.toml --epsilon 1 --out model \
        --ledger study.ledger --dataset patients
      discreet train patients.csv --schema schema.toml --epsilon 1 --out model --dry-run
    """
    from discreet.learn import plan_training

    plan = plan_training(file, schema, relation=relation or "add_remove", **asked)
    charged.check()
    if repaired is not None and not dry_run:
        raise InvalidValue("repaired", f"{repaired:g}", "an epsilon with --dry-run only")
    with charged.open() as book:
        if dry_run:
            shares = None
            if repaired is not None:
                shares = plan.repaired_shares(repaired, ledger=book, dataset=charged.dataset)
            _print_rehearsal(plan, repaired, shares, as_json=as_json)
            return
        done = plan.run(
            ledger=book,
            dataset=charged.dataset,
            out=out,
            track=lambda steps: show_progress(list(steps), "training"),
        )
    from discreet.report import write_summary

    # The model is in its place: what fails from here on takes nothing of it away.
    unwritten = write_summary(Path(out), done)
    _print_trained(out, done, unwritten, as_json=as_json)


def _print_rehearsal(
    plan: PlannedTraining,
    repaired: float | None,
    shares: dict[str, float] | None,
    *,
    as_json: bool,
) -> None:
    doubts, cost = list(plan.possible_mistakes()), plan.loss.epsilon(delta=plan.delta)
    spent = 0.0 if repaired is None else repaired
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
    print_lines(map(printable, lines))


def _print_trained(out: str, done: TrainedTable, unwritten: list[str], *, as_json: bool) -> None:
    certificate, schema = done.certificate, done.model.schema
    if as_json:
        print_json(
            {
                "out": out,
                "learner": done.learner,
                "reason": done.reason,
                "task": schema.task,
                "epsilon": certificate.epsilon,
                "delta": certificate.delta,
                "relation": certificate.relation,
                "unit": schema.unit,
                "schema_hash": schema.content_hash,
                "randomness": dict(certificate.randomness),
                "charged": certificate.receipt is not None,
                "files": sorted(path.name for path in Path(out).iterdir()),
            }
        )
        return
    from discreet.report import summary_lines

    lines = [
        *summary_lines(done),
        f"written: {out} (model, schema, certificate, summary)",
        *unwritten,
        f"epsilon {at_most(certificate.epsilon)} is spent, whatever becomes of the model",
    ]
    print_lines(map(printable, lines))


@click.command(cls=Command)
@click.argument("file", metavar="FILE", help="The private CSV or Parquet file.")
@click.argument("public", metavar="PUBLIC", help="A public file of such rows; no target needed.")
@training_options("Where to write the student.")
@click.option(
    "--teachers",
    type=Count(at_least=2),
    default="100",
    help="How many teachers share the private rows.",
)
@click.option(
    "--teacher",
    metavar="logistic|ridge|forest|naive-bayes|mixed",
    default="logistic",
    help="What a teacher is.",
)
@click.option("--queries", type=Count(at_least=1), help="The most queries to ask.")
@click.option(
    "--agreement",
    metavar="SHARE",
    type=Real(above=0, below=1),
    default="0.85",
    help="A public guess at the share of teachers who agree; it chooses the aggregator.",
)
@click.option(
    "--method",
    metavar="self-training|spreading|labels-only",
    default="self-training",
    help="How the student learns.",
)
@click.option(
    "--jobs",
    type=Count(at_least=1),
    default="1",
    help="Teachers to train at the same time.",
)
@click.option(
    "--cache",
    metavar="DIRECTORY",
    help="Private files with which an interrupted run goes on. They hold votes.",
)
def pate(
    file: str,
    public: str,
    schema: str,
    out: str,
    relation: str | None,
    charged: ChargedLedger,
    as_json: bool,
    **asked: Any,
) -> None:
    r"""Train teachers on disjoint parts of a private table; release a student of their votes.

    Private rows reach one teacher each; with a person in the schema, all rows of a person reach
    the same one. The teachers vote on public rows, the votes get noise, and the student learns
    from the labels. Public rows are not compared with private ones: an error would tell who is in
    the private file.

    Examples:
      discreet pate patients.csv volunteers.csv --schema schema.toml --epsilon 1 --out student
      discreet pate patients.csv volunteers.csv --schema schema.toml --epsilon 1 --out student \
        --teachers 250 --teacher mixed --ledger study.ledger --dataset patients
    """
    from discreet.pate import train_student
    from discreet.report import draw_flow

    charged.check()
    with charged.open() as book:
        done = train_student(
            file,
            public,
            schema,
            relation=relation or "add_remove",
            out=out,
            ledger=book,
            dataset=charged.dataset,
            **asked,
        )
    # The student is in its place: what fails from here on takes nothing of it away.
    lines = done.lines()
    (Path(out) / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw_flow(done.certificate, Path(out) / "flow.png")
    _print_student(out, done.schema, done.certificate, lines, as_json=as_json)


def _print_student(
    out: str, schema: Schema, certificate: Certificate, lines: list[str], *, as_json: bool
) -> None:
    if not as_json:
        spent = f"epsilon {at_most(certificate.epsilon)} is spent, whatever becomes of the student"
        files = "student, schema, certificate, summary, picture of the flow"
        print_lines([*lines, f"written: {out} ({files})", spent])
        return
    plan = certificate.plan
    listed = ("unit", "teachers", "aggregator", "queries_asked", "labels_answered")
    print_json(
        {
            "out": out,
            "target": schema.target,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "relation": certificate.relation,
            **{name: plan[name] for name in listed},
            "schema_hash": schema.content_hash,
            "randomness": dict(certificate.randomness),
            "charged": certificate.receipt is not None,
            "files": sorted(path.name for path in Path(out).iterdir()),
        }
    )


@click.command(cls=Command)
@click.argument("model", metavar="MODEL", help="A directory that discreet train or pate wrote.")
@click.argument("file", metavar="FILE", help="A CSV or Parquet file.")
@click.option("--output", "-o", metavar="FILE", required=True, help="Where to write the CSV file.")
def predict(model: str, file: str, output: str, as_json: bool) -> None:
    """Predict for every row of a file, in its order.

    The file needs the columns of the model's schema, without the target. Cells that break the
    schema are repaired as in training. Predictions are about the people in this file and cost
    the people of the training data nothing; they are not private for those in the file.

    Examples:
      discreet predict model new_patients.csv --output predictions.csv
    """
    from discreet.data import check_columns
    from discreet.learn import learner_name, load_model, predict_file

    fitted: Any = load_model(model)
    check_columns(file, fitted.schema.for_prediction())
    _refuse_own_files(output, file, model)
    with output_file(output) as draft:
        assert draft is not None
        rows = predict_file(fitted, file, draft)
    certificate = fitted.certificate_
    if as_json:
        print_json(
            {
                "output": output,
                "rows": rows,
                "target": fitted.schema.target,
                "learner": learner_name(certificate.learner),
                "model_epsilon": certificate.epsilon,
                "model_delta": certificate.delta,
            }
        )
        return
    cost = f"epsilon {at_most(certificate.epsilon)}, delta {at_most(certificate.delta)}"
    line = f"{rows} predictions of {fitted.schema.target!r} in {output} (model: {cost})"
    print_lines([printable(line)])


def _refuse_own_files(output: str, file: str, model: str) -> None:
    """Refuse to write over the input or into the model."""
    target = Path(output)
    try:
        same = target.exists() and target.samefile(file)
        inside = target.resolve().is_relative_to(Path(model).resolve())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name is possible"
        expected = f"the name of a file that can be written ({reason})"
        raise InvalidValue("output", output, expected) from None
    if same:
        raise InvalidValue("output", output, "another file than the one that is read")
    if inside:
        raise InvalidValue("output", output, "a place outside of the directory of the model")
