"""The flow of a PATE run as a picture: what stays inside, what leaves, and its numbers.

Drawn from a certificate, so it shows public facts only.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet._rounding import at_most
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.certificate import Certificate


# Okabe and Ito: told apart by the colour-blind.
_INSIDE, _BORDER, _OUTSIDE = "#D55E00", "#6E6E6E", "#0072B2"
_KINDS = (".png", ".svg", ".pdf")
# Left, low, width, height, colour; then from where to where.
_BOXES = {
    "private": (0.2, 1.75, 1.9, 0.9, _INSIDE),
    "teachers": (2.5, 1.65, 2.7, 1.1, _INSIDE),
    "aggregator": (5.65, 1.65, 2.5, 1.1, _BORDER),
    "labels": (8.7, 1.75, 2.1, 0.9, _OUTSIDE),
    "public": (2.9, 0.35, 1.9, 0.8, _OUTSIDE),
    "student": (8.7, 0.35, 2.1, 0.8, _OUTSIDE),
}
_ARROWS = (
    ((2.1, 2.2), (2.5, 2.2)),
    ((5.2, 2.2), (5.65, 2.2)),
    ((8.15, 2.2), (8.7, 2.2)),
    ((3.85, 1.15), (3.85, 1.65)),
    ((9.75, 1.75), (9.75, 1.15)),
    ((4.8, 0.75), (8.7, 0.75)),
)


def flow_lines(certificate: Certificate) -> dict[str, str]:
    """What each stage of the run was, in words; public."""
    try:
        return _lines(certificate.plan, certificate.relation)
    except (KeyError, TypeError, IndexError):
        raise InvalidValue("certificate", certificate.learner, "the certificate of PATE") from None


def flow_figure(plan: Mapping[str, Any], *, relation: str) -> dict[str, Any] | None:
    """The flow for a page: ``data`` and ``layout`` of a Plotly figure as JSON values.

    ``plan`` is that of a certificate. None if it is not the plan of a PATE run.

    >>> flow_figure({"steps": 100}, relation="add_remove") is None
    True
    """
    try:
        words = _lines(plan, relation)
    except (KeyError, TypeError, IndexError):
        return None
    shapes: list[dict[str, Any]] = [
        {
            "type": "rect",
            "x0": left,
            "y0": low,
            "x1": left + width,
            "y1": low + height,
            "line": {"color": colour, "width": 1.5},
        }
        for left, low, width, height, colour in _BOXES.values()
    ]
    edge = {"color": _BORDER, "width": 1, "dash": "dash"}
    shapes.append({"type": "line", "x0": 8.4, "y0": 0.95, "x1": 8.4, "y1": 2.95, "line": edge})
    notes: list[dict[str, Any]] = []
    for key, (left, low, width, height, colour) in _BOXES.items():
        heading, *rest = [escape(line) for line in _wrap(words[key])]
        text = "<br>".join([f'<span style="color:{colour}"><b>{heading}</b></span>', *rest])
        notes.append(_note(left + width / 2, low + height / 2, text, size=11))
    for (x0, y0), (x1, y1) in _ARROWS:
        arrow = {"x": x1, "y": y1, "ax": x0, "ay": y0, "axref": "x", "ayref": "y", "text": ""}
        notes.append({**arrow, "showarrow": True, "arrowhead": 2, "arrowwidth": 1.2})
    notes += [
        _note(5.42, 2.4, "votes", size=10),
        _note(4.25, 1.4, "queries", size=10),
        _note(7.85, 2.95, f'<span style="color:{_INSIDE}">stays inside</span>', size=11),
        _note(8.9, 2.95, f'<span style="color:{_OUTSIDE}">may leave</span>', size=11),
    ]
    axis = {"visible": False, "fixedrange": True}
    layout = {
        "height": 380,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": {**axis, "range": [0, 11]},
        "yaxis": {**axis, "range": [0.1, 3.2]},
        "showlegend": False,
        "shapes": shapes,
        "annotations": notes,
    }
    return {"data": [], "layout": layout}


def _note(x: float, y: float, text: str, *, size: int) -> dict[str, Any]:
    return {"x": x, "y": y, "text": text, "showarrow": False, "font": {"size": size}}


def _lines(plan: Mapping[str, Any], relation: str) -> dict[str, str]:
    parts, aggregator = plan["partition"], dict(plan["aggregator"])
    asked, answered = plan["queries_asked"], plan["labels_answered"]
    student = plan["student"]["kind"]
    teachers, public = plan["teachers"], plan["public_rows"]
    name = aggregator.pop("aggregator")
    hidden = ("classes", "teachers", "relation")
    noise = ", ".join(
        f"{key.replace('_', ' ')} {_short(value)}"
        for key, value in aggregator.items()
        if key not in hidden and value is not None
    )
    number = "private" if relation == "add_remove" else "public"
    return {
        "private": f"private records\ntheir number is {number}",
        "teachers": f"{teachers} teachers, disjoint\nby {parts['rule']}\n{_kinds(plan['teacher'])}",
        "aggregator": f"{name}\n{noise}",
        "labels": f"{asked} queries asked\n{answered} labels answered",
        "public": f"{public} public rows\nwithout labels",
        "student": f"student ({student})\nthe release",
    }


def draw_flow(certificate: Certificate, place: str | Path) -> None:
    """Draw the run of a certificate to a PNG, SVG or PDF file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    target = Path(place)
    if target.suffix.lower() not in _KINDS:
        raise InvalidValue("place", str(place), "a file that ends in " + ", ".join(_KINDS))
    words = flow_lines(certificate)
    figure = Figure(figsize=(11, 3.6))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 11)
    axes.set_ylim(0, 3.6)
    axes.axis("off")
    for key, (left, low, width, height, colour) in _BOXES.items():
        _box(axes, left, low, width, height, colour, words[key])
    for start, end in _ARROWS:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.2})
    axes.text(5.42, 2.32, "votes", ha="center", fontsize=7)
    axes.text(3.95, 1.38, "queries", ha="left", va="center", fontsize=7)
    axes.plot([8.4, 8.4], [0.95, 2.95], color=_BORDER, lw=1.0, ls=(0, (4, 3)))
    axes.text(8.32, 2.88, "stays inside", ha="right", fontsize=8, color=_INSIDE)
    axes.text(8.48, 2.88, "may leave", ha="left", fontsize=8, color=_OUTSIDE)
    unit = certificate.plan.get("unit", "row")
    change = "added or removed" if certificate.relation == "add_remove" else "changed"
    title = (
        f"epsilon {at_most(certificate.epsilon, digits=4)} at delta "
        f"{at_most(certificate.delta)} for one "
        f"{unit} {change}, data-independent"
    )
    axes.text(0.2, 3.28, title, fontsize=12, weight="bold", va="center")
    if any("INSECURE" in value for value in certificate.randomness.values()):
        axes.text(0.2, 2.98, "INSECURE seed: protects nobody", fontsize=9, color=_INSIDE)
    metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
    figure.savefig(target, dpi=120, metadata=metadata)


def _box(
    axes: Any, left: float, low: float, width: float, height: float, colour: str, text: str
) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (left, low),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.08",
        linewidth=1.4,
        edgecolor=colour,
        facecolor="white",
    )
    axes.add_patch(shape)
    heading, *more = _wrap(text)
    rest = "\n".join(more)
    middle = left + width / 2
    top = low + height - 0.12
    axes.text(middle, top, heading, ha="center", va="top", fontsize=10, color=colour)
    axes.text(middle, top - 0.25, rest, ha="center", va="top", fontsize=8, linespacing=1.25)


def _wrap(text: str) -> list[str]:
    return [part for line in text.split("\n") for part in textwrap.wrap(line, 34) or [""]]


def _kinds(names: list[str]) -> str:
    if len(names) > 1:
        return f"{len(names)} kinds of teachers"
    if names[0].startswith("Pipeline("):
        return " + ".join(re.findall(r"[A-Z]\w+(?=\()", names[0])[1:])
    return textwrap.shorten(names[0], 34, placeholder=" ...")


def _short(value: Any) -> str:
    if isinstance(value, str):
        try:
            return f"{float(Fraction(value)):.4g}"
        except ValueError:
            return value
    return f"{value:.4g}" if isinstance(value, float) else str(value)
