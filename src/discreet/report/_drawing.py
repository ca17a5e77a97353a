"""How pictures look, and how they become files.

Colours are those of Okabe and Ito (2008), which the colour-blind tell apart; the palette has them
in an order in which neighbours also differ in lightness. Lines differ by their dashes as well. The
Agg canvas is used directly, so that no display and no global state is involved. Names may come
from data: they are text, never formulas, and of bounded length.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

COLOURS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#6E6E6E",
}
PALETTE = tuple(
    COLOURS[name] for name in ("blue", "vermilion", "green", "orange", "purple", "sky", "black")
)
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (4, 2, 1, 2)), (0, (8, 2)))
_SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": "DejaVu Sans",
    "font.size": 10.0,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "text.parse_math": False,
    "text.usetex": False,
}
_LONGEST = 44


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the same way under all settings of the caller's matplotlib."""
    import matplotlib as mpl

    with warnings.catch_warnings(), mpl.rc_context(_SETTINGS):
        # A browser has letters that the font of the measurements lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        # Names that leave no room for the axes are worth no error.
        warnings.filterwarnings("ignore", "constrained_layout not applied", UserWarning)
        yield


def in_house_style(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that makes a figure."""

    @wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with house_style():
            return draw(*args, **kwargs)

    return wrapped


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of the given size in inches that belongs to no window.

    Parameters
    ----------
    width, height
        In inches.

    Returns
    -------
    Figure
        One of matplotlib, in the style of the house.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _picture_class()(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@cache
def _picture_class() -> type[Figure]:
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that notebooks show without pyplot."""

        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            with house_style():
                self.savefig(stream, format="png", dpi=120, metadata={"Software": None})
            return stream.getvalue()

    return Picture


def tidy_axes(axes: Axes) -> None:
    """Remove the upper and right part of the frame, and draw a light grid.

    Parameters
    ----------
    axes
        Those of matplotlib.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", color="#9A9A9A", labelsize=9)


def save_figure(figure: Figure, place: str | Path) -> None:
    """Write the figure as PNG, SVG or PDF; the same figure gives the same bytes.

    Parameters
    ----------
    figure
        A figure of matplotlib.
    place
        The file to write; its suffix is the format.

    """
    import matplotlib as mpl

    kind = Path(place).suffix.lower().lstrip(".")
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {"Software": None})
    with house_style(), mpl.rc_context({"svg.hashsalt": "discreet", "svg.fonttype": "path"}):
        figure.savefig(place, format=kind, dpi=120, metadata=metadata)


def finish_figure(figure: Figure, place: str | Path | None) -> Figure:
    """Write the figure if there is a place for it, and return it."""
    if place is not None:
        save_figure(figure, place)
    return figure


def inline_svg(figure: Figure, *, salt: str) -> str:
    """Return the figure as an SVG element for an HTML page, with text that can be selected.

    Identifiers contain a hash of ``salt``, so that two pictures of one page do not share any.
    """
    import matplotlib as mpl

    stream = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with house_style(), mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", metadata=nothing)
    text = re.sub(r"<!--.*?-->|<style\b.*?</style>", "", stream.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :].strip()
    used = set(re.findall(r'(?:url\(|href=")#([\w-]+)', text))
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]*>", lambda tag: _shorter(tag[0], used), text))


def _shorter(tag: str, used: set[str]) -> str:
    """Return a tag without identifiers that nothing refers to, and with two decimals at most."""
    if tag.startswith("<svg"):
        tag = re.sub(r' (?:width|height|version|xmlns|xmlns:xlink)="[^"]*"', "", tag)
    tag = tag.replace("xlink:href=", "href=").replace("DejaVu Sans", "system-ui")
    tag = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", tag)
    return re.sub(r"-?\d+\.\d{3,}(?![\d.])", lambda found: f"{float(found[0]):.2f}", tag)


def encode_png(image: NDArray[np.float64], *, bounds: tuple[float, float]) -> bytes:
    r"""Return an image of shape (height, width), or (1 or 3, height, width), as a PNG file.

    >>> encode_png(np.zeros((2, 3)), bounds=(0, 1))[:8]
    b'\x89PNG\r\n\x1a\n'
    """
    from matplotlib.image import imsave

    values = np.asarray(image, dtype=np.float64)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or values.shape[0] not in {1, 3}:
        raise InvalidValue("image", f"an array of shape {values.shape}", "one or three channels")
    low, high = bounds
    pixels = np.rint(255 * np.clip((values - low) / (high - low), 0.0, 1.0)).astype(np.uint8)
    stream = io.BytesIO()
    colours = np.moveaxis(np.broadcast_to(pixels, (3, *pixels.shape[1:])), 0, -1)
    unsigned: dict[str, Any] = {"Software": None}
    imsave(stream, np.ascontiguousarray(colours), format="png", metadata=unsigned)
    return stream.getvalue()


def short_name(text: str, *, width: int = 22) -> str:
    r"""Return a name for an axis or a legend: printable, in lines of ``width``, not too long.

    >>> short_name("a\x00b"), short_name("")
    ('a\\x00b', ' ')
    """
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
    if len(shown) > _LONGEST:
        shown = f"{shown[: _LONGEST - 3]}..."
    return textwrap.fill(shown, width) or " "


def name_lines(axes: Axes, handles: list[Any], names: list[str], *, columns: int = 2) -> None:
    """Put a legend above the axes; names may start with an underscore, which matplotlib hides."""
    legend = axes.legend(
        handles,
        [str(at) for at in range(len(names))],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.2,
        ncols=columns,
        fontsize=9,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(short_name(name, width=30))


def spread_labels(heights: list[float], *, gap: float) -> list[float]:
    """Move ascending heights apart by at least ``gap``, and as little as possible.

    This is the least-squares answer, by pooling neighbours that are too close.

    >>> spread_labels([0.5, 0.5, 0.9], gap=0.2)
    [0.4, 0.6, 0.9]

    Parameters
    ----------
    heights
        Where labels should stand.
    gap
        How far apart they must be.

    Returns
    -------
    list of float
        Where they do stand.
    """
    pools: list[list[float]] = []
    for i, height in enumerate(heights):
        pools.append([height - i * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    starts = [fmean(pool) for pool in pools for _ in pool]
    return [round(start + i * gap, 12) for i, start in enumerate(starts)]
