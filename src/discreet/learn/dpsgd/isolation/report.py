"""What the isolation probe found, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from discreet.errors import NotApplicable

__all__ = ["Culprit", "IsolationReport"]

_CAVEAT = (
    "A probe can refute isolation, it cannot prove it: it saw made-up examples, not all possible "
    "ones, and a dependence that needs special values may have escaped it."
)

_FINDINGS = {
    "mixes": "what it computes for one example changes with the other examples",
    "order": "what it computes for one example changes with its place in the batch",
    "batch size": "what it computes for one example changes with the number of examples",
    "gradient": "the gradient of one example changes with the other examples",
    "writes": "it changes a parameter of its own while it computes, past clipping and noise",
    "state": "it keeps a state that depends on the examples it saw",
    "carried": "its answer to one batch depends on the batches before",
    "reduction": "its value is neither the sum nor the mean of losses of single examples",
    "unreadable": "no part of its output can be told to belong to one example",
    "unrepeatable": "two equal runs with equal seeds differ, so nothing can be compared",
    "blind": "its output does not react to the example at all, so nothing can be seen",
}

_ADVICE = {
    "state": "discreet.learn.dpsgd.fix(model) replaces batch normalisation and running statistics",
    "writes": "only the optimizer may change parameters: no statistics in frozen parameters, no "
    "Embedding(max_norm=...)",
    "mixes": "discreet.learn.dpsgd.fix(model) replaces batch normalisation; other modules must "
    "treat the examples one by one",
    "reduction": 'use a loss with reduction="none", or the plain mean or sum',
}


@final
@dataclass(frozen=True)
class Culprit:
    """One module and what it does wrong.

    ``module`` is the name in ``model.named_modules()``, ``""`` for the model's own code and
    ``"loss"`` for the loss function; ``type`` is its class.
    """

    module: str
    type: str
    kind: str
    evidence: str

    def __str__(self) -> str:
        where = self.module or "the model itself"
        return f"{where} ({self.type}): {_FINDINGS[self.kind]} [{self.evidence}]"


@final
@dataclass(frozen=True)
class IsolationReport:
    """The findings of :func:`check_isolation`.

    ``ok`` means that no probe found examples touching each other. That is evidence, not proof.
    ``probes`` names what was tried, ``skipped`` what could not be tried and why, and
    ``reduction`` is how a scalar loss was found to combine the examples. ``writes`` names
    buffers that a training pass changes, but in the same way whatever the examples are.
    """

    culprits: tuple[Culprit, ...]
    probes: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    reduction: str | None = None
    writes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.culprits

    def explain(self) -> str:
        """The findings, what to do about them, and what the probe cannot see."""
        if self.ok:
            lines = [f"No example was seen to depend on another ({', '.join(self.probes)})."]
        else:
            lines = ["Examples of one batch depend on each other:"]
            lines += [f"  - {culprit}" for culprit in self.culprits]
            kinds = [culprit.kind for culprit in self.culprits]
            advice = dict.fromkeys(_ADVICE[kind] for kind in kinds if kind in _ADVICE)
            lines += [f"  {text}." for text in advice]
        lines += [f"Not tried: {text}." for text in self.skipped]
        return "\n".join([*lines, _CAVEAT])

    def require(self) -> None:
        """Raise :class:`discreet.errors.NotApplicable` unless ``ok``.

        Clipping bounds what one example adds to the sum only if no other summand depends on it.
        """
        if not self.ok:
            raise NotApplicable(
                "the model mixes the examples of a batch, so clipping does not bound the "
                f"influence of one of them\n{self.explain()}"
            )
