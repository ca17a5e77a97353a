"""Rates, and the moments at which answers may leave."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.curator.service import Settings
from discreet.curator.service._gate import Limiter, release_after
from discreet.errors import InvalidValue


@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 20),
    pauses=st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_window_holds_more_than_burst_and_rate(
    rate: float, burst: int, pauses: list[float]
) -> None:
    now = [0.0]
    limiter = Limiter(rate=rate, burst=burst, clock=lambda: now[0])
    granted: list[float] = []
    for pause in pauses:
        now[0] += pause
        wait = limiter.wait_for("ann")
        if wait:
            now[0] += wait
            assert limiter.wait_for("ann") == 0.0  # who waits as told is let in
        granted.append(now[0])
    for first, begin in enumerate(granted):
        for last in range(first, len(granted)):
            window = granted[last] - begin
            assert last - first + 1 <= burst + rate * window + 1e-6


def test_callers_do_not_share_a_bucket_and_are_forgotten_when_full() -> None:
    now = [0.0]
    limiter = Limiter(rate=1, burst=1, clock=lambda: now[0])
    assert limiter.wait_for("ann") == 0
    assert limiter.wait_for("ann") > 0
    assert limiter.wait_for("bob") == 0
    now[0] = 100.0
    limiter.wait_for("eve")
    assert list(limiter._full_at) == ["eve"]


def test_threads_together_get_no_more_than_the_burst() -> None:
    limiter = Limiter(rate=1e-6, burst=50)
    granted: list[bool] = []

    def work() -> None:
        granted.extend(limiter.wait_for("ann") == 0 for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 50


@given(elapsed=st.floats(0, 1000), quantum=st.floats(0.001, 10))
def test_answers_leave_at_the_next_power_of_two(elapsed: float, quantum: float) -> None:
    moment = release_after(elapsed, quantum)
    power = math.log2(moment / quantum)
    assert moment >= elapsed
    assert power == pytest.approx(round(power), abs=1e-9)
    assert power >= 0
    assert moment == quantum or moment / 2 < elapsed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ledger", ""),
        ("data", "a directory that is not there"),
        ("quantum", 0),
        ("rate", -1.0),
        ("burst", 0),
        ("body_limit", 10),
        ("threads", 0),
        ("workers", 1.5),
        ("body_seconds", 0),
    ],
)
def test_settings_that_make_no_sense_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        Settings(**{"ledger": "study.ledger", field: value})  # type: ignore[arg-type]
    assert caught.value.argument == field


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(InvalidValue):
        Settings.from_json('{"ledger": "a", "quantums": 1}')
