"""Pages about tables: the anonymity of one, and the linkage of two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from discreet import _validate
from discreet.report._charts import Bar, bars, small_groups
from discreet.report._page import PUBLIC_RECORDS, Page, declared_public
from discreet.report._wording import format_count, format_percent, format_proportion

if TYPE_CHECKING:
    from discreet.attacks import AnonymityProfile, AnonymityResult, LinkageResult


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

    Parameters
    ----------
    result
        The profile of a table.
    title, about
        The title, and facts for its first table.
    exposed
        How many rows in small groups to list.
    public_records
        Whether the rows are public or made up.

    Returns
    -------
    Page
        Internal, unless they are and none is listed.

    Raises
    ------
    InvalidValue
        If an argument is wrong.
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
            ("rows", format_count(profile.rows)),
            ("quasi-identifiers", ", ".join(profile.columns)),
            ("groups of equal rows", format_count(profile.groups)),
            ("smallest group: k-anonymity", format_count(profile.k)),
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
                [format_count(int(row)), format_count(int(result.group_size_of_row[row]))]
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
        f"{format_percent(profile.unique_share)} of the rows ({format_count(profile.unique_rows)} "
        f"of {format_count(profile.rows)}) are the only one with their {_join(profile.columns)}."
    )
    known = (
        "Somebody who knows these columns of everybody in the table re-identifies "
        f"{format_percent(profile.expected_hits)} of the rows, guessing inside each group."
    )
    sentences = [alone, known]
    for secret in profile.sensitive:
        uniform = secret.rows_below_l.get(2)
        if uniform:
            sentences.append(
                f"{format_percent(uniform / profile.rows)} of the rows lie in a group that has one "
                f"single value of {secret.column}: it is known without telling the rows apart."
            )
    return sentences


def _crowds(page: Page, result: AnonymityResult) -> None:
    page.heading("Rows in small groups")
    profiles = [result.profile, *result.steps]
    names = [_step(profile) for profile in profiles]
    levels = list(result.profile.rows_below_k)
    series = {
        name: [profile.share_below(k) for k in levels]
        for name, profile in zip(names, profiles, strict=True)
    }
    page.picture(
        small_groups(levels, series, x="k", y="rows in groups of fewer than k"),
        caption="How many rows hide among fewer than k. At k = 2 these are the unique rows.",
    )
    page.table(
        ("", "k-anonymity", "unique", *(f"fewer than {k}" for k in levels if k > 2)),
        [
            [
                name,
                format_count(profile.k),
                format_percent(profile.unique_share),
                *(format_percent(profile.share_below(k)) for k in levels if k > 2),
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
            [
                " + ".join(p.columns),
                format_percent(p.unique_share),
                format_count(p.k),
                format_count(p.groups),
            ]
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
            format_count(secret.distinct_l),
            f"{secret.entropy_l:.2f}",
            f"{secret.closeness_t:.3f}",
            *(format_percent(rows / profile.rows) for rows in secret.rows_below_l.values()),
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
            *(f"rows with fewer than {least} values" for least in levels),
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


def _join(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- linkage -------------------------------------------------------------------------------


def linkage_page(
    result: LinkageResult,
    *,
    title: str = "Linkage of two tables",
    about: Mapping[str, str] | None = None,
    exposed: int = 0,
    public_records: bool = False,
) -> Page:
    """Return a page about a linkage.

    It is internal, because it is computed from records. ``public_records`` says that these are
    public or made up; with ``exposed`` matches listed the page is internal in any case.

    Parameters
    ----------
    result
        What was linked.
    title, about
        The title, and facts for its first table.
    exposed
        How many matches to list.
    public_records
        Whether the rows are public or made up.

    Returns
    -------
    Page
        Internal, unless they are and none is listed.

    Raises
    ------
    InvalidValue
        If an argument is wrong.
    """
    declared = declared_public(public_records)
    count = _validate.integer("exposed", exposed, at_least=0)
    internal = count > 0 or not declared
    page = Page(title, internal=internal, notice=None if internal else PUBLIC_RECORDS)
    page.finding(*_link_findings(result))
    keys = [
        f"{key} (within {result.tolerance[key]:g})" if key in result.tolerance else key
        for key in result.keys
    ]
    page.table(
        ("the tables", ""),
        [
            *(about or {}).items(),
            ("released rows", format_count(result.released_rows)),
            ("rows of the register", format_count(result.register_rows)),
            ("keys", ", ".join(keys)),
            ("coarser keys", ", ".join(result.generalisations) or "none"),
            ("released rows with all keys", format_count(result.linkable_rows)),
            ("unique matches", format_count(result.unique_matches)),
            ("of these matched by nobody else", format_count(result.mutual_matches)),
        ],
    )
    page.heading("Candidates for a released row")
    shares = {name: rows / result.released_rows for name, rows in result.candidate_counts.items()}
    page.picture(
        bars(
            {"released rows": [Bar(name, share) for name, share in shares.items()]},
            title="share of released rows, by number of candidates",
        ),
        caption="One candidate is a name, right or wrong.",
    )
    page.table(
        ("candidates", "released rows", "share"),
        [
            [name, format_count(rows), format_percent(shares[name])]
            for name, rows in result.candidate_counts.items()
        ],
        numeric=(False, True, True),
    )
    if result.truth is not None:
        truth = result.truth
        page.heading("How many matches are right")
        page.table(
            ("", ""),
            [
                ("released people who are in the register", format_count(truth.people_in_both)),
                ("unique matches that are right", format_count(truth.correct_matches)),
                ("re-identified, of all released rows", format_proportion(truth.reidentified)),
                (
                    "right, of unique matches",
                    "no match" if truth.precision is None else format_proportion(truth.precision),
                ),
                (
                    "right by guessing among all candidates",
                    format_percent(truth.expected_correct / result.released_rows),
                ),
                ("right by guessing a name", format_percent(1 / result.register_rows)),
            ],
        )
    if count:
        page.heading("Matches")
        page.warning("INTERNAL: unsafe to publish. This list says who is who.")
        matched = [row for row, other in enumerate(result.match.tolist()) if other >= 0][:count]
        page.table(
            ("released row", "row of the register"),
            [[format_count(row), format_count(int(result.match[row]))] for row in matched],
            numeric=(True, True),
            caption="Rows are numbered from 0, without the heading of a file.",
        )
    page.heading("What these figures do not say")
    return page.points(
        "A unique match may be wrong: the right person may be missing from the register or be "
        "written differently there.",
        "Other registers, or other keys, may link more.",
        "That a row has no unique match does not protect it: all its candidates may share the "
        "sensitive value.",
    )


def _link_findings(result: LinkageResult) -> list[str]:
    first = (
        f"{format_percent(result.unique_share)} of the released rows "
        f"({format_count(result.unique_matches)} of {format_count(result.released_rows)}) agree "
        "with exactly one row of the register."
    )
    if result.truth is None:
        return [first, "Who the rows really are is not known here, nor how many matches are right."]
    found = result.truth.reidentified
    precision = result.truth.precision
    right = (
        "" if precision is None else f"; of the matches {format_proportion(precision)} are right"
    )
    return [first, f"{format_proportion(found)} of the released people were re-identified{right}."]
