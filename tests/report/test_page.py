"""Pages are whole, escaped and silent: nothing is fetched, nothing is sent."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from discreet.errors import InvalidValue
from discreet.report import Page
from discreet.report.figures import Bar, bars, curve, dots, histogram, share_ticks
from discreet.report.images import png
from discreet.report.style import PALETTE

OKABE_ITO = {"#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000"}


class Elements(HTMLParser):
    """All elements with their attributes, and the text of the visible ones."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.visible: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.visible).append(data)


def example(*, internal: bool = False) -> Page:
    entries = [Bar("a", 0.2, 0.1, 0.3), Bar("b", 0.4, 0.3, 0.5)]
    return (
        Page("An example", internal=internal)
        .heading("Bars")
        .picture(bars({"x": entries}, title="share"), caption="Two bars.")
        .table(("name", "share"), [("a", "0.2")], numeric=(False, True), caption="A table.")
        .gallery([(png(np.zeros((2, 2)), bounds=(0, 1)), "a square")])
        .points("one", "two")
    )


def test_nothing_is_fetched_from_anywhere() -> None:
    page = Elements(example().html())
    for tag, attributes in page.found:
        assert tag not in {"link", "iframe", "object", "embed", "form", "base"}
        for name in ("src", "href", "action", "data", "srcset"):
            value = attributes.get(name)
            assert value is None or (tag == "img" and value.startswith("data:image/png;base64,"))
    policy = next(
        attributes["content"]
        for tag, attributes in page.found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    # Everything that a script could fetch or send to falls back to 'none'.
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:|\*|connect-src|unsafe-eval", policy)


def test_nothing_can_be_sent_by_a_button() -> None:
    drawing = Elements(example().html()).scripts[-1]
    # Plotly 7 has a button that uploads the data of a chart, unless it is told not to.
    assert "showSendToCloud: false" in drawing
    assert 'plotlyServerURL: ""' in drawing
    assert "modeBarButtons: [" in drawing
    assert "sendChartToCloud" not in drawing


def test_a_page_without_pictures_has_no_script() -> None:
    text = Page("Text", internal=False).text("Only words.").html()
    assert "<script" not in text
    assert len(text) < 10_000


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
        .gallery([(png(np.zeros((1, 1)), bounds=(0, 1)), hostile)])
    )
    seen = Elements(page.html())
    tags = [tag for tag, _ in seen.found]
    assert tags.count("script") == 3
    assert "b" not in tags
    assert "i" not in tags
    # The title twice, five parts of the text, three places in the table, two captions.
    assert "".join(seen.visible).count(hostile) == 12
    figure = json.loads(seen.scripts[0])
    # Plotly reads tags in names, so that they are escaped once more.
    assert "<" not in figure["data"][0]["y"][0]


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


def test_pictures_are_what_plotly_accepts_in_colours_that_all_tell_apart() -> None:
    assert set(PALETTE) == OKABE_ITO
    entries = [Bar("a", 0.2, 0.1, 0.3), Bar("b", 0.4, 0.3, 0.5)]
    rng = np.random.default_rng(1)
    scores = {"in": rng.normal(1, 1, 50), "out": np.append(rng.normal(0, 1, 49), -np.inf)}
    for figure in (
        bars({"x": entries, "y": entries}, title="share", mark=(0.5, "chance")),
        bars({"x": [Bar("no interval", 0.5)]}, title="share"),
        dots(entries, title="area", mark=(0.5, "chance")),
        curve({"one": ([1, 2], [3, 4])}, x={"type": "log"}, y=share_ticks(0.01)),
        histogram(scores, title="score"),
        histogram({"all the same": np.zeros(3)}, title="score"),
    ):
        go.Figure(figure)
        json.dumps(figure, allow_nan=False)
        stripes = [trace["marker"]["pattern"] for trace in figure["data"] if trace["type"] == "bar"]
        # White stripes in place of the colour, Plotly's default, would hide the bar.
        assert all(pattern["fillmode"] == "overlay" for pattern in stripes)


def test_shares_of_a_histogram_add_up() -> None:
    values = np.array([0.0, 1.0, 1.0, np.inf, -np.inf])
    figure = histogram({"x": values}, title="score", bins=4)
    assert figure["data"][0]["y"] == [0.4, 0.0, 0.0, 0.6, 0.0]


def test_png_files_hold_the_pixels() -> None:
    import io

    from PIL import Image

    grey = np.array([[0.0, 0.5], [1.0, 2.0]])
    shown = np.asarray(Image.open(io.BytesIO(png(grey, bounds=(0, 1)))))
    assert shown.tolist() == [[0, 128], [255, 255]]
    colour = np.zeros((3, 2, 2))
    colour[0] = 1.0
    shown = np.asarray(Image.open(io.BytesIO(png(colour, bounds=(0, 1)))))
    assert shown[0, 0].tolist() == [255, 0, 0]
    with pytest.raises(InvalidValue, match="channels"):
        png(np.zeros((2, 2, 2, 2)), bounds=(0, 1))
    with pytest.raises(InvalidValue, match="PNG"):
        Page("x", internal=True).gallery([(b"GIF89a", "no")])
