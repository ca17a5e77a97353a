"""diffprivlib on the tables that benchmarks/learners.py wrote; runs in its own environment.

    python learners_peer.py DIRECTORY EPSILONS...

Reads DIRECTORY/*.npz and prints a JSON list. Needs diffprivlib and scikit-learn only.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import diffprivlib
import numpy as np
import sklearn
from diffprivlib.models import (
    GaussianNB,
    LinearRegression,
    LogisticRegression,
    RandomForestClassifier,
)


def contestant(
    kind: str, epsilon: float, seed: int, norm: float, bounds: Any, classes: list[int]
) -> Any:
    if kind == "forest":
        return RandomForestClassifier(
            epsilon=epsilon, bounds=bounds, classes=classes, random_state=seed
        )
    if kind == "logistic":
        return LogisticRegression(epsilon=epsilon, data_norm=norm, max_iter=1000, random_state=seed)
    if kind == "naive-bayes":
        return GaussianNB(epsilon=epsilon, bounds=bounds, random_state=seed)
    return LinearRegression(
        epsilon=epsilon, bounds_X=bounds, bounds_y=(-1.0, 1.0), random_state=seed
    )


def main() -> None:
    directory, *epsilons = sys.argv[1:]
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for path in sorted(Path(directory).glob("*.npz")):
        with np.load(path) as data:
            kind, name = str(data["kind"]), str(data["name"])
            for seed in range(int(data["seeds"])):
                order = data[f"order_{seed}"] if f"order_{seed}" in data else data["order"]
                first = int(data["first"])
                x, y = data["x"][order], data["y"][order]
                for epsilon in map(float, epsilons):
                    bounds = (data["lower"], data["upper"])
                    classes = list(range(int(data["classes"])))
                    model = contestant(kind, epsilon, seed, float(data["norm"]), bounds, classes)
                    try:
                        score = float(model.fit(x[:first], y[:first]).score(x[first:], y[first:]))
                    except Exception as error:  # noqa: BLE001 - a peer that fails is a result
                        print(name, kind, epsilon, error, file=sys.stderr)
                        score = None
                    rows.append(
                        {
                            "table": name,
                            "kind": kind,
                            "epsilon": epsilon,
                            "seed": seed,
                            "score": score,
                        }
                    )
    versions = {"diffprivlib": diffprivlib.__version__, "scikit-learn": sklearn.__version__}
    print(json.dumps({"versions": versions, "rows": rows}))


if __name__ == "__main__":
    main()
