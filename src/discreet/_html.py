"""Small tables for notebooks, which show an object by its ``_repr_html_``."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from discreet._rounding import at_least, at_most

_LONGEST = 600


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of two columns under a title; everything is escaped, long texts are cut.

    >>> html_table("a < b", [("epsilon", 1.5)])
    '<table><caption>a &lt; b</caption><tr><th>epsilon</th><td>1.5</td></tr></table>'
    """
    lines = [
        f"<tr><th>{escape(name)}</th><td>{escape(_shorten(value))}</td></tr>"
        for name, value in rows
    ]
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def show_bounds(bounds: Any) -> str:
    """Return the table of a certified bracket."""
    ends = at_least(bounds.lower, digits=6), at_most(bounds.upper, digits=6)
    rows = [("at least", ends[0]), ("at most", ends[1]), ("note", bounds.note)]
    return html_table("certified bracket", rows if bounds.note else rows[:2])


def show_loss(loss: Any) -> str:
    """Return the table of a privacy loss, which is read at a delta of the reader's choice."""
    rows = [("of", repr(loss)), ("neighbours", loss.relation.value)]
    return html_table("privacy loss", [*rows, ("read it with", ".epsilon(delta=...)")])


def show_ledger(ledger: Any) -> str:
    """Return the table of a ledger: what is used of each budget."""
    views = map(ledger.show, ledger.datasets())
    rows = [(f"{view.name}, {one.label}", one) for view in views for one in view.budgets]
    return html_table(repr(ledger), rows)


def _shorten(value: object) -> str:
    text = format(value, ".6g") if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
