"""A released student as a directory: the form that ``discreet predict`` reads.

``model.npz`` (arrays and JSON, no pickle), ``model.json``, ``schema.toml``, ``certificate.json``
and whatever a caller adds, as for the learners of :mod:`discreet.learn.model_directory`.
"""

from __future__ import annotations

import json
from pathlib import Path

from discreet.certificate import read_certificate
from discreet.data.schema import Schema
from discreet.data.tables import read_table
from discreet.errors import NotApplicable, SchemaError
from discreet.learn.choosing import TableLearner
from discreet.pate.classifier import PATEClassifier

__all__ = ["holds_student", "read_student_directory", "write_student_files"]

_FORMAT = "discreet.model"
_VERSION = 1
_LEARNER = "pate"


def holds_student(place: str | Path) -> bool:
    """Whether a directory says that it holds a student of PATE."""
    try:
        head = json.loads((Path(place) / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(head, dict) and head.get("learner") == _LEARNER


def write_student_files(place: Path, model: PATEClassifier, schema: Schema) -> None:
    """Write a fitted student with its schema and certificate."""
    model.save(place / "model.npz")
    head = {"format": _FORMAT, "version": _VERSION, "learner": _LEARNER}
    (place / "model.json").write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8")
    (place / "schema.toml").write_text(schema.to_toml(), encoding="utf-8")
    text = json.dumps(model.certificate_.to_json(), indent=2, allow_nan=False)
    (place / "certificate.json").write_text(text + "\n", encoding="utf-8")


def read_student_directory(place: str | Path) -> TableLearner:
    """Read a student back; what does not belong together, or is damaged, raises."""
    path = Path(place)
    try:
        head = json.loads((path / "model.json").read_text(encoding="utf-8"))
        schema = Schema.from_toml((path / "schema.toml").read_text(encoding="utf-8"))
        certificate = read_certificate(path)
        model = PATEClassifier.load(path / "model.npz")
        learner = TableLearner(_LEARNER, schema, model)
        asked = schema.for_prediction()
        learner.predicted(read_table({name: [None] for name in asked.columns}, asked))
    except SchemaError:
        raise
    except ImportError as error:
        raise NotApplicable(f"{path} needs {error.name}, which is not installed here") from None
    except Exception as error:  # noqa: BLE001 - a damaged file can fail anywhere, in any way
        raise SchemaError(f"{path} is damaged ({type(error).__name__})") from None
    if (head.get("format"), head.get("version")) != (_FORMAT, _VERSION):
        raise SchemaError(f"{path / 'model.json'}: a version that is not known here")
    if model.certificate_.plan.get("schema_hash") != schema.content_hash:
        raise SchemaError("the student and schema.toml do not belong together")
    if model.certificate_ != certificate:
        raise SchemaError("the student and certificate.json do not belong together")
    return learner
