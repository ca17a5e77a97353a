"""A trained model with its certificate, on its way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from discreet import _validate
from discreet.certificate import Certificate, read_certificate
from discreet.errors import InvalidValue, SchemaError
from discreet.learn.dpsgd._certificate import earlier_plans_of, plan_of, require_sound
from discreet.learn.dpsgd._checkpoint import (
    digest_of,
    load_model,
    read_tensors,
    released_tensors,
    write_json,
    write_tensors,
)
from discreet.learn.dpsgd._requirements import mark
from discreet.learn.dpsgd._watches import announce_writes


@final
class ParameterAverage:
    """The average a <- d a + (1 - d) p of all trainable parameters, one update a step.

    d is ``decay``, but at most (1 + t) / (10 + t) after t updates, so that the
    initial parameters are soon forgotten.

    >>> model = nn.Linear(2, 1)
    >>> average = ParameterAverage(model, decay=0.99)
    >>> average.update()
    >>> sorted(average.tensors())
    ['bias', 'weight']
    """

    def __init__(self, model: nn.Module, *, decay: float = 0.999) -> None:
        self.decay = _validate.real("decay", decay, above=0, below=1)
        self.updates = 0
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._averages = [parameter.detach().clone() for parameter in self._parameters]
        self._present: list[Tensor] = list(self._parameters)

    @torch.no_grad()
    def update(self) -> None:
        """Take the present parameters into the average."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(self._averages, self._present, 1.0 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """The averages by parameter name."""
        return dict(zip(self._names, self._averages, strict=True))

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange parameters and averages; a second call restores them."""
        with announce_writes(self._parameters):
            for parameter, average in zip(self._parameters, self._averages, strict=True):
                held = parameter.detach().clone()
                parameter.copy_(average)
                average.copy_(held)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], *, updates: int) -> None:
        """Continue from what :meth:`tensors` gave."""
        if set(tensors) != set(self._names):
            raise SchemaError("the averages are not those of this model")
        for name, average in zip(self._names, self._averages, strict=True):
            average.copy_(tensors[name])
        self.updates = updates


@final
@dataclass(frozen=True)
class Trained:
    """What a run gives: everything here may be released under the certificate.

    ``history`` holds the figures on public validation data, each with its step.
    """

    model: nn.Module
    certificate: Certificate
    history: tuple[Mapping[str, float], ...] = ()

    def save(self, directory: str | Path) -> None:
        """Write ``model.safetensors`` and ``certificate.json``; see :func:`load`."""
        save(directory, self.model, self.certificate)


def save(directory: str | Path, model: nn.Module, certificate: Certificate) -> None:
    """Write a model and its certificate, which holds the digest of the model's tensors.

    A model that was changed after its certificate was written is refused.
    """
    tensors = released_tensors(model)
    digest = digest_of(tensors)
    if certificate.model_digest not in (None, digest):
        raise InvalidValue(
            "model", "another state", "the model as it was when its certificate was written"
        )
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    notes = {"plan_hash": plan_of(certificate).content_hash}
    write_json(place / "certificate.json", replace(certificate, model_digest=digest).to_json())
    write_tensors(place / "model.safetensors", tensors, notes=notes)


def check_certificate(certificate: Certificate, model: nn.Module) -> None:
    """Raise unless a certificate follows from its plan and is that of the model as it is.

    For a model that was read by other means than :func:`load`, such as ``from_pretrained``.
    """
    require_sound(certificate)
    if digest_of(released_tensors(model)) != certificate.model_digest:
        raise SchemaError("the model is not the one that the certificate was written for")


def load(directory: str | Path, model: nn.Module) -> Certificate:
    """Fill a model of the same architecture, and return the certificate after checking it."""
    place = Path(directory)
    certificate = read_certificate(place)
    plan = require_sound(certificate)
    tensors, notes = read_tensors(place / "model.safetensors")
    if notes.get("plan_hash") != plan.content_hash:
        raise SchemaError("the model and the certificate are of different plans")
    if digest_of(tensors) != certificate.model_digest:
        raise SchemaError("the model is not the one that the certificate was written for")
    load_model(model, tensors)
    plans = [*earlier_plans_of(certificate), plan]
    marks = {f"{certificate.model_digest}.{number}": plan for number, plan in enumerate(plans)}
    mark(model, None, marks)
    return certificate
