"""A plan in a loop that belongs to a framework: what all adapters share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable, PlanViolation
from discreet.learn import dpsgd
from discreet.ledger import Charge

Losses = Callable[[nn.Module, Any], Tensor]


class Run(dpsgd.Watch):
    """One run of a plan, begun when the framework has made the model and the optimizer ready.

    As a watch it knows whether the batch that was handed out is the last piece of its step.
    """

    def __init__(self, plan: dpsgd.Plan, settings: Mapping[str, Any]) -> None:
        if not isinstance(plan, dpsgd.Plan):
            raise InvalidValue("plan", plan, "a discreet.learn.dpsgd.Plan")
        self.plan = plan
        self.private: dpsgd.Private | None = None
        self._settings = dict(settings)
        self._certificate: Certificate | None = None
        self._pieces: Iterator[Any] = iter(())
        self._is_last = True

    def open(self, batch: dpsgd.OpenBatch) -> None:
        self._is_last = batch.last

    def begin(self, model: nn.Module, optimizer: Optimizer) -> dpsgd.Private:
        """Put the model under the plan, once."""
        if self.private is not None:
            raise PlanViolation(
                "this plan was trained already: another run is another release, with a plan and a "
                "charge of its own"
            )
        if any(getattr(model, f"is_loaded_in_{bits}bit", False) for bits in (4, 8)):
            raise NotApplicable(
                "weights packed into 4 or 8 bits: the trial before the first step needs a copy of "
                "the model in double precision. Load the model in bfloat16 or float32"
            )
        settings = {**self._settings, "watches": [*self._settings.get("watches", ()), self]}
        self.private = dpsgd.make_private(model, optimizer, self.plan, **settings)
        return self.private

    @property
    def begun(self) -> dpsgd.Private:
        """The private loop that is open."""
        if self.private is None:
            raise NotApplicable("training has not begun: there is no private loop yet")
        return self.private

    @property
    def is_over(self) -> bool:
        """Whether all steps of the plan were taken or given up."""
        return self.private is not None and self.private.steps_taken >= self.plan.steps

    def steps(self, dataset: Any, **loading: Any) -> Iterator[Any]:
        """The first piece of every step that is left; :meth:`rest` gives the others."""
        self._pieces = self.begun.batches(dataset, **loading)
        yield from self._pieces

    def rest(self) -> Iterator[Any]:
        """The pieces of the present step after the first, for ``max_physical``."""
        while not self._is_last:
            yield next(self._pieces)

    def go_back(self, loss: Tensor) -> None:
        """Backward from one loss a row, or from their mean."""
        if loss.ndim:
            self.begun.backward(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Certify what was trained, and give the model back."""
        if self.private is None:
            return
        try:
            if self._certificate is None and self.private.steps_taken:
                self._certificate = self.private.certificate()
        finally:
            self.private.detach()

    def certificate(self, charge: Charge | None = None) -> Certificate:
        """The certificate of the trained model; ends the run.

        Pass the ``charge`` in whose body it was trained.
        """
        self.end()
        if self._certificate is None:
            raise NotApplicable("nothing was trained: there is nothing to certify")
        return self._certificate.paid_by(charge)


class StepLoader:
    """What a framework reads in place of its ``DataLoader``: one item for each step of the plan."""

    def __init__(self, run: Run, begin: Callable[[], object], dataset: Any, **loading: Any) -> None:
        self.dataset = dataset
        self._run, self._begin, self._loading = run, begin, loading
        self._is_named = False

    def name_parts(self) -> None:
        """Have the plan hand out parts of a batch by name, so that a model can be given all."""
        collate = self._loading.get("collate") or default_collate
        self._loading["collate"] = lambda examples: name_parts(collate(examples))
        self._is_named = True

    def __len__(self) -> int:
        private = self._run.private
        return self._run.plan.steps - (0 if private is None else private.steps_taken)

    def __iter__(self) -> Iterator[Any]:
        if self._run.is_over:
            return
        if self._run.private is None:
            self._begin()
        for batch in self._run.steps(self.dataset, **self._loading):
            yield join_parts(batch) if self._is_named else batch


_PART = "part_{}"


def name_parts(batch: Any) -> dict[str, Any]:
    """The parts of a batch by names, by which :func:`join_parts` knows what it was."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, tuple | list):
        return {_PART.format(place): part for place, part in enumerate(batch)}
    return {"": batch}


def join_parts(parts: Mapping[str, Any]) -> Any:
    """The batch of which these are the parts."""
    if "" in parts:
        return parts[""]
    return list(parts.values()) if _PART.format(0) in parts else dict(parts)


def require_settings(settings: Any, wanted: Mapping[str, tuple[Any, str]]) -> None:
    """Refuse settings of a framework that contradict a plan: each wanted value with its reason."""
    for name, (value, reason) in wanted.items():
        held = getattr(settings, name, value)
        if held != value and held not in (None, False, 0):
            raise InvalidValue(name, held, f"{value}: {reason}")
