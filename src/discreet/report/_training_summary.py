"""What ``discreet train`` says and draws beside a model: strengths of columns, and their noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._rounding import at_most
from discreet.report._drawing import (
    COLOURS,
    in_house_style,
    new_figure,
    save_figure,
    short_name,
    tidy_axes,
)
from discreet.report._model_pictures import spread_of

if TYPE_CHECKING:
    from discreet.data import Schema
    from discreet.learn import Shape, TrainedTable

_SHOWN = 12
# What moves the score by less than this many times the noise is not told from it.
_NOISE_FACTOR = 2.0
_SQUARED_STEPS = float(1 << 24)


def write_summary(place: Path, done: TrainedTable) -> list[str]:
    """Write text and picture beside a model; return what to say of those that failed.

    The model was paid for, and no picture of it is worth an error.

    Parameters
    ----------
    place
        The directory of the model.
    done
        What was trained.

    Returns
    -------
    list of str
        The names of the files.
    """

    def text(target: Path) -> None:
        lines = summary_lines(done)
        target.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")

    def picture(target: Path) -> None:
        draw_summary(done, target)

    failed = []
    for name, write in (("summary.txt", text), ("summary.png", picture)):
        try:
            with warnings.catch_warnings(action="ignore"):
                write(place / name)
        except Exception as error:  # noqa: BLE001 - whatever it is, the model is not to blame
            (place / name).unlink(missing_ok=True)
            failed.append(f"not written: {name} ({type(error).__name__}); the model is complete")
    return failed


def summary_lines(done: TrainedTable) -> list[str]:
    """Say what was learned, what it costs and for whom; nothing that was not released.

    Parameters
    ----------
    done
        What was trained.

    Returns
    -------
    list of str
        Sentences to print.
    """
    schema, certificate = done.model.schema, done.certificate
    change = "added or removed" if certificate.relation == "add_remove" else "changed"
    cost = f"epsilon {at_most(certificate.epsilon)} at delta {at_most(certificate.delta)}"
    lines = [
        f"{schema.task} of {schema.target!r} from {len(schema.features)} columns",
        f"learner: {certificate.learner} ({done.reason})",
        f"guarantee: {cost} for one {schema.unit} {change}",
    ]
    if certificate.insecure:
        lines.append("INSECURE: the noise comes from a seed; this model protects nobody")
    if certificate.receipt is None:
        lines.append("no ledger was charged: the certificate is the only record of this release")
    lines.append("this covers the run, not what else anyone has read off the same data")
    found, noise = strengths(done), noise_of_strengths(done)
    unsure = [name for name in found if noise is not None and _is_noise(found, noise, name)]
    names = [name for name in found if name not in unsure]
    lines.append(f"strongest columns: {', '.join(names[:5]) or 'none is above the noise'}")
    if noise is None:
        lines.append("how much of that is noise is not stated for this learner")
    elif unsure:
        lines.append(f"not told from noise: {', '.join(unsure[:12])}" + _and_more(unsure[12:]))
    return lines


def _and_more(names: list[str]) -> str:
    return f" and {len(names)} more" if names else ""


def _is_noise(found: Mapping[str, float], noise: Mapping[str, float], name: str) -> bool:
    return abs(found[name]) <= _NOISE_FACTOR * noise[name]


def noise_of_strengths(done: TrainedTable) -> dict[str, float] | None:
    """About how strong each column would look by noise alone; None where that is not known.

    Parameters
    ----------
    done
        What was trained.

    Returns
    -------
    dict or None
        The strengths, from what was released.
    """
    fitted = done.model
    if done.learner == "additive":
        played = fitted.noise_of_shapes()
        if played is None:
            return None
        return {
            name: math.sqrt(
                float(_shares(fitted.shapes_[name]) @ own.var(axis=0, ddof=1).sum(axis=1))
            )
            for name, own in played.items()
        }
    replays = fitted.noise_of_coefficients() if done.learner in ("logistic", "linear") else None
    if replays is None:
        return None
    away = (replays - replays.mean(axis=0)) * math.sqrt(len(replays) / (len(replays) - 1))
    # Of a column that hardly varies, not even that is known: its released variance is noise.
    unknown = fitted.plan_.moment_stddev / fitted.plan_.rows / _SQUARED_STEPS
    found = {}
    for name, part in zip(fitted.schema.features, _parts(fitted.schema), strict=True):
        moved = np.einsum(
            "rki,ij,rkj->r", away[:, :, part], _spread_of(fitted, part), away[:, :, part]
        )
        size = float(np.square(fitted.coef_[:, part]).sum())
        found[name] = math.sqrt(max(float(moved.mean()), 0.0) + 2.0 * unknown * size)
    return found


def _shares(shape: Shape) -> Any:
    return (shape.mass + 1e-9) / (shape.mass + 1e-9).sum()


def strengths(done: TrainedTable) -> dict[str, float]:
    """How strongly each column acts in the released model, strongest first; public.

    For linear models it is the standard deviation of what the column adds to the score, by the
    released noisy moments, with the sign of the weight of a number; for additive models the same
    without a sign; for trees the rows that questions leave unmixed; for networks the length of the
    first-layer weights; for naive Bayes the largest
    log-ratio between classes.
    """
    fitted = done.model
    columns = list(fitted.schema.features)
    if done.learner == "naive-bayes":
        found = [float(np.ptp(table, axis=0).max()) for table in fitted.feature_log_prob_]
    elif done.learner == "mlp":
        weights = fitted.layers_[0][0][:, :-1].T
        found = [float(np.linalg.norm(weights[part])) for part in _parts(fitted.schema)]
    elif done.learner == "additive":
        found = [spread_of(shape) for shape in fitted.shapes_.values()]
    elif done.learner in ("tree", "forest"):
        found = list(fitted.importances().values())
    else:
        found = [_strength_of(fitted, part) for part in _parts(fitted.schema)]
    order = np.argsort(-np.abs(found))
    return {columns[place]: found[place] for place in order}


def _parts(schema: Schema) -> list[slice]:
    """The coordinates of each column in the encoded rows."""
    from discreet.data import Categorical

    parts, at = [], 0
    for column in schema.features.values():
        width = len(column.labels) if isinstance(column, Categorical) else 1
        parts.append(slice(at, at + width))
        at += width
    return parts


def _strength_of(fitted: Any, part: slice) -> float:
    weights = fitted.coef_[:, part]
    sign = float(np.sign(weights[0, 0])) if weights.shape == (1, 1) else 1.0
    if fitted.moments_ is None:
        return sign * float(np.linalg.norm(weights))
    spread = _spread_of(fitted, part)
    return sign * float(np.sqrt(max(0.0, np.einsum("ki,ij,kj->", weights, spread, weights))))


def _spread_of(fitted: Any, part: slice) -> Any:
    means = fitted.moments_[part, -1]
    return fitted.moments_[part, part] - np.outer(means, means)


@in_house_style
def draw_summary(done: TrainedTable, place: Path) -> None:
    """Draw the strongest features with the guarantee as the title."""
    schema, certificate = done.model.schema, done.certificate
    found = list(strengths(done).items())[:_SHOWN][::-1]
    figure = new_figure(7.5, 1.4 + 0.3 * len(found))
    axes = figure.subplots()
    tidy_axes(axes)
    colours = [COLOURS["blue"] if value >= 0 else COLOURS["vermilion"] for _, value in found]
    bars = axes.barh(range(len(found)), [value for _, value in found], color=colours, height=0.7)
    noise = noise_of_strengths(done)
    if noise is not None:
        for bar, (name, value) in zip(bars, found, strict=True):
            bar.set_alpha(0.3 if _is_noise({name: value}, noise, name) else 1.0)
        ends = [_NOISE_FACTOR * noise[name] for name, _ in found]
        for sign in (-1.0, 1.0):
            marks = [sign * end for end in ends]
            axes.plot(marks, range(len(found)), "|", color=COLOURS["black"], markersize=8)
    axes.set_yticks(range(len(found)), [short_name(name, width=40) for name, _ in found])
    axes.axvline(0.0, color=COLOURS["black"], linewidth=0.8)
    axes.set_xlabel(
        "how much the column moves the released score; noise alone reaches the marks", fontsize=9
    )
    kind = "classification" if schema.task == "classification" else "regression"
    cost = (
        f"epsilon {at_most(certificate.epsilon, digits=3)}, "
        f"delta {at_most(certificate.delta, digits=3)}"
    )
    axes.set_title(f"{kind} of {short_name(schema.target)}: {cost}", loc="left", fontsize=10)
    save_figure(figure, place)
