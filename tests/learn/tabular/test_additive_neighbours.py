"""Neighbours under recorded noise: what an additive fit releases about one row or person."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import PrivateAdditiveClassifier, PrivateAdditiveRegressor, _binning
from discreet.learn import _additive as additive
from discreet.learn import _exact_descent as descent
from discreet.privacy import GDP

# Numbers in the first and third column, one of three labels in the second; the first row is a
# corner, where every feature is as large as it can be. Odd records come last.
ROWS = np.array(
    [
        [1.0, 2.0, 1.0],
        [0.0, 0.0, -1.0],
        [0.3, 1.0, 0.9],
        [0.3, 1.0, 0.2],
        [0.7, 2.0, -0.4],
        [0.71, 0.0, 1.0],
        [np.nan, 1.0, np.inf],
        [-1e300, np.nan, np.nan],
        [np.nan, 77.0, -np.inf],
    ]
)
FACTS = {"bounds": ([0.0, 0.0, -1.0], [1.0, 2.0, 1.0]), "categories": [0, 3, 0], "max_bins": 8}
FACTS |= {"epsilon": 2.0, "delta": 1e-5, "expected_rows": 600, "insecure_seed": 1}


class Recorder:
    """Stands where noise is drawn: answers again what it answered to the first data set."""

    def __init__(self):
        self.exact, self.mu, self.answers = [], [], []
        self.noise = np.random.default_rng(3)

    def __call__(self, exact, *, sensitivity, stddev, relation, source):
        del relation, source
        at = len(self.exact)
        self.exact.append((np.array(exact, dtype=object), float(sensitivity)))
        self.mu.append(float(sensitivity) / stddev)
        if at == len(self.answers):
            self.answers.append(exact + np.rint(self.noise.normal(0.0, stddev, exact.shape)))
        return SimpleNamespace(value=self.answers[at])

    def again(self):
        """Return what was seen until now, and start with the first release again."""
        seen, self.exact = self.exact, []
        return seen


def fit(table, targets, persons=None, **more):
    kind = more.pop("kind", PrivateAdditiveClassifier)
    declared = {"classes": more.pop("classes", ["a", "b"])}
    if kind is PrivateAdditiveRegressor:
        declared = {"target_bounds": (0.0, 1.0)}
    if persons is not None:
        more = {"rows_per_person": 3, **more}
    model = kind(**{**FACTS, **declared, **more})
    return model.fit(table, targets, persons=persons)


def furthest(monkeypatch, data, neighbours, **more):
    """Return how far each kind of release moves at most, in shares of its sensitivity."""
    recorder = Recorder()
    for module in (additive, descent):
        monkeypatch.setattr(module, "gaussian_integers", recorder)
    first = fit(*data, **more)
    seen = recorder.again()
    spent = math.sqrt(sum(mu**2 for mu in recorder.mu))
    stated = first.certificate_.epsilon
    drawn = GDP(spent, first.plan_.descent.relation).epsilon(delta=1e-5)
    assert 0.999 * stated < drawn <= stated, "the loss is that of the noise that was drawn"
    moved = np.zeros(len(seen))
    for neighbour in neighbours:
        other = fit(*neighbour, **more)
        again = recorder.again()
        assert [one[1] for one in again] == [one[1] for one in seen]
        shifts = [
            math.sqrt(sum(int(step) ** 2 for step in (a - b).ravel())) / most
            for (a, most), (b, _) in zip(seen, again, strict=True)
        ]
        moved = np.maximum(moved, shifts)
        # With the same noisy sums the models are the same: nothing else was read.
        assert other.certificate_.plan == first.certificate_.plan
        assert other.intercept_.tobytes() == first.intercept_.tobytes()
        for name, shape in first.shapes_.items():
            for part in ("bins", "values", "mass"):
                twin = getattr(other.shapes_[name], part)
                assert getattr(shape, part).tobytes() == twin.tobytes()
    assert moved.max() <= 1.0
    return moved


def without(data, at):
    return tuple(None if part is None else np.delete(part, at, axis=0) for part in data)


def labels(kind):
    if kind == "numbers":
        return np.array([0.0, 1.0, 0.5, 0.1, 9.0, 1.0, np.nan, np.inf, 0.2])
    third = "c" if kind == "three classes" else "b"
    return np.array(["a", "b", "a", "b", third, "a", "b", "never declared", None], dtype=object)


KINDS = {
    "two classes": {},
    "three classes": {"classes": ["a", "b", "c"]},
    "numbers": {"kind": PrivateAdditiveRegressor},
    "uniform": {"cuts": "uniform"},
    "wide": {"categories": [0, 1200, 0]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_moves_a_release_further_than_its_noise_covers(monkeypatch, kind):
    data = (ROWS, labels(kind))
    one_less = [without(data, at) for at in ((0, 6) if kind == "wide" else range(len(ROWS)))]
    moved = furthest(monkeypatch, data, one_less, **KINDS[kind])
    assert moved[2:].max() > 0.9, "clipped gradients come close to the bound"
    if kind == "two classes":
        assert moved[0] > 0.999
        assert moved[1] > 0.999, "the corner attains the bounds of counts and moments"


@pytest.mark.parametrize("kind", ["two classes", "numbers"])
def test_no_replaced_row_moves_a_release_further(monkeypatch, kind):
    targets = labels(kind)
    data = (ROWS[:6], targets[:6])
    swapped = []
    for at in (0, 1):
        for other in range(1, len(ROWS)):
            for label in targets[:2]:
                table, marks = ROWS[:6].copy(), targets[:6].copy()
                table[at], marks[at] = ROWS[other], label
                swapped.append((table, marks))
    moved = furthest(monkeypatch, data, swapped, relation="replace", **KINDS[kind])
    assert moved[0] > 0.7, "other cells in both columns: the root of a half"
    assert moved[2:].max() > 0.9, "an opposite gradient moves the sum twice as far"


@pytest.mark.parametrize("kind", ["two classes", "three classes", "numbers"])
def test_no_person_moves_a_release_further(monkeypatch, kind):
    names = np.array(["p", "p", "p", "p", "q", "r", "r", "q", ""])
    data = (ROWS, labels(kind), names)
    gone = [without(data, np.flatnonzero(names == name)) for name in ("p", "q", "r", "")]
    same = (ROWS[[0, 0, 0, 5]], labels(kind)[[1, 1, 1, 5]], np.array(["s", "s", "s", "t"]))
    assert furthest(monkeypatch, data, gone, **KINDS[kind]).max() > 0.9
    equal = furthest(monkeypatch, same, [without(same, [0, 1, 2])], **KINDS[kind])
    assert equal[0] > 0.999, "a person counts once in the bins"
    assert equal[1] > 0.99
    assert equal[2:].max() > 0.9


GRAM, COUNT, MASSES = _binning.BinnedRows.gram, additive.cell_counts, additive._masses
SIZES = []


def double_counts(cells, codes):
    return 2 * COUNT(cells, codes)


def rows_that_are_not_shared_out(self):
    owned, self._owned = self._owned, None
    found = GRAM(self)
    self._owned = owned
    return found


def codes_that_are_counted(cells, codes):
    SIZES.append(len(codes))
    return COUNT(cells, codes)


def masses_by_the_true_rows(*args):
    return [mass * SIZES[-1] for mass in MASSES(*args)]


def no_clipping(self, rest):
    return np.zeros(len(self._ranks[0]))


def each_row_alone(self, rest):
    found = np.zeros(len(self._ranks[0]))
    for rank in self._ranks:
        there = rank >= 0
        found[there] = np.maximum(found[there], np.abs(rest[rank[there], 0]))
    return found * self._lengths[0]


FAULTS = [
    [(additive, "cell_counts", double_counts)],
    [(_binning.BinnedRows, "gram", rows_that_are_not_shared_out)],
    [(_binning.BinnedRows, "_unit_lengths", no_clipping)],
    [(_binning.BinnedRows, "_unit_lengths", each_row_alone)],
    [
        (additive, "cell_counts", codes_that_are_counted),
        (additive, "_masses", masses_by_the_true_rows),
    ],
]


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults[-1][2].__name__)
def test_faults_are_seen(monkeypatch, faults):
    names = np.array(["p", "p", "p", "q", "q", "r", "s", "t", "u"])
    data = (ROWS[[0, 0, 0, 1, 2, 3, 4, 5, 6]], np.array(list("bbbaabaab")), names)
    gone = [without(data, [0, 1, 2])]
    furthest(monkeypatch, data, gone)
    for fault in faults:
        monkeypatch.setattr(*fault)
    with pytest.raises(AssertionError):
        furthest(monkeypatch, data, gone)


def test_persons_are_not_replaced():
    names = np.array(list("aabbccdde"))
    data = (ROWS, labels("two classes"))
    with pytest.raises(NotApplicable, match="add_remove"):
        fit(*data, names, relation="replace")
    with pytest.raises(InvalidValue, match="persons"):
        fit(*data, relation="replace", rows_per_person=3)
