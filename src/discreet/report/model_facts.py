"""The certificate of a model from the directory that it was saved in.

Whatever does not belong together is refused before anything is written about it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from discreet.audit import TrainingAudit
from discreet.certificate import Certificate, read_certificate, schema
from discreet.certificate._old_formats import is_of_0_1
from discreet.certificate._schema import faults
from discreet.errors import FileUnusable, InvalidValue, SchemaError

__all__ = ["digest_on_disk", "disagreements", "model_certificate", "model_files", "read_audit"]

_NOT_ONE = "a directory with a model and the certificate.json that its learner wrote"
_RELEASED = (
    "certificate.json",
    "model.json",
    "model.npz",
    "model.safetensors",
    "schema.toml",
    "summary.png",
    "summary.txt",
)


def model_certificate(directory: str | Path) -> Certificate:
    """Read the certificate that a learner saved with its model, and compare the two."""
    place = Path(directory)
    try:
        known = json.loads((place / "certificate.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not {"schema", "kind"} & set(known):
        raise FileUnusable("model", str(directory), _NOT_ONE)
    certificate = read_certificate(place)
    for problem in disagreements(place, certificate, old=is_of_0_1(known)):
        raise SchemaError(problem)
    return certificate


def disagreements(place: Path, certificate: Certificate, *, old: bool) -> Iterator[str]:
    """How the files of a model do not fit to its certificate; learners of 0.1 wrote no digest."""
    digest = digest_on_disk(place)
    if old and certificate.model_digest is None and (place / "model.npz").exists():
        yield from _model_of_0_1(place)
    elif certificate.model_digest is None:
        yield "certificate.json names no model; save it together with the model"
    elif digest is not None and digest != certificate.model_digest:
        yield "the model is not the one that its certificate was written for"
    if (place / "model.npz").exists():
        from discreet.learn import saved_certificate

        inner = saved_certificate(place / "model.npz")
        if inner is not None:
            yield from _differences(Certificate.from_json(inner), certificate)
    if (place / "schema.toml").exists():
        from discreet.data import Schema

        text = (place / "schema.toml").read_text(encoding="utf-8")
        if certificate.plan.get("schema_hash") not in (None, Schema.from_toml(text).content_hash):
            yield "schema.toml is not the schema that the model was made with"
    if certificate.learner == "DP-SGD":
        from discreet.learn.dpsgd.certificate import problems

        yield from problems(certificate)


def digest_on_disk(place: Path) -> str | None:
    """The digest of the model in a directory, or None if there is none."""
    if (place / "model.npz").exists():
        from discreet.learn import saved_digest

        return saved_digest(place / "model.npz")
    if (place / "model.safetensors").exists():
        from discreet.learn.dpsgd.checkpoint import digest_of, read_tensors

        return digest_of(read_tensors(place / "model.safetensors")[0])
    return None


def _model_of_0_1(place: Path) -> Iterator[str]:
    """A model without a digest is loaded, which compares its parts."""
    from discreet.learn import load_model
    from discreet.pate import holds_student, read_student_directory

    if (place / "model.json").exists():
        (read_student_directory if holds_student(place) else load_model)(place)
    yield from ()


def _differences(inside: Certificate, beside: Certificate) -> Iterator[str]:
    """A certificate that is not that of the model; how its unit is called may differ."""
    for name in ("learner", "loss", "delta", "run", "randomness", "receipt", "versions"):
        if getattr(inside, name) != getattr(beside, name):
            yield f"certificate.json and the certificate inside model.npz disagree about {name}"


def model_files(directory: str | Path) -> list[str]:
    """The files that learners write to be released; whatever else lies there is nobody's business.

    A directory in which a run was checkpointed, or in which somebody keeps records, holds files
    that nobody has paid for.
    """
    place = Path(directory)
    return [name for name in _RELEASED if (place / name).is_file()]


def read_audit(path: str | Path) -> TrainingAudit:
    """Read the outcome of an audit that was written with ``json.dumps(audit.to_json())``."""
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue("audit", str(path), f"a readable file ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise FileUnusable("audit", str(path), "the outcome of an audit in JSON") from None
    whole = schema()
    wrong = faults(body, {"$ref": "#/$defs/audit", "$defs": whole["$defs"]})
    if wrong:
        raise InvalidValue("audit", str(path), f"the outcome of an audit of training ({wrong[0]})")
    fields = {key: value for key, value in body.items() if key not in {"schema", "version"}}
    fields["assumptions"] = tuple(fields["assumptions"])
    return TrainingAudit(**fields)
