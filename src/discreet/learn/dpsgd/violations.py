"""What a loop is told that does not do with a batch what the plan needs."""

from __future__ import annotations

__all__ = [
    "BROKEN_OFF",
    "LOADED",
    "NOT_OF_THE_BATCH",
    "NO_BACKWARD",
    "NO_BATCH",
    "OUTSIDE",
    "SKIPPED",
    "STALE",
    "UNSEEN_BACKWARD",
]

LOADED = (
    "load_state_dict() on a model under a plan: the parameters of another model would be under "
    "the certificate of this run. Load before the first batch, or call detach() first"
)
NOT_OF_THE_BATCH = (
    "the model was given tensors that do not come of the batch that private.batches(...) handed "
    "out, nor were made since: rows of another loader are not sampled, counted or paid for as the "
    "plan says. Put them into the data set, or prepare them there or in collate"
)
STALE = (
    "tensors of an earlier batch of private.batches(...) came back: their examples would have a "
    "hand in a step that did not draw them. Use those of the batch that was handed out last"
)
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
