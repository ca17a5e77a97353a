"""What a server sees of a client: an update, and the weights that it sent itself.

An update is a row of numbers, one for each parameter of the model in the order of
``model.parameters()``: the weights that were sent less those that came back, over the learning rate
of the client. After one local step that is a gradient; after several it is the sum of them.
Attacks on updates are judged by the records that made the update, and do not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet.attacks._target import evaluation_mode, is_torch_module
from discreet.attacks._training import Generator, seeded_generator
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    Rows = NDArray[np.float64]


def client_updates(
    model: Any,
    records: ArrayLike,
    labels: ArrayLike,
    *,
    local_steps: int = 1,
    local_rate: float = 1.0,
    clip_norm: float | None = None,
    stddev: float = 0.0,
    seed: int | Generator | None = None,
) -> NDArray[np.float64]:
    """Return the updates of honest clients, for experiments with made-up clients.

    Parameters
    ----------
    model : nn.Module
        The weights that the server sent; the loss is cross-entropy on its outputs.
    records, labels : array
        Clients x examples x the shape of a record, and clients x examples.
    local_steps, local_rate
        How the clients train: on all of their examples in every step.
    clip_norm : float, optional
        The largest length of an update.
    stddev : float
        Of the noise on each number of an update. It comes from a seed and protects nobody.
    seed : int or Generator, optional
        Makes the noise repeatable.

    Returns
    -------
    array of float64
        One row for each client.
    """
    change = local_change(model, local_steps=local_steps, local_rate=local_rate)
    x, y = np.asarray(records), np.asarray(labels)
    if x.ndim < 3 or y.shape != x.shape[:2] or not len(y):
        raise InvalidValue("records", x.shape, "clients x examples x the shape of a record")
    rows = np.stack(
        [change(one, own).detach().double().numpy() for one, own in zip(x, y, strict=True)]
    )
    if clip_norm is not None:
        rows = clip_rows(rows, _validate.real("clip_norm", clip_norm, above=0))
    spread = _validate.real("stddev", stddev, at_least=0)
    noisy: Rows = rows + spread * seeded_generator(seed).standard_normal(rows.shape)
    return noisy


def clip_rows(rows: Rows, clip_norm: float) -> Rows:
    """Return the rows, none of them longer than the clip norm."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    clipped: Rows = rows * np.minimum(1.0, clip_norm / np.maximum(lengths, 1e-300))
    return clipped


def local_change(
    model: Any, *, local_steps: int = 1, local_rate: float = 1.0
) -> Callable[[Any, Any], Tensor]:
    """Return what maps the examples of a client to its update; a tensor that has derivatives.

    Labels are classes, or one row of logits for each example where they are to be found, too.
    """
    if not is_torch_module(model):
        raise NotApplicable("updates belong to a torch module: the weights that the server sent")
    steps = _validate.integer("local_steps", local_steps, at_least=1)
    rate = _validate.real("local_rate", local_rate, above=0)
    torch = import_module("torch")
    call = import_module("torch.func").functional_call
    sent = {name: p.detach() for name, p in model.named_parameters()}
    kind = next(iter(sent.values())).dtype

    def change(records: Any, labels: Any) -> Tensor:
        x = torch.as_tensor(records)
        x = x.long() if _is_text(model) else x.to(kind)
        y = torch.as_tensor(labels)
        here = {name: p.clone().requires_grad_(True) for name, p in sent.items()}
        total: Tensor = torch.zeros((), dtype=kind)
        with evaluation_mode(list(model.modules())), torch.enable_grad():
            for _ in range(steps):
                outputs = call(model, here, (x,))
                loss = torch.nn.functional.cross_entropy(
                    outputs, y.softmax(-1) if y.is_floating_point() else y.long()
                )
                slopes = torch.autograd.grad(loss, list(here.values()), create_graph=True)
                total = total + torch.cat([one.reshape(-1) for one in slopes])
                pairs = zip(here.items(), slopes, strict=True)
                here = {name: value - rate * slope for (name, value), slope in pairs}
        return total

    return change


def _is_text(model: Any) -> bool:
    torch = import_module("torch")
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return any(isinstance(one, kinds) for one in model.modules())


def check_updates(model: Any, updates: ArrayLike) -> Rows:
    """Return updates as rows of finite numbers, one for each parameter of the model."""
    if not is_torch_module(model):
        raise NotApplicable("updates belong to a torch module: the weights that the server sent")
    size = sum(p.numel() for p in model.parameters())
    rows = np.asarray(updates, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != size or not len(rows):
        raise InvalidValue("updates", f"shape {rows.shape}", f"(clients, {size}), as the model")
    if not np.isfinite(rows).all():
        raise InvalidValue("updates", "a number that is not finite", "finite numbers")
    return rows


def check_answers(updates: Rows, argument: str, value: ArrayLike, *, least: int = 1) -> Any:
    """Return what an attack is judged by: one entry for each update."""
    found = np.asarray(value)
    if found.ndim < least or len(found) != len(updates):
        raise InvalidValue(
            argument, f"shape {found.shape}", f"one for each of {len(updates)} updates"
        )
    return found


def split_update(model: Any, row: Rows) -> Mapping[str, Rows]:
    """Return an update as arrays, by the names of parameters."""
    found, at = {}, 0
    for name, parameter in model.named_parameters():
        found[name] = row[at : at + parameter.numel()].reshape(tuple(parameter.shape))
        at += parameter.numel()
    return found


def linear_layer(model: Any, *, first: bool) -> str:
    """Return the name of the first or last linear layer with a bias, with a dot behind it."""
    torch = import_module("torch")
    names = [
        name
        for name, one in model.named_modules()
        if isinstance(one, torch.nn.Linear) and one.bias is not None
    ]
    if not names:
        raise NotApplicable("the model has no linear layer with a bias")
    chosen = names[0 if first else -1]
    return f"{chosen}." if chosen else ""


def alignments(
    model: Any, updates: Rows, records: Any, labels: Any, *, clip_norm: float | None = None
) -> Rows:
    """Return how well each candidate's own update fits what was seen, by inner product.

    ``records`` are updates x candidates x the shape of a record. With a clip norm candidates are
    clipped as clients clip; without one their length does not count.
    """
    torch = import_module("torch")
    func = import_module("torch.func")
    sent = {name: p.detach() for name, p in model.named_parameters()}
    kind = next(iter(sent.values())).dtype

    def loss(parameters: Any, record: Any, label: Any) -> Any:
        outputs = func.functional_call(model, parameters, (record[None],))
        return torch.nn.functional.cross_entropy(outputs, label[None])

    slopes = func.vmap(func.grad(loss), in_dims=(None, 0, 0), chunk_size=64)
    scores = np.empty(np.shape(labels))
    with evaluation_mode(list(model.modules())):
        for place, seen in enumerate(updates):
            x, y = torch.as_tensor(records[place]), torch.as_tensor(labels[place]).long()
            found = slopes(sent, x.long() if _is_text(model) else x.to(kind), y)
            own = torch.cat([one.reshape(len(y), -1) for one in found.values()], dim=1)
            own = own.double().numpy()
            lengths = np.maximum(np.linalg.norm(own, axis=1), 1e-300)
            own = own / lengths[:, None] if clip_norm is None else clip_rows(own, clip_norm)
            # The likelihood of noise around a candidate: <g, c> - |c|^2 / 2, up to what is common.
            shorter = 0.0 if clip_norm is None else 0.5 * (own * own).sum(axis=1)
            scores[place] = own @ seen - shorter
    return scores
