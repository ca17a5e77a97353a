"""How pages look: one column, readable on a phone, printable in black and white.

Colours are those of Okabe and Ito (2008), which the colour-blind tell apart, in an order in which
neighbours also differ in lightness. Lines differ by their dashes as well.
"""

from __future__ import annotations

__all__ = ["BLACK", "DASHES", "GREY", "PALETTE", "STYLE", "sheet_style"]

PALETTE = (
    "#0072B2",  # blue
    "#D55E00",  # vermilion
    "#009E73",  # green
    "#E69F00",  # orange
    "#CC79A7",  # purple
    "#56B4E9",  # sky
    "#000000",  # black
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GREY = "#6E6E6E"
BLACK = "#000000"

STYLE = """
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
.picture { width: 100%; }
figcaption { margin-top: .4rem; color: #444; font-size: .9rem; max-width: 42rem; }
footer { margin: 2.5rem 0 1rem; padding-top: .5rem; border-top: 1px solid #ddd; color: #555;
  font-size: .85rem; }
@media print {
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  p, ul, figcaption { max-width: none; orphans: 3; widows: 3; }
  table { max-width: 100%; font-size: 9.5pt; }
  .picture { min-height: 0 !important; }
  .wide { overflow: visible; background: none; }
  .long { min-width: 0; }
  figure, .short, .finding, .warning, .headline, tr, li { break-inside: avoid; }
  h1, h2, .caption, thead { break-after: avoid; }
  .modebar-container, .modebar { display: none !important; }
  .mark { border-style: double; }
}
"""

_SHEET = """@page { margin: 14mm 14mm 18mm;
  @bottom-left { content: "%s"; font: 8.5pt sans-serif; color: #444; }
  @bottom-right { content: counter(page) " / " counter(pages); font: 8.5pt sans-serif;
    color: #444; } }
"""


def sheet_style(*, internal: bool) -> str:
    """The style of printed sheets: every one of them says whether it may be passed on.

    >>> "INTERNAL" in sheet_style(internal=True), "INTERNAL" in sheet_style(internal=False)
    (True, False)
    """
    return _SHEET % ("INTERNAL: unsafe to publish" if internal else "Discreet")
