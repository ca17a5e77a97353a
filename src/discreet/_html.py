"""Small tables for notebooks, which show an object by its ``_repr_html_``."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_LONGEST = 600


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table of two columns under a title; everything is escaped, long texts are cut.

    >>> html_table("a < b", [("epsilon", 1.5)])
    '<table><caption>a &lt; b</caption><tr><th>epsilon</th><td>1.5</td></tr></table>'
    """
    lines = [
        f"<tr><th>{escape(name)}</th><td>{escape(_shortened(value))}</td></tr>"
        for name, value in rows
    ]
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def _shortened(value: object) -> str:
    text = format(value, ".6g") if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
