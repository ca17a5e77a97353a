"""Normalisation that looks at one example at a time.

Centring and scaling by the mean and variance of a data set would have to be paid for. Scaling an
example by its own statistics is a row-by-row map and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from discreet import _validate
from discreet.errors import InvalidValue

__all__ = ["contrasts", "group_normalised"]


def group_normalised(features: torch.Tensor, *, groups: int, epsilon: float = 1e-5) -> torch.Tensor:
    """Give each group of channels of each example mean 0 and variance 1.

    Guarantee: row i of the result depends on row i of ``features`` alone, and its norm is at most
    the square root of the number of its entries, whatever the input: a public bound.

    :param features: (n, channels, ...).
    :param groups: how many groups of neighbouring channels; a divisor of their number.
    :param epsilon: added to the variances, so that constant groups become zero.

    >>> group_normalised(torch.tensor([[1.0, 3.0, 5.0, 5.0]]), groups=2, epsilon=1e-12)
    tensor([[-1.,  1.,  0.,  0.]])
    """
    _validate.integer("groups", groups, at_least=1)
    _validate.real("epsilon", epsilon, above=0)
    if features.dim() < 2 or features.shape[1] % groups:
        expected = f"(n, channels, ...) with {groups} groups of equally many channels"
        raise InvalidValue("features", f"a tensor of shape {tuple(features.shape)}", expected)
    # torch's own function; it refuses groups of a single value, which are constant.
    if features[0:1].numel() == groups:
        return torch.zeros_like(features)
    return torch.nn.functional.group_norm(features, groups, eps=epsilon)


def contrasts(
    features: torch.Tensor, *, groups: int, blocks: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Group-normalise, keep what tells the channels of a block apart, group-normalise again.

    Channels that respond to different directions have much in common: where there is ink, all of
    them respond. That common part is nearly the same for all images, so it tells classes
    apart badly, but it takes up room under the clip norm. Here it is removed: from every channel
    of a block (for example ``Scattering.blocks``) the mean over the block is subtracted, place
    by place.

    Guarantee: that of :func:`group_normalised`. Row i depends on row i alone.

    :param blocks: ranges ``(start, stop)`` of channels, disjoint; channels outside of all blocks
        are left as they are.
    """
    normal = group_normalised(features, groups=groups)
    seen = 0
    for start, stop in sorted(blocks):
        if not seen <= start < stop <= features.shape[1]:
            expected = f"disjoint ranges (start, stop) of the {features.shape[1]} channels"
            raise InvalidValue("blocks", blocks, expected)
        seen = stop
        block = normal[:, start:stop]
        normal[:, start:stop] = block - block.mean(dim=1, keepdim=True)
    return group_normalised(normal, groups=groups)
