"""Weights of a malicious server that hold on to single examples of a large batch.

Imprinted layers (Fowl et al. 2022): the rows of the first linear layer all measure one number of
an input, its mean, and their biases divide the range of that number into bins. An input adds to the
gradients of all rows below it, so the difference between two neighbouring rows is the sum of the
inputs of one bin, and an input that is alone in its bin is found as it was.

Trap weights: one unit of the first layer answers to one record only. Whether its bias has a
gradient says whether the record was in the batch, however large.
"""

from __future__ import annotations

import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import _validate
from discreet.attacks._contract import attack
from discreet.attacks._update_pictures import UpdatePicturesResult, judge_pictures
from discreet.attacks._updates import check_answers, check_updates, linear_layer, split_update
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def imprint_model(public: ArrayLike, *, bins: int, classes: int) -> Any:
    """Return the network that a malicious server sends to divide a batch by brightness.

    Parameters
    ----------
    public : array
        Pictures of the same kind, whose brightness says where bins begin.
    bins : int
        How many units the imprinted layer has.
    classes : int
        How many outputs the network has.

    Returns
    -------
    nn.Module
        Flatten, imprinted layer, ReLU and a layer whose rows do not tell the bins apart.
    """
    torch = import_module("torch")
    pictures = np.asarray(public, dtype=np.float64).reshape(len(np.asarray(public)), -1)
    count = _validate.integer("bins", bins, at_least=2)
    width = pictures.shape[1]
    edges = np.quantile(pictures.mean(axis=1), np.arange(count) / count)
    model = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(width, count),
        torch.nn.ReLU(),
        torch.nn.Linear(count, _validate.integer("classes", classes, at_least=2)),
    )
    with torch.no_grad():
        model[1].weight.fill_(1.0 / width)
        model[1].bias.copy_(torch.as_tensor(-edges))
        # The same slope for every bin, and another one for every class.
        model[3].weight.copy_(
            torch.linspace(-1, 1, classes)[:, None].expand(classes, count) / count
        )
        model[3].bias.zero_()
    return model


def trap_weights(model: Any, records: ArrayLike, public: ArrayLike) -> Any:
    """Return the model with one unit of its first linear layer for each of some records.

    A unit answers to its record, and to inputs that lie as far in the same direction from the mean
    of public ones, in units of their spread: the more numbers a record has, the fewer these are.

    Parameters
    ----------
    model : nn.Module
        A network of two linear layers with a ReLU between them, the first of which sees the whole
        input.
    records : array
        At most as many as that layer has units.
    public : array
        Records of the same kind, for their mean and spread.

    Returns
    -------
    nn.Module
        A copy of the model. Units without a record never answer.

    Raises
    ------
    InvalidValue
        If there are too many records, or one is the mean of public ones.
    NotApplicable
        If the network has other layers than two linear ones.
    """
    torch = import_module("torch")
    made = copy.deepcopy(model)
    first = made.get_submodule(linear_layer(made, first=True).rstrip("."))
    last = made.get_submodule(linear_layer(made, first=False).rstrip("."))
    flat, others = (
        np.asarray(one, dtype=np.float64).reshape(len(np.asarray(one)), -1)
        for one in (records, public)
    )
    for argument, rows in (("records", flat), ("public", others)):
        if rows.shape[1] != first.in_features:
            raise InvalidValue(argument, rows.shape, f"records of {first.in_features} numbers")
    if len(flat) > first.out_features:
        raise InvalidValue("records", len(flat), f"at most {first.out_features}, one for each unit")
    if last.in_features != first.out_features:
        raise NotApplicable("traps need a network of two linear layers")
    centre = others.mean(axis=0)
    spread = np.cov(others, rowvar=False)
    ridge = 1e-3 * max(float(np.trace(spread)) / len(spread), 1e-12)
    towards = np.linalg.solve(spread + ridge * np.eye(len(spread)), (flat - centre).T).T
    reach = (towards * (flat - centre)).sum(axis=1)
    if not (reach > 0).all():
        raise InvalidValue("records", "the mean of public ones", "records that differ from it")
    with torch.no_grad():
        first.weight.zero_()
        first.bias.fill_(-1.0)
        unit = towards / reach[:, None]
        first.weight[: len(flat)] = torch.as_tensor(unit, dtype=first.weight.dtype)
        bias = -(unit @ centre) - 1.0 + 1e-4
        first.bias[: len(flat)] = torch.as_tensor(bias, dtype=first.bias.dtype)
        last.weight.copy_(torch.linspace(-1, 1, last.out_features)[:, None].expand_as(last.weight))
        last.bias.zero_()
    return made


@attack(family="reconstruction", access="gradients")
def imprinted_pictures(
    target: Any,
    updates: ArrayLike,
    records: ArrayLike,
    labels: ArrayLike,
    auxiliary: tuple[ArrayLike, ArrayLike],
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    confidence: float = 0.95,
) -> UpdatePicturesResult:
    """Read single pictures of a large batch, or of a sum of updates, off an imprinted layer.

    Parameters
    ----------
    target : nn.Module
        What :func:`imprint_model` made.
    updates, records, labels, auxiliary, bounds, confidence
        As those of :func:`update_pictures`.

    Returns
    -------
    UpdatePicturesResult
        How many pictures were identified, how near they are, and the pictures.

    Raises
    ------
    InvalidValue
        If an argument does not fit the model.
    """
    rows = check_updates(target, updates)
    truth = np.asarray(check_answers(rows, "records", records, least=3), dtype=np.float64)
    classes = check_answers(rows, "labels", labels, least=2)
    name = linear_layer(target, first=True)
    found = []
    for row in rows:
        parts = split_update(target, row)
        weights, bias = parts[f"{name}weight"], parts[f"{name}bias"]
        if weights.shape[1] != int(np.prod(truth.shape[2:])) or len(bias) < truth.shape[1]:
            raise NotApplicable("the first linear layer is not an imprinted one of enough units")
        # The last row stands for its bin alone.
        slopes = np.vstack([weights[:-1] - weights[1:], weights[-1:]])
        answers = np.append(bias[:-1] - bias[1:], bias[-1])
        there = np.abs(answers) > 1e-9 * max(float(np.abs(answers).max()), 1e-300)
        made = np.where(there[:, None], slopes / np.where(there, answers, 1.0)[:, None], 0.5)
        found.append(made.reshape(-1, *truth.shape[2:]))
    pictures = np.clip(np.stack(found), *bounds)
    return judge_pictures("imprint", pictures, truth, classes, auxiliary, confidence=confidence)
