"""The page for a table's anonymity (S30): who stands alone, and what generalising helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from discreet import _validate
from discreet.report.figures import Bar, bars, curve
from discreet.report.page import PUBLIC_RECORDS, Page, declared_public
from discreet.report.words import percent, plain

if TYPE_CHECKING:
    from discreet.attacks import AnonymityProfile, AnonymityResult

__all__ = ["anonymity_page"]


def anonymity_page(
    result: AnonymityResult,
    *,
    title: str = "Anonymity of a table",
    about: Mapping[str, str] | None = None,
    exposed: int = 0,
    public_records: bool = False,
) -> Page:
    """Return a page about one table.

    It is internal, because it is computed from records. ``public_records`` says that these are
    public or made up; with ``exposed`` rows listed the page is internal in any case.
    """
    declared = declared_public(public_records)
    count = _validate.integer("exposed", exposed, at_least=0)
    profile = result.profile
    internal = count > 0 or not declared
    page = Page(title, internal=internal, notice=None if internal else PUBLIC_RECORDS)
    page.finding(*_findings(profile))
    page.table(
        ("the table", ""),
        [
            *(about or {}).items(),
            ("rows", plain(profile.rows)),
            ("quasi-identifiers", ", ".join(profile.columns)),
            ("groups of equal rows", plain(profile.groups)),
            ("smallest group: k-anonymity", plain(profile.k)),
        ],
    )
    _crowds(page, result)
    if result.subsets:
        _columns(page, result)
    if profile.sensitive:
        _sensitive(page, result)
    if count:
        page.heading("Rows in the smallest groups")
        page.warning("INTERNAL: unsafe to publish. This list points at rows of the table.")
        page.table(
            ("row", "rows like it, itself included"),
            [
                [plain(int(row)), plain(int(result.group_size_of_row[row]))]
                for row in result.most_exposed(count)
            ],
            numeric=(True, True),
            caption="Rows are numbered from 0, without the heading of a file.",
        )
    page.heading("What these figures do not say")
    return page.points(
        "A row that is unique in the table may have twins in the population; whether a link is "
        "right is measured by linking with a register.",
        "k-anonymity is no guarantee. It fails where a group agrees on the sensitive value, where "
        "somebody knows another column, and where two tables about the same people are combined.",
        "Which columns others know is a guess about the future. Differential privacy makes none.",
    )


def _findings(profile: AnonymityProfile) -> list[str]:
    alone = (
        f"{percent(profile.unique_share)} of the rows ({plain(profile.unique_rows)} of "
        f"{plain(profile.rows)}) are the only one with their {_listed(profile.columns)}."
    )
    known = (
        "Somebody who knows these columns of everybody in the table re-identifies "
        f"{percent(profile.expected_hits)} of the rows, guessing inside each group."
    )
    sentences = [alone, known]
    for secret in profile.sensitive:
        uniform = secret.rows_below_l.get(2)
        if uniform:
            sentences.append(
                f"{percent(uniform / profile.rows)} of the rows lie in a group that has one single "
                f"value of {secret.column}: it is known without telling the rows apart."
            )
    return sentences


def _crowds(page: Page, result: AnonymityResult) -> None:
    page.heading("Rows in small groups")
    profiles = [result.profile, *result.steps]
    names = [_step(profile) for profile in profiles]
    levels = list(result.profile.rows_below_k)
    series = {
        name: ([float(k) for k in levels], [profile.share_below(k) for k in levels])
        for name, profile in zip(names, profiles, strict=True)
    }
    page.picture(
        curve(
            series,
            x={
                "title": {"text": "k"},
                "type": "log",
                "tickvals": levels,
                "ticktext": [str(k) for k in levels],
            },
            y={
                "title": {"text": "rows in groups of fewer than k"},
                "tickformat": ".0%",
                "range": [0, 1.03],
            },
        ),
        caption="How many rows hide among fewer than k. At k = 2 these are the unique rows.",
    )
    page.table(
        ("", "k-anonymity", "unique", *(f"fewer than {k}" for k in levels if k > 2)),
        [
            [
                name,
                plain(profile.k),
                percent(profile.unique_share),
                *(percent(profile.share_below(k)) for k in levels if k > 2),
            ]
            for name, profile in zip(names, profiles, strict=True)
        ],
        numeric=(False, *([True] * (1 + len(levels) + (0 if 2 in levels else 1)))),
    )


def _columns(page: Page, result: AnonymityResult) -> None:
    page.heading("Which columns single people out")
    profiles = sorted([*result.subsets, result.profile], key=lambda each: each.unique_share)
    entries = [Bar(" + ".join(each.columns), each.unique_share) for each in profiles]
    page.picture(
        bars({"unique rows": entries}, title="share of unique rows"),
        caption="Columns that tell little alone may tell nearly everything together.",
    )
    page.table(
        ("columns", "unique", "k-anonymity", "groups"),
        [
            [" + ".join(p.columns), percent(p.unique_share), plain(p.k), plain(p.groups)]
            for p in profiles
        ],
        numeric=(False, True, True, True),
    )


def _sensitive(page: Page, result: AnonymityResult) -> None:
    page.heading("What a group gives away")
    rows = [
        [
            secret.column,
            _step(profile),
            plain(secret.distinct_l),
            f"{secret.entropy_l:.2f}",
            f"{secret.closeness_t:.3f}",
            *(percent(rows / profile.rows) for rows in secret.rows_below_l.values()),
            f"{100 * secret.mean_gain:+.1f} points",
        ]
        for profile in [result.profile, *result.steps]
        for secret in profile.sensitive
    ]
    levels = result.profile.sensitive[0].rows_below_l
    page.table(
        (
            "column",
            "",
            "distinct l",
            "entropy l",
            "t",
            *(f"rows with fewer than {level} values" for level in levels),
            "gain of a guess",
        ),
        rows,
        numeric=(False, False, True, True, True, *([True] * len(levels)), True),
        caption="l: in the worst group, the number of different values (distinct), or as many as "
        "equally likely ones would have the same entropy. t: the largest distance of a group from "
        "the whole table, 0 to 1. Gain: how much more often the commonest value of the group is "
        "right than that of the table.",
    )


def _step(profile: AnonymityProfile) -> str:
    return ", ".join(profile.generalisations) if profile.generalisations else "as it is"


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
