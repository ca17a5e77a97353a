"""Frozen data classes that are JSON objects, read strictly: nothing unknown, nothing coerced.

A *form* declares each of its fields as ``Annotated[type, kind]``; the :class:`Kind` checks a value,
reads it from JSON and writes it to JSON. Reading raises ``InvalidValue`` that names the place
(``where.left.name``), so queries of analysts are refused by their own text alone, before any data
are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, TypeVar, get_type_hints

from discreet import _validate
from discreet.errors import InvalidValue

__all__ = [
    "DEEPEST",
    "LONGEST_TEXT",
    "Form",
    "Kind",
    "checked_text",
    "choice",
    "exact",
    "form_of",
    "integer",
    "optional",
    "row_of",
    "scalar",
    "text",
    "write_number",
]

DEEPEST = 32
LONGEST_TEXT = 200
_LARGEST_DIGITS = 10**18

FormType = TypeVar("FormType", bound="Form")


@dataclass(frozen=True)
class Kind:
    """How one field is checked, read from JSON (at a depth) and written."""

    check: Callable[[str, Any], Any]
    read: Callable[[str, Any, int], Any]
    write: Callable[[Any], Any]


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
        raise InvalidValue(_at(place, key), _brief(tag), "one of " + ", ".join(forms))
    chosen = forms[tag]
    declared = {one.name: one for one in fields(chosen)}  # type: ignore[arg-type]
    for name in document:
        if name != key and name not in declared:
            known = ", ".join([key, *declared])
            raise InvalidValue(_at(place, str(name)[:50]), _brief(document[name]), f"only {known}")
    kinds = kinds_of(chosen)
    values: dict[str, Any] = {}
    for name, one in declared.items():
        if name in document:
            values[name] = kinds[name].read(_at(place, name), document[name], depth + 1)
        elif one.default is MISSING:
            raise InvalidValue(_at(place, name), None, "a value: it must be given")
    return chosen(**values)


def form_of(base: type[FormType], forms: Callable[[], Mapping[str, type[Form]]]) -> Kind:
    """A field that holds another form, one of ``forms`` and a ``base``."""

    def check(argument: str, value: Any) -> Any:
        if not isinstance(value, base):
            raise InvalidValue(argument, _brief(value), f"a {base.__name__} of discreet.curator")
        return value

    def read(place: str, document: Any, depth: int) -> Any:
        return read_form(place, document, forms(), base.key, depth)

    return Kind(check, read, lambda value: value.to_json())


def row_of(kind: Kind, *, least: int = 1, most: int = 1000) -> Kind:
    """A field that holds a tuple of things of one kind."""

    def sized(argument: str, values: Any) -> Any:
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
            raise InvalidValue(argument, _brief(values), "a list")
        if not least <= len(values) <= most:
            raise InvalidValue(argument, f"{len(values)} entries", f"from {least} to {most}")
        return values

    def check(argument: str, values: Any) -> Any:
        return tuple(
            kind.check(f"{argument}[{at}]", value)
            for at, value in enumerate(sized(argument, values))
        )

    def read(place: str, values: Any, depth: int) -> Any:
        return tuple(
            kind.read(f"{place}[{at}]", value, depth)
            for at, value in enumerate(sized(place, values))
        )

    return Kind(check, read, lambda values: [kind.write(value) for value in values])


def optional(kind: Kind) -> Kind:
    """A field that may be None."""
    return Kind(
        lambda argument, value: None if value is None else kind.check(argument, value),
        lambda place, value, depth: None if value is None else kind.read(place, value, depth),
        lambda value: None if value is None else kind.write(value),
    )


def scalar(check: Callable[[str, Any], Any], write: Callable[[Any], Any] = lambda v: v) -> Kind:
    """A field that holds a single value, checked and read alike."""

    def read(place: str, value: Any, _: int) -> Any:
        return check(place, value)

    return Kind(check, read, write)


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

    return scalar(check, write_number)


def integer(*, at_least: int, at_most: int) -> Kind:
    """A whole number in a range."""
    return scalar(
        lambda argument, value: _validate.integer(
            argument, value, at_least=at_least, at_most=at_most
        )
    )


def choice(*choices: str) -> Kind:
    """One of a few words."""
    return scalar(lambda argument, value: _validate.one_of(argument, value, choices))


def checked_text(argument: str, value: Any) -> str:
    """Return a text of Unicode characters without control characters, or raise."""
    expected = f"a text of 1 to {LONGEST_TEXT} characters, none of them a control character"
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_TEXT:
        raise InvalidValue(argument, _brief(value), expected)
    if any(ord(one) < 32 or 127 <= ord(one) < 160 or 0xD800 <= ord(one) < 0xE000 for one in value):
        raise InvalidValue(argument, _brief(value), expected)
    return value


text = scalar(checked_text)


def write_number(value: Fraction) -> str:
    """Write an exact number: ``"3"`` or ``"1/10"``."""
    return str(value)


def _at(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _brief(value: object) -> object:
    """A value as an error shows it: short, whatever was sent."""
    if isinstance(value, str):
        return value if len(value) <= 60 else value[:57] + "..."
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < _LARGEST_DIGITS:
        return value
    return type(value).__name__
