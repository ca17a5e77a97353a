"""The schema of certificates, their hash, and a small reader of JSON Schema.

The reader of schemas knows the words of draft 2020-12 that our schemas use and refuses every other
word, so that nothing in a schema is silently ignored. The tests hold it against the ``jsonschema``
package. It differs on purpose in one point: 2.0 is no integer, and not the constant 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from discreet.errors import SchemaError

SCHEMA = "discreet.certificate"
VERSION = 2
COVERS = (
    "one fit or run by the plan, on the data as they were passed to it; not what else was read off "
    "the same data: scaling, features or a vocabulary that were fitted to them, parameters that "
    "were tried out on them, scores that were computed on them"
)
"""What a certificate covers, and what only its owner can know."""

_SILENT = {"$schema", "$id", "$defs", "title", "description"}
_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a certificate, as a learner writes it and as it is published."""
    place = resources.files("discreet.certificate").joinpath("certificate.schema.json")
    read: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return read


def require_valid(document: object, rule: Mapping[str, Any] | None = None) -> None:
    """Refuse a document that does not follow the schema of certificates, or another."""
    wrong = schema_faults(document, schema() if rule is None else rule)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise SchemaError(f"certificate: {wrong[0]}{more}")


def schema_faults(document: object, schema: Mapping[str, Any]) -> list[str]:
    """Return sentences about what in a document does not follow the schema.

    >>> closed = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    >>> schema_faults({"n": 0}, closed)
    ['n: 0 is less than 1']
    """
    return list(_faults(document, schema, schema, ""))


def _faults(
    value: object, rule: Mapping[str, Any] | bool, root: Mapping[str, Any], at: str
) -> Iterator[str]:
    place = at or "the document"
    if isinstance(rule, bool):
        if not rule:
            yield f"{place}: there is no such field"
        return
    for word, said in rule.items():
        if word in _SILENT or word in {"properties", "additionalProperties", "then", "else"}:
            continue
        if word == "$ref":
            yield from _faults(value, _resolve_reference(said, root), root, at)
        elif word == "type":
            kinds = [said] if isinstance(said, str) else said
            if not any(_is(value, kind) for kind in kinds):
                yield f"{place}: {_show(value)} is not of type {' or '.join(kinds)}"
        elif word == "const":
            if not _is_same(value, said):
                yield f"{place}: {_show(value)} is not {said!r}"
        elif word == "enum":
            if not any(_is_same(value, one) for one in said):
                yield f"{place}: {_show(value)} is none of {', '.join(map(repr, said))}"
        elif word == "anyOf":
            if not any(next(_faults(value, one, root, at), None) is None for one in said):
                yield f"{place}: {_show(value)} fits none of the forms that are allowed"
        elif word == "if":
            holds = next(_faults(value, said, root, at), None) is None
            yield from _faults(value, rule.get("then" if holds else "else", True), root, at)
        elif word in {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}:
            if _is(value, "number"):
                yield from _bound(value, word, said, place)
        elif word in {"minLength", "pattern"}:
            if isinstance(value, str):
                yield from _text(value, word, said, place)
        elif word == "items":
            for position, item in enumerate(value if isinstance(value, list) else ()):
                yield from _faults(item, said, root, f"{at}[{position}]")
        elif word == "required":
            for name in said if isinstance(value, dict) else ():
                if name not in value:  # type: ignore[operator]
                    yield f"{place}: {name!r} is missing"
        else:
            raise SchemaError(f"the schema uses {word!r}, which is not known here")
    if isinstance(value, dict):
        yield from _members(value, rule, root, at)


def _members(
    value: dict[str, object], rule: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    known = rule.get("properties", {})
    others = rule.get("additionalProperties", True)
    for name, inner in value.items():
        place = f"{at}.{name}" if at else str(name)
        if name in known:
            yield from _faults(inner, known[name], root, place)
        elif others is False:
            yield f"{place}: there is no such field"
        elif isinstance(others, Mapping):
            yield from _faults(inner, others, root, place)


def _bound(value: Any, word: str, limit: float, place: str) -> Iterator[str]:
    if word == "minimum" and value < limit:
        yield f"{place}: {value!r} is less than {limit!r}"
    elif word == "maximum" and value > limit:
        yield f"{place}: {value!r} is more than {limit!r}"
    elif word == "exclusiveMinimum" and value <= limit:
        yield f"{place}: {value!r} is not above {limit!r}"
    elif word == "exclusiveMaximum" and value >= limit:
        yield f"{place}: {value!r} is not below {limit!r}"


def _text(value: str, word: str, said: Any, place: str) -> Iterator[str]:
    if word == "minLength" and len(value) < said:
        yield f"{place}: the text is too short"
    elif word == "pattern" and re.search(said, value) is None:
        yield f"{place}: {_show(value)} does not match {said}"


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _KINDS[kind])


def _is_same(value: object, said: object) -> bool:
    return value == said and type(value) is type(said)


def _resolve_reference(name: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    if not name.startswith("#/$defs/"):
        raise SchemaError(f"the schema refers to {name!r}, which is not among its own $defs")
    found: Mapping[str, Any] = root["$defs"][name.removeprefix("#/$defs/")]
    return found


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
