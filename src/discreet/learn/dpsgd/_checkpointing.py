"""Layers that run again in the backward pass, for ``torch.utils.checkpoint``.

Between its passes torch holds the inputs of a checkpointed part only, and when gradients are needed
the part runs once more, to have again what autograd had saved. The gradients still flow through
the graph of the first pass, which the engine's record listens to. So in the second pass everything
must be as it was around the first, and must leave no trace: detached parameters instead of the
model's own, random draws that a probe keeps still. Who is around a pass says so here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

Context = AbstractContextManager[Any]
Pair = tuple[Context, Context]

_AROUND: ContextVar[dict[str, Callable[[], Pair]] | None] = ContextVar(
    "watch_checkpoints", default=None
)


def checkpoint_contexts() -> Pair:
    """Have a private loop take part in ``torch.utils.checkpoint``, as its ``context_fn``.

    Outside of a private loop it does nothing, so that a model may always have it::

        checkpoint(layer, x, use_reentrant=False, context_fn=dpsgd.checkpoint_contexts)

    Layers keep their own inputs all the same, because those are factors of the gradients that are
    clipped; what is saved is the memory of all that is between them.
    """
    pairs = [make() for make in (_AROUND.get() or {}).values()]
    return _enter_all([first for first, _ in pairs]), _enter_all([second for _, second in pairs])


@contextmanager
def watch_checkpoints(who: str, contexts: Callable[[], Pair]) -> Iterator[None]:
    """Inside, ``contexts()`` gives what is around the passes of a checkpointed part."""
    token = _AROUND.set({**(_AROUND.get() or {}), who: contexts})
    try:
        yield
    finally:
        _AROUND.reset(token)


@contextmanager
def _enter_all(contexts: Sequence[Context]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in contexts:
            stack.enter_context(one)
        yield
