"""``discreet pate``: a student of private teachers from two files, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from discreet.cli.tables import at_most, print_json, print_lines
from discreet.errors import DiscreetError, InvalidValue

if TYPE_CHECKING:
    from discreet.certificate import Certificate
    from discreet.data import Schema
    from discreet.ledger import Ledger
    from discreet.pate import PATEClassifier

__all__ = ["pate"]

_TEACHERS = ("logistic", "ridge", "forest", "naive-bayes", "mixed")


def pate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The private CSV or Parquet file.")],
    public: Annotated[
        str, typer.Argument(metavar="PUBLIC", help="A public file of such rows; no target needed.")
    ],
    *,
    schema: Annotated[
        str, typer.Option(metavar="FILE", help="The schema: what is public about the table.")
    ],
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="The epsilon to spend.")],
    out: Annotated[str, typer.Option(metavar="DIRECTORY", help="Where to write the student.")],
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column to predict.  [default: the schema's]"),
    ] = None,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="The delta to spend.  [default: a power of ten, at most 1/(10 expected rows)]",
        ),
    ] = None,
    teachers: Annotated[
        str, typer.Option(metavar="INTEGER", help="How many teachers share the private rows.")
    ] = "100",
    teacher: Annotated[
        str, typer.Option(metavar="|".join(_TEACHERS), help="What a teacher is.")
    ] = "logistic",
    queries: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="The most queries to ask.")
    ] = None,
    agreement: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="A public guess at the share of teachers who agree; it chooses the aggregator.",
        ),
    ] = "0.85",
    method: Annotated[
        str,
        typer.Option(metavar="self-training|spreading|labels-only", help="How the student learns."),
    ] = "self-training",
    jobs: Annotated[
        str, typer.Option(metavar="INTEGER", help="Teachers to train at the same time.")
    ] = "1",
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Private files with which an interrupted run goes on. They hold votes.",
        ),
    ] = None,
    relation: RelationName = None,
    ledger: ChargedLedger = None,
    dataset: ChargedDataset = None,
    insecure_seed: InsecureSeed = None,
    as_json: Json = False,
) -> None:
    r"""Train teachers on disjoint parts of a private table; release a student of their votes.

    Private rows reach one teacher each; with a person in the schema, all rows of a person reach
    the same one. The teachers vote on public rows, the votes get noise, and the student learns
    from the labels. Public rows are not compared with private ones: an error would tell who is in
    the private file.

    \b
    Examples:
      discreet pate patients.csv volunteers.csv --schema schema.toml --epsilon 1 --out student
      discreet pate patients.csv volunteers.csv --schema schema.toml --epsilon 1 --out student \
        --teachers 250 --teacher mixed --ledger study.ledger --dataset patients
    """
    from discreet._files import new_directory

    order = _Order.read(
        schema,
        target,
        epsilon=epsilon,
        delta=delta,
        teachers=teachers,
        teacher=teacher,
        queries=queries,
        agreement=agreement,
        method=method,
        jobs=jobs,
        relation=relation,
        insecure_seed=insecure_seed,
    )
    if (ledger is None) != (dataset is None):
        raise InvalidValue("dataset", dataset, "a name if and only if with --ledger")
    with new_directory(out) as draft:
        if ledger is None:
            model = _trained(order, file, public, cache, None, None)
        else:
            from discreet.ledger import Ledger

            with Ledger.open(ledger) as book:
                model = _trained(order, file, public, cache, book, dataset)
        lines = _summary(order, model.certificate_)
        _write(draft, order, model, lines)
    _report(out, order, model.certificate_, lines, as_json=as_json)


@dataclass(frozen=True)
class _Order:
    """What was asked for, checked, before any record is read."""

    schema: Schema
    parameters: dict[str, Any]

    @classmethod
    def read(
        cls,
        schema: str,
        target: str | None,
        *,
        epsilon: str,
        delta: str | None,
        teachers: str,
        teacher: str,
        queries: str | None,
        agreement: str,
        method: str,
        jobs: str,
        relation: str | None,
        insecure_seed: str | None,
    ) -> _Order:
        from discreet import _validate
        from discreet.privacy import Relation

        parameters: dict[str, Any] = {
            "epsilon": real("epsilon", epsilon, above=0),
            "delta": None if delta is None else real("delta", delta, above=0, below=1),
            "teachers": count("teachers", teachers, at_least=2),
            "queries": None if queries is None else count("queries", queries, at_least=1),
            "agreement": real("agreement", agreement, above=0, below=1),
            "n_jobs": count("jobs", jobs, at_least=1),
            "relation": Relation.parse("add_remove" if relation is None else relation).value,
            "insecure_seed": None
            if insecure_seed is None
            else count("insecure_seed", insecure_seed),
            "student_parameters": {
                "method": _validate.one_of(
                    "method", method, ("self-training", "spreading", "labels-only")
                )
            },
            "teacher": _teacher(_validate.one_of("teacher", teacher, _TEACHERS)),
        }
        declared = _declared(schema, target)
        if declared.person is not None and parameters["relation"] != "add_remove":
            raise InvalidValue("relation", relation, "add_remove where the schema has persons")
        if parameters["delta"] is None and declared.expected_rows is None:
            raise InvalidValue("delta", "none", "a number, or expected_rows in the schema")
        return cls(
            declared,
            {
                **parameters,
                "expected_rows": declared.expected_rows,
                "classes": list(range(len(declared.classes))),
                "schema_hash": declared.content_hash,
            },
        )


def _declared(path: str, target: str | None) -> Schema:
    from discreet.data import Schema

    try:
        declared = Schema.from_file(path)
    except InvalidValue as error:
        argument = "schema" if error.argument == "path" else f"{path}: {error.argument}"
        raise InvalidValue(argument, error.value, error.expected) from None
    if target is not None:
        if target not in declared.columns:
            raise InvalidValue("target", target, f"a column that {path} declares")
        declared = replace(declared, target=target)
    if declared.target is None:
        raise InvalidValue("target", "none", "the name of the column to predict")
    if declared.task != "classification":
        raise InvalidValue("target", declared.target, "a column of categories: teachers vote")
    if declared.incomplete:
        expected = "a schema that leaves nothing open, but it does: "
        raise InvalidValue("schema", path, expected + ", ".join(declared.incomplete))
    return declared


def _teacher(name: str) -> Any:
    from sklearn.ensemble import RandomForestClassifier  # type: ignore[import-untyped]
    from sklearn.linear_model import (  # type: ignore[import-untyped]
        LogisticRegression,
        RidgeClassifier,
    )
    from sklearn.naive_bayes import GaussianNB  # type: ignore[import-untyped]

    kinds = {
        "logistic": LogisticRegression(max_iter=1000),
        "ridge": RidgeClassifier(),
        "forest": RandomForestClassifier(30),
        "naive-bayes": GaussianNB(var_smoothing=1e-2),
    }
    return list(kinds.values()) if name == "mixed" else kinds[name]


def _trained(
    order: _Order,
    file: str,
    public: str,
    cache: str | None,
    book: Ledger | None,
    dataset: str | None,
) -> PATEClassifier:
    from discreet.data import Encoding, check_columns, read_table
    from discreet.learn import charged
    from discreet.pate import PATEClassifier

    schema = order.schema
    check_columns(file, schema)
    asked = schema.for_prediction()
    try:
        check_columns(public, asked)
        rows = Encoding(asked).features(read_table(public, asked))
    except InvalidValue as error:
        argument = "public" if error.argument == "data" else error.argument
        raise InvalidValue(argument, error.value, error.expected) from None
    model = PATEClassifier(**order.parameters)
    # Whatever is public is checked first: parameters, public rows, teachers, the cache.
    loss, delta = model.rehearse(rows, cache=cache), model._delta()
    # Charged here, because already the reading of the file is a look at private records.
    with charged(
        book, dataset, loss=loss, delta=delta, purpose="discreet pate", unit=schema.unit
    ) as charge:
        encoding = Encoding(schema)
        table = read_table(file, schema, insecure_seed=order.parameters["insecure_seed"])
        model.fit(
            encoding.features(table),
            encoding.target(table),
            public=rows,
            persons=table.persons,
            cache=cache,
        )
        if model.certificate_.loss != loss:
            raise DiscreetError("a student was made at another cost than was charged")
        model.certificate_ = model.certificate_.paid_by(charge)
    return model


def _summary(order: _Order, certificate: Certificate) -> list[str]:
    """Say what was done, what it costs and for whom; nothing that was not released."""
    plan = certificate.plan
    change = "added or removed" if certificate.relation == "add_remove" else "changed"
    cost = f"epsilon {at_most(certificate.epsilon)} at delta {at_most(certificate.delta)}"
    lines = [
        f"a student for {order.schema.target!r}, taught by {plan['teachers']} teachers",
        f"guarantee: {cost} for one {plan['unit']} {change} (data-independent)",
        f"aggregator: {plan['aggregator']['aggregator']} ({plan['chosen_because']})",
        f"labels: {plan['labels_answered']} answered of {plan['queries_asked']} queries",
    ]
    if any("INSECURE" in value for value in certificate.randomness.values()):
        lines.append("INSECURE: the noise comes from a seed; this student protects nobody")
    if certificate.receipt is None:
        lines.append("no ledger was charged: the certificate is the only record of this release")
    lines.append("public rows are not protected, whether or not they are private rows as well")
    return lines


def _write(draft: Path, order: _Order, model: PATEClassifier, lines: list[str]) -> None:
    from discreet.pate import write_student_files
    from discreet.report import draw_flow

    write_student_files(draft, model, order.schema)
    (draft / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw_flow(model.certificate_, draft / "flow.png")


def _report(
    out: str, order: _Order, certificate: Certificate, lines: list[str], *, as_json: bool
) -> None:
    if not as_json:
        spent = f"epsilon {at_most(certificate.epsilon)} is spent, whatever becomes of the student"
        files = "student, schema, certificate, summary, picture of the flow"
        print_lines([*lines, f"written: {out} ({files})", spent])
        return
    plan = certificate.plan
    print_json(
        {
            "out": out,
            "target": order.schema.target,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "relation": certificate.relation,
            "unit": plan["unit"],
            "teachers": plan["teachers"],
            "aggregator": plan["aggregator"],
            "queries_asked": plan["queries_asked"],
            "labels_answered": plan["labels_answered"],
            "schema_hash": order.schema.content_hash,
            "randomness": dict(certificate.randomness),
            "charged": certificate.receipt is not None,
            "files": sorted(path.name for path in Path(out).iterdir()),
        }
    )
