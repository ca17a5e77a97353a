"""Examples that the model or the loss cannot take: they add nothing, and nothing tells of them.

A label that is no class or a token that the vocabulary lacks makes torch raise. Whether a run
fails would then tell that one record is there, after its budget was spent. So the rows that raise
alone are found on a copy of the model and replaced by zeros, of which nothing is counted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from discreet.learn.dpsgd._tensors import exchanged

Compute = Callable[[nn.Module, Any], Tensor]


def blanked(
    compute: Compute, model: nn.Module, batch: Any, *, rows: int, axis: int
) -> tuple[Any, Tensor] | None:
    """The batch with zeros in the rows on which ``compute(model, row)`` raises, and those rows.

    ``None`` if no row raises alone, or zeros raise too: then it is the shape or the type of
    the batch, or the code, and no single example is the reason. ``axis`` is where the examples
    are in tensors that have rows there.
    """
    try:
        twin = copy.deepcopy(model)
    except Exception:  # noqa: BLE001 - whatever a model's own code raises
        return None

    def runs(part: Any) -> bool:
        try:
            with torch.no_grad():
                compute(twin, part)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - of which kind, and its words, would tell values
            return False
        return True

    found = [row for row in range(rows) if not runs(_each(batch, rows, axis, _only(row)))]
    if not found:
        return None
    places = torch.tensor(found)
    zeros = _each(batch, rows, axis, lambda one, at: one.index_fill(at, places.to(one.device), 0))
    if not runs(zeros):
        return None
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[places] = True
    return zeros, mask


def _only(row: int) -> Callable[[Tensor, int], Tensor]:
    return lambda one, at: one.narrow(at, row, 1)


def _each(batch: Any, rows: int, axis: int, change: Callable[[Tensor, int], Tensor]) -> Any:
    def changed(one: Tensor) -> Tensor:
        for at in (axis, 0):
            if at < one.ndim and one.shape[at] == rows:
                return change(one, at)
        return one

    return exchanged(batch, changed)
