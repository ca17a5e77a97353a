"""Membership of predicted numbers, checkpoints, persons and data sets, beside a silent target each.

Numbers: how far diabetes has advanced (442 patients of scikit-learn), by forests. Checkpoints:
networks on Location-30, of which five states are saved. Persons: digits of scikit-learn, dealt to
made-up people of six records each, and forests. Data sets: 400 people of Location-30, of whom the
network saw 100, 200 or 400. The silent target was trained on other records of the same draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from torch import nn

from discreet.attacks import (
    Observation,
    ShadowPool,
    ShadowScores,
    checkpoint_membership,
    dataset_usage,
    lira,
    observe,
    person_membership,
    regression_membership,
    yeom,
)
from discreet.data import location30

SEED, MODELS, SAVED = 1, 33, (1, 2, 4, 8, 16)
TARGETS = 4


def row(name: str, target: str, result: Any, baseline: float) -> dict[str, Any]:
    low, high = result.auc_interval()
    points = [one.to_json() for one in result.operating_points()]
    return {
        "attack": name,
        "target": target,
        "auc": result.auc,
        "low": low,
        "high": high,
        "baseline": baseline,
        "points": points,
        "records": len(result.scores),
    }


def halves(count: int, models: int, owner: Any = None) -> Any:
    """Independent halves of records, or of their owners."""
    draw = np.random.default_rng(SEED)
    groups = np.arange(count) if owner is None else owner
    sizes = int(groups.max()) + 1
    chosen = np.stack([draw.permutation(sizes) < sizes // 2 for _ in range(models)])
    return chosen[:, groups]


def numbers() -> Iterator[dict[str, Any]]:
    x, y = load_diabetes(return_X_y=True)
    used = halves(len(y), MODELS)
    said = np.stack(
        [
            RandomForestRegressor(100, random_state=at).fit(x[own], y[own]).predict(x)
            for at, own in enumerate(used)
        ]
    )
    others = {"shadow_predictions": said[:-1], "shadow_members": used[:-1]}
    yield row("error alone", "forest", regression_membership(said[-1], y, used[-1]), 0.5)
    yield row(
        "regression_membership",
        "forest",
        regression_membership(said[-1], y, used[-1], **others),
        0.5,
    )
    silent = halves(len(y), MODELS + 1)[-1]
    found = regression_membership(said[-1], y, silent, **others)
    yield row("regression_membership", "silent", found, 0.5)


def states(x: Any, y: Any, own: Any, seed: int, classes: int) -> list[Any]:
    """Log-probabilities of a network about all records, at each of the saved epochs."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, classes))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    every, target = torch.from_numpy(x), torch.from_numpy(y)
    places, found = torch.from_numpy(np.flatnonzero(own)), []
    for epoch in range(1, max(SAVED) + 1):
        for part in places[torch.randperm(len(places))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(every[part]), target[part]).backward()
            optimizer.step()
        if epoch in SAVED:
            with torch.no_grad():
                found.append(net(every).log_softmax(dim=1).numpy())
    return found


def location() -> tuple[Any, Any]:
    data = location30()
    chosen = np.random.default_rng(SEED).permutation(len(data.y))[:2000]
    return data.x[chosen].astype(np.float32), data.y[chosen].astype(np.int64)


def checkpoints() -> Iterator[dict[str, Any]]:
    x, y = location()
    used, classes = halves(len(y), MODELS), int(y.max()) + 1
    saved = [states(x, y, own, at, classes) for at, own in enumerate(used)]
    names = np.arange(len(y), dtype=np.uint64)

    def seen(at: int, members: Any) -> Observation:
        return Observation(saved[-1][at].astype(np.float64), y, members, names)

    pools = [
        ShadowScores([one[at] for one in saved[:-1]], used[:-1], y, names)
        for at in range(len(SAVED))
    ]
    yield row("lira on the last state", "network", lira(seen(-1, used[-1]), pools[-1]), 0.5)
    for name, members in (("network", used[-1]), ("silent", halves(len(y), MODELS + 1)[-1])):
        looks = [seen(at, members) for at in range(len(SAVED))]
        yield row("checkpoint_membership", name, checkpoint_membership(looks, pools), 0.5)


def persons() -> Iterator[dict[str, Any]]:
    x, y = load_digits(return_X_y=True)
    owner = np.random.default_rng(SEED).permutation(len(y)) // 6
    used = halves(len(y), 2, owner)

    def train(indices: Any, seed: int) -> Any:
        return RandomForestClassifier(50, random_state=seed).fit(x[indices], y[indices])

    pool = ShadowPool(x, y, train, models=MODELS - 1, seed=SEED, classes=10).run()
    model = train(np.flatnonzero(used[0]), 99)
    for name, members in (("forest", used[0]), ("silent", used[1])):
        seen = observe(model, x, y, members=members)
        yield row("lira, single records", name, lira(seen, pool), 0.5)
        yield row("person_membership", name, person_membership(seen, owner, shadows=pool), 0.5)


def data_sets() -> Iterator[dict[str, Any]]:
    x, y = location()
    suspected, heldout = np.arange(400), np.arange(400, 800)
    for count in (0, 100, 200, 400):
        own = np.zeros(len(y), dtype=bool)
        own[:count] = True
        own[800 : 1600 - count] = True
        said = states(x, y, own, SEED, int(y.max()) + 1)[-1]
        both = np.concatenate([suspected, heldout])
        names = np.arange(len(both), dtype=np.uint64)
        members = np.arange(len(both)) < len(suspected)
        seen = Observation(said[both].astype(np.float64), y[both], members, names)
        found = dataset_usage(yeom(seen).scores, members, seed=SEED)
        low, high = found.auc_interval
        yield {
            "attack": f"dataset_usage, {count} of 400 used",
            "auc": found.auc,
            "low": low,
            "target": "network" if count else "silent",
            "high": high,
            "baseline": 0.5,
            "p_value": found.p_value,
            "points": [],
            "records": len(both),
        }


def measure() -> list[dict[str, Any]]:
    found = []
    for part in (numbers, checkpoints, persons, data_sets):
        for one in part():
            print(f"{one['attack']:34} {one['target']:8} {one['auc']:.3f}", flush=True)
            found.append(one)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Not measured yet."
    lines = [
        "| attack | target | records | AUC | found at 1 % | p-value |",
        "|---|---|---:|---|---|---:|",
    ]
    for one in rows:
        area = f"{one['auc']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
        point = next((each for each in one["points"] if each["asked_fpr"] == 0.01), None)
        share = point and point["tpr"]
        shown = f"{share['share']:.3f} [{share['low']:.3f}, {share['high']:.3f}]" if share else ""
        chance = f"{one['p_value']:.4f}" if "p_value" in one else ""
        cells = one["attack"], one["target"], str(one["records"]), area, shown, chance
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
