"""Work shared with the threads of torch: each piece is done once, whoever does it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

import discreet._threads as threads_module
from discreet._threads import Job, numba_works, primitives
from discreet.randomness import NormalStream, source

PIECES = 20_000


class Work(ctypes.Structure):
    _fields_ = (("taken", ctypes.c_int64), ("pieces", ctypes.c_int64), ("counts", ctypes.c_int64))


def make_job() -> Job:
    pointer, next_of, carray = primitives()

    def count(address: int) -> None:
        work = carray(pointer(address), 3, dtype=np.int64)
        counts = carray(pointer(work[2]), work[1], dtype=np.int64)
        while True:
            at = next_of(address)
            if at >= work[1]:
                return
            counts[at] += 1

    return Job(count)


@pytest.fixture(scope="module")
def job() -> Job:
    return make_job()


def times_done(job: Job, *, shared: bool) -> tuple[np.ndarray, int]:
    counts = np.zeros(PIECES, dtype=np.int64)
    work = Work(0, PIECES, counts.ctypes.data)
    job.run(work, shared=shared)
    return counts, work.taken - PIECES


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_piece_is_done_once(job: Job, shared: bool, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        counts, askers = times_done(job, shared=shared)
    finally:
        torch.set_num_threads(before)
    assert (counts == 1).all()
    # Each thread learns by one more question that nothing is left.
    has_threads = shared and threads_module._parallel_of_torch() is not None
    assert askers == (threads if has_threads else 1)


def test_other_threads_of_python_may_share_too(job: Job) -> None:
    found: list[bool] = []

    def several() -> None:
        found.extend(bool((times_done(job, shared=True)[0] == 1).all()) for _ in range(20))

    started = [threading.Thread(target=several) for _ in range(3)]
    for one in started:
        one.start()
    for one in started:
        one.join()
    assert found == [True] * 60


def in_child(job: Job, result: Any) -> None:
    counts, askers = times_done(job, shared=True)
    result.put((threads_module._forked, bool((counts == 1).all()), askers))


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(job: Job) -> None:
    assert (times_done(job, shared=True)[0] == 1).all()
    context = multiprocessing.get_context("fork")
    result = context.Queue()
    child = context.Process(target=in_child, args=(job, result))
    child.start()
    assert result.get(timeout=60) == (True, True, 1), "the child does all of it, alone"
    child.join()
    assert child.exitcode == 0
    assert not threads_module._forked


@pytest.mark.parametrize("missing", [AttributeError, OSError])
def test_without_an_entry_point_one_thread_does_all(
    missing: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_library(*_: object) -> None:
        raise missing

    threads_module._parallel_of_torch.cache_clear()
    monkeypatch.setattr(threads_module.ctypes, "CDLL", no_library)
    try:
        counts, askers = times_done(make_job(), shared=True)
    finally:
        monkeypatch.undo()
        threads_module._parallel_of_torch.cache_clear()
    assert (counts == 1).all()
    assert askers == 1


def run_with(settings: dict[str, str], lines: str) -> str:
    """What a new process prints under these settings of the environment."""
    done = subprocess.run(
        [sys.executable, "-c", lines],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"NUMBA_CPU_NAME": "generic"},
        {"NUMBA_ENABLE_AVX": "0"},
        {"NUMBA_DISABLE_JIT": "1"},
    ],
)
def test_a_numba_that_compiles_for_less_or_not_at_all(settings: dict[str, str]) -> None:
    """Noise goes on, and is the same up to rounding; nothing is compiled that cannot run."""
    lines = (
        "import numpy as np, discreet.randomness._normals as t\n"
        "from discreet.randomness import NormalStream, source\n"
        "t._COMPILE_AFTER = 0\n"
        "print(NormalStream(source=source(insecure_seed=1)).array(99_999, dtype=np.float32).sum())"
    )
    here = NormalStream(source=source(insecure_seed=1)).array(99_999, dtype=np.float32)
    assert float(run_with(settings, lines)) == pytest.approx(float(here.sum()), abs=0.5)


def test_a_numba_that_cannot_be_imported_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numba_works()
    numba_works.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    try:
        assert not numba_works()
    finally:
        monkeypatch.undo()
        numba_works.cache_clear()
    assert numba_works()
