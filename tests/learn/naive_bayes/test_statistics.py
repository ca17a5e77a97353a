"""S20: exact statistics against slow twins, and the sensitivities that noise is set by."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.errors import InvalidValue
from discreet.learn._noisy_counts import (
    CategoryCounts,
    SoftBins,
    bin_moments,
    bits_for,
    pooled_counts,
    split_tables,
)

BITS = 8
UNIT = 1 << (2 * BITS)
LOWER, UPPER = np.array([0.0, -5.0]), np.array([1.0, 15.0])

numbers = st.one_of(
    st.floats(-20.0, 20.0), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0])
)
records = st.lists(st.tuples(st.integers(-1, 1), numbers, numbers), max_size=12)


def soft_bins(rows):
    bins = SoftBins(2, LOWER, UPPER, bits=BITS)
    codes = np.array([row[0] for row in rows], dtype=np.int64)
    bins.add(codes, np.array([row[1:] for row in rows], dtype=float).reshape(len(rows), 2))
    return bins.cells()


def slow_bins(rows):
    """One record at a time, in rationals."""
    cells = np.zeros((2, 2, 3), dtype=object)
    steps = 1 << BITS
    for code, *values in rows:
        for j, value in enumerate(values):
            if math.isnan(value):
                m = steps // 2
            elif math.isinf(value):
                m = steps if value > 0 else 0
            else:
                share = (Fraction(value) - Fraction(LOWER[j])) / Fraction(UPPER[j] - LOWER[j])
                m = min(max(math.floor(share * steps + Fraction(1, 2)), 0), steps)
            if code >= 0:
                cells[code, j] += [(steps - m) ** 2, 2 * m * (steps - m), m * m]
    return cells


@given(records)
def test_soft_bins_equal_the_slow_twin_up_to_one_rounding_step(rows):
    fast, slow = soft_bins(rows), slow_bins(rows)
    # A value within rounding error of a half step may go to either side of it.
    assert np.all(np.abs(fast - slow) <= 2 * (1 << BITS) * len(rows))
    grid = [(c, round(a * 16) / 16, b) for c, a, b in rows if abs(a) < 20 and abs(b) < 20]
    grid = [(c, a, -5.0 + 20.0 * round(b * 4) / 256) for c, a, b in grid]
    assert np.array_equal(soft_bins(grid), slow_bins(grid))


@given(records, st.integers(0, 12))
def test_soft_bins_do_not_depend_on_batches_or_order(rows, cut):
    bins = SoftBins(2, LOWER, UPPER, bits=BITS)
    for part in (rows[cut:][::-1], rows[:cut]):
        codes = np.array([row[0] for row in part], dtype=np.int64)
        bins.add(codes, np.array([row[1:] for row in part], dtype=float).reshape(len(part), 2))
    assert np.array_equal(bins.cells(), soft_bins(rows))


@given(records, st.tuples(st.integers(-1, 1), numbers, numbers))
def test_one_record_adds_a_unit_to_its_own_class_in_every_table(rows, record):
    change = soft_bins([*rows, record]) - soft_bins(rows)
    assert np.all(change >= 0)
    for code in range(2):
        expected = UNIT if record[0] == code else 0
        assert np.all(change[code].sum(axis=1) == expected)


@given(
    st.tuples(st.integers(0, 1), numbers, numbers), st.tuples(st.integers(0, 1), numbers, numbers)
)
def test_a_replaced_record_moves_each_table_by_a_unit_up_and_a_unit_down(first, second):
    change = soft_bins([first]) - soft_bins([second])
    for j in range(2):
        up = np.maximum(change[:, j], 0).sum()
        down = np.maximum(-change[:, j], 0).sum()
        assert up <= UNIT
        assert down <= UNIT
        assert int((change[:, j] ** 2).sum()) <= 2 * UNIT**2


def test_the_largest_changes_are_reached():
    ends = [(code, a, b) for code in (0, 1) for a in (0.0, 1.0) for b in (-5.0, 15.0)]
    changes = [soft_bins([a]) - soft_bins([b]) for a, b in itertools.product(ends, ends)]
    assert max(int(np.abs(change).sum()) for change in changes) == 2 * 2 * UNIT
    assert max(int((change**2).sum()) for change in changes) == 2 * 2 * UNIT**2


def test_moments_without_noise_are_those_of_the_data():
    rng = np.random.default_rng(1)
    values = np.clip(rng.normal([0.4, 3.0], [0.1, 2.0], size=(5000, 2)), LOWER, UPPER)
    bins = SoftBins(1, LOWER, UPPER, bits=16)
    bins.add(np.zeros(5000, dtype=np.int64), values)
    shares = bins.cells().astype(float) / 2.0**32
    counts = pooled_counts(shares.sum(axis=2).T, np.full(2, 3.0), stddev=0.0)
    means, variances = bin_moments(shares, counts, stddev=0.0, smoothing=1e-9)
    width = UPPER - LOWER
    assert counts == pytest.approx([5000.0])
    assert LOWER + means[0] * width == pytest.approx(values.mean(axis=0), abs=1e-4)
    assert variances[0] * width**2 == pytest.approx(values.var(axis=0), rel=1e-4)


def test_many_rows_stay_exact():
    bins = SoftBins(1, np.zeros(1), np.ones(1), bits=16)
    for _ in range(3):
        bins.add(np.zeros(200_000, dtype=np.int64), np.ones((200_000, 1)))
    assert bins.cells()[0, 0].tolist() == [0, 0, 600_000 * 2**32]


def test_bits_shrink_so_that_noise_fits_and_refuse_when_they_cannot():
    for tables, epsilon in [(1, 1e6), (40, 1.0), (2000, 1e-4), (10, 1e-9)]:
        bits = bits_for(tables, epsilon)
        assert 6 <= bits <= 16
        assert tables / epsilon * 4.0**bits < 2.0**51
    with pytest.raises(InvalidValue, match=r"epsilon = 1e-15"):
        bits_for(10, 1e-15)


values = st.one_of(st.integers(-2, 5), st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))


@given(st.lists(st.tuples(st.integers(-1, 2), values, values), max_size=15))
def test_category_counts_equal_a_counter(rows):
    counts = CategoryCounts(3, [3, 2])
    codes = np.array([row[0] for row in rows], dtype=np.int64)
    columns = [np.array([row[j] for row in rows], dtype=float) for j in (1, 2)]
    counts.add(codes, columns)
    tables = split_tables(counts.cells().astype(float), 3, [3, 2])
    for j, (table, size) in enumerate(zip(tables, (3, 2), strict=True)):
        seen = Counter((row[0], row[j + 1]) for row in rows)
        for code, value in itertools.product(range(3), range(size)):
            assert table[code, value] == seen[code, value]


def test_sensitivity_of_counts_by_enumeration():
    domain = list(itertools.product(range(2), range(3), range(2)))

    def cells(record):
        counts = CategoryCounts(2, [3, 2])
        counts.add(np.array([record[0]]), [np.array([record[1]]), np.array([record[2]])])
        return counts.cells()

    added = {int(np.abs(cells(record)).sum()) for record in domain}
    replaced = [cells(a) - cells(b) for a, b in itertools.product(domain, domain)]
    assert added == {2}  # D
    assert max(int(np.abs(change).sum()) for change in replaced) == 4  # 2 D
    assert max(int((change**2).sum()) for change in replaced) == 4  # sqrt(2 D) squared
