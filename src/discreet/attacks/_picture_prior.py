"""Priors for model inversion: what an attacker knows about inputs in advance.

Pictures are arrays (..., height, width): neighbouring pixels are alike, and so are low
frequencies. Total variation is that of Rudin, Osher and Fatemi (1992) with rounded corners, so
that it has a gradient everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discreet import _validate
from discreet.attacks._training import seeded_generator
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Array = NDArray[np.float64]

_MOST_COORDINATES = 1024  # of a black box whose inputs are no pictures


class Prior(ABC):
    """Where an inversion looks: the ascent moves codes, and a prior says what input a code is.

    To invert through a generator of pictures, give it :meth:`starts`, :meth:`decode` and
    :meth:`pull_back`; codes and inputs are rows of numbers.

    Parameters
    ----------
    shape : tuple of int
        The shape of one input.
    bounds : pair of float
        The range of every number of an input.
    scale : float, optional
        What learning rates are multiples of; by default the width of the range.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        bounds: tuple[float, float] = (0.0, 1.0),
        *,
        scale: float | None = None,
    ) -> None:
        self.shape = tuple(_validate.integer("shape", size, at_least=1) for size in shape)
        if not self.shape:
            raise InvalidValue("shape", shape, "the shape of one record")
        self.size = int(np.prod(self.shape))
        lower, upper = (_validate.real("bounds", bound) for bound in bounds)
        if not lower < upper:
            raise InvalidValue("bounds", bounds, "two numbers, the smaller one first")
        self.bounds = (lower, upper)
        self.range = upper - lower
        self.scale = self.range if scale is None else _validate.real("scale", scale, above=0)

    @abstractmethod
    def starts(self, count: int, seed: int | None) -> Array:
        """Return (count, coordinates) codes to begin at."""

    @abstractmethod
    def decode(self, codes: Array) -> Array:
        """Return the input that each code stands for, (codes, size) within the bounds."""

    @abstractmethod
    def pull_back(self, codes: Array, gradient: Array) -> Array:
        """Return the gradient by codes from the ``gradient`` by their inputs."""

    def penalty(self, codes: Array) -> tuple[Array, Array]:
        """Return what is taken off the objective at each code, and its gradient; 0 by default."""
        return np.zeros(len(codes)), np.zeros_like(codes)

    def settle(self, codes: Array, *, step: int, steps: int) -> Array:
        """Return the codes to go on from after a step; by default as they are."""
        del step, steps
        return codes

    def directions(self, frequencies: int) -> Array:
        """Return orthonormal rows along which a black box is asked; by default all coordinates."""
        del frequencies
        if self.size > _MOST_COORDINATES:
            expected = f"a picture, or at most {_MOST_COORDINATES} coordinates"
            raise InvalidValue("shape", self.shape, expected)
        return np.eye(self.size)


@final
class PicturePrior(Prior):
    """Pictures are smooth: codes are inputs themselves, blurred, with little total variation.

    Records that are no pictures (one axis, and no ``picture``) are neither.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        bounds: tuple[float, float],
        *,
        picture: tuple[int, int] | None,
        start: ArrayLike | None,
        total_variation: float,
        smoothing: float,
        smooth_every: int,
    ) -> None:
        super().__init__(shape, bounds)
        self.picture = picture
        if picture is None and len(self.shape) > 1:
            self.picture = (self.shape[-2], self.shape[-1])
        if self.picture is not None and self.size % int(np.prod(self.picture)):
            raise InvalidValue("picture", picture, f"height and width in a record of {shape}")
        variation = _validate.real("total_variation", total_variation, at_least=0)
        width = _validate.real("smoothing", smoothing, at_least=0)
        self.every = _validate.integer("smooth_every", smooth_every, at_least=1)
        is_picture = self.picture is not None
        self.total_variation, self.smoothing = (variation, width) if is_picture else (0.0, 0.0)
        self._start = np.full(self.size, sum(self.bounds) / 2)
        if start is not None:
            self._start = np.array(start, dtype=np.float64).ravel()
            inside = len(self._start) == self.size and np.isfinite(self._start).all()
            if not inside or not (
                self.bounds[0] <= self._start.min() <= self._start.max() <= self.bounds[1]
            ):
                shown = f"an array of shape {np.shape(start)}"
                raise InvalidValue("start", shown, f"a record {self.shape} within {self.bounds}")

    def starts(self, count: int, seed: int | None) -> Array:
        """Return copies of the start, each with soft noise of a tenth of the range."""
        noise = self._blur(seeded_generator(seed).standard_normal((count, self.size)), 2.0)
        noise *= 0.1 * self.range / np.maximum(noise.std(axis=1, keepdims=True), 1e-12)
        return np.clip(self._start + noise, *self.bounds)

    def decode(self, codes: Array) -> Array:
        """Return the codes, which are inputs."""
        return codes

    def pull_back(self, codes: Array, gradient: Array) -> Array:
        """Return the gradient as it is."""
        del codes
        return gradient

    def penalty(self, codes: Array) -> tuple[Array, Array]:
        """Return the total variation of each picture, weighed, and its gradient."""
        if self.picture is None or not self.total_variation:
            return super().penalty(codes)
        pictures = codes.reshape(len(codes), -1, *self.picture) / self.range
        values, slope = total_variation(pictures)
        weight = self.total_variation
        return weight * values.sum(axis=1), weight * slope.reshape(codes.shape) / self.range

    def settle(self, codes: Array, *, step: int, steps: int) -> Array:
        """Put inputs back into their range, and blur them from time to time."""
        inside = np.clip(codes, *self.bounds)
        if self.smoothing and step % self.every == 0 and step < steps:
            return self._blur(inside, self.smoothing)
        return inside

    def directions(self, frequencies: int) -> Array:
        """Return the lowest frequencies of each channel; all coordinates of what is no picture."""
        if self.picture is None:
            return super().directions(frequencies)
        one = cosine_directions(*self.picture, frequencies)
        return np.asarray(np.kron(np.eye(self.size // one.shape[1]), one), dtype=np.float64)

    def _blur(self, inputs: Array, width: float) -> Array:
        if self.picture is None:
            return inputs
        return blur(inputs.reshape(-1, *self.picture), width).reshape(inputs.shape)


def total_variation(pictures: Array, *, corner: float = 1e-2) -> tuple[Array, Array]:
    """Return the total variation of each picture, and its gradient.

    It is the sum over all pixels of sqrt(right^2 + down^2 + corner^2) - corner, where right and
    down are the differences to the next pixels (zero at the border).

    >>> value, gradient = total_variation(np.array([[[0.0, 3.0], [4.0, 4.0]]]), corner=1e-9)
    >>> round(float(value[0]), 6)  # sqrt(3^2 + 4^2) + |4 - 3| + 0 + 0
    6.0
    """
    right = np.zeros_like(pictures)
    down = np.zeros_like(pictures)
    right[..., :, :-1] = np.diff(pictures, axis=-1)
    down[..., :-1, :] = np.diff(pictures, axis=-2)
    lengths = np.sqrt(right**2 + down**2 + corner**2)
    right /= lengths
    down /= lengths
    gradient = -right - down
    gradient[..., :, 1:] += right[..., :, :-1]
    gradient[..., 1:, :] += down[..., :-1, :]
    return (lengths - corner).sum(axis=(-2, -1)), gradient


def blur(pictures: Array, width: float) -> Array:
    """Return the pictures smoothed by a Gaussian of this many pixels."""
    if width == 0:
        return pictures
    widths = [0.0] * (pictures.ndim - 2) + [width, width]
    return np.asarray(ndimage.gaussian_filter(pictures, widths, mode="nearest"))


def cosine_directions(height: int, width: int, frequencies: int) -> Array:
    """Return the lowest frequencies of a picture as orthonormal rows, frequencies^2 of them.

    >>> rows = cosine_directions(8, 6, 3)
    >>> rows.shape, bool(np.allclose(rows @ rows.T, np.eye(9)))
    ((9, 48), True)
    """
    count = _validate.integer("frequencies", frequencies, at_least=1)
    if count > min(height, width):
        raise InvalidValue("frequencies", frequencies, f"at most {min(height, width)}")
    vertical, horizontal = _cosines(height, count), _cosines(width, count)
    products = np.einsum("ih,jw->ijhw", vertical, horizontal)
    return np.asarray(products.reshape(count * count, height * width))


def _cosines(length: int, count: int) -> Array:
    places = (np.arange(length) + 0.5) * np.pi / length
    waves = np.cos(np.arange(count)[:, None] * places)
    return np.asarray(waves / np.linalg.norm(waves, axis=1, keepdims=True))
