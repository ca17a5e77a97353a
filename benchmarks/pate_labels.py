"""Labels answered at equal (epsilon, delta): M_svec against simple PATE, made a picture.

The lectures say that refusing unstable queries answers more labels than strong composition
allows simple PATE. Here every teacher votes for the right one of ten classes with a probability
that differs from query to query (a Beta distribution around the agreement level), for
100 to 10,000 teachers. Simple PATE takes the largest Laplace noise that keeps 95 % of
its labels equal to the winners, and as many labels as advanced composition allows; M_svec takes
the best number of fails. Expected labels out of 100,000 queries, epsilon 1, delta 1e-5.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from scipy.stats import beta

from discreet.mechanisms import stable_vector_plan, votes_distance
from discreet.pate._noisy_max import gnmax_accuracy, laplace_accuracy
from discreet.pate._stable_votes import vector_answer_rate
from discreet.privacy import PureDP
from discreet.privacy.theorems import gaussian_mu
from discreet.report import COLOURS, new_figure, save_figure
from harness import Run, Suite

EPSILON, DELTA = 1.0, 1e-5
CLASSES, POOL, ACCURACY = 10, 100_000, 0.95
TEACHERS = (100, 178, 316, 562, 1000, 1778, 3162, 5623, 10_000)
AGREEMENTS = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99, 0.995)
CONCENTRATION = 20.0
FAILS = tuple(2**k for k in range(11))
WAYS = {
    "printed": {"threshold": "printed", "questions": POOL},
    "tight": {"threshold": "tight"},
    "accounted": {"threshold": "tight", "composition": "accounted"},
}


def simulated_votes(teachers: int, agreement: float, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Votes over strata of the Beta distribution, and the share of each stratum.

    Strata get thinner towards the least agreement: one unstable query in a million counts.
    """
    rng = np.random.default_rng([teachers, round(1000 * agreement)])
    tail = np.concatenate([[0.0], np.logspace(-8, -2, queries // 2)])
    edges = np.concatenate([tail, np.linspace(0.01, 1.0, queries)[1:]])
    levels = beta.ppf(
        0.5 * (edges[1:] + edges[:-1]), CONCENTRATION * agreement, CONCENTRATION * (1 - agreement)
    )
    others = np.full(CLASSES - 1, 1 / (CLASSES - 1))
    votes = [rng.multinomial(teachers, [level, *((1 - level) * others)]) for level in levels]
    return np.array(votes), np.diff(edges)


def most_noise(right: Any) -> float:
    low, high = 0.1, 1e5
    if right(low).mean() < ACCURACY:
        return 0.0
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if right(middle).mean() >= ACCURACY else (low, middle)
    return low


def advanced_labels(each: float) -> int:
    """Queries of pure epsilon ``each`` within (EPSILON, DELTA) by advanced composition."""

    def fits(count: int) -> bool:
        first = each * math.sqrt(2 * count * math.log(1 / DELTA))
        return min(first + count * each * math.expm1(each), count * each) <= EPSILON

    return largest(fits)


def accounted_labels(scale: float) -> int:
    def fits(count: int) -> bool:
        return (2 * count * PureDP(1 / scale)).epsilon(delta=DELTA) <= EPSILON

    return largest(fits)


def largest(fits: Any) -> int:
    low, high = 0, 1
    while high <= POOL and fits(high):
        low, high = high, 2 * high
    high = min(high, POOL + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def vector_plans() -> dict[str, list[Any]]:
    return {
        name: [
            stable_vector_plan(
                fails=fails, epsilon=EPSILON, delta=DELTA, relation="add_remove", **way
            )
            for fails in FAILS
        ]
        for name, way in WAYS.items()
    }


def vector_labels(distances: np.ndarray, shares: np.ndarray, plans: list[Any]) -> float:
    best = 0.0
    for plan in plans:
        passing = vector_answer_rate(distances, scale=float(plan.scale), threshold=plan.threshold)
        failing = float((1.0 - passing) @ shares)
        asked = min(POOL, plan.fails / max(failing, 1e-12))
        best = max(best, float(passing @ shares) * asked)
    return best


def row(teachers: int, agreement: float, queries: int, plans: dict[str, list[Any]]) -> dict:
    every, shares = simulated_votes(teachers, agreement, queries)
    votes = every[shares > 0.9 / queries]  # the strata of equal size
    winners = np.argmax(votes, axis=1)
    scale = most_noise(lambda s: laplace_accuracy(votes, winners, s))
    noise = most_noise(lambda s: gnmax_accuracy(votes, winners, s))
    distances = np.array([votes_distance(one, moved=True) for one in every])
    mu = gaussian_mu(EPSILON, DELTA)
    return {
        "teachers": teachers,
        "agreement": agreement,
        "simple": advanced_labels(2 / scale) if scale else 0,
        "simple_accounted": accounted_labels(scale) if scale else 0,
        "gnmax": min(POOL, math.floor((mu * noise) ** 2 / 2)),
        **{name: round(vector_labels(distances, shares, ways), 1) for name, ways in plans.items()},
        "best": round(max(vector_labels(distances, shares, ways) for ways in plans.values()), 1),
    }


def draw(record: dict[str, Any], place: Path) -> None:
    rows = record["rows"]
    figure = new_figure(13.5, 5.2)
    axes = figure.subplots(1, 3, sharey=True)
    teachers = sorted({one["teachers"] for one in rows})
    agreements = sorted({one["agreement"] for one in rows})

    def table(name: str) -> np.ndarray:
        cells = {(one["agreement"], one["teachers"]): one[name] for one in rows}
        return np.array([[cells[a, t] for t in teachers] for a in agreements], dtype=float)

    simple, vector = table("simple"), table("best")
    x, y = np.arange(len(teachers)), np.arange(len(agreements))
    for axis, values, title in (
        (axes[0], simple, "Simple PATE: Laplace noise,\nadvanced composition"),
        (axes[1], vector, "M_svec, least threshold\nthat is proved"),
    ):
        shown = axis.pcolormesh(
            x, y, np.maximum(values, 0.9), norm=LogNorm(0.9, POOL), cmap="cividis"
        )
        axis.set_title(title, fontsize=11)
        for i, j in np.ndindex(values.shape):
            text = f"{values[i, j]:.0f}"
            if values[i, j] >= 1000:
                text = "all" if values[i, j] >= 0.999 * POOL else f"{values[i, j] / 1000:.2g}k"
            dark = values[i, j] < 1000
            axis.text(j, i, text, ha="center", va="center", fontsize=7, color="w" if dark else "k")
    figure.colorbar(shown, ax=axes[1], label="labels out of 100,000 queries")
    ratio = np.log10((vector + 0.5) / (simple + 0.5))
    shown = axes[2].pcolormesh(x, y, ratio, cmap="PuOr", vmin=-3, vmax=3)
    axes[2].set_title(
        "Where the lectures' claim holds (violet)\nand where it fails (orange)", fontsize=11
    )
    lost = [(j, i) for i, j in np.ndindex(ratio.shape) if vector[i, j] < simple[i, j]]
    axes[2].plot([p[0] for p in lost], [p[1] for p in lost], "x", color=COLOURS["black"], ms=4)
    for name, colour, label in (
        ("printed", "vermilion", "above: more with the printed threshold"),
        ("best", "blue", "above: more with the least threshold"),
    ):
        levels = table(name)
        edge = [
            next((i for i in y if levels[i, j] >= max(simple[i, j], 1)), len(agreements)) - 0.5
            for j in x
        ]
        axes[2].step(x, edge, where="mid", color=COLOURS[colour], linewidth=2, label=label)
    axes[2].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8, frameon=False)
    figure.colorbar(shown, ax=axes[2], label="log10 of M_svec / simple PATE")
    for axis in axes:
        axis.set_xticks(x, [f"{t:,}" for t in teachers], rotation=45, fontsize=8)
        axis.set_yticks(y, [f"{a:.3g}" for a in agreements], fontsize=8)
        axis.set_xlabel("teachers")
    axes[0].set_ylabel("agreement: mean share of votes for the right class")
    figure.suptitle(
        f"Labels answered at epsilon {EPSILON:g}, delta {DELTA:g} (expected, ten classes)",
        fontsize=12,
    )
    save_figure(figure, place)


def measure(asked: Run) -> dict[str, Any]:
    teachers = (100, 10_000) if asked.quick else TEACHERS
    agreements = (0.5, 0.99) if asked.quick else AGREEMENTS
    plans = vector_plans()
    rows = [row(t, a, 100 if asked.quick else 400, plans) for t in teachers for a in agreements]
    for rival, ours in (("simple", "best"), ("simple", "printed"), ("gnmax", "best")):
        more = sum(one[ours] > one[rival] for one in rows)
        print(f"M_svec ({ours}) answers more than {rival} in {more} of {len(rows)} cells")
    return {
        "epsilon": EPSILON,
        "delta": DELTA,
        "classes": CLASSES,
        "queries": POOL,
        "accuracy": ACCURACY,
        "concentration": CONCENTRATION,
        "rows": rows,
    }


SUITE = Suite("pate_labels", measure, pictures={"pate-labels.png": draw})
