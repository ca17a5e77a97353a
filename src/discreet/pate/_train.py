"""Train a student from two files: plan and check what is public, charge once, then read."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet import _validate
from discreet._files import new_directory
from discreet._rounding import at_most
from discreet.data import Schema, check_columns
from discreet.errors import InvalidValue
from discreet.learn import write_model_files
from discreet.pate._classifier import PATEClassifier
from discreet.privacy import Relation

if TYPE_CHECKING:
    from discreet.certificate import Certificate
    from discreet.ledger import Ledger

TEACHERS = ("logistic", "ridge", "forest", "naive-bayes", "mixed")
METHODS = ("self-training", "spreading", "labels-only")


@final
@dataclass(frozen=True)
class TrainedStudent:
    """A student, the schema of its rows, and the certificate of everything that made it."""

    model: PATEClassifier
    schema: Schema

    @property
    def certificate(self) -> Certificate:
        """What the labels cost."""
        certificate: Certificate = self.model.certificate_
        return certificate

    def lines(self) -> list[str]:
        """Say what was done, what it costs and for whom; nothing that was not released."""
        certificate, plan = self.certificate, self.certificate.plan
        change = "added or removed" if certificate.relation == "add_remove" else "changed"
        cost = f"epsilon {at_most(certificate.epsilon)} at delta {at_most(certificate.delta)}"
        lines = [
            f"a student for {self.schema.target!r}, taught by {plan['teachers']} teachers",
            f"guarantee: {cost} for one {plan['unit']} {change} (data-independent)",
            f"aggregator: {plan['aggregator']['aggregator']} ({plan['chosen_because']})",
            f"labels: {plan['labels_answered']} answered of {plan['queries_asked']} queries",
        ]
        if any("INSECURE" in value for value in certificate.randomness.values()):
            lines.append("INSECURE: the noise comes from a seed; this student protects nobody")
        if certificate.receipt is None:
            only = "no ledger was charged: the certificate is the only record of this release"
            lines.append(only)
        public = "public rows are not protected, whether or not they are private rows as well"
        return [*lines, public]


def train_student(
    file: str | os.PathLike[str],
    public: str | os.PathLike[str],
    schema: Schema | str | os.PathLike[str],
    *,
    epsilon: float,
    delta: float | None = None,
    target: str | None = None,
    teacher: str = "logistic",
    method: str = "self-training",
    relation: Relation | str = Relation.ADD_REMOVE,
    jobs: int = 1,
    cache: str | None = None,
    out: str | os.PathLike[str] | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    insecure_seed: int | None = None,
    **parameters: Any,
) -> TrainedStudent:
    """Train teachers on parts of a private table, and a student of their votes on public rows.

    Parameters
    ----------
    file, public
        CSV or Parquet files: the private rows, and public rows of the same columns.
    schema
        What is public about the private file, or the path of a TOML file that says it.
    epsilon, delta
        What the labels may cost. None for delta is a power of ten, at most 1 / (10 rows).
    target
        The column to predict, where the schema does not say it or says otherwise.
    teacher, method
        One of ``"logistic"``, ``"ridge"``, ``"forest"``, ``"naive-bayes"``, ``"mixed"``; and how
        the student learns: ``"self-training"``, ``"spreading"``, ``"labels-only"``.
    relation
        What the guarantee compares.
    jobs, cache
        How many teachers are trained at a time, and a directory of private files with which an
        interrupted run goes on.
    out
        A directory to write the student to; it must not exist, which is found before the charge.
    ledger, dataset
        The ledger to charge, and the dataset in it.
    insecure_seed
        For tests only: the noise can be computed from it.
    **parameters
        Further parameters of :class:`PATEClassifier`, such as ``teachers``.

    Returns
    -------
    TrainedStudent
        The student with its certificate.

    Raises
    ------
    InvalidValue
        If something that was asked for cannot be; nothing was charged.
    BudgetExceeded
        If the budget is too small; nothing was charged.

    """
    declared = _read_schema(schema, target)
    neighbours = Relation.parse(relation).value
    if declared.person is not None and neighbours != "add_remove":
        raise InvalidValue("relation", neighbours, "add_remove where the schema has persons")
    if delta is None and declared.expected_rows is None:
        raise InvalidValue("delta", None, "a number, or expected_rows in the schema")
    model = PATEClassifier(
        epsilon=epsilon,
        delta=delta,
        schema=declared,
        teacher=_make_teacher(_validate.one_of("teacher", teacher, TEACHERS)),
        student_parameters={"method": _validate.one_of("method", method, METHODS)},
        relation=neighbours,
        n_jobs=jobs,
        insecure_seed=insecure_seed,
        **parameters,
    )
    with nullcontext() if out is None else new_directory(Path(out)) as draft:
        check_columns(file, declared)
        model.fit(
            file, public=public, cache=cache, ledger=ledger, dataset=dataset, unit=declared.unit
        )
        if draft is not None:
            write_model_files(draft, model)
    return TrainedStudent(model, declared)


def _read_schema(schema: Schema | str | os.PathLike[str], target: str | None) -> Schema:
    declared, path = schema, "the schema"
    if not isinstance(schema, Schema):
        path = os.fspath(schema)
        try:
            declared = Schema.from_file(path)
        except InvalidValue as error:
            argument = "schema" if error.argument == "path" else f"{path}: {error.argument}"
            raise InvalidValue(argument, error.value, error.expected) from None
    assert isinstance(declared, Schema)
    if target is not None:
        if target not in declared.columns:
            raise InvalidValue("target", target, f"a column that {path} declares")
        declared = replace(declared, target=target)
    if declared.target is None:
        raise InvalidValue("target", None, "the name of the column to predict")
    if declared.task != "classification":
        raise InvalidValue("target", declared.target, "a column of categories: teachers vote")
    if declared.incomplete:
        expected = "a schema that leaves nothing open, but it does: "
        raise InvalidValue("schema", path, expected + ", ".join(declared.incomplete))
    return declared


def _make_teacher(name: str) -> Any:
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
