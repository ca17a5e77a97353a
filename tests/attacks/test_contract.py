"""The registry of attacks, an attack from outside, reconstruction, and a bench of two defences."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from attacks.language.made_up_models import by_heart
from discreet.attacks import (
    ATTACKS,
    INPUTS,
    Attribute,
    CandidatesResult,
    Finding,
    LinkageResult,
    MembershipResult,
    Observation,
    PoisonedModelResult,
    PropertyResult,
    Proportion,
    RatingLinkage,
    RecognitionResult,
    Result,
    UpdateLabelsResult,
    UpdatePicturesResult,
    UpdateTokensResult,
    applicable,
    as_target,
    attack,
    attribute_inference,
    compare_defences,
    dataset_usage,
    invert,
    link_tables,
    measure_anonymity,
    read_inputs,
    reconstruction,
    run_attack,
    synthetic_inference,
    table_reconstruction,
)
from discreet.attacks.language import canary_exposure, extraction, make_canaries, recital
from discreet.errors import InvalidValue, NotApplicable

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 5))
Y = (X[:, 0] + RNG.normal(0, 3.0, 400) > 0).astype(np.int64)


@pytest.fixture
def registry() -> Iterator[None]:
    """Attacks of a test leave with it."""
    before = dict(ATTACKS)
    yield
    ATTACKS.clear()
    ATTACKS.update(before)


def deep(indices: Any, seed: int) -> Any:
    return RandomForestClassifier(20, random_state=seed).fit(X[indices], Y[indices])


def shallow(indices: Any, seed: int) -> Any:
    return DecisionTreeClassifier(max_depth=2, random_state=seed).fit(X[indices], Y[indices])


def test_all_attacks_are_registered_and_say_what_they_need() -> None:
    assert set(ATTACKS) == {
        *("yeom", "lira", "rmia", "shokri", "quantile_regression", "label_only"),
        *("regression_membership", "checkpoint_membership", "person_membership", "dataset_usage"),
        *("attribute_inference", "property_inference", "invert"),
        *("measure_anonymity", "link_tables", "link_ratings", "reconstruction"),
        "table_reconstruction",
        *("distance_ratio", "counting_shadows"),
        *("singling_out", "linkability", "synthetic_inference"),
        *("update_labels", "update_pictures", "imprinted_pictures", "update_tokens"),
        *("prior_informed", "update_membership", "update_attribute", "update_property"),
        "poisoning",
        *("canary_exposure", "extraction", "recital", "text_membership"),
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
    assert (found.baseline, found.trials) == (result.roc.at(0.01).fpr.high, 100)
    assert (found.value, found.low) == (0.5, result.tpr_at(0.01).low)
    few = MembershipResult("few", scores[98:102], members[98:102], codes[:4], np.arange(4))
    assert (few.finding.baseline, few.finding.trials) == (few.roc.at(0.5).fpr.high, 2)


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


@pytest.mark.usefixtures("registry")
def test_an_attack_of_ones_own_takes_part_in_the_bench() -> None:
    ATTACKS.clear()

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


# --- one entry of the registry, run by name -----------------------------------------------------


def test_an_attack_is_run_from_files_and_texts(tmp_path: Path) -> None:
    answers, sets, bits = counts(40, 160, 1.0, 5)
    np.savetxt(tmp_path / "answers.csv", answers)
    np.save(tmp_path / "queries.npy", sets)
    np.savetxt(tmp_path / "secrets.csv", bits, fmt="%d")
    inputs = read_inputs(
        {
            "answers": str(tmp_path / "answers.csv"),
            "queries": str(tmp_path / "queries.npy"),
            "secrets": str(tmp_path / "secrets.csv"),
        }
    )
    assert [one.name for one in applicable(inputs)] == ["reconstruction"]
    settings = ATTACKS["reconstruction"].read_settings({"confidence": "0.9"})
    run = run_attack("reconstruction", inputs, **settings)
    same = reconstruction(answers, sets, bits, confidence=0.9)
    assert run.finding == same.finding
    assert run.lines() == [str(same.finding)]
    body = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert body["result"] == same.to_json()
    assert (body["attack"], body["finding"]["confidence"]) == ("reconstruction", 0.9)


def test_tables_are_linked_by_name(tmp_path: Path) -> None:
    place = tmp_path / "table.csv"
    place.write_text("zip,sex\n1,F\n1,F\n2,M\n", encoding="utf-8")
    inputs = read_inputs({"released": str(place), "quasi_identifiers": "zip, sex"})
    run = run_attack("measure_anonymity", inputs)
    assert run.finding is not None
    assert run.finding.value == pytest.approx(1 / 3)
    assert run.to_json()["result"]["profile"]["k_anonymity"] == 1
    both = read_inputs({"released": str(place), "register": str(place), "on": "zip,sex"})
    linked = run_attack("link_tables", both)
    assert linked.finding is not None
    assert linked.finding.value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ({"target": "m"}, "target"),
        ({"nothing": "m"}, "input"),
        ({"answers": "no-such-file.csv"}, "answers"),
        ({"shape": "two"}, "shape"),
    ],
)
def test_inputs_that_cannot_be_read_are_refused(texts: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_inputs(texts)
    assert refused.value.argument == named


def test_files_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "numbers.csv"
    place.write_text("", encoding="utf-8")
    for name in ("answers", "queries", "labels"):
        with pytest.raises(InvalidValue, match=name):
            read_inputs({name: str(place)})
    place.write_text("0.5,1\n", encoding="utf-8")
    assert read_inputs({"answers": str(place), "shape": "2,3"})["shape"] == (2, 3)
    with pytest.raises(InvalidValue, match="zeros and ones"):
        read_inputs({"secrets": str(place)})
    with pytest.raises(InvalidValue, match="whole numbers"):
        read_inputs({"labels": str(place)})


@pytest.mark.usefixtures("registry")
def test_unknown_attacks_settings_and_results_are_refused() -> None:
    with pytest.raises(InvalidValue, match="name"):
        run_attack("no such attack", {})
    with pytest.raises(InvalidValue, match="a setting of yeom"):
        ATTACKS["yeom"].read_settings({"confidnce": "1"})
    with pytest.raises(InvalidValue, match="a setting of reconstruction"):
        run_attack("reconstruction", {}, level=0.9)
    with pytest.raises(NotApplicable, match="needs answers"):
        run_attack("reconstruction", {})

    @attack(family="reconstruction", access="answers")
    def temporary(answers: object) -> object:
        return answers

    with pytest.raises(NotApplicable, match="not a frozen Result"):
        run_attack("temporary", {"answers": {"a": 1}})


def test_inverted_inputs_have_a_note_in_the_place_of_a_finding() -> None:
    def model(rows: Any) -> Any:
        one = 1 / (1 + np.exp(-rows.sum(axis=1)))
        return np.stack([1 - one, one], axis=1)

    run = run_attack(
        "invert",
        {"target": as_target(model, output="probabilities"), "shape": (2,)},
        steps=2,
        seed=1,
    )
    assert run.finding is None
    assert "recognition" in run.lines()[0]
    assert "2 classes inverted" in run.lines()[1]
    assert run.to_json()["finding"] is None
    assert run.to_json()["result"]["shape"] == [2]


def test_the_best_advantage_has_an_interval_that_holds() -> None:
    """At 90 % a false alarm in 200 rounds is a share above 0.19, less likely than 1 in 10,000."""
    rng, missed = np.random.default_rng(8), 0
    members = np.arange(120) < 60
    codes = np.zeros(120, dtype=np.int64)
    truth = 0.38292492  # 2 Phi(1/2) - 1: two Gaussians one deviation apart
    for _ in range(200):
        scores = rng.normal(size=120) + members
        result = MembershipResult("made up", scores, members, codes, np.arange(120))
        low, high = result.best_advantage_interval(confidence=0.9)
        missed += not low <= truth <= high
    assert missed < 38
    narrow = result.best_advantage_interval(confidence=0.1)
    assert narrow[1] - narrow[0] < high - low
    assert result.to_json()["best_advantage_interval"] == list(result.best_advantage_interval())


# --- every published figure has an interval, or says why it has none -----------------------------

# Settings and levels that somebody chose, or that are known exactly.
CHOSEN = {"confidence", "chance", "baseline", "smoothing", "total_variation", "asked_fpr", "fpr"}
CHOSEN |= {"smallest_supported_fpr", "threshold", "tolerance", "score"}
CHOSEN |= {"level", "limit_bits", "space_bits", "false_alarm_rate"}
CHOSEN |= {"smallest_supported_fpr", "threshold", "tolerance", "score", "false_positive_rate"}


def bare_figures(found: Any, name: str = "") -> Iterator[str]:
    """The names of fractions in JSON that have no interval beside them."""
    if isinstance(found, dict):
        if {"low", "high"} <= found.keys():
            return
        for key, value in found.items():
            if (
                f"{key.removesuffix('_in_hindsight')}_interval" in found
                or key.endswith("interval")
                or key == "metadata"
            ):
                continue
            yield from bare_figures(value, key)
    elif isinstance(found, list):
        for value in found:
            yield from bare_figures(value, name)
    elif isinstance(found, float):
        yield name


def examples_of_results() -> list[Any]:
    rng = np.random.default_rng(0)
    members = np.arange(200) < 100
    scores, codes = rng.normal(size=200) + members, np.zeros(200, dtype=np.int64)
    share = Proportion(9, 10, 0.55, 0.99, 0.95)
    table = {"zip": ["1", "1", "2", "3"], "ill": ["a", "b", "a", "a"], "who": list("abcd")}

    def model(rows: Any) -> Any:
        one = 1 / (1 + np.exp(-rows.sum(axis=1)))
        return np.stack([1 - one, one], axis=1)

    target = as_target(model, output="probabilities")
    rows = rng.normal(size=(60, 2))
    inverted = invert(target, shape=(2,), steps=2, seed=1)
    return [
        dataset_usage(scores, members, seed=1),
        MembershipResult("made up", scores, members, codes, np.arange(200), scores > 1, 1.0),
        PropertyResult("outputs", 1, 1, share, share, share, 0.9, 0.5, "made up", 0.7),
        measure_anonymity(table, quasi_identifiers=["zip"], sensitive=["ill"]),
        link_tables(table, table, on=["zip"], truth=("who", "who")),
        reconstruction(*counts(40, 160, 1.0, 5)),
        table_reconstruction([2], np.ones((1, 2), dtype=bool), [1, 1]),
        RatingLinkage(9, 9, 1.0, 0.01, 9, share, share, {}),
        synthetic_inference(table, table, table, "ill"),
        inverted,
        RecognitionResult(share, share, 0.5, (0, 1), (0, 1)),
        UpdateLabelsResult(share, 0.1, 0.95, 4),
        UpdatePicturesResult("match", share, 0.1, share, 30.0, (20.0, 40.0), 9.0, 0.9, rows, rows),
        UpdateTokensResult(share, 0.1, share),
        PoisonedModelResult("untargeted", share, share, share, 0.5),
        CandidatesResult("prior_informed", share, 0.1, 0.5, 1.5),
        attribute_inference(
            target,
            attribute=Attribute("side", columns=[0], candidates=[[-1.0], [1.0]]),
            members=(np.sign(rows[:20]), np.arange(20) % 2),
            nonmembers=(np.sign(rows[20:40]), np.arange(20) % 2),
            auxiliary=(np.sign(rows[40:]), np.arange(20) % 2),
            allow_duplicates=True,
        ),
        canary_exposure(by_heart(["abc"]), make_canaries("a{digits:2}", 2)),
        extraction(by_heart(["abc"]), ["abc"], ["abd"], prefix=1, suffix=2, least_distinct=1),
        recital(by_heart(["abc"]), ["a"], ["abc"], length=2),
    ]


def test_every_published_figure_has_an_interval_or_says_why_not() -> None:
    kinds = set()
    for result in examples_of_results():
        body = result.to_json()
        kinds.add(type(result))
        bare = set(bare_figures(body)) - CHOSEN
        measured = {"tpr"} if isinstance(result, MembershipResult) else set()  # the curve itself
        assert bare - measured == set(result.without_interval), type(result).__name__
        assert body.get("without_interval", {}) == dict(result.without_interval)
    assert kinds == {
        one for one in Result.__subclasses__() if one.__module__.startswith("discreet")
    }
    # A figure without either is seen.
    assert list(bare_figures({"auc": 0.7, "rows": 3})) == ["auc"]
    assert list(bare_figures({"auc": 0.7, "auc_interval": [0.6, 0.8]})) == []
