"""The bench of defences: its figures, its honesty about proofs, and what it must not see (S32)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from discreet.attacks import ShadowScores, as_target
from discreet.defences import (
    NO_GUARANTEE,
    Answers,
    BenchData,
    BenchReport,
    BenchRow,
    Defence,
    DefenceBench,
    LabelOnly,
    Mislabelled,
    NearDuplicates,
    OutOfDistribution,
)
from discreet.errors import InvalidValue
from discreet.privacy import PureDP

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(600, 5))
Y = (X[:, 0] + 0.5 * DRAW.normal(size=600) > 0).astype(np.int64)
DATA = BenchData.split(X, Y, seed=3)
SMALL = {"canaries": Mislabelled(60), "shadows": 12, "watched": 60, "seed": 5}


def bench(*defences: Defence, **changes: Any) -> BenchReport:
    return DefenceBench(defences, **{"data": DATA, **SMALL, **changes}).run()


def ignorant(records: Any, labels: Any, seed: int) -> Any:
    """A model that has nothing to do with its records."""
    weights = np.random.default_rng(seed).normal(size=(records.shape[1], 2))

    def answer(x: Any) -> Any:
        odds = np.exp(x @ weights)
        return odds / odds.sum(axis=1, keepdims=True)

    return as_target(answer, output="probabilities")


# Where members and others cannot be told apart, each comes first with probability 1/2. Of some 480
# others 4 may be accused among canaries and 4 among ordinary records; that 50 members come before
# the fifth of each is at most 9 heads of 59 fair coins: a chance below 1e-6.
BY_CHANCE = 50
FOREST = Defence("forest", "none", RandomForestClassifier(15, bootstrap=False))
TREE = Defence("tree", "none", DecisionTreeClassifier())
IGNORANT = Defence("ignorant", "training", ignorant)


def test_what_remembers_is_found_and_what_ignores_its_records_is_not() -> None:
    found = bench(FOREST, IGNORANT, shadows=16)
    forest, null = found.row("forest"), found.row("ignorant")
    assert forest.canaries[-1].found.low > 0.3
    assert forest.epsilon_audited > 1
    assert forest.accuracy.share > 0.7
    assert null.canaries[-1].found.successes + null.ordinary[-1].found.successes < BY_CHANCE
    assert null.epsilon_audited < 0.5
    difference = found.compare("forest", "ignorant")
    assert difference is not None
    assert difference.low > 0


def test_a_target_among_its_own_references_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the attacked model stays among the references, with its membership."""
    leave_out = ShadowScores.leave_out

    def careless(scores: ShadowScores, row: int) -> Any:
        return leave_out(scores, row)[0], scores

    monkeypatch.setattr(ShadowScores, "leave_out", careless)
    monkeypatch.setattr(ShadowScores, "_twins_of", lambda self, _: np.zeros(len(self), dtype=bool))
    null = bench(IGNORANT, shadows=16).row("ignorant")
    assert null.canaries[-1].found.successes + null.ordinary[-1].found.successes >= BY_CHANCE


def test_only_a_proof_gives_a_row_a_guarantee() -> None:
    """A claim that training does not keep is called violated; no claim is no guarantee."""
    liar = Defence("liar", "training", DecisionTreeClassifier(), loss=PureDP(epsilon=0.5))
    honest = replace(IGNORANT, name="honest", loss=PureDP(epsilon=0.5))
    found = bench(TREE, liar, honest)
    assert found.row("tree").guarantee == NO_GUARANTEE
    assert found.row("tree").epsilon_claimed is None
    assert found.row("liar").verdict == "violated"
    assert found.row("liar").guarantee == "epsilon <= 0.5 at delta 1e-05"
    assert found.row("honest").verdict != "violated"
    text = str(found)
    assert text.count(NO_GUARANTEE) == 1
    assert "violated" in text


def test_output_defences_share_models_and_the_attack_adapts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = []

    def counted(records: Any, labels: Any, seed: int) -> Any:
        trained.append(seed)
        return DecisionTreeClassifier(max_depth=9, random_state=0).fit(records, labels)

    plain = Defence("none", "none", counted)
    label = Defence("label-only", "output", answer=LabelOnly())
    again = Defence("label-only again", "output", answer=LabelOnly())
    found = bench(plain, label, again)
    assert len(trained) == 12
    # A deep tree gives its answer away by the label alone.
    assert found.row("label-only").canaries[-1].found.low > 0.05
    assert found.row("label-only").accuracy == found.row("none").accuracy
    assert found.row("label-only").canaries == found.row("label-only again").canaries


def test_an_interrupted_bench_goes_on(tmp_path: Path) -> None:
    trained: list[int] = []

    def until(limit: int) -> Any:
        def train(records: Any, labels: Any, seed: int) -> Any:
            if len(trained) == limit:
                raise KeyboardInterrupt
            trained.append(seed)
            return DecisionTreeClassifier(random_state=seed % 7).fit(records, labels)

        return train

    settings = {"cache": tmp_path, "canaries": Mislabelled(60)}
    with pytest.raises(KeyboardInterrupt):
        bench(Defence("own", "none", until(5), cache_key="a"), **settings)
    first = bench(Defence("own", "none", until(99), cache_key="a"), **settings)
    assert len(trained) == 13  # one of the stored ones is trained again and compared
    second = bench(Defence("own", "none", until(13), cache_key="a"), **settings)
    assert second == first
    with pytest.raises(KeyboardInterrupt):
        bench(Defence("own", "none", until(13), cache_key="b"), **settings)


def test_a_report_is_read_back_and_stays_the_same_from_its_seed() -> None:
    one, two = bench(TREE), bench(TREE)
    assert one == two
    row = one.row("tree")
    assert BenchRow.from_json(json.loads(json.dumps(row.to_json()))) == row
    assert len({str(one), str(bench(TREE, seed=6))}) == 2


@pytest.mark.parametrize("kind", [Mislabelled, NearDuplicates, OutOfDistribution])
def test_canaries_of_every_kind_are_planted(kind: Any) -> None:
    planted = kind(50).plant(X[:50], Y[:50], 2, 1)
    assert len(planted.records) == len(planted.labels) == len(planted.asked) == 50
    again = kind(50).plant(X[:50], Y[:50], 2, 1)
    np.testing.assert_array_equal(planted.records, again.records)
    if kind is OutOfDistribution:
        np.testing.assert_allclose(np.sort(planted.records, axis=0), np.sort(X[:50], axis=0))
    else:
        assert (planted.labels != Y[:50]).all()
    assert len(planted.companions) == (50 if kind is NearDuplicates else 0)


def test_the_audited_coins_are_independent_and_fair() -> None:
    from discreet.defences._attack import audited_models
    from discreet.defences._bench import _draw_coins, _draw_inclusion

    coins = _draw_coins(500, 16, 1).included.reshape(-1, 500)
    drawn = _draw_inclusion(coins, 60, 16, 1)
    np.testing.assert_array_equal(drawn[1::2], ~drawn[::2])
    np.testing.assert_array_equal(drawn[list(audited_models(16)), 60:], coins)
    assert list(audited_models(16)) == [8, 10, 12, 14]
    agreement = np.corrcoef(drawn[list(audited_models(16))])
    # Each correlation of 560 fair coins has a deviation of 0.042; six of them, 5.5 deviations.
    assert np.abs(agreement - np.eye(4)).max() < 0.24


# --- models, tables and inputs that nobody here made --------------------------------------------


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits])
def test_forests_on_tables_of_others(load: Any) -> None:
    x, y = load(return_X_y=True)
    forest = Defence("forest", "none", RandomForestClassifier(10))
    found = bench(forest, data=BenchData.split(x, y), shadows=12, canaries=Mislabelled(50))
    row = found.row("forest")
    assert row.accuracy.share > 0.6
    assert row.canaries[-1].found.low > row.canaries[-1].rate


@pytest.mark.parametrize(
    ("answer", "argument"),
    [
        (lambda answers: answers.asked[:1], "answer"),
        (lambda answers: np.full_like(answers.asked, np.nan), "answer"),
    ],
)
def test_answers_that_are_none_are_refused(answer: Any, argument: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        bench(TREE, Defence("bad", "output", answer=answer), shadows=12)
    assert refused.value.argument == argument


@pytest.mark.parametrize(
    ("defences", "changes", "argument"),
    [
        ((), {}, "defences"),
        ((TREE, TREE), {}, "defences"),
        ((Defence("a", "output", answer=LabelOnly()),), {}, "defences"),
        ((TREE, Defence("b", "none", ignorant)), {}, "defences"),
        ((TREE,), {"shadows": 13}, "models"),
        ((TREE,), {"shadows": 8}, "models"),
        ((TREE,), {"watched": 3}, "watched"),
        ((TREE,), {"canaries": Mislabelled(400)}, "canaries"),
        ((TREE,), {"cache": "somewhere", "seed": None}, "seed"),
        ((TREE,), {"data": (X, Y)}, "data"),
    ],
)
def test_a_wrong_bench_is_refused_before_it_trains(
    defences: tuple[Defence, ...], changes: dict[str, Any], argument: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        bench(*defences, **changes)
    assert refused.value.argument == argument


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"name": " "}, "name"),
        ({"where": "somewhere"}, "where"),
        ({"train": None}, "train"),
        ({"train": 3}, "train"),
        ({"where": "output", "answer": LabelOnly()}, "where"),
        ({"where": "output", "train": None}, "where"),
        ({"loss": 3}, "loss"),
        ({"models": 10}, "models"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_a_defence_that_cannot_be_is_refused(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        Defence(**{"name": "a", "where": "training", "train": ignorant, **settings})
    assert refused.value.argument == argument


@pytest.mark.parametrize(
    ("x", "y", "argument"),
    [
        (X, Y[:3], "records"),
        (X[:, 0], Y, "records"),
        (X.astype(str), Y, "records"),
        (np.where(X > 2, np.nan, X), Y, "records"),
        (X, Y - 5, "labels"),
        (X, Y + 0.5, "labels"),
        (X[:4], Y[:4], "records"),
    ],
)
def test_records_that_cannot_be_split_are_refused(x: Any, y: Any, argument: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        BenchData.split(x, y)
    assert refused.value.argument == argument


def test_an_answer_knows_what_a_defender_knows() -> None:
    seen: list[Answers] = []

    def answer(answers: Answers) -> Any:
        seen.append(answers)
        return answers.asked

    found = bench(TREE, Defence("same", "output", answer=answer), shadows=12)
    assert found.row("same").canaries == found.row("tree").canaries
    assert len(seen) == 12
    assert len({one.seed for one in seen}) == 12
    assert len(seen[0].reference) == len(DATA.reference_labels)
