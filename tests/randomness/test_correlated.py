"""Correlated noise: a slow twin, its covariance, resuming, bounded memory, and planted bugs."""

import os
import pickle

import numpy as np
import pytest

from discreet.errors import InvalidValue, NotApplicable
from discreet.randomness import (
    CorrelatedStream,
    InsecureSeededSource,
    KeyedSource,
    NormalStream,
    source,
)

KEY, LATER = bytes(range(32)), bytes(range(1, 33))
BANDS = (0.7, 0.5, -0.3, 0.2)


def keyed(key=KEY):
    return KeyedSource(key, provenance={"randomness": "a test"})


def matrix(coefficients, steps):
    wide = np.append(coefficients, np.zeros(steps))
    return np.array([[wide[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


def twin(keys, steps, size, *, inverse):
    """C^-1 Z by a whole matrix: every row of Z from the key of its step."""
    z = np.empty((steps, size))
    for step in range(steps):
        key = [key for start, key in keys if start <= step][-1]
        z[step] = NormalStream(source=key.derive("step", step)).array(size)
    whole = matrix(BANDS, steps)
    return whole @ z if inverse else np.linalg.solve(whole, z)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("keys", [[(0, KEY)], [(0, KEY), (4, LATER)]])
def test_rows_are_those_of_the_matrix(inverse, keys):
    given = [(start, keyed(key)) for start, key in keys]
    expected = twin(given, 9, 11, inverse=inverse)
    noise = CorrelatedStream(BANDS, inverse=inverse, keys=given)
    rows = [noise.array(step, 11, stddev=3.0) / 3.0 for step in range(9)]
    np.testing.assert_allclose(rows, expected, rtol=1e-10, atol=1e-12)
    for start in (1, 3, 4, 6, 8):  # by number alone, as a resumed run does
        again = CorrelatedStream(BANDS, inverse=inverse, keys=given)
        np.testing.assert_allclose(again.array(start, 11), expected[start], rtol=1e-9, atol=1e-11)
    skipping = CorrelatedStream(BANDS, inverse=inverse, keys=given)
    for step in (0, 2, 7):
        np.testing.assert_allclose(skipping.array(step, 11), expected[step], rtol=1e-9, atol=1e-11)


def test_single_precision_is_as_if_the_normals_had_been_rounded():
    """C W is Z but for last digits, after many steps too: errors do not build up."""
    noise = CorrelatedStream(BANDS, keys=[(0, keyed())])
    rows = np.array([noise.array(step, 50, dtype=np.float32) for step in range(300)])
    back = matrix(BANDS, 300) @ rows.astype(np.float64)
    z = np.array(
        [
            NormalStream(source=keyed().derive("step", step)).array(50, dtype=np.float32)
            for step in range(300)
        ]
    )
    assert np.abs(back - z).max() < 20 * 2.0**-24 * np.abs(rows).max()


def correlations(make_row, steps=6, size=30_000):
    """The largest of all z-scores of the entries of the covariance of C W, against the unit.

    Coordinates are independent, so entries are normal with deviations (1 + [i = j]) / size, by the
    central limit theorem; 21 entries beyond 7 deviations have a chance below 1e-10.
    """
    rows = np.array([make_row(step, size) for step in range(steps)])
    white = matrix(BANDS, steps) @ rows
    covariance = white @ white.T / size
    scores = np.abs(covariance - np.eye(steps)) * np.sqrt(size / (1.0 + np.eye(steps)))
    return float(scores.max())


def test_the_covariance_is_that_of_the_strategy():
    key = KeyedSource(source().read(32), provenance={})
    assert correlations(CorrelatedStream(BANDS, keys=[(0, key)]).array) < 7.0
    # Planted bugs: a wrong band, no memory, the same normals in every step.
    wrong = CorrelatedStream((*BANDS[:3], 0.25), keys=[(0, key)])
    assert correlations(wrong.array) > 7.0
    assert correlations(CorrelatedStream(BANDS[:1], keys=[(0, key)]).array) > 7.0
    same = CorrelatedStream(BANDS, keys=[(step, key) for step in range(6)])
    same._keys = [(step, _Stuck(key)) for step, key in same._keys]
    assert correlations(same.array) > 7.0


class _Stuck:
    """A key that forgets the number of the step."""

    def __init__(self, key):
        self.derive = lambda *_: key.derive("step", 0)


def test_memory_is_bounded_and_noise_is_used_once():
    noise = CorrelatedStream(BANDS, keys=[(0, keyed())])
    first, second = np.empty(7, np.float32), np.empty(5)
    for step in range(50):
        noise.fill(step, [first, second])
    assert [past.shape for past in noise._past] == [(3, 7), (3, 5)]
    with pytest.raises(InvalidValue, match="used once"):
        noise.fill(49, [first, second])
    with pytest.raises(InvalidValue, match="same lengths"):
        noise.fill(50, [first])
    with pytest.raises(NotApplicable, match="copied"):
        pickle.dumps(noise)
    one = CorrelatedStream([2.0], keys=[(0, keyed())])
    expected = NormalStream(source=keyed().derive("step", 0)).array(4) / 2.0
    np.testing.assert_array_equal(one.array(0, 4), expected)
    assert "4 bands" in noise.provenance["stream"]
    assert noise.provenance["randomness"] == "a test"


def test_refusals():
    for bad in ([], [0.0, 1.0], [-1.0]):
        with pytest.raises(InvalidValue, match="coefficients"):
            CorrelatedStream(bad, keys=[(0, keyed())])
    for keys in ([], [(1, keyed())], [(0, keyed()), (5, keyed()), (3, keyed())]):
        with pytest.raises(InvalidValue, match="keys"):
            CorrelatedStream([1.0], keys=keys)
    for key in (b"short", "0" * 32):
        with pytest.raises(InvalidValue, match="key"):
            KeyedSource(key, provenance={})


def test_a_keyed_source_is_secret_deterministic_and_its_own():
    one = keyed()
    assert one.read(16) != one.read(16)
    assert keyed().read(16) == keyed().read(16)
    assert keyed().derive("a").read(16) != keyed().derive("b").read(16)
    assert keyed().derive("a", 1).read(16) != keyed(LATER).derive("a", 1).read(16)
    assert KEY.hex() not in repr(one)
    with pytest.raises(NotApplicable, match="pickled"):
        pickle.dumps(one)
    seeded = InsecureSeededSource(insecure_seed=7)
    assert seeded.read(4).hex() == "698b7107"  # as it ever was


def test_a_forked_child_cannot_make_the_same_noise():
    noise = CorrelatedStream(BANDS, keys=[(0, keyed())])
    noise.array(0, 3)
    child = os.fork()
    if child == 0:
        try:
            one = keyed()
            noise._keys[0][1].read(1)
        except NotApplicable:
            os._exit(0 if one.read(1) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
