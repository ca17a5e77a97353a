"""A page: text, tables and pictures in one HTML file.

The file is complete and runs nothing: pictures are SVG, and the content security policy in its head
lets the browser load nothing from anywhere and run no script. All text is escaped. The same content
gives the same bytes.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from discreet import __version__
from discreet._files import write_file
from discreet.errors import InvalidValue, NotApplicable
from discreet.report._drawing import inline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMBEDDED = "document"
"""The id of the element that holds the JSON document of a page, if it has one."""

SIGNATURE = "signature"
"""The id of the element that holds the signed envelope of that document, if there is one."""

PUBLIC_RECORDS = (
    "The records were declared to be public or made up. Nobody checks that; of private records "
    "this page would be internal."
)

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
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
_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: #1a1a1a; -webkit-text-size-adjust: 100%;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1rem 0; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2rem 0 .5rem; }
p { margin: .5rem 0; max-width: 42rem; }
ul { margin: .5rem 0; padding-left: 1.3rem; max-width: 42rem; }
li { margin: .3rem 0; }
.mark { padding: .6rem .9rem; border: 2px solid #1a1a1a; font-size: .9rem; }
.mark.internal { background: #D55E00; border-color: #D55E00; color: #000; }
.mark.public { background: #eef4f8; border-color: #0072B2; }
.finding { border-left: 4px solid #0072B2; background: #f3f7fa; padding: .3rem 1rem;
  margin: 1rem 0; }
.warning { border-left: 4px solid #D55E00; background: #fdf1e8; padding: .3rem 1rem;
  margin: 1rem 0; }
.headline { border: 2px solid; border-left-width: 10px; padding: .5rem 1rem; margin: 1rem 0; }
.headline .state { font-size: 1.25rem; font-weight: 700; margin: .3rem 0; }
.headline.good { border-color: #0072B2; background: #f3f7fa; }
.headline.open { border-color: #E69F00; background: #fdf7e8; }
.headline.bad { border-color: #D55E00; background: #fdf1e8; }
.wide { overflow-x: auto; margin: .8rem 0;
  /* A shadow at the edge beyond which a wide table goes on. */
  background: linear-gradient(to right, #fff 50%, #fff0) 0 / 1.5rem 100% no-repeat local,
    linear-gradient(to left, #fff 50%, #fff0) 100% / 1.5rem 100% no-repeat local,
    linear-gradient(to right, #0003, #0000) 0 / .6rem 100% no-repeat scroll,
    linear-gradient(to left, #0003, #0000) 100% / .6rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.caption { color: #444; font-size: .9rem; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #1a1a1a; vertical-align: bottom; }
.long { overflow-wrap: anywhere; display: inline-block; min-width: 9rem; }
.number { text-align: right; }
td.number { white-space: nowrap; }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; }
.gallery { display: flex; flex-wrap: wrap; gap: .8rem; margin: .8rem 0; }
.gallery figure { margin: 0; width: 8.2rem; break-inside: avoid; }
.gallery img { width: 100%; image-rendering: pixelated; border: 1px solid #ddd; }
.picture { max-width: 34rem; }
.picture svg { display: block; width: 100%; height: auto; stroke-linejoin: round; }
figcaption { margin-top: .4rem; color: #444; font-size: .9rem; max-width: 42rem; }
footer { margin: 2.5rem 0 1rem; padding-top: .5rem; border-top: 1px solid #ddd; color: #555;
  font-size: .85rem; }
@media print {
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  p, ul, figcaption { max-width: none; orphans: 3; widows: 3; }
  table { max-width: 100%; font-size: 9.5pt; }
  .picture { max-width: 15cm; }
  .wide { overflow: visible; background: none; }
  .long { min-width: 0; }
  figure, .short, .finding, .warning, .headline, tr, li { break-inside: avoid; }
  h1, h2, .caption, thead { break-after: avoid; }
  .mark { border-style: double; }
}
"""


_SHEET = """@page { margin: 14mm 14mm 18mm;
  @bottom-left { content: "%s"; font: 8.5pt sans-serif; color: #444; }
  @bottom-right { content: counter(page) " / " counter(pages); font: 8.5pt sans-serif;
    color: #444; } }
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
        self._parts += [f"<p>{_inline(paragraph)}</p>" for paragraph in paragraphs]
        return self

    def points(self, *items: str) -> Page:
        """Add a list of sentences."""
        inner = "".join(f"<li>{_inline(item)}</li>" for item in items)
        self._parts.append(f"<ul>{inner}</ul>")
        return self

    def finding(self, *sentences: str) -> Page:
        """Add what the reader should take away, set apart."""
        inner = "".join(f"<p>{_inline(sentence)}</p>" for sentence in sentences)
        self._parts.append(f'<div class="finding">{inner}</div>')
        return self

    def warning(self, text: str) -> Page:
        """Add a warning, set apart; the word is in the text, not only in the colour."""
        self._parts.append(f'<div class="warning"><p><strong>{_inline(text)}</strong></p></div>')
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
        above = f'<p class="caption">{escape(caption)}</p>' if caption else ""
        short = " short" if len(rows) <= _SHORT else ""
        self._parts.append(
            f'{above}<div class="wide{short}"><table><thead><tr>{line("th", headings)}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
        return self

    def picture(self, figure: Figure, *, caption: str) -> Page:
        """Add a figure of matplotlib as SVG."""
        self._pictures += 1
        drawn = inline_svg(figure, salt=f"picture {self._pictures}")
        self._parts.append(
            f'<figure><div class="picture" role="img" aria-label="{escape(caption, quote=True)}">'
            f"{drawn}</div><figcaption>{escape(caption)}</figcaption></figure>"
        )
        return self

    def headline(self, state: str, *, kind: str, lines: Sequence[str]) -> Page:
        """Add the outcome of the whole page: a word, and sentences; ``kind`` chooses its colour."""
        if kind not in {"good", "open", "bad"}:
            raise InvalidValue("kind", kind, "good, open or bad")
        inner = "".join(f"<p>{_inline(line)}</p>" for line in lines)
        sign = {"good": "\u2713", "open": "?", "bad": "\u2717"}[kind]
        self._parts.append(
            f'<div class="headline {kind}"><p class="state">'
            f'<span aria-hidden="true">{sign}</span> {escape(state)}</p>{inner}</div>'
        )
        return self

    def embed(self, document: Mapping[str, Any], *, name: str = EMBEDDED) -> Page:
        """Put a JSON document into the file, for programs, under :data:`EMBEDDED` or another id."""
        written = json.dumps(document, indent=1, allow_nan=False)
        self._document += f'<template id="{name}">{escape(written, quote=False)}</template>'
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
        sheet = _SHEET % ("INTERNAL: unsafe to publish" if self.internal else "Discreet")
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}{sheet}</style></head><body><main>"
            f'<div class="mark {kind}"><strong>{mark}</strong> {sentence}</div>'
            f"<h1>{escape(self.title)}</h1>"
            + "\n".join(self._parts)
            + f"<footer>Written by Discreet {escape(__version__)}{self._name_drawer()}.</footer>"
            + f"</main>{self._document}</body></html>\n"
        )

    def _name_drawer(self) -> str:
        if not self._pictures:
            return ""
        import matplotlib as mpl

        return f", pictures by matplotlib {escape(mpl.__version__)}"

    def write(self, path: str | Path) -> Path:
        """Write the file; it is complete under its name or not there."""
        return write_file(path, self.html())

    def write_pdf(self, path: str | Path) -> Path:
        """Print the page to a PDF file by Chromium, which has to be installed.

        Raises
        ------
        NotApplicable
            If there is no Chromium, or it fails.

        """
        program = next(filter(None, map(shutil.which, _BROWSERS)), None)
        if program is None:
            raise NotApplicable(
                "a PDF is printed by Chromium, which is not installed: write the page and print it"
            )
        with tempfile.TemporaryDirectory() as name:
            page, printed = self.write(Path(name, "page.html")), Path(name, "page.pdf")
            options = ["--headless=new", "--disable-gpu", "--no-pdf-header-footer"]
            # Chromium refuses its sandbox to root; the page is our own, and loads and runs nothing.
            options += ["--no-sandbox"] if os.geteuid() == 0 else []
            places = [f"--user-data-dir={name}/profile", f"--print-to-pdf={printed}", page.as_uri()]
            command = [program, *options, *places]
            try:
                subprocess.run(command, capture_output=True, check=True, timeout=120)
                content = printed.read_bytes()
            except (subprocess.SubprocessError, FileNotFoundError):
                raise NotApplicable(f"{Path(program).name} could not print the page") from None
            return write_file(path, content)


def embedded_texts(page: str, name: str = EMBEDDED) -> list[str]:
    """Return the JSON documents that were put into a page under an id; there should be one.

    Pages of 0.1 hold them as data of a script element.
    """
    mark = re.escape(name)
    found = re.findall(f'<template id="{mark}">(.*?)</template>', page, flags=re.DOTALL)
    old = f'<script type="application/json" id="{mark}">(.*?)</script>'
    return [*map(unescape, found), *re.findall(old, page, flags=re.DOTALL)]


def without_pictures(page: str) -> str:
    """Return a page without its pictures and without the name of what drew them."""
    bare = re.sub(r"<svg\b.*?</svg>", "", page, flags=re.DOTALL)
    return re.sub(r", pictures by matplotlib [^<]*(?=\.</footer>)", "", bare)


def declared_public(public_records: bool) -> bool:
    """Whether the records of a page were declared to be public; nothing but True says so."""
    if not isinstance(public_records, bool):
        raise InvalidValue("public_records", public_records, "True or False")
    return public_records


def _inline(text: str) -> str:
    """Escaped text in which a number keeps its percent sign or relation on the same line."""
    kept = escape(text).replace(" %", "\u00a0%")
    return kept.replace("\u2264 ", "\u2264\u00a0").replace("\u2265 ", "\u2265\u00a0")


def _cell(text: str) -> str:
    """The same; a word that is too long for a narrow page, such as a hash, may be broken."""
    if max(map(len, text.split()), default=0) <= _LONG_WORD:
        return _inline(text)
    return f'<span class="long">{_inline(text)}</span>'
