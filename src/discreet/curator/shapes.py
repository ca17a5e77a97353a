"""An algebra without values: it lets a lowering compute grids where there are no data."""

from __future__ import annotations

from typing import Any, cast, final

from discreet.curator.algebra import Algebra

__all__ = ["SHAPES"]


@final
class _Shapes:
    def __getattr__(self, name: str) -> Any:
        return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    return None


# An Algebra whose terms are all None; grids do not depend on terms.
SHAPES = cast("Algebra", _Shapes())
