"""What is known of any picture: neighbouring pixels are alike, and so are low frequencies.

Pictures are arrays (..., height, width). Total variation is that of Rudin, Osher and Fatemi
(1992) with rounded corners, so that it has a gradient everywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from discreet import _validate
from discreet.errors import InvalidValue


def total_variation(
    pictures: NDArray[np.float64], *, corner: float = 1e-2
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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


def blur(pictures: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """Return the pictures smoothed by a Gaussian of this many pixels."""
    if width == 0:
        return pictures
    widths = [0.0] * (pictures.ndim - 2) + [width, width]
    return np.asarray(ndimage.gaussian_filter(pictures, widths, mode="nearest"))


def cosine_directions(height: int, width: int, frequencies: int) -> NDArray[np.float64]:
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


def _cosines(length: int, count: int) -> NDArray[np.float64]:
    places = (np.arange(length) + 0.5) * np.pi / length
    waves = np.cos(np.arange(count)[:, None] * places)
    return np.asarray(waves / np.linalg.norm(waves, axis=1, keepdims=True))
