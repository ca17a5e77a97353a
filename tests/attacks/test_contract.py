"""The registry of attacks, an attack from outside, reconstruction, and a bench of two defences."""

import inspect
import json
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from discreet.attacks import (
    ATTACKS,
    INPUTS,
    Finding,
    LinkageResult,
    MembershipResult,
    Observation,
    PropertyResult,
    Proportion,
    attack,
    compare_defences,
    link_tables,
    measure_anonymity,
    reconstruction,
)
from discreet.errors import InvalidValue, NotApplicable

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 5))
Y = (X[:, 0] + RNG.normal(0, 3.0, 400) > 0).astype(np.int64)


def deep(indices: Any, seed: int) -> Any:
    return RandomForestClassifier(20, random_state=seed).fit(X[indices], Y[indices])


def shallow(indices: Any, seed: int) -> Any:
    return DecisionTreeClassifier(max_depth=2, random_state=seed).fit(X[indices], Y[indices])


def test_all_attacks_are_registered_and_say_what_they_need() -> None:
    assert set(ATTACKS) == {
        *("yeom", "lira", "rmia", "shokri", "quantile_regression", "label_only"),
        *("attribute_inference", "property_inference", "invert"),
        *("measure_anonymity", "link_tables", "reconstruction"),
    }
    for one in ATTACKS.values():
        assert set(one.needs) <= set(INPUTS)
        assert len(one.summary) > 20
        for parameter in inspect.signature(one.run).parameters.values():
            assert parameter.name in one.needs or parameter.default is not parameter.empty
    with pytest.raises(NotApplicable, match="lira needs shadows"):
        ATTACKS["lira"]({"observation": 1})


def test_a_finding_leaks_only_above_its_baseline() -> None:
    found = Finding("a", "b", 0.7, 0.6, 0.8, 0.95, 0.5, 10)
    assert found.leaks
    assert found.to_json()["leaks"] is True
    assert not Finding("a", "b", 0.7, 0.5, 0.8, 0.95, 0.5, 10).leaks
    assert "by chance 0.500" in str(found)


def test_membership_is_measured_at_the_least_rate_that_records_support() -> None:
    scores = np.concatenate([np.ones(50), np.zeros(150)])
    members = np.arange(200) < 100
    codes = np.zeros(200, dtype=np.int64)
    result = MembershipResult("made up", scores, members, codes, np.arange(200))
    found = result.finding
    assert (found.baseline, found.trials) == (0.01, 100)
    assert (found.value, found.low) == (0.5, result.tpr_at(0.01).low)
    few = MembershipResult("few", scores[98:102], members[98:102], codes[:4], np.arange(4))
    assert (few.finding.baseline, few.finding.trials) == (0.5, 2)


def test_tables_are_counted_and_linked_tables_are_judged() -> None:
    table = {"zip": ["1", "1", "2", "3"], "name": ["a", "b", "c", "d"]}
    found = measure_anonymity(table, quasi_identifiers=["zip"]).finding
    assert (found.value, found.low, found.high, found.confidence) == (0.5, 0.5, 0.5, 1.0)
    released = {"zip": ["1", "2", "3"], "who": ["a", "c", "d"]}
    unknown = link_tables({"zip": released["zip"]}, table, on=["zip"])
    assert isinstance(unknown, LinkageResult)
    assert unknown.finding.value == pytest.approx(2 / 3)
    known = link_tables(released, table, on=["zip"], truth=("who", "name")).finding
    assert known.value == pytest.approx(2 / 3)
    assert known.low < known.value < known.high
    assert known.baseline == pytest.approx(3 / 12)


def test_a_property_is_compared_with_chance() -> None:
    share = Proportion(9, 10, 0.55, 0.99, 0.95)
    found = PropertyResult("outputs", 1, 1, share, share, share, 0.9, 0.5, "made up").finding
    assert found.leaks
    assert found.trials == 10


# --- reconstruction ------------------------------------------------------------------------------


def counts(rows: int, queries: int, noise: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    bits, sets = rng.random(rows) < 0.5, rng.random((queries, rows)) < 0.5
    return sets @ bits.astype(float) + rng.normal(0, noise, queries), sets, bits


def test_accurate_answers_give_the_column_away_and_noisy_ones_do_not() -> None:
    """Noise of sqrt(n) / 10 is no protection; noise of 4 sqrt(n) is."""
    near = reconstruction(*counts(100, 400, 1.0, 1))
    assert near.accuracy.share > 0.95
    assert near.finding.leaks
    far = reconstruction(*counts(100, 400, 40.0, 2))
    assert not far.finding.leaks
    body = json.dumps(near.to_json())
    assert "guesses" not in body


def test_reconstruction_never_reads_the_secrets() -> None:
    answers, sets, bits = counts(50, 200, 1.0, 3)
    other = reconstruction(answers, sets, ~bits)
    np.testing.assert_array_equal(reconstruction(answers, sets, bits).guesses, other.guesses)
    assert other.accuracy.share < 0.2


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"queries": np.ones((3, 4))}, "queries"),
        ({"secrets": np.zeros(4)}, "secrets"),
        ({"secrets": np.zeros(5, dtype=bool)}, "secrets"),
        ({"answers": [1.0, 2.0]}, "answers"),
        ({"answers": [1.0, 2.0, np.nan]}, "answers"),
        ({"answers": ["a", "b", "c"]}, "answers"),
    ],
)
def test_bad_answers_are_refused(change: dict[str, Any], argument: str) -> None:
    good = {
        "answers": [1.0, 2.0, 3.0],
        "queries": np.ones((3, 4), dtype=bool),
        "secrets": np.zeros(4, dtype=bool),
    }
    with pytest.raises(InvalidValue) as refused:
        reconstruction(**{**good, **change})
    assert refused.value.argument == argument


# --- an attack from outside, and the bench -------------------------------------------------------


def test_an_attack_of_ones_own_takes_part_in_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(ATTACKS):
        monkeypatch.delitem(ATTACKS, name)

    @attack(family="membership", access="probabilities")
    def certainty(observation: Observation, *, sign: float = 1.0) -> MembershipResult:
        """Call a record a member if the answer is certain."""
        p = np.exp(observation.log_probabilities)
        certain = (p**2).sum(axis=1)
        return MembershipResult(
            "certainty",
            sign * certain,
            observation.members,
            observation.labels,
            observation.record_numbers,
        )

    found = compare_defences({"deep": deep, "shallow": shallow}, X, Y, shadows=2, seed=1)
    assert [(row.defence, row.attack) for row in found.rows] == [
        ("deep", "certainty"),
        ("shallow", "certainty"),
    ]
    assert found.findings("deep")["certainty"].trials == 200


def test_attacks_that_do_not_keep_the_contract_are_refused() -> None:
    with pytest.raises(InvalidValue, match="family"):
        attack(family="magic", access="labels")
    with pytest.raises(InvalidValue, match="strange"):

        @attack(family="membership", access="labels")
        def wrong(strange: object) -> object:
            return strange

    with pytest.raises(InvalidValue, match="at least one input"):

        @attack(family="membership", access="labels")
        def nothing(*, seed: int = 0) -> object:
            return seed

    with pytest.raises(InvalidValue, match="no other attack"):

        @attack(family="membership", access="labels")
        def yeom(observation: object) -> object:
            return observation

    assert "wrong" not in ATTACKS


def test_two_defences_are_compared_by_attacks_that_adapt() -> None:
    public = (RNG.normal(size=(60, 5)), np.arange(60) % 2)
    found = compare_defences(
        {"deep": deep, "shallow": shallow}, X, Y, shadows=12, public=public, seed=4
    )
    deep_found, shallow_found = found.findings("deep"), found.findings("shallow")
    assert {"yeom", "rmia", "shokri", "quantile_regression"} <= set(deep_found)
    assert deep_found["rmia"].leaks
    assert deep_found["rmia"].value > shallow_found["rmia"].value
    assert found.accuracy["shallow"].share > found.accuracy["deep"].share - 0.05
    body = found.to_json()
    assert json.loads(json.dumps(body))["seed"] == 4
    # An attack that cannot be run says why, and stops nothing.
    inverted = [row for row in found.rows if row.attack == "label_only"]
    assert inverted == []
    again = compare_defences({"shallow": shallow}, X, Y, shadows=12, public=public, seed=4)
    assert again.findings("shallow") == shallow_found
    assert "deep: right on" in str(found)


def test_too_few_models_are_a_note_and_no_error() -> None:
    found = compare_defences({"deep": deep}, X, Y, shadows=2, seed=2)
    notes = {row.attack: row.note for row in found.rows if row.finding is None}
    assert "lira" in notes
    assert "lira was not run" in str(found)
    with pytest.raises(InvalidValue, match="defences"):
        compare_defences({}, X, Y)
    with pytest.raises(InvalidValue, match="defence"):
        found.findings("none")
