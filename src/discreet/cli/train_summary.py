"""The summary of a trained model, as text and as a picture: public facts and released weights."""

from __future__ import annotations

import sys
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.cli.tables import at_most

if TYPE_CHECKING:
    from discreet.data import Schema
    from discreet.learn import TrainedTable

__all__ = ["draw_summary", "printable", "strengths", "summary_lines", "write_summary"]

_SHOWN = 12


def write_summary(place: Path, done: TrainedTable) -> list[str]:
    """Write text and picture beside a model; return what to say of those that failed.

    The model was paid for, and no picture of it is worth an error.
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


def printable(line: str) -> str:
    """Return a line as the terminal can show it: what it cannot is written as an escape."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in line
    )
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def summary_lines(done: TrainedTable) -> list[str]:
    """Say what was learned, what it costs and for whom; nothing that was not released."""
    schema, certificate = done.model.schema, done.certificate
    change = "added or removed" if certificate.relation == "add_remove" else "changed"
    cost = f"epsilon {at_most(certificate.epsilon)} at delta {at_most(certificate.delta)}"
    lines = [
        f"{schema.task} of {schema.target!r} from {len(schema.features)} columns",
        f"learner: {certificate.learner} ({done.reason})",
        f"guarantee: {cost} for one {schema.unit} {change}",
    ]
    if any("INSECURE" in value for value in certificate.randomness.values()):
        lines.append("INSECURE: the noise comes from a seed; this model protects nobody")
    if certificate.receipt is None:
        lines.append("no ledger was charged: the certificate is the only record of this release")
    lines.append("this covers the run, not what else anyone has read off the same data")
    names = list(strengths(done))[:5]
    lines.append(f"strongest columns: {', '.join(names)}")
    return lines


def strengths(done: TrainedTable) -> dict[str, float]:
    """How strongly each column acts in the released model, strongest first; public.

    For linear models it is the standard deviation of what the column adds to the score, by the
    released noisy moments, with the sign of the weight of a number; for networks the length of
    the first-layer weights; for naive Bayes the largest log-ratio between classes.
    """
    fitted = done.model
    columns = list(fitted.schema.features)
    if done.learner == "naive-bayes":
        found = [float(np.ptp(table, axis=0).max()) for table in fitted.feature_log_prob_]
    elif done.learner == "mlp":
        weights = fitted.layers_[0][0][:, :-1].T
        found = [float(np.linalg.norm(weights[part])) for part in _parts(fitted.schema)]
    else:
        found = [_moved(fitted, part) for part in _parts(fitted.schema)]
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


def _moved(fitted: Any, part: slice) -> float:
    weights = fitted.coef_[:, part]
    sign = float(np.sign(weights[0, 0])) if weights.shape == (1, 1) else 1.0
    if fitted.moments_ is None:
        return sign * float(np.linalg.norm(weights))
    means = fitted.moments_[part, -1]
    spread = fitted.moments_[part, part] - np.outer(means, means)
    return sign * float(np.sqrt(max(0.0, np.einsum("ki,ij,kj->", weights, spread, weights))))


def draw_summary(done: TrainedTable, place: Path) -> None:
    """Draw the strongest features with the guarantee as the title."""
    from discreet.cli.pictures import COLOURS, blank_figure, save, tidy

    schema, certificate = done.model.schema, done.certificate
    found = list(strengths(done).items())[:_SHOWN][::-1]
    figure = blank_figure(7.5, 1.4 + 0.3 * len(found))
    axes = figure.subplots()
    tidy(axes)
    colours = [COLOURS["blue"] if value >= 0 else COLOURS["vermilion"] for _, value in found]
    axes.barh(range(len(found)), [value for _, value in found], color=colours, height=0.7)
    # Names are names: a dollar in one of them starts no formula.
    axes.set_yticks(
        range(len(found)),
        [textwrap.shorten(name, 40) or name[:40] for name, _ in found],
        parse_math=False,
    )
    axes.axvline(0.0, color=COLOURS["black"], linewidth=0.8)
    axes.set_xlabel("how much the column moves the released score (noise included)", fontsize=9)
    kind = "classification" if schema.task == "classification" else "regression"
    cost = (
        f"epsilon {at_most(certificate.epsilon, digits=3)}, "
        f"delta {at_most(certificate.delta, digits=3)}"
    )
    axes.set_title(f"{kind} of {schema.target}: {cost}", loc="left", fontsize=10, parse_math=False)
    save(figure, place)
