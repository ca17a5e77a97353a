"""Where shadow scores are kept: one file for each model, complete or absent.

A file is written beside its place and then moved there, so that a process that is killed
leaves no half of one. What is there is taken only if it has the expected shape, ends with the
checksum of its content, and holds log-probabilities; anything else is trained again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from discreet._files import create_file, replace_file
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["kept_seed", "read_scores", "write_scores"]

SEED_FILE = "pool-{}.json"
# The probabilities of a target may miss 1 by 1e-3; single precision adds to it.
_SUM_TOLERANCE = 2e-3


def read_scores(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Return the scores, mapped from the file, or ``None`` if they are not there whole."""
    if path.is_dir():
        expected = f"a directory of shadow models: {path.name} is a directory, not a file of scores"
        raise InvalidValue("directory", str(path.parent), expected)
    try:
        scores = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    good = scores.shape == shape and scores.dtype == np.float32
    return scores if good and _is_whole(path, scores) and _are_log_probabilities(scores) else None


def write_scores(path: Path, scores: NDArray[np.float32]) -> None:
    """Put the scores in their place in one step, and their checksum behind them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path, private=True) as draft, draft.open("wb") as stream:
        np.save(stream, scores, allow_pickle=False)
        stream.write(_checksum(scores))


def _checksum(scores: NDArray[np.float32]) -> bytes:
    state = hashlib.sha256(repr(scores.shape).encode())
    state.update(np.ascontiguousarray(scores).data)
    return state.digest()


def _is_whole(path: Path, scores: NDArray[np.float32]) -> bool:
    wanted = _checksum(scores)
    with path.open("rb") as stream:
        stream.seek(-len(wanted), os.SEEK_END)
        return stream.read() == wanted


def _are_log_probabilities(scores: NDArray[np.float32]) -> bool:
    """Whether every row is that of a distribution: also written by hand, a file cannot lie."""
    for start in range(0, len(scores), 65536):
        part = np.asarray(scores[start : start + 65536], dtype=np.float64)
        # A comparison with NaN is false.
        if not (part <= 0).all() or np.abs(np.exp(part).sum(axis=1) - 1).max() > _SUM_TOLERANCE:
            return False
    return True


def kept_seed(directory: Path, data: str, fresh: int) -> int:
    """Return the seed that this directory's pool was begun with, or keep ``fresh`` as it.

    Only a pool over the same data has the seed in common. Of several processes that begin at
    the same time one keeps its seed, and all use it.
    """
    path = directory / SEED_FILE.format(data[:40])
    if not path.exists():
        text = json.dumps({"schema": "discreet.shadows", "version": 2, "data": data, "seed": fresh})
        path.parent.mkdir(parents=True, exist_ok=True)
        create_file(path, text, private=True)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        known, about = document["seed"], document["data"]
        if type(known) is not int or known < 0 or about != data:
            raise ValueError(f"the seed {known!r} of {about!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidValue(
            "directory", str(directory), f"a directory of shadow models: {path.name} is damaged"
        ) from error
    return known
