"""Models that tests name as ``attacked_models:name``; this directory is put on the path."""

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

from discreet.attacks import as_target

CLASSES = 3


def people(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    records = rng.normal(size=(count, 5))
    records[:, 0] = rng.integers(0, 2, count)
    return records, rng.integers(0, CLASSES, count)


def train(records: np.ndarray, labels: np.ndarray, seed: int) -> DecisionTreeClassifier:
    # Labels are noise: whoever learns them has memorised them.
    return DecisionTreeClassifier(min_samples_leaf=2, random_state=seed).fit(records, labels)


def memorising() -> DecisionTreeClassifier:
    return train(*people(200, 1), 0)


def memorising_texts() -> DecisionTreeClassifier:
    records, labels = people(200, 1)
    return train(records, np.array(["1", "2", "3"])[labels], 0)


def memorising_signs() -> DecisionTreeClassifier:
    records, labels = people(200, 1)
    return train(records, labels - 1, 0)


def memorising_frame() -> DecisionTreeClassifier:
    records, labels = people(200, 1)
    return train(pd.DataFrame(records, columns=list("abcde")), labels, 0)


def logit_module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(5, CLASSES, dtype=torch.float64)


def softmax_module() -> torch.nn.Module:
    return torch.nn.Sequential(logit_module(), torch.nn.Softmax(dim=1))


def train_softmax(records: np.ndarray, labels: np.ndarray, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    inner = torch.nn.Linear(5, CLASSES, dtype=torch.float64)
    return torch.nn.Sequential(inner, torch.nn.Softmax(dim=1))


class OnlyLabels:
    def __init__(self, inner: DecisionTreeClassifier) -> None:
        self._inner = inner
        self.classes_ = inner.classes_

    def predict(self, records: np.ndarray) -> np.ndarray:
        return self._inner.predict(records)


def labels_only() -> OnlyLabels:
    return OnlyLabels(memorising())


def tell_share(records: np.ndarray, labels: np.ndarray) -> object:
    share = float(records[:, 0].mean())
    return as_target(_Constant(share), output="probabilities")


class _Constant:
    def __init__(self, share: float) -> None:
        self._share = share

    def __call__(self, records: np.ndarray) -> np.ndarray:
        return np.full(len(records), self._share)


def linear() -> object:
    weights = np.linspace(-1, 1, 2 * 16).reshape(2, 16)
    return as_target(
        lambda x: np.asarray(x).reshape(len(x), -1) @ weights.T, output="logits", classes=2
    )


def judge() -> object:
    weights = np.linspace(-2, 1, 2 * 16).reshape(2, 16)
    return as_target(
        lambda x: (np.asarray(x).reshape(len(x), -1) - 0.5) @ weights.T,
        output="logits",
        classes=2,
    )


NUMBER = 3


def digits_network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    return torch.nn.Sequential(torch.nn.Flatten(), *layers).double()


WORDS = np.array([f"word{place}" for place in range(200)])


def reviews(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Twelve words at random each, and a mood that has nothing to do with them."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, 12)) for _ in range(count)]
    return np.array(texts, dtype=object), rng.integers(0, 2, count)


def train_reviews(texts: np.ndarray, moods: np.ndarray) -> object:
    return make_pipeline(CountVectorizer(), LogisticRegression(C=100)).fit(texts, moods)


def train_smooth_reviews(texts: np.ndarray, moods: np.ndarray) -> object:
    return make_pipeline(CountVectorizer(), LogisticRegression(C=1e-3)).fit(texts, moods)


def reviewer() -> object:
    return train_reviews(*reviews(150, 1))


def counts() -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """The words of reviews 1 and 2, counted."""
    first, second = reviews(150, 1)[0], reviews(150, 2)[0]
    counter = CountVectorizer().fit(first)
    return counter.transform(first), counter.transform(second)


def counter() -> object:
    return LogisticRegression(C=100).fit(counts()[0], reviews(150, 1)[1])


def prices(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    records = rng.normal(size=(count, 3))
    return records, records[:, 0] + rng.normal(size=count)


def train_prices(records: np.ndarray, values: np.ndarray, seed: int) -> object:
    return RandomForestRegressor(20, random_state=seed).fit(records, values)


def appraiser() -> object:
    return train_prices(*prices(150, 1), 0)


def stranger() -> object:
    """It was trained on other records: nothing about these can be found in it."""
    return train_prices(*prices(150, 99), 0)
