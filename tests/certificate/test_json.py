"""One strict reader of JSON, one text for one value."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from discreet._dsse import read_envelope
from discreet._json import canonical, digest_of, read_json
from discreet.certificate import Certificate
from discreet.errors import DiscreetError, SchemaError
from discreet.learn.dpsgd._plan import Plan
from discreet.ledger._entry import parse_entry
from discreet.privacy import from_json

HOSTILE = {
    '{"a": 1, "a": 1}': "twice",
    '{"a": {"b": 1, "b": 2}}': "twice",
    '{"a": NaN}': "NaN",
    '{"a": -Infinity}': "-Infinity",
    '{"a": 1e999}': "beyond floating point",
    "[" * 100_000: "nested too deeply",
    '{"a": ' + "9" * 5000 + "}": "4300 digits",
    '{"a": 1} x': "Extra data",
    "": "Expecting value",
}


@pytest.mark.parametrize(("text", "words"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_reading_is_strict(text: str, words: str) -> None:
    for content in (text, text.encode()):
        with pytest.raises(SchemaError, match=f"the letter is not JSON: .*{words}"):
            read_json(content, "the letter")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(
    "read", [from_json, Certificate.from_json, read_envelope, parse_entry, Plan.from_json]
)
def test_every_reader_is_this_one(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(DiscreetError, match="is not JSON"):
        read(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(SchemaError, match="the letter is not JSON"):
        read_json(b"\xff\xfe", "the letter")


def test_one_text_for_one_value() -> None:
    value = {"b": [1, 2.5, None, True], "a": "\u00e9"}
    text = '{"a":"\\u00e9","b":[1,2.5,null,true]}'
    assert canonical(value) == text
    assert read_json(text, "it") == value
    assert digest_of(value) == hashlib.sha256(text.encode()).hexdigest()
    assert canonical(2) != canonical(2.0)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for strange in ({1j: 1}, {"a": float("nan")}, {"a": {1}}, deep):
        with pytest.raises(SchemaError, match="not plain JSON"):
            canonical(strange)
