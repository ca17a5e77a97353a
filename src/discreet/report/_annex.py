"""The internal annex of a certificate: results of attacks beside what the bound allows.

How well attacks do on real members, how good the model is on its training data, the twin without
privacy, who is most exposed: each of them is a function of private records that no noise covers.
Whoever answers for the data should know them; publishing them undoes what was paid for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, final

import numpy as np

from discreet import _validate, attacks
from discreet._confidence import Proportion, proportion
from discreet._rounding import interval
from discreet.attacks import REPORTED_FPR, MembershipResult
from discreet.certificate import SCHEMA, VERSION, content_hash, require_valid
from discreet.errors import InvalidValue
from discreet.privacy import Loss, from_json
from discreet.report._charts import Bar, bars, roc
from discreet.report._membership_page import how_chosen, quoted_confidence, strongest_attack
from discreet.report._page import Page
from discreet.report._wording import (
    format_count,
    format_interval,
    format_level,
    format_number,
    format_proportion,
)

NOTICE = (
    "INTERNAL, unsafe to publish: computed from private records outside of any mechanism. It is "
    "for those who answer for the data, and must not be passed on with the model."
)


@final
@dataclass(frozen=True, kw_only=True)
class Utility:
    """How often a model is right, on which records."""

    model: str
    records: str
    accuracy: Proportion

    def to_json(self) -> dict[str, Any]:
        """The figure with its interval."""
        return {"model": self.model, "records": self.records, "accuracy": self.accuracy.to_json()}


@final
@dataclass(frozen=True)
class Attacked:
    """The attacks on one model; ``private`` is whether it is the one that is certified."""

    model: str
    private: bool
    results: tuple[MembershipResult, ...]

    def __post_init__(self) -> None:
        if not self.results or not all(type(one) is MembershipResult for one in self.results):
            raise InvalidValue("results", self.results, "one or more membership results")


@final
@dataclass(frozen=True, kw_only=True)
class InternalFacts:
    """Everything that the internal annex of a certificate shows."""

    attacked: tuple[Attacked, ...] = ()
    utility: tuple[Utility, ...] = ()
    exposed: int = 10
    confidence: float = 0.95
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _validate.integer("exposed", self.exposed, at_least=0)
        _validate.real("confidence", self.confidence, above=0, below=1)
        if not all(type(one) is Attacked for one in self.attacked):
            raise InvalidValue("attacked", self.attacked, "a tuple of Attacked")
        if not all(type(one) is Utility for one in self.utility):
            raise InvalidValue("utility", self.utility, "a tuple of Utility")
        if not self.attacked and not self.utility:
            raise InvalidValue("attacked", self.attacked, "something to report")


def internal_annex(facts: InternalFacts, certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annex to a public certificate, complete with its hash.

    Parameters
    ----------
    facts
        What stays in the house.
    certificate
        The public document.

    Returns
    -------
    dict
        The annex as JSON.

    Raises
    ------
    SchemaError
        If the certificate is not one.
    """
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
    """Return the JSON Schema of the internal annex."""
    place = resources.files("discreet.report").joinpath("annex.schema.json")
    read: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return read


def within_guarantee(result: MembershipResult, loss: Loss) -> bool:
    """Say whether a measured curve stays within the guarantee, by confidence bounds.

    Every point of the curve is compared. It is a comparison, not a test with a known rate of false
    alarms: the exact bounds hold at all thresholds at once but with probability 1e-6 for
    independent records. Here the records share one run, so that a guarantee for each of them does
    not bound how many are found together. Audits have a rate of false alarms.

    Parameters
    ----------
    result
        An attack on the model.
    loss
        What it was trained with.

    Returns
    -------
    bool
        Whether no point of the curve lies outside by more than chance explains.
    """
    return not result.roc.exceeds(loss)


# --- the page ------------------------------------------------------------------------------


def annex_page(facts: InternalFacts, certificate: Mapping[str, Any]) -> Page:
    """Return the page of what was computed from private records, beside a public certificate.

    Parameters
    ----------
    facts
        What stays in the house.
    certificate
        The public document.

    Returns
    -------
    Page
        An internal page.

    Raises
    ------
    SchemaError
        If the certificate is not one.
    """
    require_valid(certificate)
    loss = from_json(certificate["guarantee"]["loss"])
    notice = NOTICE.removeprefix("INTERNAL, ")
    page = Page(f"Internal annex: {certificate['title']}", internal=True, notice=notice)
    _summary(page, facts, loss)
    if facts.utility:
        _utility(page, facts)
    if facts.attacked:
        _curves(page, facts, loss)
        _figures(page, facts)
        if facts.exposed:
            _add_exposed_records(page, facts)
    page.heading("What these figures do not say").points(
        "A weak attack is no guarantee: a stronger one may come. Only the certificate bounds every "
        "attack.",
        "Within or beyond the certificate is a comparison, not a test: the records of one run "
        "share a model, so no rate of false alarms is known. The audits of the certificate have "
        "one.",
        "The private model is attacked by the records it was trained on; whoever publishes the "
        "outcome publishes something about those records that was not paid for.",
        f"Each interval holds at {format_level(facts.confidence)} by itself; among many, some "
        "miss.",
    )
    page.table(
        ("belongs to", ""),
        [("certificate", str(certificate["hash"])), ("written", str(certificate["written"]))],
    )
    return page


def _summary(page: Page, facts: InternalFacts, loss: Loss) -> None:
    certified = [one for one in facts.attacked if one.private]
    held = all(within_guarantee(result, loss) for one in certified for result in one.results)
    lines = [_format_finding(one) for one in facts.attacked]
    if not certified:
        page.finding(*lines)
        return
    if held:
        lines.append("No attack on the certified model found more than its certificate allows.")
        page.headline("Attacks within the certificate", kind="good", lines=lines)
    else:
        lines.append(
            "An attack found more than the certificate allows, and by more than independent "
            "records do by chance: suspect the certificate, the training or this experiment."
        )
        page.headline("Attacks beyond the certificate", kind="bad", lines=lines)


def _format_finding(attacked: Attacked) -> str:
    best, sure = strongest_attack(attacked.results), quoted_confidence(attacked.results, 0.95)
    low, high = best.auc_interval(confidence=sure)
    area = f"{best.auc:.3f} ({interval(low, high, digits=3)})"
    text = f"{attacked.model}: area under the curve {area}"
    there = best.operating_points(confidence=sure)
    if there:
        point = there[-1]
        found, rate = format_proportion(point.tpr), format_level(point.asked_fpr)
        text += f", {found} of members found at {rate} FPR"
    text += f", by {best.attack}; chance is 0.5 and the FPR itself."
    return f"{text} {how_chosen(attacked.results, 0.95)}"


def _utility(page: Page, facts: InternalFacts) -> None:
    page.heading("What privacy cost: accuracy")
    series: dict[str, list[Bar]] = {}
    for one in facts.utility:
        share = one.accuracy
        series.setdefault(one.model, []).append(
            Bar(one.records, share.share, share.low, share.high)
        )
    page.picture(
        bars(series, title="share of right predictions"),
        caption="The certified model beside its twin that was trained without privacy.",
    )
    rows = [(one.model, one.records, format_proportion(one.accuracy)) for one in facts.utility]
    page.table(("model", "records", "accuracy"), rows)


def _name_results(attacked: Attacked) -> list[MembershipResult]:
    return [replace(one, attack=f"{attacked.model}, {one.attack}") for one in attacked.results]


def _curves(page: Page, facts: InternalFacts, loss: Loss) -> None:
    page.heading("Who was in the training data")
    results = [strongest_attack(_name_results(attacked)) for attacked in facts.attacked]
    smallest = min(result.roc.smallest_fpr for result in results)
    rates = np.geomspace(smallest, 1.0, 60)
    most = np.asarray(loss.tradeoff(rates)).tolist()
    page.picture(
        roc(
            results, confidence=facts.confidence, allowed=(rates.tolist(), most, "allowed at most")
        ),
        caption="The strongest attack on each model. Both axes are logarithmic: what counts is on "
        "the left, where hardly anybody is accused wrongly. Dashed: what the certificate allows.",
    )


def _figures(page: Page, facts: InternalFacts) -> None:
    headings = ["model", "attack", "area under the curve"]
    headings += [f"found at FPR {format_level(rate)}" for rate in REPORTED_FPR]
    rows: list[Sequence[str]] = []
    for attacked in facts.attacked:
        for result in attacked.results:
            low, high = result.auc_interval(confidence=facts.confidence)
            points = result.operating_points(confidence=facts.confidence)
            there = {point.asked_fpr: point.tpr for point in points}
            found = [
                format_proportion(there[rate])
                if rate in there
                else f"needs {format_count(round(1 / rate))} non-members"
                for rate in REPORTED_FPR
            ]
            area = f"{result.auc:.3f} ({interval(low, high, digits=3)})"
            rows.append([attacked.model, result.attack, area, *found])
    page.table(headings, rows)
    first = facts.attacked[0].results[0].roc
    page.text(
        f"{format_count(first.members)} members and {format_count(first.nonmembers)} non-members."
    )


def _add_exposed_records(page: Page, facts: InternalFacts) -> None:
    page.heading("The most exposed records")
    page.warning("INTERNAL: this list names records of the training data.")
    for attacked in facts.attacked:
        best = strongest_attack(attacked.results)
        rows = [
            [
                format_count(one.record),
                _class_of(one.label, facts.class_names),
                format_number(one.score),
                format_interval(one.fpr.low, one.fpr.high),
            ]
            for one in best.most_exposed(facts.exposed, confidence=facts.confidence)
        ]
        page.table(
            ("record", "class", "score", "non-members with such a score"),
            rows,
            numeric=(True, False, True, True),
            caption=f"{attacked.model}, by {best.attack}. Records are numbered from 0 in the order "
            "in which they were given, members first:",
        )


def _class_of(label: int, names: Sequence[str] | None) -> str:
    return str(label) if names is None or label >= len(names) else names[label]


# --- attacks for the annex --------------------------------------------------------------------

_MODEL = "certified model"


def attack_for_annex(
    target: attacks.Target,
    *,
    members: tuple[Any, Any],
    nonmembers: tuple[Any, Any],
    class_names: Sequence[str] | None = None,
    shadows: int = 0,
    train: Callable[..., Any] | None = None,
) -> InternalFacts:
    """Attack a model with records that it learned from and others; the result is internal.

    Parameters
    ----------
    target
        The model that is certified.
    members, nonmembers
        Records and labels that it learned from, and others like them.
    class_names
        What the classes are called.
    shadows
        Shadow models to train, in pairs, for the strongest of LiRA, RMIA and Yeom; with 0 the
        attack is Yeom's.
    train
        ``train(records, labels, seed)`` returns a model like the target; needed for shadows.

    Returns
    -------
    InternalFacts
        How well the attacks work, and how often the model is right on both sets.

    Raises
    ------
    InvalidValue
        If records do not fit the target, or there are too few shadow models.
    """
    # In a table many people share a row; the same row on both sides is no mistake.
    seen = attacks.observe_split(target, members=members, nonmembers=nonmembers, overlap="allow")
    right = np.argmax(seen.log_probabilities, axis=1) == seen.labels
    utility = tuple(
        Utility(
            model=_MODEL,
            records=name,
            accuracy=proportion(int(right[part].sum()), int(part.sum())),
        )
        for name, part in (("training records", seen.members), ("records outside", ~seen.members))
    )
    found: tuple[attacks.MembershipResult, ...] = ()
    if shadows and train is not None:
        pool = attacks.ShadowPool(
            seen.records,
            seen.labels,
            attacks.on_records(train, seen.records, seen.labels),
            models=shadows + shadows % 2,
            pairs=True,
            classes=seen.classes,
        )
        found = attacks.strongest_of_three(seen, pool)
    else:
        found = (attacks.yeom(seen),)
    names = None if class_names is None else tuple(class_names)
    attacked = (Attacked(_MODEL, True, found),)
    return InternalFacts(attacked=attacked, utility=utility, class_names=names)
