"""The model under attack, and the records it is asked about, from what the command line names.

A model is a directory that ``discreet train`` wrote, or ``module:name`` in Python: the model itself
or a function without arguments that returns it. Without a model, the files hold its answers.
Nothing is ever unpickled: a pickle runs code, and nobody expects that from a data file. Naming
``module:name`` does run that module, which is said in the help.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.cli.attack_records import Records, read_answers, read_records
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from discreet.attacks.targets import Target
    from discreet.data import Schema
    from discreet.learn.choosing import TableLearner
    from discreet.privacy import Loss

__all__ = ["SameLearner", "Subject", "imported", "subject"]

_MODEL = "a directory that discreet train wrote, or module:name in Python"


@dataclass(frozen=True)
class Subject:
    """A target and how files of records are read for it."""

    target: Target
    read: Callable[[str, str], Records]
    """From an argument's name and the path that was given for it."""
    title: str
    model: Any = None
    """The model itself, for attacks that look inside."""
    answers_only: bool = False
    """Whether the files hold the answers of the model, so that nothing else can be asked."""
    class_names: tuple[str, ...] | None = None
    learner: TableLearner | None = None
    loss: Loss | None = None
    about: Mapping[str, str] = field(default_factory=dict)


def subject(model: str | None, *, label: str) -> Subject:
    """Return what ``--model`` names; without it, files are answers of a model."""
    if model is None:
        return _answers(label)
    if Path(model).is_dir():
        return _trained(model)
    return _imported_model(model, label)


def imported(argument: str, path: str) -> Any:
    """Return ``module:name``; the module is looked for in the current directory, too."""
    module, colon, name = path.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        expected = _MODEL if argument == "model" else "module:function in Python"
        raise InvalidValue(argument, path, expected)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidValue(argument, path, f"a name that can be imported ({error})") from None
    return found


def _answers(label: str) -> Subject:
    from discreet.attacks.targets import as_target

    def same(records: Any) -> Any:
        return records

    def read(argument: str, path: str) -> Records:
        return read_answers(argument, path, label=label)

    return Subject(
        as_target(same, output="probabilities"),
        read,
        "a model that is known by its answers",
        answers_only=True,
    )


def _imported_model(model: str, label: str) -> Subject:
    from discreet.attacks.targets import Target, as_target

    found = imported("model", model)
    ready = isinstance(found, Target) or hasattr(found, "predict") or hasattr(found, "state_dict")
    # A class has these attributes as well; what it makes is the model.
    if isinstance(found, type) or not ready:
        if not callable(found):
            raise InvalidValue("model", model, "a model, or a function that returns one")
        found = found()
    try:
        target = as_target(found)
    except InvalidValue as error:
        expected = f"a model, or a function that returns one; of {error.argument}: {error.expected}"
        raise InvalidValue("model", model, expected) from None

    def read(argument: str, path: str) -> Records:
        return read_records(argument, path, label=label)

    names = None if target.names is None else tuple(map(str, target.names))
    return Subject(target, read, model, model=found, class_names=names)


def _trained(model: str) -> Subject:
    from discreet.attacks.targets import as_target
    from discreet.learn.model_directory import read_model_directory

    learner = read_model_directory(model)
    schema = learner.schema
    if schema.task != "classification":
        raise NotApplicable("these attacks need a model of classes; this one predicts a number")
    # Every row of a file is asked about, whoever it belongs to.
    each_row = replace(schema, person=None, rows_per_person=None)
    target = as_target(
        learner.estimator.predict_proba, output="probabilities", classes=len(schema.classes)
    )

    def read(argument: str, path: str) -> Records:
        return _table(argument, path, each_row, learner)

    certificate = learner.estimator.certificate_
    return Subject(
        target,
        read,
        model,
        model=learner.estimator,
        class_names=tuple(schema.classes),
        learner=learner,
        loss=certificate.loss,
        about={
            "learner": learner.learner,
            "epsilon": f"{certificate.epsilon:.4g}",
            "delta": f"{certificate.delta:g}",
        },
    )


def _table(argument: str, path: str, schema: Schema, learner: TableLearner) -> Records:
    from discreet.data import read_table

    try:
        table = read_table(path, schema)
    except InvalidValue as error:
        renamed = error.argument.replace("data", argument, 1)
        raise InvalidValue(renamed, error.value, error.expected) from None
    if len(table) == 0:
        raise InvalidValue(argument, path, "a table with at least one row")
    codes = np.asarray(learner.targets(table), dtype=np.int64)
    return Records(np.asarray(learner.features(table)), codes, tuple(schema.features))


class SameLearner:
    """Trains another model as ``discreet train`` trained this one, on encoded records.

    The budget is that of the certificate; randomness follows the seed, because a shadow model
    protects nobody.
    """

    def __init__(self, learner: TableLearner) -> None:
        certificate = learner.estimator.certificate_
        self._kind, self._schema = learner.learner, learner.schema
        self._epsilon, self._delta = certificate.epsilon, certificate.delta
        self.key = f"{self._kind} {self._schema.content_hash} {self._epsilon!r} {self._delta!r}"

    def __call__(self, records: Any, labels: Any, seed: int) -> Any:
        from discreet.attacks.targets import as_target
        from discreet.learn.choosing import TableLearner

        made = TableLearner.make(
            self._kind,
            self._schema,
            epsilon=self._epsilon,
            delta=self._delta,
            insecure_seed=seed,
        )
        made.estimator.fit(records, labels)
        classes = len(self._schema.classes)
        return as_target(made.estimator.predict_proba, output="probabilities", classes=classes)
