"""The internal annex as a page: what attacks really get, and what privacy cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from discreet._rounding import interval
from discreet.attacks import REPORTED_FPR, MembershipResult
from discreet.certificate._schema import require_valid
from discreet.privacy import Loss, from_json
from discreet.report.annex import NOTICE, within_guarantee
from discreet.report.figures import Bar, bars, roc
from discreet.report.internal_facts import Attacked, InternalFacts
from discreet.report.membership import how_chosen, quoted_confidence, strongest
from discreet.report.page import Page
from discreet.report.words import between, level, plain, shown, with_interval

__all__ = ["annex_page"]


def annex_page(facts: InternalFacts, certificate: Mapping[str, Any]) -> Page:
    """Return the page of what was computed from private records, beside a public certificate."""
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
            _exposed(page, facts)
    page.heading("What these figures do not say").points(
        "A weak attack is no guarantee: a stronger one may come. Only the certificate bounds every "
        "attack.",
        "Within or beyond the certificate is a comparison, not a test: the records of one run "
        "share a model, so no rate of false alarms is known. The audits of the certificate have "
        "one.",
        "The private model is attacked by the records it was trained on; whoever publishes the "
        "outcome publishes something about those records that was not paid for.",
        f"Each interval holds at {level(facts.confidence)} by itself; among many, some miss.",
    )
    page.table(
        ("belongs to", ""),
        [("certificate", str(certificate["hash"])), ("written", str(certificate["written"]))],
    )
    return page


def _summary(page: Page, facts: InternalFacts, loss: Loss) -> None:
    certified = [one for one in facts.attacked if one.private]
    held = all(within_guarantee(result, loss) for one in certified for result in one.results)
    lines = [_found(one) for one in facts.attacked]
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


def _found(attacked: Attacked) -> str:
    best, sure = strongest(attacked.results), quoted_confidence(attacked.results, 0.95)
    low, high = best.auc_interval(confidence=sure)
    area = f"{best.auc:.3f} ({interval(low, high, digits=3)})"
    text = f"{attacked.model}: area under the curve {area}"
    there = best.operating_points(confidence=sure)
    if there:
        point = there[-1]
        text += f", {with_interval(point.tpr)} of members found at {level(point.asked_fpr)} FPR"
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
    rows = [(one.model, one.records, with_interval(one.accuracy)) for one in facts.utility]
    page.table(("model", "records", "accuracy"), rows)


def _named(attacked: Attacked) -> list[MembershipResult]:
    return [replace(one, attack=f"{attacked.model}, {one.attack}") for one in attacked.results]


def _curves(page: Page, facts: InternalFacts, loss: Loss) -> None:
    page.heading("Who was in the training data")
    results = [strongest(_named(attacked)) for attacked in facts.attacked]
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
    headings += [f"found at FPR {level(rate)}" for rate in REPORTED_FPR]
    rows: list[Sequence[str]] = []
    for attacked in facts.attacked:
        for result in attacked.results:
            low, high = result.auc_interval(confidence=facts.confidence)
            points = result.operating_points(confidence=facts.confidence)
            there = {point.asked_fpr: point.tpr for point in points}
            found = [
                with_interval(there[rate])
                if rate in there
                else f"needs {plain(round(1 / rate))} non-members"
                for rate in REPORTED_FPR
            ]
            area = f"{result.auc:.3f} ({interval(low, high, digits=3)})"
            rows.append([attacked.model, result.attack, area, *found])
    page.table(headings, rows)
    first = facts.attacked[0].results[0].roc
    page.text(f"{plain(first.members)} members and {plain(first.nonmembers)} non-members.")


def _exposed(page: Page, facts: InternalFacts) -> None:
    page.heading("The most exposed records")
    page.warning("INTERNAL: this list names records of the training data.")
    for attacked in facts.attacked:
        best = strongest(attacked.results)
        rows = [
            [
                plain(one.record),
                _class(one.label, facts.class_names),
                shown(one.score),
                between(one.fpr.low, one.fpr.high),
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


def _class(label: int, names: Sequence[str] | None) -> str:
    return str(label) if names is None or label >= len(names) else names[label]
