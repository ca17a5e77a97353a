"""Columns with too many categories to list, by a public hash; truth values by a comparison."""

import hashlib

import numpy as np
import pytest

from discreet.data import (
    Boolean,
    Categorical,
    Encoding,
    Integer,
    Real,
    Schema,
    check_columns,
    possible_mistakes,
    read_table,
)
from discreet.engines import open_table
from discreet.errors import InvalidValue
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateLogisticRegression,
    load_model,
    train_table,
)

YES_NO = Categorical(["yes", "no"], other="no")


def group_of(text, groups):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % groups


def test_a_text_falls_into_the_group_of_its_hash():
    column = Categorical(hashed=16)
    cells = ["E11.9", " E11.9 ", "3", 3, 3.0, "", None, "é", b"\xff"]
    table = read_table({"code": cells}, Schema({"code": column}))
    other = 16
    three = group_of("3", 16)
    expected = [group_of("E11.9", 16)] * 2 + [three] * 3 + [other] * 2 + [group_of("é", 16)]
    assert table.columns["code"][:8].tolist() == expected
    assert 0 <= table.columns["code"][8] <= 16
    assert column.labels == (*(f"group {at}" for at in range(16)), "other")
    assert Encoding(Schema({"code": column})).width == 17


def test_files_frames_and_toml_agree(tmp_path):
    import pandas as pd

    schema = Schema({"code": Categorical(hashed=8, missing="other"), "n": Integer(0, 9)})
    assert Schema.from_toml(schema.to_toml()) == schema
    assert "hashed = 8" in schema.to_toml()
    assert "group" not in schema.to_toml()
    data = pd.DataFrame({"code": ["a", "b", None, "7"], "n": [1, 2, 3, 4]})
    data.to_csv(tmp_path / "a.csv", index=False)
    data.to_parquet(tmp_path / "a.parquet")
    tables = [
        read_table(one, schema).columns["code"].tolist()
        for one in (data, tmp_path / "a.csv", tmp_path / "a.parquet")
    ]
    assert tables[0] == tables[1] == tables[2]
    check_columns({"code": np.arange(4), "n": np.arange(4)}, schema)
    assert not any("not declared" in str(one) for one in possible_mistakes(data, schema))


@pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateAdditiveClassifier])
def test_learners_find_what_a_code_says(kind):
    rng = np.random.default_rng(0)
    codes = np.array([f"code {at}" for at in range(20)])
    ill = np.arange(20) % 2 == 0
    rows = rng.integers(0, 20, 3000)
    data = {"code": codes[rows], "ill": np.where(ill[rows], "yes", "no")}
    declared = Schema(
        {"code": Categorical(hashed=512), "ill": YES_NO}, target="ill", expected_rows=20_000
    )
    model = kind(schema=declared, epsilon=3.0, insecure_seed=1).fit(data)
    assert model.score(data) > 0.75


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(InvalidValue, match="hashed"):
        Categorical(["a"], hashed=4)
    with pytest.raises(InvalidValue, match="hashed"):
        Categorical(hashed=1)
    with pytest.raises(InvalidValue, match="hashed"):
        Schema({"a": Categorical(hashed=4)}, target="a")
    (tmp_path / "a.csv").write_text("a\nx\n", encoding="utf-8")
    with pytest.raises(InvalidValue, match="hashed"):
        open_table(tmp_path / "a.csv", Schema({"a": Categorical(hashed=4)}))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("> 2", [0, 0, 1, 0]),
        (">=2", [0, 1, 1, 0]),
        ("<2.0", [1, 0, 0, 0]),
        (" <= 2 ", [1, 1, 0, 0]),
    ],
)
def test_a_rule_makes_truth_values_of_numbers(tmp_path, rule, expected):
    schema = Schema({"score": Boolean(rule=rule)})
    assert Schema.from_toml(schema.to_toml()) == schema
    (tmp_path / "a.csv").write_text("score\n1\n2.0\n1e9\nmany\n", encoding="utf-8")
    for data in (
        tmp_path / "a.csv",
        {"score": ["1", 2, 1e9, None]},
        {"score": np.array([1, 2, 3, np.nan])},
    ):
        assert read_table(data, schema).columns["score"].tolist() == expected
    with pytest.raises(InvalidValue, match=r"columns\.score\.rule"):
        open_table(tmp_path / "a.csv", schema)


@pytest.mark.parametrize("rule", ["0", "> x", "== 1", "> inf", "> nan", 3])
def test_rules_that_cannot_be_are_refused(rule):
    with pytest.raises(InvalidValue, match="rule"):
        Boolean(rule=rule)


def test_a_comparison_is_a_target(tmp_path):
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, 1000)
    rows = "\n".join(f"{a:.3f},{(a - 50) / 10:.4f}" for a in age)
    (tmp_path / "a.csv").write_text(f"age,score\n{rows}\n", encoding="utf-8")
    schema = Schema({"age": Real(0, 100), "score": Real(-9, 9)}, expected_rows=1000)
    train_table(tmp_path / "a.csv", schema, target="score > 0", epsilon=2.0, out=tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.predict({"age": [10.0, 90.0]}).tolist() == [False, True]
    assert model.score(tmp_path / "a.csv") > 0.9
    for wrong in ("score > high", "height > 0", "score ="):
        with pytest.raises(InvalidValue, match="target"):
            train_table(tmp_path / "a.csv", schema, target=wrong, epsilon=2.0)
