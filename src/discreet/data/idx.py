"""The idx format of MNIST: two zero bytes, a type, a number of dimensions, sizes, values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from discreet.data.sources import DataCorrupt

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["read_idx"]

_UNSIGNED_BYTE = 8
_MOST_VALUES = 1 << 30


def read_idx(stream: BinaryIO) -> NDArray[np.uint8]:
    """Return the array of bytes in ``stream``, filled in place so that nothing is held twice.

    >>> import io
    >>> read_idx(io.BytesIO(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])))
    array([7, 8, 9], dtype=uint8)
    """
    head = stream.read(4)
    if len(head) < 4 or head[0] or head[1] or head[2] != _UNSIGNED_BYTE or not 1 <= head[3] <= 4:
        raise DataCorrupt(f"not an idx file of bytes: it begins with {head.hex(' ') or 'nothing'}")
    sizes = stream.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise DataCorrupt("an idx file that ends inside its header")
    shape = tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))
    count = math.prod(shape)
    if count > _MOST_VALUES:
        raise DataCorrupt(f"an idx file that claims {count} values")
    values = np.empty(count, dtype=np.uint8)
    view = values.data
    filled = 0
    while filled < count:
        received = stream.readinto(view[filled:])  # type: ignore[attr-defined]
        if not received:
            raise DataCorrupt(f"an idx file of {filled} values that claims {count}")
        filled += received
    if stream.read(1):
        raise DataCorrupt(f"an idx file with more than the {count} values it claims")
    return values.reshape(shape)
