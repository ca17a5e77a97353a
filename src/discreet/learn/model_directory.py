"""A trained model as a directory: model, schema, certificate and summary, complete or absent.

``model.npz`` (arrays and JSON, no pickle), ``model.json`` (which learner), ``schema.toml``,
``certificate.json`` and whatever a caller adds.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from discreet.certificate import Certificate, read_certificate
from discreet.data.schema import Schema
from discreet.data.tables import read_table
from discreet.errors import FileUnusable, NotApplicable, SchemaError
from discreet.learn.choosing import LEARNERS, TableLearner
from discreet.learn.declared import declared_bounds

__all__ = ["read_model_directory", "write_model_files"]

_FORMAT = "discreet.model"
_VERSION = 1


def write_model_files(place: Path, model: TableLearner, certificate: Certificate) -> None:
    """Write a fitted model with the certificate of everything that made it."""
    model.estimator.certificate_ = certificate
    model.save(place / "model.npz")
    head = {"format": _FORMAT, "version": _VERSION, "learner": model.learner}
    (place / "model.json").write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8")
    (place / "schema.toml").write_text(model.schema.to_toml(), encoding="utf-8")
    text = json.dumps(certificate.to_json(), indent=2, allow_nan=False)
    (place / "certificate.json").write_text(text + "\n", encoding="utf-8")


def read_model_directory(place: str | Path) -> TableLearner:
    """Read a model back; a certificate that claims too little, or is of another schema, raises."""
    path = Path(place)
    try:
        head = json.loads((path / "model.json").read_text(encoding="utf-8"))
        text = (path / "schema.toml").read_text(encoding="utf-8")
    except (OSError, ValueError, RecursionError):
        raise FileUnusable("model", str(place), "a directory that discreet train wrote") from None
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise FileUnusable("model", str(place), "a directory that discreet train wrote")
    if head.get("version") != _VERSION or head.get("learner") not in LEARNERS:
        raise SchemaError(f"{path / 'model.json'}: a version or learner that is not known here")
    certificate = read_certificate(path)
    schema = Schema.from_toml(text)
    model = _loaded(head["learner"], schema, path / "model.npz")
    if model.estimator.certificate_.plan.get("schema_hash") != schema.content_hash:
        raise SchemaError("the model and schema.toml do not belong together")
    if model.estimator.certificate_ != certificate:
        raise SchemaError("the model and certificate.json do not belong together")
    return model


def _loaded(learner: str, schema: Schema, place: Path) -> TableLearner:
    """Load the model and have it predict for one made-up record, of which every cell is missing."""
    asked = schema.for_prediction()
    record = read_table({name: [None] for name in asked.columns}, asked)
    try:
        model = TableLearner.load(learner, schema, place)
        _check_declarations(model)
        model.predicted(record)
    except FileNotFoundError:
        raise FileUnusable("model", str(place.parent), "a directory with a model.npz") from None
    except SchemaError:
        raise
    except ImportError as error:
        raise NotApplicable(f"{place} needs {error.name}, which is not installed here") from None
    except Exception as error:  # noqa: BLE001 - a damaged file can fail anywhere, in any way
        raise SchemaError(f"{place} is damaged ({type(error).__name__})") from None
    return model


def _check_declarations(model: TableLearner) -> None:
    """Raise unless a model was told what its schema declares: it would misread the rows."""
    found = model.estimator
    asked = TableLearner.make(model.learner, model.schema, relation=found.relation).estimator
    for name in ("classes", "categories", "target_bounds", "feature_norm", "rows_per_person"):
        if getattr(found, name, None) != getattr(asked, name, None):
            raise SchemaError(f"the model and schema.toml disagree about {name}")
    if hasattr(asked, "bounds"):
        features = int(found.n_features_in_)
        ends = [declared_bounds(one.bounds, features) for one in (found, asked)]
        if not np.array_equal(ends[0], ends[1]):
            raise SchemaError("the model and schema.toml disagree about bounds")
