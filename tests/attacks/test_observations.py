"""Observations and signals (S28)."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from discreet.attacks import (
    ShadowPool,
    as_target,
    lira,
    observe,
    observe_split,
    quantile_regression,
    rmia,
    shokri,
    yeom,
)
from discreet.attacks import _signals as signals
from discreet.attacks._records import record_digests
from discreet.errors import InvalidValue

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
TARGET = as_target(
    lambda x: np.column_stack([x[:, 0] % 4 / 8 + 0.2, 0.8 - x[:, 0] % 4 / 8]),
    output="probabilities",
)
MEMBERS = np.array([True, True, True, False, False, False])


def test_signals_by_hand() -> None:
    seen = observe(TARGET, X, Y, members=MEMBERS)
    p = TARGET.probabilities(X)[np.arange(6), Y]
    np.testing.assert_allclose(seen.confidences, p)
    np.testing.assert_allclose(seen.losses, -np.log(p))
    np.testing.assert_allclose(seen.scaled_logits(), np.log(p / (1 - p)), atol=1e-12)
    assert len(seen) == 6
    assert seen.classes == 2


def test_scaled_logit_is_exact_where_confidence_is_one() -> None:
    logits = np.array([[50.0, 0.0, 1.0]])
    target = as_target(lambda _: logits, output="logits")
    seen = observe_split(
        as_target(lambda x: np.repeat(logits, len(x), axis=0), output="logits"),
        members=(np.zeros((1, 1)), [0]),
        nonmembers=(np.ones((1, 1)), [0]),
    )
    assert target.probabilities(np.zeros((1, 1)))[0, 0] == 1.0
    wanted = 50 - np.log(np.exp(0.0) + np.exp(1.0))
    np.testing.assert_allclose(seen.scaled_logits(limit=100), wanted, rtol=1e-12)
    np.testing.assert_allclose(seen.scaled_logits(), signals.RESOLUTION)


def test_scaled_logit_of_hard_answers_is_finite() -> None:
    with np.errstate(divide="ignore"):
        hard = np.log(np.array([[1.0, 0.0], [0.0, 1.0]]))
    values = signals.scaled_logit(hard, np.array([0, 0]), limit=9.0)
    assert values.tolist() == [9.0, -9.0]
    assert signals.loss(hard, np.array([0, 0])).tolist() == [0.0, np.inf]


def test_overlap() -> None:
    x = np.concatenate([X, X[:1]])
    y, members = np.append(Y, Y[0]), np.append(MEMBERS, False)
    with pytest.raises(InvalidValue, match="1 non-members that are equal to a member"):
        observe(TARGET, x, y, members=members)
    kept = observe(TARGET, x, y, members=members, overlap="drop")
    assert len(kept) == 6
    assert kept.members.tolist() == MEMBERS.tolist()
    assert len(observe(TARGET, x, y, members=members, overlap="allow")) == 7
    # The same values with another label are another record.
    assert len(observe(TARGET, x, np.append(Y, 1), members=members)) == 7
    with pytest.raises(InvalidValue, match="equal to a member"):
        observe_split(TARGET, members=(X, Y), nonmembers=(X[2:3], Y[2:3]))


def test_split_data_frames_and_tensors() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": ["u", "v"] * 3}, index=[5, 4, 3, 2, 1, 0])
    model = as_target(lambda x: (x["b"] == "u") * 0.5 + x["a"] / 40, output="probabilities")
    both = observe_split(model, members=(frame[:3], Y[:3]), nonmembers=(frame[3:], Y[3:]))
    whole = observe(model, frame, Y, members=MEMBERS)
    np.testing.assert_array_equal(both.losses, whole.losses)
    np.testing.assert_array_equal(both.digests, whole.digests)
    assert list(both.records.columns) == ["a", "b"]
    with pytest.raises(InvalidValue, match="nonmembers"):
        observe_split(model, members=(frame[:3], Y[:3]), nonmembers=(frame[["b", "a"]][3:], Y[3:]))
    with pytest.raises(InvalidValue, match="a data frame, as members"):
        observe_split(model, members=(frame[:3], Y[:3]), nonmembers=(X[3:], Y[3:]))

    module, x = torch.nn.Linear(2, 2), torch.tensor(X, requires_grad=True)
    seen = observe_split(module, members=(x[:3], Y[:3]), nonmembers=(x[3:], Y[3:]))
    np.testing.assert_array_equal(seen.losses, observe(module, X, Y, members=MEMBERS).losses)
    assert torch.is_tensor(seen.records)
    with pytest.raises(InvalidValue, match="nonmembers"):
        observe_split(module, members=(x, Y), nonmembers=(torch.zeros(2, 3), [0, 1]))


def test_bad_input() -> None:
    for members in ([1, 0, 0, 0, 0, 0], MEMBERS[:3]):
        with pytest.raises(InvalidValue, match="members"):
            observe(TARGET, X, Y, members=members)
    with pytest.raises(InvalidValue, match="labels"):
        observe(TARGET, X, Y[:3], members=MEMBERS)
    with pytest.raises(InvalidValue, match="from 0 to 1"):
        observe(TARGET, X, Y + 1, members=MEMBERS)
    with pytest.raises(InvalidValue, match="nonmembers"):
        observe_split(TARGET, members=(X, Y), nonmembers=(X[:0], Y[:0]))
    with pytest.raises(InvalidValue, match="nonmembers"):
        observe_split(TARGET, members=(X, Y), nonmembers=(np.zeros((2, 3)), [0, 1]))
    with pytest.raises(InvalidValue, match="members"):
        observe_split(TARGET, members=(X, Y[:2]), nonmembers=(X + 100, Y))


def test_precisions_are_not_mixed_and_not_confused() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(8, 2)), np.arange(8) % 2
    coin = as_target(lambda x: np.full((len(x), 2), 0.5), output="probabilities")
    single = x.astype(np.float32)
    frame = pd.DataFrame(x, columns=["a", "b"])
    forms = (
        (single, x),
        (torch.tensor(single), torch.tensor(x)),
        (frame.astype({"b": np.float32}), frame),
    )
    for inside, outside in forms:
        for pair in ((inside, outside), (outside, inside)):
            with pytest.raises(InvalidValue, match=r"nonmembers = .*float(32|64).*as members"):
                observe_split(coin, members=(pair[0], y), nonmembers=(pair[1], y))
    whole = np.arange(16).reshape(8, 2)
    assert len(observe_split(coin, members=(x, y), nonmembers=(whole, y))) == 16
    one = observe(coin, x, y, members=y == 0)
    for other in (single, torch.tensor(single), x.astype(np.float16)):
        public = observe(coin, other[:3], y[:3], members=[False] * 3)
        with pytest.raises(InvalidValue, match="public = '3 records that are also evaluated"):
            one.check_reference(public, "public")
        with pytest.raises(InvalidValue, match="public = '3 records that are also evaluated"):
            public.check_reference(replace(one, members=np.zeros(8, dtype=bool)), "public")
    apart = observe(coin, single + 1, y, members=[False] * 8)
    one.check_reference(apart, "public")


def test_digests_follow_values_not_formats() -> None:
    y = np.array([0, 1])
    one = record_digests(np.array([[1.0, -0.0], [2.0, 3.0]]), y)
    assert one.tolist() == record_digests(np.array([[1, 0], [2, 3]], dtype=np.uint8), y).tolist()
    assert one.tolist() == record_digests(torch.tensor([[1.0, 0.0], [2.0, 3.0]]), y).tolist()
    assert one[0] != record_digests(np.array([[1.0, 0.0]]), np.array([1]))[0]
    words = record_digests(np.array([["a", "b"], ["a", "c"]], dtype=object), y * 0)
    assert len(set(words.tolist())) == 2


def test_parts() -> None:
    seen = observe(TARGET, X, Y, members=MEMBERS)
    part = seen.part(np.array([4, 0]))
    assert part.members.tolist() == [False, True]
    np.testing.assert_array_equal(part.records, X[[4, 0]])
    assert len(seen.part(MEMBERS)) == 3
    with pytest.raises(InvalidValue, match="2 records that are also evaluated"):
        seen.check_reference(part, "public")
    with pytest.raises(InvalidValue, match="1 members"):
        seen.part(np.array([1])).check_reference(part, "public")


def test_labels_in_two_dimensions_are_refused() -> None:
    coin = as_target(lambda x: np.full((len(x), 2), 0.5), output="probabilities")
    x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    with pytest.raises(InvalidValue, match=r"nonmembers = .labels of shape \(2, 1\)"):
        observe_split(coin, members=(x[:2], y[:2]), nonmembers=(x[2:], y[2:, None]))


def test_dropped_copies_and_parts_do_not_renumber_the_records() -> None:
    # Record 0 is a copy of member 3 and is dropped; members keep the numbers they were given.
    x = np.concatenate([X[2:3], X])
    y, members = np.append(Y[2], Y), np.append(False, MEMBERS)
    seen = observe(TARGET, x, y, members=members, overlap="drop")
    assert seen.record_numbers.tolist() == [1, 2, 3, 4, 5, 6]
    assert seen.part(seen.members).part(np.array([2, 0])).record_numbers.tolist() == [3, 1]
    assert observe(TARGET, X, Y, members=MEMBERS).record_numbers.tolist() == list(range(6))


def test_five_attacks_number_exposed_records_as_they_were_given() -> None:
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(240, 3)), draw.integers(0, 2, 240)

    def train(indices: np.ndarray, seed: int) -> KNeighborsClassifier:
        return KNeighborsClassifier(2).fit(x[indices], y[indices])

    pool = ShadowPool(x[40:], y[40:], lambda rows, seed: train(rows + 40, seed), models=8, seed=2)
    target = train(np.arange(40, 140), 0)
    # Twenty copies of members come first, as non-members; all the rest follows.
    rows = np.concatenate([np.arange(60, 80), np.arange(40, 240)])
    truth = np.concatenate([np.zeros(20, bool), np.arange(40, 240) < 140])
    seen = observe(target, x[rows], y[rows], members=truth, overlap="drop")
    public = observe(target, x[:40], y[:40], members=np.zeros(40, bool))
    shadows = pool.run()
    for result in (
        yeom(seen),
        lira(seen, shadows),
        rmia(seen, shadows),
        shokri(seen, shadows, seed=1),
        quantile_regression(seen, public, false_positive_rate=0.2, seed=1),
    ):
        for one in result.most_exposed(200):
            assert truth[one.record], result.attack
            assert one.label == y[rows][one.record]
        assert {one.record for one in result.most_exposed(200)} == set(range(20, 120))
