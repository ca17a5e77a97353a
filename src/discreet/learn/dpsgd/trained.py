"""A trained model with its certificate, on its way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from torch import nn

from discreet.certificate import Certificate, read_certificate
from discreet.errors import InvalidValue, SchemaError
from discreet.learn.dpsgd.certificate import earlier_plans_of, plan_of, require_sound
from discreet.learn.dpsgd.checkpoint import (
    digest_of,
    load_model,
    read_tensors,
    released_tensors,
    write_json,
    write_tensors,
)
from discreet.learn.dpsgd.earlier import mark

__all__ = ["Trained", "load", "save"]


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
