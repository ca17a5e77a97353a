"""Frozen data classes that are JSON objects, read strictly: nothing unknown, nothing coerced.

A *form* declares each of its fields as ``Annotated[type, kind]``; the :class:`Kind` checks a value,
reads it from JSON, writes it to JSON and describes it by a JSON Schema. Reading raises
``InvalidValue`` that names the place (``where.left.name``), so queries of analysts are refused by
their own text alone, before any data are touched.

A schema describes types, fields, lengths and ranges. What it cannot say is for the form alone: how
fields fit together, bounds of numbers that are written as text, and the depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, TypeVar, get_type_hints

from discreet import _validate
from discreet.errors import InvalidValue

DEEPEST = 32
LONGEST_TEXT = 200
_LARGEST_DIGITS = 10**18
_EXACT = (
    r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?"
    r"|[+-]?[0-9]{1,18}/0{0,17}[1-9][0-9]{0,17}"
)

Schema = dict[str, Any]
FormType = TypeVar("FormType", bound="Form")


@dataclass(frozen=True)
class Kind:
    """How one field is checked, read from JSON (at a depth), written and described.

    ``schema`` returns a JSON Schema, and enters the forms that it refers to into a dictionary.
    """

    check: Callable[[str, Any], Any]
    read: Callable[[str, Any, int], Any]
    write: Callable[[Any], Any]
    schema: Callable[[dict[str, Schema]], Schema]


class Form:
    """Base of all forms; subclasses are frozen data classes with ``tag`` and ``key``."""

    key: ClassVar[str]
    tag: ClassVar[str]

    def __post_init__(self) -> None:
        for name, kind in kinds_of(type(self)).items():
            object.__setattr__(self, name, kind.check(name, getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """The canonical JSON object: what is at its default is left out."""
        document: dict[str, Any] = {self.key: self.tag}
        kinds = kinds_of(type(self))
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if one.default is MISSING or value != one.default:
                document[one.name] = kinds[one.name].write(value)
        return document


_KINDS: dict[type[Form], dict[str, Kind]] = {}


def kinds_of(form: type[Form]) -> dict[str, Kind]:
    """The kind of each field, which its annotation carries: ``Annotated[type, kind]``."""
    if form not in _KINDS:
        _KINDS[form] = _read_kinds(form)
    return _KINDS[form]


def _read_kinds(form: type[Form]) -> dict[str, Kind]:
    hints = get_type_hints(form, include_extras=True)
    return {
        one.name: hints[one.name].__metadata__[0]
        for one in fields(form)  # type: ignore[arg-type]
    }


def read_form(
    place: str, document: object, forms: Mapping[str, type[Form]], key: str, depth: int
) -> Form:
    """Read one of the ``forms`` from JSON, told apart by ``key``."""
    if depth > DEEPEST:
        raise InvalidValue(place or "query", "...", f"at most {DEEPEST} levels")
    if not isinstance(document, Mapping) or key not in document:
        raise InvalidValue(place or "query", _brief(document), f"an object with a {key!r}")
    tag = document[key]
    if not isinstance(tag, str) or tag not in forms:
        raise InvalidValue(_join_place(place, key), _brief(tag), "one of " + ", ".join(forms))
    chosen = forms[tag]
    declared = {one.name: one for one in fields(chosen)}  # type: ignore[arg-type]
    for name in document:
        if name != key and name not in declared:
            known = ", ".join([key, *declared])
            raise InvalidValue(
                _join_place(place, str(name)[:50]), _brief(document[name]), f"only {known}"
            )
    kinds = kinds_of(chosen)
    values: dict[str, Any] = {}
    for name, one in declared.items():
        if name in document:
            values[name] = kinds[name].read(_join_place(place, name), document[name], depth + 1)
        elif one.default is MISSING:
            raise InvalidValue(_join_place(place, name), None, "a value: it must be given")
    return chosen(**values)


def form_of(base: type[FormType], forms: Callable[[], Mapping[str, type[Form]]]) -> Kind:
    """A field that holds another form, one of ``forms`` and a ``base``."""
    package = base.__module__.partition("._")[0]

    def check(argument: str, value: Any) -> Any:
        if not isinstance(value, base):
            raise InvalidValue(argument, _brief(value), f"a {base.__name__} of {package}")
        return value

    def read(place: str, document: Any, depth: int) -> Any:
        return read_form(place, document, forms(), base.key, depth)

    def schema(components: dict[str, Schema]) -> Schema:
        if base.__name__ not in components:
            components[base.__name__] = {}  # a form may hold others of its kind
            found = [_describe(form, components) for form in forms().values()]
            components[base.__name__] = {
                "oneOf": found,
                "discriminator": {"propertyName": base.key},
            }
        return _refer(base)

    return Kind(check, read, lambda value: value.to_json(), schema)


def _describe(form: type[Form], components: dict[str, Schema]) -> Schema:
    """Enter the schema of one form, and return a reference to it."""
    if form.__name__ not in components:
        properties: Schema = {form.key: {"const": form.tag}}
        description: Schema = {
            "description": (form.__doc__ or "").partition("\n")[0],
            "type": "object",
            "properties": properties,
            "required": [form.key],
            "additionalProperties": False,
        }
        components[form.__name__] = description
        kinds = kinds_of(form)
        for one in fields(form):  # type: ignore[arg-type]
            properties[one.name] = kinds[one.name].schema(components)
            if one.default is MISSING:
                description["required"].append(one.name)
    return _refer(form)


def _refer(form: type[Form]) -> Schema:
    return {"$ref": f"#/components/schemas/{form.__name__}"}


def row_of(kind: Kind, *, least: int = 1, most: int = 1000) -> Kind:
    """A field that holds a tuple of things of one kind."""

    def check_size(argument: str, values: Any) -> Any:
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
            raise InvalidValue(argument, _brief(values), "a list")
        if not least <= len(values) <= most:
            raise InvalidValue(argument, f"{len(values)} entries", f"from {least} to {most}")
        return values

    def check(argument: str, values: Any) -> Any:
        return tuple(
            kind.check(f"{argument}[{at}]", value)
            for at, value in enumerate(check_size(argument, values))
        )

    def read(place: str, values: Any, depth: int) -> Any:
        return tuple(
            kind.read(f"{place}[{at}]", value, depth)
            for at, value in enumerate(check_size(place, values))
        )

    def schema(components: dict[str, Schema]) -> Schema:
        items = kind.schema(components)
        return {"type": "array", "items": items, "minItems": least, "maxItems": most}

    return Kind(check, read, lambda values: [kind.write(value) for value in values], schema)


def optional(kind: Kind) -> Kind:
    """A field that may be None."""
    return Kind(
        lambda argument, value: None if value is None else kind.check(argument, value),
        lambda place, value, depth: None if value is None else kind.read(place, value, depth),
        lambda value: None if value is None else kind.write(value),
        lambda components: {"anyOf": [kind.schema(components), {"type": "null"}]},
    )


def scalar(
    check: Callable[[str, Any], Any],
    schema: Schema,
    *,
    write: Callable[[Any], Any] = lambda value: value,
) -> Kind:
    """A field that holds a single value, checked and read alike."""

    def read(place: str, value: Any, _: int) -> Any:
        return check(place, value)

    return Kind(check, read, write, lambda _: schema)


def exact(
    *,
    above: int | None = None,
    at_least: int | None = None,
    below: int | None = None,
    at_most: int | None = None,
) -> Kind:
    """A rational number, read as it was written; in JSON a text such as ``"1/10"``, or a number."""

    def check(argument: str, value: Any) -> Fraction:
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise InvalidValue(argument, value[:20] + "...", "an exact number of few digits")
        number = _validate.fraction(
            argument, value, above=above, at_least=at_least, below=below, at_most=at_most
        )
        if abs(number.numerator) > _LARGEST_DIGITS or number.denominator > _LARGEST_DIGITS:
            expected = "a fraction of whole numbers of at most 18 digits"
            raise InvalidValue(argument, _brief(value), expected)
        return number

    def read(place: str, value: Any, _: int) -> Fraction:
        if isinstance(value, str) and re.fullmatch(_EXACT, value) is None:
            raise InvalidValue(place, _brief(value), 'an exact number such as "1/10" or "0.1"')
        return check(place, value)

    limits = {
        "exclusiveMinimum": above,
        "minimum": -_LARGEST_DIGITS if above is None and at_least is None else at_least,
        "exclusiveMaximum": below,
        "maximum": _LARGEST_DIGITS if below is None and at_most is None else at_most,
    }
    inside = {name: limit for name, limit in limits.items() if limit is not None}
    as_text = {
        "type": "string",
        "pattern": f"^({_EXACT})$",
        "description": "An exact number: 3, 0.1, 1e-6 or 1/3.",
        "examples": ["1/10"],
    }
    schema = {"anyOf": [as_text, {"type": "number", **inside}]}
    return Kind(check, read, str, lambda _: schema)


def integer(*, at_least: int, at_most: int) -> Kind:
    """A whole number in a range."""
    return scalar(
        lambda argument, value: _validate.integer(
            argument, value, at_least=at_least, at_most=at_most
        ),
        {"type": "integer", "minimum": at_least, "maximum": at_most},
    )


def choice(*choices: str) -> Kind:
    """One of a few words."""
    return scalar(
        lambda argument, value: _validate.one_of(argument, value, choices), {"enum": list(choices)}
    )


def checked_text(argument: str, value: Any) -> str:
    """Return a text of Unicode characters without control characters, or raise."""
    expected = f"a text of 1 to {LONGEST_TEXT} characters, none of them a control character"
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_TEXT:
        raise InvalidValue(argument, _brief(value), expected)
    if any(ord(one) < 32 or 127 <= ord(one) < 160 or 0xD800 <= ord(one) < 0xE000 for one in value):
        raise InvalidValue(argument, _brief(value), expected)
    return value


text = scalar(
    checked_text,
    {
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_TEXT,
        "not": {"pattern": "[\\u0000-\\u001f\\u007f-\\u009f]"},
    },
)


def _join_place(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _brief(value: object) -> object:
    """Return a value as an error shows it: always short."""
    if isinstance(value, str):
        return value if len(value) <= 60 else value[:57] + "..."
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < _LARGEST_DIGITS:
        return value
    return type(value).__name__
