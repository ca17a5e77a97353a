"""Train a private model from a table: plan everything, charge once for all of it, then read.

What the schema leaves open is learned first, for its share; which learner and which noise follow
depends on what came out. So the charge is for the schema and for *some* training at the rest of
the budget, and so is the certificate: the loss of the one training that was run is itself a result
of looking at the data. Plans for made-up completions of the schema show, before the charge, that
nothing that was asked for is impossible.
"""

from __future__ import annotations

import csv
import datetime as dt
import importlib
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet import _validate
from discreet._files import new_directory
from discreet.certificate import Certificate
from discreet.data import (
    MOST_LEARNED,
    Boolean,
    Categorical,
    Column,
    Date,
    Integer,
    Real,
    Schema,
    SchemaPlan,
    check_columns,
    check_integrity,
    learned_categories,
    open_input,
    plan_repairs,
    plan_schema,
    possible_mistakes,
    read_table,
    table_batches,
)
from discreet.errors import DiscreetError, InvalidValue, NotApplicable
from discreet.learn._choice import (
    Comparison,
    automatic_learners,
    choose_learner,
    compare_learners,
    make_learner,
)
from discreet.learn._declared import charged
from discreet.learn._exact_descent import default_delta
from discreet.learn._model_file import LEARNERS, learner_name, write_model_files
from discreet.privacy import ApproxDP, Loss, Relation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from discreet.learn._estimator import Track
    from discreet.ledger import Charge, Ledger

AUTO, COMPARE = "auto", "compare"
_TABLES, _TORCH = ("pyarrow", "sklearn"), ("torch", "safetensors")
_ROUNDING = 1.0 + 1e-9


@final
@dataclass(frozen=True)
class TrainedTable:
    """A model, why its learner was taken, and the certificate of everything that made it.

    ``model`` is the estimator; its ``certificate_`` is ``certificate``.
    """

    model: Any
    reason: str

    @property
    def certificate(self) -> Certificate:
        """What everything cost together: the schema, the choice and the training."""
        certificate: Certificate = self.model.certificate_
        return certificate

    @property
    def learner(self) -> str:
        """The name of the learner, as the command line has it."""
        return learner_name(type(self.model).__name__)


@final
@dataclass(frozen=True)
class _Run:
    """An estimator, or a comparison of several, that was planned: its loss is known."""

    schema: Schema
    loss: Loss
    reason: str
    model: Any
    comparison: Comparison | None


@final
@dataclass(frozen=True)
class PlannedTraining:
    """A training that was checked and planned from public facts; no record has been read.

    ``loss`` is what all of it costs together, and ``delta`` where it is read.
    """

    file: str
    schema: Schema
    epsilon: float
    delta: float
    learner: str
    share: float | None
    relation: str
    seed: int | None
    loss: Loss

    def possible_mistakes(self) -> tuple[str, ...]:
        """Return possible mistakes in the file that raise no error; no cell is read."""
        return tuple(map(str, possible_mistakes(self.file, self.schema)))

    def repaired_shares(
        self, epsilon: float, *, ledger: Ledger | None = None, dataset: str | None = None
    ) -> dict[str, float]:
        """Spend ``epsilon`` on the noisy share of cells that break the schema, by column."""
        repairs = plan_repairs(self.schema, epsilon=epsilon, relation=self.relation)
        with charged(
            ledger,
            dataset,
            loss=repairs.loss,
            delta=0.0,
            purpose="discreet train: the share of repaired cells",
            unit=self.schema.unit,
        ):
            return repairs.run(self.file, insecure_seed=self.seed).value

    def run(
        self,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        out: str | Path | None = None,
        track: Track | None = None,
    ) -> TrainedTable:
        """Charge the loss, read the file and learn.

        Parameters
        ----------
        ledger, dataset
            The ledger to charge, and the dataset in it.
        out
            A directory to write the model to; it must not exist, which is found before the
            charge.
        track
            Wraps the sequence of training steps, to show progress.

        Returns
        -------
        TrainedTable
            The model with its certificate.

        Raises
        ------
        BudgetExceeded
            If the budget is too small; nothing was charged.
        FileUnusable
            If ``out`` exists or cannot be written; nothing was charged.

        """
        with nullcontext() if out is None else new_directory(out) as draft:
            purpose = "the best of several models" if self.learner == COMPARE else "a model"
            if self.share is not None:
                purpose += ", with bounds and categories"
            with charged(
                ledger,
                dataset,
                loss=self.loss,
                delta=self.delta,
                purpose=f"discreet train: {purpose}",
                unit=self.schema.unit,
            ) as charge:
                try:
                    done = self._train(charge, track)
                except MemoryError:
                    # numpy's own words would show how many rows there are.
                    raise DiscreetError(
                        "memory ran out while learning; what was charged is spent (fewer "
                        "categories, or naive Bayes, which keeps no rows, need less)"
                    ) from None
            if draft is not None:
                write_model_files(draft, done.model)
        return done

    def _train(self, charge: Charge | None, track: Track | None) -> TrainedTable:
        receipt = None if charge is None else charge.receipt()
        run = self._plan_run(self._complete_schema(receipt), *self._rest)
        if run.comparison is not None:
            table = read_table(self.file, run.schema, insecure_seed=self.seed)
            model = run.comparison.run(table, insecure_seed=self.seed).value
        else:
            run.model._schema_is_counted = True  # by the charge
            model = run.model.fit(self.file, track=track)
            del model._schema_is_counted
            if model.plan_.loss != run.loss:
                raise DiscreetError("a model was trained at another cost than was charged")
        found = model.certificate_
        plan = {
            **found.plan,
            "unit": run.schema.unit,
            "chosen_because": run.reason,
            "schema_was_learned": self.share is not None,
        }
        if self.share is not None:
            plan["schema_cost"] = {**plan["schema_cost"], "counted": True}
        certificate = Certificate.of(
            self.loss,
            delta=self.delta,
            learner=found.learner,
            plan=plan,
            randomness=found.randomness,
            assumptions=found.assumptions if self.share is None else (),
            model_digest=found.model_digest,
        )
        model.certificate_ = certificate.paid_by(charge)
        return TrainedTable(model, run.reason)

    @property
    def _rest(self) -> tuple[float, float]:
        """Epsilon and delta that are left when the schema is complete."""
        if self.share is None:
            return self.epsilon, self.delta
        return self.epsilon * (1.0 - self.share), self.delta / 2.0

    def _schema_plan(self) -> SchemaPlan:
        assert self.share is not None
        return plan_schema(
            self.schema,
            epsilon=self.epsilon * self.share,
            delta=self.delta / 2.0,
            relation=self.relation,
        )

    def _complete_schema(self, receipt: Mapping[str, Any] | None) -> Schema:
        if self.share is None:
            return self.schema
        plan = self._schema_plan()
        return plan.run(self.file, receipt=receipt, insecure_seed=self.seed).value

    def _whole_loss(self) -> Loss:
        """Return what everything costs together; what cannot be planned is refused."""
        if self.share is None:
            whole = self._plan_run(self.schema, *self._rest).loss
            unpaid = self.schema.unpaid_loss()
            check_certified(whole, self.epsilon, self.delta)
            return whole if unpaid is None else whole + unpaid
        check_completions(self.schema, self._check_feasible)
        whole = self._schema_plan().loss + ApproxDP(*self._rest, self.relation)
        check_certified(whole, self.epsilon, self.delta)
        return whole

    def _plan_run(
        self, schema: Schema, epsilon: float, delta: float, learner: str | None = None
    ) -> _Run:
        """Plan the learner, or all learners to be compared: what is impossible is refused here."""
        name, reason = learner or self.learner, "it was asked for"
        if name == COMPARE:
            comparison = compare_learners(schema, epsilon=epsilon, delta=delta)
            count = len(comparison.candidates)
            reason = f"the best of {count} by a private comparison, which was paid for"
            return _Run(schema, comparison.loss, reason, None, comparison)
        if name == AUTO:
            choice = choose_learner(schema, epsilon=epsilon, delta=delta)
            name, reason = choice.learner, choice.reason
        model = make_learner(
            name,
            schema,
            epsilon=epsilon,
            delta=delta,
            relation=self.relation,
            insecure_seed=self.seed,
        )
        rows = schema.expected_rows if self.relation == "replace" else None
        return _Run(schema, model.planned(rows=rows).loss, reason, model, None)

    def _check_feasible(self, schema: Schema) -> None:
        """Plan all that this may come to for a completed schema, and check what it would cost."""
        epsilon, delta = self._rest
        names = {self.learner}
        if self.learner == AUTO:
            # Which one follows depends on the categories that come out.
            names = set(automatic_learners(schema))
        for name in names:
            cost = self._plan_run(schema, epsilon, delta, name).loss.epsilon(delta=delta)
            if cost > epsilon * _ROUNDING:
                expected = f"a value for which {name} is certified"
                raise InvalidValue("epsilon", self.epsilon, expected)


def plan_training(
    file: str | os.PathLike[str],
    schema: Schema | str | os.PathLike[str],
    *,
    epsilon: float,
    delta: float | None = None,
    target: str | None = None,
    rows: int | None = None,
    learner: str = AUTO,
    learn_schema: float | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    insecure_seed: int | None = None,
) -> PlannedTraining:
    """Check and plan a training from public facts; nothing is charged, and no record is read.

    Parameters
    ----------
    file
        A CSV or Parquet file.
    schema
        What is public about it, or the path of a TOML file that says it.
    epsilon, delta
        What everything may cost. None for delta is a power of ten, at most 1 / (10 rows).
    target, rows
        The column to predict and the public order of magnitude of rows, where the schema does
        not say it or says otherwise.
    learner
        ``"auto"`` chooses by public facts and is free; ``"compare"`` tries several in private and
        pays for choosing the best; or ``"logistic"``, ``"linear"``,
        ``"naive-bayes"``, ``"additive"``, ``"tree"``, ``"forest"``, ``"mlp"``.
    learn_schema
        The share of epsilon for bounds and categories that the schema leaves open.
    relation
        What the guarantee compares.
    insecure_seed
        For tests only: the noise can be computed from it.

    Returns
    -------
    PlannedTraining
        Call ``run`` to charge and train.

    Raises
    ------
    InvalidValue, NotApplicable
        If something that was asked for cannot be.

    """
    check_installed(learner)
    budget = _validate.real("epsilon", epsilon, above=0)
    if delta is not None:
        delta = _validate.real("delta", delta, above=0, below=1)
    if learn_schema is not None:
        learn_schema = _validate.real("learn_schema", learn_schema, above=0, below=1)
    _validate.one_of("learner", learner, (AUTO, COMPARE, *LEARNERS))
    neighbours = Relation.parse(relation).value
    if neighbours != "add_remove" and learner == COMPARE:
        raise InvalidValue("relation", neighbours, "add_remove with a private comparison")
    declared = _write_schema(schema, target, rows)
    if declared.incomplete and learn_schema is None:
        expected = "a share of epsilon, because the schema leaves open: "
        raise InvalidValue("learn_schema", "none", expected + ", ".join(declared.incomplete))
    if not declared.incomplete and learn_schema is not None:
        raise InvalidValue("learn_schema", learn_schema, "none: the schema is complete")
    if neighbours == "replace" and declared.person is not None:
        expected = "add_remove with persons: replacing one may change the number of rows"
        raise InvalidValue("relation", neighbours, expected)
    path = os.fspath(file)
    check_columns(path, declared)
    check_integrity(path, declared)
    if neighbours == "replace":
        _check_count(path, declared, learner)
    assert declared.expected_rows is not None
    point = default_delta(declared.expected_rows) if delta is None else delta
    asked = (path, declared, budget, point, learner, learn_schema, neighbours, insecure_seed)
    draft = PlannedTraining(*asked, loss=ApproxDP(0.0, 0.0, neighbours))
    return replace(draft, loss=draft._whole_loss())


def train_table(
    file: str | os.PathLike[str],
    schema: Schema | str | os.PathLike[str],
    *,
    epsilon: float,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    out: str | Path | None = None,
    track: Track | None = None,
    **options: Any,
) -> TrainedTable:
    """Train a private model from a file: plan, charge once, read, learn, certify.

    Parameters
    ----------
    file, schema, epsilon
        As for :func:`plan_training`.
    ledger, dataset, out, track
        As for :meth:`PlannedTraining.run`.
    **options
        The other options of :func:`plan_training`: delta, target, rows, learner, learn_schema,
        relation, insecure_seed.

    Returns
    -------
    TrainedTable
        The model, why its learner was taken, and the certificate.

    Raises
    ------
    InvalidValue, NotApplicable, BudgetExceeded
        If something that was asked for cannot be; nothing was charged.

    """
    plan = plan_training(file, schema, epsilon=epsilon, **options)
    return plan.run(ledger=ledger, dataset=dataset, out=out, track=track)


def check_installed(learner: str) -> None:
    """Raise unless the packages are installed that reading, training and writing need."""
    for package in (*_TABLES, *(_TORCH if learner == "mlp" else ())):
        try:
            importlib.import_module(package)
        except ImportError as error:
            extra = "torch" if package in _TORCH else "tables"
            raise NotApplicable(
                f"training needs {package}: pip install 'discreet[{extra}]' ({error})"
            ) from None


def check_certified(whole: Loss, epsilon: float, delta: float) -> None:
    """Raise unless a loss is certified to cost no more than was asked for."""
    cost = whole.epsilon(delta=delta)
    if cost > epsilon * _ROUNDING:
        expected = f"a value whose plan is certified; this one costs {cost!r} at most"
        raise InvalidValue("epsilon", epsilon, expected)


def check_completions(schema: Schema, check: Callable[[Schema], None]) -> None:
    """Call ``check``, which raises, for made-up completions of a schema, the emptiest included.

    How many categories come out depends on the records, and none of them may make it impossible
    to go on: that would be an error after the charge, and one that tells of the records.
    """
    # None, the usual, and the most that a column can come out with.
    for count in (0, 2, MOST_LEARNED):
        check(_make_up_schema(schema, count))


def _make_up_schema(schema: Schema, count: int) -> Schema:
    spare: dict[str, Column] = {}
    for name in schema.incomplete:
        column = schema.columns[name]
        if isinstance(column, Categorical):
            found = tuple(f"category {number}" for number in range(count))
            spare[name] = learned_categories(schema, name, found)
        elif isinstance(column, Date):
            spare[name] = Date(dt.date(1970, 1, 1), dt.date(2070, 1, 1))
        else:
            spare[name] = Integer(0, 1) if isinstance(column, Integer) else Real(0, 1)
    return schema.with_columns(spare)


def _check_count(file: str, schema: Schema, learner: str) -> None:
    """Under replace the number of rows is public, and only then may it be an error."""
    batches = open_input(file, schema).batches([next(iter(schema.columns))], 1 << 16)
    count = sum(batch.rows for batch in batches)
    if count == 0:
        raise InvalidValue("file", file, "records: under replace there is no model of none")
    if learner == "mlp" and count != schema.expected_rows:
        expected = f"{count}, the number of rows (under replace a network takes no other)"
        raise InvalidValue("rows", schema.expected_rows, expected)


def _with_target(schema: Schema, target: str, where: str) -> Schema:
    """Return the schema with a column as the target, or a comparison of one with a number."""
    if target in schema.columns:
        return replace(schema, target=target)
    found = re.fullmatch(r"(.*?)\s*([<>]=?.*)", target)
    if found is None or not isinstance(schema.columns.get(found[1]), Real | Integer):
        expected = f"a column that {where} declares, or one of numbers compared: 'score > 0'"
        raise InvalidValue("target", target, expected)
    try:
        compared = Boolean(rule=found[2])
    except InvalidValue as error:
        raise InvalidValue("target", target, error.expected) from None
    return replace(schema, columns={**schema.columns, found[1]: compared}, target=found[1])


def _write_schema(
    schema: Schema | str | os.PathLike[str], target: str | None, rows: int | None
) -> Schema:
    where = "the schema"
    if isinstance(schema, str | os.PathLike):
        where = os.fspath(schema)
        try:
            schema = Schema.from_file(schema)
        except InvalidValue as error:
            argument = "schema" if error.argument == "path" else f"{where}: {error.argument}"
            raise InvalidValue(argument, error.value, error.expected) from None
    if not isinstance(schema, Schema):
        raise InvalidValue("schema", type(schema).__name__, "a Schema, or the path of its file")
    if target is not None:
        schema = _with_target(schema, target, where)
    if schema.target is None:
        raise InvalidValue("target", "none", "the name of the column to predict")
    if rows is not None:
        count = _validate.integer("rows", rows, at_least=1)
        schema = replace(schema, expected_rows=count)
    if schema.expected_rows is None:
        raise InvalidValue(
            "rows", "none", "the public order of magnitude of rows, here or as expected_rows"
        )
    return schema


def predict_file(model: Any, file: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    """Write what a model with a schema says about every row of a file, as CSV.

    The columns are the target and, for classes, the probability of each.

    Parameters
    ----------
    model
        A fitted estimator with a schema.
    file
        A CSV or Parquet file with the columns of the schema; the target is not needed.
    out
        The CSV file to write.

    Returns
    -------
    int
        How many rows were written.

    """
    schema, rows = model.schema, 0
    classes = list(schema.classes) if schema.task == "classification" else []
    with Path(out).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([str(schema.target), *(f"probability of {name}" for name in classes)])
        for batch in table_batches(file, schema.for_prediction()):
            if batch.rows == 0:
                continue
            if classes:
                shares, found = model.predict_proba(batch), model.classes_
                names = classes if found.dtype.kind == "b" else found.tolist()
                columns = [[names[at] for at in shares.argmax(axis=1)]]
                columns += [shares[:, names.index(name)].tolist() for name in classes]
            else:
                columns = [model.predict(batch).tolist()]
            cells = [[_cell(value) for value in column] for column in columns]
            writer.writerows(zip(*cells, strict=True))
            rows += batch.rows
    return rows


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
