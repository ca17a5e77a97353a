"""Every membership attack against DP-SGD, beside what the certificate leaves possible.

`measure()` returns the rows and `draw(rows, path)` makes the picture; benchmarks/
reproduce_attacks.py calls both. For each epsilon a pool of networks is trained on Fashion-MNIST by
the public Trainer, each on records chosen by independent fair coins; every network is the target
once (for attacks that train a model of their own, the first eight are), with the others as
references, and the results are pooled. A certificate bounds the share of
members found at each share of non-members accused, whatever the attack: `loss.tradeoff`.

A point of a curve is outside if an exact binomial interval for its two rates has no point in
common with the region. Each interval holds with probability 1 - 1e-6. The answers about several
records of one network are not quite independent, which the intervals do not know.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet._confidence import proportion
from discreet.attacks import (
    MembershipResult,
    NetworkTrainer,
    Perceptron,
    Roc,
    ShadowPool,
    label_only,
    lira,
    pool_results,
    quantile_regression,
    rmia,
    shokri,
    yeom,
)
from discreet.data import fashion_mnist
from discreet.learn.dpsgd import Plan, Trainer
from discreet.privacy import Loss
from discreet.report import COLOURS, new_figure, save_figure, tidy_axes

EPSILONS = (0.5, 2.0, 8.0, 32.0, 100.0)
DELTA = 1e-5
NETWORK = Perceptron(784, 10, hidden=(32,))
RATE, STEPS, CLIP_NORM, LEARNING_RATE = 0.1, 50, 1.0, 0.5
# Attacks that train a model of their own for each target are run on the first few targets.
LEARNED_TARGETS = 8
SURE = 1 - 1e-6
LOOKS = {
    "yeom": COLOURS["orange"],
    "shokri": COLOURS["green"],
    "lira online": COLOURS["blue"],
    "lira offline": COLOURS["sky"],
    "rmia offline": COLOURS["purple"],
    "quantile regression": COLOURS["vermilion"],
    "label only, noise": COLOURS["black"],
}


def images(candidates: int, public: int, seed: int) -> tuple[Any, Any]:
    """Images of which no two are alike."""
    data = fashion_mnist()
    x = data.x_train.reshape(-1, 784)
    wanted = candidates + public
    drawn = np.random.default_rng(seed).permutation(len(x))[: wanted + 100]
    _, first = np.unique(x[drawn], axis=0, return_index=True)
    chosen = drawn[np.sort(first)[:wanted]]
    return x[chosen].astype(np.float32) / 255, data.y_train[chosen].astype(np.int64)


def plan_of(epsilon: float, candidates: int) -> Plan:
    examples = candidates // 2
    return Plan(
        examples=examples,
        expected_batch_size=RATE * examples,
        steps=STEPS,
        clip_norm=CLIP_NORM,
        epsilon=epsilon,
        delta=DELTA,
    )


def private_model(x: Any, y: Any, plan: Plan, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = NETWORK()
    trainer = Trainer(
        model,
        plan,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE),
        loss=nn.CrossEntropyLoss(reduction="none"),
    )
    trainer.fit(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), progress=False)
    return model.eval()


def attacks(
    pool: ShadowPool, models: list[nn.Module], candidates: int, seed: int
) -> dict[str, MembershipResult]:
    """All attacks, each pooled over its targets."""
    scores = pool.run()
    found: dict[str, list[MembershipResult]] = {name: [] for name in LOOKS}
    for row in range(len(scores)):
        everything, others = scores.leave_out(row)
        seen = everything.part(np.arange(candidates))
        public = everything.part(np.arange(candidates, len(everything)))
        found["yeom"].append(yeom(seen))
        if row < LEARNED_TARGETS:
            found["shokri"].append(shokri(seen, others, examples=2000, seed=seed))
            found["quantile regression"].append(quantile_regression(seen, public, seed=seed))
        found["lira online"].append(lira(seen, others))
        found["lira offline"].append(lira(seen, others, mode="offline"))
        found["rmia offline"].append(rmia(seen, others))
        found["label only, noise"].append(
            label_only(
                models[row],
                pool.records[:candidates],
                pool.labels[:candidates],
                members=pool.inclusion[row, :candidates],
                method="noise",
                scale=0.2,
                seed=seed,
            )
        )
    return {name: pool_results(results) for name, results in found.items()}


def checked(result: MembershipResult, loss: Loss | None) -> dict[str, Any]:
    """The curve at rising numbers of accused non-members, and how many points lie outside."""
    roc = result.roc
    places = places_of(roc)
    rows = [
        (
            proportion(int(roc.false_positives[place]), roc.nonmembers, confidence=SURE),
            proportion(int(roc.true_positives[place]), roc.members, confidence=SURE),
        )
        for place in places
    ]
    outside = 0
    if loss is not None:
        above = loss.tradeoff(np.array([fpr.high for fpr, _ in rows]))
        below = 1 - loss.tradeoff(np.array([1 - fpr.low for fpr, _ in rows]))
        outside = sum(
            bool(tpr.low > high or tpr.high < low)
            for (_, tpr), high, low in zip(rows, above, below, strict=True)
        )
    low, high = result.auc_interval()
    return {
        "auc": {"value": result.auc, "low": low, "high": high},
        "tpr_at_fpr": [
            {"fpr": point.asked_fpr, **point.tpr.to_json()} for point in result.operating_points()
        ],
        "members": roc.members,
        "nonmembers": roc.nonmembers,
        "points": len(rows),
        "outside": outside,
        "curve": [[round(fpr.share, 6), round(tpr.share, 6)] for fpr, tpr in rows],
    }


def places_of(roc: Roc) -> Any:
    """The points at 0, 1, 2, ... accused non-members, and then further and further apart.

    Where several points accuse as many, the first and the last: the fewest and the most found.
    """
    steps = np.unique(np.append(0, np.geomspace(1, roc.nonmembers, 80).astype(np.int64)))
    first = np.searchsorted(roc.false_positives, steps, side="left")
    last = np.searchsorted(roc.false_positives, steps, side="right") - 1
    found = np.unique(np.concatenate([first, last]))
    return found[found < len(roc.thresholds)]


def measure(
    *, seed: int = 1, models: int = 20, candidates: int = 800, public: int = 400
) -> list[dict[str, Any]]:
    """Return one row for each epsilon, and one without privacy."""
    x, y = images(candidates, public, seed)
    coins = np.random.default_rng(seed).random((models, len(x))) < 0.5
    coins[:, candidates:] = False
    rows = []
    for epsilon in (*EPSILONS, None):
        start = time.perf_counter()
        plan = None if epsilon is None else plan_of(epsilon, candidates)
        made: list[nn.Module] = []
        plain = NetworkTrainer(x, y, NETWORK, epochs=60)

        def train(
            indices: Any,
            number: int,
            plan: Plan | None = plan,
            made: list[nn.Module] = made,
            plain: NetworkTrainer = plain,
        ) -> nn.Module:
            made.append(
                plain(indices, number)
                if plan is None
                else private_model(x[indices], y[indices], plan, number)
            )
            return made[-1]

        pool = ShadowPool(x, y, train, inclusion=coins, classes=10, seed=seed)
        scores = pool.run()
        training = time.perf_counter() - start
        rows.append(
            {
                "epsilon": epsilon,
                "certified": None if plan is None else plan.epsilon(),
                "delta": None if plan is None else DELTA,
                "models": models,
                "accuracy_on_public": public_accuracy(scores, candidates),
                "attacks": {
                    name: checked(result, None if plan is None else plan.loss)
                    for name, result in attacks(pool, made, candidates, seed).items()
                },
                "bound": None if plan is None else bound_of(plan.loss),
                "training_seconds": training,
                "seconds": time.perf_counter() - start,
            }
        )
        print(line(rows[-1]), flush=True)
    return rows


def public_accuracy(scores: Any, candidates: int) -> float:
    truth = scores.labels[candidates:]
    return float(
        np.mean([part[candidates:].argmax(axis=1) == truth for part in scores.log_probabilities])
    )


def bound_of(loss: Loss) -> list[list[float]]:
    fpr = np.concatenate([[0.0], np.geomspace(1e-4, 1, 60)])
    return [[float(a), float(b)] for a, b in zip(fpr, loss.tradeoff(fpr), strict=True)]


def draw(rows: list[dict[str, Any]], place: Path) -> None:
    """One panel for each epsilon: what is possible in white, what is ruled out in grey."""
    figure = new_figure(10.5, 7.2)
    for axes, row in zip(figure.subplots(2, 3).ravel(), rows, strict=True):
        for name, found in row["attacks"].items():
            fpr, tpr = np.array(found["curve"]).T
            axes.plot(
                np.maximum(fpr, 5e-5), np.maximum(tpr, 5e-5), color=LOOKS[name], lw=1.2, label=name
            )
        if row["bound"] is not None:
            fpr, tpr = np.array(row["bound"]).T
            axes.fill_between(np.maximum(fpr, 1e-5), tpr, 1, color=COLOURS["grey"], alpha=0.3, lw=0)
            axes.plot(np.maximum(fpr, 1e-5), tpr, color=COLOURS["grey"], lw=1.5)
        axes.plot([1e-4, 1], [1e-4, 1], ":", color=COLOURS["grey"], lw=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(1e-4, 1)
        axes.set_ylim(1e-4, 1)
        title = "no privacy" if row["epsilon"] is None else f"epsilon {row['epsilon']:g}"
        axes.set_title(f"{title} (accuracy {row['accuracy_on_public']:.2f})", loc="left")
        tidy_axes(axes)
    figure.supxlabel("non-members accused", fontsize=9)
    figure.supylabel("members found", fontsize=9)
    figure.axes[0].legend(fontsize=7, loc="lower right", frameon=False)
    save_figure(figure, place)


def line(row: dict[str, Any]) -> str:
    name = "no privacy" if row["epsilon"] is None else f"epsilon {row['epsilon']:g}"
    parts = ", ".join(
        f"{kind} auc {found['auc']['value']:.3f} outside {found['outside']}/{found['points']}"
        for kind, found in row["attacks"].items()
    )
    return f"{name:12} accuracy {row['accuracy_on_public']:.3f} {row['seconds']:.0f} s: {parts}"
