"""Federated models and attacks on their updates, on MNIST and Adult, beside targets.

``digits``: 3,000 clients of 20 pictures each, labels by Dirichlet 0.3, epsilon 2 for a client, a
linear model on scattering features. ``pixels``: a network on the same pictures. ``silos``: Adult in
eight silos of unequal size, record-level epsilon 1 in each, beside one table at epsilon 1.
``leakage``: pictures from gradients, and what is left of them under noise, beside the
prior-informed attack and its bound. ``attacks``: every attack on updates, without a defence, at
epsilon 2 and on nothing. ``poisoning``: what clipping, noise and robust aggregation leave of
hostile clients; robust rules are here only: they have no certificate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import update_attacks
from attack_shokri import adult_schema
from discreet import data
from discreet._confidence import lower_bound
from discreet.attacks import client_updates, poisoning, prior_informed, update_pictures
from discreet.data import Encoding, read_table
from discreet.federated import (
    Clients,
    FederatedPlan,
    InProcessEngine,
    SiloPlan,
    Training,
    clip_update,
    run_silos,
    split_dirichlet,
)
from discreet.learn.dpsgd import Plan, Trainer
from discreet.privacy import Gaussian
from harness import Run, Suite, found, number, target
from reproduce_dpsgd import pixels, scattered, scattering_model, small_cnn

PARTS = ("digits", "pixels", "silos", "leakage", "attacks", "poisoning")
DELTA = 1e-5
CE = nn.CrossEntropyLoss(reduction="none")
SILOS = (0.26, 0.2, 0.15, 0.12, 0.1, 0.08, 0.06, 0.03)
SIGMAS = (2.0, 1.0, 0.5, 0.25)
RELATIVE = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)


# --- models --------------------------------------------------------------------------------


def run_clients(
    start: Callable[[], nn.Module],
    look: Callable[[Any], torch.Tensor],
    made: Training,
    *,
    rounds: int,
    runs: int,
) -> dict[str, Any]:
    """Train a model over 3,000 clients; ``look`` makes of pictures what the model is given."""
    images = data.mnist()
    rows = split_dirichlet(images.y_train, clients=3000, examples=20, alpha=0.3, seed=1)
    x, y = look(images.x_train), torch.from_numpy(images.y_train).long()
    clients = Clients(x[rows], y[rows])
    del x
    inputs, truth = look(images.x_test), torch.from_numpy(images.y_test).long()
    plan = FederatedPlan(
        clients=3000, expected_cohort=1000, rounds=rounds, clip_norm=0.3, delta=DELTA, epsilon=2.0
    )
    results = []
    for seed in range(1, runs + 1):
        torch.manual_seed(seed)
        engine = InProcessEngine(clients, start(), CE, made)
        began = time.process_time()
        model = engine.run(plan, progress=False).model
        took = time.process_time() - began
        with torch.no_grad():
            right = float((model(inputs).argmax(1) == truth).double().mean())
        results.append({"seed": seed, "accuracy": round(100 * right, 2), "cpu_seconds": took})
        print("MNIST", results[-1], flush=True)
    return {"epsilon": plan.epsilon(), "noise_multiplier": plan.noise_multiplier, "runs": results}


def digits(quick: bool) -> dict[str, Any]:
    made = Training(local_rate=1.0, server_rate=3.0, decay=0.1, average=0.9)
    return run_clients(scattering_model, scattered, made, rounds=40, runs=1 if quick else 2)


def network_on_pixels(quick: bool) -> dict[str, Any]:
    made = Training(local_rate=1.0, server_rate=2.0, decay=0.1, average=0.9)
    return run_clients(small_cnn, pixels, made, rounds=2 if quick else 80, runs=1)


@cache
def adult() -> tuple[TensorDataset, TensorDataset]:
    census = data.adult()
    encoding = Encoding(adult_schema(census.train))
    both = []
    for table in (census.train, census.test):
        rows = read_table(table, encoding.schema)
        x = torch.from_numpy(encoding.features(rows).astype(np.float32))
        both.append(TensorDataset(x, torch.from_numpy(np.asarray(encoding.target(rows))).long()))
    return both[0], both[1]


def silos(quick: bool) -> dict[str, Any]:
    train, test = adult()
    x, y = train.tensors
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(y)))
    ends = (np.cumsum(SILOS) * len(y)).astype(int)
    parts = np.split(order.numpy(), ends[:-1])
    sets = {f"silo {place}": TensorDataset(x[rows], y[rows]) for place, rows in enumerate(parts)}
    rounds, steps = (2, 5) if quick else (5, 20)

    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(x.shape[1], 2)

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=1.0)

    plan = SiloPlan.of_sizes(
        {name: len(one) for name, one in sets.items()}, epsilon=1.0, delta=DELTA, rounds=rounds,
        steps=steps, batch=lambda size: size // 5, clip_norm=1.0,
    )  # fmt: skip
    apart = run_silos(plan, sets, fresh(), loss=CE, optimizer=optimizer).model
    pooled = fresh()
    whole = Plan(
        examples=len(y), expected_batch_size=len(y) // 5, steps=rounds * steps, clip_norm=1.0,
        epsilon=1.0, delta=DELTA, unit="record",
    )  # fmt: skip
    Trainer(pooled, whole, optimizer=optimizer, loss=CE).fit(train, progress=False)

    def right(model: nn.Module) -> float:
        with torch.no_grad():
            return 100 * float((model(test.tensors[0]).argmax(1) == test.tensors[1]).float().mean())

    result = {
        "sizes": [len(one) for one in sets.values()],
        "epsilons": [plan.loss_of(name).epsilon(delta=DELTA) for name in sets],
        "silos": right(apart),
        "pooled": right(pooled),
    }
    print("silos", result, flush=True)
    return result


# --- leakage -------------------------------------------------------------------------------


def lenet() -> nn.Module:
    """The network of the paper on deep leakage from gradients, with its wide start."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for place, stride in enumerate((2, 2, 1)):
        layers += [nn.Conv2d(12 if place else 1, 12, 5, stride=stride, padding=2), nn.Sigmoid()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5)
    return model


def relu_cnn() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10),
    ).double()  # fmt: skip


def leakage(quick: bool) -> dict[str, Any]:
    images = data.mnist()
    few = 2 if quick else 4
    x = images.x_test[:few, None, None].astype(np.float64) / 255
    y = images.y_test[:few, None].astype(np.int64)
    public = images.x_train[:1000, None].astype(np.float64) / 255, images.y_train[:1000]
    ways = {
        "idlg": (lenet(), {"method": "match", "steps": 300, "restarts": 3}),
        "inverting": (relu_cnn(), {"method": "cosine", "steps": 300}),
    }
    result: dict[str, Any] = {}
    for name, (model, settings) in ways.items():
        start = time.process_time()
        seen = client_updates(model, x, y)
        one = update_pictures(model, seen, x, y, public, seed=1, **settings)
        each = (time.process_time() - start) / few
        result[name] = {**one.to_json(), "cpu_seconds": each}
        print(name, one.psnr, one.ssim, each, flush=True)
    model = relu_cnn()
    curve = []
    for sigma in RELATIVE:
        seen = client_updates(model, x[:2], y[:2], clip_norm=1.0, stddev=sigma, seed=1)
        one = update_pictures(model, seen, x[:2], y[:2], public, method="cosine", seed=1)
        curve.append({"sigma": sigma, "psnr": one.psnr, "identified": one.identified.successes})
        print(curve[-1], flush=True)
    result["under_noise"] = curve
    result["blind"] = one.blind_psnr
    return {**result, "prior_informed": guesses(images, 200 if quick else 600)}


def guesses(images: Any, trials: int) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    rng = np.random.default_rng(1)
    rows = []
    for sigma in SIGMAS:
        places = rng.integers(0, len(images.x_test), (trials, 10))
        truth = rng.integers(0, 10, trials)
        x = images.x_test[places].reshape(trials, 10, 784).astype(np.float32) / 255
        y = images.y_test[places].astype(np.int64)
        own = np.arange(trials), truth
        seen = client_updates(
            model, x[own][:, None], y[own][:, None], clip_norm=1.0, stddev=sigma, seed=rng
        )
        claim = Gaussian(noise_multiplier=sigma)
        one = prior_informed(model, seen, x, y, truth, clip_norm=1.0, loss=claim)
        body = {"sigma": sigma, "epsilon": claim.epsilon(delta=DELTA), **one.to_json()}
        rows.append(body)
        print(sigma, one.right, one.bound, one.audited_epsilon, flush=True)
    return rows


# --- poisoning -----------------------------------------------------------------------------

CLIENTS, ROUNDS = 200, 20
Rule = Callable[[np.ndarray], np.ndarray]


def krum(rows: np.ndarray, hostile: int) -> np.ndarray:
    squares = (rows**2).sum(axis=1)
    apart = squares[:, None] + squares - 2 * rows @ rows.T
    np.fill_diagonal(apart, -np.inf)  # a row is the nearest to itself, and left out
    near = np.sort(apart, axis=1)[:, 1 : len(rows) - hostile - 1]
    return np.asarray(rows[int(near.sum(axis=1).argmin())])


def trimmed(rows: np.ndarray) -> np.ndarray:
    cut = len(rows) // 5
    return np.asarray(np.sort(rows, axis=0)[cut:-cut].mean(axis=0))


def rules(hostile: int) -> dict[str, Rule]:
    return {
        "mean": lambda rows: rows.mean(axis=0),
        "clipping": lambda rows: np.mean([clip_update(row, 0.3) for row in rows], axis=0),
        "median": lambda rows: np.median(rows, axis=0),
        "trimmed mean": trimmed,
        "krum": lambda rows: krum(rows, hostile),
    }


def stamp(records: np.ndarray) -> np.ndarray:
    """Four bright pixels in a corner."""
    records[:, [0, 1, 28, 29]] = 1.0
    return records


GOALS: dict[str, dict[str, Any]] = {
    "untargeted": {},
    "targeted": {"source": 7, "to": 1},
    "backdoor": {"to": 0, "trigger": stamp},
}


def poisoned_data(
    goal: str, hostile: int, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    x, y = x.copy(), y.copy()
    for client in range(hostile):
        if goal == "targeted":
            y[client] = np.where(y[client] == 7, 1, y[client])
        elif goal == "backdoor":
            x[client, :10], y[client, :10] = stamp(x[client, :10]), 0
    return x, y


def poison(quick: bool) -> list[dict[str, Any]]:
    images = data.mnist()
    x = images.x_train[: CLIENTS * 20].reshape(CLIENTS, 20, 784).astype(np.float32) / 255
    y = images.y_train[: CLIENTS * 20].reshape(CLIENTS, 20).astype(np.int64)
    test = images.x_test[:2000].reshape(-1, 784).astype(np.float32) / 255
    truth = images.y_test[:2000].astype(np.int64)
    made = Training(local_steps=2, local_rate=0.5, momentum=0.0)
    plan = FederatedPlan(
        clients=CLIENTS, expected_cohort=CLIENTS, rounds=ROUNDS, clip_norm=0.3, delta=1e-3,
        sampler="full", epsilon=2.0,
    )  # fmt: skip

    def engine_of(goal: str, hostile: int) -> InProcessEngine:
        one, other = poisoned_data(goal, hostile, x, y)
        torch.manual_seed(0)
        clients = Clients(torch.from_numpy(one), torch.from_numpy(other))
        return InProcessEngine(clients, nn.Linear(784, 10), CE, made)

    def aggregated(rule: Rule, goal: str, hostile: int) -> nn.Module:
        engine = engine_of(goal, hostile)
        torch.manual_seed(0)
        model = nn.Linear(784, 10)
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        for _ in range(ROUNDS):
            rows = engine.updates(range(CLIENTS), parameters=flat).double().numpy()
            rows[:hostile] *= -10.0 if goal == "untargeted" else 10.0
            flat = flat + torch.from_numpy(rule(rows)).to(flat.dtype)
        with torch.no_grad():
            model.weight.copy_(flat[:7840].view(10, 784))
            model.bias.copy_(flat[7840:])
        return model

    def private(goal: str, hostile: int) -> nn.Module:
        sign = -10.0 if goal == "untargeted" else 10.0
        replies = {client: lambda u: {"update": sign * u} for client in range(hostile)}
        return engine_of(goal, hostile).run(plan, hostile=replies, progress=False).model

    rows = []
    shares = (0.2,) if quick else (0.01, 0.05, 0.2)
    for share in shares:
        hostile = int(share * CLIENTS)
        ways = {name: partial(aggregated, rule) for name, rule in rules(hostile).items()}
        for name, way in {**ways, "the plan, epsilon 2": private}.items():
            clean = way("untargeted", 0)  # without hostile clients every goal has the same model
            for goal, settings in GOALS.items():
                if way is private:
                    settings = {**settings, "loss": plan.loss, "clients": hostile}
                bad = way(goal, hostile)
                models = {True: bad, False: clean}
                result = poisoning(models.__getitem__, test, truth, goal=goal, **settings)
                rows.append({"share": share, "rule": name, **result.to_json()})
                print(share, name, goal, result.poisoned.share, flush=True)
    return rows


# --- what is held and written --------------------------------------------------------------


def measure(asked: Run) -> dict[str, Any]:
    ways = {
        "digits": digits,
        "pixels": network_on_pixels,
        "silos": silos,
        "leakage": leakage,
        "attacks": update_attacks.measure,
        "poisoning": poison,
    }
    return {part: way(asked.quick) for part, way in ways.items() if asked.wants(part)}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    model, network, apart, leaks, rows, bad = (found(record, part) for part in PARTS)
    worst, on_pixels = (
        min(run["accuracy"] for run in part["runs"]) if part else None for part in (model, network)
    )
    listed = [
        target("MNIST, 3,000 clients, epsilon 2, pixels: accuracy", on_pixels, at_least=96.5),
        target("the same on fixed features: worst accuracy", worst, at_least=98.0),
        target(
            "Adult in eight silos below one table, points",
            apart["pooled"] - apart["silos"] if apart else None,
            at_most=1.0,
        ),
        target("iDLG: median PSNR", leaks["idlg"]["psnr"] if leaks else None, at_least=75.0),
        target(
            "inverting gradients: median PSNR",
            leaks["inverting"]["psnr"] if leaks else None,
            at_least=55.0,
        ),
    ]
    for row in leaks["prior_informed"] if leaks else ():
        room = row["bound"] - row["right"]["low"]
        listed.append(target(f"sigma {row['sigma']}: bound above the attack", room, at_least=0.0))
    for row in rows or ():
        name = f"{row['attack']}, {row['server']} server"
        above = row["plain"]["low"] - row["plain"]["baseline"]
        listed.append(target(f"{name}: interval above chance", above, at_least=1e-9))
        below = row["bound"] - row["private"]["low"]
        listed.append(target(f"{name}: bound above epsilon 2", below, at_least=0.0))
        alarms, trials = row["alarms"]
        least = lower_bound(alarms, trials, error=1e-3)
        what = f"{name}: false alarms, lower end"
        listed.append(target(what, least, at_most=update_attacks.ALARMS))
    for row in bad or ():
        if row.get("bound") is not None:
            what = f"{row['goal']}, {row['share']:.0%}: bound above the poison"
            listed.append(target(what, row["bound"] - row["poisoned"]["low"], at_least=0.0))
    return listed


def poison_table(record: dict[str, Any]) -> str:
    rows = found(record, "poisoning")
    if not rows:
        return "Not measured yet."
    shares = sorted({row["share"] for row in rows})
    lines = [
        "| goal | rule | " + " | ".join(f"{share:.0%} hostile" for share in shares) + " |",
        "|---|---|" + "---:|" * len(shares),
    ]
    for goal in GOALS:
        for rule in dict.fromkeys(row["rule"] for row in rows):
            those = [row for row in rows if (row["goal"], row["rule"]) == (goal, rule)]
            cells = [_interval(row["poisoned"]) for row in those]
            lines.append(f"| {goal} | {rule} | " + " | ".join(cells) + " |")
        bounds = [f"{row['bound']:.2g}" for row in those]
        lines.append(f"| {goal} | the bound of that plan | " + " | ".join(bounds) + " |")
        clean = next(row for row in rows if row["goal"] == goal)["clean"]
        cells = [_interval(clean)] * len(shares)
        lines.append(f"| {goal} | mean, without hostile clients | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _interval(share: dict[str, Any]) -> str:
    return f"{share['share']:.2f} ({share['low']:.2f} to {share['high']:.2f})"


def attack_table(record: dict[str, Any]) -> str:
    rows = found(record, "attacks")
    return update_attacks.markdown(rows) if rows else "Not measured yet."


def leak_table(record: dict[str, Any]) -> str:
    lines = [
        "| sigma | epsilon at 1e-5 | right of ten, interval | the bound | audited epsilon |",
        "|---:|---:|---|---:|---:|",
    ]
    for row in found(record, "leakage")["prior_informed"]:
        right = row["right"]
        lines.append(
            f"| {row['sigma']:g} | {row['epsilon']:.1f} | {right['share']:.3f} "
            f"({right['low']:.3f} to {right['high']:.3f}) | {row['bound']:.3f} "
            f"| {row['audited_epsilon']:.2f} |"
        )
    return "\n".join(lines)


def curve_table(record: dict[str, Any]) -> str:
    rows = found(record, "leakage")["under_noise"]
    losses = [Gaussian(noise_multiplier=row["sigma"]) if row["sigma"] else None for row in rows]
    columns = {
        "noise, in clip norms": [f"{row['sigma']:g}" for row in rows],
        "inverting gradients, PSNR in dB": [f"{row['psnr']:.1f}" for row in rows],
        "identified among 1,000 others, of two": [f"{row['identified']}" for row in rows],
        "bound of that share": [
            "1" if one is None else f"{one.tradeoff(1 / 1001):.3g}" for one in losses
        ],
        "epsilon at 1e-5": [
            "none" if one is None else f"{one.epsilon(delta=DELTA):.3g}" for one in losses
        ],
    }
    lines = [f"| {name} | " + " | ".join(cells) + " |" for name, cells in columns.items()]
    return "\n".join([lines[0], "|---|" + "---:|" * len(rows), *lines[1:]])


PAGE = "docs/federated.md"


NUMBERS = {
    "digits": number("digits", lambda one: f"{min(run['accuracy'] for run in one['runs']):.2f} %"),
    "pixels": number("pixels", lambda one: f"{one['runs'][0]['accuracy']:.2f} %"),
    "silos": number("silos", lambda one: f"{one['silos']:.2f} %"),
    "pooled": number("silos", lambda one: f"{one['pooled']:.2f} %"),
    "idlg": number("leakage", lambda one: f"{one['idlg']['psnr']:.1f}"),
    "inverting": number("leakage", lambda one: f"{one['inverting']['psnr']:.1f}"),
    "blind": number("leakage", lambda one: f"{one['inverting']['blind_psnr']:.1f}"),
}
SUITE = Suite(
    "federated_model",
    measure,
    targets,
    parts=PARTS,
    tables={
        (PAGE, "poisoning"): poison_table,
        (PAGE, "update-attacks"): attack_table,
        (PAGE, "prior-informed"): leak_table,
        (PAGE, "leakage-noise"): curve_table,
    },
    numbers=NUMBERS,
)
