"""LiRA and RMIA beside those of LeakPro and ML Privacy Meter, on the same scores.

`measure()` returns the rows; benchmarks/reproduce_attacks.py calls it. Five kinds of
models, each 32 times on complementary halves: a forest, boosted trees, a perceptron and a
convolutional network on the digits of scikit-learn, and a bag of words on phrases of SST-2. The
first eight are targets, with all models but their twin as references. The peers are run from their
sources, in an environment in build/rivals that has what they import: attack_rivals_peer.py says
what of them is run.
"""

from __future__ import annotations

import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from torch import nn

from discreet.attacks import MembershipResult, ShadowPool, lira, pool_results, rmia
from discreet.data import sst2
from harness import BUILD, target

MODELS, TARGETS, SEED = 32, 8, 1
RATES = (0.001, 0.01)
HOME = BUILD.parent / "rivals"
SOURCES = {
    "LeakPro": ("https://github.com/aidotse/LeakPro", "c47752fad0fb48cba7d4d03023cdcedf267501c4"),
    "ml_privacy_meter": (
        "https://github.com/privacytrustlab/ml_privacy_meter",
        "e384af8fd9319b8eeb1303aa82474df1441e3c59",
    ),
}
PACKAGES = (
    *("dotmap", "jinja2", "joblib", "matplotlib", "numpy", "optuna", "pandas", "pydantic"),
    *("numba", "pyyaml", "scikit-learn", "scipy", "seaborn", "torch", "torchvision", "tqdm"),
    *("transformers", "ts2vec"),
)


def prepare() -> list[str]:
    """Fetch the peers' sources and make their environment; return how to run in it."""
    for name, (address, commit) in SOURCES.items():
        place = HOME / name
        if not place.exists():
            subprocess.run(["git", "clone", "--quiet", address, str(place)], check=True)
            subprocess.run(["git", "-C", str(place), "checkout", "--quiet", commit], check=True)
    python = HOME / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(HOME / "venv", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return [str(python), str(Path(__file__).with_name("attack_rivals_peer.py"))]


def network(make: Any, x: Any, y: Any, epochs: int) -> Any:
    """Return a function that trains a network of this kind on some of the records."""

    def train(indices: Any, seed: int) -> Any:
        torch.manual_seed(seed)
        net = make()
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        inputs, classes = torch.from_numpy(x), torch.from_numpy(y)
        places = torch.from_numpy(np.asarray(indices))
        for _ in range(epochs):
            for part in places[torch.randperm(len(places))].split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs[part]), classes[part]).backward()
                optimizer.step()
        return net.eval()

    return train


def families() -> dict[str, tuple[Any, Any, Any]]:
    """Records, labels and a way to train, for each kind of model."""
    x, y = load_digits(return_X_y=True)
    flat = (x / 16).astype(np.float32)
    pictures = flat.reshape(-1, 1, 8, 8)

    def perceptron() -> Any:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def convolutions() -> Any:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
        )

    def forest(indices: Any, seed: int) -> Any:
        return RandomForestClassifier(50, random_state=seed).fit(flat[indices], y[indices])

    def boosted(indices: Any, seed: int) -> Any:
        model = HistGradientBoostingClassifier(max_iter=20, max_leaf_nodes=15, random_state=seed)
        return model.fit(flat[indices], y[indices])

    phrases = sst2()
    chosen = np.random.default_rng(SEED).permutation(len(phrases.labels["train"]))[:2000]
    words = CountVectorizer(max_features=2000, binary=True)
    bags = (
        words.fit_transform([phrases.texts["train"][at] for at in chosen])
        .toarray()
        .astype(np.float32)
    )
    moods = phrases.labels["train"][chosen].astype(np.int64)

    def bag() -> Any:
        return nn.Sequential(nn.Linear(bags.shape[1], 32), nn.ReLU(), nn.Linear(32, 2))

    return {
        "forest": (flat, y, forest),
        "boosted trees": (flat, y, boosted),
        "perceptron": (flat, y, network(perceptron, flat, y, 20)),
        "convolutions": (pictures, y, network(convolutions, pictures, y, 15)),
        "text": (bags, moods, network(bag, bags, moods, 10)),
    }


def measure() -> list[dict[str, Any]]:
    command, rows = prepare(), []
    for name, (x, y, train) in families().items():
        pool = ShadowPool(
            *(x, y, train), models=MODELS, pairs=True, seed=SEED, classes=int(y.max()) + 1
        ).run()
        scores: dict[str, list[MembershipResult]] = {}
        seen = [pool.leave_out(row) for row in range(TARGETS)]
        for one, others in seen:
            for label, result in (
                ("Discreet LiRA", lira(one, others)),
                ("Discreet LiRA offline", lira(one, others, mode="offline")),
                ("Discreet RMIA", rmia(one, others)),
            ):
                scores.setdefault(label, []).append(result)
        for label, found in run_peers(command, pool, y).items():
            for (one, _), values in zip(seen, found, strict=True):
                scores.setdefault(label, []).append(one.judge(label, values))
        for label, results in scores.items():
            whole = pool_results(results)
            points = {str(rate): whole.tpr_at(rate).to_json() for rate in RATES}
            rows.append({"family": name, "attack": label, "auc": whole.auc, "found": points})
            shown = [f"{points[str(rate)]['share']:.3f}" for rate in RATES]
            print(f"{name:14} {label:24} {whole.auc:.3f} {' '.join(shown)}", flush=True)
    return rows


def run_peers(command: list[str], pool: Any, labels: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "given.npz", Path(folder) / "made.npz"
        logits = np.stack([np.maximum(one, -700.0) for one in pool.log_probabilities])
        used = pool.inclusion
        np.savez(given, logits=logits.astype(np.float64), labels=labels, used=used, targets=TARGETS)
        places = [str(HOME / name) for name in SOURCES]
        done = subprocess.run(
            [*command, str(given), str(made), *places], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        with np.load(made) as found:
            return {name: found[name] for name in found.files}


def table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Not measured yet."
    lines = ["| models | attack | AUC | at 0.1 % | at 1 % |", "|---|---|---:|---|---|"]
    for one in rows:
        shown = [
            f"{point['share']:.3f} [{point['low']:.3f}, {point['high']:.3f}]"
            for point in (one["found"][str(rate)] for rate in RATES)
        ]
        own = one["attack"].startswith("Discreet")
        label = f"**{one['attack']}**" if own else one["attack"]
        lines.append(f"| {one['family']} | {label} | {one['auc']:.3f} | {' | '.join(shown)} |")
    return "\n".join(lines)


def ahead(rows: list[dict[str, Any]], family: str, rate: float) -> float:
    """By how much our best attack finds more members than the best of the peers."""
    found = {True: 0.0, False: 0.0}
    for one in rows:
        if one["family"] == family:
            own = one["attack"].startswith("Discreet")
            found[own] = max(found[own], one["found"][str(rate)]["share"])
    return found[True] - found[False]


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At least as many members found as by the best of the peers, for each kind of model."""
    return [
        target(
            f"{family}: members found at {100 * rate:g} % FPR beyond the peers'",
            ahead(rows, family, rate),
            at_least=0,
        )
        for family in dict.fromkeys(one["family"] for one in rows)
        for rate in RATES
    ]
