"""S26: what a federated plan costs, by whom is trusted, and that nothing else can be planned."""

import math

import pytest

from discreet.errors import InvalidValue, SchemaError
from discreet.federated import FederatedPlan
from discreet.learn.dpsgd import Automatic, Quantile
from discreet.ledger import Ledger
from discreet.privacy import (
    Gaussian,
    PureDP,
    Relation,
    Skellam,
    Strategy,
    SummedDiscreteGaussian,
)

RUN = {"clients": 3000, "expected_cohort": 100, "rounds": 100, "clip_norm": 0.3, "delta": 1e-5}
SUMS = {"trust": "aggregation", "threshold": 80, "colluders": 10, "dimension": 50}


def make(**changes):
    given = {**RUN, **changes}
    if not {"epsilon", "noise_multiplier", "local_epsilon"} & set(given):
        given["noise_multiplier"] = 1.0
    return FederatedPlan(**given)


def test_a_trusted_server_amplifies_by_sampling_clients():
    plan = make()
    assert plan.loss == 100 * Gaussian(1.0).poisson(rate=100 / 3000)
    assert plan.epsilon() == pytest.approx(2.348, abs=1e-3)
    assert plan.loss.relation is Relation.ADD_REMOVE
    # Flower's accountant knows no amplification: 96.0 for the same noise, 41 times as much.
    assert (100 * Gaussian(1.0)).epsilon(delta=1e-5) / plan.epsilon() > 38


def test_the_adaptive_clip_pays_for_its_bits():
    rule = Quantile(count_stddev=5.0)
    plan = make(clipping=rule)
    exact = (1.0**-2 + (2 * 5.0) ** -2) ** -0.5
    (part,) = plan.loss.parts
    assert part[0].base.noise_multiplier == pytest.approx(exact, rel=1e-12)
    assert plan.epsilon() > make().epsilon()


def test_other_samplers_of_a_trusted_server():
    fixed = make(sampler="without_replacement")
    once = Gaussian(1.0, "replace").sample_without_replacement(sample=100, population=3000)
    assert fixed.loss == 100 * once
    full = make(sampler="full", expected_cohort=3000)
    assert full.loss == 100 * Gaussian(1.0)
    bands = Strategy.square_root(4)
    turns = make(sampler="cyclic", noise=bands)
    assert turns.loss == Gaussian(1.0).correlated(
        bands, steps=100, separation=4, rate=4 * 100 / 3000
    )
    bins = make(sampler="fixed_bins", noise=bands)
    assert bins.loss == Gaussian(1.0).correlated(bands, steps=100, separation=30)


def test_one_record_may_change_the_whole_update_of_its_client():
    plan = make(unit="record")
    assert plan.loss == 100 * Gaussian(1.0, "replace").poisson(rate=100 / 3000)
    sums = make(**SUMS, unit="record")
    client = make(**SUMS)
    (one,), (two,) = client.loss.parts, sums.loss.parts
    assert two[0].l2 == pytest.approx(2 * one[0].l2)
    assert sums.loss.relation is Relation.REPLACE


@pytest.mark.parametrize("unit", ["image", "Images", "visit", "message", "row"])
def test_other_words_for_a_record_cost_what_a_record_costs(unit):
    """Charged like a client, an image would move an update twice as far as was paid for."""
    plan, clients = make(unit=unit), make(unit="phone")
    assert plan.epsilon() == make(unit="record").epsilon() > 1.3 * clients.epsilon()
    assert f"the unit, {unit}, is one of many that one client has" in plan.assumptions
    assert "the unit, phone, is all that one client has" in clients.assumptions


@pytest.mark.parametrize("shares", ["discrete_gaussian", "skellam"])
def test_sums_are_charged_at_the_smallest_honest_number_without_amplification(shares):
    plan = make(**SUMS, shares=shares, noise_multiplier=3.0, participations=7)
    ((loss, count),) = plan.loss.parts
    assert count == 7
    assert plan.loss.relation is Relation.ZERO_OUT
    assert plan.honest == 70
    total = 70 * plan.share_variance
    # Noise of 3 largest lengths in all; the length is that after rounding.
    assert total >= 9 * plan.l2_squared
    assert loss.l2 >= math.sqrt(plan.l2_squared)
    if shares == "skellam":
        assert loss == Skellam(float(total), loss.l2, loss.l1)
    else:
        assert loss == SummedDiscreteGaussian(float(plan.share_variance), 70, loss.l2, loss.l1, 50)
    # No less than Gaussian noise of the same variance costs.
    mu = loss.l2 / math.sqrt(total)
    assert loss.rdp([4.0])[0] >= 4.0 * mu * mu / 2.0
    assert loss.rdp([4.0])[0] <= 4.0 * mu * mu / 2.0 * 1.02
    more = make(**{**SUMS, "colluders": 30}, shares=shares, noise_multiplier=3.0)
    assert more.share_variance > plan.share_variance  # fewer honest ones: each adds more


def test_a_shuffler_and_nobody():
    mixed = make(
        trust="shuffler", threshold=90, colluders=10, dimension=50, local_epsilon=2.0,
        participations=5,
    )  # fmt: skip
    assert mixed.loss == 5 * PureDP(2.0, "replace").shuffled(population=80)
    alone = make(trust="nobody", dimension=50, local_epsilon=2.0, participations=5)
    assert alone.loss == 5 * PureDP(2.0, "replace")
    assert mixed.epsilon() < alone.epsilon()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"clipping": Quantile()},
        {"sampler": "cyclic", "noise": Strategy.square_root(2), "rounds": 20},
        pytest.param({"sampler": "cyclic", "noise": "best"}, marks=pytest.mark.slow),
        {"weight_cap": 50, "planned_weight": 0.4},
        {**SUMS, "participations": 10},
        {**SUMS, "shares": "skellam", "participations": 10, "steps_per_clip": 2048},
        pytest.param(
            {"trust": "shuffler", "threshold": 80, "dimension": 9, "participations": 10},
            marks=pytest.mark.slow,
        ),
        {"trust": "nobody", "dimension": 9, "participations": 10},
    ],
    ids=str,
)
def test_a_target_is_met_and_plans_survive_json(given):
    plan = make(**given, epsilon=4.0)
    assert 3.9 < plan.epsilon() <= 4.0
    again = FederatedPlan.from_json(plan.to_json())
    assert (again, again.loss, again.content_hash) == (plan, plan.loss, plan.content_hash)


def test_a_damaged_plan_is_refused():
    good = make(epsilon=4.0).to_json()
    for change in (
        {"version": 2},
        {"more": 1},
        {"noise_multiplier": 0.9 * good["noise_multiplier"]},
        {"trust": "aggregation"},
        {"clipping": {"kind": "automatic", "gamma": 0.01}},
        {"rounds": "many"},
        {"noise": 3},
    ):
        with pytest.raises(SchemaError, match="plan"):
            FederatedPlan.from_json({**good, **change})
    with pytest.raises(SchemaError):
        FederatedPlan.from_json({key: good[key] for key in good if key != "delta"})


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("trust", {"trust": "me"}),
        ("unit", {"unit": " "}),
        ("expected_cohort", {"expected_cohort": 3001}),
        ("clipping", {"clipping": Automatic()}),
        ("clipping", {**SUMS, "clipping": Quantile()}),
        ("noise", {**SUMS, "noise": Strategy.square_root(4)}),
        ("noise", {"noise": Strategy.square_root(4)}),  # a client may come back within the bands
        ("sampler", {**SUMS, "sampler": "poisson"}),  # the server picks: nothing is amplified
        ("sampler", {"sampler": "chosen"}),
        ("threshold", {**SUMS, "threshold": 66}),  # not above two thirds
        ("threshold", {**SUMS, "threshold": 80, "colluders": 61}),  # two rounds from one cohort
        ("threshold", {"threshold": 80}),
        ("colluders", {"colluders": 1}),
        ("dimension", {**SUMS, "dimension": None}),
        ("dimension", {"dimension": 3}),
        ("participations", {"participations": 3}),
        ("participations", {**SUMS, "participations": 3}),  # 3000 * 3 < 100 * 100
        ("noise_multiplier", {**SUMS, "local_epsilon": 1.0}),
        ("noise_multiplier", {"trust": "nobody", "dimension": 3, "noise_multiplier": 1.0}),
        ("planned_weight", {"planned_weight": 0.5}),
        ("shares", {**SUMS, "shares": "polya"}),
        ("shares", {"shares": "skellam"}),
        ("steps_per_clip", {**SUMS, "steps_per_clip": 1}),  # shares too coarse
        ("steps_per_clip", {**SUMS, "shares": "skellam", "steps_per_clip": 1 << 20}),
        ("weight_cap", {"trust": "nobody", "dimension": 3, "local_epsilon": 1.0, "weight_cap": 9}),
    ],
)
def test_what_has_no_meaning_under_a_trust_is_refused(argument, given):
    with pytest.raises(InvalidValue) as caught:
        make(**given)
    assert caught.value.argument.startswith(argument)


def test_ledgers_hold_budgets_for_clients_whose_noise_is_their_own(tmp_path):
    plan = make(**SUMS, epsilon=2.0, participations=10)
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.create_dataset("phones", epsilon=4, delta=1e-4, unit="client", relation="zero_out")
        with ledger.charge("phones", plan.loss, delta="1/100000") as charge:
            charge.record({})
        assert ledger.show("phones").relation is Relation.ZERO_OUT
        assert not ledger.verify().problems


def test_delta_above_one_over_clients_is_said():
    assert "DELTA" in make(delta=1e-3).warnings[0]
    assert make().warnings == ()


@pytest.mark.parametrize("unit", [" record", "Record ", "rows", "examples"])
def test_other_spellings_of_a_record_are_records(unit):
    assert make(unit=unit).loss == make(unit="record").loss
    assert make(**SUMS, unit=unit).loss == make(**SUMS, unit="record").loss
