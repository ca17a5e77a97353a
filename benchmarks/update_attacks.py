"""Every attack on updates: without a defence, under a plan at epsilon 2, and on a null target.

Each row is one attack by one server on named data. *Under the plan*: clients trust nobody, one
report of epsilon 2 is all that the server sees. No attack that knows the data can then succeed more
often than the loss allows at the chance without an update. *On nothing*: updates that no record had
a part in; an attack that sees a leak there raises a false alarm.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from discreet import data
from discreet.attacks import (
    Attribute,
    client_updates,
    imprint_model,
    imprinted_pictures,
    prior_informed,
    trap_weights,
    update_attribute,
    update_labels,
    update_membership,
    update_pictures,
    update_property,
    update_tokens,
)
from discreet.federated import Client, FederatedPlan, Round

EPSILON = 2.0
HONEST, MALICIOUS = "curious", "malicious"
ALARMS = 0.05
WORDS, LENGTH = 4000, 30


@dataclass
class Case:
    """One row: the weights that were sent, the clients' data, and the attack on their updates."""

    attack: str
    server: str
    data: str
    model: nn.Module
    records: np.ndarray
    labels: np.ndarray
    run: Callable[[np.ndarray, slice], Any]
    on_nothing: Callable[[np.ndarray, slice], Any] | None = None
    clip_norm: float | None = None
    few: int = 30
    nulls: int = 100

    def updates(self) -> np.ndarray:
        return client_updates(self.model, self.records, self.labels, clip_norm=self.clip_norm)

    def private(self) -> tuple[np.ndarray, FederatedPlan]:
        """Return what a server that nobody trusts sees of each client: one report."""
        rows = self.updates()
        plan = FederatedPlan(
            trust="nobody", clients=1, expected_cohort=1, rounds=1, clip_norm=1.0, delta=1e-5,
            local_epsilon=EPSILON, dimension=rows.shape[1],
        )  # fmt: skip
        seen = np.empty_like(rows)
        for place, row in enumerate(rows):
            one = Round(plan, 0, size=rows.shape[1], asked=["client"])
            one.receive("client", Client(plan).reply(row))
            seen[place] = one.finish().update
        return seen, plan


def measure_case(case: Case, quick: bool) -> dict[str, Any]:
    start = time.process_time()
    everybody, rng = slice(None), np.random.default_rng(1)
    rows = case.updates()
    plain = case.run(rows, everybody)
    seen, plan = case.private()
    hidden = case.run(seen, everybody)
    some, alarms = slice(0, case.few), 0
    nulls = 5 if quick else case.nulls
    spread = float(np.linalg.norm(rows, axis=1).mean()) / rows.shape[1] ** 0.5
    for _ in range(nulls):
        nothing = rng.normal(0.0, spread, (min(case.few, len(rows)), rows.shape[1]))
        alarms += bool((case.on_nothing or case.run)(nothing, some).leaks)
    chance = plain.finding.baseline
    result: dict[str, Any] = {
        "attack": case.attack,
        "server": case.server,
        "data": case.data,
        "plain": plain.finding.to_json(),
        "private": hidden.finding.to_json(),
        "bound": float(plan.loss.tradeoff(hidden.finding.baseline)),
        "chance": chance,
        "alarms": [alarms, nulls],
        "cpu_seconds": 0.0,
    }
    if hasattr(plain, "psnr"):
        result["psnr"] = [plain.psnr, *plain.psnr_interval, plain.blind_psnr, hidden.psnr]
    result["cpu_seconds"] = time.process_time() - start
    return result


# --- pictures and labels -------------------------------------------------------------------


def digits() -> Iterator[Case]:
    images = data.mnist()
    x = images.x_test.reshape(-1, 784).astype(np.float64) / 255
    y = images.y_test.astype(np.int64)
    public = images.x_train[:1000].reshape(-1, 784) / 255.0, images.y_train[:1000]
    torch.manual_seed(1)
    mlp = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    fours = np.arange(800).reshape(200, 4)
    yield Case(
        "update_labels", HONEST, "MNIST, four", mlp, x[fours], y[fours],
        lambda rows, who: update_labels(mlp, rows, y[fours][who]),
    )  # fmt: skip
    one, own = x[:100, None], y[:100, None]
    yield Case(
        "update_pictures, analytic", HONEST, "MNIST", mlp, one, own,
        lambda rows, who: update_pictures(mlp, rows, one[who], own[who], public),
    )  # fmt: skip
    yield from searches(images)
    groups = np.arange(6 * 64).reshape(6, 64)
    trap = imprint_model(images.x_train[-2000:] / 255.0, bins=512, classes=10).double()
    many = images.x_train[:10_000].reshape(-1, 784) / 255.0, images.y_train[:10_000]
    yield Case(
        "imprinted_pictures", MALICIOUS, "MNIST, 64", trap, x[groups], y[groups],
        lambda rows, who: imprinted_pictures(
            trap, rows, x[groups][who], y[groups][who], many
        ),
        few=1, nulls=40,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    places, truth = rng.integers(0, len(x), (400, 10)), rng.integers(0, 10, 400)
    mine = places[np.arange(400), truth]
    yield Case(
        "prior_informed", HONEST, "MNIST, of ten", mlp, x[mine][:, None], y[mine][:, None],
        lambda rows, who: prior_informed(
            mlp, rows, x[places[who]], y[places[who]], truth[who]
        ),
    )  # fmt: skip


def searches(images: Any) -> Iterator[Case]:
    from federated_model import lenet, relu_cnn

    x = images.x_test[:6, None, None].astype(np.float64) / 255
    y = images.y_test[:6, None].astype(np.int64)
    public = images.x_train[:1000, None] / 255.0, images.y_train[:1000]
    for name, method, model in (
        ("update_pictures, iDLG", "match", lenet()),
        ("update_pictures, inverting gradients", "cosine", relu_cnn()),
    ):

        def search(
            rows: np.ndarray, who: slice, steps: int = 300, model: Any = model, method: str = method
        ) -> Any:
            return update_pictures(
                model, rows, x[who], y[who], public, method=method, steps=steps, seed=1
            )

        # A search for what is not there is as blind after a few steps.
        short = partial(search, steps=20)
        yield Case(name, HONEST, "MNIST", model, x, y, search, short, few=6, nulls=20)


# --- words ---------------------------------------------------------------------------------


class Bag(nn.Module):
    """The mean of the embeddings of the words of a review, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS + 2, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(tokens).mean(dim=1))


def words() -> Iterator[Case]:
    split = data.sst2()
    common = Counter(word for text in split.texts["train"] for word in text.lower().split())
    # 0 is padding, 1 is any other word.
    number = {word: place + 2 for place, (word, _) in enumerate(common.most_common(WORDS))}
    texts = np.zeros((200, 1, LENGTH), dtype=np.int64)
    for place, text in enumerate(split.texts["test"][:200]):
        found = [number.get(word, 1) for word in text.lower().split()][:LENGTH]
        texts[place, 0, : len(found)] = found
    labels = np.asarray(split.labels["test"][:200])[:, None].astype(np.int64)
    torch.manual_seed(1)
    model = Bag().double()
    yield Case(
        "update_tokens", HONEST, "SST-2", model, texts, labels,
        lambda rows, who: update_tokens(model, rows, texts[who], padding=0),
    )  # fmt: skip


# --- records of a table --------------------------------------------------------------------


def table() -> Iterator[Case]:
    from federated_model import adult

    x, y = (part.double().numpy() for part in adult()[0].tensors)
    _, first = np.unique(x, axis=0, return_index=True)  # people who look alike count once
    x, y = x[np.sort(first)], y[np.sort(first)].astype(np.int64)
    public, sex = x[10_000:12_000], [65, 66]
    rng = np.random.default_rng(1)
    mine = np.stack([rng.permutation(10_000)[:5] for _ in range(400)])
    inside = np.arange(400) % 2 == 0
    rows = mine[:, :4]
    asked = np.where(inside, mine[:, 0], mine[:, 4])
    who_is = Attribute("sex", columns=sex, candidates=np.eye(2), values=["female", "male"])
    known = mine[(x[mine[:, 0]][:, sex].sum(axis=1) == 1)][:, :4]
    women, men = (np.flatnonzero(x[:10_000, column] == 1) for column in sex)
    holds = rng.random(400) < 0.5
    mixed = np.where(
        rng.random((400, 8)) < np.where(holds, 0.9, 0.1)[:, None],
        rng.choice(women, (400, 8)), rng.choice(men, (400, 8)),
    )  # fmt: skip

    def network(hidden: int) -> nn.Module:
        torch.manual_seed(1)
        layers = nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 2)
        return nn.Sequential(*layers).double()

    both = np.repeat(x[known[:, 0]], 2, axis=0)
    both[:, sex] = np.tile(np.eye(2), (len(known), 1))
    reads_sex = np.zeros((1, x.shape[1]))
    reads_sex[0, sex] = 1.0, -1.0
    around = np.vstack([np.eye(x.shape[1]), -np.eye(x.shape[1])])
    sent = {
        "update_membership": (network(512), trap_weights(network(512), x[asked], public)),
        "update_attribute": (network(1024), trap_weights(network(1024), both, public)),
        "update_property": (network(16), trap_weights(network(16), reads_sex, around)),
    }
    for place, server in enumerate((HONEST, MALICIOUS)):
        member, attribute, share = (models[place] for models in sent.values())
        yield Case(
            "update_membership", server, "Adult, one of four", member, x[rows], y[rows],
            lambda seen, who, model=member: update_membership(
                model, seen, x[asked[who]], y[asked[who]], inside[who]
            ),
            few=60,
        )  # fmt: skip
        yield Case(
            "update_attribute", server, "Adult, sex", attribute, x[known], y[known],
            lambda seen, who, model=attribute: update_attribute(
                model, seen, x[known[who, 0]], y[known[who, 0]], who_is
            ),
        )  # fmt: skip
        yield Case(
            "update_property", server, "Adult, most are women", share, x[mixed], y[mixed],
            lambda seen, who, model=share: update_property(model, seen, holds[who]),
            few=100,
        )  # fmt: skip


def cases() -> Iterator[Case]:
    yield from digits()
    yield from words()
    yield from table()


def measure(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for case in cases():
        rows.append(measure_case(case, quick))
        short = {name: rows[-1][name] for name in ("attack", "server", "bound", "alarms")}
        said = [round(rows[-1][kind][end], 3) for kind in ("plain", "private")
                for end in ("value", "low", "high", "baseline")]  # fmt: skip
        print(short, said, round(rows[-1]["cpu_seconds"], 1), flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    names = ("attack", "server", "data", "without a defence", "chance", "at epsilon 2", "bound")
    lines = [
        "| " + " | ".join([*names, "false alarms"]) + " |",
        "|---|---|---|---|---:|---|---:|---:|",
    ]
    for row in rows:
        shares = [
            f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
            for one in (row["plain"], row["private"])
        ]
        alarms, trials = row["alarms"]
        lines.append(
            f"| {row['attack']} | {row['server']} | {row['data']} | {shares[0]} "
            f"| {row['chance']:.2g} | {shares[1]} | {row['bound']:.2g} | {alarms} of {trials} |"
        )
    return "\n".join(lines)
