"""S26: what every kind of reply counts as, and what a round releases."""

import contextlib
import math

import numpy as np
import pytest
from scipy import stats

from discreet.errors import InvalidValue, MechanismHalted
from discreet.federated import Client, FederatedPlan, Round, clip_update, to_steps
from discreet.learn.dpsgd import Quantile
from discreet.randomness import CorrelatedStream, KeyedSource, source

SIZE = 6


def make(**changes):
    given = {"clients": 50, "expected_cohort": 10, "rounds": 20, "clip_norm": 1.0, "delta": 1e-5}
    given |= changes
    if not {"noise_multiplier", "local_epsilon"} & set(given):
        given["noise_multiplier"] = 1e-3
    return FederatedPlan(**given)


def open_round(plan, **settings):
    return Round(plan, 0, **{"size": SIZE, "asked": range(10), **settings})


UNIT = np.eye(SIZE)[0]


@pytest.mark.parametrize(
    ("update", "counts_as"),
    [
        (0.5 * UNIT, 0.5 * UNIT),
        (3.0 * UNIT, UNIT),
        (1e300 * np.ones(SIZE), np.ones(SIZE) / math.sqrt(SIZE)),
        (1e-320 * np.ones(SIZE), np.zeros(SIZE)),
        (np.zeros(SIZE), np.zeros(SIZE)),
        (np.nan * UNIT, np.zeros(SIZE)),
        (np.where(UNIT > 0, np.inf, 1.0), np.zeros(SIZE)),
    ],
)
def test_any_update_counts_as_one_of_at_most_the_clip_norm(update, counts_as):
    assert np.linalg.norm(clip_update(update, 1.0)) < 1.0
    one = open_round(make(noise_multiplier=1e-9))
    assert one.receive(3, {"update": update}) == "counted"  # it never went through a client
    found = one.finish().update * 10
    assert np.abs(found - counts_as).max() < 1e-4


@pytest.mark.parametrize(
    "reply",
    [
        None,
        np.ones(SIZE),
        {"update": [0.0] * SIZE},
        {"update": np.ones(SIZE + 1)},
        {"update": np.ones((SIZE, 1))},
        {"update": np.ones(SIZE, dtype=np.int64)},
        {"update": np.ones(SIZE), "num_examples": 20},
        {"update": np.ones(SIZE), "loss": 0.3},
        {"update": np.ones(SIZE, dtype=object)},
        {"weights": np.ones(SIZE)},
    ],
    ids=str,
)
def test_anything_but_the_update_is_turned_away_and_stops_nothing(reply):
    one = open_round(make())
    assert one.receive(3, reply) == "refused"
    assert np.abs(one.finish().update).max() < 0.01


def test_strangers_repeated_and_late_replies():
    one = open_round(make())
    reply = {"update": UNIT}
    words = [
        one.receive(99, reply),
        one.receive(1, reply),
        one.receive(1, {"update": -UNIT}),
        one.receive(2, reply, number=1),
        one.receive(2, {"update": UNIT, "n": 1}),
        one.receive(2, reply, number=0),
    ]
    assert words == ["not asked", "counted", "repeated", "late", "refused", "counted"]
    assert one.finish().update[0] == pytest.approx(0.2, abs=1e-2)
    assert one.receive(4, reply) == "late"
    with pytest.raises(MechanismHalted, match="once"):
        one.finish()
    assert one.tally["late"] == 2


def test_the_denominator_is_planned_also_when_nobody_replies():
    one = open_round(make())
    one.receive(0, {"update": UNIT})
    assert one.finish().update[0] == pytest.approx(0.1, abs=1e-2)
    empty = open_round(make(noise_multiplier=1.0), asked=()).finish().update
    assert (empty != 0).all()  # an empty cohort releases noise


def test_the_sum_is_exact_and_knows_no_order():
    updates = source(insecure_seed=4).words64(10 * SIZE).reshape(10, SIZE) / 2.0**66
    found = []
    for order in (range(10), reversed(range(10))):
        one = open_round(make(), source=source(insecure_seed=1))
        for client in order:
            one.receive(client, {"update": updates[client]})
        found.append(one.finish().update)
    assert (found[0] == found[1]).all()


def test_the_noise_has_the_planned_deviation_and_another_one_is_noticed():
    plan = make(noise_multiplier=0.7, clip_norm=0.5)
    noise = Round(plan, 0, size=20_000, asked=()).finish().update * 10 / (0.7 * 0.5)
    square = float((noise * noise).sum())
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 20_000)
    assert low < square < high
    assert not low < square * 1.1**2 < high


def test_weights_are_capped_and_never_sent():
    plan = make(weight_cap=40, planned_weight=0.5)
    replies = [Client(plan, examples=n).reply(UNIT) for n in (0, 20, 40, 10_000)]
    assert [round(float(r["update"][0]), 3) for r in replies] == [0.0, 0.5, 1.0, 1.0]
    assert all(set(reply) == {"update"} for reply in replies)
    one = open_round(plan)
    one.receive(0, replies[2])
    assert one.finish().update[0] == pytest.approx(1 / (10 * 0.5), abs=1e-2)
    with pytest.raises(InvalidValue, match="examples"):
        Client(plan)
    with pytest.raises(InvalidValue, match="examples"):
        Client(make(), examples=3)


def test_a_client_counts_its_rounds_by_itself():
    plan = make(trust="nobody", dimension=SIZE, local_epsilon=4.0, participations=4)
    client = Client(plan)
    for _ in range(4):
        client.reply(UNIT)
    for update in (UNIT, np.zeros(SIZE)):
        with pytest.raises(MechanismHalted, match="took part in 4"):
            client.reply(update)
    assert client.rounds_taken == 4


SUMS = {
    "trust": "aggregation",
    "dimension": SIZE,
    "threshold": 8,
    "colluders": 2,
    "participations": 4,
}


@pytest.mark.parametrize("shares", ["discrete_gaussian", "skellam"])
def test_sums_of_whole_steps_with_the_noise_of_clients(shares):
    plan = make(**SUMS, shares=shares, noise_multiplier=0.05)
    one = open_round(plan)
    for client in range(9):
        one.receive(client, Client(plan).reply(UNIT))
    # Nine shares, of which six are honest for certain.
    deviation = math.sqrt(9 * plan.share_variance) / plan.steps_per_clip / 10
    assert one.finish().update[0] == pytest.approx(0.9, abs=6 * deviation + 1e-3)


def test_a_round_of_sums_ends_without_one_below_the_threshold():
    plan = make(**SUMS)
    one = open_round(plan)
    for client in range(7):
        one.receive(client, Client(plan).reply(UNIT))
    assert one.receive(8, {"update": UNIT}) == "refused"  # not in whole steps
    with pytest.raises(MechanismHalted, match="fewer than 8"):
        one.finish()


def test_whole_steps_never_exceed_the_square_that_is_charged():
    plan = make(**SUMS, steps_per_clip=64, noise_multiplier=1.0)
    for number in range(200):
        signs = np.sign(source(insecure_seed=number).words8(SIZE).astype(float) - 127.5)
        whole = to_steps(plan, signs * 1e9, 1.0)
        assert int(whole @ whole) <= plan.l2_squared


def test_a_wrap_around_costs_accuracy_and_no_error():
    plan = make(**SUMS)
    one = open_round(plan)
    for client in range(9):
        one.receive(client, {"update": np.full(SIZE, 2**62, dtype=np.int64)})
    assert np.isfinite(one.finish().update).all()


def test_reports_of_directions_for_a_shuffler_and_for_nobody():
    for trust, more in (("nobody", {}), ("shuffler", {"threshold": 8})):
        plan = make(trust=trust, dimension=SIZE, local_epsilon=25.0, participations=4, **more)
        one = open_round(plan)
        for client in range(10):
            reply = Client(plan).reply(7.0 * UNIT)
            assert reply["update"].dtype == np.uint8
            assert one.receive(client, reply) == "counted"
        assert one.receive(3, {"update": UNIT}) == "repeated"
        assert one.finish().update[0] == pytest.approx(1.0, abs=0.6)
        other = open_round(plan)
        assert other.receive(0, {"update": np.zeros(4, dtype=np.uint8)}) == "refused"
        if trust == "shuffler":
            with pytest.raises(MechanismHalted):
                other.finish()
        else:
            assert (other.finish().update == 0).all()


def test_the_adaptive_clip_goes_where_the_lengths_are():
    plan = make(clipping=Quantile(count_stddev=0.5), rounds=80, expected_cohort=40)
    for start in (0.1, 3.0):
        norm = start
        for number in range(80):
            one = Round(plan, number, size=SIZE, asked=range(40), clip_norm=norm)
            for client in range(40):
                one.receive(client, Client(plan).reply(UNIT, clip_norm=norm))
            norm = one.finish().clip_norm
        assert 0.8 < norm < 1.25
    one = Round(plan, 0, size=SIZE, asked=range(40))
    assert one.receive(0, {"update": UNIT}) == "refused"  # without its bit
    assert one.receive(0, {"update": UNIT, "inside": 3}) == "refused"


def test_correlated_noise_takes_back_what_it_added():
    from discreet.privacy import Strategy

    bands = Strategy.square_root(4)
    plan = make(sampler="cyclic", noise=bands, noise_multiplier=1.0, expected_cohort=5)
    stream = CorrelatedStream(bands.coefficients, keys=[(0, KeyedSource(bytes(32), provenance={}))])
    rows = [
        Round(plan, n, size=4000, asked=(), correlated=stream).finish().update * 5 for n in range(8)
    ]
    # C times the noise is white: its rows are independent of unit variance.
    column = np.asarray(bands.coefficients)
    white = [sum(column[j] * rows[n - j] for j in range(min(n + 1, 4))) for n in range(8)]
    covariance = np.corrcoef(white)
    assert np.abs(covariance - np.eye(8)).max() < 0.09  # 5.5 deviations, 28 pairs: 1e-6
    assert np.std(white) == pytest.approx(1.0, abs=0.03)
    assert np.std(np.sum(rows, axis=0)) < 0.75 * math.sqrt(8)
    with pytest.raises(InvalidValue, match="correlated"):
        Round(plan, 0, size=4, asked=())


@pytest.mark.parametrize("norm", [0.0, -1.0, 5e-324, 1e-307, 0.5, math.inf, math.nan])
def test_a_server_cannot_choose_the_clip_of_clients_who_do_not_trust_it(norm):
    plans = (
        make(trust="aggregation", threshold=10, dimension=SIZE, noise_multiplier=1.0),
        make(trust="nobody", local_epsilon=1.0, dimension=SIZE),
        make(),
    )
    for plan in plans:
        client = Client(plan)
        with pytest.raises(InvalidValue, match="that of the plan"):
            client.reply(UNIT, clip_norm=norm)
        assert client.rounds_taken == 0
        client.reply(UNIT, clip_norm=plan.clip_norm)
    with pytest.raises(InvalidValue) if not 0 < norm < math.inf else contextlib.nullcontext():
        Client(make(clipping=Quantile())).reply(UNIT, clip_norm=norm)


@pytest.mark.parametrize("norm", [5e-324, 1e-307, 3e-305, 1e300])
def test_steps_whose_squares_overflow_are_zeros(norm):
    """A cell so small that steps are infinite: as integers each squares to 0 modulo 2^64."""
    plan = make(trust="aggregation", threshold=10, dimension=SIZE, noise_multiplier=1.0)
    with np.errstate(all="ignore"):
        steps = to_steps(plan, 1e9 * UNIT, norm)
    assert np.abs(steps).max() <= plan.steps_per_clip
    assert sum(int(one) ** 2 for one in steps) <= plan.l2_squared
