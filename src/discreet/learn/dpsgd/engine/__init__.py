"""Per-example gradients by book-keeping: one forward pass and one backward pass.

:class:`GradientEngine` watches a model, gives the squared norm of every example's gradient and
the weighted sum of all of them, without forming gradients of single examples unless that is the
cheaper way. :func:`verify_attribution` tries out on made-up inputs whether it gives every example
its own gradient in a given model.
"""

from discreet.learn.dpsgd.engine.attribution import verify_attribution
from discreet.learn.dpsgd.engine.engine import GradientEngine

__all__ = ["GradientEngine", "verify_attribution"]
