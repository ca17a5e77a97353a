"""Models on the disk: one file of plain arrays and JSON, or a directory; never pickled.

A directory holds ``model.npz`` (arrays and JSON), ``model.json`` (which learner), ``schema.toml``
where the model has a schema, ``certificate.json``, and whatever a caller adds.

A model has a *digest*, of its arrays and of everything in the head but the certificate. It does not
depend on how the file is packed; the certificate states it and the ledger records it.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._files import new_directory, replace_file
from discreet.certificate import Certificate, read_certificate
from discreet.data import Boolean, Schema
from discreet.errors import FileUnusable, InvalidValue, NotApplicable, SchemaError
from discreet.learn._declared import DECLARATIONS, Declared, declared_bounds
from discreet.ledger import Charge

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS: dict[str, Any] = {}
"""The estimators that were defined so far, by name."""

LEARNERS = {
    "logistic": ("PrivateLogisticRegression",),
    "linear": ("PrivateLinearRegression",),
    "naive-bayes": ("PrivateCategoricalNB",),
    "additive": ("PrivateAdditiveClassifier", "PrivateAdditiveRegressor"),
    "tree": ("PrivateDecisionTree",),
    "forest": ("PrivateRandomForest",),
    "mlp": ("PrivateMLPClassifier", "PrivateMLPRegressor"),
}
"""What the command line calls the learners for tables, and the estimators that they are."""

BINS = 8
"""Into how many parts naive Bayes cuts the interval of a number by default."""

_HOMES = {
    "PATEClassifier": "discreet.pate",
    "SyntheticModel": "discreet.synth",
    "ImageModel": "discreet.synth",
    "GanModel": "discreet.synth",
    "LinkedModel": "discreet.synth",
    "PrivateProjectedSGDClassifier": "discreet.learn.projected_sgd",
    "PrivateProjectedSGDRegressor": "discreet.learn.projected_sgd",
    **{name: "discreet.learn" for names in LEARNERS.values() for name in names},
    **dict.fromkeys(("PrivateGaussianNB", "PrivateKMeans", "PrivatePCA"), "discreet.learn"),
}
_DIRECTORY = {"format": "discreet.model", "version": 1}
_WRITTEN_BY = "a directory that discreet train or save_directory wrote"
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
    head, arrays = _read_file(path)
    if head.get("kind") != kind or head.get("format") != _FORMAT:
        raise SchemaError(f"{path} holds {head.get('kind')!r}, not a {kind} of format {_FORMAT}")
    return head, arrays


def _read_file(path: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        # np.load would leave a file open that it cannot read.
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = dict(json.loads(str(arrays.pop(_HEAD))))
    except FileNotFoundError:
        raise
    except _DAMAGES as error:
        raise SchemaError(f"{path} is not a saved model: {error}") from None
    for name, array in arrays.items():
        if array.dtype.kind not in "biufU" or (
            array.dtype.kind == "f" and not np.all(np.isfinite(array))
        ):
            raise SchemaError(f"{path} is damaged: {name} holds what is no finite number")
    return head, arrays


def load_model(path: str | Path) -> Any:
    """Return the fitted estimator of a file or a directory, of any kind.

    Parameters
    ----------
    path
        A file that ``save`` wrote, or a directory that ``save_directory`` or ``discreet train``
        wrote; files of version 0.1 are read too.

    Returns
    -------
    PrivateEstimator
        The model, of the class that was saved. A class that is not of this package must have
        been imported before.

    Raises
    ------
    FileUnusable
        If there is no such file, or the directory holds no model.
    SchemaError
        If something is damaged, or model, schema and certificate do not belong together.
    NotApplicable
        If a package that the model needs is not installed.

    """
    place = Path(path)
    if place.is_dir():
        return _load_directory(place)
    if not place.exists():
        raise FileUnusable("model", str(path), _WRITTEN_BY)
    head, arrays = _read_file(place)
    return _restore_model(place, head, arrays, None)


def _load_directory(place: Path) -> Any:
    try:
        about = json.loads((place / "model.json").read_text(encoding="utf-8"))
        toml = place / "schema.toml"
        text = toml.read_text(encoding="utf-8") if toml.exists() else None
    except (OSError, ValueError, RecursionError):
        raise FileUnusable("model", str(place), _WRITTEN_BY) from None
    if not isinstance(about, dict) or about.get("format") != _DIRECTORY["format"]:
        raise FileUnusable("model", str(place), _WRITTEN_BY)
    if about.get("version") != _DIRECTORY["version"]:
        raise SchemaError(f"{place / 'model.json'}: a version or learner that is not known here")
    certificate = read_certificate(place)
    schema = None if text is None else Schema.from_toml(text)
    try:
        head, arrays = _read_file(place / "model.npz")
    except FileNotFoundError:
        raise FileUnusable("model", str(place), "a directory with a model.npz") from None
    kind = str(head.get("kind"))
    if about.get("learner") != learner_name(kind):
        raise SchemaError(f"{place / 'model.json'}: a version or learner that is not known here")
    model = _restore_model(place / "model.npz", head, arrays, schema)
    known = model.certificate_.plan.get("schema_hash")
    if known != (None if schema is None else schema.content_hash):
        raise SchemaError("the model and schema.toml do not belong together")
    if model.certificate_ != certificate:
        raise SchemaError("the model and certificate.json do not belong together")
    return model


def _restore_model(place: Path, head: dict[str, Any], arrays: Any, schema: Schema | None) -> Any:
    """Make the model, and have it predict for one made-up record, of which every cell is missing.

    A damaged file can fail anywhere, in any way.
    """
    kind = str(head.get("kind"))
    if head.get("format") != _FORMAT:
        raise SchemaError(f"{place} holds {kind!r}, not a model of format {_FORMAT}")
    try:
        model = _find_kind(kind)._from_file(head, arrays, schema)
        if model.schema is not None and hasattr(model, "predict"):
            model.predict({name: [None] for name in model.schema.features})
    except (SchemaError, NotApplicable):
        raise
    except ImportError as error:
        raise NotApplicable(f"{place} needs {error.name}, which is not installed here") from None
    except Exception as error:  # noqa: BLE001 - see above
        raise SchemaError(f"{place} is damaged ({type(error).__name__})") from None
    return model


def _find_kind(kind: str) -> Any:
    home = _HOMES.get(kind)
    if home is not None:
        return getattr(import_module(home), kind)
    if kind not in KINDS:
        raise NotApplicable(
            f"a model of the class {kind!r}, which is not known here: import the module that "
            "defines it, and read it again"
        )
    return KINDS[kind]


def read_plan(certificate: Certificate) -> Any:
    """Return the plan that a certificate states, with its loss computed again.

    Parameters
    ----------
    certificate
        That of a learner of this package, or of a class that was imported before.

    Returns
    -------
    FitPlan
        The plan; its loss is that of the run alone, without what a learned schema cost.

    Raises
    ------
    NotApplicable
        If the learner is not known here, or its certificates do not state all of the plan.
    SchemaError, InvalidValue
        If the plan is damaged.

    """
    if certificate.learner == "DP-SGD":
        from discreet.learn.dpsgd._certificate import plan_of

        return plan_of(certificate)
    return _find_kind(certificate.learner)._stated_plan(certificate)


def plan_problems(certificate: Certificate) -> list[str]:
    """Return what contradicts the plan of a DP-SGD certificate; nothing for other learners.

    Parameters
    ----------
    certificate
        That of a run.

    Returns
    -------
    list of str
        What was computed again and differs.

    Raises
    ------
    SchemaError, InvalidValue
        If the plan is damaged.
    """
    if certificate.learner != "DP-SGD":
        return []
    from discreet.learn.dpsgd._certificate import problems

    return problems(certificate)


def learner_name(kind: str) -> str:
    """Return the name of a kind of estimator on the command line, or else of its class."""
    known = {**LEARNERS, "pate": ("PATEClassifier",)}
    return next((name for name, kinds in known.items() if kind in kinds), kind)


def write_directory(path: str | Path, model: Any) -> None:
    """Write a fitted model to a new directory, all of it or nothing."""
    with new_directory(path) as draft:
        write_model_files(draft, model)


def write_model_files(place: Path, model: Any) -> None:
    """Write the files of a fitted model into a directory."""
    model.save(place / "model.npz")
    head = {**_DIRECTORY, "learner": learner_name(type(model).__name__)}
    (place / "model.json").write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8")
    if model.schema is not None:
        (place / "schema.toml").write_text(model.schema.to_toml(), encoding="utf-8")
    text = json.dumps(model.certificate_.to_json(), indent=2, allow_nan=False)
    (place / "certificate.json").write_text(text + "\n", encoding="utf-8")


@final
@dataclass(frozen=True)
class OldFacts:
    """What a file says that today's files leave to the schema."""

    declarations: Mapping[str, Any]
    by_code: bool
    schema_hash: str | None

    def compare(self, declared: Declared) -> list[int] | None:
        """Raise unless the schema declares the same; return the order of classes, if it changed."""
        given = dict(self.declarations)
        known: dict[str, Any] = {name: getattr(declared, name) for name in given}
        order = None
        if declared.classes is not None and "classes" in given:
            labels = declared.classes.tolist()
            known["classes"] = labels
            if self.by_code:
                assert declared.schema is not None
                target = declared.schema.columns[str(declared.schema.target)]
                names = [False, True] if isinstance(target, Boolean) else declared.schema.classes
                order = [list(names).index(label) for label in labels]
                known["classes"] = list(range(len(labels)))
            given["classes"] = sorted(given["classes"])
        if "bounds" in given:
            given["bounds"], known["bounds"] = (
                [end.tolist() for end in declared_bounds(ends, declared.features)]
                for ends in (given["bounds"], declared.bounds)
            )
        # How many rows were expected is in the plan of the model.
        given.pop("expected_rows", None)
        require_same_facts(given, json.loads(json.dumps(known)))
        return order


def current_parameters(
    parameters: Mapping[str, Any], schema: Schema | None
) -> tuple[dict[str, Any], OldFacts]:
    """Return the parameters of a saved model as today's constructors take them.

    Models of 0.1 had a hash instead of a schema; in directories they were told its facts, and
    classes by their codes. Until today, models with a schema were told its facts as well.
    """
    found = dict(parameters)
    stated = found.pop("schema_hash", None)
    found.pop("engine", None)
    if "pace" in found:
        found["total_step_size"] = found.pop("pace")
    inner = found.get("schema")
    inner = Schema.from_toml(inner) if isinstance(inner, str) else inner
    known = schema if inner is None else inner
    given: dict[str, Any] = {}
    if known is not None:
        given = {name: found.pop(name) for name in DECLARATIONS if found.get(name) is not None}
        found["schema"] = known
        if inner is None and not given:
            raise SchemaError("a saved model lacks the facts that were declared")
        if "categories" in given and found.get("bins") is None:
            found["bins"] = BINS
    return found, OldFacts(given, by_code=inner is None, schema_hash=stated)


def saved_certificate(path: str | Path) -> object:
    """Return the certificate inside a saved model of any kind, as JSON values, or None."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            head = json.loads(str(file[_HEAD]))
    except _DAMAGES as error:
        raise SchemaError(f"{path} is not a saved model: {error}") from None
    return head.get("certificate") if isinstance(head, dict) else None


def saved_digest(path: str | Path) -> str:
    """Return the digest of a saved model of any kind, ``model.npz`` or ``model.safetensors``."""
    if Path(path).suffix == ".safetensors":
        from discreet.learn.dpsgd._checkpoint import digest_of, read_tensors

        return digest_of(read_tensors(Path(path))[0])
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = dict(json.loads(str(arrays.pop(_HEAD))))
    except _DAMAGES as error:
        raise SchemaError(f"{path} is not a saved model: {error}") from None
    head.pop("format", None)
    return digest_model(str(head.pop("kind", "")), head, arrays)


def digest_model(kind: str, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the digest of a model of a kind, from the head and the arrays of its file."""
    facts = {name: value for name, value in head.items() if name != "certificate"}
    facts.pop("format", None)
    text = json.dumps({**facts, "kind": kind}, sort_keys=True, default=_plain)
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
        digest = digest_model(type(model).__name__, *model._contents())
    except (InvalidValue, NotApplicable, TypeError, ValueError):
        digest = None  # it has parts that no file holds: save refuses it
    model.certificate_ = replace(certificate, model_digest=digest).paid_by(charge)


def feature_head(model: Any) -> dict[str, Any]:
    """Return the number of features of a fitted model and, if it knows them, their names."""
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


def require_same_facts(found: Mapping[str, Any], certified: Mapping[str, Any]) -> None:
    """Raise unless a certificate says the same of each fact, as JSON values."""
    for name, value in found.items():
        if name not in certified or certified[name] != json.loads(json.dumps(value)):
            raise SchemaError(f"a saved model and its certificate disagree about {name}")


def _plain(value: Any) -> Any:
    """Return a value of a parameter as JSON values; what has no such form is refused."""
    if isinstance(value, Schema):
        return value.to_toml()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, range):
        return list(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise InvalidValue("parameters", value, "values that JSON can hold")
