"""The public part as a page, drawn from its JSON document and its signature, if it has one.

It begins with what the release means for one person, in plain words; the mathematics follows. Both
documents are inside the page as well, so that ``discreet certificate verify`` can check the page by
itself: the same documents give the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from discreet._rounding import at_least, at_most, interval
from discreet.certificate import FPRS, as_version_2, require_valid
from discreet.errors import InvalidValue
from discreet.report._charts import accountants_chart, bounds_chart, rates_chart
from discreet.report._command_charts import flow_chart
from discreet.report._page import SIGNATURE, Page
from discreet.report._wording import format_level, format_probability

if TYPE_CHECKING:
    from discreet.certificate import SignedCertificate


_NOTICE = (
    "This page may be published: private records show on it only through mechanisms that protect "
    "them."
)
_IN_GENERAL = (
    "This says nothing about what the data teach about people in general: a study can show that "
    "smoking harms, and so tell something about every smoker, whether they took part or not."
)
_ONLY_IF = (
    "These limits were computed from how the release was made. They hold only if it was made as "
    "this page says, and if what is listed under \u201cWhat undermines it\u201d does no harm."
)
_KINDS = {
    "consistent": "open",
    "not audited": "open",
    "too weak to tell": "open",
    "violated": "bad",
    "void": "bad",
}
_STATES = {
    "consistent": "Tested without finding a fault; that is no approval",
    "not audited": "Claim not audited",
    "too weak to tell": "Audit too weak to tell",
    "violated": "Claim violated",
    "void": "No guarantee",
}
_PERSONS = frozenset(("person", "patient", "user", "individual", "client", "customer", "student"))
_EXAMPLE = 0.1  # one of PRIORS
_CHANGES = {"add_remove": "added or removed", "replace": "replaced by another"}
_SAID = {
    "source": "where the data come from",
    "lawful_basis": "why they may be used",
    "kept_until": "how long they are kept",
    "access": "who can reach the raw data",
    "side_channels": "side channels (timing, logs, other copies)",
}


def certificate_page(document: Mapping[str, Any], signed: SignedCertificate | None = None) -> Page:
    """Return the page of a public document; one that does not follow the schema is refused.

    A document of 0.1 is shown as it reads today, and stays as it is inside the page.
    ``signed`` is the signed form of the same document. The page names its keys; whether they are to
    be trusted is for its reader to check.

    Parameters
    ----------
    document
        A published certificate as JSON.
    signed
        Its signed form, if there is one.

    Returns
    -------
    Page
        The public page.

    Raises
    ------
    SchemaError
        If the document does not follow the schema.

    Examples
    --------
    >>> from discreet.certificate import Certificate
    >>> from discreet.privacy import PureDP
    >>> made = Certificate.of(PureDP(0.5), delta=0, learner="a count", unit="person")
    >>> certificate_page(made.publish(title="visits").to_json()).internal
    False
    """
    inside, document = document, as_version_2(document)
    require_valid(document)
    document["hash"] = inside["hash"]
    if "title" not in document:
        raise InvalidValue("document", "what a learner wrote", "a certificate that was published")
    page = Page(f"Privacy certificate: {document['title']}", internal=False, notice=_NOTICE)
    _plain_words(page, document)
    _signature(page, signed)
    _summary(page, document)
    _guarantee(page, document)
    _meaning(page, document)
    _audits(page, document["audits"])
    _undermines(page, document)
    _collection(page, document)
    _checking(page, document)
    page.embed(inside)
    return page if signed is None else page.embed(signed.envelope.to_json(), name=SIGNATURE)


def _plain_words(page: Page, document: Mapping[str, Any]) -> None:
    """Say first what the release means for one person, without a symbol."""
    promise, verdict = document["guarantee"], document["verdict"]
    page.heading("What this means for one person")
    if _KINDS[verdict["state"]] == "bad":
        page.warning(
            "Nothing on this page protects anybody: what was released may reveal whose data were "
            f"used, and what they say. {verdict['sentence']}"
        )
        return
    unit, meaning = promise["unit"], document["meaning"]
    used = "your data were used" if unit in _PERSONS else f"one {unit} of yours was used"
    swapped = promise["relation"] == "replace"
    goal = "which of two possible records of yours was used" if swapped else f"whether {used}"
    right = at_most(100 * meaning["best_accuracy"], digits=3)
    page.finding(
        "Somebody sees everything that was released, knows whatever else there is to know, and "
        f"tries to tell {goal}. They are right at most {right} times in 100; tossing a coin is "
        "right 50 times in 100."
    )
    points = []
    example = next((one for one in meaning["beliefs"] if one["prior"] == _EXAMPLE), None)
    if example is not None:
        rare = example["failure_probability"]
        but = "" if rare == 0 else f" (but for a chance of 1 in {math.floor(1 / rare):,})"
        held = "that it was one of these" if swapped else f"that {used}"
        points.append(
            f"If they took it for {format_level(_EXAMPLE)} likely {held}, the release can raise "
            f"that to {at_most(100 * example['upper'], digits=3)} % at most{but}."
        )
    if unit not in _PERSONS:
        points.append(
            f"This is about one {unit}. Whoever owns several {unit}s is protected less; the table "
            "of groups below says how much."
        )
    if not swapped:
        points.append(
            f"Somebody who knows that {used}, and wants to know what is in it, can learn more; the "
            "line for 2 in the table of groups below bounds that."
        )
    points += [_IN_GENERAL, _ONLY_IF]
    page.points(*points)


def _signature(page: Page, signed: SignedCertificate | None) -> None:
    if signed is None:
        page.text(
            "Not signed: the page does not say who answers for it, and anybody can write such a "
            "page."
        )
        return
    issuer = signed.issuer
    page.text(
        "Signed. A page cannot check its own signature: get the public key from the issuer by "
        "another way, and run discreet certificate verify with --key."
    )
    page.table(
        ("signature", "as it says"),
        [
            ("who answers for it", issuer.who),
            ("contact", issuer.contact),
            ("meant for", issuer.intended_use),
            ("signed on", str(issuer.date)),
            ("valid until", str(issuer.valid_until)),
            *(
                ("key that the envelope names (not checked here)", hint)
                for hint, _ in signed.envelope.signatures
            ),
        ],
    )


def _summary(page: Page, document: Mapping[str, Any]) -> None:
    promise, verdict = document["guarantee"], document["verdict"]
    broken = _KINDS[verdict["state"]] == "bad"
    lines = [verdict["sentence"]] if broken else []
    if promise["epsilon"] is not None:
        lines.append(_promise(promise, broken=broken))
    best = max(document["audits"], key=lambda one: one["epsilon_lower"], default=None)
    if best is not None:
        lines.append(
            f"The strongest audit shows epsilon \u2265 {_down(best['epsilon_lower'])} at "
            f"{format_level(best['confidence'])} confidence and could have shown up to "
            f"{_down(best['ceiling'])}. Another attack may show more."
        )
    if not broken:
        lines.append(verdict["sentence"])
    page.headline(_STATES[verdict["state"]], kind=_KINDS[verdict["state"]], lines=lines)
    severe = [one for one in document["warnings"] if one["severity"] in {"void", "serious"}]
    for one in severe:
        page.warning(f"{one['severity'].upper()}: {one['text']}")
    if promise["epsilon"] is not None:
        page.picture(
            bounds_chart(promise["epsilon"], document["audits"]),
            caption=f"{_explain_bounds(document['audits'], broken=broken)} An audit whose "
            "ceiling does not pass the accountant's line cannot refute it.",
        )


def _explain_bounds(audits: Sequence[Mapping[str, Any]], *, broken: bool) -> str:
    if broken:
        return "What was claimed, and what the audits showed."
    if not audits:
        return "The true epsilon is at most what the accountant allows, if the assumptions hold."
    confident = format_level(min(one["confidence"] for one in audits))
    return (
        "The true epsilon is at most what the accountant allows, if the assumptions hold; each "
        f"audit shows at {confident} confidence that it is at least as large as its bar."
    )


def _promise(promise: Mapping[str, Any], *, broken: bool = False) -> str:
    claim = (
        f"\u03b5 \u2264 {_up(promise['epsilon'])} at \u03b4 = "
        f"{format_probability(promise['delta'])} for one {promise['unit']} "
        f"{_CHANGES[promise['relation']]}."
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
        (
            "epsilon, at most",
            "none" if promise["epsilon"] is None else _up(promise["epsilon"]),
        ),
        ("epsilon of the mechanism, at least", "not known" if lower is None else _down(lower)),
        ("delta", format_probability(promise["delta"])),
        ("loss", promise["description"]),
    ]
    page.table(("what is promised", ""), rows)
    accountants = promise["accountants"]
    if promise["epsilon"] is not None:
        page.picture(
            accountants_chart(accountants, promise["epsilon"]),
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
            (str(one["size"]), "none" if one["epsilon"] is None else _up(one["epsilon"]))
            for one in promise["groups"]
        ],
        numeric=(True, True),
        caption=f"Whoever owns several {promise['unit']}s is protected by less, at the same delta:",
    )


def _accountant(name: str, said: float | str) -> tuple[str, str, str]:
    return (name, "-", said) if isinstance(said, str) else (name, _up(said), "")


def _meaning(page: Page, document: Mapping[str, Any]) -> None:
    meaning, unit = document["meaning"], document["guarantee"]["unit"]
    rates = {one["fpr"]: one["tpr"] for one in meaning["rates"]}
    beliefs = meaning["beliefs"]
    chance = max((one["failure_probability"] for one in beliefs), default=0.0)
    swapped = document["guarantee"]["relation"] == "replace"
    guess = f"which of two {unit}s was used" if swapped else f"whether one {unit} was used"
    belief = f"in one of two {unit}s" if swapped else f"that one {unit} was used"
    hold = "always" if chance == 0 else f"except with probability {format_probability(chance)}"
    page.heading("What any attacker can do at most")
    page.points(
        f"Whoever guesses {guess}, at even odds, is right at most "
        f"{_up(100 * meaning['best_accuracy'])} % of the time; blind guessing is right 50 %.",
        *(
            f"An attack that wrongly accuses {format_level(fpr)} of those outside finds at most "
            f"{_up(100 * rates[fpr])} % of those inside."
            for fpr in FPRS
        ),
        *(
            f"Whoever believed {belief} with {format_level(one['prior'])} believes it with "
            f"{_down(100 * one['lower'])} % to {_up(100 * one['upper'])} % afterwards, {hold}."
            for one in beliefs
        ),
        "These are limits for any attacker with any other knowledge, now and later. They say "
        "nothing about what the data as a whole teach about people in general.",
    )
    page.picture(
        rates_chart(meaning["rates"]),
        caption="The limit of every membership attack, present and future, read off the whole "
        "loss. Both axes are logarithmic.",
    )
    page.table(
        ("wrongly accused (FPR)", "members found (TPR), at most"),
        [(format_level(one["fpr"]), f"{_up(100 * one['tpr'])} %") for one in meaning["rates"]],
        numeric=(True, True),
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
            ("epsilon, at least", _down(audit["epsilon_lower"])),
            ("it could have shown, at most", _down(audit["ceiling"])),
            ("claimed, at most", _up(audit["claimed_epsilon"])),
            ("confidence", format_level(audit["confidence"])),
            ("evidence", _join_entries(audit["evidence"])),
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
    figure = flow_chart(document["plan"], relation=document["guarantee"]["relation"])
    if figure is not None:
        caption = "From private records to the released student: only noisy labels leave"
        page.picture(figure, caption=caption)


def _answer(one: Mapping[str, Any]) -> tuple[str, str, str]:
    value = f"{one['value']:.4g}"
    if one["low"] is not None and one["high"] is not None:
        value += f" ({interval(one['low'], one['high'])} at {format_level(one['confidence'])})"
    cost = "none" if one["epsilon"] is None else _up(one["epsilon"])
    slack = "" if one["delta"] == 0 else f", \u03b4 = {format_probability(one['delta'])}"
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
        "discreet certificate verify, with this file or the JSON file beside it, computes the "
        "bounds again, their meaning, the warnings and the verdict, and what the audits conclude "
        "from their counts. What cannot be computed, such as counts, plan, versions and statements "
        "about the data, is compared with what the ledger recorded (--ledger), files with their "
        "hashes where they are at hand, the signature with a key (--key). What was not compared is "
        "listed as not checked. The title and the source of the data are taken as written.",
        "What was computed from private records is in a separate, internal annex, if there is one.",
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
    return json.dumps(value).replace('"', "")


def _join_entries(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {_value(value)}" for name, value in table.items())


def _up(value: float) -> str:
    """An upper bound in four digits that are not below it."""
    return at_most(value, digits=4)


def _down(value: float) -> str:
    """A lower bound in four digits that are not above it."""
    return at_least(value, digits=4)
