"""Who gets the seed (S28): never a setting of the model."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from discreet.attacks import on_records, property_sets, train_shadows
from discreet.attacks._training import SeededTraining


class Called:
    def __call__(self, indices: object, width: float = 1.0, *, seed: int = 0) -> object:
        return width, seed


def star(*given: object) -> object:
    return given[1:]


@functools.wraps(Called().__call__)
def wrapped(*given: object, **named: object) -> object:
    return (*given[1:], *named.items())


def seeded(indices: object, seed: int) -> object:
    return seed


@functools.wraps(seeded)
def handed_on(*given: object) -> object:
    return seeded(*given)


CASES: tuple[tuple[Callable[..., Any], object], ...] = (
    (lambda i: None, None),
    (lambda i, seed: seed, 7),
    (lambda i, seed=0: seed, 7),
    (lambda i, *, seed: seed, 7),
    (lambda i, *, seed=0: seed, 7),
    (lambda i, width=1.0, seed=0: (width, seed), (1.0, 7)),
    (lambda i, width=1.0, *, seed=0: (width, seed), (1.0, 7)),
    (lambda i, start: start, 7),
    (lambda i, start, /: start, 7),
    (lambda i, seed=0, /: seed, 7),
    (lambda i, width=1.0: width, 1.0),
    (lambda i, width=1.0, start=0: (width, start), (1.0, 0)),
    (lambda i, *, width=1.0: width, 1.0),
    (lambda i, **options: options, {}),
    (lambda seed: seed, "data"),
    (Called(), (1.0, 7)),
    (star, ()),
    (wrapped, (("seed", 7),)),
    (handed_on, 7),
    (functools.partial(seeded, seed=3), 3),
    (len, 4),
)


@pytest.mark.parametrize(("train", "wanted"), CASES)
def test_who_gets_the_seed(train: Callable[..., Any], wanted: object) -> None:
    assert SeededTraining(train)("data", seed=7) == wanted


def test_behind_records_and_labels() -> None:
    given = on_records(lambda x, y, width=1.0: width, np.arange(3), np.arange(3))
    assert given(np.array([0]), 7) == 1.0
    given = on_records(lambda x, y, width=1.0, seed=0: (width, seed), np.arange(3), np.arange(3))
    assert given(np.array([0]), 7) == (1.0, 7)
    given = on_records(lambda x, y, start: (len(x), start), np.arange(3), np.arange(3))
    assert given(np.array([0]), 7) == (1, 7)


def test_shadow_models_of_properties() -> None:
    sets = property_sets(np.arange(40) % 2 == 0, shares=(0.2, 0.8), size=10, sets=3, seed=1)
    assert train_shadows(lambda rows, width=1.0: width, sets) == [1.0] * 3
    found = train_shadows(lambda rows, width=1.0, seed=0: (width, seed), sets)
    assert [one[0] for one in found] == [1.0] * 3
    assert len({one[1] for one in found} - {0}) == 3
