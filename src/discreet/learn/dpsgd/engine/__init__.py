"""Per-example gradients by book-keeping: one forward pass and one backward pass.

:class:`GradientEngine` watches a model, gives the squared norm of every example's gradient and
the weighted sum of all of them, without forming gradients of single examples unless that is the
cheaper way.
"""

from discreet.learn.dpsgd.engine._engine import GradientEngine

__all__ = ["GradientEngine"]
