"""Adapters of ``peft`` (LoRA and its kin) with their certificate.

The model that ``get_peft_model`` gives needs nothing special: its frozen weights are no part of the
release, and :func:`~discreet.learn.dpsgd.make_private`, or ``PrivateTrainer`` of
:mod:`discreet.integrations.huggingface`, trains the others. What is special is the release, a few
small files beside a public model::

    from discreet.integrations import peft

    peft.save("adapter", model, certificate)
    model, certificate = peft.load("adapter", public_model)

Merging the adapter into the model afterwards is arithmetic on what was released, and costs nothing;
the certificate names the tensors before it.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from discreet._files import write_file
from discreet.certificate import Certificate, read_certificate
from discreet.errors import InvalidValue
from discreet.learn import dpsgd

__all__ = ["load", "save"]

_PeftModel: Any = import_module("peft").PeftModel  # no types: it may not be there to read them


def save(directory: str | Path, model: Any, certificate: Certificate) -> None:
    """Write the adapter as ``peft`` does, and the certificate beside it.

    A model that was changed after its certificate was written is refused.
    """
    if not isinstance(model, _PeftModel):
        raise InvalidValue("model", type(model).__name__, "a model that get_peft_model gave")
    dpsgd.check_certificate(certificate, model)
    model.save_pretrained(str(directory))
    text = json.dumps(certificate.to_json(), indent=1) + "\n"
    write_file(Path(directory) / "certificate.json", text)


def load(directory: str | Path, base: nn.Module) -> tuple[Any, Certificate]:
    """Put the adapter on the public model that it was trained on; return it and its certificate.

    The certificate is checked, and that it was written for these tensors, those of the public model
    included.
    """
    certificate = read_certificate(directory)
    model = _PeftModel.from_pretrained(base, str(directory))
    dpsgd.check_certificate(certificate, model)
    return model, certificate
