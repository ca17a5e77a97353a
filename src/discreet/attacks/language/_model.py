"""Language models as attacks see them: the probability of every next token of a text.

A :class:`LanguageModel` asks one thing of what it wraps: for rows of tokens, the logits of the next
token behind each of them. Networks of torch, models of ``transformers`` and functions of arrays all
give that. The wrapped model is never changed and never trained.

Rows of different lengths are filled up at the end. A model that reads from left to right, as this
page needs, does not see that; one that looks ahead is refused when it is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._training import Generator

_MOST_CELLS = 1 << 24
_MOST_ROWS = 1024
_LOOKED_AHEAD = 1e-2


@final
@dataclass(frozen=True, eq=False)
class TextScores:
    """What a model says about the tokens of one text.

    ``log_probabilities`` has one entry for each token that was predicted. ``means`` and
    ``deviations`` are those of the log-probability of the next token, were it drawn by the model.
    """

    log_probabilities: NDArray[np.float64]
    means: NDArray[np.float64]
    deviations: NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model as a black box; made by :func:`as_language_model`.

    ``ask`` maps rows of tokens to the logits of the next token behind each. At most ``context``
    tokens are read at once. ``start`` is a token that stands before every text.
    """

    ask: Callable[[NDArray[np.int64]], NDArray[np.float32]]
    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str] | None
    context: int
    start: int | None
    vocabulary: int

    def read(self, argument: str, text: str) -> list[int]:
        """Return the tokens of a text.

        Parameters
        ----------
        argument
            The name of the text in errors.
        text
            The text.

        Returns
        -------
        list of int
            Its tokens, without the one that stands before every text.

        Raises
        ------
        InvalidValue
            If it is no text, or the model does not know its tokens.
        """
        if not isinstance(text, str):
            raise InvalidValue(argument, type(text).__name__, "texts (str)")
        try:
            tokens = [int(token) for token in self.encode(text)]
        except (KeyError, IndexError, ValueError) as error:
            expected = f"a text of characters that the model knows ({error!r})"
            raise InvalidValue(argument, f"{len(text)} characters", expected) from None
        if any(not 0 <= token < self.vocabulary for token in tokens):
            expected = f"tokens from 0 to {self.vocabulary - 1}, as the model has them"
            raise InvalidValue(argument, f"{len(text)} characters", expected)
        return tokens

    def write(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens.

        Parameters
        ----------
        tokens
            What to write.

        Returns
        -------
        str
            The text.

        Raises
        ------
        InvalidValue
            If the model was wrapped without a way to write.
        """
        if self.decode is None:
            raise InvalidValue("decode", None, "a function from tokens to text, for this attack")
        return self.decode(list(tokens))

    def next_log_probabilities(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the log-probabilities of the token behind each row; rows have one length.

        Parameters
        ----------
        rows
            One row of tokens each.

        Returns
        -------
        array of shape (rows, vocabulary)
            Natural logarithms.
        """
        if self.start is not None:
            first = np.full((len(rows), 1), self.start, dtype=np.int64)
            rows = np.concatenate([first, rows], axis=1)
        if rows.shape[1] == 0:
            raise InvalidValue("prefix", "no token", "at least one token, or a model with a start")
        rows = rows[:, -self.context :]
        parts = [
            _log_softmax(self._logits(part)[:, -1, :]) for part in self._parts(rows, rows.shape[1])
        ]
        return np.concatenate(parts)

    def log_probabilities_behind(
        self, rows: NDArray[np.int64], first: int
    ) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Yield the log-probabilities of the tokens from ``first`` on, for some rows at a time.

        Parameters
        ----------
        rows
            One row of tokens each, of one length.
        first
            The first token that is to be predicted.

        Yields
        ------
        slice
            Which rows.
        array of shape (rows, tokens from first on, vocabulary)
            Natural logarithms, given all tokens of the row before.
        """
        head = 0 if self.start is None else 1
        fits = rows.shape[1] + head - 1 <= self.context and first + head > 0
        begin = 0
        for part in self._parts(rows, rows.shape[1]):
            if fits:
                start = np.full((len(part), head), self.start or 0, dtype=np.int64)
                read = np.concatenate([start, part[:, :-1]], axis=1)
                found = _log_softmax(self._logits(read)[:, first + head - 1 :])
            else:
                steps = range(first, rows.shape[1])
                found = np.stack([self.next_log_probabilities(part[:, :at]) for at in steps], 1)
            yield slice(begin, begin + len(part)), found
            begin += len(part)

    def score(self, texts: Sequence[Sequence[int]]) -> list[TextScores]:
        """Return what the model says about each text, in one forward pass for each window.

        A text that is longer than the context is read in windows that overlap by half of it.

        Parameters
        ----------
        texts
            The tokens of each text.

        Returns
        -------
        list of TextScores
            One for each text.
        """
        head = [] if self.start is None else [self.start]
        rows = [np.array([*head, *text], dtype=np.int64) for text in texts]
        found = [np.zeros((3, max(len(row) - 1, 0))) for row in rows]
        windows = [(at, *window) for at, row in enumerate(rows) for window in self._windows(row)]
        windows.sort(key=lambda one: one[2] - one[1])
        longest = max((end - begin for _, begin, end, _ in windows), default=0)
        for group in self._parts(np.arange(len(windows))[:, None], longest):
            chosen = [windows[at] for at in group[:, 0]]
            width = max(end - begin for _, begin, end, _ in chosen)
            filled = np.zeros((len(chosen), width), dtype=np.int64)
            for place, (at, begin, end, _) in enumerate(chosen):
                filled[place, : end - begin] = rows[at][begin:end]
            logs = _log_softmax(self._logits(filled))
            chances = np.exp(logs)
            means = (chances * np.where(chances > 0, logs, 0.0)).sum(axis=-1)
            squares = (chances * np.where(chances > 0, logs**2, 0.0)).sum(axis=-1)
            spreads = np.sqrt(np.maximum(squares - means**2, 0.0))
            for place, (at, begin, end, fresh) in enumerate(chosen):
                span = np.arange(fresh - begin, end - begin)
                said = logs[place, span - 1, rows[at][fresh:end]]
                found[at][:, fresh - 1 : end - 1] = (
                    said,
                    means[place, span - 1],
                    spreads[place, span - 1],
                )
        return [TextScores(*one) for one in found]

    def continue_text(
        self,
        prefix: Sequence[int],
        length: int,
        *,
        rng: Generator | None = None,
        temperature: float = 1.0,
    ) -> list[int]:
        """Return what the model writes behind a prefix: the likeliest tokens, or drawn ones.

        Parameters
        ----------
        prefix
            The tokens to begin with.
        length
            How many tokens to write.
        rng
            Draws the tokens; without it the likeliest one is taken each time.
        temperature
            Of the draws.

        Returns
        -------
        list of int
            The tokens that were written.
        """
        written = list(prefix)
        for _ in range(length):
            logs = self.next_log_probabilities(np.array([written], dtype=np.int64))[0]
            if rng is None:
                written.append(int(np.argmax(logs)))
                continue
            chances = np.exp(_log_softmax(logs / temperature))
            written.append(int(rng.choice(len(chances), p=chances / chances.sum())))
        return written[len(prefix) :]

    def _windows(self, row: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
        """Where each window begins and ends, and its first token that no earlier one predicts."""
        if len(row) < 2:
            return
        end, fresh = min(self.context, len(row)), 1
        while True:
            yield max(0, end - self.context), end, fresh
            if end == len(row):
                return
            fresh, end = end, min(end + max(1, self.context // 2), len(row))

    def _parts(self, rows: NDArray[np.int64], width: int) -> Iterator[NDArray[np.int64]]:
        most = max(1, min(_MOST_ROWS, _MOST_CELLS // (max(1, width) * self.vocabulary)))
        for begin in range(0, len(rows), most):
            yield rows[begin : begin + most]

    def _logits(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        found = np.asarray(self.ask(rows), dtype=np.float64)
        if found.shape != (*rows.shape, self.vocabulary):
            expected = f"logits of shape {(*rows.shape, self.vocabulary)}"
            raise InvalidValue("model", f"logits of shape {found.shape}", expected)
        if not np.isfinite(found.max(axis=-1)).all():  # NaN comes through a maximum
            raise InvalidValue("model", "logits that are NaN or infinite", "finite or -inf logits")
        return found


def as_language_model(
    model: Any,
    *,
    encode: Callable[[str], Sequence[int]] | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    tokenizer: Any = None,
    context: int | None = None,
    start: int | None = None,
) -> LanguageModel:
    """Wrap a model that predicts the next token.

    Parameters
    ----------
    model
        A ``torch.nn.Module`` or a function that maps rows of tokens to logits of shape (rows,
        tokens, vocabulary), or to an object with such ``logits``. A network is asked in its
        ``eval`` mode, without gradients, and is afterwards in the mode it was in.
    encode, decode
        Functions from a text to its tokens and back. Only attacks that write text need ``decode``.
    tokenizer
        In their place: an object with both, as ``transformers`` has them; special tokens are left
        out.
    context
        How many tokens the model reads at once; by default what ``model.config`` says.
    start
        A token that stands before every text. Without it nothing is said about the first token of
        a text.

    Returns
    -------
    LanguageModel
        The model, for the attacks of this package.

    Raises
    ------
    InvalidValue
        If an argument is missing, or the model looks ahead.

    >>> def counts(rows):  # after the token t comes t + 1
    ...     return 5.0 * np.eye(4)[(rows + 1) % 4]
    >>> model = as_language_model(counts, encode=lambda text: [int(c) for c in text], context=8)
    >>> [int(token) for token in model.continue_text([1], 4)]
    [2, 3, 0, 1]
    """
    if isinstance(model, LanguageModel):
        return model
    if tokenizer is not None:
        encode = encode or (lambda text: tokenizer.encode(text, add_special_tokens=False))
        decode = decode or (lambda tokens: str(tokenizer.decode(tokens)))
    if encode is None:
        raise InvalidValue("encode", None, "a function from a text to its tokens, or a tokenizer")
    if context is None:
        config = getattr(model, "config", None)
        for name in ("n_positions", "max_position_embeddings"):
            context = context or getattr(config, name, None)
    if context is None:
        raise InvalidValue("context", None, "how many tokens the model reads at once")
    limit = _validate.integer("context", context, at_least=2)
    if not callable(model):
        raise InvalidValue("model", type(model).__name__, "a network or a function of rows")
    ask = _ask_network(model) if hasattr(model, "state_dict") else _ask_function(model)
    first = 0 if start is None else _validate.integer("start", start, at_least=0)
    rows = np.full((2, min(limit, 4)), first, dtype=np.int64)
    seen = np.asarray(ask(rows[:1]), dtype=np.float64)
    if seen.ndim != 3 or seen.shape[:2] != (1, rows.shape[1]) or seen.shape[2] < 2:
        expected = "logits of shape (rows, tokens, vocabulary)"
        raise InvalidValue("model", f"an answer of shape {seen.shape}", expected)
    rows[1, -1] = (first + 1) % seen.shape[2]
    seen = np.asarray(ask(rows), dtype=np.float64)[:, :-1]
    if np.abs(seen[0] - seen[1]).max() > _LOOKED_AHEAD * (1 + np.abs(seen).max()):
        expected = "one that reads from left to right: this one looks at later tokens"
        raise InvalidValue("model", type(model).__name__, expected)
    return LanguageModel(ask, encode, decode, limit, start, seen.shape[2])


def _ask_function(model: Callable[..., Any]) -> Callable[[NDArray[np.int64]], Any]:
    def ask(rows: NDArray[np.int64]) -> Any:
        found = model(rows)
        return getattr(found, "logits", found)

    return ask


def _ask_network(model: Any) -> Callable[[NDArray[np.int64]], Any]:
    torch = import_module("torch")

    def ask(rows: NDArray[np.int64]) -> Any:
        device = next((one.device for one in model.parameters()), "cpu")
        with _evaluating(model), torch.no_grad():
            found = model(torch.from_numpy(np.ascontiguousarray(rows)).to(device))
            return getattr(found, "logits", found).float().cpu().numpy()

    return ask


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.minimum(found, 0.0)
