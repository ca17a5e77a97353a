"""Canaries: examples that are put into a run to measure what it gives away about them.

Two forms. A **gradient canary** (white box) owns one coordinate of a parameter that is added to
the model, and its loss is a large multiple of that coordinate. Its gradient therefore points along
the coordinate, is clipped to the clip norm, and goes through the sampler, the engine, clipping,
noise and normaliser of the run like any other; the gradients of ordinary examples there are
exactly 0. It is the worst case that DP-SGD has to protect, so it shows most. An **input canary**
(black box) is an example like others, only unlikely: mislabelled, or noise; its score is how far
its loss fell.

This module runs and scores. The judgement is in :mod:`discreet.audit`, which knows nothing of
torch and may not be imported from here: it draws who is included, and turns scores into bounds.

::

    coins = Inclusion(1000, guesses=suggest_guesses(plan.loss, canaries=1000, delta=plan.delta))
    run = train_with_gradient_canaries(model, dataset, plan, included=coins.included, ...)
    audit_one_run(coins, run.scores, loss=plan.loss, delta=plan.delta)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd._clipping import Quantile
from discreet.learn.dpsgd._plan import Plan
from discreet.learn.dpsgd._trained import Trained
from discreet.learn.dpsgd._trainer import Trainer
from discreet.learn.dpsgd.isolation import TensorSpec
from discreet.privacy import Relation
from discreet.randomness import Source, uniform_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.learn.dpsgd._plan import Phase, Plan


def require_scorable(plan: Plan) -> None:
    """Refuse plans whose canaries have no score here."""
    if isinstance(plan.clipping, Quantile):
        raise NotApplicable(
            "gradient canaries need a fixed clip norm: one that follows the gradients would follow "
            "those of the canaries"
        )


def gradient_scores(
    observed: NDArray[np.float64], plan: Plan, *, groups: int = 1
) -> NDArray[np.float64]:
    """Log-likelihood ratios, one for each column of ``observed`` (steps, canaries).

    ``observed`` holds the gradients as the optimizer received them. ``groups`` is the number
    of parameter groups that are clipped by themselves, among which the clip norm is divided.
    """
    require_scorable(plan)
    if observed.ndim != 2 or observed.shape[0] != plan.steps:
        raise InvalidValue(
            "observed", tuple(observed.shape), f"one row for each of the {plan.steps} steps"
        )
    both = plan.relation is Relation.REPLACE
    total = np.zeros(observed.shape[1])
    start = 0
    for phase in plan.phases:
        rows = observed[start : start + phase.steps]
        start += phase.steps
        stddev = plan.noise_multiplier * phase.noise_factor * math.sqrt(groups)
        signal = plan.clip_norm / math.sqrt(groups) / phase.expected_batch_size
        total += _evidence(rows / signal, stddev, plan, phase)
        if both:
            total -= _evidence(-rows / signal, stddev, plan, phase)
    return total


def _evidence(
    seen: NDArray[np.float64], stddev: float, plan: Plan, phase: Phase
) -> NDArray[np.float64]:
    """The log-likelihood ratio of taking part over not being there at all."""
    ratios = (2.0 * seen - 1.0) / (2.0 * stddev * stddev)
    if plan.sampler == "full":
        return np.asarray(ratios.sum(axis=0))
    if plan.sampler != "shuffled":
        rate = min(1.0, plan.rate_of(phase))
        with np.errstate(divide="ignore"):
            mixed = np.logaddexp(np.log1p(-rate), math.log(rate) + ratios)
        return np.asarray(mixed.sum(axis=0))
    batches = plan.batches_per_epoch(phase)
    total = np.zeros(seen.shape[1])
    for start in range(0, len(ratios), batches):
        epoch = ratios[start : start + batches]
        # The batches of an epoch that was cut short were drawn, but never used.
        unused = np.zeros((batches - len(epoch), seen.shape[1]))
        total += special.logsumexp(np.concatenate([epoch, unused]), axis=0) - math.log(batches)
    return total


_ROWS = 1000

PerExample = Callable[[Any, Any], Tensor]
MakeOptimizer = Callable[[Any], Optimizer]


@final
@dataclass(frozen=True, eq=False)
class CanaryRun:
    """A run with canaries: one score for each, larger if it seems to have been included.

    ``form`` is "gradient" or "input". The certificate of ``trained`` is that of the plan; the
    canaries change nothing about it. ``observed`` holds, for gradient canaries, what the
    optimizer received in each step (steps, canaries): noisy gradients, which the plan paid for.
    """

    form: str
    scores: NDArray[np.float64]
    trained: Trained
    observed: NDArray[np.float64] | None = None


@final
class MarkedModel(nn.Module):
    """A model with one more parameter, in which every canary has a coordinate.

    Takes the inputs of the model and, last, a column of marks: 0 for an ordinary example, i or
    -i for canary i (counted from 1). Returns the outputs of the model and the canary's coordinate
    times the sign of its mark.
    """

    def __init__(self, model: nn.Module, *, canaries: int) -> None:
        super().__init__()
        self.model = model
        count = _validate.integer("canaries", canaries, at_least=1)
        # Coordinate 0 belongs to nobody: ordinary examples look it up with weight 0.
        self.coordinates = nn.Embedding(count + 1, 1)
        nn.init.zeros_(self.coordinates.weight)

    @property
    def released(self) -> nn.Module:
        """The model without the canaries, which is what a certificate is of."""
        return self.model

    def forward(self, *inputs: Tensor) -> tuple[Any, Tensor]:
        """The outputs of the model, and for each row its canary's coordinate or 0."""
        *ordinary, marks = inputs
        outputs = self.model(*ordinary)
        looked_up = self.coordinates(marks.abs()).squeeze(-1)
        return outputs, looked_up * marks.sign().to(looked_up.dtype)


@final
class GradientCanaries:
    """Everything that puts gradient canaries into a run, for any training loop.

    ``model`` is the marked model and ``dataset`` the marked data: the tensors of the given
    data set, the included canaries after them, and a last column of marks. ``losses(model,
    batch)`` gives one loss for each row. :meth:`watch` must be called on the optimizer before
    the loop is made private, and :meth:`scores` after the last step.

    Under ``add_remove`` an excluded canary is absent; under ``replace``, where the number of
    examples is public, it is present and pulls the other way.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: TensorDataset,
        plan: Plan,
        *,
        included: NDArray[np.bool_],
        loss: PerExample,
    ) -> None:
        require_scorable(plan)
        coins = check_coins(included)
        self.plan = plan
        self.model = MarkedModel(model, canaries=coins.size)
        marks = np.arange(1, coins.size + 1)
        if plan.relation is Relation.REPLACE:
            marks = np.where(coins, marks, -marks)
        else:
            marks = marks[coins]
        self.dataset = add_marks(dataset, torch.from_numpy(marks))
        self._loss = loss
        self._scale = 1e3 * max(1.0, plan.clip_norm)
        self._seen: list[NDArray[np.float64]] = []

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The description of the marked model's inputs, for the isolation check."""
        *ordinary, _, _ = self.dataset.tensors
        values = self.model.coordinates.num_embeddings
        return (*map(TensorSpec.like, ordinary), TensorSpec((), torch.int64, values=values))

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        """One loss for each row: that of the task, or of the canary."""
        *ordinary, targets, marks = batch
        outputs, coordinate = model(*ordinary, marks)
        return torch.where(marks == 0, self._loss(outputs, targets), self._scale * coordinate)

    def watch(self, optimizer: Optimizer) -> None:
        """Note what the optimizer receives for the canaries' coordinates, step by step."""
        # Hooks run in order: before the one of a private loop that drops the gradients.
        optimizer.register_step_post_hook(self._note)

    def _note(self, *_: object) -> None:
        gradient = self.model.coordinates.weight.grad
        if gradient is not None:  # there is none while a step is being put together
            self._seen.append(gradient[1:, 0].detach().cpu().numpy().astype(np.float64))

    @property
    def observed(self) -> NDArray[np.float64]:
        """What the optimizer received, (steps, canaries)."""
        return np.array(self._seen).reshape(-1, self.model.coordinates.num_embeddings - 1)

    def scores(self) -> NDArray[np.float64]:
        """The log-likelihood ratios that the canaries were included; see ``canary_scores``."""
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        groups = self.plan.clipping.groups(names)
        return gradient_scores(
            self.observed, self.plan, groups=1 if groups is None else len(groups)
        )


def train_with_gradient_canaries(
    model: nn.Module,
    dataset: TensorDataset,
    plan: Plan,
    *,
    included: NDArray[np.bool_],
    loss: PerExample,
    optimizer: MakeOptimizer,
    isolation: str = "check",
    max_physical: int | None = None,
    source: Source | None = None,
) -> CanaryRun:
    """Train by the plan, with the included gradient canaries among the examples, and score.

    The whole run is that of :class:`~discreet.learn.dpsgd.Trainer`. ``optimizer`` makes one from
    parameters. ``plan.examples`` is a planning number under ``add_remove``; under ``replace``
    it must count the canaries.
    """
    canaries = GradientCanaries(model, dataset, plan, included=included, loss=loss)
    steps = optimizer(canaries.model.parameters())
    canaries.watch(steps)
    trainer = Trainer(
        canaries.model,
        plan,
        optimizer=steps,
        losses=canaries.losses,
        inputs=canaries.inputs,
        isolation=isolation,
        source=source,
    )
    trained = trainer.fit(canaries.dataset, max_physical=max_physical, progress=False)
    return CanaryRun("gradient", canaries.scores(), trained, canaries.observed)


def train_with_input_canaries(
    model: nn.Module,
    dataset: TensorDataset,
    plan: Plan,
    *,
    canaries: TensorDataset,
    included: NDArray[np.bool_],
    loss: PerExample,
    optimizer: MakeOptimizer,
    looks: int = 1,
    isolation: str = "check",
    max_physical: int | None = None,
    source: Source | None = None,
) -> CanaryRun:
    """Train by the plan with the included ones of ``canaries`` among the examples, and score.

    The score is the loss of the canary before training less its mean over ``looks`` evenly
    spaced steps, the last step among them. One look needs the final model only (black box);
    several need the models of the run, which the plan paid for too.
    """
    coins = check_coins(included)
    if plan.relation is Relation.REPLACE:
        raise NotApplicable("input canaries are added or left out: plan under add_remove")
    if len(check_dataset(canaries, "canaries")) != coins.size:
        raise InvalidValue("canaries", len(canaries), f"{coins.size} examples, one for each coin")
    often = _validate.integer("looks", looks, at_least=1, at_most=plan.steps)
    data = TensorDataset(
        *(
            torch.cat([ours, theirs[torch.from_numpy(coins)].to(ours.dtype)])
            for ours, theirs in zip(check_dataset(dataset).tensors, canaries.tensors, strict=True)
        )
    )
    at = {plan.steps - i * plan.steps // often for i in range(often)}
    before = losses_of(model, canaries, loss)
    fallen = np.zeros(coins.size)
    steps = optimizer(model.parameters())
    watched = next(p for p in model.parameters() if p.requires_grad)
    taken = 0

    def look(*_: object) -> None:
        nonlocal taken
        if watched.grad is None:
            return
        taken += 1
        if taken in at:
            fallen[:] += (before - losses_of(model, canaries, loss)) / len(at)

    steps.register_step_post_hook(look)
    trainer = Trainer(model, plan, optimizer=steps, loss=loss, isolation=isolation, source=source)
    trained = trainer.fit(data, max_physical=max_physical, progress=False)
    return CanaryRun("input", fallen, trained)


def mislabelled(
    inputs: Tensor, targets: Tensor, *, classes: int, source: Source | None = None
) -> TensorDataset:
    """The examples with a wrong label each, uniform among the others.

    Take examples that are not among the training data, or the canary has a twin there.
    """
    kinds = _validate.integer("classes", classes, at_least=2)
    shift = uniform_integers(kinds - 1, len(targets), source=source) + 1
    return TensorDataset(inputs, (targets + torch.from_numpy(shift).to(targets)) % kinds)


def noise_examples(
    count: int, shape: tuple[int, ...], *, classes: int, source: Source | None = None
) -> TensorDataset:
    """Examples far from any data: every element -1 or 1, and a label, by fair coins."""
    number = _validate.integer("count", count, at_least=1)
    kinds = _validate.integer("classes", classes, at_least=2)
    spec = TensorSpec(shape)
    signs = uniform_integers(2, number * int(np.prod(spec.shape)), source=source)
    values = torch.from_numpy(2.0 * signs - 1.0).to(torch.float32).reshape(number, *spec.shape)
    return TensorDataset(values, torch.from_numpy(uniform_integers(kinds, number, source=source)))


def losses_of(model: nn.Module, data: TensorDataset, loss: PerExample) -> NDArray[np.float64]:
    """The loss of every example, in evaluation mode; the mode is put back."""
    training = model.training
    model.eval()
    parts = []
    try:
        with torch.no_grad():
            for start in range(0, len(data), _ROWS):
                *inputs, targets = data[start : start + _ROWS]
                parts.append(loss(model(*inputs), targets).double().cpu().numpy())
    finally:
        model.train(training)
    return np.concatenate(parts)


def add_marks(dataset: TensorDataset, marks: Tensor) -> TensorDataset:
    """The data with a column of marks, and a blank row for every mark after them."""
    ours = check_dataset(dataset).tensors
    blanks = [tensor.new_zeros(len(marks), *tensor.shape[1:]) for tensor in ours]
    ids = torch.cat([torch.zeros(len(dataset), dtype=torch.int64), marks.to(torch.int64)])
    return TensorDataset(*(torch.cat(pair) for pair in zip(ours, blanks, strict=True)), ids)


def check_dataset(dataset: object, argument: str = "dataset") -> TensorDataset:
    """A TensorDataset of inputs and targets, or an error."""
    if not isinstance(dataset, TensorDataset) or len(dataset.tensors) < 2:
        raise InvalidValue(argument, dataset, "a TensorDataset of inputs and, last, targets")
    return dataset


def check_coins(included: object) -> NDArray[np.bool_]:
    """Who is included, as booleans in one axis."""
    coins = np.array(included)
    if coins.dtype != np.bool_ or coins.ndim != 1 or coins.size == 0:
        raise InvalidValue("included", included, "one boolean for each canary")
    return coins
