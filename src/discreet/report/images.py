"""Arrays as PNG files, with nothing but the standard library."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["png"]


def png(image: NDArray[np.float64], *, bounds: tuple[float, float]) -> bytes:
    r"""Return an image of shape (height, width), or (1 or 3, height, width), as a PNG file.

    >>> png(np.zeros((2, 3)), bounds=(0, 1))[:8]
    b'\x89PNG\r\n\x1a\n'
    """
    values = np.asarray(image, dtype=np.float64)
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim == 3 and values.shape[0] == 3:
        values = np.moveaxis(values, 0, -1)
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[-1] == 3):
        raise InvalidValue("image", f"an array of shape {values.shape}", "one or three channels")
    low, high = bounds
    share = np.clip((values - low) / (high - low), 0.0, 1.0)
    pixels = np.rint(255 * share).astype(np.uint8)
    height, width = pixels.shape[:2]
    # Every line of pixels starts with the number of its filter, here none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    parts = ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
