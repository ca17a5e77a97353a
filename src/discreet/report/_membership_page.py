"""The page of membership attacks: curve, figures, slices, and who is exposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet._rounding import interval
from discreet.attacks import FALSE_ALARM, REPORTED_FPR, SMALLEST_SLICE, MembershipResult
from discreet.errors import InvalidValue
from discreet.report._charts import Bar, dots, histogram, roc
from discreet.report._page import Page
from discreet.report._wording import (
    format_count,
    format_difference,
    format_interval,
    format_level,
    format_number,
    format_proportion,
)

if TYPE_CHECKING:
    from discreet.privacy import Loss


_SHOWN_SLICES = 20
_EVEN = 0.5
_CURVE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5)
_QUANTILES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_LISTED = (
    "Unsafe to publish. This page points at single records of the data. It is for the people who "
    "answer for the data; do not pass it on with the model."
)
_REAL = (
    "Unsafe to publish. How well an attack on real members works was computed from private "
    "records outside of any mechanism, so that no guarantee covers this page; do not pass it on "
    "with the model."
)
_DECLARED = (
    "The members were declared to be canaries or public data: this page tells nothing about "
    "private records if that is true."
)
_APART = {
    True: ". The evaluated records took part in it: an attacker who lacks them may do worse.",
    False: ", apart from the records that it is judged on.",
    None: ".",
}


def membership_page(
    results: MembershipResult | Sequence[MembershipResult],
    *,
    title: str = "Membership inference",
    about: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
    exposed: int = 10,
    public_members: bool = False,
    loss: Loss | None = None,
    confidence: float = 0.95,
) -> Page:
    """Return a page about one or several attacks on one model.

    The page is internal, unsafe to publish: the success of an attack on real members is
    computed from private records. ``public_members=True`` declares that the members are
    canaries or public data; the page is then public if it also lists no records.
    ``exposed`` is how many of the most exposed records to list for the strongest attack.
    ``loss`` is the guarantee that the model was trained with; the curve that it allows is
    drawn and compared.

    Parameters
    ----------
    results
        Of one or several attacks on one model.
    title, about
        The title, and facts for its first table.
    class_names
        What the classes are called.
    exposed
        How many of the most exposed records to list.
    public_members
        Whether the members are canaries or public.
    loss
        What the model was trained with.
    confidence
        Of the intervals.

    Returns
    -------
    Page
        Internal, unless members are public and none is listed.

    Raises
    ------
    InvalidValue
        If an argument is wrong.
    """
    every = [results] if isinstance(results, MembershipResult) else list(results)
    if not every or not all(isinstance(result, MembershipResult) for result in every):
        raise InvalidValue("results", results, "one or more membership results")
    _validate.integer("exposed", exposed, at_least=0)
    sure = _validate.real("confidence", confidence, above=0, below=1)
    if not isinstance(public_members, bool):
        raise InvalidValue("public_members", public_members, "True or False")
    page = Page(
        title,
        internal=exposed > 0 or not public_members,
        notice=_LISTED if exposed else _DECLARED if public_members else _REAL,
    )
    best = strongest_attack(every)
    page.finding(*_findings(best, quoted_confidence(every, sure)), how_chosen(every, sure))
    _about(page, every, about)
    _curve(page, every, sure, loss)
    _figures(page, every, sure)
    _slices(page, best, class_names, sure, 1 if exposed else SMALLEST_SLICE)
    if exposed:
        _scores(page, best)
        _add_exposed_records(page, best, exposed, class_names, sure)
    page.heading("What these figures do not say").points(
        "A weak attack is no guarantee: a stronger one may come. Only a certificate of "
        "differential privacy bounds every attack.",
        "The area under the curve is an average over all thresholds. It may be close to 1/2 while "
        "a few people are recognised with near certainty; read the left edge of the curve.",
        "Precision is that of an experiment with as many members as non-members as were given "
        "here. Where members are rare, the same attack is wrong more often.",
        "Thresholds of the curve were chosen in hindsight.",
        *_origins(every),
        f"Each interval holds at {format_level(sure)} by itself; among many, some miss.",
    )
    return page


def strongest_attack(results: Sequence[MembershipResult]) -> MembershipResult:
    """Return the attack that was strongest on shadow models, or else on the target, in hindsight.

    In hindsight it is the one that finds most members at the smallest supported reported rate.

    Parameters
    ----------
    results
        Of attacks on one target.

    Returns
    -------
    MembershipResult
        The one to quote.
    """
    marked = _find_strongest(results)
    if marked is not None:
        return marked

    def strength(result: MembershipResult) -> tuple[float, float]:
        there = result.operating_points()
        return (there[-1].tpr.share if there else 0.0, result.auc)

    return max(results, key=strength)


def quoted_confidence(results: Sequence[MembershipResult], confidence: float) -> float:
    """Return the confidence at which to compute the interval of the strongest attack.

    An attack that was picked in hindsight is one of several whose intervals must all hold.
    """
    if _find_strongest(results) is not None:
        return confidence
    return 1 - (1 - confidence) / len(results)


def how_chosen(results: Sequence[MembershipResult], confidence: float) -> str:
    """Say by what the quoted attack was chosen."""
    marked, best = _find_strongest(results), strongest_attack(results).attack
    if marked is not None:
        return f"{best} was chosen as the strongest on {marked.metadata['strongest_on']}."
    if len(results) == 1:
        return f"{best} is the only attack that was run."
    return (
        f"{best} was picked in hindsight as the best of {len(results)} attacks, so these intervals "
        f"are wider: all {len(results)} of that width hold together at {format_level(confidence)}."
    )


def _find_strongest(results: Sequence[MembershipResult]) -> MembershipResult | None:
    return next((one for one in results if "strongest_on" in one.metadata), None)


def _origins(results: Sequence[MembershipResult]) -> list[str]:
    """How each attack that decides has set its threshold."""
    sentences = []
    for result in results:
        if result.decisions is None:
            continue
        origin = result.threshold_from
        sentence = f"Decisions of {result.attack}: the threshold was set by "
        sentence += "means that the result does not tell" if origin is None else origin
        sentences.append(sentence + _APART[result.threshold_saw_evaluated])
    return sentences


def _findings(result: MembershipResult, confidence: float) -> list[str]:
    low, high = result.auc_interval(confidence=confidence)
    sentences = []
    there = result.operating_points(confidence=confidence)
    if there:
        point = there[-1]
        ratio = point.tpr.share / point.asked_fpr
        sentences.append(
            f"At one false accusation in {1 / point.asked_fpr:g}, the attack {result.attack} "
            f"recognises {format_proportion(point.tpr)} of the members; guessing would "
            f"recognise {format_level(point.asked_fpr)}, so it is {ratio:.3g} times as good as "
            "chance."
        )
    if low > _EVEN:
        sentences.append(
            "The model behaves differently on records that it was trained on: the area under the "
            f"curve is {result.auc:.3f} ({interval(low, high, digits=3)}), and 0.5 is chance."
        )
    else:
        sentences.append(
            f"On average over all thresholds the attack shows nothing: the area is "
            f"{result.auc:.3f} ({interval(low, high, digits=3)}), and 0.5 is chance."
        )
    return sentences


def _about(
    page: Page, results: Sequence[MembershipResult], about: Mapping[str, str] | None
) -> None:
    rows = [
        ("attacks", ", ".join(result.attack for result in results)),
        ("members", format_count(results[0].roc.members)),
        ("non-members", format_count(results[0].roc.nonmembers)),
    ]
    page.table(("the experiment", ""), [*(about or {}).items(), *rows])


def _curve(
    page: Page, results: Sequence[MembershipResult], confidence: float, loss: Loss | None
) -> None:
    page.heading("How many members are found, at how many false accusations")
    allowed = None
    if loss is not None:
        smallest = min(result.roc.smallest_fpr for result in results)
        rates = np.geomspace(smallest, 1.0, 80)
        allowed = (rates.tolist(), np.asarray(loss.tradeoff(rates)).tolist(), "allowed at most")
    page.picture(
        roc(results, confidence=confidence, allowed=allowed),
        caption="Both axes are logarithmic: what counts is on the left, where hardly anybody is "
        "accused wrongly. The curve starts where the non-members end: fewer false accusations "
        f"cannot be measured with so many. Shaded: {format_level(confidence)} intervals.",
    )
    page.table(
        ("wrongly accused (FPR)", *(f"found by {result.attack}" for result in results)),
        [
            [
                format_level(rate),
                *(_format_found_share(result, rate, confidence) for result in results),
            ]
            for rate in _CURVE
        ],
        numeric=[True] * (1 + len(results)),
        caption="The curve in numbers:",
    )
    if loss is not None:
        _compare(page, results, loss)


def _format_found_share(result: MembershipResult, rate: float, confidence: float) -> str:
    if rate < result.roc.smallest_fpr:
        return "too few non-members"
    return format_proportion(result.tpr_at(rate, confidence=confidence))


def _compare(page: Page, results: Sequence[MembershipResult], loss: Loss) -> None:
    """Say whether the curves stay within the guarantee, at every threshold."""
    each = FALSE_ALARM / len(results)
    if any(result.roc.exceeds(loss, error=each) for result in results):
        page.warning(
            "WARNING: a measured curve lies outside of what the certificate of the model allows, "
            "by more than chance explains. The certificate, the training or the experiment is "
            "wrong."
        )
    elif any(result.roc.could_exceed(loss, error=each) for result in results):
        page.text(
            "At no threshold does a measured curve lie outside of what the certificate of the "
            "model allows by more than chance explains. Every point of the curves was compared, "
            "by exact intervals that hold for all of them at once, except with a probability of "
            f"{FALSE_ALARM:g} if records were independent. That does not confirm the "
            "certificate: weak attacks stay within it, right or wrong."
        )
    else:
        page.text(
            "There are too few records to compare the curves with the certificate: an attack "
            "without any mistake would not lie outside of what it allows by more than chance "
            "explains."
        )


def _figures(page: Page, results: Sequence[MembershipResult], confidence: float) -> None:
    page.heading("The figures")
    headings = ["attack", "area under the curve"]
    headings += [f"members found at FPR {format_level(rate)}" for rate in REPORTED_FPR]
    rows = []
    for result in results:
        low, high = result.auc_interval(confidence=confidence)
        row = [result.attack, f"{result.auc:.3f} ({interval(low, high, digits=3)})"]
        there = {p.asked_fpr: p for p in result.operating_points(confidence=confidence)}
        for rate in REPORTED_FPR:
            needed = f"needs {format_count(round(1 / rate))} non-members"
            row.append(format_proportion(there[rate].tpr) if rate in there else needed)
        rows.append(row)
    page.table(headings, rows)
    decided = [result for result in results if result.decisions is not None]
    if not decided:
        return
    rows = []
    for result in decided:
        precision = result.precision(confidence=confidence)
        rows.append(
            [
                result.attack,
                result.threshold_from or "not told",
                "nobody accused" if precision is None else format_proportion(precision),
                format_proportion(result.recall(confidence=confidence)),
                format_proportion(result.false_positive_rate(confidence=confidence)),
                format_difference(result.advantage(confidence=confidence)),
            ]
        )
    page.table(
        ("attack", "threshold by", "precision", "recall", "false accusations", "advantage"),
        rows,
        caption="Decisions with a threshold that each attack set as said. Advantage is recall less "
        "false accusations; 0 is chance.",
    )


def _slices(
    page: Page,
    result: MembershipResult,
    names: Sequence[str] | None,
    confidence: float,
    smallest: int,
) -> None:
    found = result.slices(smallest=smallest, confidence=confidence)
    if len(found) < 2:
        return
    ranked = sorted(found, key=lambda part: -part.auc)
    page.heading(f"By class: {result.attack}")
    if smallest > 1:
        page.text(f"Classes with fewer than {smallest} members or non-members are left out.")
    if len(ranked) > _SHOWN_SLICES:
        page.text(f"The {_SHOWN_SLICES} most exposed of {len(ranked)} classes.")
    ranked = ranked[:_SHOWN_SLICES]
    titles = [_class_name(part.name, names) for part in ranked]
    entries = [
        Bar(title, part.auc, *part.auc_interval) for title, part in zip(titles, ranked, strict=True)
    ]
    page.picture(
        dots(entries, title="area under the curve", mark=(_EVEN, "chance")),
        caption="Some groups may be far more exposed than the average over everybody.",
    )
    rows = []
    for title, part in zip(titles, ranked, strict=True):
        best = part.points[-1] if part.points else None
        rows.append(
            [
                title,
                format_count(part.members),
                format_count(part.nonmembers),
                f"{part.auc:.3f} ({interval(*part.auc_interval, digits=3)})",
                "too few non-members" if best is None else format_proportion(best.tpr),
                "" if best is None else format_level(best.asked_fpr),
            ]
        )
    page.table(
        ("class", "members", "non-members", "area", "members found", "at FPR"),
        rows,
        numeric=(False, True, True, False, False, True),
    )


def _scores(page: Page, result: MembershipResult) -> None:
    page.heading("Scores of members and of non-members")
    page.picture(
        histogram(
            {"members": result.member_scores, "non-members": result.nonmember_scores},
            title=f"score of the attack {result.attack}",
        ),
        caption="Where the two differ, the model tells them apart. Few records far to the right "
        "matter more than a shift of the middle.",
    )
    groups = [np.sort(result.member_scores), np.sort(result.nonmember_scores)]
    page.table(
        ("share of the group with at most", "members", "non-members"),
        [
            [
                format_level(share),
                *(format_number(float(one[int(share * (len(one) - 1))])) for one in groups),
            ]
            for share in _QUANTILES
        ],
        numeric=(True, True, True),
    )


def _add_exposed_records(
    page: Page,
    result: MembershipResult,
    count: int,
    names: Sequence[str] | None,
    confidence: float,
) -> None:
    page.heading("The most exposed records")
    page.warning("INTERNAL: unsafe to publish. This list names records of the training data.")
    rows = [
        [
            format_count(one.record),
            _class_name(str(one.label), names),
            format_number(one.score),
            format_interval(one.fpr.low, one.fpr.high),
        ]
        for one in result.most_exposed(count, confidence=confidence)
    ]
    page.table(
        ("record", "class", "score", "non-members with such a score"),
        rows,
        numeric=(True, False, True, True),
        caption="Records are numbered from 0 in the order in which they were given, members first.",
    )


def _class_name(label: str, names: Sequence[str] | None) -> str:
    if names is None or not label.isdecimal() or int(label) >= len(names):
        return label
    return str(names[int(label)])
