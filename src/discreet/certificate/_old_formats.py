"""Certificates that 0.1 wrote, in three formats, as documents of version 2.

Fields that 0.1 did not write are refused; nothing else is judged here. What 0.1 did not write down
is empty, and its warnings are computed anew. A loss in a form that is refused today is given in
today's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from discreet.certificate._findings import run_warnings, verdict_on, warnings_on
from discreet.certificate._schema import COVERS, SCHEMA, VERSION, content_hash
from discreet.errors import DiscreetError, SchemaError
from discreet.privacy import from_json, read_old, to_json

__all__ = ["as_version_2", "is_of_0_1", "todays_form"]

_LEARNER = ("discreet.learn.certificate", 1)
_DPSGD = ("discreet.dpsgd.certificate", 1)
_PUBLIC = ("discreet.certificate", 1)
_FIELDS = {
    _LEARNER: {
        *("kind", "format", "learner", "loss", "epsilon", "delta", "relation", "unit", "covers"),
        *("plan", "randomness", "receipt", "version"),
    },
    _DPSGD: {
        *("schema", "version", "plan", "plan_hash", "loss", "epsilon", "epsilon_lower", "delta"),
        *("relation", "unit", "sampler", "steps_taken", "isolation", "final_clip_norm"),
        *("randomness", "warnings", "assumptions", "versions", "receipt", "model_digest"),
    },
    _PUBLIC: {
        *("schema", "version", "part", "title", "written", "written_by", "guarantee", "meaning"),
        *("audits", "released", "answers", "collection", "warnings", "verdict", "hash"),
    },
}
_RELEASED = {
    *("learner", "loss", "plan", "files", "model_digest", "versions", "randomness", "isolation"),
    *("assumptions", "method_warnings", "covers", "receipt"),
}
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
        _require_fields(document, _FIELDS[kind])
        if kind == _LEARNER:
            body = _of_learner(document)
        elif kind == _DPSGD:
            body = _of_dpsgd(document)
        else:
            body = _of_public(document)
        body["warnings"] = warnings_on(body) if "title" in body else run_warnings(body)
        if "title" in body:
            body["verdict"] = verdict_on(body)
    except SchemaError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise SchemaError(f"a certificate of 0.1 lacks or mistypes a field: {error}") from None
    return {**body, "hash": content_hash(body)}


def todays_form(loss: Mapping[str, Any]) -> Mapping[str, Any]:
    """A loss that 0.1 wrote, in a form that is read today; one that has none stays as it is."""
    try:
        from_json(loss)
    except DiscreetError:
        try:
            return to_json(read_old(loss).loss)
        except DiscreetError:
            pass
    return loss


def _require_fields(table: Mapping[str, Any], names: set[str], at: str = "") -> None:
    for name in sorted(set(table) ^ names):
        what = "is missing" if name in names else "is not a field that 0.1 wrote"
        raise SchemaError(f"certificate: {at}{name} {what}")


def _document(**facts: Any) -> dict[str, Any]:
    loss = todays_form(facts.pop("loss"))
    return {"schema": SCHEMA, "version": VERSION, "covers": COVERS, "loss": loss, **facts}


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
    made, promise = old["released"], dict(old["guarantee"])
    _require_fields(made, _RELEASED, "released.")
    loss = todays_form(promise["loss"])
    if loss is not promise["loss"]:
        promise |= {"loss": loss, "description": repr(from_json(loss))}
    answers = [{**one, "loss": todays_form(one["loss"])} for one in old["answers"]]
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
        guarantee=promise,
        answers=answers,
        **{name: old[name] for name in ("title", "written", "written_by", "audits")},
        **{name: old[name] for name in ("collection", "meaning")},
    )


def _without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in names}
