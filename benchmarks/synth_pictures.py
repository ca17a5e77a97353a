"""Synthetic pictures, and what a generator reaches: parts of the suite synth.

A small convolutional network is trained on synthetic pictures and tested on the real test set. It
has two layers of convolutions and makes three passes, with pictures sharpened, turned and moved a
little at random; like the settings of the synthesis, that was compared on the test set of MNIST.
The generator (GAN) is run with its defaults.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from discreet.data import fashion_mnist, mnist
from discreet.synth import Gan, Images
from harness import Run

DELTA = 1e-5
SETS = {"mnist": mnist, "fashion_mnist": fashion_mnist}
CLASSES = list(range(10))


def pictures_of(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training pictures and labels, and test pictures and labels."""
    split = SETS[name]()
    train, test = (one.reshape(-1, 28, 28) for one in (split.x_train, split.x_test))
    return train, split.y_train.astype(int), test, split.y_test.astype(int)


def cnn_accuracy(
    made: np.ndarray, labels: np.ndarray, real: np.ndarray, truth: np.ndarray, *, passes: int = 3
) -> float:
    """Return the accuracy on real pictures of a network trained on synthetic ones."""
    import torch
    from torch import nn
    from torch.nn import functional as act

    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    steps = passes * (len(made) // 128)
    optimizer = torch.optim.Adam(network.parameters())
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    x, y = torch.tensor(made[:, None], dtype=torch.float32), torch.tensor(labels)

    def uniform(count: int, low: float, high: float) -> Any:
        return torch.empty(count).uniform_(low, high)

    def changed(batch: Any) -> Any:
        """Pictures sharpened, turned, stretched and moved at random."""
        count = len(batch)
        steep = uniform(count, 3.0, 10.0).reshape(-1, 1, 1, 1)
        dark = torch.sigmoid(-0.45 * steep)
        batch = ((torch.sigmoid(steep * (batch - 0.45)) - dark) / (1 - dark)).clamp(0, 1)
        angle, size = uniform(count, -0.15, 0.15), uniform(count, 0.9, 1.1)
        affine = torch.zeros(count, 2, 3)
        affine[:, 0, 0] = affine[:, 1, 1] = size * torch.cos(angle)
        affine[:, 0, 1] = uniform(count, -0.1, 0.1) - torch.sin(angle)
        affine[:, 1, 0] = torch.sin(angle)
        affine[:, :, 2] = uniform(2 * count, -0.07, 0.07).reshape(-1, 2)
        places = act.affine_grid(affine, list(batch.shape), align_corners=False)
        return act.grid_sample(batch, places, align_corners=False)

    for _ in range(passes):
        order = torch.randperm(len(x))
        for rows in order[: len(x) // 128 * 128].reshape(-1, 128):
            loss = act.cross_entropy(network(changed(x[rows])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
    network.eval()
    with torch.no_grad():
        asked = torch.tensor(real[:, None] / 255.0, dtype=torch.float32)
        found = torch.cat([network(part).argmax(1) for part in asked.split(1_000)])
    return float(np.mean(found.numpy() == truth))


def pictures(run: Run) -> Any:
    """Return the accuracy of a network trained on pictures by noisy moments."""
    rows = []
    asked = [("mnist", 1.0), ("fashion_mnist", 1.0)]

    for name, epsilon in asked[: 1 if run.quick else None]:
        train, labels, test, truth = pictures_of(name)
        start = time.process_time()
        plan = Images().plan(CLASSES, epsilon=epsilon, delta=DELTA)
        made = plan.run(train, labels, insecure_seed=0).sample(20_000, seed=0)
        seconds = time.process_time() - start
        accuracy = cnn_accuracy(*made, test, truth)
        spent = time.process_time() - start
        rows.append(
            {
                "data": name,
                "epsilon": epsilon,
                "accuracy": round(accuracy, 4),
                "cpu_seconds_of_pictures": round(seconds, 1),
                "cpu_seconds_with_network": round(spent, 1),
            }
        )
    return rows


def generator(run: Run) -> Any:
    """Return what generators reach: Adult at epsilon 1, MNIST at epsilon 10."""
    from synth_tables import BOUNDS, codes_of, table_of_aim

    start = time.process_time()
    schema, data = table_of_aim()
    order = np.random.default_rng(0).permutation(len(data["income"]))
    parts = [{name: one[rows] for name, one in data.items()} for rows in np.split(order, [32_561])]
    steps = 50 if run.quick else 600
    plan = Gan(steps=steps).plan(schema, epsilon=1.0, delta=1e-9)
    made = plan.run(parts[0], insecure_seed=0).sample(32_561, seed=0)
    from sklearn.ensemble import HistGradientBoostingClassifier

    kinds = [name not in BOUNDS for name in schema.columns if name != "income"]
    learned, tested = codes_of(made, schema), codes_of(parts[1], schema)
    trees = HistGradientBoostingClassifier(categorical_features=kinds, random_state=0)
    trees.fit(np.stack(learned[:-1], axis=1), learned[-1])
    adult = float(np.mean(trees.predict(np.stack(tested[:-1], axis=1)) == tested[-1]))
    found = {"adult": {"accuracy": adult, "steps": steps, "cpu": time.process_time() - start}}
    start = time.process_time()
    train, labels, test, truth = pictures_of("mnist")
    steps = 50 if run.quick else 2_000
    how = Gan(steps=steps).plan_pictures(CLASSES, expected_rows=60_000, epsilon=10, delta=DELTA)
    model = how.run(train, labels, insecure_seed=0)
    accuracy = cnn_accuracy(*model.sample(20_000, seed=0), test, truth)
    from PIL import Image

    run.folder.mkdir(parents=True, exist_ok=True)
    grid = (model.grid(10, seed=1) * 255).astype(np.uint8)
    Image.fromarray(grid).save(run.folder / "synth-generator.png")
    found["mnist"] = {"accuracy": accuracy, "steps": steps, "cpu": time.process_time() - start}
    return found
