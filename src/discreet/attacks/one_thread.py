"""One thread for small fits.

Attack models learn from thousands of answers, not millions: a second thread gains nothing,
and on a machine that is busy, threads that wait for one another cost a hundredfold.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

__all__ = ["one_thread"]


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which linear algebra and OpenMP use one thread.

    Without the package threadpoolctl, which comes with scikit-learn, it does nothing.
    """
    try:
        limits = import_module("threadpoolctl").threadpool_limits
    except ImportError:
        return nullcontext()
    context: AbstractContextManager[Any] = limits(limits=1)
    return context
