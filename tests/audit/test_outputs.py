"""Outputs of every kind as rows, views of them, and the search for events."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.audit import Raised
from discreet.audit._events import (
    MarkedCells,
    OrderedCells,
    ceiling,
    epsilon_lower_bounds,
    find_event,
)
from discreet.audit._outputs import LONGEST, lay_out, widest
from discreet.audit._views import finest_bit, views
from discreet.mechanisms import Release
from discreet.privacy import PureDP

elements = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=3),
    st.fractions(max_denominator=9),
    st.just(Raised("ValueError", "x")),
)
outputs = st.one_of(elements, st.lists(elements, max_size=5), st.dictionaries(elements, elements))


def same(first: Any, second: Any) -> bool:
    """Whether two rows are equal, NaN being equal to itself."""
    return (
        np.array_equal(first.numbers, second.numbers, equal_nan=True)
        and np.array_equal(first.marks, second.marks)
        and np.array_equal(first.lengths, second.lengths)
    )


@settings(max_examples=40)
@given(st.lists(outputs, min_size=1, max_size=6), st.integers(1, 8))
def test_a_row_depends_on_its_output_alone(raw: list[Any], width: int) -> None:
    """So a set of rows is a set of outputs, whatever else was drawn."""
    together = lay_out(raw, width=width)
    for i, output in enumerate(raw):
        assert same(together[i : i + 1], lay_out([output], width=width))


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, -2.0, math.nan, math.inf]),
        np.array([[1, 2], [3, 4]]),
        np.array([True, False]),
        np.array([[0.5, math.nan], [math.nan, -math.inf]]),
    ],
)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_arrays_and_lists_are_laid_out_alike(array: np.ndarray, width: int) -> None:
    assert same(lay_out(array, width=width), lay_out([*map(list_of, array)], width=width))


def list_of(row: Any) -> Any:
    return row.tolist()


def test_kinds_are_told_apart() -> None:
    raw = [0, None, "0", (), (0, 0), Raised("E", "a"), Raised("E", "b"), math.nan, b"0", {"k": 1}]
    rows = lay_out(raw, width=widest(raw))
    assert (
        len({(rows[i : i + 1]).numbers.tobytes() + bytes(rows.marks[i]) for i in range(10)}) == 10
    )
    assert rows.in_words(1) == "None"
    assert rows.in_words(4) == "(0, 0)"
    assert rows.in_words(5) == "error E: a"


def test_numbers_of_all_types_are_numbers_and_releases_are_opened() -> None:
    raw = [True, 1, 1.0, np.float32(1), np.bool_(True), Fraction(1), Decimal(1)]
    raw.append(Release(1.0, PureDP(epsilon=1), {}))
    rows = lay_out(raw, width=1)
    assert rows.numbers.ravel().tolist() == [1.0] * 8
    assert lay_out([10**400, -(10**400)], width=1).numbers.ravel().tolist() == [math.inf, -math.inf]


def test_long_outputs_are_cut_and_their_length_is_kept() -> None:
    raw = [list(range(1000)), [1]]
    assert widest(raw) == LONGEST
    rows = lay_out(raw, width=widest(raw))
    assert rows.lengths.tolist() == [1000, 1]
    assert rows.in_words(0).endswith("...)")


@given(st.integers(-(2**52), 2**52), st.integers(-300, 300))
def test_the_finest_bit_is_that_of_the_exact_rational(mantissa: int, exponent: int) -> None:
    number = math.ldexp(mantissa, exponent)
    found = float(finest_bit(np.array([number]))[0])
    if mantissa == 0:
        assert found == 9999
        return
    steps = Fraction(number) / Fraction(2) ** int(found)
    assert steps.denominator == 1
    assert steps.numerator % 2 == 1


def test_every_view_is_total_on_outputs_it_never_saw() -> None:
    """Infinities, overflow and marks of all sorts make no warning and no error."""
    seen = [lay_out([[1.0, 2.0], [0.5, 3.0]] * 4, width=2) for _ in range(2)]
    strange = lay_out(
        [None, "a", [math.inf, -math.inf], [1e308, 1e308], [], [math.nan, 0], Raised("E", "")],
        width=2,
    )
    for view in views(*seen):
        values = view.evaluate(strange)
        assert values.shape == (7,)
        cells = OrderedCells(view.evaluate(seen[0])) if view.numeric else None
        cells = cells or MarkedCells(view.evaluate(seen[0]), seen[0])
        places = cells.place(values)
        assert ((places >= 0) & (places < cells.size)).all()


def test_ordered_cells_separate_atoms_from_their_neighbours() -> None:
    generator = np.random.default_rng(1)
    values = np.where(generator.random(5000) < 0.3, 0.25, generator.normal(size=5000))
    cells = OrderedCells(values)
    around = np.array([np.nextafter(0.25, -1), 0.25, np.nextafter(0.25, 1)])
    assert np.unique(cells.place(around)).size == 3
    assert cells.place(np.array([math.nan]))[0] == cells.size - 1
    places = cells.place(np.sort(values))
    assert (np.diff(places) >= 0).all()


def drawn(kind: str, generator: np.random.Generator, secret: int, count: int) -> Any:
    if kind == "threshold":
        return generator.laplace(size=count) + 2 * secret
    if kind == "atom":
        return np.where(generator.random(count) < 0.2, 0.5 * secret, generator.normal(size=count))
    if kind == "error":
        failed = generator.random(count) < 0.3 * secret
        return [Raised("ValueError", "") if bad else 1.0 for bad in failed]
    if kind == "word":
        return ["yes" if u < 0.5 + 0.4 * secret else "no" for u in generator.random(count)]
    if kind == "length":
        return [[True] * int(n) for n in generator.geometric(0.3 + 0.5 * secret, count)]
    if kind == "tie":
        pair = generator.normal(size=(count, 2))
        return pair if secret else np.repeat(pair[:, :1], 2, axis=1)
    if kind == "order":
        return np.sort(generator.normal(size=(count, 4)), axis=1)[:, :: 1 - 2 * secret]
    assert kind == "many weak signs"
    return generator.random((count, 40)) < 0.5 + 0.1 * secret


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("threshold", "output"),
        ("atom", "output"),
        ("error", "error ValueError"),
        ("word", "'no'"),
        ("length", ""),
        ("tie", "output"),
        ("order", ""),
        ("many weak signs", ""),
    ],
)
def test_the_search_finds_what_is_there(kind: str, words: str) -> None:
    generator = np.random.default_rng(3)
    raw = [drawn(kind, generator, secret, 4000) for secret in (0, 1)]
    width = max(map(widest, raw))
    first, second = (lay_out(outputs, width=width) for outputs in raw)
    events = [
        find_event(first, second, delta=0.0, error=1e-4),
        find_event(second, first, delta=0.0, error=1e-4),
    ]
    assert max(event.score for event in events) > 1.0
    assert any(words in str(event) for event in events)
    better = max(events, key=lambda event: event.score)
    fresh = lay_out(drawn(kind, generator, 1 - events.index(better), 2000), width=width)
    favoured = lay_out(drawn(kind, generator, events.index(better), 2000), width=width)
    assert better.contains(favoured).mean() > 2 * better.contains(fresh).mean()


@pytest.mark.parametrize("delta", [0.0, 0.1])
@pytest.mark.parametrize("trials", [2, 50, 10**5])
@pytest.mark.parametrize("error", [0.1, 1e-10])
def test_the_ceiling_is_the_closed_form_and_no_count_beats_it(
    trials: int, delta: float, error: float
) -> None:
    root = math.exp(math.log(error) / trials)
    gap = -math.expm1(math.log(error) / trials)
    closed = math.log((root - delta) / gap) if root > delta else 0.0
    most = ceiling(trials=trials, delta=delta, error=error)
    assert most == pytest.approx(max(0.0, closed), rel=1e-8, abs=1e-8)
    hits = np.unique(np.linspace(0, trials, 40).astype(int))
    for other in (0, trials // 2, trials):
        counts = np.full_like(hits, other)
        bounds = epsilon_lower_bounds(hits, counts, trials=trials, delta=delta, error=error)
        assert (bounds <= most + 1e-12).all()
