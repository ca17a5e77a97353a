"""What a loop is told that does not do with a batch what the plan needs."""

from __future__ import annotations

__all__ = ["BROKEN_OFF", "NO_BACKWARD", "NO_BATCH", "OUTSIDE", "SKIPPED", "UNSEEN_BACKWARD"]

NO_BATCH = "optimizer.step() without a batch: each batch of private.batches(...) allows one"
NO_BACKWARD = "optimizer.step() without loss.backward() on this batch"
UNSEEN_BACKWARD = (
    "a backward pass that was not loss.backward() of a loss of model(...), in the thread that "
    "reads the batches: how it was reduced could not be seen; use private.backward(losses)"
)
OUTSIDE = (
    "the loss depends on a tensor that requires gradients and is not one of the parameters under "
    "the plan: it would get gradients that are neither clipped nor noisy, and what it learns "
    "from them would reach the model. Make it a parameter of the model before make_private() "
    "(a temperature, a head, a prompt), or take its detach()"
)
SKIPPED = (
    "a batch was not followed by optimizer.step(): batches may not be skipped, because which of "
    "them were would depend on the data"
)
BROKEN_OFF = (
    "the step broke off while its gradients were added up; it counts as taken. Go on with a new "
    "private.batches(...)"
)
