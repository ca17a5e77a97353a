"""A page: text, tables and pictures in one HTML file.

The file is complete: Plotly's script is inside, and the content security policy in its head lets
the browser load nothing from anywhere. All text is escaped. The same content gives the same bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, final

from discreet import __version__
from discreet._files import write_file
from discreet.errors import InvalidValue, NotApplicable
from discreet.report.style import STYLE, sheet_style

__all__ = ["EMBEDDED", "PUBLIC_RECORDS", "SIGNATURE", "Page", "declared_public"]

EMBEDDED = "document"
"""The id of the element that holds the JSON document of a page, if it has one."""

SIGNATURE = "signature"
"""The id of the element that holds the signed envelope of that document, if there is one."""

PUBLIC_RECORDS = (
    "The records were declared to be public or made up. Nobody checks that; of private records "
    "this page would be internal."
)

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
_PNG = b"\x89PNG\r\n\x1a\n"
_INTERNAL = (
    "This page was computed from private records outside of any mechanism. It is for the people "
    "who answer for the data; do not publish it and do not pass it on with the model."
)
_PUBLIC = "This page holds figures about groups of records and points at no single one."
_LONG_WORD = 34
# Tables of so few rows are printed on one sheet.
_SHORT = 8
_DRAW = """
const settings = {responsive: true, displaylogo: false, showTips: false, topojsonURL: "none",
  // Plotly's own bar has a button that uploads the data of a chart; this one has not.
  showSendToCloud: false, plotlyServerURL: "",
  // On a phone the bar would lie on the legend, and fingers zoom anyhow.
  displayModeBar: window.innerWidth > 600 ? "hover" : false,
  modeBarButtons: [["toImage"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]]};
for (const place of document.querySelectorAll(".picture")) {
  const figure = JSON.parse(place.nextElementSibling.textContent);
  Plotly.newPlot(place, figure.data, figure.layout, settings);
}
const fit = (sheet) => () => {
  for (const place of document.querySelectorAll(".picture")) {
    place.dataset.height ||= place.layout.height;
    const tall = place.dataset.height, height = sheet && tall > 350 ? 0.8 * tall : 1 * tall;
    Plotly.relayout(place, {width: sheet ? 660 : null, height: height, autosize: !sheet});
  }
};
window.addEventListener("beforeprint", fit(true));
window.addEventListener("afterprint", fit(false));
"""


@final
class Page:
    """Text, tables and pictures under headings, in the order in which they are added.

    ``internal`` is whether the page must stay in the house: it was computed from private records
    outside of a mechanism, or points at single ones. It is said on top, in words, or in those of
    ``notice``.

    >>> page = Page("A table", internal=False).heading("Rows").table(("n",), [("3",)])
    >>> "<td>3</td>" in page.html()
    True
    """

    def __init__(self, title: str, *, internal: bool, notice: str | None = None) -> None:
        if not isinstance(internal, bool):
            raise InvalidValue("internal", internal, "True or False")
        self.title = title
        self.internal = internal
        self.notice = notice
        self._document = ""
        self._parts: list[str] = []
        self._pictures = 0

    def heading(self, text: str) -> Page:
        """Start a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")
        return self

    def text(self, *paragraphs: str) -> Page:
        """Add paragraphs."""
        self._parts += [f"<p>{_told(paragraph)}</p>" for paragraph in paragraphs]
        return self

    def points(self, *items: str) -> Page:
        """Add a list of sentences."""
        inner = "".join(f"<li>{_told(item)}</li>" for item in items)
        self._parts.append(f"<ul>{inner}</ul>")
        return self

    def finding(self, *sentences: str) -> Page:
        """Add what the reader should take away, set apart."""
        inner = "".join(f"<p>{_told(sentence)}</p>" for sentence in sentences)
        self._parts.append(f'<div class="finding">{inner}</div>')
        return self

    def warning(self, text: str) -> Page:
        """Add a warning, set apart; the word is in the text, not only in the colour."""
        self._parts.append(f'<div class="warning"><p><strong>{_told(text)}</strong></p></div>')
        return self

    def table(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[bool] | None = None,
        caption: str = "",
    ) -> Page:
        """Add a table of texts; columns of numbers are set flush right."""
        right = [False] * len(headings) if numeric is None else list(numeric)
        marks = [' class="number"' if flush else "" for flush in right]

        def line(tag: str, cells: Sequence[str]) -> str:
            filled = zip(cells, marks, strict=True)
            return "".join(f"<{tag}{mark}>{_cell(cell)}</{tag}>" for cell, mark in filled)

        body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
        told = f'<p class="caption">{escape(caption)}</p>' if caption else ""
        kept = " short" if len(rows) <= _SHORT else ""
        self._parts.append(
            f'{told}<div class="wide{kept}"><table><thead><tr>{line("th", headings)}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
        return self

    def picture(self, figure: Mapping[str, Any], *, caption: str) -> Page:
        """Add a picture: the data and the layout of a Plotly figure as JSON values."""
        written = json.dumps({"data": figure["data"], "layout": figure["layout"]}, allow_nan=False)
        # Nothing inside a script element may look like its end.
        written = written.replace("<", "\\u003c")
        height = int(figure["layout"].get("height", 420))
        self._parts.append(
            f'<figure><div class="picture" style="min-height:{height}px" role="img" '
            f'aria-label="{escape(caption, quote=True)}"></div>'
            f'<script type="application/json">{written}</script>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
        self._pictures += 1
        return self

    def headline(self, state: str, *, kind: str, lines: Sequence[str]) -> Page:
        """Add the outcome of the whole page: a word, and sentences; ``kind`` chooses its colour."""
        if kind not in {"good", "open", "bad"}:
            raise InvalidValue("kind", kind, "good, open or bad")
        inner = "".join(f"<p>{_told(line)}</p>" for line in lines)
        sign = {"good": "\u2713", "open": "?", "bad": "\u2717"}[kind]
        self._parts.append(
            f'<div class="headline {kind}"><p class="state">'
            f'<span aria-hidden="true">{sign}</span> {escape(state)}</p>{inner}</div>'
        )
        return self

    def embed(self, document: Mapping[str, Any], *, name: str = EMBEDDED) -> Page:
        """Put a JSON document into the file, for programs, under :data:`EMBEDDED` or another id."""
        written = json.dumps(document, indent=1, allow_nan=False)
        self._document += (
            f'<script type="application/json" id="{name}">'
            + written.replace("<", "\\u003c")
            + "</script>"
        )
        return self

    def gallery(self, images: Sequence[tuple[bytes, str]]) -> Page:
        """Add small PNG images side by side, each with its caption."""
        figures = []
        for png, caption in images:
            if not png.startswith(_PNG):
                raise InvalidValue("images", png[:8], "the bytes of a PNG file")
            source = base64.b64encode(png).decode()
            figures.append(
                f'<figure><img alt="{escape(caption, quote=True)}" '
                f'src="data:image/png;base64,{source}"><figcaption>{escape(caption)}</figcaption>'
                "</figure>"
            )
        self._parts.append(f'<div class="gallery">{"".join(figures)}</div>')
        return self

    def html(self) -> str:
        """Return the whole file."""
        mark = "INTERNAL" if self.internal else "PUBLIC" if self.notice else "PUBLIC FIGURES"
        kind = "internal" if self.internal else "public"
        sentence = escape(self.notice or (_INTERNAL if self.internal else _PUBLIC))
        script = f"<script>{_plotly()}</script><script>{_DRAW}</script>" if self._pictures else ""
        sheet = sheet_style(internal=self.internal)
        hint = "<noscript><p>Pictures need JavaScript; the tables hold the figures.</p></noscript>"
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}{sheet}</style></head><body><main>"
            f'<div class="mark {kind}"><strong>{mark}</strong> {sentence}</div>'
            f"<h1>{escape(self.title)}</h1>"
            + "\n".join(self._parts)
            + (hint if self._pictures else "")
            + f"<footer>Written by Discreet {escape(__version__)}.</footer></main>"
            + f"{self._document}{script}</body></html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the file; it is complete under its name or not there."""
        return write_file(path, self.html())


def declared_public(public_records: bool) -> bool:
    """Whether the records of a page were declared to be public; nothing but True says so."""
    if not isinstance(public_records, bool):
        raise InvalidValue("public_records", public_records, "True or False")
    return public_records


def _told(text: str) -> str:
    """Escaped text in which a number keeps its percent sign or relation on the same line."""
    kept = escape(text).replace(" %", "\u00a0%")
    return kept.replace("\u2264 ", "\u2264\u00a0").replace("\u2265 ", "\u2265\u00a0")


def _cell(text: str) -> str:
    """The same; a word that is too long for a narrow page, such as a hash, may be broken."""
    if max(map(len, text.split()), default=0) <= _LONG_WORD:
        return _told(text)
    return f'<span class="long">{_told(text)}</span>'


def _plotly() -> str:
    try:
        offline = import_module("plotly.offline")
    except ImportError:
        raise NotApplicable("pages need plotly: pip install 'discreet[report]'") from None
    script: str = offline.get_plotlyjs()
    if "</script" in script.lower():
        raise NotApplicable("this version of plotly has a script that cannot be put into a page")
    return script
