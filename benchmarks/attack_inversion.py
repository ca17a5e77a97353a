"""Model inversion on the Olivetti faces: pictures from classifiers, and who recognises them.

Of the ten photographs of each of 40 people, five train the attacked model, four train the judges
and one tests all of them, so that attacked model and judges share no photograph. The judges are
of other kinds than the attacked models: logistic regression on principal components, and a
convolutional network that was trained on shifted, mirrored and blurred pictures. The control is
a network trained on the same faces under shuffled names: its confidence is as high, and nobody
should be recognised.

`measure()` returns rows and pictures, `draw(rows, pictures, path)` makes the figure; benchmarks/
reproduce_attacks.py calls both. Data: $DISCREET_DATA, ../shared/data, or a download.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy import ndimage
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from discreet.attacks import InversionResult, invert, recognition
from discreet.data import faces

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
PEOPLE, SIDE = 40, 64
SHOWN = 10


@dataclass(frozen=True)
class Album:
    """Photographs (n, 64, 64) in [0, 1] and names, divided by who may see them."""

    attacked: tuple[Any, Any]
    judges: tuple[Any, Any]
    test: tuple[Any, Any]


def album(seed: int) -> Album:
    """Five photographs of each person for the model, four for the judges, one for the test."""
    if "DISCREET_DATA" not in os.environ and SHARED.is_dir():
        os.environ["DISCREET_DATA"] = str(SHARED)
    data = faces()
    x, y = data.x.astype(np.float32) / 255, data.y.astype(np.int64)
    chance = np.random.default_rng(seed)
    role = np.empty(len(y), dtype=np.int64)
    for person in range(PEOPLE):
        role[y == person] = chance.permutation(int((y == person).sum()))
    parts = [(role < 5), (role >= 5) & (role < 9), role >= 9]
    return Album(*[(x[part], y[part]) for part in parts])


def network(kind: str) -> nn.Module:
    """The attacked networks; "perceptron" is that of Fredrikson et al., but smaller."""
    if kind == "softmax regression":
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, PEOPLE))
    if kind == "perceptron":
        layers = (nn.Linear(SIDE * SIDE, 300), nn.Sigmoid(), nn.Linear(300, PEOPLE))
        return nn.Sequential(nn.Flatten(), *layers)
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE)),
        nn.Conv2d(1, 16, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 256, 64),
        nn.ReLU(),
        nn.Linear(64, PEOPLE),
    )


def train(kind: str, pair: tuple[Any, Any], epochs: int, seed: int, *, vary: bool = False) -> Any:
    """Train a network; ``vary`` shows it shifted, mirrored and blurred photographs."""
    torch.manual_seed(seed)
    model = network(kind)
    chance = np.random.default_rng(seed)
    x, y = pair[0], torch.tensor(pair[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(40):
            seen = varied(x[rows.numpy()], chance) if vary else x[rows.numpy()]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.tensor(seen)), y[rows]).backward()
            optimizer.step()
    return model.eval()


def varied(x: Any, chance: np.random.Generator) -> Any:
    moved = np.roll(x, tuple(chance.integers(-4, 5, 2)), axis=(1, 2))
    moved = moved[:, :, ::-1] if chance.random() < 0.5 else moved
    width = 3 * chance.random()
    contrast, light = 0.6 + 0.8 * chance.random(), 0.3 * (chance.random() - 0.5)
    soft = ndimage.gaussian_filter(moved, (0, width, width))
    noise = 0.05 * chance.normal(size=soft.shape)
    return (contrast * (soft - 0.5) + 0.5 + light + noise).astype(np.float32)


def judges(pair: tuple[Any, Any], seed: int) -> dict[str, Any]:
    """Two judges of different kinds, both flat pictures in, names out."""
    flat = pair[0].reshape(len(pair[0]), -1)
    components = PCA(80, whiten=True, random_state=seed)
    linear = make_pipeline(components, LogisticRegression(max_iter=2000)).fit(flat, pair[1])
    convolutional = train("convolutional", pair, 80, seed + 1, vary=True)
    return {
        "components": linear,
        "convolutional": nn.Sequential(nn.Unflatten(1, (SIDE, SIDE)), convolutional),
    }


def targets(pair: tuple[Any, Any], seed: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The attacked models, each with how it is attacked."""
    picture = {"shape": (SIDE, SIDE), "restarts": 3, "total_variation": 3e-5, "smoothing": 1.2}
    shuffled = pair[0], np.random.default_rng(seed).permutation(pair[1])
    flat = pair[0].reshape(len(pair[0]), -1)
    black_box = {"shape": (SIDE * SIDE,), "picture": (SIDE, SIDE), "restarts": 1, "steps": 60}
    black_box |= {"learning_rate": 0.015}
    logistic = LogisticRegression(C=0.02, tol=1e-3, max_iter=1000)
    linear = make_pipeline(StandardScaler(with_std=False), logistic).fit(flat, pair[1])
    return {
        "softmax regression": (
            train("softmax regression", pair, 200, seed),
            {**picture, "total_variation": 2e-5},
        ),
        "perceptron": (train("perceptron", pair, 60, seed), picture),
        "convolutional": (train("convolutional", pair, 40, seed), picture),
        "black box (scikit-learn)": (linear, black_box),
        "control: shuffled names": (train("perceptron", shuffled, 200, seed), picture),
    }


def measure(*, seed: int = 1) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return one row for each attacked model and judge, and the pictures by name."""
    torch.set_num_threads(1)
    parts = album(seed)
    referees = judges(parts.judges, seed)
    test = parts.test[0].reshape(PEOPLE, -1)
    rows, pictures = [], {"photograph": _one_each(parts.attacked)}
    for name, (model, options) in targets(parts.attacked, seed).items():
        start = time.perf_counter()
        result: InversionResult = invert(model, seed=seed, **options)
        seconds = time.perf_counter() - start
        pictures[name] = result.images.reshape(PEOPLE, SIDE, SIDE)
        for kind, judge in referees.items():
            found = recognition(result, judge, photographs=test, labels=parts.test[1])
            rows.append(
                {
                    "model": name,
                    "judge": kind,
                    "seconds": seconds,
                    "queries": result.queries,
                    "confidence": float(result.confidences.mean()),
                    **found.to_json(),
                }
            )
    return rows, pictures


def _one_each(pair: tuple[Any, Any]) -> Any:
    return np.stack([pair[0][pair[1] == person][0] for person in range(PEOPLE)])


def draw(rows: list[dict[str, Any]], pictures: dict[str, Any], path: Path) -> None:
    """Photographs above what was read off the models, with recognition rates beside them."""
    names = list(pictures)
    figure, axes = plt.subplots(len(names), SHOWN, figsize=(1.05 * SHOWN + 2.9, 1.09 * len(names)))
    figure.subplots_adjust(0.235, 0.01, 0.995, 0.99, wspace=0.04, hspace=0.06)
    for line_axes, name in zip(axes, names, strict=True):
        for axis, picture in zip(line_axes, pictures[name][:SHOWN], strict=True):
            low, high = np.quantile(picture, [0.01, 0.99])
            axis.imshow(picture, cmap="gray", vmin=low, vmax=high, interpolation="bilinear")
            axis.set_axis_off()
        text = [name if name != "photograph" else "a photograph that\nthe models learned from"]
        for row in rows:
            if row["model"] == name:
                rate = row["rate"]
                text.append(
                    f"{row['judge']}: {100 * rate['share']:.0f} %"
                    f" [{100 * rate['low']:.0f}, {100 * rate['high']:.0f}]"
                )
        box = line_axes[0].get_position()
        middle = (box.y0 + box.y1) / 2
        figure.text(0.005, middle + 0.025, text[0], fontsize=10, weight="bold", va="center")
        if len(text) > 1:
            figure.text(
                0.005,
                middle - 0.022,
                "recognised by\n" + "\n".join(text[1:]),
                fontsize=7.5,
                va="center",
            )
    figure.savefig(path, dpi=140)
    plt.close(figure)


def line(row: dict[str, Any]) -> str:
    rate, real = row["rate"], row["photographs"]
    return (
        f"{row['model']:26} judge {row['judge']:14} recognised {rate['share']:.3f}"
        f" [{rate['low']:.3f}, {rate['high']:.3f}] chance {row['chance']:.3f}"
        f" (real photographs {real['share']:.3f}) own confidence {row['confidence']:.3f}"
        f" {row['queries']} queries {row['seconds']:.0f} s"
    )
