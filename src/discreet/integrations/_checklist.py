"""A release held against the questions of NIST SP 800-226, and as a facet of OpenLineage.

The publication (*Guidelines for Evaluating Differential Privacy Guarantees*, 2025) orders what an
evaluator has to ask from the guarantee at the top to the collection of the data at the bottom. The
questions are in our words. A certificate answers some of them, some only its keeper can answer, and
what nobody stated is open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from discreet.certificate import Certificate

_STATES = {"answered": "yes", "open": "**open**", "warned": "**warning**"}
_URI = "urn:discreet:certificate"


@final
@dataclass(frozen=True)
class ChecklistItem:
    """One question: its ``layer``, the answer, and whether it is answered, open or a warning."""

    layer: str
    question: str
    answer: str
    state: str


def checklist(certificate: Certificate) -> list[ChecklistItem]:
    """Return what a certificate says to the questions of NIST SP 800-226.

    Parameters
    ----------
    certificate
        That of the release. One that was published also has statements about the data.

    Returns
    -------
    list of ChecklistItem
        From the guarantee down to the collection of the data; no item is left out because
        its answer is missing.

    Examples
    --------
    >>> from discreet.privacy import PureDP
    >>> items = checklist(Certificate.of(PureDP(1.0), delta=0.0, learner="example"))
    >>> items[0].question, items[0].answer
    ('Which epsilon and delta?', 'epsilon at most 1 at delta 0')
    """
    return list(_items(certificate))


def _items(of: Certificate) -> Iterator[ChecklistItem]:
    def item(layer: str, question: str, answer: object) -> ChecklistItem:
        text = str(answer or "")
        return ChecklistItem(layer, question, text or "not stated", "answered" if text else "open")

    facts = of.publication or {}
    audits = facts.get("audits", ())
    data = facts.get("collection") or {}
    top, middle, bottom = "the guarantee", "what it rests on", "the data"
    at = f"epsilon at most {of.epsilon:.6g} at delta {of.delta:g}"
    yield item(top, "Which epsilon and delta?", at)
    yield item(top, "Whose privacy: what is the unit?", f"one {of.unit}")
    yield item(top, "What are neighbouring data sets?", of.relation)
    yield item(top, "Which mechanism or learner?", of.learner)
    yield item(top, "What does the guarantee cover?", of.to_json()["covers"])
    receipt = None if of.receipt is None else f"entry {of.receipt['entry']['seq']} of a ledger"
    yield item(middle, "Is the loss of all releases together bounded?", receipt)
    tried = f"{len(audits)} audits" if audits else None
    yield item(middle, "Was the implementation tested?", tried)
    randomness = ", ".join(f"{name}: {text}" for name, text in of.randomness.items())
    yield item(middle, "Where does the randomness come from?", randomness)
    yield item(middle, "What is assumed?", "; ".join(of.assumptions))
    yield item(middle, "Which versions made it?", ", ".join(map(" ".join, of.versions.items())))
    yield item(middle, "Side channels?", data.get("side_channels"))
    for question, key in (
        ("Where do the data come from?", "source"),
        ("On which lawful basis?", "lawful_basis"),
        ("Until when are they kept?", "kept_until"),
        ("Who has access to them?", "access"),
    ):
        yield item(bottom, question, data.get(key))
    for text in of.warnings:
        yield ChecklistItem("warnings", "What undermines it?", text, "warned")


def checklist_text(certificate: Certificate) -> str:
    """Return the checklist as a table in Markdown.

    Parameters
    ----------
    certificate
        That of the release.

    Returns
    -------
    str
        One row for each question.

    Examples
    --------
    >>> from discreet.certificate import Certificate
    >>> from discreet.privacy import PureDP
    >>> text = checklist_text(
    ...     Certificate.of(PureDP(0.5), delta=0, learner="a count", unit="person")
    ... )
    >>> "epsilon" in text
    True
    """
    lines = ["| layer | question | answer | answered |", "|---|---|---|---|"]
    for one in checklist(certificate):
        answer = one.answer.replace("|", "&#124;").replace("<", "&lt;").replace("\n", " ")
        lines.append(f"| {one.layer} | {one.question} | {answer} | {_STATES[one.state]} |")
    return "\n".join(lines) + "\n"


def lineage_facet(certificate: Certificate) -> dict[str, Any]:
    """Return the guarantee as a custom facet of an output dataset in OpenLineage.

    Parameters
    ----------
    certificate
        That of the release.

    Returns
    -------
    dict
        To be put under ``outputs[...]["facets"]["discreet_privacy"]`` of an event.
    """
    receipt = certificate.receipt or {}
    return {
        "_producer": f"{_URI}:producer",
        "_schemaURL": f"{_URI}:facet:1",
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "unit": certificate.unit,
        "relation": certificate.relation,
        "learner": certificate.learner,
        "planHash": certificate.plan_hash,
        "modelDigest": certificate.model_digest,
        "ledgerEntry": receipt.get("hash"),
        "warnings": list(certificate.warnings),
    }
