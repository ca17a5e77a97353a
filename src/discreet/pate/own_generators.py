"""Generators of its own for each teacher, although libraries share theirs.

``random``, numpy and torch keep one generator for the whole process. How often a teacher draws from
it depends on its records, so with a fixed seed one record would move the votes of all teachers
that come later, and the sensitivity of a vote count would not be one teacher's.
"""

from __future__ import annotations

import random  # noqa: TID251 - its state is set aside and put back
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

__all__ = ["alone", "own_generators"]

# Two teachers in threads of one process would draw from one another's generators.
_ALONE = threading.RLock()


def alone() -> AbstractContextManager[Any]:
    """Inside, no other teacher of this process runs: generators and filters are shared by all."""
    return _ALONE


@contextmanager
def own_generators(seed: int) -> Iterator[None]:
    """Inside, the generators of the process start from ``seed``; afterwards they are as before."""
    with _ALONE:
        torch = sys.modules.get("torch")
        python = random.getstate()
        numbers = np.random.get_state()  # noqa: NPY002, TID251 - set aside, not drawn from
        tensors = None if torch is None else torch.random.get_rng_state()
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002, TID251 - the teacher's own
            if torch is not None:
                torch.random.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)  # noqa: NPY002, TID251 - put back
            if torch is not None:
                torch.random.set_rng_state(tensors)
