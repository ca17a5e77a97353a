"""Models on the disk: one file of plain arrays and JSON, written atomically, never pickled.

A model has a *digest*, of its arrays and of everything in the head but the certificate. It does not
depend on how the file is packed; the certificate states it and the ledger records it.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._files import replace_file
from discreet.certificate import Certificate
from discreet.data.schema import Schema
from discreet.errors import InvalidValue, SchemaError
from discreet.ledger import Charge

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "conclude",
    "feature_head",
    "read_model",
    "same_facts",
    "saved_certificate",
    "saved_digest",
    "set_features",
    "write_model",
]

_HEAD = "discreet_json"
_FORMAT = 1
_DAMAGES = (
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def write_model(
    path: str | Path, *, kind: str, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write ``head`` (JSON) and ``arrays`` to ``path``; a reader sees the old file or all of it."""
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in plain.items():
        if array.dtype.kind not in "biufU" or name == _HEAD:
            raise InvalidValue(name, array.dtype, "an array of numbers, booleans or text")
    text = json.dumps({"kind": kind, "format": _FORMAT, **head}, sort_keys=True, default=_plain)
    with replace_file(path, private=True) as draft, draft.open("wb") as file:
        np.savez(file, allow_pickle=False, **{_HEAD: np.array(text), **plain})


def read_model(path: str | Path, *, kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return head and arrays of a file that :func:`write_model` wrote for this kind of model."""
    try:
        # np.load would leave a file open that it cannot read.
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = json.loads(str(arrays.pop(_HEAD)))
    except FileNotFoundError:
        raise
    except _DAMAGES as error:
        raise SchemaError(f"{path} is not a saved model: {error}") from None
    if not isinstance(head, dict) or head.get("kind") != kind or head.get("format") != _FORMAT:
        found = head.get("kind") if isinstance(head, dict) else None
        raise SchemaError(f"{path} holds {found!r}, not a {kind} of format {_FORMAT}")
    parameters = head.get("parameters")
    if isinstance(parameters, dict) and isinstance(parameters.get("schema"), str):
        parameters["schema"] = Schema.from_toml(parameters["schema"])
    for name, array in arrays.items():
        if array.dtype.kind not in "biufU" or (
            array.dtype.kind == "f" and not np.all(np.isfinite(array))
        ):
            raise SchemaError(f"{path} is damaged: {name} holds what is no finite number")
    return head, arrays


def saved_certificate(path: str | Path) -> object:
    """Return the certificate inside a saved model of any kind, as JSON values, or None."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            head = json.loads(str(file[_HEAD]))
    except _DAMAGES as error:
        raise SchemaError(f"{path} is not a saved model: {error}") from None
    return head.get("certificate") if isinstance(head, dict) else None


def saved_digest(path: str | Path) -> str:
    """Return the digest of a saved model of any kind."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = dict(json.loads(str(arrays.pop(_HEAD))))
    except _DAMAGES as error:
        raise SchemaError(f"{path} is not a saved model: {error}") from None
    head.pop("format", None)
    return _digest(str(head.pop("kind", "")), head, arrays)


def _digest(kind: str, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    told = {name: value for name, value in head.items() if name != "certificate"}
    text = json.dumps({"kind": kind, **told}, sort_keys=True, default=_plain)
    digest = hashlib.sha256(json.dumps(json.loads(text), sort_keys=True).encode())
    for name in sorted(arrays):
        held = np.asarray(arrays[name])
        digest.update(repr((name, held.dtype.str, held.shape)).encode())
        digest.update(held.tobytes())
    return digest.hexdigest()


def conclude(model: Any, certificate: Certificate, charge: Charge | None) -> None:
    """Give a fitted model its certificate, and have the ledger record both.

    ``model._contents()`` gives the head and the arrays of its file, which may need a certificate.
    """
    model.certificate_ = certificate
    try:
        digest = _digest(type(model).__name__, *model._contents())
    except (InvalidValue, TypeError, ValueError):
        digest = None  # it has parts that no file holds: save refuses it
    model.certificate_ = replace(certificate, model_digest=digest).paid_by(charge)


def feature_head(model: Any) -> dict[str, Any]:
    """Return how many features a fitted model has and, where it was told, what they are called."""
    names = getattr(model, "feature_names_in_", None)
    return {
        "n_features": int(model.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
    }


def set_features(model: Any, head: Mapping[str, Any]) -> None:
    """Give a model back what :func:`feature_head` said."""
    names, count = head.get("feature_names"), head["n_features"]
    named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if type(count) is not int or not (names is None or (named and len(names) == count)):
        raise SchemaError("a saved model has a damaged number or list of features")
    model.n_features_in_ = count
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)


def same_facts(found: Mapping[str, Any], certified: Mapping[str, Any]) -> None:
    """Raise unless a certificate says the same of each fact, as JSON values."""
    for name, value in found.items():
        if name not in certified or certified[name] != json.loads(json.dumps(value)):
            raise SchemaError(f"a saved model and its certificate disagree about {name}")


def _plain(value: Any) -> Any:
    """A numpy scalar or array as JSON values, a schema as its text; anything else is refused."""
    if isinstance(value, Schema):
        return value.to_toml()
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise InvalidValue("parameters", value, "values that JSON can hold")
