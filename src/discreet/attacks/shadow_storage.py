"""Where shadow scores are kept: one file for each model, complete or absent.

A file is written beside its place and then moved there, so that a process that is killed
leaves no half of one. What is there is taken only if it has the expected shape, ends with the
checksum of its content, and holds log-probabilities; anything else is trained again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["kept_seed", "read_scores", "write_scores"]

SEED_FILE = "pool.json"
# The probabilities of a target may miss 1 by 1e-3; single precision adds to it.
_SUM_TOLERANCE = 2e-3


def read_scores(path: Path, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Return the scores, mapped from the file, or ``None`` if they are not there whole."""
    try:
        scores = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    good = scores.shape == shape and scores.dtype == np.float32
    return scores if good and _is_whole(path, scores) and _are_log_probabilities(scores) else None


def write_scores(path: Path, scores: NDArray[np.float32]) -> None:
    """Put the scores in their place in one step, and their checksum behind them."""

    def write(stream: Any) -> None:
        np.save(stream, scores, allow_pickle=False)
        stream.write(_checksum(scores))

    _replace(path, write)


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

    Only a pool over the same data has the seed in common.
    """
    path = directory / SEED_FILE
    document: dict[str, Any] = {}
    if path.exists():
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            seeds = document["seeds"]
            known = seeds.get(data)
            if known is not None and (type(known) is not int or known < 0):
                raise ValueError(f"the seed {known!r}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidValue(
                "directory", str(directory), f"a directory of shadow models: {SEED_FILE} is damaged"
            ) from error
        if isinstance(known, int):
            return known
    seeds = {**document.get("seeds", {}), data: fresh}
    text = json.dumps({"schema": "discreet.shadows", "version": 1, "seeds": seeds}, indent=1)
    _replace(path, lambda stream: stream.write(text.encode()))
    return fresh


def _replace(path: Path, write: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
