"""Speed of the noise samplers beside numpy, torch and OpenDP, in one process.

Every sampler is timed in turn, round after round, so that a slow spell of the
machine hits all of them, and the median round counts. OpenDP is timed on fewer draws
and scaled to one million (its cost is proportional to the number of draws; the
number used is in the results).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch

from discreet.randomness import (
    GridRelease,
    NormalStream,
    discrete_gaussian,
    discrete_laplace,
    gaussian_on_grid,
    laplace_on_grid,
    select,
)
from harness import Run, Suite, target

MILLION = 1_000_000
GRID = 2**40
SCORES = np.linspace(0.0, 10.0, MILLION)
ZEROS = np.zeros(MILLION)


def seconds(action: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - start


def opendp_sampler(kind: str, draws: int, k: int | None = None) -> Callable[[], object]:
    """Return a call that adds noise of scale 1 to ``draws`` floating-point zeros.

    The grid is 2**k, by default that of the smallest doubles.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=draws)
    if kind == "laplace":
        measurement = dp.m.make_laplace(domain, dp.l1_distance(T=float), scale=1.0, k=k)
    else:
        measurement = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=1.0, k=k)
    zeros = [0.0] * draws
    return lambda: measurement(zeros)


def laplace_on_floats() -> GridRelease:
    return laplace_on_grid(ZEROS, scale=1, granularity=2.0**-40)


def gaussian_on_floats() -> GridRelease:
    return gaussian_on_grid(ZEROS, stddev=1, granularity=2.0**-40)


def compare(rounds: int, peer_draws: int) -> dict[str, Any]:
    """Time all samplers in turn; return seconds for a million draws."""
    generator = np.random.default_rng(1)
    stream = NormalStream()
    samplers: dict[str, tuple[int, Callable[[], object]]] = {
        "discreet Laplace": (MILLION, lambda: discrete_laplace(GRID, MILLION)),
        "discreet Laplace on floats": (MILLION, lambda: laplace_on_floats().values),
        "numpy Laplace": (MILLION, lambda: generator.laplace(size=MILLION)),
        "OpenDP Laplace": (peer_draws, opendp_sampler("laplace", peer_draws)),
        "OpenDP Laplace, grid 2^-40": (peer_draws, opendp_sampler("laplace", peer_draws, -40)),
        "discreet Gaussian": (MILLION, lambda: discrete_gaussian(GRID**2, MILLION)),
        "numpy Gaussian": (MILLION, lambda: generator.normal(size=MILLION)),
        "OpenDP Gaussian": (peer_draws, opendp_sampler("gaussian", peer_draws)),
        "OpenDP Gaussian, grid 2^-40": (peer_draws, opendp_sampler("gaussian", peer_draws, -40)),
        "discreet Gaussian on floats": (MILLION, lambda: gaussian_on_floats().values),
        "discreet tensor stream": (MILLION, lambda: stream.tensor(MILLION)),
        "torch.randn": (MILLION, lambda: torch.randn(MILLION)),
        "discreet selection": (MILLION, lambda: select(SCORES)),
    }
    for _, action in samplers.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(rounds):
        for name, (draws, action) in samplers.items():
            # Short ones several times: a single one of 4 ms says little.
            repeats = 9 if name in ("discreet tensor stream", "torch.randn") else 1
            spent = statistics.median(seconds(action) for _ in range(repeats))
            times[name].append(spent * MILLION / draws)
    return {
        name: {
            "seconds_per_million": statistics.median(values),
            "fastest": min(values),
            "slowest": max(values),
            "draws_timed": samplers[name][0],
        }
        for name, values in times.items()
    }


def growth() -> dict[str, dict[str, float]]:
    """Seconds for n draws: the cost is a constant and then proportional to n."""
    sizes = [1, 10, 100, 1_000, 10_000, 100_000, MILLION]
    stream = NormalStream()
    samplers: dict[str, Callable[[int], object]] = {
        "discreet Laplace": lambda n: discrete_laplace(GRID, n),
        "discreet Gaussian": lambda n: discrete_gaussian(GRID**2, n),
        "discreet tensor stream": stream.tensor,
        "discreet selection": lambda n: select(SCORES[:n]),
    }
    return {
        name: {
            str(n): statistics.median(seconds(draw, n) for _ in range(7 if n > 1e4 else 51))
            for n in sizes
        }
        for name, draw in samplers.items()
    }


def first_use() -> dict[str, float]:
    """Seconds of the first draw at a scale never used before: its table is built then."""
    laplace = [seconds(discrete_laplace, GRID + 2 * k + 1) for k in range(15)]
    gaussian = [seconds(discrete_gaussian, GRID**2 + 2 * k + 1) for k in range(15)]
    return {"Laplace": statistics.median(laplace), "Gaussian": statistics.median(gaussian)}


def scalar_timing(releases: int) -> dict[str, Any]:
    """Measure whether the time of one release depends on the value or on the noise added.

    Blocks of both values alternate at random. Times of one release have a long upper tail
    (the scheduler), so medians and rank correlations are given.
    """
    values = {"value 0": 0.0, "value 123456.789": 123456.789}
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in values}
    order = np.random.default_rng(2).integers(2, size=2 * releases)
    names = list(values)
    for pick in order:
        name = names[pick]
        start = time.perf_counter_ns()
        release = laplace_on_grid(values[name], scale=1)
        spent = time.perf_counter_ns() - start
        rows[name].append((spent / 1000, abs(float(release.values) - values[name])))
    result: dict[str, Any] = {"releases": 2 * releases}
    for name, pairs in rows.items():
        spent, noise = (np.array(column) for column in zip(*pairs, strict=True))
        result[name] = {
            "median_microseconds": float(np.median(spent)),
            "percentile_5": float(np.percentile(spent, 5)),
            "percentile_95": float(np.percentile(spent, 95)),
            "rank_correlation_of_time_and_noise_magnitude": rank_correlation(spent, noise),
            "median_by_quarter_of_noise_magnitude": [
                float(np.median(part)) for part in np.array_split(spent[np.argsort(noise)], 4)
            ],
        }
    return result


def rank_correlation(first: Any, second: Any) -> float:
    ranks = [np.argsort(np.argsort(column)) for column in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target beside what was measured."""
    seconds = {name: row["seconds_per_million"] for name, row in record["seconds"].items()}
    harder = "with floats in and out, both sides on the 2^-40 grid, times faster"
    rivals = (
        (
            "OpenDP Laplace",
            "discreet Laplace",
            "discrete Laplace on a 2^-40 grid, times faster than OpenDP's Laplace",
            25.0,
        ),
        ("OpenDP Laplace, grid 2^-40", "discreet Laplace on floats", f"Laplace {harder}", 25.0),
        (
            "OpenDP Gaussian",
            "discreet Gaussian",
            "discrete Gaussian on a 2^-40 grid, times faster than OpenDP's Gaussian",
            40.0,
        ),
        ("OpenDP Gaussian, grid 2^-40", "discreet Gaussian on floats", f"Gaussian {harder}", 40.0),
    )
    listed = [
        target(what, seconds[peer] / seconds[ours], at_least=least)
        for peer, ours, what, least in rivals
    ]
    over = seconds["discreet tensor stream"] / seconds["torch.randn"]
    what = "tensor stream float32, time over that of torch.randn"
    return [*listed, target(what, over, at_most=3.0)]


def draw(results: dict[str, Any], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    measured = results["seconds"]
    names = list(reversed(measured))
    values = [measured[name]["seconds_per_million"] for name in names]
    colors = ["#1b6ca8" if name.startswith("discreet") else "#b0b0b0" for name in names]
    left.barh(names, values, color=colors)
    left.set_xscale("log")
    left.set_xlim(right=max(values) * 6)
    left.set_xlabel("seconds for a million (log scale)")
    for at, value in enumerate(values):
        left.text(value * 1.1, at, f"{value:.3g}", va="center", fontsize=8)
    for name, times in results["growth"].items():
        right.loglog([int(n) for n in times], list(times.values()), marker="o", label=name)
    right.set_xlabel("draws in one call")
    right.set_ylabel("seconds")
    right.legend(fontsize=8)
    right.set_title("Cost of a call", fontsize=10)
    left.set_title("Noise samplers, one process, interleaved", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def measure(asked: Run) -> dict[str, Any]:
    rounds, peer_draws = (3, 5_000) if asked.quick else (7, 20_000)
    measured = compare(rounds, peer_draws)
    for name, row in measured.items():
        print(f"{name:28s} {row['seconds_per_million']:10.4f} s per million")
    return {
        "seconds": measured,
        "growth": growth(),
        "first_use_of_a_scale_seconds": first_use(),
        "scalar_release_timing": scalar_timing(2_000 if asked.quick else 20_000),
        "rounds": rounds,
        "note": "OpenDP was timed on fewer draws (draws_timed) and scaled to a million.",
        "torch_threads": torch.get_num_threads(),
    }


SUITE = Suite("noise", measure, targets, pictures={"noise.png": draw})
