"""The public part as a page, drawn from its JSON document and from nothing else.

The document is inside the page as well, so that ``discreet certificate verify`` can check the
page by itself: the same document gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from discreet.certificate._findings import FPRS
from discreet.certificate._schema import require_valid
from discreet.errors import InvalidValue
from discreet.report.certificate_pictures import (
    accountants_picture,
    bounds_picture,
    rates_picture,
)
from discreet.report.page import Page
from discreet.report.words import level, small
from discreet.report.words import rounded_down as down
from discreet.report.words import rounded_up as up

__all__ = ["certificate_page"]

_NOTICE = (
    "This page holds the plan, the accountant's bounds, audits with made-up canaries and answers "
    "that were paid for. Nothing on it was computed from private records outside of a mechanism."
)
_KINDS = {
    "consistent": "good",
    "not audited": "open",
    "too weak to tell": "open",
    "violated": "bad",
    "void": "bad",
}
_STATES = {
    "consistent": "Claim tested, not refuted",
    "not audited": "Claim not audited",
    "too weak to tell": "Audit too weak to tell",
    "violated": "Claim refuted",
    "void": "No guarantee",
}
_CHANGES = {"add_remove": "added or removed", "replace": "replaced by another"}
_SAID = {
    "source": "where the data come from",
    "lawful_basis": "why they may be used",
    "kept_until": "how long they are kept",
    "access": "who can reach the raw data",
    "side_channels": "side channels (timing, logs, other copies)",
}


def certificate_page(document: Mapping[str, Any]) -> Page:
    """Return the page of a public document; one that does not follow the schema is refused."""
    require_valid(document)
    if "title" not in document:
        raise InvalidValue("document", "what a learner wrote", "a certificate that was published")
    page = Page(f"Privacy certificate: {document['title']}", internal=False, notice=_NOTICE)
    _summary(page, document)
    _guarantee(page, document)
    _meaning(page, document)
    _audits(page, document["audits"])
    _undermines(page, document)
    _collection(page, document)
    _checking(page, document)
    return page.embed(document)


def _summary(page: Page, document: Mapping[str, Any]) -> None:
    promise, verdict = document["guarantee"], document["verdict"]
    broken = _KINDS[verdict["state"]] == "bad"
    lines = [verdict["sentence"]] if broken else []
    if promise["epsilon"] is not None:
        lines.append(_promise(promise, broken=broken))
    best = max(document["audits"], key=lambda one: one["epsilon_lower"], default=None)
    if best is not None:
        lines.append(
            f"The strongest audit shows epsilon \u2265 {down(best['epsilon_lower'])} at "
            f"{level(best['confidence'])} confidence and could have shown up to "
            f"{down(best['ceiling'])}."
        )
    if not broken:
        lines.append(verdict["sentence"])
    page.headline(_STATES[verdict["state"]], kind=_KINDS[verdict["state"]], lines=lines)
    severe = [one for one in document["warnings"] if one["severity"] in {"void", "serious"}]
    for one in severe:
        page.warning(f"{one['severity'].upper()}: {one['text']}")
    if promise["epsilon"] is not None:
        lies = (
            "What was claimed, and what the audits showed."
            if broken
            else "The true epsilon lies between what the audits showed and what the accountant "
            "allows."
        )
        page.picture(
            bounds_picture(promise["epsilon"], document["audits"]),
            caption=f"{lies} An audit whose ceiling does not pass the accountant's line cannot "
            "refute it.",
        )


def _promise(promise: Mapping[str, Any], *, broken: bool = False) -> str:
    claim = (
        f"\u03b5 \u2264 {up(promise['epsilon'])} at \u03b4 = {small(promise['delta'])} for one "
        f"{promise['unit']} {_CHANGES[promise['relation']]}."
    )
    return f"Claimed, and not to be relied on: {claim}" if broken else claim


def _guarantee(page: Page, document: Mapping[str, Any]) -> None:
    promise = document["guarantee"]
    page.heading("1. The guarantee")
    if promise["epsilon"] is None:
        page.text("No finite epsilon holds at this delta.")
    else:
        page.text(_promise(promise, broken=_KINDS[document["verdict"]["state"]] == "bad"))
    lower = promise["epsilon_lower"]
    rows = [
        ("unit of privacy", promise["unit"]),
        ("neighbouring data sets", f"one {promise['unit']} {_CHANGES[promise['relation']]}"),
        ("epsilon, at most", "none" if promise["epsilon"] is None else up(promise["epsilon"])),
        ("epsilon of the mechanism, at least", "not known" if lower is None else down(lower)),
        ("delta", small(promise["delta"])),
        ("loss", promise["description"]),
    ]
    page.table(("what is promised", ""), rows)
    accountants = promise["accountants"]
    if promise["epsilon"] is not None:
        page.picture(
            accountants_picture(accountants, promise["epsilon"]),
            caption="The same release by every accountant. All are upper bounds; the smallest "
            "counts (dotted line). The others show what older accounting would have charged.",
        )
    page.table(
        ("accountant", "epsilon", "why not"),
        [_accountant(name, said) for name, said in accountants.items()],
        numeric=(False, True, False),
    )
    page.table(
        (f"{promise['unit']}s of one owner", "epsilon, at most"),
        [
            (str(one["size"]), "none" if one["epsilon"] is None else up(one["epsilon"]))
            for one in promise["groups"]
        ],
        numeric=(True, True),
        caption=f"Whoever owns several {promise['unit']}s is protected by less, at the same delta:",
    )


def _accountant(name: str, said: float | str) -> tuple[str, str, str]:
    return (name, "-", said) if isinstance(said, str) else (name, up(said), "")


def _meaning(page: Page, document: Mapping[str, Any]) -> None:
    meaning, unit = document["meaning"], document["guarantee"]["unit"]
    rates = {one["fpr"]: one["tpr"] for one in meaning["rates"]}
    beliefs = meaning["beliefs"]
    chance = max((one["failure_probability"] for one in beliefs), default=0.0)
    hold = "always" if chance == 0 else f"except with probability {small(chance)}"
    page.heading("What it means for one person")
    page.points(
        f"Whoever guesses whether one {unit} was used, at even odds, is right at most "
        f"{up(100 * meaning['best_accuracy'])} % of the time; blind guessing is right 50 %.",
        *(
            f"An attack that wrongly accuses {level(fpr)} of those outside finds at most "
            f"{up(100 * rates[fpr])} % of those inside."
            for fpr in FPRS
        ),
        *(
            f"Whoever believed something about one {unit} with {level(one['prior'])} believes it "
            f"with {down(100 * one['lower'])} % to {up(100 * one['upper'])} % afterwards, {hold}."
            for one in beliefs
        ),
        "These are limits for any attacker with any other knowledge, now and later. They say "
        "nothing about what the data as a whole teach about people in general.",
    )
    page.picture(
        rates_picture(meaning["rates"]),
        caption="The limit of every membership attack, present and future, read off the whole "
        "loss. Both axes are logarithmic.",
    )


def _audits(page: Page, audits: Sequence[Mapping[str, Any]]) -> None:
    page.heading("Attempts to refute it")
    if not audits:
        page.text("None was made.")
        return
    page.text(
        "Audits guess from what came out which made-up examples, the canaries, went in: those "
        "that fair coins included in one run, or one that was there in half of many runs. Too "
        "many right guesses refute the claim."
    )
    for at, audit in enumerate(audits, 1):
        rows = [
            ("method", audit["method"]),
            ("verdict", f"{audit['verdict']}: {audit['reason']}"),
            ("epsilon, at least", down(audit["epsilon_lower"])),
            ("it could have shown, at most", down(audit["ceiling"])),
            ("claimed, at most", up(audit["claimed_epsilon"])),
            ("confidence", level(audit["confidence"])),
            ("evidence", _listed(audit["evidence"])),
        ]
        page.table((f"audit {at}", ""), rows)
        page.points(*(f"Assumes: {text}" for text in audit["assumptions"]))


def _undermines(page: Page, document: Mapping[str, Any]) -> None:
    page.heading("2. What undermines it")
    _warnings(page, document["warnings"], ("guarantee", "undermines"))
    page.points(*(f"Assumes: {text}" for text in document["assumptions"]))
    page.heading("How it was made")
    rows = [("learner", document["learner"])]
    rows += [(f"plan: {name}", _value(value)) for name, value in document["plan"].items()]
    rows += [(f"run: {name}", _value(value)) for name, value in document["run"].items()]
    rows += [(f"randomness: {name}", text) for name, text in document["randomness"].items()]
    rows += [(f"version: {name}", text) for name, text in document["versions"].items()]
    if document["model_digest"] is not None:
        rows.append(("SHA-256 of the model", document["model_digest"]))
    rows += [(f"SHA-256 of {name}", digest) for name, digest in document["files"].items()]
    page.table(("what was released", ""), rows)
    _flow(page, document)
    _ledger(page, document)
    if document["answers"]:
        page.heading("Answers that were paid for")
        rows_of = [_answer(one) for one in document["answers"]]
        page.table(("question", "answer", "cost"), rows_of)


def _flow(page: Page, document: Mapping[str, Any]) -> None:
    """How PATE got from records to a student; other learners have no such picture."""
    from discreet.pate.picture import flow_figure

    figure = flow_figure(document["plan"], relation=document["guarantee"]["relation"])
    if figure is not None:
        caption = "From private records to the released student: only noisy labels leave"
        page.picture(figure, caption=caption)


def _answer(one: Mapping[str, Any]) -> tuple[str, str, str]:
    value = f"{one['value']:.4g}"
    if one["low"] is not None and one["high"] is not None:
        value += f" ({one['low']:.4g} to {one['high']:.4g} at {level(one['confidence'])})"
    cost = "none" if one["epsilon"] is None else up(one["epsilon"])
    slack = "" if one["delta"] == 0 else f", \u03b4 = {one['delta']:g}"
    where = (
        "counted in the guarantee above"
        if one["counted_in_the_guarantee"]
        else "about other data, not counted above"
    )
    return one["question"], value, f"\u03b5 \u2264 {cost}{slack} ({one['mechanism']}; {where})"


def _ledger(page: Page, document: Mapping[str, Any]) -> None:
    paid = [("the model", document["receipt"])]
    paid += [(one["question"], one["receipt"]) for one in document["answers"]]
    rows = []
    for what, receipt in paid:
        if receipt is None:
            rows.append((what, "no ledger was charged"))
            continue
        entry = receipt["entry"]
        place = [f"dataset {entry.get('dataset')}", f"entry {entry.get('seq')}"]
        rows.append((what, ", ".join([*place, str(entry.get("at"))])))
        rows.append(("", f"hash {receipt['hash']}"))
    page.table(("charged for", "entry of the ledger"), rows)


def _collection(page: Page, document: Mapping[str, Any]) -> None:
    page.heading("3. How the data were collected and kept")
    page.text(
        "Statements of the keeper of the data. No program can check them, and everything above "
        "rests on them."
    )
    said = document["collection"]
    rows = [(_SAID[name], "not stated" if said[name] is None else said[name]) for name in _SAID]
    page.table(("question", "statement"), rows)
    _warnings(page, document["warnings"], ("collection",))


def _warnings(page: Page, warnings: Sequence[Mapping[str, str]], layers: Sequence[str]) -> None:
    rows = [(one["severity"], one["text"]) for one in warnings if one["layer"] in layers]
    if rows:
        page.table(("severity", "what to know"), rows)


def _checking(page: Page, document: Mapping[str, Any]) -> None:
    page.heading("How to check this page")
    page.text(
        "discreet certificate verify, with this file or the JSON file beside it, computes every "
        "number again, checks hashes and files, and with --ledger that the entry is on the chain. "
        "What was computed from private records is in a separate, internal annex, if there is one."
    )
    page.table(
        ("document", ""),
        [
            ("written", f"{document['written']} by {document['written_by']}"),
            ("hash (SHA-256)", document["hash"]),
            ("schema", f"{document['schema']}, version {document['version']}"),
        ],
    )


def _value(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return small(float(f"{value:.6g}"))
    return json.dumps(value).replace('"', "")


def _listed(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in table.items())
