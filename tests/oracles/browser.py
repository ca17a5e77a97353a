"""A real browser for pages: Debian's chromium, without a window and without a network."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")

_MEASURE = """
<script>
const frame = document.getElementById("page");
setTimeout(() => {
  const inner = frame.contentDocument, root = inner.documentElement;
  const drawn = [...inner.querySelectorAll(".picture")];
  const plots = drawn.map((place) => place.querySelector("svg"));
  document.getElementById("out").textContent = JSON.stringify({
    width: frame.contentWindow.innerWidth,
    content: root.scrollWidth,
    pictures: drawn.length,
    drawn: plots.filter((svg) => svg !== null).length,
    // How far anything but what scrolls in a frame of its own reaches to the right.
    reaches: Math.max(0, ...[...inner.querySelectorAll("main *")]
      .filter((one) => !one.closest("svg") && !one.parentElement.closest(".wide"))
      .map((one) => one.getBoundingClientRect().right)),
    tables: Math.max(0, ...[...inner.querySelectorAll("table")]
      .map((one) => one.getBoundingClientRect().right)),
    // Axis titles and tick labels that lie outside of their picture.
    cut: [...inner.querySelectorAll(".picture text")].filter((one) => {
      const own = one.getBoundingClientRect();
      const all = one.closest(".picture").getBoundingClientRect();
      return own.width > 0 && (own.left < all.left - 1 || own.right > all.right + 1);
    }).map((one) => one.textContent),
    widest: Math.max(0, ...plots.map((svg) => svg ? svg.getBoundingClientRect().right : 0)),
    fetched: frame.contentWindow.performance.getEntriesByType("resource").length,
    text: inner.querySelector("main").innerText.length,
  });
}, 500);
</script>
"""


def measured(page: str, place: Path, *, width: int = 390) -> dict[str, Any]:
    """What a browser makes of a page in a frame of this width."""
    assert CHROMIUM is not None, "no browser can be had (apt install chromium)"
    frame = (
        f'<iframe id="page" width="{width}" height="4000" style="border:0" '
        f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )
    around = place / "around.html"
    around.write_text(f'<body><pre id="out"></pre>{frame}{_MEASURE}</body>', encoding="utf-8")
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={place / 'profile'}",
        "--virtual-time-budget=9000",
        "--timeout=90000",
        "--window-size=1200,1000",
        "--dump-dom",
        around.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    found = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    read: dict[str, Any] = json.loads(html.unescape(found[1]))
    return read


# The width of a sheet of A4 between margins of 14 mm, at 96 dots an inch.
SHEET = 688


def as_printed(page: str) -> str:
    """The page in the style of the printer, for a browser that shows it on a screen."""
    assert page.count("@media print {") == 1
    return page.replace("@media print {", "@media all {")


def visible_text(page: str) -> str:
    """The text of a page without its pictures, its style and what is there for programs."""
    bare = re.sub(r"<(template|style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def assert_self_contained(page: str) -> None:
    """Nothing is loaded from anywhere, everything that is needed is inside."""
    markup = re.sub(r"<(template|style)\b[^>]*>.*?</\1>", r"<\1></\1>", page, flags=re.DOTALL)
    assert not re.search(r"<(link|iframe|object|embed|form|base)\b", markup)
    assert not re.search(r"(src|href|action)\s*=\s*[\"'](?!data:|#)", markup)
    assert "default-src 'none'" in page
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in page
    assert "@media print" in page
    assert "<script" not in page.lower()
    assert not re.search(r"<[^>]*\son\w+\s*=", page)
    assert page.count("<svg") == page.count("</svg>") == page.count('<div class="picture"')
    assert page.count("<table>") == len(re.findall(r'<div class="wide( short)?"><table>', page))
    # No two elements of a page share an identifier, and every reference leads somewhere.
    names = re.findall(r'\bid="([^"]*)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:url\(|href=")#([\w-]+)', page)) <= set(names)
