"""Whether an inverted picture shows whom it should, by a judge that was not attacked.

The attacked model recognises every picture that was made to please it, so it is refused as a
judge. The judge is trained independently, on other photographs of the same people, and first
has to show on real photographs, which it has not seen either, that it can tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet.attacks.inversion import InversionResult
from discreet.attacks.targets import Target, as_target, class_indices
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["RecognitionResult", "recognition"]


@final
@dataclass(frozen=True)
class RecognitionResult:
    """The share of classes whose inverted input the judge assigns to that class.

    ``photographs`` is the judge's accuracy on real records, ``chance`` what guessing gives. The
    classes are the trials: the interval speaks of classes like these of this model.
    """

    rate: Proportion
    photographs: Proportion
    chance: float
    guesses: tuple[int, ...]
    classes: tuple[int, ...]

    @property
    def leaks(self) -> bool:
        """Whether the whole interval of the rate lies above chance."""
        return self.rate.low > self.chance

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.leaks:
            return "the model gives pictures of its classes away"
        return "no leak is shown: the judge may be guessing"

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return {
            "attack": "inversion",
            "rate": self.rate.to_json(),
            "photographs": self.photographs.to_json(),
            "chance": self.chance,
            "guesses": list(self.guesses),
            "classes": list(self.classes),
            "leaks": self.leaks,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        return (
            f"{self.verdict}: recognised {self.rate}, chance {self.chance:.3f}; "
            f"the judge on real photographs {self.photographs}"
        )


def recognition(
    result: InversionResult,
    judge: Any,
    *,
    photographs: ArrayLike,
    labels: ArrayLike,
    output: str | None = None,
    confidence: float = 0.95,
) -> RecognitionResult:
    """Ask the judge for the class of every inverted input.

    ``photographs`` and ``labels`` are real records of all inverted classes, shaped as the judge
    takes them, that the judge was not trained on; inverted inputs are given to it in the same
    shape. ``output`` says what a judge that is a callable returns.
    """
    level = _validate.real("confidence", confidence, above=0, below=1)
    if judge is result.model:
        raise InvalidValue("judge", "the attacked model", "a model that was trained independently")
    target = as_target(judge, output=output)
    real = np.asarray(photographs)
    if real.ndim < 2 or int(np.prod(real.shape[1:])) != int(np.prod(result.images.shape[1:])):
        expected = f"records of the size of the inverted ones, {result.images.shape[1:]}"
        raise InvalidValue("photographs", f"an array of shape {real.shape}", expected)
    made = result.images.reshape(-1, *real.shape[1:])
    if np.issubdtype(real.dtype, np.floating):
        made = made.astype(real.dtype)
    answers = target.labels(real)
    truth = class_indices(target, labels)
    if len(truth) != len(real):
        raise InvalidValue("labels", f"{len(truth)} labels", f"{len(real)}, one per photograph")
    missing = sorted(set(result.classes) - set(truth.tolist()))
    if missing:
        raise InvalidValue("photographs", f"none of class {missing[0]}", "some of every class")
    _refuse_the_attacked(result, target, made)
    count = target.classes or int(max(answers.max(), truth.max())) + 1
    seen = proportion(int((answers == truth).sum()), len(truth), confidence=level)
    if seen.low <= 1 / count:
        raise InvalidValue(
            "judge", f"accuracy {seen} on photographs", "a judge that recognises real photographs"
        )
    guesses = target.labels(made)
    hits = int((guesses == np.array(result.classes)).sum())
    return RecognitionResult(
        rate=proportion(hits, len(guesses), confidence=level),
        photographs=seen,
        chance=1 / count,
        guesses=tuple(int(guess) for guess in guesses),
        classes=result.classes,
    )


def _refuse_the_attacked(result: InversionResult, judge: Target, made: NDArray[np.float64]) -> None:
    """A copy of the attacked model is no judge either: it answers the very same."""
    if judge.label_only:
        return
    own = judge.log_probabilities(made)
    if own.shape == result.answers.shape and np.allclose(own, result.answers, rtol=1e-4):
        expected = "a model that was trained independently"
        raise InvalidValue("judge", "the attacked model, or a copy of it", expected)
