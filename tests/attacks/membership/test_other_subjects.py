"""Membership of numbers, of checkpoints, of persons and of whole data sets: power, and silence.

Every attack has a target that does not depend on the records, on which it accuses no more than it
says, and a planted fault that the same judge notices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from discreet.attacks import (
    ATTACKS,
    DatasetUsage,
    MembershipResult,
    Observation,
    ShadowScores,
    checkpoint_membership,
    dataset_usage,
    lira,
    person_membership,
    read_inputs,
    regression_membership,
    run_attack,
)
from discreet.attacks import _regression as regression_module
from discreet.errors import InvalidValue, NotApplicable

RECORDS, MODELS = 600, 33


def logits_of(effect: float, seed: int, looks: int = 1) -> tuple[Any, Any]:
    """Scaled logits of models (models, records, looks) that grow by ``effect`` with the record."""
    draw = np.random.default_rng(seed)
    inside = draw.random((MODELS, RECORDS)) < 0.5
    hard = draw.normal(0, 2, RECORDS)
    noise = draw.normal(size=(MODELS, RECORDS, looks))
    return hard[None, :, None] + effect * inside[..., None] + noise, inside


def answers(logits: Any) -> Any:
    """Log-probabilities of two classes, of which 1 is true."""
    return np.stack([-np.logaddexp(0, logits), -np.logaddexp(0, -logits)], axis=-1)


def scene(logits: Any, inside: Any) -> tuple[Observation, ShadowScores]:
    """The last model as the target, the others as its references."""
    names, ones = np.arange(RECORDS, dtype=np.uint64), np.ones(RECORDS, dtype=np.int64)
    said = answers(logits)
    seen = Observation(said[-1], ones, inside[-1], names)
    return seen, ShadowScores(list(said[:-1].astype(np.float32)), inside[:-1], ones, names)


def leaks(result: MembershipResult) -> bool:
    return result.auc_interval(confidence=0.999999)[0] > 0.5


# --- numbers -------------------------------------------------------------------------------------


def numbers(effect: float, seed: int) -> tuple[Any, Any, Any, Any, Any]:
    """Predictions that come nearer to the truth by ``effect`` of their error with the record."""
    draw = np.random.default_rng(seed)
    inside = draw.random((MODELS, RECORDS)) < 0.5
    truth = draw.normal(0, 50, RECORDS)
    usual = draw.normal(0, 20, RECORDS)
    error = (usual + draw.normal(0, 5, (MODELS, RECORDS))) * np.where(inside, 1 - effect, 1.0)
    said = truth + error
    return said[-1], truth, inside[-1], said[:-1], inside[:-1]


def test_a_number_that_was_learned_is_told_and_shadow_models_help() -> None:
    said, truth, used, others, inside = numbers(0.5, 1)
    plain = regression_membership(said, truth, used)
    sharp = regression_membership(
        said, truth, used, shadow_predictions=others, shadow_members=inside
    )
    assert leaks(plain)
    assert sharp.auc > plain.auc + 0.05
    assert sharp.recall().low > 0.5
    # The unit of the values does not matter.
    again = regression_membership(
        1e6 * said, 1e6 * truth, used, shadow_predictions=1e6 * others, shadow_members=inside
    )
    np.testing.assert_allclose(again.scores, sharp.scores, rtol=1e-6, atol=1e-9)


def test_a_target_that_did_not_learn_its_records_gives_nobody_away() -> None:
    for seed in range(5):
        said, truth, used, others, inside = numbers(0.0, seed)
        for settings in ({}, {"shadow_predictions": others, "shadow_members": inside}):
            result = regression_membership(said, truth, used, **settings)  # type: ignore[arg-type]
            assert not leaks(result)


def test_a_target_among_its_own_references_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: twins stay among the references, and a target that learned nothing is betrayed."""
    said, truth, used, others, inside = numbers(0.0, 3)

    def attacked() -> MembershipResult:
        return regression_membership(
            *(said, truth, used),
            shadow_predictions=np.vstack([others[:12], said]),
            shadow_members=np.vstack([inside[:12], used]),
        )

    assert not leaks(attacked())
    monkeypatch.setattr(
        regression_module, "find_twins", lambda inside, _: np.zeros(len(inside), bool)
    )
    assert leaks(attacked())


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"predictions": [[1.0]]}, "predictions"),
        ({"values": ["a"]}, "values"),
        ({"values": [float("nan")] * 4}, "values"),
        ({"members": [1, 0, 1, 0]}, "members"),
        ({"shadow_predictions": np.zeros((3, 4))}, "shadow_members"),
        ({"shadow_predictions": np.zeros((3, 5)), "shadow_members": None}, "shadow_members"),
        (
            {"shadow_predictions": np.zeros((3, 5)), "shadow_members": np.zeros((3, 5), bool)},
            "shadow_predictions",
        ),
        ({"variance": "none"}, "variance"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(change: dict[str, Any], argument: str) -> None:
    given = {"predictions": np.arange(4.0), "values": np.ones(4), "members": np.arange(4) < 2}
    with pytest.raises(InvalidValue) as refused:
        regression_membership(**{**given, **change})
    assert refused.value.argument == argument


# --- checkpoints ---------------------------------------------------------------------------------


def test_checkpoints_tell_more_than_the_last_one_and_one_is_lira() -> None:
    logits, inside = logits_of(1.0, 1, looks=4)
    scenes = [scene(logits[..., at], inside) for at in range(4)]
    every = checkpoint_membership([one for one, _ in scenes], [two for _, two in scenes])
    seen, pool = scenes[-1]
    last = lira(seen, pool, variance="shared", limit=6.0)
    assert every.auc > last.auc + 0.05
    alone = checkpoint_membership([seen], [pool])
    assert abs(alone.auc - last.auc) < 0.01
    assert every.metadata["checkpoints"] == 4


def test_checkpoints_that_did_not_learn_give_nobody_away() -> None:
    for seed in range(5):
        logits, inside = logits_of(0.0, seed, looks=3)
        scenes = [scene(logits[..., at], inside) for at in range(3)]
        assert not leaks(
            checkpoint_membership([one for one, _ in scenes], [two for _, two in scenes])
        )


def test_checkpoints_of_the_target_itself_are_no_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: twins stay among the references, and the null of above notices."""
    logits, inside = logits_of(0.0, 1, looks=2)
    names, ones = np.arange(RECORDS, dtype=np.uint64), np.ones(RECORDS, dtype=np.int64)
    seen = [scene(logits[..., at], inside)[0] for at in range(2)]
    pools = [
        ShadowScores(list(answers(logits[-12:, :, at])), inside[-12:], ones, names)
        for at in range(2)
    ]
    assert not leaks(checkpoint_membership(seen, pools))
    monkeypatch.setattr(ShadowScores, "_twins_of", lambda self, _: np.zeros(len(self), bool))
    assert leaks(checkpoint_membership(seen, pools))


def test_checkpoints_that_do_not_fit_are_refused() -> None:
    logits, inside = logits_of(1.0, 1, looks=2)
    (seen, pool), (_, other) = (scene(logits[..., at], inside) for at in range(2))
    with pytest.raises(InvalidValue, match="1 beside 2"):
        checkpoint_membership([seen, seen], [pool])
    with pytest.raises(InvalidValue, match="the same records in the same order"):
        checkpoint_membership([seen, seen.part(np.arange(RECORDS)[::-1])], [pool, other])
    mixed = ShadowScores(
        other.log_probabilities, other.inclusion[::-1], other.labels, other.digests
    )
    with pytest.raises(InvalidValue, match="the same models"):
        checkpoint_membership([seen, seen], [pool, mixed])
    # A checkpoint that is given twice adds nothing.
    twice = checkpoint_membership([seen, seen], [pool, pool])
    assert abs(twice.auc - checkpoint_membership([seen], [pool]).auc) < 1e-3


# --- persons -------------------------------------------------------------------------------------


def persons_scene(effect: float, seed: int) -> tuple[Observation, ShadowScores, list[str]]:
    draw = np.random.default_rng(seed)
    owner = np.repeat(np.arange(RECORDS // 6), 6)
    inside = (draw.random((MODELS, RECORDS // 6)) < 0.5)[:, owner]
    logits = draw.normal(0, 2, RECORDS) + effect * inside + draw.normal(size=inside.shape)
    return *scene(logits, inside), [f"person {one}" for one in owner]


def test_the_records_of_a_person_together_tell_more_than_one() -> None:
    seen, pool, persons = persons_scene(1.0, 1)
    alone, together = lira(seen, pool), person_membership(seen, persons, shadows=pool)
    assert len(together.scores) == RECORDS // 6
    assert together.auc > alone.auc + 0.05
    assert leaks(person_membership(seen, persons, shadows=pool, together="mean"))
    assert person_membership(seen, persons).metadata["together"] == "mean"


def test_persons_who_were_not_learned_are_not_given_away() -> None:
    for seed in range(5):
        seen, pool, persons = persons_scene(0.0, seed)
        assert not leaks(person_membership(seen, persons, shadows=pool))
        assert not leaks(person_membership(seen, persons))


def test_many_records_alone_make_nobody_a_member() -> None:
    """Planted: members have three times as many records; a sum of losses tells that."""
    draw = np.random.default_rng(1)
    owner = np.concatenate([np.repeat(np.arange(40), 6), np.repeat(np.arange(40, 160), 2)])
    said = answers(draw.normal(-2, 1, len(owner)))
    names, ones = np.arange(len(owner), dtype=np.uint64), np.ones(len(owner), dtype=np.int64)
    seen = Observation(said, ones, owner < 40, names)
    assert not leaks(person_membership(seen, list(owner)))
    assert person_membership(seen, list(owner), together="sum").auc < 0.2


def test_a_person_on_both_sides_is_refused() -> None:
    seen, _, persons = persons_scene(1.0, 1)
    with pytest.raises(InvalidValue, match="1 on both sides"):
        person_membership(
            seen.part(np.arange(12)),
            persons[:1] * 12
            if seen.members[0] != seen.members[6]
            else ["a"] * 6 + ["b"] * 5 + ["a"],
        )
    with pytest.raises(InvalidValue, match="599 persons"):
        person_membership(seen, persons[1:])
    with pytest.raises(InvalidValue, match="together"):
        person_membership(seen, persons, together="median")


# --- data sets -----------------------------------------------------------------------------------


def test_weak_signs_about_many_records_show_that_a_set_was_used() -> None:
    draw = np.random.default_rng(1)
    suspected = np.arange(2000) < 800
    found = dataset_usage(draw.normal(size=2000) + 0.3 * suspected, suspected, seed=1)
    assert found.used
    assert found.finding.leaks
    assert found.p_value == 1e-4
    partly = dataset_usage(draw.normal(size=2000) + 3 * (np.arange(2000) < 100), suspected, seed=1)
    assert partly.used  # an eighth of the set


def test_a_set_that_was_not_used_is_called_used_as_rarely_as_it_says() -> None:
    """500 sets at a rate of 5 %: 43 or more, or a judge that misses a fault, by chance of 1e-3."""
    draw = np.random.default_rng(2)
    suspected = np.arange(60) < 20
    settings: Any = {"permutations": 199, "false_alarm_rate": 0.05}
    ties = [np.round(draw.exponential(size=60), 1) for _ in range(500)]
    called = sum(
        dataset_usage(one, suspected, seed=at, **settings).used for at, one in enumerate(ties)
    )
    assert called < 43
    # Planted: scores that looked at the truth a little.
    told = [one + 0.6 * suspected for one in ties]
    assert sum(dataset_usage(one, suspected, seed=1, **settings).used for one in told[:100]) > 40


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"permutations": 9}, "permutations"),
        ({"suspected": np.arange(40)}, "suspected"),
        ({"suspected": np.arange(40) < 3}, "suspected"),
        ({"scores": np.full(40, np.nan)}, "scores"),
        ({"false_alarm_rate": 0.0}, "false_alarm_rate"),
    ],
)
def test_a_set_that_cannot_be_judged_is_refused(change: dict[str, Any], argument: str) -> None:
    given = {"scores": np.arange(40.0), "suspected": np.arange(40) < 20}
    with pytest.raises(InvalidValue) as refused:
        dataset_usage(**{**given, **change})
    assert refused.value.argument == argument


def test_all_of_them_are_in_the_registry_and_read_from_files(tmp_path: Any) -> None:
    draw = np.random.default_rng(1)
    np.save(tmp_path / "scores.npy", draw.normal(size=60))
    np.savetxt(tmp_path / "set.csv", np.arange(60) < 30, fmt="%d")
    inputs = read_inputs(
        {"scores": str(tmp_path / "scores.npy"), "suspected": str(tmp_path / "set.csv")}
    )
    run = run_attack("dataset_usage", inputs, seed=1)
    assert isinstance(run.result, DatasetUsage)
    assert run.to_json()["result"]["p_value"] == run.result.p_value
    numbers = {"predictions": "scores.npy", "values": "scores.npy", "members": "set.csv"}
    read = read_inputs({name: str(tmp_path / file) for name, file in numbers.items()})
    assert run_attack("regression_membership", read).result.auc == 0.5  # it is always right
    for name in ("regression_membership", "checkpoint_membership", "person_membership"):
        assert ATTACKS[name].family == "membership"
        with pytest.raises(NotApplicable):
            ATTACKS[name]({})


def test_numbers_of_twins_alone_are_refused() -> None:
    truth, used = np.arange(200.0), np.arange(200) % 2 == 0
    shadows = {"shadow_predictions": np.stack([truth] * 2), "shadow_members": [used, ~used]}
    with pytest.raises(InvalidValue, match="2 twins of the target"):
        regression_membership(truth, truth, used, **shadows)
