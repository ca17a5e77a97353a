"""The ways to take one training step that are measured: plain, private by peers, and ours.

Every way is a function from a task to a call that takes one step on the same ready batch. The
peers' noise is that of torch (not cryptographic); ours is the default, cryptographic one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from discreet.learn import dpsgd
from discreet.randomness import NormalStream
from training_models import Classifier, Task

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
RATE = 1e-3
GIGABYTES = 6.0

Step = Callable[[], object]


class TooLarge(Exception):
    """One gradient for each example would not fit into memory."""


def refuse_large(task: Task, model: nn.Module) -> None:
    needed = 4e-9 * task.batch * sum(one.numel() for one in trained(model))
    if needed > GIGABYTES:
        raise TooLarge(f"gradients of all examples need {needed:.0f} GB")


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [one for one in model.parameters() if one.requires_grad]


def plain(task: Task) -> Step:
    inputs, labels = task.data(task.batch)
    model = task.make()
    optimizer = torch.optim.SGD(trained(model), lr=RATE)
    loss = task.loss()

    def step() -> None:
        loss(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compile_noise() -> None:
    """Compile the transform of the noise now, which a long run compiles by and by."""
    stream = NormalStream()
    buffer = np.empty(1 << 22, dtype=np.float32)
    stream.fill(buffer)
    stream.fill(buffer[:2])


class ReadyBatch:
    """A data set of one batch, handed out whole: drawing and loading are not what is timed."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.batch = [inputs, labels]

    def __len__(self) -> int:
        return len(self.batch[0])

    def __getitem__(self, place: int) -> int:
        return place

    def __getitems__(self, places: list[int]) -> list[int]:
        return places

    def collate(self, _: list[Any]) -> list[Tensor]:
        return self.batch


class UnderPlan:
    """Steps of a model under a plan, through the public interface, on one ready batch.

    ``in_one_call`` takes them by ``private.step``, as the trainer does, otherwise in a loop of the
    user's own. Between bursts it rests: an open loop looks at whatever torch is asked to do, that
    of the other ways too.
    """

    def __init__(self, task: Task, *, in_one_call: bool) -> None:
        self._data = ReadyBatch(*task.data(task.batch))
        self._model = task.make()
        self._optimizer = torch.optim.SGD(trained(self._model), lr=RATE)
        plan = dpsgd.Plan(
            examples=task.batch,
            sampler="full",
            steps=1_000_000,
            clip_norm=CLIP_NORM,
            noise_multiplier=NOISE_MULTIPLIER,
            delta=1e-6,
        )
        self._private = dpsgd.make_private(self._model, self._optimizer, plan, isolation="vouched")
        self._loss = task.loss(reduction="none" if in_one_call else "mean")
        self._in_one_call = in_one_call
        self._batches: Any = None

    def __call__(self) -> None:
        if self._batches is None:
            self._batches = self._private.batches(self._data, collate=self._data.collate)
        inputs, labels = next(self._batches)
        if self._in_one_call:
            self._private.step(self._loss, inputs, labels)
            return
        self._loss(self._model(inputs), labels).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def rest(self) -> None:
        """Leave the loop; the next step begins another one."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None


def own_loop(task: Task) -> Step:
    """In the user's own loop."""
    return UnderPlan(task, in_one_call=False)


def one_call(task: Task) -> Step:
    """By ``private.step``, as the trainer does."""
    return UnderPlan(task, in_one_call=True)


def opacus(mode: str) -> Callable[[Task], Step]:
    """One of the gradient sample modes of Opacus."""

    def make(task: Task) -> Step:
        from opacus import PrivacyEngine
        from opacus.validators import ModuleValidator

        warnings.simplefilter("ignore")
        inputs, labels = task.data(task.batch)
        model = task.make()
        if isinstance(model, Classifier):
            model.spread = True
        if mode != "ghost":
            refuse_large(task, model)
        if not ModuleValidator.is_valid(model):
            model = ModuleValidator.fix(model)
        model.train()
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(trained(model), lr=RATE),
            data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=task.batch),
            criterion=task.loss(),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=CLIP_NORM,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        module, optimizer = made[0], made[1]
        criterion = made[2] if mode == "ghost" else task.loss()

        def step() -> None:
            criterion(module(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def torch_func(task: Task) -> Step:
    """Per-example gradients by vmap(grad(...)), clipped and summed by hand."""
    inputs, labels = task.data(task.batch)
    model = task.make()
    refuse_large(task, model)
    optimizer = torch.optim.SGD(trained(model), lr=RATE)
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    criterion = task.loss()

    def loss(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, parameters, (one.unsqueeze(0),))
        return criterion(outputs, label.unsqueeze(0))

    gradients_of = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gradients = gradients_of(parameters, inputs, labels)
        norms = torch.stack([gradients[n].flatten(1).norm(dim=1) for n in names]).norm(dim=0)
        weights = (CLIP_NORM / norms.clamp(min=1e-12)).clamp(max=1.0)
        for name, parameter in zip(names, trained(model), strict=True):
            total = torch.tensordot(weights, gradients[name], dims=1)
            noise = torch.randn_like(total) * (NOISE_MULTIPLIER * CLIP_NORM)
            parameter.grad = (total + noise) / task.batch
        optimizer.step()
        optimizer.zero_grad()

    return step


PLAIN = "plain SGD"
OURS = "discreet"
ONE_CALL = "discreet, one call"
WAYS: dict[str, Callable[[Task], Step]] = {
    PLAIN: plain,
    OURS: own_loop,
    ONE_CALL: one_call,
    "Opacus ghost": opacus("ghost"),
    "Opacus hooks": opacus("hooks"),
    "Opacus functorch": opacus("functorch"),
    "Opacus ew": opacus("ew"),
    "torch.func": torch_func,
}
