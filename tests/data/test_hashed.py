"""Columns with too many categories to list: a public hash of a declared size."""

import hashlib

import numpy as np
import pytest

from discreet.data import (
    Categorical,
    Encoding,
    Integer,
    Schema,
    check_columns,
    possible_mistakes,
    read_table,
)
from discreet.engines import open_table
from discreet.errors import InvalidValue
from discreet.learn import PrivateAdditiveClassifier, PrivateLogisticRegression

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
    pandas = pytest.importorskip("pandas")
    schema = Schema({"code": Categorical(hashed=8, missing="other"), "n": Integer(0, 9)})
    assert Schema.from_toml(schema.to_toml()) == schema
    assert "hashed = 8" in schema.to_toml()
    assert "group" not in schema.to_toml()
    data = pandas.DataFrame({"code": ["a", "b", None, "7"], "n": [1, 2, 3, 4]})
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
