"""What is under attack: a saved model, a model in Python, or the answers of one, and its files.

Files are NPZ without pickle, CSV or Parquet; those of one experiment are joined by the names of
their columns, never by their places. Nothing is ever unpickled: a pickle runs code, which is not
expected of a data file. Naming ``module:name`` does run that module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._rounding import at_most
from discreet._validate import one_of
from discreet.attacks._attribute import Attribute
from discreet.attacks._membership_run import RetrainedTwin, membership_inputs
from discreet.attacks._record_files import Records, align_columns, read_answers, read_records
from discreet.attacks._target import OUTPUTS, Target, as_target
from discreet.errors import FileUnusable, InvalidValue, NotApplicable

if TYPE_CHECKING:
    from discreet.data import Schema
    from discreet.privacy import Loss

_MOST_VALUES = 100
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
    numbers: bool = False
    """Whether it is an estimator that predicts a number."""
    class_names: tuple[str, ...] | None = None
    learner: Any = None
    """The estimator of a schema that was trained here, which can be trained again."""
    loss: Loss | None = None
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def retrain(self) -> Callable[..., Any] | None:
        """A function that trains another such model, if its directory says how."""
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

    def read_inputs(
        self, needs: tuple[str, ...], texts: dict[str, str], overlap: str
    ) -> dict[str, Any]:
        """Return what an attack needs of the model; files of records leave ``texts``."""
        if "observation" not in needs and "records" not in needs:
            return {"target": self.target if self.model is None else self.model}
        names = [name for name in ("members", "nonmembers", "public") if name in texts]
        if not {"members", "nonmembers"} <= set(names):
            raise NotApplicable(f"the attack needs members and nonmembers beside {self.title}")
        sets = self.read_all({name: texts.pop(name) for name in names})
        pairs: dict[str, Any] = {name: records.pair for name, records in sets.items()}
        return membership_inputs(
            self.target, **pairs, overlap=overlap, observed="observation" in needs
        )

    def attribute(
        self,
        name: str,
        values: Sequence[str],
        auxiliary: Records,
        *,
        number: Callable[[str, str], float],
    ) -> Attribute:
        """Return a hidden column by its name, or by its number where columns have no names.

        ``values`` are its candidates as texts, which ``number`` reads; without them all that are
        declared, or that occur in ``auxiliary``.
        """
        if self.learner is None:
            return _attribute_of_columns(name, values, auxiliary, number)
        features = self.learner.schema.features
        if name not in features:
            raise InvalidValue("attribute", name, f"one of the columns {', '.join(features)}")
        if self.learner.takes_codes:
            # Codes of labels, or of parts of an interval, one column for each feature.
            place = list(features).index(name)
            labels = getattr(features[name], "labels", None)
            found = [float(code) for code in range(len(labels))] if labels else None
            codes = found or sorted(set(auxiliary.values[:, place].tolist()))
            names = list(labels) if labels else [f"part {code:g}" for code in codes]
            return Attribute(name, columns=place, candidates=codes, values=names)
        from discreet.data import Encoding

        kind = features[name].kind
        chosen = [_parse_value(kind, value, number) for value in values] or None
        return Attribute.from_encoding(Encoding(self.learner.schema), name, values=chosen)


def _parse_value(kind: str, value: str, number: Callable[[str, str], float]) -> object:
    if kind == "boolean":
        if value.lower() not in {"true", "false"}:
            raise InvalidValue("value", value, "true or false")
        return value.lower() == "true"
    return value if kind == "categorical" else number("value", value)


def _attribute_of_columns(
    name: str, values: Sequence[str], auxiliary: Records, number: Callable[[str, str], float]
) -> Attribute:
    parts = name.split(",") if auxiliary.columns is None else [name]
    places = [auxiliary.place("attribute", part, name) for part in parts]
    if values:
        if len(places) > 1:
            raise InvalidValue("value", ", ".join(values), "nothing, for several columns")
        rows = np.array([[number("value", value)] for value in values])
    else:
        rows = np.unique(np.asarray(auxiliary.values, dtype=np.float64)[:, places], axis=0)
    if len(rows) > _MOST_VALUES:
        expected = f"a column with at most {_MOST_VALUES} values (or --value); it has {len(rows)}"
        raise InvalidValue("attribute", name, expected)
    return Attribute(name, columns=places, candidates=rows)


def read_model(
    model: str | None, *, label: str, output: str | None = None, text: str | None = None
) -> AttackTarget:
    """Return the model under attack by its name.

    Parameters
    ----------
    model
        A directory of a saved model, ``module:name`` in Python, which is imported and run, or
        None: then files hold the answers of a model.
    label
        The column of the true class in files of a model in Python.
    output
        What a model in Python gives; the other kinds say so themselves.
    text
        The column with the texts that a model in Python is asked about.

    Returns
    -------
    AttackTarget
        The model, and how files of records are read for it.

    Raises
    ------
    InvalidValue
        If there is no such model, or its output is named and known.
    NotApplicable
        If it predicts a number.
    """
    if output is not None:
        one_of("model_output", output, OUTPUTS)
    if output is not None and (model is None or Path(model).is_dir()):
        raise InvalidValue("model_output", output, "nothing without a model of module:name")
    if text is not None and (model is None or Path(model).is_dir()):
        raise InvalidValue("text", text, "nothing without a model of module:name")
    if model is None:
        return _answers(label)
    if Path(model).is_dir():
        return _train_target(model)
    return _import_model(model, label, output, text)


def import_name(argument: str, path: str) -> Any:
    """Import ``module:name``; the module is looked for in the current directory, too.

    Parameters
    ----------
    argument, path
        The name of an option, for errors, and what was given for it.

    Returns
    -------
    Any
        What has that name.

    Raises
    ------
    InvalidValue
        If it cannot be imported.
    """
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


def _answers(label: str) -> AttackTarget:
    def as_is(records: Any) -> Any:
        return records

    def read(argument: str, path: str) -> Records:
        return read_answers(argument, path, label=label)

    return AttackTarget(
        as_target(as_is, output="probabilities"),
        read,
        "a model that is known by its answers",
        answers_only=True,
    )


def _import_model(model: str, label: str, output: str | None, text: str | None) -> AttackTarget:
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
        return read_records(argument, path, label=label, text=text)

    names = None if target.names is None else tuple(map(str, target.names))
    known = getattr(found, "feature_names_in_", None)
    columns = None if known is None else tuple(map(str, known))
    return AttackTarget(
        target,
        read,
        model,
        model=found,
        class_names=names,
        columns=None if text is not None else columns,
        output=output,
        numbers=_predicts_numbers(found),
    )


def _predicts_numbers(model: Any) -> bool:
    if not hasattr(model, "predict") or not hasattr(model, "get_params"):
        return False
    from sklearn.base import is_regressor  # type: ignore[import-untyped]

    return bool(is_regressor(model))


def _train_target(model: str) -> AttackTarget:
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
