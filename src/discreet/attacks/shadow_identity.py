"""Content hashes: they tell when two shadow models are the same.

A shadow model is known by the data, the records it was trained on, its seed and the training
function. A function is identified by its ``key`` attribute if it has one, else by what it runs
and reaches: see :mod:`discreet.attacks.shadow_code`. What cannot be identified is refused: a
cache that guesses hands out the models of an older experiment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.attacks.shadow_code import CodeWalk, feed_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["data_digest", "shadow_name", "train_key"]

FORMAT = "discreet.shadow.3"


def data_digest(records: Any, labels: NDArray[np.int64]) -> str:
    """Return a hash of all records and labels, in order."""
    state = hashlib.sha256()
    _feed_records(state, records)
    feed_array(state, labels.astype("<i8"))
    return state.hexdigest()


def shadow_name(data: str, row: NDArray[np.bool_], seed: int, key: str) -> str:
    """Return the name under which one shadow model's scores are kept."""
    state = hashlib.sha256()
    for text in (FORMAT, data, str(len(row)), str(seed), key):
        state.update(text.encode() + b"\0")
    state.update(np.packbits(row).tobytes())
    return state.hexdigest()[:40]


def train_key(train: Callable[..., Any]) -> str:
    """Return a text that changes if the training function does, or refuse."""
    declared = getattr(train, "key", None)
    if isinstance(declared, str) and declared:
        return f"declared:{declared}"
    walk = CodeWalk()
    walk.feed(train, "train")
    return f"code:{walk.hexdigest()}"


def _feed_records(state: Any, records: Any) -> None:
    if hasattr(records, "detach"):
        records = records.detach().cpu().numpy()
    if hasattr(records, "iloc"):
        state.update(
            repr([(str(name), str(kind)) for name, kind in records.dtypes.items()]).encode()
        )
        for name in records.columns:
            feed_array(state, np.asarray(records[name]))
        return
    feed_array(state, np.asarray(records))
