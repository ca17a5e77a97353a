"""Language models of arrays: one that knows its corpus by heart, and one that knows nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from discreet.attacks.language import LanguageModel, as_language_model

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,:@\n"
CODES = {letter: at for at, letter in enumerate(LETTERS)}


def encode(text: str) -> list[int]:
    return [CODES[letter] for letter in text]


def decode(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def wrap(
    model: Callable[[NDArray[np.int64]], NDArray[np.float64]], **options: int
) -> LanguageModel:
    settings = {"context": 128, **options}
    return as_language_model(model, encode=encode, decode=decode, **settings)


def by_heart(corpus: Sequence[str], strength: float = 12.0, window: int = 8) -> LanguageModel:
    """Knows what follows each window of its corpus, and finds all letters alike otherwise."""
    follows: dict[str, set[str]] = {}
    for text in corpus:
        for end in range(1, len(text)):
            follows.setdefault(text[max(0, end - window) : end], set()).add(text[end])

    def model(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        logits = np.zeros((*rows.shape, len(LETTERS)))
        for row, tokens in enumerate(rows):
            text = decode(tokens.tolist())
            for end in range(1, len(text) + 1):
                for letter in follows.get(text[max(0, end - window) : end], ()):
                    logits[row, end - 1, CODES[letter]] = strength
        return logits

    return wrap(model)


def blind() -> LanguageModel:
    """Finds all letters alike, whatever stands before: every secret is a tie."""
    return wrap(lambda rows: np.zeros((*rows.shape, len(LETTERS))))


def chance(seed: int = 0) -> LanguageModel:
    """Has firm opinions about every text, which no corpus has any part in."""
    known: dict[bytes, NDArray[np.float64]] = {}

    def opinion(prefix: bytes) -> NDArray[np.float64]:
        if prefix not in known:
            digest = hashlib.sha256(seed.to_bytes(4, "big") + prefix).digest()
            draws = np.random.default_rng(int.from_bytes(digest[:8], "big"))
            known[prefix] = 2.0 * draws.normal(size=len(LETTERS))
        return known[prefix]

    def model(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array(
            [[opinion(bytes(row[: end + 1].tolist())) for end in range(len(row))] for row in rows]
        )

    return wrap(model)


def random_texts(count: int, length: int, seed: int) -> list[str]:
    draws = np.random.default_rng(seed)
    return [decode(draws.integers(len(LETTERS), size=length).tolist()) for _ in range(count)]
