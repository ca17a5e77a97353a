"""The tables of benchmarks/learners.py, each with bounds that a user could have declared.

Adult comes from $DISCREET_DATA, or ../shared/data beside the project; the others ship with
scikit-learn. Features are scaled to [-1, 1] by the bounds, for every contestant alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from discreet.data import Categorical, Encoding, Integer, Schema, adult, mnist, read_table
from harness import use_shared_data

# Round numbers above what the description of the breast cancer data lists as maxima.
CANCER_MOST = [40, 40, 250, 3000, 0.3, 0.5, 0.6, 0.3, 0.5, 0.15]
CANCER_MOST += [5, 8, 40, 800, 0.05, 0.2, 0.5, 0.1, 0.1, 0.05]
CANCER_MOST += [50, 60, 350, 6000, 0.4, 1.5, 1.5, 0.4, 0.8, 0.3]

ADULT_BOUNDS = {
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 4_500),
    "hours-per-week": (1, 99),
}


# What the description of Adult lists, in alphabetical order; a question mark is missing.
ADULT_CATEGORIES = {
    "workclass": (
        "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov "
        "Without-pay"
    ),
    "education": (
        "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate "
        "HS-grad Masters Preschool Prof-school Some-college"
    ),
    "marital-status": (
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married "
        "Separated Widowed"
    ),
    "occupation": (
        "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing "
        "Handlers-cleaners Machine-op-inspct Other-service Priv-house-serv Prof-specialty "
        "Protective-serv Sales Tech-support Transport-moving"
    ),
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "native-country": (
        "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England "
        "France Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India "
        "Iran Ireland Italy Jamaica Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) "
        "Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand "
        "Trinadad&Tobago United-States Vietnam Yugoslavia"
    ),
}


@dataclass(frozen=True)
class Task:
    """One table for one kind of learner; ``split(seed)`` gives train and test."""

    name: str
    kind: str
    features: Any
    targets: Any
    norm: float
    classes: int = 0
    target_bounds: tuple[float, float] = (-1.0, 1.0)
    fixed_train: int | None = None
    lowest: Any = -1.0
    labels: Any = None
    highest: Any = 1.0

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The public bounds of each feature: of a category, which is there or not, 0 and 1."""
        width = self.features.shape[1]
        ends = (np.broadcast_to(end, (width,)) for end in (self.lowest, self.highest))
        lower, upper = (end.astype(float) for end in ends)
        return lower, upper

    def split(self, seed: int) -> tuple[Any, Any, Any, Any]:
        """Train and test: as published where there is such a division, else 3:1 at random."""
        count = len(self.targets)
        order = np.arange(count)
        first = self.fixed_train
        if first is None:
            order, first = np.random.default_rng(seed).permutation(count), count * 3 // 4
        a, b = order[:first], order[first:]
        return self.features[a], self.targets[a], self.features[b], self.targets[b]


def adult_schema(columns: dict[str, Any], rows: int = 30_000) -> Schema:
    """The schema of Adult, with the categories that its description lists (adult.names)."""
    declared: dict[str, Any] = {}
    for name in columns:
        if name in ADULT_BOUNDS:
            declared[name] = Integer(*ADULT_BOUNDS[name])
        elif name == "income":
            declared[name] = Categorical(["<=50K", ">50K"], other="<=50K")
        else:
            declared[name] = Categorical(ADULT_CATEGORIES[name].split())
    return Schema(declared, target="income", expected_rows=rows)


def census() -> Any:
    """Adult, from this machine."""
    use_shared_data()
    return adult()


def small_digits() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """MNIST at half its size, for small networks: 196 numbers in [0, 1] for each image."""

    def halved(images: Any) -> Any:
        blocks = images.reshape(len(images), 14, 2, 14, 2)
        return blocks.mean(axis=(2, 4)).reshape(len(images), 196) / 255.0

    digits = mnist()
    return (
        (halved(digits.x_train), digits.y_train.astype(np.int64)),
        (halved(digits.x_test), digits.y_test.astype(np.int64)),
    )


def tasks() -> Iterator[Task]:
    """All tables of the benchmark."""
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

    data = census()
    schema = adult_schema(data.train)
    encoding = Encoding(schema)
    parts = [read_table(part, schema) for part in (data.train, data.test)]
    x = np.concatenate([encoding.features(part) for part in parts])
    y = np.concatenate([encoding.target(part) for part in parts])
    first = parts[0].rows
    yield Task("adult", "logistic", x, y, encoding.norm_bound, 2, fixed_train=first)
    yield Task("adult", "mlp", x, y, encoding.norm_bound, 2, fixed_train=first)
    numeric = [encoding.names.index(name) for name in ADULT_BOUNDS]
    yield Task("adult", "naive-bayes", x[:, numeric], y, 6**0.5, 2, fixed_train=first)
    age = encoding.names.index("age")
    rest = np.delete(x, age, axis=1)
    is_number = np.isin(encoding.names, list(ADULT_BOUNDS))
    lowest = np.delete(np.where(is_number, -1.0, 0.0), age)
    target = x[:, age]
    yield Task("adult", "linear", rest, target, 13**0.5, fixed_train=first, lowest=lowest)
    cancer, ill = load_breast_cancer(return_X_y=True)
    cancer = np.clip(2.0 * cancer / np.array(CANCER_MOST) - 1.0, -1.0, 1.0)
    pixels, digit = load_digits(return_X_y=True)
    for kind in ("logistic", "naive-bayes"):
        yield Task("breast cancer", kind, cancer, ill, 30**0.5, 2)
        yield Task("digits", kind, pixels / 8.0 - 1.0, digit, 8.0, 10)
    codes = np.concatenate([encoding.codes(part) for part in parts])
    kinds = schema.features.values()
    sizes = [len(one.labels) if isinstance(one, Categorical) else 0 for one in kinds]
    ends = [
        (0, size - 1) if size else ADULT_BOUNDS[name]
        for name, size in zip(schema.features, sizes, strict=True)
    ]
    low, high = (np.array(end, dtype=float) for end in zip(*ends, strict=True))
    shared = {"fixed_train": first, "lowest": low, "highest": high, "labels": sizes}
    yield Task("adult", "forest", codes, y, 1.0, 2, **shared)
    yield Task("breast cancer", "forest", cancer, ill, 1.0, 2)
    yield Task("digits", "forest", pixels / 8.0 - 1.0, digit, 1.0, 10)
    measures, progress = load_diabetes(return_X_y=True)
    measures = np.clip(measures * 5.0, -1.0, 1.0)
    progress = np.clip(2.0 * (progress - 25.0) / (346.0 - 25.0) - 1.0, -1.0, 1.0)
    yield Task("diabetes", "linear", measures, progress, 10**0.5)


def person_tasks() -> Iterator[tuple[str, Any, Any, Any]]:
    """Made-up tables of 4,000 persons with three rows each: name, rows, scores and persons.

    In the first the rows of a person are alike, in the second they are not.
    """
    rng = np.random.default_rng(20)
    persons = np.repeat(np.arange(4000), 3)
    for name, alike in (("rows alike", 0.9), ("rows apart", 0.0)):
        own = rng.uniform(-1.0, 1.0, (4000, 10))[persons]
        x = alike * own + (1.0 - alike) * rng.uniform(-1.0, 1.0, (12_000, 10))
        yield name, x, x @ rng.normal(0.0, 1.0, 10) + rng.logistic(0.0, 0.5, 12_000), persons
