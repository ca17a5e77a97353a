"""The internal annex of a certificate: what attacks got, beside what the bound allows (S34).

A JSON document that must stay in the house.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from discreet.attacks import MembershipResult
from discreet.certificate._schema import SCHEMA, VERSION, content_hash, require_valid
from discreet.errors import InvalidValue
from discreet.privacy import Loss, from_json
from discreet.report.internal_facts import InternalFacts

__all__ = ["NOTICE", "annex_schema", "internal_annex", "within_guarantee"]

NOTICE = (
    "INTERNAL, unsafe to publish: computed from private records outside of any mechanism. It is "
    "for those who answer for the data, and must not be passed on with the model."
)


def internal_annex(facts: InternalFacts, certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annex to a public certificate, complete with its hash."""
    if type(facts) is not InternalFacts:
        raise InvalidValue("facts", type(facts).__name__, "InternalFacts")
    require_valid(certificate)
    loss = from_json(certificate["guarantee"]["loss"])
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "part": "internal",
        "notice": NOTICE,
        "title": certificate["title"],
        "written": certificate["written"],
        "written_by": certificate["written_by"],
        "certificate": certificate["hash"],
        "utility": [one.to_json() for one in facts.utility],
        "attacks": [
            {
                "model": attacked.model,
                "private": attacked.private,
                "allowed": within_guarantee(result, loss) if attacked.private else None,
                "result": result.to_json(confidence=facts.confidence, exposed=facts.exposed),
            }
            for attacked in facts.attacked
            for result in attacked.results
        ],
    }
    document = {**body, "hash": content_hash(body)}
    require_valid(document, annex_schema())
    return document


def annex_schema() -> dict[str, Any]:
    """The JSON Schema of the internal annex."""
    place = resources.files("discreet.report").joinpath("annex.schema.json")
    read: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return read


def within_guarantee(result: MembershipResult, loss: Loss) -> bool:
    """Whether a measured curve stays within what the guarantee allows, as far as can be told.

    Every point of the curve is compared. It is a comparison, not a test with a known rate of false
    alarms: the exact bounds hold at all thresholds at once but with probability 1e-6 for
    independent records. Here the records share one run, so that a guarantee for each of them does
    not bound how many are found together. Audits have a rate of false alarms.
    """
    return not result.roc.exceeds(loss)
