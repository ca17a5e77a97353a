"""``audit_mechanism`` and ``search_neighbours``: claims, verdicts, outputs, bad input."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

from discreet.audit import MechanismAudit, audit_mechanism, search_neighbours
from discreet.audit._verdict import judge_bound
from discreet.errors import InvalidValue, NotApplicable
from discreet.mechanisms import Release, binary_response
from discreet.privacy import ApproxDP, Gaussian, Laplace, PureDP
from discreet.randomness import source


def leaky(bit: int, count: int) -> np.ndarray:
    return np.full(count, bit)


def silent(_: Any, count: int) -> np.ndarray:
    return np.zeros(count)


def audited(mechanism: Any = silent, **settings: Any) -> MechanismAudit:
    settings = {"epsilon": 1.0, "samples": 400, "batch": True, **settings}
    if "loss" in settings:
        del settings["epsilon"]
    return audit_mechanism(mechanism, 0, 1, **settings)


# --- verdicts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "claimed", "most", "expected"),
    [
        (1.1, 1.0, 3.0, "violated"),
        (1.0, 1.0, 3.0, "consistent"),
        (0.0, 1.0, 3.0, "consistent"),
        (0.0, 3.0, 3.0, "too weak to tell"),
        (2.9, 5.0, 3.0, "too weak to tell"),
        (0.1, 0.0, 3.0, "violated"),
    ],
)
def test_verdict(shown: float, claimed: float, most: float, expected: str) -> None:
    assert judge_bound(shown, claimed, most) == expected


def test_a_complete_leak_reaches_the_ceiling() -> None:
    audit = audited(leaky)
    assert audit.violated
    assert audit.epsilon_lower == audit.ceiling
    assert audit.hits == (200, 0)
    assert (audit.samples, audit.trials) == (400, 200)
    root = (1e-3 / 4) ** (1 / 200)
    assert audit.ceiling == pytest.approx(math.log(root / (1 - root)), rel=1e-9)


def test_a_claim_above_the_ceiling_is_too_weak_to_tell_even_for_a_leak() -> None:
    audit = audited(leaky, epsilon=10.0)
    assert audit.verdict == "too weak to tell"
    assert audit.ceiling < 10


def test_silence_is_consistent_with_every_claim() -> None:
    audit = audited(epsilon=0.0)
    assert audit.verdict == "consistent"
    assert audit.epsilon_lower == 0.0


def test_delta_is_subtracted() -> None:
    generator = np.random.default_rng(1)

    def often_silent(bit: int, count: int) -> np.ndarray:
        return np.where(generator.random(count) < 0.3, bit + 1, 0)

    assert audited(often_silent, samples=4000, epsilon=0.0, delta=0.2).violated
    assert not audited(often_silent, samples=4000, epsilon=0.0, delta=0.3).violated


def test_more_samples_raise_the_ceiling_and_a_smaller_rate_lowers_it() -> None:
    assert audited(samples=400).ceiling < audited(samples=4000).ceiling
    assert audited(false_alarm_rate=1e-6).ceiling < audited(false_alarm_rate=1e-3).ceiling
    assert audited(delta=0.5).ceiling < audited().ceiling


def test_what_is_printed_and_written() -> None:
    audit = audited(leaky)
    text = str(audit)
    assert text.startswith("violated: epsilon >= 3.16")
    assert "at most 0.001" in text
    assert "output = " in text
    document = json.loads(json.dumps(audit.to_json(), allow_nan=False))
    assert document["verdict"] == "violated"
    assert document["hits"] == [200, 0]
    assert MechanismAudit(**{**document, "hits": tuple(document["hits"])}) == audit
    assert audit.confidence == pytest.approx(0.999)


# --- claims -----------------------------------------------------------------------------


def test_a_loss_is_read_at_delta() -> None:
    assert audited(loss=Laplace(scale=2.0)).claimed_epsilon == 0.5
    normal = Gaussian(noise_multiplier=1.0)
    assert audited(loss=normal, delta=0.01).claimed_epsilon == normal.epsilon(delta=0.01)
    stable = ApproxDP(epsilon=1, delta=0.01)
    assert audited(loss=stable, delta=0.01).claimed_epsilon == 1.0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epsilon": None}, "loss"),
        ({"loss": PureDP(epsilon=1), "and_epsilon": 1.0}, "loss"),
        ({"loss": "1"}, "loss"),
        ({"loss": Gaussian(noise_multiplier=1.0)}, "delta"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -0.1}, "delta"),
        ({"samples": 3}, "samples"),
        ({"samples": 100.0}, "samples"),
        ({"false_alarm_rate": 0.0}, "false_alarm_rate"),
        ({"false_alarm_rate": 0.6}, "false_alarm_rate"),
        ({"batch": 1}, "batch"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"mechanism": 3}, "mechanism"),
    ],
)
def test_bad_input_is_named_before_anything_is_drawn(settings: dict[str, Any], named: str) -> None:
    def touched(_: Any, count: int) -> Any:
        raise AssertionError("drawn")

    settings = {"mechanism": touched, "epsilon": 1.0, "batch": True, **settings}
    if "loss" in settings:
        settings["epsilon"] = settings.pop("and_epsilon", None)
    mechanism = settings.pop("mechanism")
    with pytest.raises(InvalidValue) as refused:
        audit_mechanism(mechanism, 0, 1, **settings)
    assert refused.value.argument == named
    with pytest.raises(InvalidValue) as refused:
        search_neighbours(mechanism, [(0, 1)], **settings)
    assert refused.value.argument == named


# --- how outputs are drawn --------------------------------------------------------------


def test_single_calls_batches_and_batch_attributes_agree() -> None:
    class Noisy:
        def __call__(self, bit: int) -> int:
            return bit

        def batch(self, bit: int, count: int) -> list[int]:
            return [bit] * count

    single = audit_mechanism(lambda bit: bit, 0, 1, epsilon=1.0, samples=400)
    assert single == audited(leaky) == audit_mechanism(Noisy(), 0, 1, epsilon=1.0, samples=400)


def test_a_release_is_opened_and_a_mechanism_of_this_package_is_consistent() -> None:
    bits = source(insecure_seed=4)
    release = binary_response(True, epsilon=1, source=bits)
    assert isinstance(release, Release)
    audit = audit_mechanism(
        lambda bit: binary_response(bit, epsilon=1, source=bits),
        True,
        False,
        loss=release.loss,
        samples=1000,
    )
    assert audit.verdict == "consistent"
    assert audit.epsilon_lower > 0.5


def test_an_error_for_one_input_refutes() -> None:
    def picky(records: list[int]) -> float:
        return 0.0 / len(records)

    audit = audit_mechanism(picky, [], [1], epsilon=1.0, samples=400)
    assert audit.violated
    assert "error ZeroDivisionError" in audit.event or "0" in audit.event


def test_the_text_of_an_error_counts() -> None:
    def talkative(value: int) -> None:
        raise ValueError(f"cannot use {value}") if value else ValueError("cannot use it")

    with pytest.raises(NotApplicable, match="answered neither"):
        audit_mechanism(talkative, 0, 1, epsilon=1.0, samples=40)
    calls = iter(range(10**6))

    def sometimes(value: int) -> int:
        if next(calls) % 2:
            raise ValueError(f"cannot use {value}")
        return 0

    assert audit_mechanism(sometimes, 0, 1, epsilon=1.0, samples=400).violated


def test_an_error_in_bulk_is_passed_on() -> None:
    def failing(_: Any, count: int) -> Any:
        raise RuntimeError("in bulk")

    with pytest.raises(RuntimeError, match="in bulk"):
        audited(failing)


@pytest.mark.parametrize("wrong", [lambda _, count: [0] * (count - 1), lambda _, count: 0])
def test_bulk_outputs_must_be_as_many_as_asked_for(wrong: Any) -> None:
    with pytest.raises(NotApplicable):
        audited(wrong)


def test_several_processes_need_joblib_and_agree_with_one(monkeypatch: Any) -> None:
    import sys
    import types

    calls: list[int] = []

    class Parallel:
        def __init__(self, n_jobs: int) -> None:
            calls.append(n_jobs)

        def __call__(self, tasks: Iterator[Any]) -> list[Any]:
            return [function(*arguments) for function, arguments in tasks]

    stand_in = types.ModuleType("joblib")
    stand_in.Parallel = Parallel
    stand_in.delayed = lambda function: lambda *arguments: (function, arguments)
    monkeypatch.setitem(sys.modules, "joblib", stand_in)
    assert audited(leaky, n_jobs=3, samples=401) == audited(leaky, samples=401)
    assert audit_mechanism(lambda bit: bit, 0, 1, epsilon=1.0, n_jobs=2, samples=400).violated
    assert calls == [3] * 4 + [2] * 4
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(NotApplicable, match="joblib"):
        audited(leaky, n_jobs=2)


# --- a search over neighbours -----------------------------------------------------------


def pairs(count: int) -> Iterator[tuple[int, int]]:
    for i in range(count):
        yield i, i + 1


def leaks_at_seven(value: int, count: int) -> np.ndarray:
    return np.full(count, float(value > 7))


@pytest.mark.parametrize("keep", [1, 3])
def test_the_search_finds_the_pair_that_leaks(keep: int) -> None:
    found = search_neighbours(
        leaks_at_seven, pairs(20), epsilon=1.0, samples=4000, keep=keep, batch=True
    )
    assert (found.first, found.second) == (7, 8)
    assert found.audit.violated
    assert found.audit.false_alarm_rate == 1e-3
    assert (found.pairs_tried, found.pairs_tested) == (20, keep)
    assert found.audit.trials == 2000 // keep
    assert "inputs 7 and 8" in str(found)
    assert json.loads(json.dumps(found.to_json()))["pairs_tried"] == 20


def test_the_search_stops_at_most_pairs_and_may_be_endless() -> None:
    def forever() -> Iterator[tuple[int, int]]:
        while True:
            yield 0, 1

    found = search_neighbours(silent, forever(), epsilon=1.0, most_pairs=5, batch=True)
    assert found.pairs_tried == 5
    assert found.audit.verdict == "consistent"


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 4])
def test_the_search_keeps_its_false_alarm_rate_over_many_pairs(keep: int) -> None:
    generator = np.random.default_rng(6)
    searches, rate = 30, 0.1

    def nothing(_: int, count: int) -> np.ndarray:
        return generator.normal(size=count)

    alarms = sum(
        search_neighbours(
            nothing,
            pairs(20),
            epsilon=0.0,
            samples=2000,
            false_alarm_rate=rate,
            keep=keep,
            batch=True,
        ).audit.violated
        for _ in range(searches)
    )
    assert alarms <= stats.binom.isf(1e-6, searches, rate)


@pytest.mark.parametrize(
    ("given", "settings", "named"),
    [
        ([], {}, "pairs"),
        (3, {}, "pairs"),
        ([(1, 2, 3)], {}, "pairs"),
        ([(0, 1)], {"most_pairs": 0}, "most_pairs"),
        ([(0, 1)], {"keep": 0}, "keep"),
        ([(0, 1)] * 50, {"samples": 100}, "samples"),
    ],
)
def test_bad_pairs_are_named(given: Any, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        search_neighbours(silent, given, epsilon=1.0, batch=True, **settings)
    assert refused.value.argument == named


def test_the_package_imports_neither_torch_nor_joblib() -> None:
    import subprocess
    import sys

    program = "import sys, discreet.audit; print(*sorted(m.split('.')[0] for m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"discreet", "numpy", "scipy"} <= loaded
    assert not loaded & {"torch", "joblib", "matplotlib", "sklearn", "pandas"}
