"""The state of a run as one safetensors file: tensors by name, all else as JSON inside it.

Files appear whole or not at all: they are written beside their place, flushed, and renamed. Nothing
is pickled, so nothing is executed when a file from elsewhere is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn, uint8
from torch.optim import Optimizer

from discreet._files import write_file
from discreet.errors import InvalidValue, SchemaError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, and never a part."""
    write_file(path, content)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON whole."""
    write_whole(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path, *, schema: str, version: int) -> dict[str, Any]:
    """Read JSON of a stated schema, or raise ``SchemaError``."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise SchemaError(f"{path.name}: cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise SchemaError(f"{path.name}: expected schema {schema!r}")
    if document.get("version") != version:
        raise SchemaError(f"{path.name}: version {document.get('version')!r}, expected {version}")
    return document


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, notes: Mapping[str, Any]) -> None:
    """Write tensors and a JSON object whole, into one safetensors file."""
    # Clones: safetensors refuses tensors that share memory, as tied weights do.
    held = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_whole(path, to_bytes(held, metadata={"notes": json.dumps(notes, sort_keys=True)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`write_tensors` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise SchemaError(f"{path.name}: cannot be read: {error}") from None


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; a model that keeps other things in its state is refused."""
    state = model.state_dict()
    strange = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if strange:
        raise InvalidValue(
            "model", strange, "a state of tensors only, to be written without pickle"
        )
    return dict(state)


def released_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that are released: of a model that is trained inside another, its own alone."""
    return tensors_of(getattr(model, "released", model))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and contents."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        held = tensors[name].detach().cpu().contiguous()
        digest.update(repr((name, str(held.dtype), tuple(held.shape))).encode())
        digest.update(held.reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()


def pack_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's state as tensors and JSON; see :func:`unpack_optimizer`."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {"state": {}, "param_groups": []}
    for position, values in state["state"].items():
        plain["state"][str(position)] = _split(values, f"state.{position}", tensors)
    for position, values in enumerate(state["param_groups"]):
        plain["param_groups"].append(_split(values, f"group.{position}", tensors))
    return tensors, plain


def _split(values: Mapping[str, Any], where: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    plain = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            tensors[f"{where}.{key}"] = value
            continue
        try:
            json.dumps(value)
        except TypeError:
            raise InvalidValue(
                f"optimizer.{key}", type(value).__name__, "a tensor or plain values, not an object"
            ) from None
        plain[key] = value
    return plain


def unpack_optimizer(
    optimizer: Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]
) -> None:
    """Give an optimizer the state that :func:`pack_optimizer` took."""
    state: dict[str, Any] = {
        "state": {int(position): dict(values) for position, values in plain["state"].items()},
        "param_groups": [_with_tuples(values) for values in plain["param_groups"]],
    }
    for name, tensor in tensors.items():
        kind, position, key = name.split(".", 2)
        part = state["state"] if kind == "state" else state["param_groups"]
        part[int(position)][key] = tensor
    try:
        optimizer.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise SchemaError(f"the state is of another optimizer: {error}") from None


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; torch keeps pairs such as ``betas`` in them."""
    return {
        key: tuple(value) if isinstance(value, list) and key != "params" else value
        for key, value in values.items()
    }


def load_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model its parameters and buffers, all of them and no others."""
    try:
        model.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        raise SchemaError(f"the state is of another model: {error}") from None


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names with a prefix; :func:`without_prefix` takes it off again."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one prefix, by their names without it."""
    start = f"{prefix}/"
    return {
        name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)
    }
