"""``discreet synthesize``: synthetic rows of a file, with the model and its certificate."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet._files import new_directory
from discreet._rounding import at_most
from discreet.cli._app import Command, print_json, print_lines, printable, shows_progress
from discreet.cli._options import ChargedLedger, Count, Real, output_file, training_options
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.synth import SynthesisPlan, SyntheticModel

_ENDINGS = (".parquet", ".csv")


@click.command(cls=Command)
@click.argument("file", metavar="FILE", help="A CSV or Parquet file.")
@training_options("Where to write the synthetic rows (.parquet or .csv).", metavar="FILE")
@click.option(
    "--certificate",
    metavar="DIRECTORY",
    help="Where to write the model, its certificate and a page about both.",
)
@click.option("--rows", type=Count(at_least=0), help="How many rows.  [default: a noisy number]")
@click.option(
    "--test",
    metavar="FILE",
    help="Rows that were not used, to test a classifier of synthetic rows on.",
)
@click.option(
    "--test-epsilon",
    type=Real(above=0),
    help="Pay so much of the tested rows for the figure, which then is on the public page.",
)
@click.option(
    "--test-rows", type=Count(at_least=1), help="How many rows are tested, a public number."
)
@click.option(
    "--internal-page",
    metavar="FILE",
    help="Where to write a page with the figure that was not paid for (.html).",
)
@click.option(
    "--plan-only",
    is_flag=True,
    help="Say what the noise will do to each column; read, charge and write nothing.",
)
def synthesize(
    file: str,
    schema: str,
    out: str,
    epsilon: float,
    delta: float | None,
    target: str | None,
    relation: str | None,
    certificate: str | None,
    rows: int | None,
    test: str | None,
    test_epsilon: float | None,
    test_rows: int | None,
    internal_page: str | None,
    plan_only: bool,
    insecure_seed: int | None,
    charged: ChargedLedger,
    as_json: bool,
) -> None:
    r"""Write synthetic rows that are like those of a private file.

    The schema declares what is public; nothing else is read off the data. What is paid for is the
    model: rows can be drawn from it again and again, and tables read off it, for nothing. How many
    rows there were is private: by default a noisy number of them is written.

    Examples:
      discreet synthesize adult.csv --schema adult.toml --epsilon 1 --out rows.parquet --plan-only
      discreet synthesize adult.csv --schema adult.toml --epsilon 1 --target income \
        --out rows.parquet --certificate out
      discreet synthesize adult.csv --schema adult.toml --epsilon 1 --out rows.csv \
        --ledger study.ledger --dataset adult
      discreet synthesize adult.csv --schema adult.toml --epsilon 1 --target income \
        --out rows.csv --test held_out.csv --internal-page internal.html
    """
    from discreet.data import Schema, check_columns
    from discreet.synth import OneShot

    declared = Schema.from_file(schema)
    plan = OneShot(target=target).plan(
        declared, epsilon=epsilon, delta=delta, relation=relation or "add_remove"
    )
    if Path(out).suffix.lower() not in _ENDINGS:
        raise InvalidValue("out", out, "a file name that ends in .parquet or .csv")
    check_columns(file, declared)
    asked = _Test(test, test_epsilon, test_rows, internal_page, certificate)
    asked.check(plan)
    charged.check()
    if plan_only:
        _print_plan(plan, as_json=as_json)
        return
    # All places are looked at before the charge; the page is written when the rows are safe.
    with ExitStack() as outer:
        page = outer.enter_context(output_file(internal_page, ".html", argument="internal_page"))
        with ExitStack() as held:
            draft = held.enter_context(output_file(out, *_ENDINGS, argument="out"))
            assert draft is not None
            folder = None
            if certificate is not None:
                folder = held.enter_context(new_directory(certificate, argument="certificate"))
            book = held.enter_context(charged.open())
            model = _run(plan, file, book, charged.dataset, insecure_seed)
            _write_rows(model, rows, draft)
            if folder is not None:
                _write_certificate(model, folder, asked)
        if page is not None:
            asked.write_internal(model, page)
    _print_made(model, out, certificate, as_json=as_json)


def _run(
    plan: SynthesisPlan, file: str, book: Any, dataset: str | None, seed: int | None
) -> SyntheticModel:
    shown = shows_progress()

    def watch(step: str, at: int, most: int) -> None:
        if shown and (at == 0 or at % 50 == 0):
            share = f" {at} of at most {most}" if at else ""
            click.echo(f"{step}{share}", err=True)

    return plan.run(file, ledger=book, dataset=dataset, insecure_seed=seed, watch=watch)


def _write_rows(model: SyntheticModel, rows: int | None, draft: Path) -> None:
    from discreet.data import import_arrow

    table = model.sample(rows)
    if draft.suffix.lower() == ".csv":
        import_arrow("pyarrow.csv").write_csv(table, draft)
    else:
        import_arrow("pyarrow.parquet").write_table(table, draft)


def _write_certificate(model: SyntheticModel, folder: Path, asked: _Test) -> None:
    from discreet.learn import write_model_files
    from discreet.report import write_fidelity_page

    write_model_files(folder, model)
    write_fidelity_page(model, folder / "fidelity.html", answers=asked.judge(model))


@dataclass(frozen=True)
class _Test:
    """The test of a classifier that was asked for: paid for, or on a page that is internal."""

    file: str | None
    epsilon: float | None
    rows: int | None
    page: str | None
    certificate: str | None

    def check(self, plan: SynthesisPlan) -> None:
        """Raise before anything is charged if the options do not go together."""
        from discreet.data import Labelled, check_columns

        if self.file is None:
            for name in ("epsilon", "rows", "page"):
                if getattr(self, name) is not None:
                    raise InvalidValue("test", None, "a file of rows that were not used")
            return
        if (self.epsilon is None) == (self.page is None):
            expected = "one of --test-epsilon, to pay, and --internal-page"
            raise InvalidValue("test", self.file, expected)
        if self.epsilon is not None and (self.rows is None or self.certificate is None):
            raise InvalidValue(
                "test_epsilon", self.epsilon, "--test-rows and --certificate with it"
            )
        target = None if plan.target is None else plan.schema.columns[plan.target]
        if not isinstance(target, Labelled):
            raise InvalidValue(
                "test", self.file, "a target that is a column of labels, by --target"
            )
        check_columns(self.file, plan.schema)

    def judge(self, model: SyntheticModel) -> tuple[Any, ...]:
        """Return the figure that was paid for, if any."""
        from discreet.synth import judge_classifier

        if self.epsilon is None:
            return ()
        return (judge_classifier(model, self.file, epsilon=self.epsilon, rows=self.rows),)

    def write_internal(self, model: SyntheticModel, draft: Path) -> None:
        """Write the internal page."""
        from discreet.report import write_fidelity_page
        from discreet.synth import judge_classifier

        found: Any = judge_classifier(model, self.file)
        figures = {"share of right answers by a classifier of synthetic rows": found}
        write_fidelity_page(model, draft, internal=figures)


def _print_plan(plan: SynthesisPlan, *, as_json: bool) -> None:
    if as_json:
        cost = plan.whole_loss().epsilon(delta=plan.delta)
        known = {"epsilon": cost, "delta": plan.delta, "charged": False}
        print_json({**known, "plan": plan.to_json(), "lines": plan.explain()})
        return
    print_lines(map(printable, [*plan.explain(), "nothing was read or charged"]))


def _print_made(model: SyntheticModel, out: str, certificate: str | None, *, as_json: bool) -> None:
    stated = model.certificate_
    if as_json:
        print_json(
            {
                "out": out,
                "certificate": certificate,
                "noisy_rows": round(model.total),
                "tables_measured": len(model.measured),
                "epsilon": stated.epsilon,
                "delta": stated.delta,
                "relation": stated.relation,
                "unit": stated.unit,
                "schema_hash": model.schema.content_hash,
                "randomness": dict(stated.randomness),
                "charged": stated.receipt is not None,
            }
        )
        return
    from discreet._confidence import rows_meant

    about = rows_meant(model.schema.rows_per_person)
    cost = f"epsilon {at_most(stated.epsilon)} at delta {at_most(stated.delta)}"
    lines = [
        f"a model of {len(model.columns)} columns from {len(model.measured)} noisy tables",
        f"guarantee: {cost} for one {stated.unit} ({stated.relation})",
        f"about {round(model.total)} rows, a noisy number {about}",
        *(f"WARNING: {one}" for one in stated.warnings),
        f"written: {out}" + ("" if certificate is None else f", {certificate}"),
    ]
    if stated.receipt is None:
        lines.append("no ledger was charged: the certificate is the only record of this release")
    print_lines(map(printable, lines))
