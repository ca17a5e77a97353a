"""The model under attack, and the records it is asked about, from what the command line names.

A model is a directory that ``discreet train`` wrote, or ``module:name`` in Python: the model itself
or a function without arguments that returns it. Without a model, the files hold its answers.
Nothing is ever unpickled: a pickle runs code, and nobody expects that from a data file. Naming
``module:name`` does run that module, which is said in the help.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import __version__
from discreet._rounding import at_most
from discreet.cli.attack_records import Records, in_order_of, read_answers, read_records
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from discreet.attacks import Target
    from discreet.data import Schema
    from discreet.privacy import Loss

__all__ = ["SameLearner", "Subject", "imported", "output_kind", "read_as", "subject"]

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
    columns: tuple[str, ...] | None = None
    """The columns that the model was trained on, if it knows their names."""
    output: str | None = None
    """What the model gives, if the command line says so."""
    class_names: tuple[str, ...] | None = None
    learner: Any = None
    """The estimator of a schema that was trained here, which can be trained again."""
    loss: Loss | None = None
    about: Mapping[str, str] = field(default_factory=dict)

    def read_all(self, files: Mapping[str, str]) -> dict[str, Records]:
        """Read files by the names of their arguments, and join them by the names of columns."""
        sets: dict[str, Records] = {}
        for argument, path in files.items():
            found = self.read(argument, path)
            if self.columns is not None and found.columns is not None:
                found = in_order_of(self.columns, argument, path, found, of="the model")
            if sets:
                first = next(iter(sets))
                columns = sets[first].columns
                found = in_order_of(columns, argument, path, found, of=files[first])
            sets[argument] = found
        return sets


def subject(model: str | None, *, label: str, output: str | None = None) -> Subject:
    """Return what ``--model`` names; without it, files are answers of a model.

    ``output`` is what an imported model gives: the other kinds say so themselves.
    """
    output_kind("model_output", output)
    if output is not None and (model is None or Path(model).is_dir()):
        raise InvalidValue("model_output", output, "nothing without a model of module:name")
    if model is None:
        return _answers(label)
    if Path(model).is_dir():
        return _trained(model)
    return _imported_model(model, label, output)


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


def output_kind(argument: str, text: str | None) -> str | None:
    """Return what ``--model-output`` says, if it is a kind of output."""
    from discreet.attacks import OUTPUTS

    if text is not None and text not in OUTPUTS:
        raise InvalidValue(argument, text, "one of " + ", ".join(OUTPUTS))
    return text


def read_as(model: Any, output: str | None) -> Any:
    """Return a model that was trained like the subject, whose output is of the same kind.

    Estimators and targets say themselves what they give.
    """
    if output is None or not hasattr(model, "state_dict"):
        return model
    from discreet.attacks import as_target

    return as_target(model, output=output)


def _answers(label: str) -> Subject:
    from discreet.attacks import as_target

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


def _imported_model(model: str, label: str, output: str | None) -> Subject:
    from discreet.attacks import Target, as_target

    found = imported("model", model)
    ready = isinstance(found, Target) or hasattr(found, "predict") or hasattr(found, "state_dict")
    # A class has these attributes as well; what it makes is the model.
    if isinstance(found, type) or not ready:
        if not callable(found):
            raise InvalidValue("model", model, "a model, or a function that returns one")
        found = found()
    try:
        target = as_target(found, output=output)
    except InvalidValue as error:
        if output is not None and error.argument == "output":
            raise InvalidValue("model_output", output, error.expected) from None
        expected = f"a model, or a function that returns one; of {error.argument}: {error.expected}"
        raise InvalidValue("model", model, expected) from None

    def read(argument: str, path: str) -> Records:
        return read_records(argument, path, label=label)

    names = None if target.names is None else tuple(map(str, target.names))
    known = getattr(found, "feature_names_in_", None)
    columns = None if known is None else tuple(map(str, known))
    return Subject(
        target,
        read,
        model,
        model=found,
        class_names=names,
        columns=columns,
        output=output,
    )


def _trained(model: str) -> Subject:
    from discreet.attacks import as_target
    from discreet.learn import learner_name, load_model
    from discreet.pate import holds_student, read_student_directory

    student = holds_student(model)
    learner: Any = read_student_directory(model) if student else load_model(model)
    schema = learner.schema
    if schema.task != "classification":
        raise NotApplicable("these attacks need a model of classes; this one predicts a number")
    # Every row of a file is asked about, whoever it belongs to.
    each_row = replace(schema, person=None, rows_per_person=None)
    encoded = learner.for_encoded_rows()
    target = as_target(encoded.predict_proba, output="probabilities", classes=len(schema.classes))

    def read(argument: str, path: str) -> Records:
        return _table(argument, path, each_row, learner)

    certificate = learner.certificate_
    return Subject(
        target,
        read,
        model,
        model=encoded,
        class_names=_class_names(learner),
        learner=None if student else learner,  # teachers and public rows are not in the directory
        loss=certificate.loss,
        about={
            "learner": learner_name(certificate.learner),
            "epsilon": at_most(certificate.epsilon),
            "delta": f"{certificate.delta:g}",
        },
    )


def _class_names(learner: Any) -> tuple[str, ...]:
    """Return the words of the classes, in the order of the model."""
    found = learner.classes_
    return tuple(learner.schema.classes if found.dtype.kind == "b" else found.tolist())


def _table(argument: str, path: str, schema: Schema, learner: Any) -> Records:
    from discreet.data import Encoding, read_table

    try:
        table = read_table(path, schema)
    except InvalidValue as error:
        renamed = error.argument.replace("data", argument, 1)
        raise InvalidValue(renamed, error.value, error.expected) from None
    if len(table) == 0:
        raise InvalidValue(argument, path, "a table with at least one row")
    words = np.array(schema.classes, dtype=object)[Encoding(schema).target(table)]
    names = _class_names(learner)
    codes = np.array([names.index(word) for word in words], dtype=np.int64)
    return Records(learner.encoded(table), codes, tuple(schema.features))


class SameLearner:
    """Trains another model as ``discreet train`` trained this one, on encoded records.

    Every parameter is that of the estimator in the directory, chosen or by default; only
    randomness follows the seed, because a shadow model protects nobody.
    """

    def __init__(self, learner: Any) -> None:
        self._estimator = learner.for_encoded_rows()
        self._classes = self._estimator.classes_
        parameters = self._estimator.get_params(deep=False)
        told = {name: value for name, value in parameters.items() if name != "insecure_seed"}
        name = type(learner).__name__
        self.cache_key = " ".join((__version__, name, learner.schema.content_hash, _written(told)))

    def __call__(self, records: Any, labels: Any, seed: int) -> Any:
        from sklearn.base import clone  # type: ignore[import-untyped]

        from discreet.attacks import as_target

        made = clone(self._estimator).set_params(insecure_seed=seed)
        made.fit(records, self._classes[np.asarray(labels)])
        count = len(self._classes)
        return as_target(made.predict_proba, output="probabilities", classes=count)


def _written(parameters: Mapping[str, Any]) -> str:
    """The parameters of a model that was read from a file, as JSON."""
    return json.dumps(parameters, sort_keys=True, default=str)
