"""ART's shadow models and black-box attack; runs in an environment of its own.

    python attack_art_peer.py TASK.npz ATTACK_MODEL SEED

Reads the target's weights and the records that benchmarks/attack_art.py wrote, prints one JSON
line. Needs adversarial-robustness-toolbox and torch only.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import art
import numpy as np
import torch
from art.attacks.inference.membership_inference import MembershipInferenceBlackBox, ShadowModels
from art.estimators.classification import PyTorchClassifier
from torch import nn


class Network(nn.Module):
    """The network of the target; ART clones it without arguments."""

    width = (446, 64, 30)

    def __init__(self) -> None:
        super().__init__()
        columns, hidden, classes = self.width
        first, second = nn.Linear(columns, hidden), nn.Linear(hidden, classes)
        self.layers = nn.Sequential(first, nn.ReLU(), second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def classifier(rate: float) -> Any:
    model = Network()
    return PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.Adam(model.parameters(), lr=rate),
        input_shape=(Network.width[0],),
        nb_classes=Network.width[2],
        device_type="cpu",
    )


def main() -> None:
    path, kind, seed = sys.argv[1:]
    warnings.simplefilter("ignore")
    with np.load(path) as data:
        task = {name: data[name] for name in data.files}
    torch.manual_seed(int(seed))
    np.random.seed(int(seed))  # noqa: NPY002 - ART draws from numpy's common generator
    rate = float(task["learning_rate"])
    target = classifier(rate)
    names = ("0.weight", "0.bias", "2.weight", "2.bias")
    target.model.layers.load_state_dict(
        {name: torch.from_numpy(task[f"weight_{place}"]) for place, name in enumerate(names)}
    )
    one_hot = np.eye(Network.width[2], dtype=np.float32)
    start, used = time.perf_counter(), time.process_time()
    shadows = ShadowModels(
        classifier(rate), num_shadow_models=int(task["shadows"]), random_state=int(seed)
    )
    inside, outside = shadows.generate_shadow_dataset(task["x_pool"], one_hot[task["y_pool"]])
    trained = time.perf_counter() - start
    attack = MembershipInferenceBlackBox(target, attack_model_type=kind)
    attack.fit(inside[0], inside[1], outside[0], outside[1], pred=inside[2], test_pred=outside[2])
    said = [
        np.asarray(attack.infer(task[f"x_{part}"], one_hot[task[f"y_{part}"]])).ravel() > 0.5
        for part in ("members", "nonmembers")
    ]
    seconds, worked = time.perf_counter() - start, time.process_time() - used
    shadow = shadows.get_shadow_models()[0]
    train_x, train_y = shadows.get_shadow_models_train_sets()[0]
    fitted = shadow.predict(train_x).argmax(axis=1) == train_y.argmax(axis=1)
    print(
        json.dumps(
            {
                "version": art.__version__,
                "attack_model": kind,
                "training_seconds": trained,
                "seconds": seconds,
                "processor_seconds": worked,
                "true_positives": int(said[0].sum()),
                "false_positives": int(said[1].sum()),
                "members": len(said[0]),
                "nonmembers": len(said[1]),
                "shadow_train_accuracy": float(fitted.mean()),
                "threads": torch.get_num_threads(),
            }
        )
    )


if __name__ == "__main__":
    main()
