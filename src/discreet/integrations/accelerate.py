"""``accelerate.Accelerator`` under a plan.

Three lines of a script change: the import, the accelerator, and, in place of the end, the
certificate::

    from discreet.integrations.accelerate import PrivateAccelerator

    accelerator = PrivateAccelerator(plan)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ...
    certificate = accelerator.certificate()

The loader gives its data set, its ``collate_fn`` and its number of workers. Its sampler goes: the
plan draws. A pass over it is an epoch by the plan, and after the last step of the plan
there are no more batches. ``accelerator.backward`` takes the mean of the losses of all rows, as
always, or one loss for each row, which is the safer form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable
from discreet.integrations._run import Run, require_settings
from discreet.learn import dpsgd
from discreet.ledger import Charge

__all__ = ["PrivateAccelerator"]

accelerate: Any = import_module("accelerate")  # no types: it may not be there to read them

_WANTED: dict[str, tuple[Any, str]] = {
    "gradient_accumulation_steps": (
        1,
        "the plan says how large a step is; max_physical=... how many examples pass at once",
    ),
    "mixed_precision": ("no", "put torch.autocast around the forward pass and the loss"),
    "num_processes": (1, "one process here: dpsgd.Trainer trains in a team of processes"),
}


class PrivateAccelerator(accelerate.Accelerator):  # type: ignore[misc]
    """``accelerate.Accelerator`` for one model, one optimizer and one loader under a plan.

    ``max_physical`` is how many examples go through the model at once; ``private`` holds further
    settings of :func:`~discreet.learn.dpsgd.make_private`. All other arguments are those of the
    class that this one is derived from.
    """

    def __init__(
        self,
        plan: dpsgd.Plan,
        *,
        max_physical: int | None = None,
        private: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        require_settings(self, _WANTED)
        self.run = Run(plan, private or {})
        self._max_physical = max_physical

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """Put the model and its optimizer under the plan; loaders give their data sets to it."""
        models = [one for one in args if isinstance(one, nn.Module)]
        optimizers = [one for one in args if isinstance(one, Optimizer)]
        if not models and not optimizers:
            return super().prepare(*args, device_placement=device_placement)  # public loaders
        if len(models) != 1 or len(optimizers) != 1:
            raise InvalidValue(
                "prepare",
                f"{len(models)} models, {len(optimizers)} optimizers",
                "one model and one optimizer in one call; public loaders in another",
            )
        if sum(isinstance(one, DataLoader) for one in args) != 1:
            raise InvalidValue(
                "prepare", "no or several loaders", "the loader of private data; others later"
            )
        model = self.prepare_model(models[0])
        self.run.begin(model, optimizers[0])
        ready = [self._ready(model, one) for one in args]
        return ready[0] if len(ready) == 1 else tuple(ready)

    def _ready(self, model: nn.Module, one: Any) -> Any:
        if isinstance(one, nn.Module):
            return model
        if isinstance(one, DataLoader):
            return _Epochs(self.run, one, self._max_physical, self.device)
        return _Schedule(self.run, one) if isinstance(one, LRScheduler) else one

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Backward from one loss a row, or from their mean."""
        self.run.go_back(loss)

    def clip_grad_norm_(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: the plan clips the gradient of each example."""
        raise NotApplicable("clip_grad_norm_: the plan clips each example; leave this line out")

    def clip_grad_value_(self, *args: Any, **kwargs: Any) -> Any:
        """Refused, too."""
        self.clip_grad_norm_()

    def certificate(self, *, charge: Charge | None = None) -> Certificate:
        """The certificate of the trained model; ``charge`` is the one in whose body it was."""
        return self.run.certificate(charge)


class _Epochs:
    """Reads the batches of the plan, as many steps a pass as the examples are gone through once."""

    def __init__(
        self, run: Run, loader: DataLoader[Any], max_physical: int | None, device: Any
    ) -> None:
        self.dataset = loader.dataset
        self._run, self._device = run, device
        self._loading: dict[str, Any] = {
            "collate": loader.collate_fn,
            "max_physical": max_physical,
            "workers": loader.num_workers,
        }

    def __len__(self) -> int:
        plan = self._run.plan
        each = math.ceil(plan.examples / plan.phases[0].expected_batch_size)
        return max(0, min(each, plan.steps - self._run.begun.steps_taken))

    def __iter__(self) -> Iterator[Any]:
        private = self._run.begun
        end = private.steps_taken + len(self)
        if self._run.is_over:
            return
        for batch in private.batches(self.dataset, **self._loading):
            yield accelerate.utils.send_to_device(batch, self._device)
            if private.steps_taken >= end:
                return


class _Schedule:
    """A scheduler that moves when a step of the plan was taken, not after each piece of it."""

    def __init__(self, run: Run, inner: LRScheduler) -> None:
        self._run, self._inner = run, inner

    def step(self, *args: Any) -> None:
        if self._run.begun.stepped:
            self._inner.step(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
