"""The page for a linkage of two tables (S30): matches, and how many of them are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from discreet import _validate
from discreet.report.figures import Bar, bars
from discreet.report.page import PUBLIC_RECORDS, Page, declared_public
from discreet.report.words import percent, plain, with_interval

if TYPE_CHECKING:
    from discreet.attacks import LinkageResult

__all__ = ["linkage_page"]


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
    """
    declared = declared_public(public_records)
    count = _validate.integer("exposed", exposed, at_least=0)
    internal = count > 0 or not declared
    page = Page(title, internal=internal, notice=None if internal else PUBLIC_RECORDS)
    page.finding(*_findings(result))
    keys = [
        f"{key} (within {result.tolerance[key]:g})" if key in result.tolerance else key
        for key in result.keys
    ]
    page.table(
        ("the tables", ""),
        [
            *(about or {}).items(),
            ("released rows", plain(result.released_rows)),
            ("rows of the register", plain(result.register_rows)),
            ("keys", ", ".join(keys)),
            ("coarser keys", ", ".join(result.generalisations) or "none"),
            ("released rows with all keys", plain(result.linkable_rows)),
            ("unique matches", plain(result.unique_matches)),
            ("of these matched by nobody else", plain(result.mutual_matches)),
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
            [name, plain(rows), percent(shares[name])]
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
                ("released people who are in the register", plain(truth.people_in_both)),
                ("unique matches that are right", plain(truth.correct_matches)),
                ("re-identified, of all released rows", with_interval(truth.reidentified)),
                (
                    "right, of unique matches",
                    "no match" if truth.precision is None else with_interval(truth.precision),
                ),
                (
                    "right by guessing among all candidates",
                    percent(truth.expected_correct / result.released_rows),
                ),
                ("right by guessing a name", percent(1 / result.register_rows)),
            ],
        )
    if count:
        page.heading("Matches")
        page.warning("INTERNAL: unsafe to publish. This list says who is who.")
        matched = [row for row, other in enumerate(result.match.tolist()) if other >= 0][:count]
        page.table(
            ("released row", "row of the register"),
            [[plain(row), plain(int(result.match[row]))] for row in matched],
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


def _findings(result: LinkageResult) -> list[str]:
    first = (
        f"{percent(result.unique_share)} of the released rows ({plain(result.unique_matches)} of "
        f"{plain(result.released_rows)}) agree with exactly one row of the register."
    )
    if result.truth is None:
        return [first, "Who the rows really are is not known here, nor how many matches are right."]
    found = result.truth.reidentified
    precision = result.truth.precision
    right = "" if precision is None else f"; of the matches {with_interval(precision)} are right"
    return [first, f"{with_interval(found)} of the released people were re-identified{right}."]
