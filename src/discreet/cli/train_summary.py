"""The summary of a trained model, as text and as a picture: public facts and released weights."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.cli.tables import at_most

if TYPE_CHECKING:
    from discreet.learn.certificate import Certificate
    from discreet.learn.choosing import TableLearner

__all__ = ["draw_summary", "strengths", "summary_lines"]

_SHOWN = 12


def summary_lines(model: TableLearner, certificate: Certificate, reason: str) -> list[str]:
    """Say what was learned, what it costs and for whom; nothing that was not released."""
    schema = model.schema
    change = "added or removed" if certificate.relation == "add_remove" else "changed"
    cost = f"epsilon {at_most(certificate.epsilon)} at delta {certificate.delta:g}"
    lines = [
        f"{schema.task} of {schema.target!r} from {len(schema.features)} columns",
        f"learner: {certificate.learner} ({reason})",
        f"guarantee: {cost} for one {schema.unit} {change}",
    ]
    if any("INSECURE" in value for value in certificate.randomness.values()):
        lines.append("INSECURE: the noise comes from a seed; this model protects nobody")
    if certificate.receipt is None:
        lines.append("no ledger was charged: the certificate is the only record of this release")
    lines.append("this covers the run, not what else anyone has read off the same data")
    names = list(strengths(model))[:5]
    lines.append(f"strongest columns: {', '.join(names)}")
    return lines


def strengths(model: TableLearner) -> dict[str, float]:
    """How strongly each column acts in the released model, strongest first; public.

    For linear models it is the standard deviation of what the column adds to the score, by the
    released noisy moments, with the sign of the weight of a number; for networks the length of
    the first-layer weights; for naive Bayes the largest log-ratio between classes.
    """
    columns = list(model.schema.features)
    fitted = model.estimator
    if model.learner == "naive-bayes":
        found = [float(np.ptp(table, axis=0).max()) for table in fitted.feature_log_prob_]
    elif model.learner == "mlp":
        weights = fitted.layers_[0][0][:, :-1].T
        found = [float(np.linalg.norm(weights[part])) for part in _parts(model)]
    else:
        found = [_moved(fitted, part) for part in _parts(model)]
    order = np.argsort(-np.abs(found))
    return {columns[place]: found[place] for place in order}


def _parts(model: TableLearner) -> list[slice]:
    """The coordinates of each column in the encoded rows."""
    from discreet.data import Categorical

    parts, at = [], 0
    for column in model.schema.features.values():
        width = len(column.labels) if isinstance(column, Categorical) else 1
        parts.append(slice(at, at + width))
        at += width
    return parts


def _moved(fitted: Any, part: slice) -> float:
    weights = fitted.coef_[:, part]
    sign = float(np.sign(weights[0, 0])) if weights.shape == (1, 1) else 1.0
    if fitted.moments_ is None:
        return sign * float(np.linalg.norm(weights))
    means = fitted.moments_[part, -1]
    spread = fitted.moments_[part, part] - np.outer(means, means)
    return sign * float(np.sqrt(max(0.0, np.einsum("ki,ij,kj->", weights, spread, weights))))


def draw_summary(model: TableLearner, certificate: Certificate, place: Path) -> None:
    """Draw the strongest features with the guarantee as the title."""
    from discreet.cli.pictures import COLOURS, blank_figure, save, tidy

    found = list(strengths(model).items())[:_SHOWN][::-1]
    figure = blank_figure(7.5, 1.4 + 0.3 * len(found))
    axes = figure.subplots()
    tidy(axes)
    colours = [COLOURS["blue"] if value >= 0 else COLOURS["vermilion"] for _, value in found]
    axes.barh(range(len(found)), [value for _, value in found], color=colours, height=0.7)
    axes.set_yticks(
        range(len(found)), [textwrap.shorten(name, 40) or name[:40] for name, _ in found]
    )
    axes.axvline(0.0, color=COLOURS["black"], linewidth=0.8)
    axes.set_xlabel("how much the column moves the released score (noise included)", fontsize=9)
    kind = "classification" if model.schema.task == "classification" else "regression"
    cost = f"epsilon {at_most(certificate.epsilon, digits=3)}, delta {certificate.delta:g}"
    axes.set_title(f"{kind} of {model.schema.target}: {cost}", loc="left", fontsize=10)
    save(figure, place)
