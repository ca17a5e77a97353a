"""``discreet train``: a private model from a file, with its certificate."""

from __future__ import annotations

from collections.abc import Callable
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
from discreet.cli.tables import at_most, print_json, print_lines, tracked
from discreet.cli.train_checks import check_completions, check_installed
from discreet.errors import DiscreetError, InvalidValue

if TYPE_CHECKING:
    from discreet.certificate import Certificate
    from discreet.data import Schema, SchemaPlan
    from discreet.learn.choosing import BestPlan, TableLearner
    from discreet.ledger import Ledger
    from discreet.privacy import Loss

__all__ = ["train"]

_AUTO = "auto"
_COMPARE = "compare"
_PURPOSES = {_COMPARE: "the best of several models"}


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
    check_installed(learner)
    from discreet._files import new_directory
    from discreet.cli.train_summary import write_summary
    from discreet.learn.model_directory import write_model_files

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
    if repaired is not None and not dry_run:
        raise InvalidValue("repaired", repaired, "an epsilon with --dry-run only")
    if dry_run:
        _rehearse(order, repaired, ledger, dataset, as_json=as_json)
        return
    with new_directory(out) as draft:
        if ledger is None:
            done = _trained(order, None, None)
        else:
            from discreet.ledger import Ledger

            with Ledger.open(ledger) as book:
                done = _trained(order, book, dataset)
        write_model_files(draft, done.model, done.certificate)
    # The model is in its place: what fails from here on takes nothing of it away.
    unwritten = write_summary(Path(out), done.model, done.certificate, done.reason)
    _report(out, done, unwritten, as_json=as_json)


def _rehearse(
    order: _Order, repaired: str | None, ledger: str | None, dataset: str | None, *, as_json: bool
) -> None:
    """Say what a run costs and what could be wrong, from public facts; pay only if asked to."""
    from contextlib import ExitStack

    from discreet.data import plan_repairs, possible_mistakes
    from discreet.learn.charging import charged
    from discreet.ledger import Ledger

    whole = _whole_plan(order)[0]
    doubts = [str(mistake) for mistake in possible_mistakes(order.file, order.schema)]
    shares: dict[str, float] | None = None
    spent = 0.0 if repaired is None else real("repaired", repaired, above=0)
    if repaired is not None:
        plan = plan_repairs(order.schema, epsilon=repaired, relation=order.relation)
        with ExitStack() as opened:
            book = None if ledger is None else opened.enter_context(Ledger.open(ledger))
            purpose = "discreet train: the share of repaired cells"
            with charged(
                book, dataset, loss=plan.loss, delta=0.0, purpose=purpose, unit=order.schema.unit
            ):
                shares = plan.run(order.file, insecure_seed=order.seed).value
    cost = whole.epsilon(delta=order.delta)
    if as_json:
        print_json(
            {
                "epsilon": cost,
                "delta": order.delta,
                "possible_mistakes": doubts,
                "repaired_shares": shares,
                "epsilon_spent": spent,
            }
        )
        return
    lines = [
        f"a run would cost epsilon {at_most(cost)}, delta {at_most(order.delta)}",
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
        from discreet.data.tables import check_whole
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
        if neighbours == "replace" and declared.person is not None:
            expected = "add_remove with persons: replacing one may change the number of rows"
            raise InvalidValue("relation", relation, expected)
        check_columns(file, declared)
        check_whole(file, declared)
        if neighbours == "replace":
            _check_count(file, declared, learner)
        assert declared.expected_rows is not None
        point = default_delta(declared.expected_rows) if slack is None else slack
        return cls(file, declared, budget, point, learner, share, neighbours, seed)


def _check_count(file: str, schema: Schema, learner: str) -> None:
    """Under replace the number of rows is public, and only then may it be an error."""
    from discreet.data.inputs import open_table

    batches = open_table(file, schema).batches([next(iter(schema.columns))], 1 << 16)
    count = sum(batch.rows for batch in batches)
    if count == 0:
        raise InvalidValue("file", file, "records: under replace there is no model of none")
    if learner == "mlp" and count != schema.expected_rows:
        expected = f"{count}, the number of rows (under replace a network takes no other)"
        raise InvalidValue("rows", schema.expected_rows, expected)


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
    """Plan everything, charge once for all of it, and only then read records.

    What the schema leaves open is learned first, for its share; which learner and which noise
    follow depends on what came out. So the charge is for the schema and for *some* training at
    the rest of the budget, and so is the certificate: the loss of the one training that was run is
    itself a result of looking at the data. Plans for made-up completions of the schema show,
    before, that nothing that was asked for is impossible.
    """
    from discreet.learn.charging import charged

    purpose = f"discreet train: {_PURPOSES.get(order.learner, 'a model')}"
    unit = order.schema.unit
    whole, plan = _whole_plan(order)
    if order.share is not None:
        purpose += ", with bounds and categories"
    with charged(
        book, dataset, loss=whole, delta=order.delta, purpose=purpose, unit=unit
    ) as charge:
        try:
            run = plan()
            done = _certified(order, run.fitted(order), whole, run.reason)
            return replace(done, certificate=done.certificate.paid_by(charge))
        except MemoryError:
            # numpy's own words would tell how many rows there are.
            raise DiscreetError(
                "memory ran out while learning; what was charged is spent (fewer categories, or "
                "naive Bayes, which keeps no rows, need less)"
            ) from None


def _whole_plan(order: _Order) -> tuple[Loss, Callable[[], _Run]]:
    """Return what everything costs together, and what plans the run inside the charge."""
    from discreet.privacy import ApproxDP

    if order.share is None:
        planned = _planned(order, order.schema, order.epsilon, order.delta)
        _check_whole(order, planned.loss)
        return planned.loss, lambda: planned
    first = _schema_plan(order)
    rest = order.epsilon * (1.0 - order.share), order.delta / 2.0

    def plan() -> _Run:
        return _planned(order, first.run(order.file, insecure_seed=order.seed).value, *rest)

    check_completions(order.schema, lambda schema: _possible(order, schema, *rest))
    whole = first.loss + ApproxDP(*rest, order.relation)
    _check_whole(order, whole)
    return whole, plan


def _check_whole(order: _Order, whole: Loss) -> None:
    cost = whole.epsilon(delta=order.delta)
    if cost > order.epsilon * (1.0 + 1e-9):
        expected = f"a value whose plan is certified; this one costs {cost!r} at most"
        raise InvalidValue("epsilon", order.epsilon, expected)


@dataclass(frozen=True)
class _Run:
    """A learner, or a comparison of learners, that was planned: its loss is known."""

    schema: Schema
    loss: Loss
    reason: str
    model: TableLearner | None
    comparison: BestPlan | None

    def fitted(self, order: _Order) -> TableLearner:
        """Read the file and learn."""
        from discreet.data import read_table, table_batches
        from discreet.learn.choosing import best_learner

        if self.comparison is not None:
            table = read_table(order.file, self.schema, insecure_seed=order.seed)
            return best_learner(self.comparison, table, insecure_seed=order.seed).value
        assert self.model is not None
        keywords: dict[str, Any] = {}
        if self.model.learner != "naive-bayes":
            keywords["track"] = lambda steps: tracked(steps, "training")
        batches = table_batches(order.file, self.schema, insecure_seed=order.seed)
        model = self.model.fit_batches(batches, **keywords)
        if model.estimator.certificate_.loss != self.loss:
            raise DiscreetError("a model was trained at another cost than was charged")
        return model


def _schema_plan(order: _Order) -> SchemaPlan:
    from discreet.data import plan_schema

    assert order.share is not None
    return plan_schema(
        order.schema,
        epsilon=order.epsilon * order.share,
        delta=order.delta / 2.0,
        relation=order.relation,
    )


def _possible(order: _Order, schema: Schema, budget: float, slack: float) -> None:
    """Plan all that the order may come to for a completed schema, and check what it would cost."""
    from discreet.learn.choosing import automatic_learners, choose_learner

    names = {order.learner}
    if order.learner == _AUTO:
        # More categories may turn the choice to naive Bayes, never away from it.
        chosen = choose_learner(schema, epsilon=budget, delta=slack).learner
        names = {chosen, automatic_learners(schema)[-1]}
    for name in names:
        cost = _planned(replace(order, learner=name), schema, budget, slack).loss.epsilon(
            delta=slack
        )
        if cost > budget * (1.0 + 1e-9):
            raise InvalidValue("epsilon", order.epsilon, f"a value for which {name} is certified")


def _planned(order: _Order, schema: Schema, budget: float, slack: float) -> _Run:
    """Plan the learner, or all learners to be compared: what is impossible is refused here."""
    from discreet.learn.choosing import TableLearner, choose_learner, plan_best

    if order.learner == _COMPARE:
        plan = plan_best(schema, epsilon=budget, delta=slack)
        count = len(plan.candidates)
        reason = f"the best of {count} by a private comparison, which was paid for"
        return _Run(schema, plan.loss, reason, None, plan)
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
    return _Run(schema, model.loss(), reason, model, None)


def _certified(order: _Order, model: TableLearner, loss: Loss, reason: str) -> _Done:
    from discreet.certificate import Certificate

    found = model.estimator.certificate_
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
        model_digest=found.model_digest,
    )
    return _Done(model, certificate, reason)


def _report(out: str, done: _Done, unwritten: list[str], *, as_json: bool) -> None:
    from discreet.cli.train_summary import printable, summary_lines

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
    lines = [
        *summary_lines(done.model, certificate, done.reason),
        f"written: {out} (model, schema, certificate, summary)",
        *unwritten,
        f"epsilon {at_most(certificate.epsilon)} is spent, whatever becomes of the model",
    ]
    print_lines(map(printable, lines))
