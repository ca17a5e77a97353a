"""The scattering transform: features that are good and owe nothing to the data.

Under differential privacy every learned weight costs accuracy through its noise. Features
that are fixed beforehand cost nothing, and a linear model on scattering coefficients beats
small convolutional networks at small epsilon (Tramer and Boneh, *Differentially private
learning needs better features (or much more data)*, 2021).
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.features.wavelets import filter_bank, gaussian_line, low_pass_deviation

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Scattering"]


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
        self.size = _checked_size(size, 2**scales)
        self.channels = 1 + scales * orientations + scales * (scales - 1) // 2 * orientations**2
        self.margin = 2**scales
        height, width = (side + 2 * self.margin for side in self.size)
        bank = filter_bank(height, width, scales=scales, orientations=orientations)
        for j in range(scales):
            # A wavelet of scale j acts on the image and, for each coarser j' it is second to,
            # on the modulus of scale j', which is sampled once in 2^j' pixels.
            for sampled in range(j + 1):
                spectrum = _sampled_spectrum(bank.wavelets[j], 2**sampled)
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
        parts = [self._averaged(padded, 0)]
        second = []
        spectrum = torch.fft.fft2(padded)
        for j in range(self.scales):
            modulus = self._modulus(spectrum, j, 0)
            parts.append(self._averaged(modulus, j))
            if j + 1 == self.scales:
                continue
            inner = torch.fft.fft2(modulus).unsqueeze(2)
            for coarser in range(j + 1, self.scales):
                twice = self._modulus(inner, coarser, j).flatten(1, 2)
                second.append(self._averaged(twice, coarser))
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

    def _averaged(self, maps: torch.Tensor, sampled: int) -> torch.Tensor:
        rows = self._buffer(f"rows_at_{sampled}")
        columns = self._buffer(f"columns_at_{sampled}")
        return rows @ maps @ columns.T


def _sampled_spectrum(spectra: NDArray[np.float64], stride: int) -> NDArray[np.float64]:
    """The transform on the grid of every stride-th pixel, of the filter sampled there.

    The factor stride^2 keeps the weight of one pixel: convolving on the coarse grid sums over
    stride^2 times fewer of them, and folding divides by the same number.
    """
    height, width = spectra.shape[-2] // stride, spectra.shape[-1] // stride
    folded = spectra.reshape(*spectra.shape[:-2], stride, height, stride, width)
    return np.asarray(folded.sum(axis=(-4, -2)), dtype=np.float64)


def _checked_size(size: object, multiple: int) -> tuple[int, int]:
    expected = f"(height, width), both multiples of {multiple} and larger than that"
    sides = size if isinstance(size, tuple) else ()
    if len(sides) != 2:
        raise InvalidValue("size", size, expected)
    height, width = (_validate.integer("size", side, at_least=1) for side in sides)
    # Reflection needs more pixels than it adds.
    if height % multiple or width % multiple or min(height, width) <= multiple:
        raise InvalidValue("size", size, expected)
    return height, width
