"""What a reader of a certificate must be told, ranked, as a function of what the document says.

Severities: *void* (there is no guarantee), *serious* (it may say much less than it seems),
*caution* (a reader should know), *note*. Layers are those of the pyramid: the guarantee, what
undermines it, the collection of the data. Whoever checks a certificate computes the list again,
so that a warning cannot be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from discreet.report.audit_check import many_runs

__all__ = ["SEVERITIES", "verdict_on", "warnings_on"]

SEVERITIES = ("void", "serious", "caution", "note")
LAYERS = ("guarantee", "undermines", "collection")

_Warning = tuple[str, str, str]
# NIST SP 800-226 and practice: beyond these an epsilon bounds little, whatever the audit says.
_LARGE, _VERY_LARGE = 5.0, 15.0
_LARGE_DELTA, _VERY_LARGE_DELTA = 1e-4, 1e-3


def warnings_on(body: Mapping[str, Any]) -> list[dict[str, str]]:
    """The warnings that the facts of a certificate call for, the most severe first."""
    found = [*_about_the_guarantee(body), *_about_what_undermines(body), *_about_collection(body)]
    ranked = sorted(found, key=lambda one: (SEVERITIES.index(one[0]), LAYERS.index(one[1])))
    return [dict(zip(("severity", "layer", "text"), one, strict=True)) for one in ranked]


def verdict_on(body: Mapping[str, Any]) -> dict[str, str]:
    """One word and one sentence: what claim and audits together say."""
    epsilon = body["guarantee"]["epsilon"]
    states = [audit["verdict"] for audit in body["audits"]]
    if _insecure(body):
        state = "void"
        sentence = "The noise can be reproduced from a seed: there is no privacy at all."
    elif "violated" in states:
        state = "violated"
        sentence = (
            "An audit shows more than the accountant allows: the claim, the training or the audit "
            "is wrong. Do not release."
        )
    elif epsilon is None:
        state = "void"
        sentence = "No finite epsilon holds at this delta: nothing is guaranteed."
    elif not states:
        state = "not audited"
        sentence = (
            "The accountant's bound holds if the assumptions do; nobody has tried to refute it."
        )
    elif "consistent" in states:
        state = "consistent"
        sentence = (
            "The accountant's bound was put to the test and not refuted, by an audit that could "
            "have refuted it."
        )
    else:
        state = "too weak to tell"
        sentence = "The audit could not have refuted the bound, whatever the training had done."
    return {"state": state, "sentence": sentence}


def _insecure(body: Mapping[str, Any]) -> bool:
    tables = [body["released"]["randomness"], *(one["randomness"] for one in body["answers"])]
    return any("INSECURE" in str(text) for table in tables for text in table.values())


def _about_the_guarantee(body: Mapping[str, Any]) -> Iterator[_Warning]:
    promise = body["guarantee"]
    epsilon, delta = promise["epsilon"], promise["delta"]
    if epsilon is None:
        yield "void", "guarantee", "No finite epsilon holds at this delta: nothing is guaranteed."
    elif epsilon > _VERY_LARGE:
        yield (
            "serious",
            "guarantee",
            (
                f"Epsilon is above {_VERY_LARGE:g}. By itself such a bound rules out hardly any "
                "attack; only measured attacks and audits say something, and only about themselves."
            ),
        )
    elif epsilon > _LARGE:
        yield (
            "caution",
            "guarantee",
            (
                f"Epsilon is above {_LARGE:g}: the bound allows an attacker to become nearly "
                "certain about a person in the worst case."
            ),
        )
    if delta > _VERY_LARGE_DELTA:
        yield (
            "serious",
            "guarantee",
            (
                f"Delta is above {_VERY_LARGE_DELTA:g}: releasing a few people outright would "
                "pass as well."
            ),
        )
    elif delta > _LARGE_DELTA:
        yield (
            "caution",
            "guarantee",
            f"Delta is above {_LARGE_DELTA:g}; less than 1 / people is usual.",
        )
    if promise["unit"] in {"row", "record", "example", "image"}:
        yield (
            "caution",
            "guarantee",
            (
                f"The promise is for one {promise['unit']}. Whoever owns several has less: see the "
                "table of groups."
            ),
        )
    for audit in body["audits"]:
        if audit["verdict"] == "violated":
            yield "void", "guarantee", f"Audit: {audit['reason']} ({audit['method']})."
        elif audit["verdict"] == "too weak to tell":
            yield "caution", "guarantee", f"Audit: {audit['reason']} ({audit['method']})."
    if not body["audits"]:
        yield (
            "caution",
            "guarantee",
            (
                "Nobody has audited this training. Mistakes in implementations of differential "
                "privacy are common, and an accountant does not see them."
            ),
        )


def _about_what_undermines(body: Mapping[str, Any]) -> Iterator[_Warning]:
    made = body["released"]
    if _insecure(body):
        yield (
            "void",
            "undermines",
            (
                "INSECURE RANDOMNESS: the noise can be reproduced from a seed. This release "
                "protects nobody and must not leave the house."
            ),
        )
    if made["receipt"] is None:
        yield (
            "serious",
            "undermines",
            (
                "No ledger was charged: what else was released from the same data is not counted, "
                "and the losses of several releases add up."
            ),
        )
    elif _charged_more(made):
        yield (
            "serious",
            "undermines",
            (
                "The ledger was charged more for this than the certificate states. One of the two "
                "is wrong, and the larger one is the safe one to believe."
            ),
        )
    if any(many_runs(one) and "audited" not in one["evidence"] for one in body["audits"]):
        yield (
            "caution",
            "undermines",
            (
                "An audit ran the training many times and does not say on which data. If they "
                "were private records, each of those runs was a release that nobody counted, and "
                "its outcome should not have been published."
            ),
        )
    unpaid = [one["question"] for one in body["answers"] if one["receipt"] is None]
    for question in unpaid if made["receipt"] is not None else ():
        yield "serious", "undermines", f"No ledger was charged for the answer to {question!r}."
    if made["isolation"] in {"vouched", "check"}:
        yield (
            "serious",
            "undermines",
            (
                "That examples do not influence one another in the model was not checked; it was "
                "taken on trust."
            ),
        )
    for text in made["method_warnings"]:
        if "INSECURE" not in text:
            yield "caution", "undermines", f"{text[0].upper()}{text[1:].rstrip('.')}."
    yield "note", "undermines", f"This certificate covers {made['covers'].rstrip('.')}."


def _charged_more(made: Mapping[str, Any]) -> bool:
    """Whether the entry of the ledger has another loss, which is no smaller: see the checks."""
    found: Any = made["receipt"]
    for name in ("entry", "content", "loss"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found is not None and found != made["loss"]


def _about_collection(body: Mapping[str, Any]) -> Iterator[_Warning]:
    silent = [name.replace("_", " ") for name, said in body["collection"].items() if said is None]
    if silent:
        yield (
            "caution",
            "collection",
            (
                f"The keeper of the data has not stated: {', '.join(silent)}. Data that leak "
                "before the mechanism, or that nobody was allowed to collect, are not protected "
                "by it."
            ),
        )
