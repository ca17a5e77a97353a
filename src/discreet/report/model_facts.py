"""Public facts of a model from the directory that it was saved in, with its own certificate.

Two kinds of certificates are read: that of the learners for tables (``discreet.learn.certificate``)
and that of DP-SGD (``discreet.learn.dpsgd.certificate``). Whatever does not belong together is
refused before anything is written about it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.audit.verdicts import TrainingAudit
from discreet.errors import InvalidValue, SchemaError
from discreet.report.certificate import schema
from discreet.report.certificate_files import file_hashes
from discreet.report.public_facts import Collection, PaidAnswer, PublicFacts
from discreet.report.schema_check import faults

if TYPE_CHECKING:
    from discreet.learn.certificate import Certificate as LearnerCertificate

__all__ = ["facts_of_directory", "model_files", "read_audit"]

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
_DPSGD_COVERS = (
    "one run by the plan, on the examples as they were passed to it; not what else was read off "
    "the same data: a normaliser, features or a vocabulary that were fitted to them, parameters "
    "that were tried out on them, scores that were computed on them"
)


def facts_of_directory(
    directory: str | Path,
    *,
    title: str,
    files_under: str = "model",
    audits: Sequence[TrainingAudit] = (),
    answers: Sequence[PaidAnswer] = (),
    collection: Collection | None = None,
) -> PublicFacts:
    """Return what may be published about a model that was saved with its certificate.

    ``files_under`` is where the files will lie, relative to the certificate to be written.
    """
    place = Path(directory)
    paper = _certificate(place)
    hashes = file_hashes(place, model_files(place))
    common: dict[str, Any] = {
        "title": title,
        "files": {f"{files_under}/{name}": digest for name, digest in hashes.items()},
        "audits": tuple(audits),
        "answers": tuple(answers),
        "collection": Collection() if collection is None else collection,
    }
    if paper.get("schema") == "discreet.dpsgd.certificate":
        return _dpsgd(place, paper, common)
    if paper.get("kind") == "discreet.learn.certificate":
        return _learner(place, paper, common)
    raise InvalidValue("model", str(directory), _NOT_ONE)


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
        raise InvalidValue("audit", str(path), "the outcome of an audit in JSON") from None
    whole = schema()
    wrong = faults(body, {"$ref": "#/$defs/audit", "$defs": whole["$defs"]})
    if wrong:
        raise InvalidValue("audit", str(path), f"the outcome of an audit of training ({wrong[0]})")
    fields = {key: value for key, value in body.items() if key not in {"schema", "version"}}
    fields["assumptions"] = tuple(fields["assumptions"])
    return TrainingAudit(**fields)


def _certificate(place: Path) -> Mapping[str, Any]:
    try:
        paper = json.loads((place / "certificate.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise InvalidValue("model", str(place), _NOT_ONE) from None
    if not isinstance(paper, dict):
        raise InvalidValue("model", str(place), _NOT_ONE)
    return paper


def _learner(place: Path, paper: Mapping[str, Any], common: dict[str, Any]) -> PublicFacts:
    from discreet.learn.certificate import COVERS, Certificate

    if (place / "model.json").exists():
        from discreet.learn.model_directory import read_model_directory

        read_model_directory(place)
    read = Certificate.from_json(paper)
    if (place / "model.npz").exists():
        from discreet.learn.saving import saved_certificate

        inner = saved_certificate(place / "model.npz")
        if inner is not None:
            _require_same(Certificate.from_json(inner), read)
    return PublicFacts(
        learner=read.learner,
        loss=read.loss,
        delta=read.delta,
        unit=str(read.plan.get("unit", "row")),
        covers=COVERS,
        plan=dict(read.plan),
        versions={"discreet": read.version},
        randomness=dict(read.randomness),
        receipt=read.receipt,
        **common,
    )


def _require_same(inside: LearnerCertificate, beside: LearnerCertificate) -> None:
    """Refuse a certificate that is not that of the model; how its unit is called may differ."""
    for name in ("learner", "loss", "delta", "randomness", "receipt", "version"):
        if getattr(inside, name) != getattr(beside, name):
            raise SchemaError(
                f"certificate.json and the certificate inside model.npz disagree about {name}"
            )


def _dpsgd(place: Path, paper: Mapping[str, Any], common: dict[str, Any]) -> PublicFacts:
    from discreet.learn.dpsgd.certificate import Certificate
    from discreet.learn.dpsgd.checkpoint import digest_of, read_tensors

    read = Certificate.from_json(paper)
    if read.model_digest is None:
        raise SchemaError("certificate.json names no model; save it together with the model")
    tensors, _ = read_tensors(place / "model.safetensors")
    if digest_of(tensors) != read.model_digest:
        raise SchemaError("the model is not the one that its certificate was written for")
    plan = {
        key: value for key, value in read.plan.to_json().items() if key not in {"schema", "version"}
    }
    if read.earlier_plans:
        plan["earlier_plans"] = [one.to_json() for one in read.earlier_plans]
    return PublicFacts(
        learner="DP-SGD",
        loss=read.loss,
        delta=read.delta,
        unit=read.unit,
        covers=_DPSGD_COVERS,
        plan={**plan, "plan_hash": read.plan.content_hash, "steps_taken": read.steps_taken},
        model_digest=read.model_digest,
        versions=dict(read.versions),
        randomness=dict(read.randomness),
        isolation=read.isolation,
        assumptions=read.assumptions,
        method_warnings=read.warnings,
        receipt=read.receipt,
        **common,
    )
