"""``lightning.Trainer`` under a plan.

Three lines of a script change: the import, the trainer's plugins, and what it reads::

    from discreet.integrations.lightning import PrivateTraining

    training = PrivateTraining(plan)
    trainer = L.Trainer(plugins=training, max_epochs=1)
    trainer.fit(model, training.batches(data))
    certificate = training.certificate()

A module that has a ``forward`` is looked at there, and ``training_step`` returns the mean of the
losses of its rows, as always, or one loss for each row, which is the safer form. Without a
``forward`` it is ``training_step`` that is tried out on made-up batches, and it must return one
loss for each row. Metrics that it logs are read off private examples: the certificate states in how
many steps that happened.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import MethodType
from typing import Any

from torch import Tensor

from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable, PlanViolation
from discreet.integrations._run import Run, StepLoader, join_parts, name_parts, require_settings
from discreet.learn import dpsgd
from discreet.ledger import Charge

__all__ = ["PrivateTraining"]

lightning: Any = import_module("lightning")  # no types: it may not be there to read them

_WANTED: dict[str, tuple[Any, str]] = {
    "accumulate_grad_batches": (
        1,
        "the plan says how large a step is; batches(max_physical=...) what passes at once",
    ),
    "gradient_clip_val": (None, "the plan clips the gradient of each example"),
    "world_size": (1, "one process here: dpsgd.Trainer trains in a team of processes"),
}


class PrivateTraining(lightning.pytorch.plugins.Precision):  # type: ignore[misc]
    """A plan as a plugin of ``lightning.Trainer``; in single precision.

    ``settings`` are further ones of :func:`~discreet.learn.dpsgd.make_private`, such as
    ``isolation``, ``inputs`` and ``public``.
    """

    def __init__(self, plan: dpsgd.Plan, **settings: Any) -> None:
        super().__init__()
        self.run = Run(plan, settings)
        self._connected: tuple[Any, list[Any]] | None = None
        self._loader: StepLoader | None = None
        self._is_called_by_step = False

    def batches(self, dataset: Any, **loading: Any) -> StepLoader:
        """What to give ``trainer.fit`` in place of a ``DataLoader``: one item for each step.

        ``collate``, ``max_physical`` and ``workers`` are those of ``Private.batches``.
        """
        self._loader = StepLoader(self.run, self._begin, dataset, **loading)
        return self._loader

    def certificate(self, *, charge: Charge | None = None) -> Certificate:
        """The certificate of the trained model; ``charge`` is the one in whose body it was."""
        return self.run.certificate(charge)

    def connect(self, model: Any, optimizers: list[Any], lr_schedulers: list[Any]) -> Any:
        """Hear which model and optimizer there are."""
        self._connected = (model, optimizers)
        return super().connect(model, optimizers, lr_schedulers)

    def _begin(self) -> None:
        if self._connected is None:
            raise NotApplicable(
                "these batches are for the trainer that has this plugin: "
                "L.Trainer(plugins=training) and trainer.fit(model, training.batches(data))"
            )
        module, optimizers = self._connected
        require_settings(module.trainer, _WANTED)
        if not module.automatic_optimization:
            raise InvalidValue(
                "automatic_optimization",
                False,
                "True: a loop of your own takes dpsgd.make_private itself",
            )
        if len(optimizers) != 1:
            raise InvalidValue("configure_optimizers", f"{len(optimizers)} optimizers", "one")
        if module.trainer.global_step:
            raise PlanViolation(
                "a run begins at its first step: to go on after a crash, take dpsgd.Trainer or "
                "make_private with checkpoint="
            )
        if type(module).forward is lightning.LightningModule.forward:
            assert self._loader is not None
            self._loader.name_parts()
            module.forward = MethodType(_forward, module)
            module.training_step = MethodType(_training_step, module)
            module.log = MethodType(_log, module)
            self._is_called_by_step = True
        self.run.begin(module, optimizers[0])

    def teardown(self) -> None:
        """Certify what was trained, and give the model back."""
        self.run.end()
        if self._is_called_by_step and self._connected is not None:
            module, self._is_called_by_step = self._connected[0], False
            for name in ("forward", "training_step", "log"):
                delattr(module, name)
        super().teardown()

    def backward(
        self, tensor: Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Backward from one loss a row, or from their mean."""
        self.run.go_back(tensor)

    def optimizer_step(
        self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """The passes of all pieces of a step, and then the step, which has no closure."""
        result = self._wrap_closure(model, optimizer, closure)
        for place, batch in enumerate(self.run.rest(), start=1):
            batch = join_parts(batch) if self._is_called_by_step else batch
            given = model.training_step(batch, place)
            self.run.go_back(given["loss"] if isinstance(given, dict) else given)
        optimizer.step(**kwargs)
        if self.run.is_over:
            model.trainer.should_stop = True
        return result


def _forward(module: Any, **parts: Tensor) -> Any:
    """Stands for the ``forward`` that a module lacks: its losses, from the parts of a batch."""
    found = type(module).training_step(module, join_parts(parts), 0)
    losses = found["loss"] if isinstance(found, dict) else found
    if not isinstance(losses, Tensor) or losses.ndim != 1:
        raise InvalidValue(
            "training_step",
            "one number for the batch" if isinstance(losses, Tensor) else type(losses).__name__,
            "one loss for each row (reduction='none'), or a module with a forward",
        )
    return losses


def _training_step(module: Any, batch: Any, *_: Any) -> Any:
    module.has_logged = False
    losses = module(**name_parts(batch))
    if module.has_logged:
        losses.detach().sum().item()  # as the certificate says: numbers were read in this step
    return losses


def _log(module: Any, *args: Any, **kwargs: Any) -> None:
    module.has_logged = True
    type(module).log(module, *args, **kwargs)
