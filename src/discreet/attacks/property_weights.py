"""Weights of a network as numbers that do not depend on how its neurons are numbered.

The hidden neurons of a layer can be exchanged, with the weights that leave them, and the network
computes the same; training picks one of these orders by chance. A classifier that reads plain
weights has to see through that (Ganju et al. 2018). Two ways out are here:

* :func:`sorted_weights` numbers the neurons of each layer by the norm of what enters them and
  carries the order on to the next layer;
* :func:`weight_sets` takes each layer as a set: every neuron becomes a vector by a fixed random
  map, and means and deviations over the set are kept, in the manner of DeepSets (Zaheer et al.
  2017). The vectors of a layer are what the next one's weights are applied to.

Both are the same numbers for every numbering of the hidden neurons, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.attacks.chance import generator
from discreet.errors import InvalidValue, NotApplicable

__all__ = ["Layer", "layers_of", "sorted_weights", "weight_sets"]

Layer = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights (units, inputs, ...) and biases (units,) of one layer."""

_EMBEDDING = 24
_MAP_SEED = 2018  # the map is part of the definition of the features, not of an experiment


def layers_of(model: Any) -> list[Layer]:
    """Return (weights, biases) of a chain of layers, from the input on; one row for each unit.

    Known are ``torch.nn.Sequential`` of linear and convolutional layers (nested, with layers
    that have no weights in between), and scikit-learn's multilayer perceptrons and linear
    models. In any other model the order of the layers cannot be seen from outside: refused.
    """
    if hasattr(model, "coefs_"):
        pairs = zip(model.coefs_, model.intercepts_, strict=True)
        return [_layer(weight.T, bias) for weight, bias in pairs]
    if hasattr(model, "coef_"):
        weight = np.atleast_2d(model.coef_)
        return [_layer(weight, np.broadcast_to(model.intercept_, len(weight)))]
    if any(kind.__module__.partition(".")[0] == "torch" for kind in type(model).__mro__):
        layers = _torch_layers(model)
        if layers:
            return layers
    raise NotApplicable(
        f"the layers of a {type(model).__name__} are not known: give layers=, a function from "
        "the model to [(weights, biases), ...]"
    )


def sorted_weights(layers: Sequence[Layer]) -> NDArray[np.float64]:
    """Return all weights in one row, hidden units in the order of their norm.

    >>> first, second = np.array([[3.0, 0.0], [0.0, 1.0]]), np.array([[5.0, 7.0]])
    >>> sorted_weights([(first, np.zeros(2)), (second, np.array([9.0]))])
    array([0., 1., 3., 0., 0., 0., 7., 5., 9.])
    """
    parts: list[NDArray[np.float64]] = []
    order: NDArray[np.intp] | None = None
    for place, (weight, bias) in enumerate(layers):
        blocks = _by_input_unit(weight, None if order is None else len(order))
        if order is not None:
            blocks = blocks[:, order]
        weight = np.ascontiguousarray(blocks).reshape(len(weight), -1)
        if place < len(layers) - 1:
            order = np.argsort((weight**2).sum(axis=1) + bias**2, kind="stable")
            weight, bias = weight[order], bias[order]
        parts += [weight.ravel(), bias]
    return np.concatenate(parts)


def weight_sets(layers: Sequence[Layer]) -> NDArray[np.float64]:
    """Return means and deviations of the units of each layer, and the output layer as it is.

    >>> weight, bias = np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros(2)
    >>> out = np.array([[1.0, -1.0]])
    >>> one = weight_sets([(weight, bias), (out, np.zeros(1))])
    >>> other = weight_sets([(weight[::-1], bias), (out[:, ::-1], np.zeros(1))])
    >>> bool(np.allclose(one, other, rtol=1e-12))
    True
    """
    parts: list[NDArray[np.float64]] = []
    embedded: NDArray[np.float64] | None = None
    for place, (weight, bias) in enumerate(layers):
        blocks = _by_input_unit(weight, None if embedded is None else len(embedded))
        if embedded is None:
            inputs = weight.reshape(len(weight), -1)
        else:
            inputs = np.einsum("ouk,uh->okh", blocks, embedded).reshape(len(weight), -1)
        units = np.hstack([inputs, bias[:, None]])
        if place == len(layers) - 1:
            parts.append(units.ravel())
            break
        width = units.shape[1]
        mixed = generator(_MAP_SEED, place).standard_normal((width, _EMBEDDING)) / np.sqrt(width)
        embedded = np.maximum(units @ mixed, 0.0)
        parts += [units.mean(axis=0), units.std(axis=0)]
        parts += [embedded.mean(axis=0), embedded.std(axis=0)]
    return np.concatenate(parts)


def _by_input_unit(weight: NDArray[np.float64], units: int | None) -> NDArray[np.float64]:
    """Weights as (unit, unit of the layer before, rest): pixels of one channel stay together."""
    flat = weight.reshape(len(weight), -1)
    if units is None:
        return flat[:, :, None]
    if flat.shape[1] % units:
        raise InvalidValue("layers", f"{flat.shape[1]} weights for {units} units", "a chain")
    return flat.reshape(len(weight), units, -1)


def _layer(weight: Any, bias: Any) -> Layer:
    return np.asarray(weight, dtype=np.float64), np.asarray(bias, dtype=np.float64)


def _torch_layers(model: Any) -> list[Layer]:
    nn = import_module("torch").nn
    if isinstance(model, nn.Sequential):
        return [layer for child in model for layer in _torch_layers(child)]
    if isinstance(model, (nn.Linear, nn.Conv1d, nn.Conv2d)):
        if getattr(model, "groups", 1) != 1:
            raise NotApplicable("grouped convolutions keep their channels apart: give layers=")
        weight = model.weight.detach().cpu().double().numpy()
        no_bias = np.zeros(len(weight))
        bias = no_bias if model.bias is None else model.bias.detach().cpu().double().numpy()
        return [_layer(weight, bias)]
    if any(True for _ in model.parameters()):
        raise NotApplicable(
            f"a {type(model).__name__} has weights whose order among the layers is not known: "
            "give layers=, a function from the model to [(weights, biases), ...]"
        )
    return []
