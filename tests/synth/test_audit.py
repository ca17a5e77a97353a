"""S33: the noise of a synthesis shows nearly all of the claimed mu, and no more."""

from dataclasses import replace

import pytest

from discreet.audit import VIOLATED, audit_gaussian
from discreet.data import Integer, Schema
from discreet.synth import OneShot, canary_scores

SCHEMA = Schema({name: Integer(0, 9) for name in "abc"}, expected_rows=50_000)


@pytest.mark.slow
def test_a_million_runs_show_nine_tenths_of_mu() -> None:
    plan = OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-9)
    mu = plan.loss.mu
    included, excluded = canary_scores(plan, runs=500_000, insecure_seed=1)
    # Scores are N(mu^2, mu^2) with the record and N(0, mu^2) without it.
    assert included.mean() - excluded.mean() == pytest.approx(mu**2, rel=0.05)
    audit = audit_gaussian(
        included,
        excluded,
        mechanism="gaussian",
        loss=plan.loss,
        delta=1e-9,
        thresholds=mu**2 / 2,
        false_alarm_rate=0.05,
    )
    assert 0.9 * mu <= audit.evidence["mu_lower"] <= mu
    assert audit.verdict != VIOLATED


def test_honest_noise_is_never_refuted_and_too_little_always() -> None:
    """The seeds are fixed. Less noise than charged, in one of the three releases, is found."""
    plan = OneShot().plan(SCHEMA, epsilon=8.0, delta=1e-6)
    mu = plan.loss.mu

    def audited(seed: int, **faults: float) -> str:
        wrong = replace(plan, budget=replace(plan.budget, **faults))
        included, excluded = canary_scores(wrong, runs=4_000, insecure_seed=seed)
        middle = float(included.mean() + excluded.mean()) / 2
        return audit_gaussian(
            included,
            excluded,
            mechanism="gaussian",
            loss=plan.loss,
            delta=1e-6,
            thresholds=middle,
            false_alarm_rate=1e-6,
        ).verdict

    assert all(audited(seed) != VIOLATED for seed in range(10))
    assert audited(1, column_stddev=plan.budget.column_stddev / 3) == VIOLATED
    assert audited(1, score_stddev=plan.budget.score_stddev / 6) == VIOLATED
    assert audited(1, table_mu=2 * mu) == VIOLATED
