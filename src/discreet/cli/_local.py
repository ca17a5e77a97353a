"""``discreet local``: plan a local collection, randomize a file of people, estimate shares."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet._json import read_json
from discreet.cli._app import Group, print_json, print_lines, print_table, show_count, show_progress
from discreet.cli._options import (
    Count,
    Real,
    insecure_seed_option,
    output_file,
    page_option,
    picture_option,
    read_text,
)
from discreet.errors import DataCorrupt, FileUnusable, InvalidValue

if TYPE_CHECKING:
    from discreet.local import Deployment, FrequencyEstimate, FrequencyOracle

_BATCH = 1 << 16
_HEADINGS = ("deployment", "trusted", "epsilon", "delta", "deviation of a share")

plan_option = click.option(
    "--plan", "plan_file", metavar="FILE", required=True, help="The plan, from discreet local plan."
)
delta_option = click.option(
    "--delta", type=Real(above=0, below=1), default="1e-6", help="Where a shuffled batch is read."
)


@click.group(cls=Group)
def local() -> None:
    """Collect where nobody is trusted: each person randomizes before anything leaves."""


def _read_plan(name: str) -> FrequencyOracle:
    from discreet.local import read_plan

    return read_plan(read_json(read_text("plan", name), "the plan"))


def _count(
    file: str, plan_file: str | None
) -> tuple[FrequencyOracle, FrequencyEstimate, dict[str, Any]]:
    """Count a file of reports, and return the plan, the estimate and the certificate."""
    from discreet.local import certify_collection

    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise FileUnusable("file", file, f"a readable file ({error.strerror})") from None
    if plan_file is None:
        raise InvalidValue("plan", None, "the plan of the reports, from discreet local plan")
    oracle = _read_plan(plan_file)
    server, size = oracle.server(), oracle.report_bytes
    if not content:
        raise DataCorrupt(f"{file} holds no report")
    step = size * _BATCH
    for start in show_progress(range(0, len(content), step), "reports"):
        part = content[start : start + step]
        server.aggregate(part[at : at + size] for at in range(0, len(part), size))
    files = {
        key: {"file": Path(name).name, "sha256": hashlib.sha256(text).hexdigest()}
        for key, name, text in (
            ("plan", plan_file, Path(plan_file).read_bytes()),
            ("reports", file, content),
        )
    }
    return oracle, server.estimate(), certify_collection(oracle, server, files=files).to_json()


def _as_json(rows: list[Deployment]) -> list[dict[str, Any]]:
    return [
        {
            "deployment": row.name,
            "trusted": row.trusted,
            "epsilon": row.epsilon,
            "delta": row.delta,
            "deviation": row.deviation,
            "hypothetical": number > 0,
        }
        for number, row in enumerate(rows)
    ]


@local.command(short_help="Choose a method and see what it costs.")
@click.option("--values", metavar="A,B,...", help="The names of the values.")
@click.option("--size", type=Count(at_least=1), help="Or their number: 0, 1, ..., size - 1.")
@click.option("--epsilon", metavar="NUMBER", required=True, help="The epsilon of one report.")
@click.option("--people", type=Count(at_least=1), required=True, help="How many will report.")
@click.option("--method", metavar="NAME", default="auto", help="auto, GRR, SUE, OUE, OLH, SS, ...")
@click.option("--out", metavar="FILE", help="Write the plan (.json).")
@delta_option
@picture_option
def plan(
    values: str | None,
    size: int | None,
    epsilon: str,
    people: int,
    method: str,
    out: str | None,
    delta: float,
    output: str | None,
    as_json: bool,
) -> None:
    """Choose a method, and compare local, shuffled and central deployments.

    Only the local line is what the reports promise; the others are hypothetical.

    Examples:
      discreet local plan --values tea,coffee,milk --epsilon 1 --people 1e5 --out plan.json
      discreet local plan --size 1024 --epsilon 2 --people 1e6 --json
    """
    if (values is None) == (size is None):
        raise InvalidValue("values", values, "one of --values and --size")
    from discreet.local import FrequencyOracle, compare_deployments, write_plan
    from discreet.report import deployment_rows, draw_deployments

    domain: Any = size if values is None else [name.strip() for name in values.split(",")]
    document = write_plan(domain, epsilon, method)
    oracle = FrequencyOracle(domain, epsilon, method)
    rows = compare_deployments(oracle, people, delta=delta)
    with output_file(output, ".png", ".svg") as place, output_file(out, argument="out") as draft:
        if place is not None:
            draw_deployments(oracle, rows, people, place)
        if draft is not None:
            draft.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if as_json:
        facts = {"report_bytes": oracle.report_bytes, "why": oracle.why, "picture": output}
        print_json({"plan": document, **facts, "people": people, "deployments": _as_json(rows)})
        return
    print_lines([repr(oracle), oracle.why, f"{oracle.report_bytes} bytes a report", ""])
    print_table(_HEADINGS, deployment_rows(rows), numbers=(2, 3, 4))
    if out is not None:
        print_lines(["", f"plan: {out}"])


@local.command(short_help="One randomized report for each row of a file.")
@click.argument("file", metavar="FILE", help="A CSV or Parquet file with one row for each person.")
@click.option("--column", metavar="NAME", required=True, help="The column with the values.")
@plan_option
@click.option("--out", metavar="FILE", required=True, help="Write the reports, one after another.")
@insecure_seed_option
def collect(
    file: str,
    column: str,
    plan_file: str,
    out: str,
    insecure_seed: int | None,
    as_json: bool,
) -> None:
    """Randomize one column: one report for each row, as its person's device would.

    What is missing or not among the values becomes the reserved value. Run it where the values
    are; only the reports may leave.

    Examples:
      discreet local collect people.csv --column drink --plan plan.json --out reports.bin
    """
    from discreet.data import Categorical, Schema, open_input
    from discreet.local import ELSE
    from discreet.randomness import choose_source

    oracle = _read_plan(plan_file)
    source = choose_source(None, insecure_seed)
    labels = oracle.domain.labels[:-1]
    known = {str(label).encode(): label for label in labels}
    # The schema only names the column: cells are compared with the labels here.
    table = open_input(file, Schema({column: Categorical(["any", "other"])}))
    people = 0
    with output_file(out, argument="out") as draft, Path(str(draft)).open("wb") as reports:
        for batch in show_count(table.batches([column], _BATCH), "rows"):
            codes, texts = batch.texts(column)
            meant = [known.get(text, ELSE) for text in texts]
            values = [meant[code] for code in codes]
            reports.write(oracle.randomize_each(values, source=source).tobytes())
            people += len(values)
    if as_json:
        print_json({"reports": people, "bytes": oracle.report_bytes, "out": out})
        return
    print_lines([f"{people} reports of {oracle.report_bytes} bytes: {out}"])
    if insecure_seed is not None:
        print_lines(["INSECURE: drawn from a seed, so these reports protect nobody."])


@local.command(short_help="Shares and intervals from reports.")
@click.argument(
    "file", metavar="FILE", help="Reports, one after another, or the directory of a collector."
)
@click.option("--plan", "plan_file", metavar="FILE", help="The plan; a collector has its own.")
@click.option("--certificate", metavar="FILE", help="Write the certificate (.json).")
@click.option("--top", type=Count(at_least=1), default="20", help="How many values to print.")
@delta_option
@page_option
def estimate(
    file: str,
    plan_file: str | None,
    certificate: str | None,
    top: int,
    delta: float,
    output: str | None,
    as_json: bool,
) -> None:
    """Count reports, and estimate the share of every value with joint intervals.

    What is not a report of the plan is counted by reason and left out. discreet certificate verify
    counts again if the reports and the plan are beside the certificate.

    Examples:
      discreet local estimate reports.bin --plan plan.json --output page.html
      discreet local estimate collection --output page.html --certificate local.json
    """
    from discreet.local import compare_deployments
    from discreet.report import local_page

    if Path(file).is_dir():
        from discreet.curator.service import Collector

        collector = Collector(file)
        try:
            oracle, found = collector.oracle, collector.estimate()
            spending, document = collector.spending(), collector.certificate()
        finally:
            collector.close()
    else:
        oracle, found, document = _count(file, plan_file)
        spending = {1: found.people}
    low, high = found.interval()
    rows = compare_deployments(oracle, found.people, delta=delta)
    with (
        output_file(output, ".html") as page,
        output_file(certificate, ".json", argument="certificate") as draft,
    ):
        if page is not None:
            local_page(oracle, found, rows, spending).write(page)
        if draft is not None:
            draft.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    order = sorted(range(len(found.shares)), key=lambda at: -found.shares[at])
    if as_json:
        shares = [
            {
                "value": str(found.values[at]),
                "share": float(found.shares[at]),
                "low": float(low[at]),
                "high": float(high[at]),
            }
            for at in range(len(found.shares))
        ]
        facts = {"people": found.people, "rejected": dict(found.rejected), "shares": shares}
        print_json({**facts, "epsilon": str(oracle.epsilon), "deployments": _as_json(rows)})
        return
    away = sum(found.rejected.values())
    print_lines([f"{found.people} reports counted, {away} not: {dict(found.rejected)}", ""])
    table = [
        (
            str(found.values[at]),
            f"{found.shares[at]:.4f}",
            f"{low[at]:.4f}",
            f"{high[at]:.4f}",
        )
        for at in order[:top]
    ]
    print_table(("value", "share", "from", "to (95 %, together)"), table, numbers=(1, 2, 3))
    print_lines(["", f"written: {output}"] if output else [])
