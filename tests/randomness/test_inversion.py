"""Exact inversion: every word of a narrow table enumerated, every boundary of the wide one."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from discreet.randomness._discrete import (
    CellSampler,
    GaussianShape,
    Inversion,
    LaplaceShape,
    Shape,
    _CellWeights,
)
from discreet.randomness._enclosure import LazyUniform
from randomness.scripted_source import ScriptedSource, words

SHAPES = [
    LaplaceShape(Fraction(1, 5)),
    LaplaceShape(Fraction(2)),
    LaplaceShape(Fraction(31, 3)),
    LaplaceShape(Fraction(2**40)),
    GaussianShape(Fraction(1, 9)),
    GaussianShape(Fraction(7, 2)),
    GaussianShape(Fraction(100)),
    GaussianShape(Fraction(2**80)),
]


def boundaries(shape: Shape, count: int) -> list[mpmath.mpf]:
    """Return the lower ends of the first cells, by mpmath: summed far past the tail."""
    weights = _CellWeights(shape, two_sided=True)
    values = []
    index = 0
    while True:
        exponent = shape.exponent(weights.near(index))
        values.append(mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator))
        if exponent > 200:
            break
        index += 1
    total = mpmath.fsum(values)
    ends, running = [mpmath.mpf(0)], mpmath.mpf(0)
    for value in values[:count]:
        running += value
        ends.append(running / total)
    return ends


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("width", [8, 32, 64])
def test_boundaries_are_enclosed(shape: Shape, width: int) -> None:
    table = Inversion(_CellWeights(shape, two_sided=True))
    lower, upper = table.boundaries(width)
    with mpmath.workprec(300):
        for low, high, true in zip(lower, upper, boundaries(shape, len(lower)), strict=False):
            assert low <= true * 2**width <= high
            assert high - low <= 2


@pytest.mark.parametrize("shape", SHAPES[:3] + SHAPES[4:6], ids=str)
def test_every_8_bit_word_enumerated(shape: Shape) -> None:
    """A word inside a cell gives that cell; a word with boundaries in it is continued.

    Continued with zeros it gives the cell of its left end, with ones that of its right
    end; and exactly at a boundary the next 32 bits decide. So the measure of each cell is
    its probability: nothing between the words is left.
    """
    table = Inversion(_CellWeights(shape, two_sided=True), width=8)
    with mpmath.workprec(300):
        ends = boundaries(shape, 400)

        def cell_at(point: mpmath.mpf) -> int:
            return max(i for i, end in enumerate(ends) if end <= point)

        opened = 0
        for word in range(256):
            left = cell_at(mpmath.mpf(word) / 256)
            last = mpmath.mpf((word + 1) * 2**32 - 1) / 2**40
            if left == cell_at(mpmath.mpf(word + 1) / 256 - mpmath.mpf(2) ** -60):
                script = ScriptedSource(bytes([word]))
                assert table.draw(script) == left
                assert table.draw_many(1, ScriptedSource(bytes([word]))).tolist() == [left]
                assert script.used == 1
                continue
            opened += 1
            zeros = bytes([word]) + words(0, 0)
            assert table.draw(ScriptedSource(zeros)) == left
            assert table.draw_many(1, ScriptedSource(zeros)).tolist() == [left]
            if word < 255:
                ones = bytes([word]) + words(0xFFFFFFFF, 0xFFFFFFFF)
                assert table.draw(ScriptedSource(ones)) == cell_at(last)
            inside = [i for i, end in enumerate(ends) if word < end * 256 < word + 1]
            for i in inside[:4]:
                digits = int(mpmath.floor(ends[i] * 2**72))
                second, third = digits >> 32 & 0xFFFFFFFF, digits & 0xFFFFFFFF
                for nudge, cell in ((-2, i - 1), (2, i)):
                    if not 0 <= third + nudge < 2**32:
                        continue
                    script = ScriptedSource(bytes([word]) + words(second, third + nudge))
                    assert table.draw(script) == cell
        assert opened > 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_boundary_of_the_32_bit_table(shape: Shape) -> None:
    """Bulk and single draws agree on both sides of and on each boundary, and are monotone."""
    table = Inversion(_CellWeights(shape, two_sided=True))
    near = sorted(
        {
            min(max(value + nudge, 0), 2**32 - 1)
            for value in (*table.lower, *table.upper)
            for nudge in (-2, -1, 0, 1, 2)
        }
    )
    spread = [int(w) for w in np.linspace(0, 2**32 - 1, 500)]
    previous = 0
    for word in sorted({*near[:3000], *spread}):
        continuation = words(0x80000000, 0x12345678, 0x9ABCDEF0)
        single = table.draw(ScriptedSource(words(word) + continuation))
        bulk = table.draw_many(1, ScriptedSource(words(word) + continuation))
        assert bulk.tolist() == [single]
        assert single >= previous
        previous = single


def test_the_endless_tail_is_reached() -> None:
    """All ones for 32, 64, 96 bits lead ever further out, never to a wrong or missing cell."""
    shape = LaplaceShape(Fraction(1))
    table = Inversion(_CellWeights(shape, two_sided=True))
    reached = []
    for count in (1, 2, 3):
        script = ScriptedSource(words(*[0xFFFFFFFF] * count, 0))
        reached.append(table.locate(LazyUniform(script, prefix=script.bits(32), bits=32)))
    assert reached == sorted(set(reached))
    for cell, bits in zip(reached, (32, 64, 96), strict=True):
        # The point 1 - 2**-bits: the tail from the cell on has about this mass.
        assert abs((cell // 2) - bits * float(mpmath.log(2))) < 2


# --- cells with offsets: the acceptance step ---------------------------------------------


def accept_script(sampler_bits: int, offset: int, accept: list[int], *, bulk: bool) -> bytes:
    """Cell 0, this offset, this acceptance word and its continuation; then a sure draw of 0."""
    if not bulk:
        size = (sampler_bits + 7) // 8
        shifted = offset << (8 * size - sampler_bits)
        again = words(0) + bytes(size)
        return words(0) + shifted.to_bytes(size, "little") + words(*accept) + again
    if sampler_bits <= 32:
        offsets = words(offset << (32 - sampler_bits), 0)
    else:
        offsets = words(offset << (64 - sampler_bits), 0, size=8)
    return words(0, 0) + offsets + words(accept[0], 0) + words(*accept[1:])


@pytest.mark.parametrize(
    "shape",
    [
        LaplaceShape(Fraction(2**40)),
        LaplaceShape(Fraction(1000, 3)),
        GaussianShape(Fraction(2**80)),
        GaussianShape(Fraction(99991, 7)),
    ],
    ids=str,
)
def test_open_acceptance_is_decided_exactly(shape: Shape) -> None:
    """The acceptance word that shares 32 (64) bits with exp(-y) is settled by the next ones."""
    sampler = CellSampler(shape)
    bits = shape.cell_bits
    assert bits > 0
    for offset in (1, (1 << bits) // 3, (1 << bits) - 1):
        y = shape.exponent(offset)
        with mpmath.workprec(300):
            p = mpmath.exp(-mpmath.mpf(y.numerator) / y.denominator)
            digits = int(mpmath.floor(p * 2**96))
        first, second, third = digits >> 64, digits >> 32 & 0xFFFFFFFF, digits & 0xFFFFFFFF
        cases = [
            ([first - 3], offset),
            ([first, second - 2], offset),
            ([first, second, third - 3], offset),
            ([first, second + 2], 0),
            ([first, second, third + 3], 0),
        ]
        if first + 3 < 2**32:
            cases.append(([first + 3], 0))
        for accept, expected in cases:
            if not all(0 <= word < 2**32 for word in accept):
                continue
            single = ScriptedSource(accept_script(bits, offset, accept, bulk=False))
            assert sampler.draw(single) == expected
            many = ScriptedSource(accept_script(bits, offset, accept, bulk=True))
            assert sampler.draw_many(1, many).tolist() == [expected]
            assert many.used == len(many.script)


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.cell_bits > 0], ids=str)
def test_the_exponent_in_doubles_is_as_accurate_as_the_proof_wants(shape: Shape) -> None:
    """In every cell of the table, against the exact difference: relative error below 2**-49."""
    size = 1 << shape.cell_bits
    weights = _CellWeights(shape, two_sided=True)
    for cell in range(len(Inversion(weights).lower)):
        near = weights.near(cell)
        offsets = sorted({1, size // 3, size // 2 + 1, size - 1} - {0})
        found = shape.rise(np.full(len(offsets), float(near)), np.array(offsets, dtype=np.float64))
        for offset, y in zip(offsets, found, strict=True):
            exact = shape.exponent(near + offset) - shape.exponent(near)
            assert abs(Fraction(float(y)) - exact) < exact / 2**49


def test_signs_and_cells() -> None:
    """Cell 0 is {0..M-1}, cell 1 {-1..-M}: the cells of both signs cover every integer once."""
    shape = LaplaceShape(Fraction(64))
    size = 1 << shape.cell_bits
    weights = _CellWeights(shape, two_sided=True)
    covered = []
    for cell in range(20):
        near = weights.near(cell)
        members = range(near, near + size)
        covered += [-m for m in members] if cell & 1 else list(members)
    assert sorted(covered) == list(range(-10 * size, 10 * size))
