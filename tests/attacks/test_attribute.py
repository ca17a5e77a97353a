"""Attribute inference (S29): hand-computed cases, leaks found, population knowledge let through.

Statistical checks use intervals at confidence 1 - 1e-9, so a right implementation fails one of
them with probability at most 1e-9 over the seeds; the seeds are fixed as well.
"""

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from discreet.attacks import Attribute, AttributeResult, as_target, attribute_inference
from discreet.attacks import _attribute as attribute
from discreet.attacks._attribute import Imputation, fit_imputation
from discreet.data import Boolean, Categorical, Encoding, Integer, Real, Schema, read_table
from discreet.errors import InvalidValue, NotApplicable

SURE = 1 - 1e-9
COIN = Attribute("coin", columns=0, candidates=[0, 1])
Pair = tuple[np.ndarray, np.ndarray]


def people(count: int, seed: int, correlation: float = 0.0) -> Pair:
    """Column 0 is the attribute, columns 1 to 3 are known, and the label follows column 1.

    With ``correlation``, column 2 and the label know of the attribute.
    """
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(count, 4))
    x[:, 0] = chance.integers(0, 2, count)
    x[:, 2] += correlation * (2 * x[:, 0] - 1)
    y = (x[:, 1] + correlation * (x[:, 0] - 0.5) + chance.normal(size=count) > 0).astype(int)
    return x, y


def memoriser(pair: Pair) -> Any:
    """Recalls the very records of its training, and is at a loss about any other."""
    known = {(row.tobytes(), label) for row, label in zip(*pair, strict=True)}

    def probabilities(records: np.ndarray) -> np.ndarray:
        ones = [
            0.5 + 0.4 * ((r.tobytes(), 1) in known) - 0.4 * ((r.tobytes(), 0) in known)
            for r in records
        ]
        return np.stack([1 - np.array(ones), ones], axis=1)

    return as_target(probabilities, output="probabilities")


def attack(model: Any, members: Pair, **options: Any) -> AttributeResult:
    options = {"imputer": LogisticRegression(), "confidence": SURE, **options}
    nonmembers = options.pop("nonmembers", None) or people(len(members[0]), 91)
    auxiliary = options.pop("auxiliary", None) or people(500, 92)
    return attribute_inference(
        model,
        attribute=options.pop("attribute", COIN),
        members=members,
        nonmembers=nonmembers,
        auxiliary=auxiliary,
        **options,
    )


# --- hand-computed ----------------------------------------------------------------------


class Fixed:
    """An imputer that says the same for everybody."""

    classes_ = np.array([0, 1])

    def __init__(self, one: float = 0.25) -> None:
        self.one = one

    def get_params(self, deep: bool = True) -> dict[str, float]:
        return {"one": self.one}

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Fixed":
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.tile([1 - self.one, self.one], (len(x), 1))


def tiny_model(records: np.ndarray) -> np.ndarray:
    """p(label 1) by (attribute, known column)."""
    table = {(0, 0): 0.2, (1, 0): 0.5, (0, 1): 0.6, (1, 1): 0.5, (0, 2): 0.7, (1, 2): 0.7}
    ones = np.array([table[int(a), int(b)] for a, b in records])
    return np.stack([1 - ones, ones], axis=1)


TINY = (np.array([[1.0, 0], [0.0, 0], [1.0, 1], [1.0, 2]]), np.array([1, 0, 1, 1]))
# Confidences in the true label at (0, 1): (.2, .5), (.8, .5), (.6, .5), (.7, .7).


@pytest.mark.parametrize(
    ("prior", "one", "guesses"),
    [
        ("uniform", 0.25, [1, 0, 0, 0]),  # the tie in the last goes to the imputation: 0
        ("uniform", 0.75, [1, 0, 0, 1]),
        ("imputed", 0.25, [0, 0, 0, 0]),  # .2 * .75 > .5 * .25
        ("imputed", 0.75, [1, 1, 1, 1]),  # .8 * .25 < .5 * .75
        ("marginal", 0.25, [1, 0, 0, 0]),  # 3 : 2 with one added to each: .6 > .4, .2*.6 < .5*.4
    ],
)
def test_guesses_are_those_on_paper(prior: str, one: float, guesses: list[int]) -> None:
    result = attack(
        as_target(tiny_model, output="probabilities"),
        TINY,
        nonmembers=(np.array([[0.0, 1], [1.0, 1]]), np.array([0, 0])),
        auxiliary=(np.array([[0.0, 0], [0.0, 2], [1.0, 0]]), np.array([1, 0, 0])),
        prior=prior,
        imputer=Fixed(one),
    )
    assert result.member_guesses.tolist() == guesses
    right = sum(a == b for a, b in zip(guesses, [1, 0, 1, 1], strict=True))
    assert result.attack_on_members.successes == right
    assert result.imputation_on_members.successes == (1 if one < 0.5 else 3)
    assert result.queries == 2 * (4 + 2)
    recalled = {(row.group, row.value): (row.attack, row.records) for row in result.by_value}
    assert recalled["members", "0"] == (int(guesses[1] == 0), 1)
    assert recalled["members", "1"][1] == 3


def test_the_excess_is_that_over_imputation() -> None:
    result = attack(
        as_target(tiny_model, output="probabilities"),
        TINY,
        nonmembers=(np.array([[0.0, 1], [1.0, 1]]), np.array([0, 0])),
        auxiliary=(np.array([[0.0, 0], [0.0, 2], [1.0, 0]]), np.array([1, 0, 0])),
        imputer=Fixed(0.25),
    )
    # Members: 2 of 4 by the attack, 1 of 4 by "always 0". Others: 1 of 2 either way.
    assert result.gap.value == 0.0
    assert result.imputation_gap.value == -0.25
    assert (result.gain_on_members.value, result.gain_on_nonmembers.value) == (0.25, 0.0)
    assert result.excess.value == 0.25


# --- leaks and no leaks -----------------------------------------------------------------


def imputation_is_at_chance(result: AttributeResult) -> bool:
    base = result.imputation_on_members
    return base.low <= 0.5 <= base.high


def test_a_model_that_memorises_leaks() -> None:
    members = people(400, 1)
    result = attack(memoriser(members), members)
    assert result.attack_on_members.share == 1.0
    assert result.attack_on_nonmembers == result.imputation_on_nonmembers
    assert result.leaks
    assert result.beats_imputation
    assert imputation_is_at_chance(result)
    assert "leaks" in result.verdict


def test_a_real_model_that_memorises_leaks() -> None:
    x, y = people(1500, 2)
    y = np.random.default_rng(3).integers(0, 2, len(y))
    x[:, 0] *= 3
    model = KNeighborsClassifier(1).fit(x, y)
    other = people(1500, 4)
    other[0][:, 0] *= 3
    known = people(500, 5)
    known[0][:, 0] *= 3
    result = attack(
        model,
        (x, y),
        nonmembers=other,
        auxiliary=known,
        attribute=Attribute("coin", columns=[0], candidates=[0, 3]),
    )
    # Truth is recalled; the wrong value finds a neighbour with the same label half of the time.
    assert abs(result.attack_on_members.share - 0.75) < 0.08
    assert result.leaks


@pytest.mark.parametrize("prior", attribute.PRIORS)
def test_a_model_that_never_saw_the_records_is_at_chance(prior: str) -> None:
    result = attack(memoriser(people(400, 1)), people(400, 8), prior=prior)
    assert not result.leaks
    assert not result.beats_imputation
    assert result.attack_on_members.low <= 0.5 <= result.attack_on_members.high
    assert result.excess.low <= 0 <= result.excess.high


@pytest.mark.parametrize("prior", attribute.PRIORS)
def test_knowledge_of_the_population_is_no_leak(prior: str) -> None:
    train, other, known = (people(3000, seed, 0.8) for seed in (11, 12, 13))
    model = LogisticRegression().fit(*train)
    result = attack(model, train, nonmembers=other, auxiliary=known, prior=prior)
    assert result.imputation_on_members.low > 0.6
    assert result.attack_on_members.low > 0.5  # a correlation, and not of members alone
    assert not result.leaks
    assert abs(result.imputation_gap.value) < 0.05
    assert "no leak is shown" in result.verdict


def test_the_best_imputer_wins_the_competition() -> None:
    chance = np.random.default_rng(21)
    x = chance.normal(size=(900, 4))
    x[:, 0] = x[:, 1] * x[:, 2] > 0  # no line separates this
    y = chance.integers(0, 2, 900)
    parts = [(x[s], y[s]) for s in (slice(0, 100), slice(100, 200), slice(200, 900))]
    model = as_target(lambda r: np.full((len(r), 2), 0.5), output="probabilities")
    rivals = [LogisticRegression(), HistGradientBoostingClassifier(max_iter=20, random_state=0)]
    result = attack(
        model, parts[0], nonmembers=parts[1], auxiliary=parts[2], imputer=rivals, seed=1
    )
    assert result.imputer == "HistGradientBoostingClassifier"
    assert result.imputation_on_members.share > 0.85
    # A model that says nothing leaves every guess to the imputation.
    assert result.gain_on_members.value == result.gain_on_nonmembers.value == 0


def test_the_default_imputers_are_fair_to_a_coin_and_to_a_correlation() -> None:
    members = people(300, 41)
    result = attack(memoriser(members), members, imputer=None, seed=2)
    assert imputation_is_at_chance(result)
    parts = [people(300, seed, 2.0) for seed in (42, 43, 44)]
    result = attack(
        memoriser(parts[0]), parts[0], nonmembers=parts[1], auxiliary=parts[2], imputer=None, seed=2
    )
    assert result.imputation_on_nonmembers.low > 0.85


def test_an_imputation_can_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    members = people(100, 51)
    first = attack(memoriser(members), members)
    monkeypatch.setattr(attribute, "fit_imputation", None)
    again = attack(memoriser(members), members, imputer=first.imputation)
    assert again.to_json() == first.to_json()
    three = Attribute("coin", columns=0, candidates=[0, 1, 2])
    with pytest.raises(InvalidValue, match="3 values and 2 classes"):
        attack(memoriser(members), members, imputer=first.imputation, attribute=three)


def test_the_order_of_records_does_not_matter() -> None:
    members, other, known = people(200, 31), people(150, 32), people(300, 33)
    model = KNeighborsClassifier(3).fit(*members)
    whole = attack(model, members, nonmembers=other, auxiliary=known, prior="imputed")
    chance = np.random.default_rng(34)
    orders = [chance.permutation(len(part[0])) for part in (members, other, known)]
    mixed = [
        (x[order], y[order]) for (x, y), order in zip((members, other, known), orders, strict=True)
    ]
    again = attack(model, mixed[0], nonmembers=mixed[1], auxiliary=mixed[2], prior="imputed")
    assert again.to_json() == whole.to_json()
    assert (again.member_guesses == whole.member_guesses[orders[0]]).all()


# --- mutants ----------------------------------------------------------------------------


def test_an_imputation_fitted_on_the_evaluated_records_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = people(400, 1)
    right = attack(memoriser(members), members, imputer=KNeighborsClassifier(1))
    assert imputation_is_at_chance(right)

    def cheating(rest: Any, labels: Any, codes: Any, **options: Any) -> Imputation:
        x, y = members
        return fit_imputation(x[:, 1:], y, x[:, 0].astype(np.intp), **options)

    monkeypatch.setattr(attribute, "fit_imputation", cheating)
    wrong = attack(memoriser(members), members, imputer=KNeighborsClassifier(1))
    assert not imputation_is_at_chance(wrong)
    assert not wrong.beats_imputation  # such a baseline would hide the leak


@pytest.mark.parametrize("second", ["nonmembers", "auxiliary"])
def test_records_in_two_sets_are_refused(second: str) -> None:
    members = people(50, 1)
    fresh = people(50, 7)
    mixed = (np.vstack([fresh[0], members[0][:2]]), np.append(fresh[1], members[1][:2]))
    with pytest.raises(InvalidValue, match="2 records that are also among members"):
        attack(memoriser(members), members, **{second: mixed})
    single = (mixed[0].astype(np.float32), mixed[1])
    with pytest.raises(InvalidValue, match="2 records that are also among members"):
        attack(memoriser(members), members, **{second: single})
    allowed = attack(memoriser(members), members, **{second: mixed}, allow_duplicates=True)
    assert allowed.attack_on_members.trials == 50


# --- attributes of a schema -------------------------------------------------------------

SCHEMA = Schema(
    {
        "age": Integer(20, 60),
        "sex": Categorical(["F", "M", "X"], other="X"),
        "smokes": Boolean(),
        "weight": Real(40, 120),
    }
)


@pytest.mark.parametrize("interval", ["symmetric", "unit"])
def test_attributes_agree_with_the_encoding(interval: str) -> None:
    encoding = Encoding(SCHEMA, interval=interval)
    rows = {"age": [20, 33, 60], "sex": ["M", "F", "X"], "smokes": [True, False, True]}
    records = encoding.features(read_table({**rows, "weight": [40, 50, 120]}, SCHEMA))
    for name, chosen, wanted in [
        ("age", None, [0, 13, 40]),
        ("age", [60, 33, 20], [2, 1, 0]),
        ("sex", None, [1, 0, 2]),
        ("smokes", None, [1, 0, 1]),
        ("weight", [40, 50, 120], [0, 1, 2]),
    ]:
        found = Attribute.from_encoding(encoding, name, values=chosen)
        assert found.codes(records).tolist() == wanted
        for code in range(len(found.values)):
            put = found.with_value(records, code)
            assert (found.codes(put) == code).all()
            assert (found.without(put) == found.without(records)).all()


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("age", [20, 61], "20 to 60"),
        ("sex", ["F", "Q"], "one of F, M, X"),
        ("smokes", ["maybe", True], "declares"),
        ("weight", None, "candidate values"),
        ("height", None, "one of age, sex"),
        ("sex", ["F"], "at least two"),
    ],
)
def test_candidates_outside_the_schema_are_refused(name: str, values: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Attribute.from_encoding(Encoding(SCHEMA), name, values=values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": []},
        {"columns": [0, 0]},
        {"columns": -1},
        {"candidates": [[0, 1], [1, 0]]},
        {"candidates": [1, 1]},
        {"candidates": [0, np.nan]},
        {"values": ["a"]},
        {"values": ["a", "a"]},
    ],
)
def test_impossible_attributes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Attribute("a", **{"columns": 0, "candidates": [0, 1], **wrong})


def changed(pair: Pair, **change: Any) -> Pair:
    x, y = pair[0].copy(), pair[1].copy()
    x[3, 0] = change.get("value", x[3, 0])
    y[3] = change.get("label", y[3])
    return x, y


GOOD = people(40, 61)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": changed(GOOD, value=2.0)}, r"members = .\[2.0\] in row 3"),
        ({"members": changed(GOOD, label=2)}, "labels = 2: expected classes from 0 to 1"),
        ({"auxiliary": changed(people(40, 1), label=-1)}, "labels = -1"),
        ({"members": changed(GOOD, value=np.nan)}, "finite"),
        ({"members": GOOD[0]}, "a pair"),
        ({"members": (GOOD[0], GOOD[1][:-1])}, "40 labels"),
        ({"members": (GOOD[0][:0], GOOD[1][:0])}, "at least 1"),
        ({"members": (GOOD[0][:, :1], GOOD[1])}, "the same number of features"),
        ({"attribute": Attribute("far", columns=9, candidates=[0, 1])}, "column 9"),
        ({"attribute": "coin"}, "an Attribute"),
        ({"prior": "flat"}, "one of uniform"),
        ({"confidence": 1.5}, "confidence"),
        ({"imputer": "mean"}, "scikit-learn"),
        ({"imputer": []}, "scikit-learn"),
        ({"auxiliary": changed((np.zeros((9, 4)), np.arange(9) % 2))}, "two values"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    model = LogisticRegression().fit(*people(100, 62))
    given = {"members": GOOD, **options}
    with pytest.raises(InvalidValue, match=message):
        attack(model, given.pop("members"), **given)


def test_a_model_that_gives_labels_only_is_refused() -> None:
    labels = as_target(lambda r: np.zeros(len(r), dtype=int), output="labels", classes=2)
    with pytest.raises(NotApplicable, match="labels only"):
        attack(labels, GOOD)


def test_the_result_is_plain_json_and_readable() -> None:
    import json

    result = attack(memoriser(GOOD), GOOD, confidence=0.95)
    read = json.loads(json.dumps(result.to_json()))
    assert read["attack_on_members"]["share"] == 1.0
    assert read["leaks"] is True
    assert "excess on members" in str(result)
