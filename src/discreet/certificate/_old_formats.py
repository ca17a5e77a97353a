"""Certificates that 0.1 wrote, in three formats, as documents of version 2.

Fields that 0.1 did not write are refused; nothing else is judged here. What 0.1 did not write down
is empty, and its warnings are computed anew. A loss in a form that is refused today is given in
today's form. Fields that version 2 has no place for follow from others, so that one that was
changed is found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from discreet._json import digest_of
from discreet.certificate._findings import (
    content_hash,
    delta_warning,
    is_insecure,
    run_warnings,
    verdict_on,
    warnings_on,
)
from discreet.certificate._schema import COVERS, SCHEMA, VERSION
from discreet.errors import DiscreetError, SchemaError
from discreet.privacy import from_json, read_old, to_json

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
_VERSIONS_AGREE = 1e-3
_OLD_COVERS = (
    "one fit, on the data as they were passed to it; not what else was read off the same data: "
    "scaling or features that were fitted to them, parameters that were tried out on them, "
    "scores that were computed on them"
)
_DPSGD_COVERS = (
    "one run by the plan, on the examples as they were passed to it; not what else was read off "
    "the same data: a normaliser, features or a vocabulary that were fitted to them, parameters "
    "that were tried out on them, scores that were computed on them"
)
_HEAD = {"schema": "discreet.dpsgd.plan", "version": 1}
_CONSISTENT = (
    "The accountant's bound was put to the test and not refuted, by an audit that could have "
    "refuted it."
)
_CHARGED_MORE = (
    "The ledger was charged more for this than the certificate states. One of the two is wrong, "
    "and the larger one is the safe one to believe."
)


def is_of_0_1(document: Mapping[str, Any]) -> bool:
    """Say whether a document has one of the formats of 0.1."""
    return _kind(document) in {_LEARNER, _DPSGD, _PUBLIC}


def _kind(document: Mapping[str, Any]) -> tuple[Any, Any]:
    name = document.get("kind", document.get("schema"))
    version = document.get("format", document.get("version"))
    return (name, version) if isinstance(name, str) and type(version) is int else (None, None)


def as_version_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of 0.1 in version 2; any other one stays as it is."""
    kind = _kind(document)
    if kind not in {_LEARNER, _DPSGD, _PUBLIC}:
        return dict(document)
    try:
        _require_fields(document, _FIELDS[kind])
        if kind == _LEARNER:
            body = _convert_learner(document)
        elif kind == _DPSGD:
            body = _convert_dpsgd(document)
        else:
            body = _convert_public_part(document)
        body["warnings"] = warnings_on(body) if "title" in body else run_warnings(body)
        if "title" in body:
            body["verdict"] = verdict_on(body)
    except SchemaError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise SchemaError(f"a certificate of 0.1 lacks or mistypes a field: {error}") from None
    return {**body, "hash": content_hash(body)}


def todays_form(loss: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a loss that 0.1 wrote in the form of today; one that has none stays as it is."""
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


def _convert_learner(old: Mapping[str, Any]) -> dict[str, Any]:
    same = ("learner", "loss", "epsilon", "delta", "relation", "unit", "randomness", "receipt")
    return _document(
        **{name: old[name] for name in same},
        plan=dict(old["plan"]),
        run={},
        versions={"discreet": old["version"]},
        assumptions=[],
        model_digest=None,
    )


def _convert_dpsgd(old: Mapping[str, Any]) -> dict[str, Any]:
    return _document(
        **{name: old[name] for name in (*_SHARED, "epsilon", "relation", "unit")},
        learner="DP-SGD",
        plan=_drop_fields(old["plan"], "schema", "version"),
        run={name: old[name] for name in ("steps_taken", "isolation", "final_clip_norm")},
    )


def _convert_public_part(old: Mapping[str, Any]) -> dict[str, Any]:
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
        plan=_drop_fields(made["plan"], "plan_hash", "steps_taken"),
        run=run,
        files=made["files"],
        guarantee=promise,
        answers=answers,
        **{name: old[name] for name in ("title", "written", "written_by", "audits")},
        **{name: old[name] for name in ("collection", "meaning")},
    )


def _drop_fields(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in names}


# --- what follows from other fields --------------------------------------------------------


def faults_of_0_1(found: Mapping[str, Any]) -> Iterator[str]:
    """Return the fields that 0.1 would have written otherwise, by what its other fields say."""
    covers, right = None, None
    if "kind" in found:
        version, covers, right = found["version"], found["covers"], _OLD_COVERS
    elif "released" in found:
        made = found["released"]
        version, covers = found["written_by"].removeprefix("discreet "), made["covers"]
        right = _DPSGD_COVERS if made["learner"] == "DP-SGD" else _OLD_COVERS
        if found["part"] != "public":
            yield "part is not public"
        if made["learner"] == "DP-SGD":
            plan = {k: v for k, v in made["plan"].items() if k not in {"plan_hash", "steps_taken"}}
            yield from _plan_hash({**_HEAD, **plan}, made["plan"].get("plan_hash"))
        wanted = _method_warnings(made["learner"], {**made, "delta": found["guarantee"]["delta"]})
        if made["method_warnings"] != wanted:
            yield "method_warnings are not those that the plan calls for"
    else:
        version = found["versions"].get("discreet")
        yield from _plan_hash(found["plan"], found["plan_hash"])
        if found["sampler"] != found["plan"]["sampler"]:
            yield "sampler is not that of the plan"
        least = found["epsilon_lower"]
        if least is not None:
            best = from_json(found["loss"]).epsilon_bounds(delta=found["delta"]).lower
            if not 0.0 <= least <= best * (1.0 + _VERSIONS_AGREE):
                yield f"epsilon_lower is stated as {least:g} and is {best:g}"
    if covers != right:
        yield "what it covers is not what certificates of 0.1 cover"
    if not isinstance(version, str) or not version.startswith("0.1."):
        yield f"a version {version!r} did not write this format"


def _plan_hash(plan: Mapping[str, Any], said: object) -> Iterator[str]:
    if digest_of(plan) != said:
        yield "the plan does not have the stated hash"


def warning_faults_of_0_1(found: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """Return warnings and verdict that are not those of 0.1; ``document`` is of version 2."""
    if "released" not in found:
        if found["warnings"] != _method_warnings("DP-SGD", found):
            yield "the warnings are not those that the facts call for"
        return
    made = found["released"]
    body = {
        **document,
        "covers": made["covers"],
        # The plan's own warnings are among those of the method here.
        "plan": {},
        "run": {} if made["isolation"] is None else {"isolation": made["isolation"]},
    }
    right = [
        (one["severity"], one["layer"], _reword(one["text"]))
        for one in warnings_on(body)
        if not one["text"].startswith("INSECURE RANDOMNESS")
    ]
    answers = [one["randomness"] for one in found["answers"]]
    insecure = is_insecure(made["randomness"], *answers)
    said = [tuple(one[name] for name in ("severity", "layer", "text")) for one in found["warnings"]]
    if insecure != any(text.startswith("INSECURE RANDOMNESS") for _, _, text in said):
        yield "the warnings are not those that the facts call for"
        return
    right += [
        ("caution", "undermines", f"{text[0].upper()}{text[1:].rstrip('.')}.")
        for text in made["method_warnings"]
        if "INSECURE" not in text
    ]
    said = [one for one in said if not one[2].startswith("INSECURE RANDOMNESS")]
    if sorted(said) != sorted(right):
        yield "the warnings are not those that the facts call for"
    verdict = verdict_on(body)
    if verdict["state"] == "consistent":
        verdict["sentence"] = _CONSISTENT
    if found["verdict"] != verdict:
        yield "the verdict is not the one that the facts call for"


def _reword(text: str) -> str:
    return _CHARGED_MORE if text.startswith("The ledger was charged another loss") else text


def _method_warnings(learner: str, facts: Mapping[str, Any]) -> list[str]:
    """What 0.1 wrote beside a run of DP-SGD; other learners wrote no warnings."""
    if learner != "DP-SGD":
        return []
    text = delta_warning(facts["delta"], facts["plan"]["examples"])
    found = [] if text is None else [text]
    if is_insecure(facts["randomness"]):
        insecure = (
            "INSECURE RANDOMNESS: batches and noise can be reproduced from a seed; this model has "
            "no privacy and must not be released"
        )
        found.insert(0, insecure)
    if facts["isolation"] == "vouched":
        found.append("that examples do not influence one another was not probed")
    return found
