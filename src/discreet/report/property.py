"""The page for property inference (S29): what models tell of their training set as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from discreet.attacks import PropertyResult
from discreet.errors import InvalidValue
from discreet.report.figures import Bar, bars
from discreet.report.page import PUBLIC_RECORDS, Page, declared_public
from discreet.report.words import level, percent, plain, with_interval

__all__ = ["property_page"]


def property_page(
    results: PropertyResult | Sequence[PropertyResult],
    *,
    title: str = "Property inference",
    about: Mapping[str, str] | None = None,
    public_records: bool = False,
) -> Page:
    """Return a page about one property by one or several kinds of access.

    It is internal, because shadow models and target were trained on records; ``public_records``
    says that these are public or made up.
    """
    declared = declared_public(public_records)
    every = [results] if isinstance(results, PropertyResult) else list(results)
    if not every or not all(isinstance(result, PropertyResult) for result in every):
        raise InvalidValue("results", results, "one or more property results")
    best = max(every, key=lambda result: result.accuracy.share)
    page = Page(title, internal=not declared, notice=PUBLIC_RECORDS if declared else None)
    page.finding(
        f"By {best.access}: {best.verdict}.",
        f"{with_interval(best.accuracy)} of {plain(best.accuracy.trials)} held-out shadow models "
        f"were told apart rightly; always guessing the same would reach {percent(best.chance)}.",
    )
    if about:
        page.table(("the experiment", ""), list(about.items()))
    page.heading("Held-out shadow models told apart")
    accuracy = [
        Bar(result.access, result.accuracy.share, result.accuracy.low, result.accuracy.high)
        for result in every
    ]
    page.picture(
        bars({"accuracy": accuracy}, title="right answers", mark=(best.chance, "chance")),
        caption="Models that the meta-classifier never met. Lines: "
        f"{level(best.accuracy.confidence)} intervals.",
    )
    rows = [
        [
            result.access,
            with_interval(result.accuracy),
            with_interval(result.with_property),
            with_interval(result.without_property),
            f"{result.auc:.3f}",
            plain(result.training_shadows),
            "" if result.target_score is None else f"{result.target_score:.3f}",
        ]
        for result in every
    ]
    page.table(
        (
            "access",
            "accuracy",
            "with the property",
            "without",
            "area",
            "shadows to learn from",
            "score of the target",
        ),
        rows,
        numeric=(False, False, False, False, True, True, True),
    )
    page.heading("What these figures do not say")
    return page.points(
        "The figure is about shadow models of the attacker; a target that was trained "
        "differently may be harder to read.",
        "Differential privacy protects single records. A fact about the whole training set, such "
        "as a share of a large group, is not hidden by it.",
    )
