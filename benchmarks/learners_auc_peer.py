"""DP-EBM, or diffprivlib's logistic regression, on the tables that learners_auc.py wrote.

    python learners_auc_peer.py PEER DIRECTORY EPSILONS...

Reads DIRECTORY/*.npz and prints a JSON list; runs in the peer's own environment.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score


def scores_of(peer: str, data: Any, epsilon: float, first: Any, rest: Any) -> Any:
    y = data["y"][first]
    if peer == "diffprivlib":
        from diffprivlib.models import LogisticRegression

        norm = float(len(data["sizes"])) ** 0.5
        model = LogisticRegression(epsilon=epsilon, data_norm=norm, max_iter=1000)
        return model.fit(data["wide"][first], y).predict_proba(data["wide"][rest])[:, 1]
    from interpret.privacy import DPExplainableBoostingClassifier

    sizes = data["sizes"].tolist()
    bounds = {
        at: (float(data["lower"][at]), float(data["upper"][at]))
        for at, size in enumerate(sizes)
        if not size
    }
    model = DPExplainableBoostingClassifier(
        epsilon=epsilon,
        delta=float(data["delta"]),
        privacy_bounds=bounds,
        feature_types=["nominal" if size else "continuous" for size in sizes],
        n_jobs=1,
    )
    x = data["x"].astype(object)
    for at, size in enumerate(sizes):
        x[:, at] = data["x"][:, at].astype(int).astype(str) if size else data["x"][:, at]
    model.fit(x[first], y)
    return model.predict_proba(x[rest])[:, 1]


def main() -> None:
    peer, directory, *epsilons = sys.argv[1:]
    warnings.simplefilter("ignore")
    rows = []
    for path in sorted(Path(directory).glob("*.npz")):
        with np.load(path) as file:
            data = dict(file)
        for order in data["orders"]:
            first, rest = order[: int(data["first"])], order[int(data["first"]) :]
            for epsilon in map(float, epsilons):
                said = scores_of(peer, data, epsilon, first, rest)
                auc = float(roc_auc_score(data["y"][rest], said))
                row = {"table": str(data["name"]), "who": peer, "epsilon": epsilon, "auc": auc}
                rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
