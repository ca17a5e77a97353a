"""Clients in memory: their examples as padded tensors, and a split of a data set among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.randomness import InsecureSeededSource

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Clients:
    """The examples of many clients.

    Parameters
    ----------
    inputs : Tensor
        Clients x examples x the shape of an input.
    targets : Tensor
        Clients x examples.
    counts : array of int, optional
        How many examples each client has; what comes after them is padding. By default all.
    """

    inputs: Tensor
    targets: Tensor
    counts: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.inputs.shape[:2])
        if len(shape) < 2 or tuple(self.targets.shape) != shape:
            raise InvalidValue(
                "targets", tuple(self.targets.shape), "one for each example, as in inputs"
            )
        counts = np.full(shape[0], shape[1]) if self.counts is None else np.asarray(self.counts)
        if counts.shape != shape[:1] or counts.dtype.kind not in "iu":
            raise InvalidValue("counts", counts.shape, f"{shape[0]} whole numbers")
        object.__setattr__(self, "counts", counts.astype(np.int64))

    def __len__(self) -> int:
        return int(self.inputs.shape[0])


def split_dirichlet(
    labels: object, *, clients: int, examples: int, alpha: float, seed: int
) -> NDArray[np.int64]:
    """Return positions of examples for clients whose labels are unlike one another's.

    For experiments: each client draws shares of the labels from a symmetric Dirichlet distribution
    and takes that mixture, without replacement, as long as there are examples of a label left.

    Parameters
    ----------
    labels : array of int
        The label of each example, from 0.
    clients, examples : int
        How many clients, and examples of each.
    alpha : float
        Small for clients of few labels, large for clients that are alike.
    seed : int
        The split follows from it; it protects nothing.

    Returns
    -------
    array of int64
        Clients x examples.

    Raises
    ------
    InvalidValue
        If there are fewer examples than asked for.
    """
    codes = np.asarray(labels)
    count = _validate.integer("clients", clients, at_least=1)
    each = _validate.integer("examples", examples, at_least=1, at_most=codes.size // count)
    strength = _validate.real("alpha", alpha, above=0)
    bits = InsecureSeededSource(insecure_seed=seed)
    order = np.argsort(bits.words64(codes.size))
    left = [order[codes[order] == label].tolist() for label in range(int(codes.max()) + 1)]
    result = np.empty((count, each), dtype=np.int64)
    for client in range(count):
        room = np.array([len(one) for one in left], dtype=np.float64)
        shares = _gamma_draws(strength, len(left), bits) * (room > 0)
        for place in range(each):
            total = np.cumsum(shares)
            if total[-1] <= 0.0:  # none of its labels is left
                shares = np.array([len(one) for one in left], dtype=np.float64)
                total = np.cumsum(shares)
            at = float(bits.words64(1)[0]) / 2.0**64 * total[-1]
            label = min(int(np.searchsorted(total, at, side="right")), len(left) - 1)
            label = label if left[label] else int(np.argmax([len(one) for one in left]))
            result[client, place] = left[label].pop()
            shares[label] *= bool(left[label])
    return result


def _gamma_draws(alpha: float, size: int, bits: InsecureSeededSource) -> NDArray[np.float64]:
    """Return gamma numbers by inversion; their shares are Dirichlet."""
    from scipy import special

    uniform = (bits.words64(size) + 0.5) / 2.0**64
    return np.asarray(special.gammaincinv(alpha, uniform), dtype=np.float64)
