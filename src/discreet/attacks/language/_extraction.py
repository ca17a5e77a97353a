"""Extraction: what a language model writes of its training data, word for word.

A text is cut into a prefix and the suffix behind it. It is *extractable* if the model, given the
prefix, writes the suffix: with the likeliest token each time (Carlini and others 2021; with k
tokens of prefix, k-extractable), or with probability ``chance`` in ``samples`` draws, the
(n, p)-discoverable extraction of Hayes and others 2024. A draw gives the suffix with probability z,
the product of the probabilities of its tokens, so n draws give it with probability 1 - (1 - z)^n;
nothing needs to be drawn to know that.

What many people write can be written without having seen this text: a licence, a greeting, blanks.
So the same is asked about texts of the same kind that were not used, and what goes beyond them
counts. A record that is extracted no more often than such a twin was not memorised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet._confidence import Difference, Proportion, gap, proportion
from discreet._json import HIDDEN
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks.language._model import LanguageModel
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLANKS = re.compile(r"\s+")


@final
@dataclass(frozen=True, eq=False, repr=False)
class ExtractionResult(Result):
    """How often a suffix was extracted, of texts that were used and of twins that were not.

    ``extracted`` and ``extracted_twins`` are one truth value for each text, or for each person.
    """

    json_kind = "extraction"
    json_properties = ("members", "twins", "excess")

    way: str
    unit: str
    prefix: int
    suffix: int
    left_out: int
    confidence: float
    extracted: NDArray[np.bool_] = field(metadata=HIDDEN)
    extracted_twins: NDArray[np.bool_] = field(metadata=HIDDEN)

    def __repr__(self) -> str:
        return f"ExtractionResult({self.way!r}, {self.excess})"

    @property
    def members(self) -> Proportion:
        """The share of texts, or people, that were used and are extracted."""
        return _share(self.extracted, self.confidence)

    @property
    def twins(self) -> Proportion:
        """The same of those that were not used."""
        return _share(self.extracted_twins, self.confidence)

    @property
    def excess(self) -> Difference:
        """The difference of the two; 0 is what a model without memory has."""
        return gap(self.extracted, self.extracted_twins, confidence=self.confidence)

    @property
    def finding(self) -> Finding:
        """The excess over twins."""
        found = self.excess
        measure = f"{self.unit}s extracted ({self.way}) beyond held-out twins"
        trials = len(self.extracted)
        return Finding(
            "extraction", measure, found.value, found.low, found.high, found.confidence, 0.0, trials
        )

    def __str__(self) -> str:
        return (
            f"{self.way}, {self.suffix} tokens behind {self.prefix}: {self.members} {self.unit}s "
            f"that were used, {self.twins} that were not; difference {self.excess}"
        )


@attack(family="memorisation", access="probabilities")
def extraction(
    language_model: LanguageModel,
    members: Sequence[str],
    nonmembers: Sequence[str],
    *,
    prefix: int = 32,
    suffix: int = 32,
    samples: int | None = None,
    chance: float = 0.5,
    temperature: float = 1.0,
    top: int | None = None,
    least_distinct: int = 6,
    member_owners: Sequence[object] | None = None,
    nonmember_owners: Sequence[object] | None = None,
    confidence: float = 0.95,
) -> ExtractionResult:
    """Say how many texts the model completes word for word, beyond twins that it never saw.

    Parameters
    ----------
    language_model
        The model; see :func:`as_language_model`.
    members, nonmembers
        Texts that were used, and texts of the same kind that were not. Their first ``prefix`` +
        ``suffix`` tokens are read; shorter ones are left out.
    prefix, suffix
        How many tokens the attacker knows, and how many the model must write.
    samples
        How many texts the attacker draws; by default the likeliest token is taken each time.
    chance
        With ``samples``: the probability with which one of them must be the suffix.
    temperature, top
        Of the draws: as the model's probabilities are at 1; only the ``top`` likeliest tokens.
    least_distinct
        Suffixes with fewer different tokens, such as blanks, are left out.
    member_owners, nonmember_owners
        Whose each text is. Then people are counted instead of texts: a person is extracted if one
        of their texts is.
    confidence
        Of the intervals. One that lies above 0 for texts that the model never saw has a probability
        of at most half of what is missing to 1, if texts, or people, are independent.

    Returns
    -------
    ExtractionResult
        Both shares and their difference. It is internal, unless all texts are public.

    Raises
    ------
    InvalidValue
        If a text is both, an argument is out of range, or no text is long enough.
    """
    first = _validate.integer("prefix", prefix, at_least=0)
    size = _validate.integer("suffix", suffix, at_least=1)
    sure = _validate.real("confidence", confidence, above=0, below=1)
    fewest = _validate.integer("least_distinct", least_distinct, at_least=1)
    warm = _validate.real("temperature", temperature, above=0)
    draws = None if samples is None else _validate.integer("samples", samples, at_least=1)
    wanted = _validate.real("chance", chance, above=0, below=1)
    most = None if top is None else _validate.integer("top", top, at_least=1)
    groups = (
        ("members", members, "member_owners", member_owners),
        ("nonmembers", nonmembers, "nonmember_owners", nonmember_owners),
    )
    if (member_owners is None) != (nonmember_owners is None):
        raise InvalidValue("nonmember_owners", nonmember_owners, "owners of both kinds or of none")
    refuse_shared(members, nonmembers, member_owners, nonmember_owners)
    found, left_out = [], 0
    for argument, texts, owners_argument, given in groups:
        read = [language_model.read(argument, text) for text in texts]
        chosen = [
            at
            for at, row in enumerate(read)
            if len(row) >= first + size and len(set(row[first : first + size])) >= fewest
        ]
        left_out += len(read) - len(chosen)
        if not chosen:
            expected = f"a text of {first + size} tokens, {fewest} different ones in its suffix"
            raise InvalidValue(argument, f"{len(read)} texts", expected)
        rows = np.array([read[at][: first + size] for at in chosen], dtype=np.int64)
        if draws is None:
            hit = _greedy(language_model, rows, first)
        else:
            chances = _log_chances(language_model, rows, first, warm, most)
            hit = draws_needed(chances, wanted) <= draws
        if given is not None:
            owners = check_owners(owners_argument, given, len(read))
            hit = by_owner([owners[at] for at in chosen], hit)
        found.append(hit)
    way = "greedy" if draws is None else f"{draws} samples, chance {wanted:g}"
    unit = "text" if member_owners is None else "person"
    return ExtractionResult(way, unit, first, size, left_out, sure, *found)


def draws_needed(log_chances: NDArray[np.float64], chance: float) -> NDArray[np.float64]:
    """Return how many draws give each text at least once with probability ``chance``.

    Parameters
    ----------
    log_chances
        The logarithm of the probability of each text in one draw.
    chance
        The probability that is wanted.

    Returns
    -------
    array
        Numbers of draws, infinite where the text is never drawn.

    >>> draws_needed(np.log([0.5, 0.1]), 0.9).tolist()
    [4.0, 22.0]
    """
    single = np.minimum(np.asarray(log_chances, dtype=np.float64), 0.0)
    with np.errstate(divide="ignore"):
        # log(1 - z) without loss where z is tiny or near 1.
        missed = np.where(single < -0.7, np.log1p(-np.exp(single)), np.log(-np.expm1(single)))
        needed = math.log1p(-chance) / missed
    return np.where(missed == 0.0, np.inf, np.maximum(np.ceil(needed * (1 - 1e-12)), 1.0))


def _share(hits: NDArray[np.bool_], confidence: float) -> Proportion:
    return proportion(int(hits.sum()), len(hits), confidence=confidence)


def _greedy(model: LanguageModel, rows: NDArray[np.int64], prefix: int) -> NDArray[np.bool_]:
    """Whether the likeliest token is the right one all along: one look at rows as they are."""
    right = np.zeros(len(rows), dtype=np.bool_)
    for part, logs in model.log_probabilities_behind(rows, prefix):
        right[part] = (logs.argmax(axis=2) == rows[part, prefix:]).all(axis=1)
    return right


def _log_chances(
    model: LanguageModel,
    rows: NDArray[np.int64],
    prefix: int,
    temperature: float,
    top: int | None,
) -> NDArray[np.float64]:
    """The logarithm of the probability of each suffix in one draw."""
    total = np.zeros(len(rows))
    for part, said in model.log_probabilities_behind(rows, prefix):
        logs = said / temperature
        if top is not None and top < logs.shape[2]:
            least = np.partition(logs, -top, axis=2)[:, :, -top][:, :, None]
            logs = np.where(logs >= least, logs, -np.inf)
        highest = logs.max(axis=2, keepdims=True)
        logs = logs - highest - np.log(np.exp(logs - highest).sum(axis=2, keepdims=True))
        total[part] = np.take_along_axis(logs, rows[part, prefix:, None], axis=2).sum(axis=(1, 2))
    return total


def check_owners(argument: str, owners: Sequence[object], texts: int) -> list[str]:
    """Return whose each text is, as texts.

    Parameters
    ----------
    argument, owners
        What was given, and its name in errors.
    texts
        How many texts there are.

    Returns
    -------
    list of str
        One for each text.

    Raises
    ------
    InvalidValue
        If there is not one for each text.
    """
    if len(owners) != texts:
        raise InvalidValue(argument, f"{len(owners)} owners", f"one for each of {texts} texts")
    return [str(one) for one in owners]


def by_owner(owners: Sequence[str], hits: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each person whether one of their texts was hit."""
    found: dict[str, bool] = {}
    for owner, hit in zip(owners, hits.tolist(), strict=True):
        found[owner] = found.get(owner, False) or hit
    return np.array(list(found.values()), dtype=np.bool_)


def refuse_shared(
    members: Sequence[str],
    nonmembers: Sequence[str],
    member_owners: Sequence[object] | None,
    nonmember_owners: Sequence[object] | None,
) -> None:
    """Refuse texts, and people, that are on both sides."""
    both = set(members) & set(nonmembers)
    if both:
        raise InvalidValue("nonmembers", f"{len(both)} texts that are members", "other texts")
    people = {str(one) for one in member_owners or ()} & {
        str(one) for one in nonmember_owners or ()
    }
    if people:
        raise InvalidValue("nonmember_owners", f"{len(people)} people on both sides", "others")


@final
@dataclass(frozen=True, repr=False)
class RecitalResult(Result):
    """The longest passage of a corpus that the model wrote, blanks of any kind counting as one.

    ``public_run`` is the longest passage of what the model wrote that public texts have: what
    anybody could have told it.
    """

    json_kind = "recital"
    json_properties = ("run", "public_run")
    passage: str = field(metadata=HIDDEN)
    public_passage: str = field(metadata=HIDDEN)
    written: tuple[str, ...] = field(metadata=HIDDEN)
    prompts: int

    def __repr__(self) -> str:
        return f"RecitalResult(run={self.run}, public_run={self.public_run})"

    @property
    def run(self) -> int:
        """How many characters the longest passage of the corpus has."""
        return len(self.passage)

    @property
    def public_run(self) -> int:
        """How many characters the longest public passage has."""
        return len(self.public_passage)

    @property
    def finding(self) -> Finding:
        """A passage has no chance to compare it with: see :func:`extraction` for that."""
        raise NotApplicable("a recital has no chance level to compare with: extraction() has one")

    def __str__(self) -> str:
        return (
            f"the longest passage of the corpus in {self.prompts} texts that the model wrote has "
            f"{self.run} characters, the longest public one {self.public_run}"
        )


@attack(family="memorisation", access="probabilities")
def recital(
    language_model: LanguageModel,
    prompts: Sequence[str],
    corpus: Sequence[str],
    *,
    length: int = 240,
    public: Sequence[str] = (),
    least_distinct: int = 7,
) -> RecitalResult:
    """Let the model write behind prompts, and find the longest passage that its corpus has.

    The prompts themselves do not count. Each model writes the likeliest token each time.

    Parameters
    ----------
    language_model
        The model; see :func:`as_language_model`.
    prompts
        Texts to begin with.
    corpus
        The training texts.
    length
        How many tokens are written behind each prompt.
    public
        Texts that everybody has.
    least_distinct
        Passages with fewer different characters, such as rows of stars, do not count.

    Returns
    -------
    RecitalResult
        The passages. It is internal, unless the corpus is public.

    Raises
    ------
    InvalidValue
        If there is no prompt or no corpus.
    """
    size = _validate.integer("length", length, at_least=1)
    fewest = _validate.integer("least_distinct", least_distinct, at_least=1)
    if not prompts:
        raise InvalidValue("prompts", "no text", "at least one")
    if not corpus:
        raise InvalidValue("corpus", "no text", "at least one")
    # A character that no passage has keeps texts apart.
    own, others = ("\0".join(map(_one_blank, texts)) for texts in (corpus, public))
    written = []
    for prompt in prompts:
        tokens = language_model.read("prompts", prompt)
        written.append(language_model.write(language_model.continue_text(tokens, size)))
    passages = [
        max((longest_passage(_one_blank(text), where, fewest) for text in written), key=len)
        for where in (own, others)
    ]
    return RecitalResult(passages[0], passages[1], tuple(written), len(written))


def longest_passage(text: str, corpus: str, least_distinct: int = 1) -> str:
    """Return the longest part of a text that a corpus has, with so many different characters.

    Parameters
    ----------
    text, corpus
        Where to look for it, and in what.
    least_distinct
        How many different characters it must have.

    Returns
    -------
    str
        The first of the longest ones; empty if there is none.

    >>> longest_passage("we can redistribute it now", "you can redistribute it.")
    ' can redistribute it'
    """
    best, end = "", 0
    for begin in range(len(text)):
        end = max(end, begin)
        while end < len(text) and text[end] != "\0" and text[begin : end + 1] in corpus:
            end += 1
        if end - begin > len(best) and len(set(text[begin:end])) >= least_distinct:
            best = text[begin:end]
    return best


def _one_blank(text: str) -> str:
    return _BLANKS.sub(" ", text)
