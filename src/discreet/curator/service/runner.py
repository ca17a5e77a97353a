"""Synchronous work in threads, and errors of it as problems that may leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar, final

from discreet.curator.service.problems import FAILED, Problem, problem_of

__all__ = ["Runner", "Unanswered"]

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("discreet.curator")


class Unanswered(Exception):
    """A problem on its way to whoever asked."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.kind)
        self.problem = problem


@final
class Runner:
    """A pool of threads for the work of one process."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="curator")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do some work in a thread; whatever goes wrong becomes ``Unanswered``."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the text of any other error stays here
            problem = problem_of(error)
            if problem is FAILED:
                # The type and the place, never the text: it may hold something of a record.
                _log.error("%s at %s", type(error).__name__, _place(error))
            raise Unanswered(problem) from None

    def close(self) -> None:
        """Finish what has begun and take no more work."""
        self._pool.shutdown(wait=True)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
