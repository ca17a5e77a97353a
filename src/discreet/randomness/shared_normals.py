"""Many blocks of normals straight from round keys, by one thread or by all of torch's."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._threads import Job, primitives
from discreet.randomness.compiled_keystream import AT_ONCE, encrypt_primitive, lanes_of_host
from discreet.randomness.compiled_normals import PAIRS, compiled_box_muller, words_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NormalBlocks", "compiled_normal_blocks"]


class _Work(ctypes.Structure):
    """What the threads have to know, and what they leave: eight bytes for each entry."""

    _fields_ = (
        ("keys", ctypes.c_int64),
        ("counter", ctypes.c_int64),
        ("normals", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("stddev", ctypes.c_double),
        ("taken", ctypes.c_int64),
        ("done", ctypes.c_int64),
    )


_ENTRIES, _TAKEN, _DONE = len(_Work._fields_), _Work.taken.offset, _Work.done.offset


@final
class NormalBlocks:
    """Fills blocks of normals from the keystream that they would be filled from one by one."""

    def __init__(self) -> None:
        self._job = _compiled_job()

    def fill(
        self,
        keys: NDArray[np.uint8],
        counter: int,
        stddev: float,
        normals: NDArray[Any],
        *,
        shared: bool,
    ) -> bool:
        """Fill ``normals`` (float32), block by block; ``shared`` with the threads of torch.

        The words of each block, :func:`.words_for` of its pairs, begin with a block of the
        keystream. Returns whether all blocks were filled: compiled functions of this kind cannot
        raise, and where memory or spare words run out a block stays as it was.
        """
        assert normals.flags.c_contiguous
        addresses = _address_of(keys), counter, _address_of(normals)
        work = _Work(*addresses, normals.size, stddev, 0, 0)
        self._job.run(work, shared=shared)
        return bool(work.done == -(-normals.size // (2 * PAIRS)))


def _address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@lru_cache(maxsize=1)
def compiled_normal_blocks() -> NormalBlocks:
    """Compile; this takes two seconds."""
    return NormalBlocks()


def _compiled_job() -> Job:
    import numba

    transform = compiled_box_muller()
    encrypt = encrypt_primitive(lanes_of_host())
    count_words: Any = numba.njit(words_for)
    pointer, next_of, carray = primitives()

    def job(address: int) -> None:
        work = carray(pointer(address), _ENTRIES, dtype=np.int64)
        keys, counter, size = work[0], work[1], work[3]
        normals = carray(pointer(work[2]), size, dtype=np.float32)
        stddev = np.int64(work[4]).view(np.float64)
        of_block = (count_words(PAIRS) + 3) // 4  # blocks of the keystream, of four words each
        words = np.empty(4 * (of_block + AT_ONCE), dtype=np.uint32)
        while True:
            at = next_of(address + _TAKEN)
            if 2 * PAIRS * at >= size:
                return
            one = normals[2 * PAIRS * at : 2 * PAIRS * (at + 1)]
            count = count_words((one.size + 1) // 2)
            for start in range(0, (count + 3) // 4, AT_ONCE):
                encrypt(keys, counter + of_block * at + start, words.ctypes.data + 16 * start)
            if transform(words[:count], stddev, one):
                next_of(address + _DONE)

    return Job(job)
