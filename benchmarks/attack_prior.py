"""Inversion with a generative prior: faces from a classifier, a generator and half a photograph.

Of the 40 people of the Olivetti faces, 20 are private: five of their ten photographs train the
attacked model, four train the judges, one tests them. The other 20 are public, and a generator is
fitted to their photographs: principal components with the spread that these have. It has seen
nobody whom the model knows. Then the halves change places, so that there are 40 attacked people.
The prompt is the left half of a photograph that the model learned from. The attack looks for the
code that the model is surest of, among those that agree with the prompt; how much the generator
weighs was chosen on these people. Beside it stand the best guess without the model (prompt and
generator alone), the same attack without a prompt, and the same attack on a control that learned
the same photographs under shuffled names, whose gradients say nothing about a person.

`measure()` returns rows and pictures, `draw(pictures, path)` makes the figure; benchmarks/
reproduce_attacks.py calls both.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch

from attack_inversion import PEOPLE, SHOWN, SIDE, Album, album, judges, train
from attack_tables import NOTHING, share
from attack_tables import table as lines
from discreet._confidence import proportion
from discreet.attacks import Prior, as_target, invert
from harness import claim

PRIVATE = PEOPLE // 2
COMPONENTS, NOISE, WEIGHT = 150, 0.05, 1e-3
HIDDEN = np.tile(np.arange(SIDE) >= SIDE // 2, SIDE)
EPOCHS = {"softmax regression": 200, "perceptron": 60, "convolutional": 40}
CONTROL = "control: shuffled names"
ALONE, PROMPTED, UNPROMPTED = "half a photograph, no model", "model and half", "model alone"
CLIMB = {"shape": (SIDE, SIDE), "steps": 150, "restarts": 1, "learning_rate": 0.1}


class Generator(Prior):
    """Faces as a mean and directions, and perhaps the left half of a picture that is known.

    A code counts directions in units of their spread among the public faces. ``penalty`` is the
    logarithm of a density but for a constant: Gaussian in the code, and with a prompt also in its
    difference from the known half.
    """

    def __init__(self, public: Any) -> None:
        super().__init__((SIDE, SIDE), scale=1.0)
        rows = np.concatenate([public, public[:, :, ::-1]]).reshape(-1, SIDE * SIDE)
        self.mean = rows.mean(axis=0, dtype=np.float64)
        _, spread, directions = np.linalg.svd(rows - self.mean, full_matrices=False)
        self.directions = directions[:COMPONENTS] * spread[:COMPONENTS, None] / np.sqrt(len(rows))
        self.seen = self.directions[:, ~HIDDEN] / NOISE
        self.prompt: Any = None

    def knows(self, picture: Any) -> Generator:
        """Return the same generator with half of a picture as its prompt."""
        other = copy.copy(self)
        other.prompt = (picture.ravel() - self.mean)[~HIDDEN] / NOISE
        return other

    def starts(self, count: int, seed: int | None) -> Any:
        """The likeliest code without the model."""
        del seed
        code = np.zeros(COMPONENTS)
        if self.prompt is not None:
            precision = self.seen @ self.seen.T + np.eye(COMPONENTS)
            code = np.linalg.solve(precision, self.seen @ self.prompt)
        return np.tile(code, (count, 1))

    def decode(self, codes: Any) -> Any:
        return np.clip(self.mean + codes @ self.directions, 0, 1)

    def pull_back(self, codes: Any, gradient: Any) -> Any:
        del codes
        return gradient @ self.directions.T

    def penalty(self, codes: Any) -> tuple[Any, Any]:
        value, slope = (codes**2).sum(axis=1) / 2, codes
        if self.prompt is not None:
            away = codes @ self.seen - self.prompt
            value, slope = value + (away**2).sum(axis=1) / 2, slope + away @ self.seen.T
        return WEIGHT * value, WEIGHT * slope


def divide(parts: Album, first: bool) -> tuple[Album, Any]:
    """The album of the private half of the people, numbered from 0, and the public photographs."""
    private, public = [], []
    for x, y in (parts.attacked, parts.judges, parts.test):
        inside = (y < PRIVATE) == first
        private.append((x[inside], y[inside] % PRIVATE))
        public.append(x[~inside])
    return Album(*private), np.concatenate(public)


def attack(parts: Album, public: Any, seed: int) -> dict[tuple[str, str], Any]:
    """Pictures of all private people by model and by what the attacker has."""
    x, y = parts.attacked
    photographs = np.stack([x[y == person][0] for person in range(PRIVATE)])
    generator = Generator(public)
    priors = [generator.knows(picture) for picture in photographs]
    guesses = np.stack([prior.decode(prior.starts(1, None))[0] for prior in priors])
    found = {("", "photograph"): photographs, ("", ALONE): guesses}
    shuffled = x, np.random.default_rng(seed).permutation(y)
    models = {kind: train(kind, parts.attacked, epochs, seed) for kind, epochs in EPOCHS.items()}
    models[CONTROL] = train("perceptron", shuffled, 200, seed)
    for kind, model in models.items():
        plain = invert(model, classes=range(PRIVATE), prior=generator, **CLIMB)
        found[kind, UNPROMPTED] = plain.images
        found[kind, PROMPTED] = np.stack(
            [
                invert(model, classes=[person], prior=prior, **CLIMB).images[0]
                for person, prior in enumerate(priors)
            ]
        )
    return {which: made.reshape(PRIVATE, SIDE, SIDE) for which, made in found.items()}


def measure(*, seed: int = 1) -> tuple[list[dict[str, Any]], dict[Any, Any]]:
    """Return one row for each model, knowledge and judge, and the pictures of both halves."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    hits: dict[tuple[str, str, str], int] = {}
    pictures: dict[Any, list[Any]] = {}
    for first in (True, False):
        parts, public = divide(album(seed), first)
        referees = judges(parts.judges, seed)
        for (model, has), made in attack(parts, public, seed).items():
            pictures.setdefault((model, has), []).append(made)
            for name, judge in referees.items():
                flat = made.reshape(PRIVATE, -1).astype(np.float32)
                right = as_target(judge).labels(flat) == np.arange(PRIVATE)
                hits[model, has, name] = hits.get((model, has, name), 0) + int(right.sum())
    seconds = time.perf_counter() - start
    rows = [
        {
            "model": model,
            "has": has,
            "judge": judge,
            "seconds": seconds,
            "rate": proportion(count, PEOPLE).to_json(),
        }
        for (model, has, judge), count in hits.items()
    ]
    return rows, {which: np.concatenate(made) for which, made in pictures.items()}


def draw(pictures: dict[Any, Any], path: Path) -> None:
    """A column for each kind of picture, a row for each of some people."""
    kind = "perceptron"
    columns = {
        "a photograph that\nthe model learned from": pictures["", "photograph"],
        "prompt": np.where(HIDDEN.reshape(SIDE, SIDE), np.nan, pictures["", "photograph"]),
        "best guess\nwithout the model": pictures["", ALONE],
        "with the model": pictures[kind, PROMPTED],
        "model without\na prompt": pictures[kind, UNPROMPTED],
        "with a model of\nshuffled names": pictures[CONTROL, PROMPTED],
    }
    people = np.arange(0, PEOPLE, PEOPLE // SHOWN)
    figure, axes = plt.subplots(
        len(people), len(columns), figsize=(1.35 * len(columns), 1.2 * len(people) + 0.5)
    )
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.95, wspace=0.04, hspace=0.04)
    for column, (title, made) in enumerate(columns.items()):
        axes[0, column].set_title(title, fontsize=8)
        for row, person in enumerate(people):
            axes[row, column].imshow(made[person], cmap="gray", vmin=0, vmax=1)
            axes[row, column].set_axis_off()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def table(rows: list[dict[str, Any]]) -> str:
    """Recognition by each judge, with the picture above it."""
    if not rows:
        return NOTHING
    names = list(dict.fromkeys(row["judge"] for row in rows))
    rates = {(row["model"], row["has"], row["judge"]): row["rate"] for row in rows}
    shown = [
        (model or "-", has, *(share(rates[model, has, judge]) for judge in names))
        for model, has in dict.fromkeys((row["model"], row["has"]) for row in rows)
    ]
    head = ("attacked model", "the attacker has", *(f"recognised, {name}" for name in names))
    alt = "Photograph, prompt, guess without the model and reconstruction of ten people"
    return f"![{alt}](images/attacks-prior.png)\n\n{lines(head, len(names), shown)}"


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The model adds to what half a photograph and strangers say; a control adds nothing."""
    rates = {
        (row["model"], row["has"]): row["rate"] for row in rows if row["judge"] == "components"
    }
    if not rates:
        return []
    alone = rates["", ALONE]
    return [
        claim(
            "faces: half a photograph and the perceptron are recognised more often than the half",
            rates["perceptron", PROMPTED]["low"] > alone["share"],
        ),
        claim(
            "faces: a model of shuffled names adds nothing to half a photograph",
            rates[CONTROL, PROMPTED]["low"] <= alone["share"],
        ),
    ]
