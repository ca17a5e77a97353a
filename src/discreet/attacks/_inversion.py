"""Model inversion: find an input that a model takes for a given class.

Where a class is a person, the input at which a classifier is most confident of that class
can be a picture of the person (Fredrikson et al. 2015). The attack climbs

    log p(class | x) - total_variation * TV(x),    lower <= x <= upper,

from several starts by gradient ascent (Adam, Kingma and Ba 2015), puts x back into its range
after every step and blurs it from time to time; among the starts it keeps the one with the
best objective. Gradients come from a torch module itself; a black box that gives probabilities
is climbed by finite differences along the lowest frequencies of the picture.

Confidence of the attacked model says nothing about success: it is what was climbed. Whether the
picture shows the person is judged by :func:`recognition`.

**The judge.** Whether an inverted picture shows whom it should, by a judge that was not attacked.
The attacked model recognises every picture that was made to please it, so it is refused as a
judge. The judge is trained independently, on other photographs of the same people, and first has
to show on real photographs, which it has not seen either, that it can tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet._json import HIDDEN
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._picture_prior import PicturePrior, Prior
from discreet.attacks._target import (
    ROWS_TO_TELL,
    Target,
    as_target,
    class_indices,
    evaluation_mode,
    is_torch_module,
)
from discreet.attacks._training import seeded_generator
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Climb(Protocol):
    """Log-confidence in wanted classes at given inputs, and its gradient there.

    ``queries`` is how many records the model is asked about for one input.
    """

    queries: int

    def __call__(
        self, inputs: NDArray[np.float64], classes: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (inputs,) log-confidences and (inputs, coordinates) gradients."""


@final
class ExactClimb:
    """Gradients of a torch module by backpropagation; its parameters and modes stay untouched."""

    queries = 1

    def __init__(self, module: Any, shape: tuple[int, ...], *, probabilities: bool) -> None:
        self._module = module
        self._shape = shape
        self._probabilities = probabilities

    def __call__(
        self, inputs: NDArray[np.float64], classes: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        torch = import_module("torch")
        first = next((p for p in self._module.parameters() if p.is_floating_point()), None)
        kind = torch.float64 if first is None else first.dtype
        place = None if first is None else first.device
        batch = torch.tensor(inputs.reshape(-1, *self._shape), dtype=kind, device=place)
        batch.requires_grad_(True)
        with evaluation_mode(list(self._module.modules())), torch.enable_grad():
            scores = self._module(batch)
            if not torch.is_tensor(scores) or scores.ndim not in (1, 2):
                raise InvalidValue("the model's output", type(scores).__name__, "(n, classes)")
            scores = scores.double()
            if scores.numel() == len(batch):
                # One column belongs to class 1, as in Target: its logit beside 0, or p and 1 - p.
                one = scores.reshape(len(batch))
                zero = 1.0 - one if self._probabilities else torch.zeros_like(one)
                scores = torch.stack([zero, one], dim=1)
            if self._probabilities:
                logs = scores.clamp_min(1e-30).log()
            else:
                logs = torch.log_softmax(scores, dim=1)
            wanted = logs[torch.arange(len(batch)), torch.as_tensor(classes)]
            (gradient,) = torch.autograd.grad(wanted.sum(), batch)
        flat = gradient.double().cpu().numpy().reshape(len(inputs), -1)
        return wanted.detach().cpu().numpy(), flat


@final
class DifferenceClimb:
    """Gradients by finite differences along orthonormal directions: a black box is enough.

    The gradient is the projection of the true one on the span of the directions. Queries stay
    inside [lower, upper], as an interface may insist on.
    """

    def __init__(
        self,
        target: Target,
        shape: tuple[int, ...],
        directions: NDArray[np.float64],
        *,
        step: float,
        bounds: tuple[float, float],
    ) -> None:
        self.queries = 1 + len(directions)
        self._target = target
        self._shape = shape
        self._directions = directions
        self._step = step
        self._bounds = bounds

    def __call__(
        self, inputs: NDArray[np.float64], classes: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        moves = np.vstack([np.zeros(inputs.shape[1]), self._step * self._directions])
        values = np.empty(len(inputs))
        gradients = np.empty_like(inputs)
        for row, (point, wanted) in enumerate(zip(inputs, classes, strict=True)):
            asked = np.clip(point + moves, *self._bounds).reshape(-1, *self._shape)
            logs = np.maximum(self._target.log_probabilities(asked)[:, wanted], -1e3)
            values[row] = logs[0]
            gradients[row] = ((logs[1:] - logs[0]) / self._step) @ self._directions
        return values, gradients


GRADIENTS = ("exact", "differences")


@final
@dataclass(frozen=True, eq=False)
class InversionResult(Result):
    """One input for each class: ``images[k]`` belongs to ``classes[k]``.

    ``confidences`` are the attacked model's own; ``queries`` counts the records that it was
    asked about. ``model`` is what was attacked and ``answers`` are its log-probabilities for the
    images, so that it cannot be its own judge.
    """

    json_kind = "inversion"
    json_properties = ("shape",)
    without_interval = dict.fromkeys(
        ("confidences",), "what the model says of the inputs that were found; a judge has a rate"
    )

    classes: tuple[int, ...]
    images: NDArray[np.float64] = field(metadata=HIDDEN)
    confidences: NDArray[np.float64]
    gradients: str
    steps: int
    restarts: int
    total_variation: float
    smoothing: float
    queries: int
    picture: tuple[int, int] | None = field(metadata=HIDDEN)
    bounds: tuple[float, float] = field(metadata=HIDDEN)
    answers: NDArray[np.float64] = field(repr=False, metadata=HIDDEN)
    model: Any = field(repr=False, metadata=HIDDEN)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""
        return self.images.shape[1:]

    @property
    def finding(self) -> Finding:
        """Refuse: whether an input shows what it should is for a judge to say."""
        raise NotApplicable("give inverted inputs to recognition(): its result has a finding")

    def __str__(self) -> str:
        return (
            f"{len(self.classes)} classes inverted by {self.gradients} gradients with "
            f"{self.queries} queries; the model's own confidence is "
            f"{float(self.confidences.mean()):.3f} on average"
        )


@attack(family="inversion", access="probabilities")
def invert(
    target: Any,
    *,
    shape: tuple[int, ...],
    classes: Sequence[int] | None = None,
    picture: tuple[int, int] | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    gradients: str | None = None,
    output: str | None = None,
    steps: int = 200,
    restarts: int = 3,
    learning_rate: float = 0.02,
    total_variation: float = 1e-4,
    smoothing: float = 1.0,
    smooth_every: int = 20,
    start: ArrayLike | None = None,
    frequencies: int = 12,
    max_queries: int = 5_000_000,
    prior: Prior | None = None,
    seed: int | None = None,
) -> InversionResult:
    """Climb to the most typical input of each class.

    A module with one output column has the classes 0 and 1, and the column belongs to class 1: a
    logit, or with ``output="probabilities"`` its probability.

    Parameters
    ----------
    target : model
        What :func:`as_target` takes.
    shape : tuple of int
        The shape of one record; its last two axes are the picture.
    classes : sequence of int, optional
        Which classes to invert; all by default.
    picture : pair of int, optional
        Height and width where records are flat. Records that are no pictures are climbed without
        total variation and smoothing.
    bounds : pair of float
        The range of a number of a record.
    gradients : {"exact", "differences"}, optional
        Exact for torch modules, differences for anything else: these need probabilities that
        change with the input, and ``frequencies`` squared plus one queries in every step.
    output : str, optional
        What the model returns, see :func:`as_target`.
    steps, restarts : int
        Steps of the ascent, and starts for each class.
    learning_rate : float
        The size of a step, in units of the range.
    total_variation, smoothing, smooth_every
        The weight of roughness, and the width in pixels of the blur after so many steps.
    start : array, optional
        Where ascent begins, with a little noise; by default the middle of the range.
    frequencies, max_queries : int
        How fine differences are, and the most that the model may be asked.
    prior : Prior, optional
        Another space to climb in, such as the codes of a generator; it replaces ``picture``,
        ``bounds``, ``start`` and smoothing.
    seed : int, optional
        Makes the starts repeatable.

    Returns
    -------
    InversionResult
        One input for each class, to be judged by :func:`recognition`.

    Raises
    ------
    NotApplicable
        If the model gives labels only, or its scores do not change within a hundredth of the
        range around any start, as those of a small tree. A forest has many steps, some of them
        within that distance, and is climbed by these.
    InvalidValue
        If an argument is out of range, or more than ``max_queries`` would be needed.
    """
    asked = as_target(target, output=output)
    if asked.label_only:
        raise NotApplicable("this model gives labels only: there is nothing to climb")
    known = prior or PicturePrior(
        shape,
        bounds,
        picture=picture,
        start=start,
        total_variation=total_variation,
        smoothing=smoothing,
        smooth_every=smooth_every,
    )
    if not isinstance(known, Prior):
        raise InvalidValue("prior", known, "a Prior")
    if known.shape != tuple(shape):
        raise InvalidValue("shape", shape, f"that of the prior, {known.shape}")
    # Two records: one alone does not show whether a module gives logits or probabilities.
    corners = np.stack([np.full(known.shape, bound) for bound in known.bounds])
    probes = len(corners)
    count = asked.log_probabilities(corners).shape[1]
    if count == 2 and output is None and is_torch_module(target):
        # The answer may be one column, of which as_target refuses doubtful ones from so many on.
        more = seeded_generator(0).uniform(*known.bounds, (ROWS_TO_TELL, *known.shape))
        asked.log_probabilities(more)
        probes += len(more)
    wanted = _classes(classes, count)
    rounds = _validate.integer("steps", steps, at_least=1)
    tries = _validate.integer("restarts", restarts, at_least=1)
    rate = _validate.real("learning_rate", learning_rate, above=0) * known.scale
    climb, way = _climb(target, asked, known, gradients, output, frequencies)
    queries = probes + climb.queries * len(wanted) * tries * (rounds + 1) + len(wanted)
    if queries > _validate.integer("max_queries", max_queries, at_least=1):
        raise InvalidValue(
            "max_queries", max_queries, f"{queries} for this many steps, restarts and frequencies"
        )
    # Every class climbs from the same starts: no picture depends on which others are asked for.
    codes = np.tile(known.starts(tries, seed), (len(wanted), 1))
    goals = np.repeat(wanted, tries)
    mean = np.zeros_like(codes)
    square = np.zeros_like(codes)
    for step in range(1, rounds + 1):
        _, slope = climb(known.decode(codes), goals)
        if step == 1:
            _refuse_flat_scores(slope.reshape(len(wanted), -1))
        slope = known.pull_back(codes, slope) - known.penalty(codes)[1]
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope**2
        move = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-12)
        codes = known.settle(codes + rate * move, step=step, steps=rounds)
    inputs = known.decode(codes)
    values = climb(inputs, goals)[0] - known.penalty(codes)[0]
    best = values.reshape(len(wanted), tries).argmax(axis=1) + tries * np.arange(len(wanted))
    images = inputs[best].reshape(-1, *known.shape)
    answers = asked.log_probabilities(images)
    return InversionResult(
        classes=tuple(int(label) for label in wanted),
        images=images,
        confidences=np.exp(answers[np.arange(len(wanted)), wanted]),
        gradients=way,
        steps=rounds,
        restarts=tries,
        total_variation=getattr(known, "total_variation", 0.0),
        smoothing=getattr(known, "smoothing", 0.0),
        queries=queries,
        picture=getattr(known, "picture", None),
        bounds=known.bounds,
        answers=answers,
        model=target,
    )


def _refuse_flat_scores(slopes: NDArray[np.float64]) -> None:
    if not np.abs(slopes).max(axis=1).all():
        raise NotApplicable(
            "the scores of this model do not change around the start, as those of small trees "
            "and nearest neighbours: there is no slope to climb"
        )


def _classes(classes: Sequence[int] | None, count: int) -> NDArray[np.intp]:
    chosen = range(count) if classes is None else classes
    labels = [
        _validate.integer("classes", label, at_least=0, at_most=count - 1) for label in chosen
    ]
    if not labels or len(set(labels)) != len(labels):
        raise InvalidValue("classes", classes, "at least one class, each named once")
    return np.array(labels, dtype=np.intp)


def _climb(
    model: Any,
    target: Target,
    prior: Prior,
    gradients: str | None,
    output: str | None,
    frequencies: int,
) -> tuple[Climb, str]:
    way = gradients or ("exact" if is_torch_module(model) else "differences")
    _validate.one_of("gradients", way, GRADIENTS)
    if way == "exact":
        if not is_torch_module(model):
            raise InvalidValue("gradients", gradients, "differences: this is no torch module")
        return ExactClimb(model, prior.shape, probabilities=output == "probabilities"), way
    directions, step = prior.directions(frequencies), 1e-2 * prior.range
    climb = DifferenceClimb(target, prior.shape, directions, step=step, bounds=prior.bounds)
    return climb, way


@final
@dataclass(frozen=True)
class RecognitionResult(Result):
    """The share of classes whose inverted input the judge assigns to that class.

    ``photographs`` is the judge's accuracy on real records, ``chance`` what guessing gives. The
    classes are the trials: the interval speaks of classes like these of this model.
    """

    json_kind = "inversion"
    json_properties = ("leaks", "verdict")

    rate: Proportion
    photographs: Proportion
    chance: float
    guesses: tuple[int, ...]
    classes: tuple[int, ...]

    @property
    def finding(self) -> Finding:
        """The share of classes that the judge recognizes, against guessing."""
        measure = "inverted classes that a judge recognizes"
        return Finding.of_share("recognition", measure, self.rate, self.chance)

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.leaks:
            return "the model gives pictures of its classes away"
        return "no leak is shown: the judge may be guessing"

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

    Parameters
    ----------
    result : InversionResult
        The inverted inputs; the judge gets them in the shape of the photographs.
    judge : model
        Trained independently of the attacked model.
    photographs, labels
        Real records of all inverted classes that the judge was not trained on.
    output : str, optional
        What a judge that is a callable returns.
    confidence : float
        Of the intervals.

    Returns
    -------
    RecognitionResult
        The share of classes that the judge recognizes.

    Raises
    ------
    InvalidValue
        If the judge is the attacked model, or does not recognize real photographs.
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
    _refuse_attacked_model(result, target, made)
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


def _refuse_attacked_model(
    result: InversionResult, judge: Target, made: NDArray[np.float64]
) -> None:
    """A copy of the attacked model is no judge either: it answers the very same."""
    if judge.label_only:
        return
    own = judge.log_probabilities(made)
    if own.shape == result.answers.shape and np.allclose(own, result.answers, rtol=1e-4):
        expected = "a model that was trained independently"
        raise InvalidValue("judge", "the attacked model, or a copy of it", expected)
