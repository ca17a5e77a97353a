"""The page for attribute inference (S29): the attack beside what needs no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from discreet.report.figures import Bar, bars
from discreet.report.page import Page
from discreet.report.words import level, plain, points, with_interval

if TYPE_CHECKING:
    from discreet._confidence import Proportion
    from discreet.attacks import AttributeResult

__all__ = ["attribute_page"]


def attribute_page(
    result: AttributeResult,
    *,
    title: str = "Attribute inference",
    about: Mapping[str, str] | None = None,
) -> Page:
    """Return a page about one attribute; it points at no single record."""
    page = Page(title, internal=True)
    page.finding(
        f"{result.verdict[0].upper()}{result.verdict[1:]}.",
        f"What the attack wins over imputation is larger on members than on others by "
        f"{points(result.excess)}.",
    )
    page.table(
        ("the experiment", ""),
        [
            *(about or {}).items(),
            ("attribute", result.attribute),
            ("candidate values", ", ".join(result.values)),
            ("members", plain(result.attack_on_members.trials)),
            ("non-members", plain(result.attack_on_nonmembers.trials)),
            ("prior of the attacker", result.prior),
            ("imputation by", result.imputer),
            ("questions to the model", plain(result.queries)),
        ],
    )
    page.heading("Right guesses")
    pairs = {
        "attack": (result.attack_on_members, result.attack_on_nonmembers),
        "imputation, without the model": (
            result.imputation_on_members,
            result.imputation_on_nonmembers,
        ),
    }
    page.picture(
        bars(
            {name: [_bar("members", a), _bar("non-members", b)] for name, (a, b) in pairs.items()},
            title="attributes guessed right",
        ),
        caption="A leak is what the attack knows of members beyond what it knows of others, and "
        "beyond what anybody can guess who knows the population. "
        f"Lines: {level(result.confidence)} intervals.",
    )
    rows = [[name, with_interval(a), with_interval(b)] for name, (a, b) in pairs.items()]
    page.table(("", "members", "non-members"), rows)
    page.table(
        ("difference", ""),
        [
            ("attack, members less non-members", points(result.gap)),
            ("imputation, members less non-members", points(result.imputation_gap)),
            ("attack less imputation, on members", points(result.gain_on_members)),
            ("attack less imputation, on non-members", points(result.gain_on_nonmembers)),
            ("excess: the former less the latter", points(result.excess)),
        ],
    )
    page.heading("By value of the attribute")
    page.table(
        ("value", "group", "records", "found by the attack", "found by imputation"),
        [
            [row.value, row.group, plain(row.records), plain(row.attack), plain(row.imputation)]
            for row in result.by_value
        ],
        numeric=(False, False, True, True, True),
    )
    page.heading("What these figures do not say")
    return page.points(
        "A value that can be guessed for members and for others alike is known from the "
        "population, not from the model. It may still be wrong to use it.",
        "The imputation is as good as its learner: a better one would leave less to the attack.",
        "That no leak is shown does not mean that there is none.",
    )


def _bar(name: str, share: Proportion) -> Bar:
    return Bar(name, share.share, share.low, share.high)
