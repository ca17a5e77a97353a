"""Canaries: examples that are put into a run to measure what it gives away about them."""

from discreet.learn.dpsgd.canaries._canaries import (
    CanaryRun,
    GradientCanaries,
    MarkedModel,
    gradient_scores,
    mislabelled,
    noise_examples,
    train_with_gradient_canaries,
    train_with_input_canaries,
)

__all__ = [
    "CanaryRun",
    "GradientCanaries",
    "MarkedModel",
    "gradient_scores",
    "mislabelled",
    "noise_examples",
    "train_with_gradient_canaries",
    "train_with_input_canaries",
]
