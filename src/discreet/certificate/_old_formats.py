"""Certificates that 0.1 wrote, in three formats, as documents of version 2.

Nothing is judged here. What 0.1 did not write down is empty, and its warnings are computed anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from discreet.certificate._findings import run_warnings, verdict_on, warnings_on
from discreet.certificate._schema import COVERS, SCHEMA, VERSION, content_hash
from discreet.errors import SchemaError

__all__ = ["as_version_2", "is_of_0_1"]

_LEARNER = ("discreet.learn.certificate", 1)
_DPSGD = ("discreet.dpsgd.certificate", 1)
_PUBLIC = ("discreet.certificate", 1)
_SHARED = ("loss", "delta", "randomness", "versions", "assumptions", "model_digest", "receipt")


def is_of_0_1(document: Mapping[str, Any]) -> bool:
    """Whether a document has one of the formats of 0.1."""
    return _kind(document) in {_LEARNER, _DPSGD, _PUBLIC}


def _kind(document: Mapping[str, Any]) -> tuple[Any, Any]:
    name = document.get("kind", document.get("schema"))
    version = document.get("format", document.get("version"))
    return (name, version) if isinstance(name, str) and type(version) is int else (None, None)


def as_version_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same document in version 2; one that is of no format of 0.1 stays as it is."""
    kind = _kind(document)
    if kind not in {_LEARNER, _DPSGD, _PUBLIC}:
        return dict(document)
    try:
        if kind == _LEARNER:
            body = _of_learner(document)
        elif kind == _DPSGD:
            body = _of_dpsgd(document)
        else:
            body = _of_public(document)
        body["warnings"] = warnings_on(body) if "title" in body else run_warnings(body)
        if "title" in body:
            body["verdict"] = verdict_on(body)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise SchemaError(f"a certificate of 0.1 lacks or mistypes a field: {error}") from None
    return {**body, "hash": content_hash(body)}


def _document(**facts: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "version": VERSION, "covers": COVERS, **facts}


def _of_learner(old: Mapping[str, Any]) -> dict[str, Any]:
    same = ("learner", "loss", "epsilon", "delta", "relation", "unit", "randomness", "receipt")
    return _document(
        **{name: old[name] for name in same},
        plan=dict(old["plan"]),
        run={},
        versions={"discreet": old["version"]},
        assumptions=[],
        model_digest=None,
    )


def _of_dpsgd(old: Mapping[str, Any]) -> dict[str, Any]:
    return _document(
        **{name: old[name] for name in (*_SHARED, "epsilon", "relation", "unit")},
        learner="DP-SGD",
        plan=_without(old["plan"], "schema", "version"),
        run={name: old[name] for name in ("steps_taken", "isolation", "final_clip_norm")},
    )


def _of_public(old: Mapping[str, Any]) -> dict[str, Any]:
    made, promise = old["released"], old["guarantee"]
    run = {}
    if "steps_taken" in made["plan"]:
        run["steps_taken"] = made["plan"]["steps_taken"]
    if made["isolation"] is not None:
        run["isolation"] = made["isolation"]
    return _document(
        **{name: made[name] for name in _SHARED if name != "delta"},
        **{name: promise[name] for name in ("epsilon", "delta", "relation", "unit")},
        learner=made["learner"],
        plan=_without(made["plan"], "plan_hash", "steps_taken"),
        run=run,
        files=made["files"],
        **{name: old[name] for name in ("title", "written", "written_by", "audits", "answers")},
        **{name: old[name] for name in ("collection", "guarantee", "meaning")},
    )


def _without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in names}
