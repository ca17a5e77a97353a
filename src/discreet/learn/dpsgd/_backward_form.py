"""One form of backward pass for each batch: from losses one by one, or from their total.

What a pass leaves is scaled as a whole before it is clipped: by one where every example has its
own loss, by the number of rows where they were averaged. Two forms in one batch would be
scaled wrongly, and only losses that come one by one can do without a look at their reduction.
"""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor

from discreet.errors import PlanViolation
from discreet.learn.dpsgd.engine._recorder import refuse_autocast

_MIXED = (
    "one form of backward for each batch: either private.backward(losses) or private.step(...), "
    "with one loss for each example, or loss.backward() of their total, not both"
)


@final
class BackwardForm:
    """What the open batch has had so far; ``kind`` is ``None`` at its beginning.

    :meth:`hear` is called whenever a gradient arrives in the recording, however it was sent, and
    before anything of it is kept.
    """

    __slots__ = ("is_ours", "kind")

    def __init__(self) -> None:
        self.kind: Literal["each", "total"] | None = None
        self.is_ours = False

    def hear(self) -> None:
        """A gradient arrives; raise if it is of a total beside losses that came one by one.

        Or if it goes through products of half precision.
        """
        refuse_autocast()
        if not self.is_ours:
            self.require_total()
            self.kind = "total"

    def require_total(self) -> None:
        """Raise if the losses of the batch came one by one."""
        if self.kind == "each":
            raise PlanViolation(_MIXED)

    def require_each(self) -> None:
        """Raise if there was a backward pass from a total."""
        if self.kind == "total":
            raise PlanViolation(_MIXED)

    def backward(self, losses: Tensor) -> None:
        """Go back from losses that come one by one."""
        self.kind = "each"
        self.is_ours = True
        try:
            losses.sum().backward()  # type: ignore[no-untyped-call]
        finally:
            self.is_ours = False
