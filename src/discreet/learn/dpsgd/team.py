"""What several processes that train together must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Team"]


class Team(Protocol):
    """The members of a run; implemented by :mod:`discreet.learn.dpsgd.distributed`.

    Every member adds independent noise of 1 / sqrt(ranks) of the planned standard deviation to
    its part of the sum, so that the sum over all members has exactly the planned noise.
    """

    @property
    def rank(self) -> int:
        """The number of this member, from 0; it sets seeded noise of members apart."""

    @property
    def ranks(self) -> int:
        """The number of members."""

    def share(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices of a step that are this member's part.

        Only the draw of one member may count; the others pass theirs in and it is ignored.
        """

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its sum over all members."""
