"""Events of dp-accounting and histories of Opacus, against the epsilons of those packages."""

import json
import math
from collections import OrderedDict

import dp_accounting
import pytest
from dp_accounting import dp_event as events
from dp_accounting.pld import PLDAccountant

from discreet.errors import (
    DiscreetError,
    InvalidValue,
    NotApplicable,
    RelationMismatch,
    SchemaError,
)
from discreet.privacy import (
    DiscreteLaplace,
    Gaussian,
    GaussianMixture,
    PureDP,
    RandomizedResponse,
    from_event,
    from_opacus,
)

NEIGHBOURS = {
    "add_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace": dp_accounting.NeighboringRelation.REPLACE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}
STEP = events.PoissonSampledDpEvent(0.01, events.GaussianDpEvent(1.1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (events.GaussianDpEvent(1.3), "add_remove"),
        (events.GaussianDpEvent(1.3), "replace"),
        (events.GaussianDpEvent(1.3), "zero_out"),
        (events.LaplaceDpEvent(1.3), "add_remove"),
        (events.DiscreteLaplaceDpEvent(0.7, 2), "add_remove"),
        (events.RandomizedResponseDpEvent(0.4, 3), "replace"),
        (events.SelfComposedDpEvent(STEP, 300), "add_remove"),
        (events.SelfComposedDpEvent(STEP, 300), "replace"),
        (events.ComposedDpEvent([events.GaussianDpEvent(2.0), STEP, STEP]), "add_remove"),
    ],
)
def test_events_cost_what_their_own_accountant_says(event, relation):
    theirs = PLDAccountant(NEIGHBOURS[relation], value_discretization_interval=1e-4)
    known = theirs.compose(event).get_epsilon(1e-3)
    ours = from_event(event, relation=relation).loss
    assert ours.relation == relation
    assert known * (1 - 3e-3) - 1e-3 <= ours.epsilon(delta=1e-3) <= known * (1 + 1e-3) + 1e-4


def test_how_tensorflow_and_jax_privacy_describe_training():
    """Both compose Poisson-sampled Gaussians; averages are nested one deeper."""
    sum_query = events.PoissonSampledDpEvent(256 / 60_000, events.GaussianDpEvent(1.1))
    loss = events.SelfComposedDpEvent(sum_query, 14_062)
    known = 14_062 * Gaussian(1.1).poisson(rate=256 / 60_000)
    assert from_event(loss).loss == known
    nested = events.PoissonSampledDpEvent(
        0.01, events.ComposedDpEvent([events.GaussianDpEvent(2.0), events.GaussianDpEvent(2.0)])
    )
    one = from_event(nested).loss
    assert one.epsilon(delta=1e-5) == pytest.approx(
        Gaussian(math.sqrt(2.0)).poisson(rate=0.01).epsilon(delta=1e-5), rel=1e-9
    )
    assert any("drawn as the event says" in text for text in from_event(nested).assumptions)


def test_the_other_events():
    assert from_event(events.NoOpDpEvent()).loss == PureDP(0)
    assert from_event(events.ComposedDpEvent([])).loss == PureDP(0)
    assert from_event(events.ZCDpEvent(0.1)).loss.zcdp() == pytest.approx(0.1)
    shifted = from_event(events.ZCDpEvent(0.1, 0.2)).loss
    assert shifted.rdp([3.0])[0] >= 0.5
    subset = events.SampledWithoutReplacementDpEvent(1000, 10, events.GaussianDpEvent(2.0))
    assert from_event(subset, relation="replace").loss == Gaussian(
        2.0, "replace"
    ).sample_without_replacement(sample=10, population=1000)
    capped = events.TruncatedSubsampledGaussianDpEvent(1000, 0.05, 60, 1.0)
    assert from_event(capped).loss == Gaussian(1.0).poisson(rate=0.05, at_most=60, population=1000)
    tree = events.SingleEpochTreeAggregationDpEvent(4.0, [3, 7])
    found = from_event(tree, relation="zero_out").loss
    assert found.noise_multiplier == pytest.approx(4.0 / math.sqrt(3), rel=1e-12)
    best = events.RepeatAndSelectDpEvent(events.GaussianDpEvent(10.0), 10, 1)
    assert from_event(best).loss == Gaussian(10.0).best_of(10)
    poisson = events.RepeatAndSelectDpEvent(events.GaussianDpEvent(10.0), 10, math.inf)
    assert from_event(poisson).loss == Gaussian(10.0).best_of(10, "poisson")
    assert isinstance(from_event(events.DiscreteLaplaceDpEvent(1.0, 1)).loss, DiscreteLaplace)
    response = from_event(events.RandomizedResponseDpEvent(0.5, 2), relation="replace").loss
    assert isinstance(response, RandomizedResponse)
    assert response.truth_probability == pytest.approx(0.75)
    mixture = events.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.9, 0.1])
    assert isinstance(from_event(mixture).loss, GaussianMixture)


@pytest.mark.parametrize(
    ("event", "relation", "error"),
    [
        (events.NonPrivateDpEvent(), "add_remove", NotApplicable),
        (events.UnsupportedDpEvent(), "add_remove", NotApplicable),
        (events.SampledWithReplacementDpEvent(9, 3, events.GaussianDpEvent(1.0)), "replace",
         NotApplicable),
        (events.SampledWithoutReplacementDpEvent(9, 3, events.GaussianDpEvent(1.0)), "add_remove",
         RelationMismatch),
        (events.PoissonSampledDpEvent(0.1, events.LaplaceDpEvent(1.0)), "replace",
         RelationMismatch),
        (events.SingleEpochTreeAggregationDpEvent(1.0, 4), "add_remove", RelationMismatch),
        (events.RandomizedResponseDpEvent(0.5, 2), "add_remove", RelationMismatch),
        (events.GaussianDpEvent(0.0), "add_remove", InvalidValue),
        (events.GaussianDpEvent(1.0), "neighbours", InvalidValue),
        ("GaussianDpEvent", "add_remove", NotApplicable),
        (None, "add_remove", NotApplicable),
        (type("GaussianDpEvent", (), {})(), "add_remove", NotApplicable),
    ],
)  # fmt: skip
def test_what_has_no_loss_is_refused(event, relation, error):
    with pytest.raises(error):
        from_event(event, relation=relation)


def test_events_nested_without_end_are_refused():
    event = events.GaussianDpEvent(1.0)
    for _ in range(100):
        event = events.ComposedDpEvent([event])
    with pytest.raises(NotApplicable, match="nested"):
        from_event(event)


def test_an_opacus_history_costs_what_opacus_says():
    # As RDPAccountant of Opacus 1.6.0 keeps 40 steps and then 10 others, and its epsilon of them.
    history = [(1.1, 0.02, 40), (1.4, 0.05, 10)]
    state = OrderedDict([("history", history), ("mechanism", "rdp")])
    theirs = 1.3338460491752804
    for record in (history, state, json.loads(json.dumps(state))):
        found = from_opacus(record)
        first, second = Gaussian(1.1).poisson(rate=0.02), Gaussian(1.4).poisson(rate=0.05)
        assert found.loss == 40 * first + 10 * second
        assert "Poisson" in found.assumptions[0]
    ours = found.loss.epsilon(delta=1e-5)
    assert 0.7 * theirs < ours <= theirs


@pytest.mark.parametrize(
    "history",
    [
        [], {}, None, "history", 3, [1, 2, 3], [(1.0, 0.1)], [(1.0, 0.1, 5, 6)], ["abc"],
        {"history": []}, {"history": "abc"}, [(0.0, 0.1, 5)], [(1.0, 1.5, 5)], [(1.0, 0.1, -5)],
        [(1.0, 0.1, 2.5)], [(math.nan, 0.1, 5)], [("x", 0.1, 5)], [(1.0, 0.1, 0)],
        [(1.0, 0.0, 5)], [(math.inf, 0.1, 5)],
    ],
)  # fmt: skip
def test_what_is_no_history_is_refused(history):
    with pytest.raises(DiscreetError) as caught:
        from_opacus(history)
    assert isinstance(caught.value, SchemaError | InvalidValue)
