"""The text of JSON documents: one text for one value, its SHA-256, and strict reading."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from discreet.errors import SchemaError

__all__ = ["canonical", "digest_of", "read_json"]


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
            text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        raise SchemaError(f"{what} is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise SchemaError(f"{what} is not JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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
