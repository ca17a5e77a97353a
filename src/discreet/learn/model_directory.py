"""A trained model as a directory: model, schema, certificate and summary, complete or absent.

``model.npz`` (arrays and JSON, no pickle), ``model.json`` (which learner), ``schema.toml``,
``certificate.json`` and whatever a caller adds. The directory is built beside its place under
another name and moved there in one step.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import numpy as np

from discreet.certificate import Certificate, read_certificate
from discreet.data.schema import Schema
from discreet.data.tables import read_table
from discreet.errors import FileUnusable, NotApplicable, SchemaError
from discreet.learn.choosing import LEARNERS, TableLearner
from discreet.learn.declared import declared_bounds

__all__ = ["new_directory", "read_model_directory", "write_model_files"]

_FORMAT = "discreet.model"
_VERSION = 1


@contextmanager
def new_directory(out: str | Path, *, argument: str = "out") -> Iterator[Path]:
    """A directory to write into, which becomes ``out`` when the block succeeds.

    Entering the block proves that it can be made; an existing place is refused. If the place is
    taken while the block runs, the directory stays where it is and the error says where. A process
    that is told to end (SIGTERM) leaves nothing, as after an error.
    """
    target = Path(out)
    expected = "a directory that does not exist yet, in one that does"
    try:
        # os.lstat and not exists(), which takes a name that is too long for one that is free.
        os.lstat(target)
        taken = True
    except FileNotFoundError:
        taken = not target.name
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name is possible"
        raise FileUnusable(argument, str(out), f"{expected} ({reason})") from None
    if taken:
        raise FileUnusable(argument, str(out), expected)
    draft = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}")
    try:
        draft.mkdir()
    except OSError as error:
        raise FileUnusable(argument, str(out), f"{expected} ({error.strerror})") from None
    try:
        with _ending_as_an_error():
            yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    try:
        draft.rename(target)
    except OSError as error:
        # Somebody took the place meanwhile; what is in the draft was paid for.
        kept = f"{expected} ({error.strerror}); what was to be there is complete, in {draft}"
        raise FileUnusable(argument, str(out), kept) from None


@contextmanager
def _ending_as_an_error() -> Iterator[None]:
    """Have SIGTERM unwind the block as an exit, where nobody else has decided what it does."""
    alone = threading.current_thread() is threading.main_thread()
    if not alone or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    owner = os.getpid()

    def end(number: int, _: FrameType | None) -> NoReturn:
        if os.getpid() != owner:
            os._exit(128 + number)  # a forked worker, whose end removes nothing
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
