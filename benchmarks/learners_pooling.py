"""Why Gaussian naive Bayes raises small variances by a tenth: accuracy without noise by share.

    python benchmarks/learners_pooling.py

Iris, wine, MNIST and Fashion-MNIST (6,000 images of 14 x 14 each), made-up amounts that are mostly
zero, and made-up normal clusters; two thirds to learn from, one third to judge. None of these
tables is in benchmarks/learners.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_iris, load_wine, make_classification

from discreet.data import fashion_mnist, mnist
from learners_tasks import census

SHARES = (0.0, 0.03, 0.1, 0.3, 1.0)
SIDE, IMAGES = 14, 6000


def tables() -> Iterator[tuple[str, Any, Any]]:
    for name, load in (("iris", load_iris), ("wine", load_wine)):
        x, y = load(return_X_y=True)
        margin = 0.25 * np.ptp(x, axis=0)
        lower, upper = x.min(axis=0) - margin, x.max(axis=0) + margin
        yield name, (x - lower) / (upper - lower), y
    census()  # says where public data is on this machine
    for name, read in (("MNIST", mnist), ("Fashion-MNIST", fashion_mnist)):
        images = read()
        pixels = np.asarray(images.x_train, dtype=np.float64)[:IMAGES].reshape(-1, SIDE, 2, SIDE, 2)
        x = pixels.mean(axis=(2, 4)).reshape(IMAGES, -1)
        yield name, x / pixels.max(), np.asarray(images.y_train)[:IMAGES]
    for seed in range(6):
        yield "amounts", *amounts(seed)
    for seed in range(3):
        x, y = make_classification(3000, 12, n_informative=6, random_state=seed, class_sep=0.8)
        yield "clusters", np.clip(x / 8 + 0.5, 0, 1), y


def amounts(seed: int, rows: int = 5000) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < 0.3).astype(int)
    columns = []
    for number in range(8):
        kind, shift = (number + seed) % 4, rng.normal(0.5, 0.4) * y
        if kind == 0:
            some = rng.random(rows) < 0.05 + 0.1 * y
            columns.append(np.where(some, np.exp(rng.normal(-2 + shift, 1)), 0.0))
        elif kind == 1:
            columns.append(np.exp(rng.normal(-2 + 0.5 * shift, 0.7)) / 2)
        elif kind == 2:
            columns.append(0.5 + 0.12 * rng.normal(shift, 1 + 0.2 * y))
        else:
            columns.append(rng.beta(np.maximum(2 + shift, 0.1), 3))
    return np.clip(np.stack(columns, axis=1), 0, 1), y


def accuracies(x: Any, y: Any) -> list[float]:
    order = np.random.default_rng(1).permutation(len(y))
    first, rest = order[: len(y) * 2 // 3], order[len(y) * 2 // 3 :]
    groups = [x[first][y[first] == k] for k in range(int(y.max()) + 1)]
    prior = np.array([len(group) / len(first) for group in groups])
    means = np.array([group.mean(axis=0) for group in groups])
    own = np.array([group.var(axis=0) for group in groups])
    found = []
    for share in SHARES:
        # Only variances below the common one are moved.
        spread = np.maximum(np.maximum(own, (1 - share) * own + share * (prior @ own)), 1e-9)
        scores = [
            np.log(p) - 0.5 * (np.log(v) + (x[rest] - m) ** 2 / v).sum(axis=1)
            for p, m, v in zip(prior, means, spread, strict=True)
        ]
        found.append(float(np.mean(np.argmax(scores, axis=0) == y[rest])))
    return found


def main() -> None:
    found: dict[str, list[list[float]]] = {}
    for name, x, y in tables():
        found.setdefault(name, []).append(accuracies(x, y))
    print("share         ", *(f"{share:6g}" for share in SHARES))
    for name, rows in found.items():
        print(f"{name:14}", *(f"{100 * mean:6.1f}" for mean in np.mean(rows, axis=0)))


if __name__ == "__main__":
    main()
