"""Canaries: made-up texts with a random secret, planted to see what a language model recites.

The secret of a canary is drawn uniformly from a space that is known, such as all numbers of four
digits, by the exact randomness of the operating system. A model that never saw it ranks it like any
other of the space, whatever the model is: this is what exposure is measured against.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._files import write_file
from discreet._json import JsonRecord, read_json
from discreet.errors import FileUnusable, InvalidValue, SchemaError
from discreet.randomness import Source, choose_source, uniform_integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

ALPHABETS = {
    "digits": "0123456789",
    "letters": "abcdefghijklmnopqrstuvwxyz",
    "hex": "0123456789abcdef",
}
_SCHEMA = "discreet.attacks.canaries"
_FIELD = re.compile(r"\{(digits|letters|hex):([0-9]{1,2})\}")
_EXPECTED = (
    "a text with one secret, {digits:n}, {letters:n} or {hex:n}, and {name} for a made-up name"
)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SYLLABLES = 3


@final
@dataclass(frozen=True, repr=False)
class Canary(JsonRecord):
    """One text with its secret, and how often it is planted; 0 copies make a control."""

    before: str
    secret: str
    after: str
    alphabet: str
    copies: int

    @property
    def text(self) -> str:
        """The whole text."""
        return f"{self.before}{self.secret}{self.after}"

    @property
    def space(self) -> int:
        """How many secrets there could have been."""
        return int(len(self.alphabet) ** len(self.secret))

    def others(self, count: int, draw: Callable[[int, int], Sequence[int]]) -> list[str]:
        """Return secrets of the same space, ``count`` of them, drawn with replacement."""
        size = len(self.secret)
        letters = draw(len(self.alphabet), count * size)
        return [
            "".join(self.alphabet[one] for one in letters[at * size : (at + 1) * size])
            for at in range(count)
        ]

    def __repr__(self) -> str:
        # The secret of a canary must not reach logs before the model was attacked.
        return f"Canary(of {self.space}, copies={self.copies})"


@final
@dataclass(frozen=True, repr=False)
class Canaries(Sequence[Canary]):
    """Canaries in the order in which they were made; see :func:`make_canaries`."""

    entries: tuple[Canary, ...]

    def __post_init__(self) -> None:
        for one in self.entries:
            known = set(one.alphabet)
            if not one.secret or not set(one.secret) <= known or len(known) != len(one.alphabet):
                raise InvalidValue("canaries", one.before, "secrets of letters of their alphabet")
            _validate.integer("copies", one.copies, at_least=0)
        if not self.entries:
            raise InvalidValue("canaries", "no canary", "at least one")

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, place: Any) -> Any:
        found = self.entries[place]
        return Canaries(found) if isinstance(place, slice) else found

    def __iter__(self) -> Iterator[Canary]:
        return iter(self.entries)

    def __repr__(self) -> str:
        return f"Canaries({len(self)})"

    def texts(self, included: ArrayLike | None = None) -> list[str]:
        """Return the texts to add to the training data, each as often as it has copies.

        Parameters
        ----------
        included
            For each canary whether it is planted, such as ``Inclusion.included`` of
            ``discreet.audit``; by default all are.

        Returns
        -------
        list of str
            The texts, copies of one canary behind one another.

        Raises
        ------
        InvalidValue
            If there is not one entry for each canary.
        """
        planted = np.ones(len(self), bool) if included is None else np.asarray(included, bool)
        if planted.shape != (len(self),):
            expected = f"one entry for each of {len(self)} canaries"
            raise InvalidValue("included", f"shape {planted.shape}", expected)
        return [
            one.text
            for one, there in zip(self.entries, planted, strict=True)
            if there
            for _ in range(one.copies)
        ]

    def save(self, path: str | Path) -> Path:
        """Write the canaries to a JSON file, secrets included.

        Parameters
        ----------
        path
            A file that is written or replaced.

        Returns
        -------
        Path
            The file.
        """
        body = {"schema": _SCHEMA, "version": 1, "canaries": [one.to_json() for one in self]}
        return write_file(path, json.dumps(body, indent=1) + "\n", private=True)


def make_canaries(
    template: str,
    count: int,
    *,
    copies: Sequence[int] = (1,),
    names: Sequence[str] | None = None,
    source: Source | None = None,
) -> Canaries:
    """Make canaries with secrets of their own.

    Parameters
    ----------
    template
        The text. ``{digits:4}``, ``{letters:4}`` or ``{hex:4}`` is the secret and stands in it
        once; ``{name}`` is a name of each canary's own.
    count
        How many canaries there are for each number of copies.
    copies
        How often they are planted; 0 makes controls, which are never planted.
    names
        Names to use; by default they are made up.
    source
        Where the secrets come from; by default the operating system.

    Returns
    -------
    Canaries
        ``count`` for the first number of copies, then as many for the next.

    Raises
    ------
    InvalidValue
        If the template has no secret or several, or there are too few names.

    >>> made = make_canaries("the door code of {name} is {digits:4}", 3, copies=(1, 4))
    >>> len(made), len(made.texts()), made[0].space
    (6, 15, 10000)
    """
    _validate.integer("count", count, at_least=1)
    bits = choose_source(source)
    parts = _FIELD.split(str(template))
    if len(parts) != 4 or int(parts[2]) < 1:
        raise InvalidValue("template", template, _EXPECTED)
    before, kind, size, after = parts
    alphabet = ALPHABETS[kind]
    number = count * len(copies)
    if names is None:
        chosen = _make_names(number, bits)
    else:
        chosen = list(dict.fromkeys(names))
        if len(chosen) < number:
            raise InvalidValue("names", f"{len(chosen)} names", f"{number} different ones")
    entries = []
    for place in range(number):
        drawn = uniform_integers(len(alphabet), int(size), source=bits)
        secret = "".join(alphabet[one] for one in drawn)
        ends = (part.replace("{name}", chosen[place]) for part in (before, after))
        entries.append(Canary(next(ends), secret, next(ends), alphabet, copies[place // count]))
    return Canaries(tuple(entries))


def read_canaries(path: str | Path) -> Canaries:
    """Read what :meth:`Canaries.save` wrote.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Canaries
        As they were saved.

    Raises
    ------
    FileUnusable
        If it cannot be read.
    SchemaError
        If it is another file.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        expected = f"a readable file ({error.strerror or error})"
        raise FileUnusable("canaries", str(path), expected) from None
    body = read_json(content, "the file of canaries")
    if not isinstance(body, dict) or body.get("schema") != _SCHEMA or body.get("version") != 1:
        raise SchemaError(f"{Path(path).name} is no file of canaries ({_SCHEMA}, version 1)")
    try:
        return Canaries(tuple(Canary(**one) for one in body["canaries"]))
    except (KeyError, TypeError, InvalidValue) as error:
        raise SchemaError(f"{Path(path).name}: a canary is wrong: {error}") from None


def _make_names(count: int, source: Source) -> list[str]:
    syllables = [first + second for first in _CONSONANTS for second in _VOWELS]
    found: dict[str, None] = {}
    while len(found) < count:
        drawn = uniform_integers(len(syllables), _SYLLABLES, source=source)
        found["".join(syllables[one] for one in drawn)] = None
    return list(found)
