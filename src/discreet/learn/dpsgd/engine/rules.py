"""All rules by the torch function that they stand for."""

from __future__ import annotations

from typing import Any

from discreet.learn.dpsgd.engine import (
    rule_broadcast,
    rule_convolution,
    rule_embedding,
    rule_linear,
    rule_normalization,
    rule_sequences,
)
from discreet.learn.dpsgd.engine.recorder import Rule

__all__ = ["ALWAYS", "RULES"]

RULES: dict[Any, Rule] = {
    **rule_broadcast.RULES,
    **rule_convolution.RULES,
    **rule_embedding.RULES,
    **rule_linear.RULES,
    **rule_normalization.RULES,
    **rule_sequences.RULES,
}

ALWAYS = rule_embedding.ALWAYS
