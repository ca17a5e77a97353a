"""S33: forbidden pairs hold in every synthetic row, and constraints that cannot be are refused."""

import numpy as np
import pytest

from discreet.data import Categorical, Integer, Schema
from discreet.errors import InvalidValue
from discreet.synth import OneShot, SyntheticModel

SCHEMA = Schema(
    {
        "sex": Categorical(["f", "m"], other="f"),
        "kin": Categorical(["wife", "husband", "child"], other="child"),
        "age": Integer(0, 99),
        "beds": Integer(0, 3),
    },
    expected_rows=600,
)
FORBID = [
    {"sex": "m", "kin": "wife"},
    {"kin": "husband", "sex": "f"},
    {"kin": "wife", "age": 7},
    {"kin": "child", "age": 99},
]
RNG = np.random.default_rng(0)
ROWS = {
    "sex": RNG.choice(["f", "m"], 600),
    "kin": RNG.choice(["wife", "husband", "child"], 600),
    "age": RNG.integers(0, 100, 600),
    "beds": RNG.integers(0, 4, 600),
}


def broken(rows: object) -> int:
    """How many rows have a forbidden pair; the private table has many."""
    lists = {name: np.asarray(rows[name]) for name in SCHEMA.columns}  # type: ignore[index]
    return sum(
        int(np.logical_and.reduce([lists[name] == value for name, value in one.items()]).sum())
        for one in FORBID
    )


@pytest.mark.parametrize("target", [None, "beds"])
def test_no_row_has_a_forbidden_pair(target: str | None, tmp_path: object) -> None:
    plan = OneShot(forbid=FORBID, target=target).plan(SCHEMA, epsilon=1.0, delta=1e-6)
    assert plan.loss == OneShot().plan(SCHEMA, epsilon=1.0, delta=1e-6).loss
    assert broken(ROWS) > 100
    model = plan.run(ROWS, insecure_seed=1)
    assert broken(model.sample(20_000, seed=1).to_pydict()) == 0
    assert broken(model.sample(2_000, given={"kin": "wife"}, seed=1).to_pydict()) == 0
    with pytest.raises(InvalidValue, match="possible together"):
        model.sample(5, given={"kin": "wife", "sex": "m"})
    free = OneShot(target=target).plan(SCHEMA, epsilon=1.0, delta=1e-6).run(ROWS, insecure_seed=1)
    assert broken(free.sample(20_000, seed=1).to_pydict()) > 0
    model.save(f"{tmp_path}/model.npz")
    again = SyntheticModel.load(f"{tmp_path}/model.npz")
    assert again.sample(50, seed=3).equals(model.sample(50, seed=3))


@pytest.mark.parametrize(
    "forbid",
    [
        [{"sex": "m"}],
        [{"sex": "m", "weight": 3}],
        [{"sex": "x", "kin": "wife"}],
        [{"sex": "m", "age": 120}],
        ["sex"],
        [{"sex": sex, "kin": kin} for sex in "fm" for kin in ("wife", "husband", "child")],
        [
            {"sex": "m", "kin": "wife"},
            {"kin": "wife", "age": 3},
            {"age": 3, "beds": 1},
            {"beds": 1, "sex": "m"},
        ],
    ],
)
def test_constraints_that_cannot_be_are_refused(forbid: list[object]) -> None:
    with pytest.raises(InvalidValue):
        OneShot(forbid=forbid).plan(SCHEMA, epsilon=1.0, delta=1e-6)  # type: ignore[arg-type]
