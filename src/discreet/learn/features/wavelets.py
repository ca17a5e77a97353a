"""Morlet wavelets and their Gaussian low-pass on a periodic grid, in Fourier space.

The shapes are those of Bruna and Mallat, *Invariant scattering convolution networks* (2013):
a Gaussian envelope of width 0.8 x 2^j, elongated across the direction of oscillation, times a
plane wave of frequency (3 pi / 4) / 2^j, minus the multiple of the envelope that makes the
mean zero. Nothing here sees data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FilterBank", "filter_bank", "gaussian_line"]

ENVELOPE = 0.8
"""Width of the envelope at the finest scale, in pixels."""

FREQUENCY = 3 * math.pi / 4
"""Frequency of the finest wavelet, in radians per pixel."""


@dataclass(frozen=True, eq=False)
class FilterBank:
    """Transforms of one low-pass and ``scales`` x ``orientations`` wavelets on one grid.

    All transforms are real because every filter is its own conjugate mirror image.
    ``wavelets[j, l]`` is the wavelet of scale 2^j in direction pi l / orientations.

    Guarantee: with ``p`` the low-pass and ``w`` the wavelets, at every frequency
    ``p(f)^2 + 1/2 sum (w(f)^2 + w(-f)^2) <= 1`` up to rounding, with equality at zero and at one
    other frequency at least. Convolution with all filters together therefore never adds energy:
    the squared norms of the results add up to at most that of the (real) image.
    """

    low_pass: NDArray[np.float64]
    wavelets: NDArray[np.float64]

    @property
    def energy(self) -> NDArray[np.float64]:
        """The left-hand side of the guarantee at every frequency of the grid."""
        squares: NDArray[np.float64] = np.sum(self.wavelets**2, axis=(0, 1))
        return self.low_pass**2 + (squares + _mirrored(squares)) / 2


@lru_cache(maxsize=16)
def filter_bank(height: int, width: int, *, scales: int, orientations: int) -> FilterBank:
    """Return the filters for a periodic grid of ``height`` x ``width`` pixels.

    >>> bank = filter_bank(36, 36, scales=2, orientations=8)
    >>> bank.wavelets.shape, float(bank.low_pass[0, 0].round(12))
    ((2, 8, 36, 36), 1.0)
    """
    _validate.integer("height", height, at_least=1)
    _validate.integer("width", width, at_least=1)
    _validate.integer("scales", scales, at_least=1, at_most=12)
    _validate.integer("orientations", orientations, at_least=1, at_most=64)
    deviation = low_pass_deviation(scales)
    low_pass = np.outer(
        np.fft.fft(gaussian_line(height, deviation)).real,
        np.fft.fft(gaussian_line(width, deviation)).real,
    )
    wavelets = np.array(
        [
            [
                _morlet(height, width, j, math.pi * direction / orientations, orientations)
                for direction in range(orientations)
            ]
            for j in range(scales)
        ]
    )
    squares = np.sum(wavelets**2, axis=(0, 1))
    squares = (squares + _mirrored(squares)) / 2
    # The largest common factor that keeps the sum of squares at one or below. Where the low
    # pass is one already (at zero) the wavelets vanish, and rounding must not decide.
    heard = squares > 1e-9 * squares.max()
    factor = math.sqrt(float(np.min((1 - low_pass[heard] ** 2) / squares[heard])))
    wavelets *= factor
    for array in (low_pass, wavelets):
        array.flags.writeable = False
    return FilterBank(low_pass, wavelets)


def low_pass_deviation(scales: int) -> float:
    """Width in pixels of the averaging window that goes with ``scales`` octaves."""
    return ENVELOPE * 2.0 ** (scales - 1)


def gaussian_line(length: int, deviation: float) -> NDArray[np.float64]:
    """A Gaussian window around 0 on a circle of ``length`` pixels; its sum is one."""
    offsets = np.arange(length)[:, None] + length * _turns(length, deviation)[None, :]
    values = np.exp(-(offsets**2) / (2 * deviation**2)).sum(axis=1)
    return np.asarray(values / values.sum(), dtype=np.float64)


def _morlet(
    height: int, width: int, scale: int, angle: float, orientations: int
) -> NDArray[np.float64]:
    deviation = ENVELOPE * 2.0**scale
    frequency = FREQUENCY / 2.0**scale
    # Elongation: with many directions each must be narrow in angle. One or two directions
    # stay round, or the envelope would be shorter across than along.
    slant = min(1.0, 4.0 / orientations)
    reach = deviation / slant
    rows = np.arange(height)[:, None] + height * _turns(height, reach)[None, :]
    columns = np.arange(width)[:, None] + width * _turns(width, reach)[None, :]
    y, x = rows[:, :, None, None], columns[None, None, :, :]
    along = x * math.cos(angle) + y * math.sin(angle)
    across = -x * math.sin(angle) + y * math.cos(angle)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * deviation**2))
    wave = (envelope * np.exp(1j * frequency * along)).sum(axis=(1, 3))
    window = envelope.sum(axis=(1, 3))
    spectrum = np.fft.fft2(wave - wave.sum() / window.sum() * window).real
    return np.asarray(spectrum * slant / (2 * math.pi * deviation**2), dtype=np.float64)


def _turns(length: int, deviation: float) -> NDArray[np.int64]:
    """How often the circle must be gone round until the window has died away."""
    turns = math.ceil(9 * deviation / length) + 1
    return np.arange(-turns, turns + 1)


def _mirrored(spectrum: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value at the opposite frequency, ``f -> -f``, on the grid of ``numpy.fft``."""
    return np.roll(spectrum[::-1, ::-1], (1, 1), axis=(0, 1))
