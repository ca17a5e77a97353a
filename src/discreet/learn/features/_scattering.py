"""The scattering transform and normalisation by row: features that do not depend on other rows.

Under differential privacy every learned weight costs accuracy through its noise. Features
that are fixed beforehand cost nothing, and a linear model on scattering coefficients beats
small convolutional networks at small epsilon (Tramer and Boneh, *Differentially private
learning needs better features (or much more data)*, 2021).

The wavelets are those of Bruna and Mallat, *Invariant scattering convolution networks* (2013):
a Gaussian envelope of width 0.8 x 2^j, elongated across the direction of oscillation, times a
plane wave of frequency (3 pi / 4) / 2^j, minus the multiple of the envelope that makes the
mean zero, in Fourier space on a periodic grid.

Centring and scaling by the mean and variance of a data set would have to be paid for. Scaling an
example by its own statistics is a row-by-row map and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENVELOPE = 0.8
"""Width of the envelope at the finest scale, in pixels."""

FREQUENCY = 3 * math.pi / 4
"""Frequency of the finest wavelet, in radians per pixel."""


class Scattering(nn.Module):
    """Scattering coefficients of orders 0, 1 and 2 for images of one fixed size.

    With ``a`` the Gaussian average over windows of 2^J pixels and ``w[j, l]`` the wavelet of
    scale 2^j and direction ``l``, the channels are, in this order::

        a(x)                                            order 0, 1 channel
        a(|w[j, l] x|)                                  order 1, J L channels
        a(|w[j', l'] |w[j, l] x||)  for j < j'          order 2, J (J - 1) L^2 / 2 channels

    each sampled once in 2^J pixels. The image is continued by reflection, 2^J pixels to each
    side. Two scales and eight directions turn 28 x 28 pixels into 81 channels of 7 x 7.

    Guarantee: the module has no parameters and no state that changes; the features of an image
    depend on that image alone, so transforming a data set is a row-by-row map and leaves its
    neighbours neighbours.

    :param size: height and width of the images, each a multiple of 2^scales.
    :param scales: the number J of octaves.
    :param orientations: the number L of directions in half a turn.

    >>> features = Scattering((28, 28))
    >>> features.channels, tuple(features(torch.zeros(5, 28, 28)).shape)
    (81, (5, 81, 7, 7))
    """

    def __init__(self, size: tuple[int, int], *, scales: int = 2, orientations: int = 8) -> None:
        super().__init__()
        self.scales = _validate.integer("scales", scales, at_least=1, at_most=8)
        self.orientations = _validate.integer("orientations", orientations, at_least=1, at_most=32)
        self.size = _check_size(size, 2**scales)
        self.channels = 1 + scales * orientations + scales * (scales - 1) // 2 * orientations**2
        self.margin = 2**scales
        height, width = (side + 2 * self.margin for side in self.size)
        bank = filter_bank(height, width, scales=scales, orientations=orientations)
        for j in range(scales):
            # A wavelet of scale j acts on the image and, for each coarser j' it is second to,
            # on the modulus of scale j', which is sampled once in 2^j' pixels.
            for sampled in range(j + 1):
                spectrum = _sample_spectrum(bank.wavelets[j], 2**sampled)
                self._keep(f"wavelets_{j}_at_{sampled}", spectrum / 4 ** (j - sampled))
            self._keep(f"rows_at_{j}", self._average(height, j))
            self._keep(f"columns_at_{j}", self._average(width, j))

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Ranges of channels that differ in their directions only.

        >>> Scattering((28, 28)).blocks
        ((1, 9), (9, 17), (17, 81))
        """
        first, second = self.orientations, self.orientations**2
        pairs = self.scales * (self.scales - 1) // 2
        edges = list(accumulate([1] + [first] * self.scales + [second] * pairs))
        return tuple(pairwise(edges))

    def _keep(self, name: str, values: NDArray[np.float64]) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)

    def _average(self, padded: int, sampled: int) -> NDArray[np.float64]:
        """The matrix that averages a line sampled once in 2^sampled pixels, inside the margin.

        The two-dimensional window is a product of two of these, so no transform is needed.
        """
        length = padded // 2**sampled
        window = gaussian_line(length, low_pass_deviation(self.scales) / 2**sampled)
        stride = 2 ** (self.scales - sampled)
        places = np.arange(1, padded // 2**self.scales - 1) * stride
        places_seen = (np.arange(length)[None, :] - places[:, None]) % length
        return np.asarray(window[places_seen], dtype=np.float64)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of ``images`` (..., height, width) as (..., channels, h, w)."""
        if tuple(images.shape[-2:]) != self.size:
            expected = f"images whose last two dimensions are {self.size[0]} x {self.size[1]}"
            raise InvalidValue("images", f"a tensor of shape {tuple(images.shape)}", expected)
        if images.dtype != (own := self._buffer("rows_at_0").dtype):
            raise InvalidValue("images", f"a tensor of {images.dtype}", f"a tensor of {own}")
        leading = images.shape[:-2]
        flat = images.reshape(-1, 1, *self.size)
        features = self._features(flat)
        return features.reshape(*leading, *features.shape[1:])

    def transform(self, images: NDArray[np.uint8], *, chunk: int = 16) -> torch.Tensor:
        """Return the features of many images, ``chunk`` at a time so that memory stays small.

        Bytes 0 to 255 are read as 0.0 to 1.0: a public convention, not a property of the data.
        """
        _validate.integer("chunk", chunk, at_least=1)
        images = np.asarray(images)
        if images.dtype != np.uint8 or images.shape[-2:] != self.size:
            expected = f"bytes of shape (..., {self.size[0]}, {self.size[1]})"
            raise InvalidValue("images", f"{images.dtype} of shape {images.shape}", expected)
        device = self._buffer("rows_at_0").device
        dtype = self._buffer("rows_at_0").dtype
        leading = images.shape[:-2]
        flat = images.reshape(-1, *self.size)
        height, width = (side // 2**self.scales for side in self.size)
        out = torch.empty((len(flat), self.channels, height, width), dtype=dtype)
        with torch.no_grad():
            for start in range(0, len(flat), chunk):
                some = torch.tensor(flat[start : start + chunk], device=device).to(dtype) / 255
                out[start : start + chunk] = self(some).cpu()
        return out.reshape(*leading, *out.shape[1:])

    def _buffer(self, name: str) -> torch.Tensor:
        return self.get_buffer(name)

    def _features(self, images: torch.Tensor) -> torch.Tensor:
        """Orders 0 to 2 of (n, 1, height, width)."""
        padded = nn.functional.pad(images, [self.margin] * 4, mode="reflect")
        parts = [self._average_blocks(padded, 0)]
        second = []
        spectrum = torch.fft.fft2(padded)
        for j in range(self.scales):
            modulus = self._modulus(spectrum, j, 0)
            parts.append(self._average_blocks(modulus, j))
            if j + 1 == self.scales:
                continue
            inner = torch.fft.fft2(modulus).unsqueeze(2)
            for coarser in range(j + 1, self.scales):
                twice = self._modulus(inner, coarser, j).flatten(1, 2)
                second.append(self._average_blocks(twice, coarser))
        return torch.cat(parts + second, dim=1)

    def _modulus(self, spectrum: torch.Tensor, j: int, sampled: int) -> torch.Tensor:
        """|w[j, .] u| sampled once in 2^j pixels, from the transform of u sampled at 2^sampled."""
        wavelets = self._buffer(f"wavelets_{j}_at_{sampled}")
        stride = 2 ** (j - sampled)
        height, width = wavelets.shape[-2] // stride, wavelets.shape[-1] // stride
        # Taking every stride-th pixel folds the spectrum onto itself (and divides it by
        # stride^2, which the kept wavelets contain).
        product: torch.Tensor | None = None
        for row in range(0, wavelets.shape[-2], height):
            for column in range(0, wavelets.shape[-1], width):
                block = (..., slice(row, row + height), slice(column, column + width))
                term = spectrum[block] * wavelets[block]
                product = term if product is None else product + term
        assert product is not None
        modulus: torch.Tensor = torch.fft.ifft2(product).abs()
        return modulus

    def _average_blocks(self, maps: torch.Tensor, sampled: int) -> torch.Tensor:
        rows = self._buffer(f"rows_at_{sampled}")
        columns = self._buffer(f"columns_at_{sampled}")
        return rows @ maps @ columns.T


def _sample_spectrum(spectra: NDArray[np.float64], stride: int) -> NDArray[np.float64]:
    """The transform on the grid of every stride-th pixel, of the filter sampled there.

    The factor stride^2 keeps the weight of one pixel: convolving on the coarse grid sums over
    stride^2 times fewer of them, and folding divides by the same number.
    """
    height, width = spectra.shape[-2] // stride, spectra.shape[-1] // stride
    folded = spectra.reshape(*spectra.shape[:-2], stride, height, stride, width)
    return np.asarray(folded.sum(axis=(-4, -2)), dtype=np.float64)


def _check_size(size: object, multiple: int) -> tuple[int, int]:
    expected = f"(height, width), both multiples of {multiple} and larger than that"
    sides = size if isinstance(size, tuple) else ()
    if len(sides) != 2:
        raise InvalidValue("size", size, expected)
    height, width = (_validate.integer("size", side, at_least=1) for side in sides)
    # Reflection needs more pixels than it adds.
    if height % multiple or width % multiple or min(height, width) <= multiple:
        raise InvalidValue("size", size, expected)
    return height, width


# --- wavelets -----------------------------------------------------------------------------


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
        return self.low_pass**2 + (squares + _mirror_frequencies(squares)) / 2


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
    squares = (squares + _mirror_frequencies(squares)) / 2
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


def _mirror_frequencies(spectrum: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value at the opposite frequency, ``f -> -f``, on the grid of ``numpy.fft``."""
    return np.roll(spectrum[::-1, ::-1], (1, 1), axis=(0, 1))


# --- normalisation ------------------------------------------------------------------------


def group_normalised(features: torch.Tensor, *, groups: int, epsilon: float = 1e-5) -> torch.Tensor:
    """Give each group of channels of each example mean 0 and variance 1.

    Guarantee: row i of the result depends on row i of ``features`` alone, and its norm is at most
    the square root of the number of its entries, whatever the input: a public bound.

    :param features: (n, channels, ...).
    :param groups: how many groups of neighbouring channels; a divisor of their number.
    :param epsilon: added to the variances, so that constant groups become zero.

    >>> group_normalised(torch.tensor([[1.0, 3.0, 5.0, 5.0]]), groups=2, epsilon=1e-12)
    tensor([[-1.,  1.,  0.,  0.]])
    """
    _validate.integer("groups", groups, at_least=1)
    _validate.real("epsilon", epsilon, above=0)
    if features.dim() < 2 or features.shape[1] % groups:
        expected = f"(n, channels, ...) with {groups} groups of equally many channels"
        raise InvalidValue("features", f"a tensor of shape {tuple(features.shape)}", expected)
    # torch's own function; it refuses groups of a single value, which are constant.
    if features[0:1].numel() == groups:
        return torch.zeros_like(features)
    return torch.nn.functional.group_norm(features, groups, eps=epsilon)


def contrasts(
    features: torch.Tensor, *, groups: int, blocks: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Group-normalise, keep what tells the channels of a block apart, group-normalise again.

    Channels that respond to different directions have much in common: where there is ink, all of
    them respond. That common part is nearly the same for all images, so it tells classes
    apart badly, but it takes up room under the clip norm. Here it is removed: from every channel
    of a block (for example ``Scattering.blocks``) the mean over the block is subtracted, place
    by place.

    Guarantee: that of :func:`group_normalised`. Row i depends on row i alone.

    :param blocks: ranges ``(start, stop)`` of channels, disjoint; channels outside of all blocks
        are left as they are.
    """
    normal = group_normalised(features, groups=groups)
    seen = 0
    for start, stop in sorted(blocks):
        if not seen <= start < stop <= features.shape[1]:
            expected = f"disjoint ranges (start, stop) of the {features.shape[1]} channels"
            raise InvalidValue("blocks", blocks, expected)
        seen = stop
        block = normal[:, start:stop]
        normal[:, start:stop] = block - block.mean(dim=1, keepdim=True)
    return group_normalised(normal, groups=groups)
