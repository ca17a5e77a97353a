"""Poisoned collections, and the mechanism auditor on every oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from discreet.attacks import poison_shares
from discreet.audit import audit_mechanism
from discreet.errors import InvalidValue
from discreet.local import (
    MEAN_METHODS,
    METHODS,
    CountMeanSketch,
    FrequencyOracle,
    Hierarchy,
    LocalPlan,
    Marginals,
    MeanOracle,
    Rappor,
    VectorOracle,
)


@pytest.mark.parametrize("method", METHODS)
def test_fakes_gain_what_the_bound_says_and_no_more(method: str) -> None:
    plan = FrequencyOracle(12, 1, method)
    values = np.arange(2_400) % 12
    found = poison_shares(plan, values, target=3, fakes=100, insecure_seed=7)
    assert found.poisoned.people == 2_500
    assert 0.0 < found.gain <= found.bound * (1 + 1e-9)
    assert found.gain == pytest.approx(found.bound, rel=1e-9)  # this attack is the best one
    # The lower epsilon is, the more a fake moves.
    weaker = poison_shares(
        FrequencyOracle(12, "1/4", method), values, target=3, fakes=100, insecure_seed=7
    )
    assert weaker.gain > found.gain
    with pytest.raises(InvalidValue, match="target"):
        poison_shares(plan, values, target=99, fakes=1, insecure_seed=1)


PLANS: list[tuple[LocalPlan, Any, Any]] = [
    *((FrequencyOracle(3, 1, method), 0, 1) for method in METHODS),
    (Rappor(3, 1), 0, 1),
    *((MeanOracle(0, 1, 1, method), 0.0, 1.0) for method in MEAN_METHODS),
    (VectorOracle(1, 1), [-1.0], [1.0]),
    (Marginals({"a": 2, "b": 2}, 1), (0, 0), (1, 1)),
    (Hierarchy(0, 1, 1, levels=1, fanout=2), 0.0, 1.0),
    (CountMeanSketch(1, width=2, rows=1), "a", "b"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "first", "second"), PLANS, ids=lambda one: str(one)[:40])
def test_the_auditor_does_not_refute_any_plan_and_refutes_half_of_its_epsilon(
    plan: LocalPlan, first: Any, second: Any
) -> None:
    seeds = iter(range(10**6))

    def draw(value: Any, count: int) -> list[bytes]:
        rows = plan.randomize_each([value] * count, insecure_seed=next(seeds))
        return [row.tobytes().hex() for row in rows]

    right = audit_mechanism(
        draw, first, second, loss=plan.loss, samples=8_000, false_alarm_rate=1e-7, batch=True
    )
    assert right.verdict != "violated"
    if isinstance(plan, FrequencyOracle) and plan.method in ("GRR", "PGR", "SS"):
        wrong = audit_mechanism(
            draw, first, second, epsilon=0.5, delta=0.0, samples=8_000,
            false_alarm_rate=1e-7, batch=True,
        )  # fmt: skip
        assert wrong.verdict == "violated"
