"""JSON: one text for one value, its SHA-256, strict reading, and records that write themselves."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from discreet.errors import SchemaError

__all__ = ["HIDDEN", "JsonRecord", "canonical", "digest_of", "plain", "read_json", "written_as"]

# Metadata of a dataclass field that is not written, such as what points at single people.
HIDDEN: Mapping[str, str | None] = {"json": None}


def written_as(name: str) -> Mapping[str, str | None]:
    """Return the metadata of a dataclass field that JSON has under another name."""
    return {"json": name}


def plain(value: Any) -> Any:
    """Return a value as plain JSON: records by ``to_json``, arrays as lists, infinities as words.

    >>> plain({1: (float("inf"), 2.5)})
    {'1': ['inf', 2.5]}
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays and numbers of numpy
        return plain(value.tolist())
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class JsonRecord:
    """A dataclass that JSON has by its fields, and by some of its properties."""

    json_properties: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; what points at single people is left out."""
        names = {one.name: one.metadata.get("json", one.name) for one in fields(self)}  # type: ignore[arg-type]
        names |= {name: name for name in self.json_properties}
        return {key: plain(getattr(self, name)) for name, key in names.items() if key is not None}


def canonical(value: object) -> str:
    r"""Return the text that is hashed: sorted names, no blanks, ASCII, no infinities.

    >>> canonical({"b": [1, "é"], "a": None})
    '{"a":null,"b":[1,"\\u00e9"]}'
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"not plain JSON: {error}") from None


def digest_of(value: object) -> str:
    """Return the SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def read_json(content: str | bytes, what: str) -> Any:
    """Read JSON strictly: no field twice, no number beyond floating point.

    ``what`` names the document in the ``SchemaError`` that anything else raises.
    """
    try:
        text = content.decode() if isinstance(content, bytes) else content
        return json.loads(
            text, object_pairs_hook=_refuse_twice, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        raise SchemaError(f"{what} is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise SchemaError(f"{what} is not JSON: {error}") from None


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise ValueError(f"the field {name!r} is given twice")
        seen[name] = value
    return seen


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is beyond floating point")
    return number


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")
