"""Fields of certificates of 0.1 that version 2 has no place for, computed again.

They follow from other fields, so one that was changed is found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from discreet._json import digest_of
from discreet.certificate._findings import delta_warning, is_insecure, verdict_on, warnings_on
from discreet.privacy import from_json

__all__ = ["faults_of_0_1", "warning_faults_of_0_1"]

_VERSIONS_AGREE = 1e-3
_COVERS = (
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


def faults_of_0_1(found: Mapping[str, Any]) -> Iterator[str]:
    """Fields that 0.1 would have written otherwise, by what its other fields say."""
    covers, right = None, None
    if "kind" in found:
        version, covers, right = found["version"], found["covers"], _COVERS
    elif "released" in found:
        made = found["released"]
        version, covers = found["written_by"].removeprefix("discreet "), made["covers"]
        right = _DPSGD_COVERS if made["learner"] == "DP-SGD" else _COVERS
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
    """Warnings and verdict that are not those that 0.1 wrote; ``document`` is of version 2."""
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
        (one["severity"], one["layer"], _worded(one["text"]))
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


def _worded(text: str) -> str:
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
