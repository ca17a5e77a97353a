"""Draws outputs of other libraries for benchmarks/audit_peers.py, in an environment of their own.

python audit_peers_peer.py PEER SHARE OUT.npz, where SHARE of the usual number of outputs is drawn.
OUT has two rows of outputs for each mechanism, one for each of two neighbouring inputs, and for
Opacus what its accountant recorded. Every mechanism is called as its users call it.
"""

import json
import logging
import os
import sys
import warnings

import numpy as np

warnings.filterwarnings("ignore")
SHARE = float(sys.argv[2])


def draw(release, inputs, count):
    """Outputs of ``release`` for each of two inputs."""
    return [[release(data) for _ in range(max(2, int(SHARE * count)))] for data in inputs]


def diffprivlib():
    from diffprivlib.mechanisms import Geometric, Laplace
    from diffprivlib.models import LinearRegression

    laplace = Laplace(epsilon=1, sensitivity=1)
    geometric = Geometric(epsilon=1, sensitivity=1)
    y = np.zeros(2)

    def slope(bounds):
        def fit(x):
            model = LinearRegression(
                epsilon=1, bounds_X=bounds, bounds_y=(-1, 1), fit_intercept=False
            )
            return float(model.fit(x, y).coef_[0])

        return fit

    tables = np.array([[0.1], [0.1]]), np.array([[0.1], [1.0]])
    return {
        "diffprivlib-laplace": draw(laplace.randomise, (0.0, 1.0), 20_000),
        "diffprivlib-geometric": draw(geometric.randomise, (0, 1), 20_000),
        "diffprivlib-regression-bounds-0-1": draw(slope((0, 1)), tables, 4_000),
        "diffprivlib-regression-bounds-symmetric": draw(slope((-1, 1)), tables, 4_000),
    }


def opacus():
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    columns = 200

    def train(rows, noise, poisson):
        """One epoch in batches of eight; only the last record has a gradient, in one direction."""
        x = torch.zeros(rows, columns)
        if rows == 63:
            x[-1, 0] = 100.0
        model = nn.Linear(columns, 1, bias=False)
        before = model.weight.detach().clone()
        loader = DataLoader(TensorDataset(x, torch.ones(rows, 1)), batch_size=8, shuffle=True)
        engine = PrivacyEngine()
        private, optimizer, batches = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            data_loader=loader,
            noise_multiplier=noise,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )
        for inputs, _ in batches:
            optimizer.zero_grad()
            private(inputs).sum().backward()
            optimizer.step()
        moved = (before - model.weight.detach()).ravel().double().numpy()
        return moved, engine.accountant.history

    histories = {}

    def direction(name, poisson):
        def release(rows):
            moved, histories[name] = train(rows, 0.05, poisson)
            return float(moved[0])

        return release

    def loudness(rows):
        moved, histories["opacus-normaliser"] = train(rows, 4.0, True)
        return float(np.abs(moved[1:]).mean())

    found = {
        "opacus-shuffled": draw(direction("opacus-shuffled", False), (63, 62), 400),
        "opacus-poisson": draw(direction("opacus-poisson", True), (63, 62), 400),
        "opacus-normaliser": draw(loudness, (64, 63), 400),
    }
    return found, histories


def smartnoise():
    import pandas as pd
    import snsql
    from snsynth import Synthesizer
    from snsynth.transform import TableTransformer

    table = [("x", "u"), ("x", "v"), ("y", "u"), ("y", "v")] * 5

    def people(*more):
        return pd.DataFrame([*table, *more], columns=["a", "b"])

    def rows(data):
        made = Synthesizer.create("mwem", epsilon=1.0)
        return len(made.fit_sample(data, categorical_columns=["a", "b"]))

    def rare(**how):
        def release(data):
            made = Synthesizer.create("mwem", epsilon=1.0)
            made.fit(data, **how)
            return int((made.sample(100)["a"] == "rare").sum())

        return release

    names = {"categorical_columns": ["a", "b"]}
    public = TableTransformer.create(people(("rare", "u")), style="cube", **names)
    public.fit(people(("rare", "u")))

    meta = {"": {"": {"t": {"row_privacy": True, "a": {"type": "int", "lower": 0, "upper": 1}}}}}
    privacy = snsql.Privacy(epsilon=1.0, delta=1e-6)

    def count(table):
        reader = snsql.from_connection(table, privacy=privacy, metadata=meta)
        answer = reader.execute("SELECT COUNT(*) AS n FROM t")[1:]
        return int(answer[0][0]) if answer else -1  # too small to be shown

    numbers = [pd.DataFrame({"a": [0, 1] * 10 + [1] * more}) for more in (1, 0)]
    neighbours = people(("rare", "u")), people()
    return {
        "smartnoise-rows": draw(rows, neighbours, 120),
        "smartnoise-categories": draw(rare(**names), neighbours, 200),
        "smartnoise-public-categories": draw(rare(transformer=public), neighbours, 200),
        "smartnoise-count": draw(count, numbers, 600),
    }


def flower():
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    def mean(counts, declared):
        """What becomes of the mean of a round if the last client moved by ``moved``."""

        def release(moved):
            strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, declared)
            replies = []
            for place, count in enumerate(counts):
                update = moved if place == len(counts) - 1 else 0.0
                arrays = ArrayRecord({"u": Array(np.array([update]))})
                facts = MetricRecord({"num-examples": count})
                replies.append(RecordDict({"arrays": arrays, "metrics": facts}))
            whole = aggregate_arrayrecords(replies, "num-examples")
            return float(strategy._add_noise_to_aggregated_arrays(whole)["u"].numpy()[0])

        return release

    logging.disable(logging.INFO)
    return {
        "flower-weighted-mean": draw(mean([10] * 9 + [10_000], 10), (1.0, 0.0), 2_000),
        "flower-too-few-clients": draw(mean([10] * 10, 100), (1.0, 0.0), 2_000),
        "flower-equal-clients": draw(mean([10] * 10, 10), (1.0, 0.0), 2_000),
    }


def main():
    found = globals()[sys.argv[1]]()
    found, histories = found if isinstance(found, tuple) else (found, {})
    arrays = {name: np.array(pair) for name, pair in found.items()}
    np.savez(sys.argv[3], histories=np.array(json.dumps(histories)), **arrays)


if __name__ == "__main__":
    main()
