"""The model under attack, and the records it is asked about, from what the command line names.

A model is a directory that ``discreet train`` wrote, or ``module:name`` in Python: the model itself
or a function without arguments that returns it. Without a model, the files hold its answers.
Records are NPZ without pickle, CSV or Parquet; files of one experiment are joined by the names of
their columns, never by their places. Nothing is ever unpickled: a pickle runs code, which is not
expected of a data file. Naming ``module:name`` does run that module, which is said in the help.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._rounding import at_most
from discreet.attacks import (
    Records,
    align_columns,
    membership_inputs,
    read_answers,
    read_records,
)
from discreet.errors import FileUnusable, InvalidValue, NotApplicable

if TYPE_CHECKING:
    from discreet.attacks import Target
    from discreet.data import Schema
    from discreet.privacy import Loss

_MODEL = "a directory that discreet train wrote, or module:name in Python"


@dataclass(frozen=True)
class AttackTarget:
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

    @property
    def retrain(self) -> Callable[..., Any] | None:
        """A function that trains another such model, if its directory says how."""
        from discreet.attacks import RetrainedTwin

        return None if self.learner is None else RetrainedTwin(self.learner)

    def read_all(self, files: Mapping[str, str]) -> dict[str, Records]:
        """Read files by the names of their arguments, and join them by the names of columns."""
        sets: dict[str, Records] = {}
        for argument, path in files.items():
            found = self.read(argument, path)
            if self.columns is not None and found.columns is not None:
                found = align_columns(self.columns, argument, path, found, of="the model")
            if sets:
                first = next(iter(sets))
                columns = sets[first].columns
                found = align_columns(columns, argument, path, found, of=files[first])
            sets[argument] = found
        return sets


def read_model_inputs(
    asked: AttackTarget, needs: tuple[str, ...], texts: dict[str, str], overlap: str
) -> dict[str, Any]:
    """Return what an attack needs of a model; texts of files of records leave ``texts``."""
    if "observation" not in needs and "records" not in needs:
        return {"target": asked.target if asked.model is None else asked.model}
    names = [name for name in ("members", "nonmembers", "public") if name in texts]
    if not {"members", "nonmembers"} <= set(names):
        raise NotApplicable(f"the attack needs members and nonmembers beside {asked.title}")
    sets = asked.read_all({name: texts.pop(name) for name in names})
    pairs: dict[str, Any] = {name: records.pair for name, records in sets.items()}
    return membership_inputs(
        asked.target, **pairs, overlap=overlap, observed="observation" in needs
    )


def read_model(model: str | None, *, label: str, output: str | None = None) -> AttackTarget:
    """Return what ``--model`` names; without it, files are answers of a model.

    ``output`` is what an imported model gives: the other kinds say so themselves.
    """
    check_output_kind("model_output", output)
    if output is not None and (model is None or Path(model).is_dir()):
        raise InvalidValue("model_output", output, "nothing without a model of module:name")
    if model is None:
        return _answers(label)
    if Path(model).is_dir():
        return _trained(model)
    return _imported_model(model, label, output)


def import_name(argument: str, path: str) -> Any:
    """Return ``module:name``; the module is looked for in the current directory, too."""
    module, colon, name = path.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        if argument == "model" and not colon:
            raise FileUnusable(argument, path, _MODEL)
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


def check_output_kind(argument: str, text: str | None) -> str | None:
    """Return what ``--model-output`` says, if it is a kind of output."""
    from discreet.attacks import OUTPUTS

    if text is not None and text not in OUTPUTS:
        raise InvalidValue(argument, text, "one of " + ", ".join(OUTPUTS))
    return text


def _answers(label: str) -> AttackTarget:
    from discreet.attacks import as_target

    def same(records: Any) -> Any:
        return records

    def read(argument: str, path: str) -> Records:
        return read_answers(argument, path, label=label)

    return AttackTarget(
        as_target(same, output="probabilities"),
        read,
        "a model that is known by its answers",
        answers_only=True,
    )


def _imported_model(model: str, label: str, output: str | None) -> AttackTarget:
    from discreet.attacks import Target, as_target

    found = import_name("model", model)
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
    return AttackTarget(
        target,
        read,
        model,
        model=found,
        class_names=names,
        columns=columns,
        output=output,
    )


def _trained(model: str) -> AttackTarget:
    from discreet.attacks import as_target
    from discreet.learn import learner_name, load_model

    learner: Any = load_model(model)
    student = type(learner).__name__ == "PATEClassifier"
    schema = learner.schema
    if schema.task != "classification":
        raise NotApplicable("these attacks need a model of classes; this one predicts a number")
    # Every row of a file is asked about, whoever it belongs to.
    each_row = replace(schema, person=None, rows_per_person=None)
    encoded = learner.for_encoded_rows()
    target = as_target(encoded.predict_proba, output="probabilities", classes=len(schema.classes))

    def read(argument: str, path: str) -> Records:
        return _schema_table(argument, path, each_row, learner)

    certificate = learner.certificate_
    return AttackTarget(
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


def _schema_table(argument: str, path: str, schema: Schema, learner: Any) -> Records:
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
