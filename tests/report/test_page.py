"""Pages are whole, escaped and silent: nothing is fetched, nothing is sent."""

import inspect
import io
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import discreet
from discreet.errors import InvalidValue
from discreet.report import Page
from discreet.report._charts import Bar, bars, dots, histogram, small_groups
from discreet.report._drawing import PALETTE, encode_png, inline_svg, save_figure

OKABE_ITO = {"#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000"}


class Elements(HTMLParser):
    """All elements with their attributes, and the text of the visible ones."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.visible: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside != "style":
            self.visible.append(data)


def example(*, internal: bool = False) -> Page:
    entries = [Bar("a", 0.2, 0.1, 0.3), Bar("b", 0.4, 0.3, 0.5)]
    return (
        Page("An example", internal=internal)
        .heading("Bars")
        .picture(bars({"x": entries}, title="share"), caption="Two bars.")
        .table(("name", "share"), [("a", "0.2")], numeric=(False, True), caption="A table.")
        .gallery([(encode_png(np.zeros((2, 2)), bounds=(0, 1)), "a square")])
        .points("one", "two")
    )


def test_nothing_is_fetched_from_anywhere() -> None:
    page = Elements(example().html())
    for tag, attributes in page.found:
        assert tag not in {"link", "iframe", "object", "embed", "form", "base"}
        for name in ("src", "href", "action", "data", "srcset"):
            value = attributes.get(name)
            inside = tag == "img" and str(value).startswith("data:image/png;base64,")
            assert value is None or inside or (tag == "use" and value.startswith("#"))
    policy = next(
        attributes["content"]
        for tag, attributes in page.found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    # Scripts, and everything that one could fetch or send to, fall back to 'none'.
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:|\*|script-src|connect-src|unsafe-eval", policy)


def test_a_page_has_no_script_and_is_small() -> None:
    text = example().embed({"<script>": "</template><script>alert(1)</script>"}).html()
    assert "<script" not in text.lower()
    assert not any(name.startswith("on") for _, found in Elements(text).found for name in found)
    assert len(text) < 40_000
    assert len(Page("Text", internal=False).text("Only words.").html()) < 10_000


def writers_of_html(sources: dict[str, str]) -> list[str]:
    return [name for name, text in sources.items() if re.search(r"<(html|body|script)\b", text)]


def test_every_page_of_the_package_is_such_a_page() -> None:
    """Nothing else writes HTML, so what holds of Page holds of all pages, new ones too."""
    home = Path(inspect.getfile(discreet)).parent
    paths = [path for path in home.rglob("*.py") if path.name != "_page.py"]
    sources = {path.name: path.read_text(encoding="utf-8") for path in paths}
    assert writers_of_html(sources) == []
    assert writers_of_html({"a.py": "f'<html><p>{text}'", "b.py": "'<htm>'"}) == ["a.py"]
    drawn = {name for name, text in sources.items() if re.search(r"\bPage\(", text)}
    assert {"_fidelity_page.py", "_local_page.py", "_annex.py", "_certificate_page.py"} <= drawn


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "</script><b>", "a & b \"'<i>"])
def test_hostile_text_stays_text(hostile: str) -> None:
    page = (
        Page(hostile, internal=False)
        .heading(hostile)
        .text(hostile)
        .finding(hostile)
        .warning(hostile)
        .points(hostile)
        .table((hostile,), [(hostile,)], caption=hostile)
        .picture(bars({hostile: [Bar(hostile, 0.5)]}, title="x"), caption=hostile)
        .gallery([(encode_png(np.zeros((1, 1)), bounds=(0, 1)), hostile)])
    )
    seen = Elements(page.html())
    tags = [tag for tag, _ in seen.found]
    assert "script" not in tags
    assert "b" not in tags
    assert "i" not in tags
    # The title twice, five parts of the text, three places in the table, two captions.
    assert "".join(seen.visible).count(hostile) >= 12


def test_the_mark_says_in_words_who_may_read() -> None:
    inside, outside = (Page("x", internal=kind).text("y").html() for kind in (True, False))
    assert "<strong>INTERNAL</strong>" in inside
    assert "do not publish" in inside
    assert "INTERNAL" not in outside
    with pytest.raises(InvalidValue, match="internal"):
        Page("x", internal=1)  # type: ignore[arg-type]


def test_readable_on_a_phone_and_on_paper() -> None:
    text = example().html()
    assert 'name="viewport" content="width=device-width' in text
    assert "@media print" in text
    assert "overflow-x: auto" in text


def test_the_same_content_gives_the_same_bytes_and_files_are_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = example().write(tmp_path / "page.html")
    first = place.read_bytes()
    assert example().write(place).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    monkeypatch.setattr("os.fsync", _no_room)
    with pytest.raises(OSError, match="no room"):
        Page("other", internal=False).write(place)
    assert place.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def _no_room(_: int) -> None:
    raise OSError("no room")


def rendered(figure: Figure) -> str:
    """The picture, which a strict reader of XML accepts."""
    text = inline_svg(figure, salt="a test")
    ET.fromstring(text)
    return text


def test_pictures_are_drawn_in_colours_that_all_tell_apart() -> None:
    assert set(PALETTE) == OKABE_ITO
    entries = [Bar("a", 0.2, 0.1, 0.3), Bar("b", 0.4, 0.3, 0.5)]
    rng = np.random.default_rng(1)
    scores = {"in": rng.normal(1, 1, 50), "out": np.append(rng.normal(0, 1, 49), -np.inf)}
    for figure in (
        bars({"x": entries, "y": entries}, title="share", mark=(0.5, "chance")),
        bars({"x": [Bar("no interval", 0.5)]}, title="share"),
        dots(entries, title="area", mark=(0.5, "chance")),
        small_groups([2, 10], {"one": [0.3, 0.4], "two": [0.5, 0.6]}, x="k", y="rows"),
        histogram(scores, title="score"),
        histogram({"all the same": np.zeros(3)}, title="score"),
    ):
        text = rendered(figure)
        assert len(text) < 40_000
        # The caps of intervals are lines, and have a fill that nobody sees.
        caps = "fill: #1f77b4; stroke: #000000"
        colours = set(re.findall(r"#[0-9a-f]{6}", text.replace(caps, "")))
        greys = {"#ffffff", "#000000", "#6e6e6e", "#9a9a9a", "#e4e4e4"}
        assert colours - greys <= {colour.lower() for colour in OKABE_ITO}


def test_series_differ_by_hatch_and_dash_and_not_by_colour_alone() -> None:
    entries = [Bar("a", 0.2, 0.1, 0.3)]
    axes = bars({"x": entries, "y": entries}, title="share").axes[0]
    assert len({patch.get_hatch() for patch in axes.patches}) == 2
    lines = small_groups([2, 10], {"x": [0.3, 0.4], "y": [0.5, 0.6]}, x="k", y="rows").axes[0].lines
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 2


def test_shares_of_a_histogram_add_up() -> None:
    values = np.array([0.0, 1.0, 1.0, np.inf, -np.inf])
    figure = histogram({"x": values}, title="score", bins=4)
    drawn = figure.axes[0].patches[-1].get_data()  # type: ignore[attr-defined]
    assert drawn.values.tolist() == [0.4, 0.0, 0.0, 0.6]


@pytest.mark.parametrize(
    "name", ["_hidden", "$x^$", "$\\frac", "a\x00b\nc", "\ud800", "\u4e2d\u6587", "", "w" * 300]
)
def test_names_from_data_are_names_in_every_format(name: str, tmp_path: Path) -> None:
    """No formula, no letter that the font lacks, no underscore spoils a picture."""
    entries = [Bar(name, 0.2, 0.1, 0.3)]
    figure = bars({name: entries, "other": entries}, title="share")
    text = rendered(figure)
    texts = [one.get_text() for one in figure.axes[0].get_legend().get_texts()]  # type: ignore[union-attr]
    assert len(texts) == 2
    assert max(map(len, texts)) < 60
    for letters in ("_hidden", "$x^$", "\u4e2d\u6587"):
        assert (letters in text) == (letters == name)
    for kind in ("png", "svg", "pdf"):
        save_figure(figure, tmp_path / f"x.{kind}")


def test_a_drawing_ignores_the_settings_of_its_caller() -> None:
    import matplotlib as mpl

    entries = [Bar("a", 0.2, 0.1, 0.3)]
    first = rendered(bars({"x": entries}, title="share"))
    with mpl.rc_context({"font.size": 20, "text.usetex": True, "svg.fonttype": "path"}):
        assert rendered(bars({"x": entries}, title="share")) == first


def test_png_files_hold_the_pixels() -> None:
    grey = np.array([[0.0, 0.5], [1.0, 2.0]])
    shown = np.asarray(Image.open(io.BytesIO(encode_png(grey, bounds=(0, 1)))))
    assert shown[..., 0].tolist() == [[0, 128], [255, 255]]
    assert (shown[..., :3] == shown[..., :1]).all()
    colour = np.zeros((3, 2, 2))
    colour[0] = 1.0
    shown = np.asarray(Image.open(io.BytesIO(encode_png(colour, bounds=(0, 1)))))
    assert shown[0, 0].tolist() == [255, 0, 0, 255]
    with pytest.raises(InvalidValue, match="channels"):
        encode_png(np.zeros((2, 2, 2, 2)), bounds=(0, 1))
    with pytest.raises(InvalidValue, match="PNG"):
        Page("x", internal=True).gallery([(b"GIF89a", "no")])
