"""A defence: how a model is trained, what its interface answers, and what it claims.

``train(records, labels, seed)`` returns a model; ``answer`` changes what the interface says.
A defence at the output has no way to train of its own: it stands in front of the undefended models
and shares them. A defence has an epsilon only if it has a loss, which is what a proof gives.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.privacy import Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.defences._canaries import Canaries

WHERE = ("none", "data", "training", "output")


@final
@dataclass(frozen=True, eq=False)
class Answers:
    """What a trained model says, for a defence at its output.

    ``asked`` are the log-probabilities that an attacker asks for, (n, classes), and ``names``
    tells the records apart; ``members`` and ``reference`` are those of records that the defender
    knows to be in the training data and outside of it.
    """

    asked: NDArray[np.floating]
    names: NDArray[np.uint64]
    members: NDArray[np.floating]
    reference: NDArray[np.floating]
    seed: int


class Output(Protocol):
    """What an interface answers instead: log-probabilities, (n, classes)."""

    def __call__(self, answers: Answers) -> NDArray[np.float64]:
        """Return the defended log-probabilities; -inf stands for a probability of 0."""


@final
@dataclass(frozen=True)
class Defence:
    """A defence for the bench, ``where`` it acts, and what is known about it.

    Parameters
    ----------
    name : str
        The name of its row.
    where : {"none", "data", "training", "output"}
        What it changes. One at the output has no ``train``.
    train : callable or estimator, optional
        ``train(records, labels, seed)`` returns a model; an object with ``fit`` and
        ``predict_proba`` is copied for each training. An attribute ``many`` trains several at once.
    answer : callable, optional
        Turns :class:`Answers` into what the interface says.
    loss : Loss, optional
        What is proved about the training, for one record. Without it the row has no guarantee.
    delta : float
        Where epsilon is read and audited.
    trainings : int
        How many models are trained for one that is released.
    models : int, optional
        At most this many shadow models, for defences that are dear.
    canaries : Canaries, optional
        Canaries chosen against this defence, instead of those of the bench.
    repeats : bool
        Whether the same seed gives the same model. Noise that protects does not repeat.
    cache_key : str
        Change it whenever ``train`` changes; needed to keep models of one's own functions.
    """

    name: str
    where: str
    train: Any = None
    answer: Output | None = None
    loss: Loss | None = None
    delta: float = 1e-5
    trainings: int = 1
    models: int | None = None
    canaries: Canaries | None = None
    repeats: bool = True
    cache_key: str = ""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InvalidValue("name", self.name, "a text that is not empty")
        _validate.one_of("where", self.where, WHERE)
        _validate.real("delta", self.delta, above=0, below=1)
        _validate.integer("trainings", self.trainings, at_least=1)
        if self.models is not None:
            _check_models(self.models)
        if self.loss is not None and not isinstance(self.loss, Loss):
            raise InvalidValue("loss", self.loss, "a loss of discreet.privacy, or nothing")
        if self.where == "output":
            if self.train is not None or self.answer is None:
                expected = "an answer and no train: it stands in front of undefended models"
                raise InvalidValue("where", self.where, expected)
            if self.loss is not None or self.canaries is not None or self.models is not None:
                expected = "the loss, canaries and number of the models that it shares: give none"
                raise InvalidValue("where", self.where, expected)
        elif self.train is None:
            raise InvalidValue("train", self.train, "a way to train, unless it acts at the output")
        elif not callable(self.train) and not hasattr(self.train, "fit"):
            raise InvalidValue("train", self.train, "a function, or an object with fit")

    @property
    def epsilon(self) -> float | None:
        """The claimed epsilon at ``delta``; None where nothing is proved."""
        return None if self.loss is None else self.loss.epsilon(delta=self.delta)

    def key(self) -> str:
        """What its trained models follow from, as a text."""
        told = getattr(self.train, "cache_key", None)
        return f"{self.name}:{self.cache_key}:{told or ''}"


def _check_models(models: int) -> int:
    """Return a number of models that makes two groups of pairs, or raise."""
    count = _validate.integer("models", models, at_least=12)
    if count % 4:
        raise InvalidValue("models", models, "a multiple of 4: two groups of pairs of models")
    return count


check_models = _check_models


@final
@dataclass(frozen=True, eq=False)
class IndexedTraining:
    """A defence's way to train, over the numbers of records, as a pool of shadow models wants."""

    train: Any
    records: NDArray[Any]
    labels: NDArray[np.int64]

    def __call__(self, indices: NDArray[np.intp], seed: int) -> Any:
        x, y = self.records[indices], self.labels[indices]
        if callable(self.train):
            return self.train(x, y, seed)
        return _fit_copy(self.train, x, y, seed)

    @property
    def many(self) -> Callable[..., Any]:
        """The same for several at once; only where the defence can do that."""
        together = getattr(self.train, "many", None)
        if together is None:
            raise AttributeError("many")
        return functools.partial(self._many, together)

    def _many(
        self,
        together: Callable[..., Any],
        indices: Sequence[NDArray[np.intp]],
        seeds: Sequence[int],
    ) -> Any:
        return together([(self.records[part], self.labels[part]) for part in indices], seeds)


def _fit_copy(estimator: Any, x: NDArray[Any], y: NDArray[np.int64], seed: int) -> Any:
    own = copy.deepcopy(estimator)
    if hasattr(own, "get_params") and "random_state" in own.get_params():
        own.set_params(random_state=seed)
    return own.fit(x, y)
