"""``discreet train``: a private model from a file, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, RelationName, count, real
from discreet.cli.tables import at_most, print_json, print_lines, tracked
from discreet.errors import DiscreetError, InvalidValue

if TYPE_CHECKING:
    from discreet.data import Schema, SchemaPlan, Table
    from discreet.learn.certificate import Certificate
    from discreet.learn.choosing import TableLearner
    from discreet.ledger import Ledger
    from discreet.privacy import Loss

__all__ = ["train"]

_AUTO = "auto"
_COMPARE = "compare"


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
    ] = _AUTO,
    learn_schema: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="The share of epsilon for bounds and categories that the schema leaves open.",
        ),
    ] = None,
    relation: RelationName = None,
    ledger: Annotated[
        str | None, typer.Option(metavar="LEDGER", help="Charge this ledger before training.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dataset to charge in the ledger.")
    ] = None,
    insecure_seed: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER",
            help="Repeatable noise for experiments. It protects nothing, and the output says so.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Train a private model from a table; write it with its certificate.

    The schema declares what is public; nothing else is read off the data. Options, schema and the
    columns of the file are checked before the ledger is charged; no record can cause an error.
    How many rows there were and how well the model fits them is private and not shown.

    \b
    Examples:
      discreet train patients.csv --schema schema.toml --target outcome --epsilon 2 --out model
      discreet train patients.csv --schema schema.toml --epsilon 1 --out model \
        --ledger study.ledger --dataset patients
    """
    from discreet.learn.model_directory import new_directory

    order = _Order.read(
        file=file,
        schema=schema,
        target=target,
        epsilon=epsilon,
        delta=delta,
        rows=rows,
        learner=learner,
        learn_schema=learn_schema,
        relation=relation,
        insecure_seed=insecure_seed,
    )
    if (ledger is None) != (dataset is None):
        raise InvalidValue("dataset", dataset, "a name if and only if with --ledger")
    with new_directory(out) as draft:
        if ledger is None:
            done = _trained(order, None, None)
        else:
            from discreet.ledger import Ledger

            with Ledger.open(ledger) as book:
                done = _trained(order, book, dataset)
        _write(draft, done)
    _report(out, done, as_json=as_json)


@dataclass(frozen=True)
class _Order:
    """What was asked for, checked, before any record is read."""

    file: str
    schema: Schema
    epsilon: float
    delta: float
    learner: str
    share: float | None
    relation: str
    seed: int | None

    @classmethod
    def read(
        cls,
        *,
        file: str,
        schema: str,
        target: str | None,
        epsilon: str,
        delta: str | None,
        rows: str | None,
        learner: str,
        learn_schema: str | None,
        relation: str | None,
        insecure_seed: str | None,
    ) -> _Order:
        budget = real("epsilon", epsilon, above=0)
        slack = None if delta is None else real("delta", delta, above=0, below=1)
        share = (
            None if learn_schema is None else real("learn_schema", learn_schema, above=0, below=1)
        )
        seed = None if insecure_seed is None else count("insecure_seed", insecure_seed)
        from discreet import _validate
        from discreet.data import check_columns
        from discreet.learn.choosing import LEARNERS
        from discreet.learn.tabular.plan import default_delta
        from discreet.privacy import Relation

        _validate.one_of("learner", learner, (_AUTO, _COMPARE, *LEARNERS))
        neighbours = Relation.parse("add_remove" if relation is None else relation).value
        if neighbours != "add_remove" and learner == _COMPARE:
            raise InvalidValue("relation", relation, "add_remove with --learner compare")
        declared = _declared(schema, target, rows)
        if declared.incomplete and share is None:
            expected = "a share of epsilon, because the schema leaves open: "
            raise InvalidValue("learn_schema", "none", expected + ", ".join(declared.incomplete))
        if not declared.incomplete and share is not None:
            raise InvalidValue("learn_schema", learn_schema, "none: the schema is complete")
        check_columns(file, declared)
        assert declared.expected_rows is not None
        point = default_delta(declared.expected_rows) if slack is None else slack
        return cls(file, declared, budget, point, learner, share, neighbours, seed)


def _declared(path: str, target: str | None, rows: str | None) -> Schema:
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
    if rows is not None:
        declared = replace(declared, expected_rows=count("rows", rows, at_least=1))
    if declared.expected_rows is None:
        raise InvalidValue(
            "rows", "none", "the public order of magnitude of rows, here or as expected_rows"
        )
    return declared


@dataclass(frozen=True)
class _Done:
    model: TableLearner
    certificate: Certificate
    reason: str


def _trained(order: _Order, book: Ledger | None, dataset: str | None) -> _Done:
    """Plan everything, then charge, then learn: first what the schema leaves open."""
    from discreet.data import read_table

    schema, budget, slack = order.schema, order.epsilon, order.delta
    first: Loss | None = None
    receipts: list[dict[str, Any]] = []
    if order.share is not None:
        plan = _schema_plan(order)
        first = plan.loss
        budget, slack = budget * (1.0 - order.share), slack / 2.0
        schema = _completed(plan, order, book, dataset, receipts)
    model, reason = _planned(order, schema, budget, slack)
    table = read_table(order.file, schema, insecure_seed=order.seed)
    if model is None:
        return _compared(order, schema, table, budget, slack, first, receipts, book, dataset)
    keywords: dict[str, Any] = {}
    if model.learner != "naive-bayes":
        keywords["track"] = lambda steps: tracked(steps, "training")
    model.fit(table, ledger=book, dataset=dataset, **keywords)
    found = model.estimator.certificate_
    if found.receipt is not None:
        receipts.append(dict(found.receipt))
    loss = found.loss if first is None else first + found.loss
    return _certified(order, model, loss, found, reason, receipts)


def _schema_plan(order: _Order) -> SchemaPlan:
    from discreet.data import plan_schema

    assert order.share is not None
    return plan_schema(
        order.schema,
        epsilon=order.epsilon * order.share,
        delta=order.delta / 2.0,
        relation=order.relation,
    )


def _completed(
    plan: SchemaPlan,
    order: _Order,
    book: Ledger | None,
    dataset: str | None,
    receipts: list[dict[str, Any]],
) -> Schema:
    from discreet.learn.charging import charged

    purpose = "discreet train: bounds and categories"
    with charged(book, dataset, loss=plan.loss, delta=0.0, purpose=purpose) as charge:
        completed = plan.run(order.file, insecure_seed=order.seed).value
    if charge is not None:
        receipts.append(charge.receipt())
    completed.require_complete()
    return completed


def _planned(
    order: _Order, schema: Schema, budget: float, slack: float
) -> tuple[TableLearner | None, str]:
    """Return the learner; its loss is computed here, so that what cannot be planned is refused."""
    from discreet.data import Encoding
    from discreet.learn.choosing import TableLearner, choose_learner

    if order.learner == _COMPARE:
        return None, "the best of several by a private comparison, which was paid for"
    name, reason = order.learner, "it was asked for"
    if name == _AUTO:
        choice = choose_learner(schema, epsilon=budget, delta=slack)
        name, reason = choice.learner, choice.reason
    model = TableLearner.make(
        name,
        schema,
        epsilon=budget,
        delta=slack,
        relation=order.relation,
        insecure_seed=order.seed,
    )
    if name != "naive-bayes":
        model.estimator.loss_for(Encoding(schema).width)
    return model, reason


def _compared(
    order: _Order,
    schema: Schema,
    table: Table,
    budget: float,
    slack: float,
    first: Loss | None,
    receipts: list[dict[str, Any]],
    book: Ledger | None,
    dataset: str | None,
) -> _Done:
    from discreet.learn.charging import charged
    from discreet.learn.choosing import best_learner, plan_best

    plan = plan_best(schema, epsilon=budget, delta=slack)
    purpose = "discreet train: private comparison of learners"
    with charged(book, dataset, loss=plan.loss, delta=slack, purpose=purpose) as charge:
        best = best_learner(plan, table, insecure_seed=order.seed).value
    if charge is not None:
        receipts.append(charge.receipt())
    loss = plan.loss if first is None else first + plan.loss
    found = best.estimator.certificate_
    reason = f"the best of {len(plan.candidates)} by a private comparison, which was paid for"
    return _certified(order, best, loss, found, reason, receipts)


def _certified(
    order: _Order,
    model: TableLearner,
    loss: Loss,
    found: Certificate,
    reason: str,
    receipts: list[dict[str, Any]],
) -> _Done:
    from discreet.learn.certificate import Certificate

    certificate = Certificate.of(
        loss,
        delta=order.delta,
        learner=found.learner,
        plan={
            **found.plan,
            "unit": model.schema.unit,
            "chosen_because": reason,
            "schema_was_learned": order.share is not None,
        },
        randomness=found.randomness,
        receipt={"receipts": receipts} if receipts else None,
    )
    if certificate.epsilon > order.epsilon * (1.0 + 1e-9):
        raise DiscreetError(
            f"the whole run costs epsilon {certificate.epsilon!r}, more than {order.epsilon!r}; "
            "nothing was written"
        )
    return _Done(model, certificate, reason)


def _write(draft: Path, done: _Done) -> None:
    from discreet.cli.train_summary import draw_summary, summary_lines
    from discreet.learn.model_directory import write_model_files

    write_model_files(draft, done.model, done.certificate)
    lines = summary_lines(done.model, done.certificate, done.reason)
    (draft / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw_summary(done.model, done.certificate, draft / "summary.png")


def _report(out: str, done: _Done, *, as_json: bool) -> None:
    from discreet.cli.train_summary import summary_lines

    certificate = done.certificate
    if as_json:
        print_json(
            {
                "out": out,
                "learner": done.model.learner,
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
    print_lines(
        [
            *summary_lines(done.model, certificate, done.reason),
            f"written: {out} (model, schema, certificate, summary)",
            f"epsilon {at_most(certificate.epsilon)} is spent, whatever becomes of the model",
        ]
    )
