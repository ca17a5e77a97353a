"""When answers leave does not tell neighbours apart, even if the work takes longer for one.

Answers of two services that differ by one person are timed in turn, so that a busy moment of
the machine hits both alike. If times do not depend on the data, the two lists are exchangeable
and an exact Mann-Whitney test at 1e-9 raises a false alarm once in 10**9 runs. Its power is shown
by a planted leak: one record makes the work 0.2 s longer. Without a useful quantum the test sees
it; within the quantum it cannot.

Since rows are capped in each query, a person with very many rows makes it longer without any plant:
their rows are numbered again after the filter. The same test sees it, and the quantum hides it.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from scipy.stats import mannwhitneyu

from curator.service.studies import Local, Study, in_process, make_study, people

ALARM = 1e-9
ROUNDS = 24
LEAK = 0.2
COMMON = people(60)
MORE = [*COMMON, ("extra", 50, "Bodo")]
COUNT = {"kind": "count"}
FILTERED = {
    "kind": "group_by",
    "by": [{"op": "column", "name": "city"}],
    "where": {
        "op": "compare",
        "how": ">",
        "left": {"op": "column", "name": "age"},
        "right": {"op": "value", "value": 1},
    },
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Study]:
    return (
        make_study(tmp_path_factory.mktemp("without"), rows=COMMON),
        make_study(tmp_path_factory.mktemp("with"), rows=MORE),
    )


@contextmanager
def both(studies: tuple[Study, Study], quantum: float) -> Iterator[list[tuple[Study, Local]]]:
    with (
        in_process(studies[0], quantum=quantum) as first,
        in_process(studies[1], quantum=quantum) as second,
    ):
        yield list(zip(studies, (first, second), strict=True))


def slow_for_the_extra_person(services: list[tuple[Study, Local]], monkeypatch: Any) -> None:
    """A planted leak: an engine that takes longer where there is one record more."""
    engine = services[1][1].app.state.operations.datasets["people"].engine()
    rows = engine.rows

    def slow(*args: Any) -> Any:
        time.sleep(LEAK)
        return rows(*args)

    monkeypatch.setattr(engine, "rows", slow, raising=False)


def times(
    services: list[tuple[Study, Local]],
    start: int,
    rounds: int = ROUNDS,
    at_once: int = 6,
    query: dict[str, Any] = COUNT,
) -> tuple[list[float], list[float]]:
    """How long both take, question by question; a few pairs run side by side."""
    taken: tuple[list[float], list[float]] = ([], [])

    def pair(number: int) -> None:
        body = {"query": {**query, "epsilon": f"1/{1000 + number}"}}
        for place in (0, 1) if number % 2 else (1, 0):
            study, client = services[place]
            began = time.perf_counter()
            reply = client.post("/v1/datasets/people/ask", json=body, headers=study.token("ann"))
            taken[place].append(time.perf_counter() - began)
            assert reply.status_code == 200

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(pair, range(start, start + rounds)))
    return taken


def alarm(taken: tuple[list[float], list[float]]) -> bool:
    return bool(mannwhitneyu(*taken, method="exact").pvalue < ALARM)


@pytest.mark.slow
def test_neighbours_take_the_same_time(studies: tuple[Study, Study]) -> None:
    with both(studies, 0.02) as services:
        times(services, 10_000)  # connections are made, plans are compiled
        assert not alarm(times(services, 20_000))


@pytest.mark.slow
def test_a_leak_is_seen_without_a_quantum_and_hidden_by_it(
    studies: tuple[Study, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    with both(studies, 0.001) as services:
        times(services, 25_000)
        slow_for_the_extra_person(services, monkeypatch)
        assert any(alarm(times(services, at, 2 * ROUNDS)) for at in range(30_000, 60_000, 10_000))
    with both(studies, 0.6) as services:
        slow_for_the_extra_person(services, monkeypatch)
        assert not alarm(times(services, 60_000, at_once=8))


@pytest.mark.slow
def test_a_person_with_very_many_rows_is_hidden_by_the_quantum(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    crowd = [("extra", at % 101, ("Oslo", "Bergen", "Bodo")[at % 3]) for at in range(200_000)]
    studies = (
        make_study(tmp_path_factory.mktemp("few"), rows=COMMON),
        make_study(tmp_path_factory.mktemp("many"), rows=[*COMMON, *crowd]),
    )
    with both(studies, 0.001) as services:
        times(services, 10_000, query=FILTERED)
        starts = range(20_000, 60_000, 10_000)  # a busy machine may hide it once
        tried = (times(services, at, 2 * ROUNDS, at_once=2, query=FILTERED) for at in starts)
        assert any(map(alarm, tried))
    with both(studies, 2.0) as services:
        times(services, 60_000, at_once=8, query=FILTERED)
        assert not alarm(times(services, 70_000, at_once=4, query=FILTERED))
