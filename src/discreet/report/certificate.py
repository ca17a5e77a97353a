"""The public part of a certificate: a JSON document that is made from public facts alone.

:func:`public_certificate` takes :class:`~discreet.report.public_facts.PublicFacts` and nothing
else. The document follows ``certificate.schema.json``, which is closed: a field that it does not
name is refused, so there is no place for an internal fact. Its order is that of the pyramid of NIST
SP 800-226: the guarantee, what undermines it, how the data were collected.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

from discreet import __version__
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.privacy import Loss, to_json
from discreet.privacy.account import every_accountant
from discreet.report.audit_check import audit_faults
from discreet.report.certificate_warnings import verdict_on, warnings_on
from discreet.report.public_facts import PaidAnswer, PublicFacts
from discreet.report.schema_check import faults

__all__ = [
    "FPRS",
    "PRIORS",
    "canonical",
    "content_hash",
    "guarantee_of",
    "meaning_of",
    "public_certificate",
    "released_of",
    "require_valid",
    "schema",
]

SCHEMA = "discreet.certificate"
VERSION = 1
PRIORS = (0.01, 0.1, 0.5)
FPRS = (0.001, 0.01, 0.1)
_CURVE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9)
_GROUPS = (2, 5, 10)
# The belief of an attacker is bounded except with this probability.
_UNLIKELY = 1e-6


def public_certificate(facts: PublicFacts, *, at: dt.datetime | None = None) -> dict[str, Any]:
    """Return the public part, complete with its hash.

    ``at`` is when it was written, now unless given, to the second.
    """
    if type(facts) is not PublicFacts:
        raise InvalidValue("facts", type(facts).__name__, "PublicFacts")
    moment = dt.datetime.now(dt.UTC) if at is None else at
    if moment.tzinfo is None:
        raise InvalidValue("at", moment, "a moment with a time zone")
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "part": "public",
        "title": facts.title,
        "written": moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "written_by": f"discreet {__version__}",
        "guarantee": {"unit": facts.unit, **guarantee_of(facts.whole, facts.delta)},
        "meaning": meaning_of(facts.whole),
        "audits": [audit.to_json() for audit in facts.audits],
        "released": released_of(facts),
        "answers": [_answer(one, together=one in facts.same_data) for one in facts.answers],
        "collection": facts.collection.to_json(),
    }
    body["warnings"] = warnings_on(body)
    body["verdict"] = verdict_on(body)
    document = {**body, "hash": content_hash(body)}
    require_valid(document)
    for fault in audit_faults(document):
        raise InvalidValue("audit", fault, "audits of this release, as the package makes them")
    return document


def guarantee_of(loss: Loss, delta: float) -> dict[str, Any]:
    """What every accountant says about a loss at ``delta``, and what it means for groups."""
    bounds = loss.epsilon_bounds(delta=delta)
    answers = every_accountant(loss, delta=delta)
    best = answers.pop("best")
    return {
        "relation": loss.relation.value,
        "delta": delta,
        "epsilon": _number(best),
        "epsilon_lower": _number(min(bounds.lower, best)) if isinstance(best, float) else None,
        "loss": to_json(loss),
        "description": repr(loss),
        "accountants": {name: _told(answer) for name, answer in answers.items()},
        "groups": [{"size": size, "epsilon": _group(loss, size, delta)} for size in _GROUPS],
    }


def meaning_of(loss: Loss) -> dict[str, Any]:
    """What the loss allows any attacker: beliefs, rates, advantage.

    All are read off the loss itself, which allows less than its epsilon at one delta does. The
    advantage is the total variation distance, delta at epsilon 0.
    """
    beliefs = []
    for prior in PRIORS:
        bounds = loss.posterior(prior=prior, failure_probability=_UNLIKELY)
        beliefs.append(
            {
                "prior": prior,
                "lower": bounds.lower,
                "upper": bounds.upper,
                "failure_probability": bounds.failure_probability,
            }
        )
    levels = sorted({*FPRS, *_CURVE})
    gain = min(1.0, loss.delta_bounds(epsilon=0.0).upper)
    return {
        "beliefs": beliefs,
        "rates": [{"fpr": fpr, "tpr": float(loss.tradeoff(fpr))} for fpr in levels],
        "advantage": gain,
        "best_accuracy": 0.5 * (1.0 + gain),
    }


def canonical(document: Mapping[str, Any]) -> str:
    """The text that is hashed: sorted keys, no blanks, no infinities."""
    try:
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"certificate: not plain JSON: {error}") from None


def content_hash(document: Mapping[str, Any]) -> str:
    """The SHA-256 of everything but the field ``hash`` itself."""
    content = {key: value for key, value in document.items() if key != "hash"}
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def schema(part: str = "public") -> dict[str, Any]:
    """The JSON Schema of the public part or of the internal annex."""
    name = "certificate.schema.json" if part == "public" else "annex.schema.json"
    text = resources.files("discreet.report").joinpath(name).read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text)
    return read


def require_valid(document: object, *, part: str = "public") -> None:
    """Refuse a document that does not follow its schema."""
    wrong = faults(document, schema(part))
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise SchemaError(f"certificate: {wrong[0]}{more}")


def released_of(facts: PublicFacts) -> dict[str, Any]:
    """What was released and how, as the field ``released`` tells it."""
    return {
        "learner": facts.learner,
        "loss": to_json(facts.loss),
        "plan": dict(facts.plan),
        "files": dict(sorted(facts.files.items())),
        "model_digest": facts.model_digest,
        "versions": dict(facts.versions),
        "randomness": dict(facts.randomness),
        "isolation": facts.isolation,
        "assumptions": list(facts.assumptions),
        "method_warnings": list(facts.method_warnings),
        "covers": facts.covers,
        "receipt": None if facts.receipt is None else dict(facts.receipt),
    }


def _answer(one: PaidAnswer, *, together: bool) -> dict[str, Any]:
    return {
        "question": one.question,
        "value": one.value,
        "low": one.low,
        "high": one.high,
        "confidence": one.confidence,
        "loss": to_json(one.loss),
        "epsilon": _number(one.loss.epsilon(delta=one.delta)),
        "delta": one.delta,
        "relation": one.loss.relation.value,
        "mechanism": one.mechanism,
        "randomness": dict(one.randomness),
        "counted_in_the_guarantee": together,
        "receipt": None if one.receipt is None else dict(one.receipt),
    }


def _number(value: float | str) -> float | None:
    """A finite number, or ``None`` where no finite number holds."""
    return value if isinstance(value, float) and math.isfinite(value) else None


def _told(answer: float | str) -> float | str:
    if isinstance(answer, str) or math.isfinite(answer):
        return answer
    return "no finite epsilon holds at this delta"


def _group(loss: Loss, size: int, delta: float) -> float | None:
    try:
        return _number(loss.group(size).epsilon(delta=delta))
    except NotApplicable:
        return None
