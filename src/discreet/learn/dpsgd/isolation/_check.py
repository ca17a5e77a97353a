"""Probe a model for examples that depend on each other.

DP-SGD (SPEC S21) clips the gradient of every example and adds noise for the largest influence of
one of them. That is right only if the gradient of an example is a function of that example
alone. Batch normalisation breaks this, and so does anything else that looks along the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import nn

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd._tensors import Reading, close, readings, size_of
from discreet.learn.dpsgd.isolation._blame import Pairing, find_carriers, mixers
from discreet.learn.dpsgd.isolation._subject import (
    Batch,
    RunOutcome,
    Subject,
    TensorSpec,
    agree,
    copy_for_probing,
    describe,
    draw,
    floats,
    join,
    state_of,
    take,
)

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


_ROWS, _FEWER = 5, 3
_SPECIALS = (float("nan"), float("inf"))
# Beyond what a backward pass may cut gradients to.
_STEEP = 1e4


def check_isolation(
    model: nn.Module,
    *,
    inputs: TensorSpec | torch.Tensor | tuple[Any, ...] | dict[str, Any],
    targets: TensorSpec | torch.Tensor | tuple[Any, ...] | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    reduction: str | None = None,
) -> IsolationReport:
    """Look for any way in which one example of a batch can feel the others.

    ``inputs`` describes the examples: a :class:`TensorSpec`, or a tuple or dict of them for a
    model with several arguments. A tensor stands for its shape and type; its values are never
    read. ``loss(output, *targets)`` may return one loss for each example, or a scalar that must
    then be the sum or the mean (``reduction`` says which, otherwise it is found out).

    A copy of the model is run in double precision on made-up batches after ``train()`` was called
    on it, because training loops call that too. For one example, outputs, loss and gradients are
    compared while the others are replaced, scaled, copied from it, made NaN or infinite,
    reordered and removed; the gradients of all at once with those one by one; then buffers and
    attributes after different batches, and the answers
    to one batch after different earlier ones. Nothing is known about layer names. The model and
    torch's generators stay as they are.

    A probe refutes, it cannot prove: ``ok`` is evidence from made-up inputs.

    >>> report = check_isolation(
    ...     nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), inputs=TensorSpec((4,))
    ... )
    >>> report.ok, [(one.module, one.kind) for one in report.culprits]
    (False, [('1', 'mixes'), ('1', 'state')])
    >>> check_isolation(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), inputs=TensorSpec((4,))).ok
    True
    """
    if not isinstance(model, nn.Module):
        raise InvalidValue("model", model, "a torch.nn.Module")
    if loss is not None and not callable(loss):
        raise InvalidValue("loss", loss, "a function of the model's output and the targets")
    if reduction is not None:
        _validate.one_of("reduction", reduction, ("mean", "sum", "none"))
    subject = copy_for_probing(model, loss=loss, description=describe(inputs, targets))
    probe = _Probe(subject, reduction)
    probe.run()
    return probe.report()


@final
@dataclass
class _Probe:
    subject: Subject
    declared: str | None
    culprits: dict[tuple[str, str], Culprit] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    reduction: str | None = None
    writes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.one, self.two, self.later = (
            draw(self.subject.description, rows=_ROWS, seed=seed, double=self.subject.double)
            for seed in (1, 2, 3)
        )
        self.few = self._take(self.one, list(range(_FEWER)))
        self.base = self.subject.run(self.one)
        self.candidates: list[list[Reading]] = []

    def run(self) -> None:
        """Run every probe that still makes sense after the ones before."""
        self._parameters_stay()
        if self.culprits or not self._repeatable() or not self._readable():
            return
        self._vary_others()
        if not self.culprits:
            self._order()
            self._sizes()
        if not self.culprits:
            self._gradients()
            self._scalar_loss()
        self._state()

    def report(self) -> IsolationReport:
        """The findings so far."""
        return IsolationReport(
            tuple(self.culprits.values()),
            tuple(self.tried),
            tuple(self.skipped),
            self.reduction,
            tuple(self.writes),
        )

    # --- preparations

    def _take(self, batch: Batch, rows: list[int]) -> Batch:
        return take(self.subject.description, batch, rows)

    def _accuse(self, names: list[str], kind: str, evidence: str) -> None:
        for name in names:
            kind_of = "function"
            if name == "loss":
                if isinstance(self.subject.loss, nn.Module):
                    kind_of = type(self.subject.loss).__name__
            else:
                kind_of = type(self.subject.prototype.get_submodule(name)).__name__
            self.culprits.setdefault((name, kind), Culprit(name, kind_of, kind, evidence))

    def _parameters_stay(self) -> None:
        self.tried.append("writes")
        model = copy.deepcopy(self.subject.prototype)
        before = {name: (p._version, p.detach().clone()) for name, p in model.named_parameters()}
        self.subject.run(self.one, model=model)
        for name, parameter in model.named_parameters():
            version, value = before[name]
            kept = torch.equal(parameter.detach().nan_to_num(), value.nan_to_num())
            if parameter._version != version or not kept:
                self._accuse([name.rpartition(".")[0]], "writes", name)

    def _repeatable(self) -> bool:
        self.tried.append("repetition")
        again = self.subject.run(self.one)
        if agree(self.base.per_example, again.per_example, self.subject.fine):
            return True
        self._accuse([""], "unrepeatable", "two runs of one batch")
        return False

    def _readable(self) -> bool:
        values = self.base.per_example
        if not all(one.isfinite().all() for one in values):
            raise InvalidValue(
                "inputs",
                self.subject.description.specs(),
                "examples with finite outputs; low= and high= set the range of made-up values",
            )
        fewer = self.subject.run(self.few).per_example
        if len(fewer) != len(values):
            self._accuse([""], "batch size", f"{len(values)} or {len(fewer)} outputs")
            return False
        for one, other in zip(values, fewer, strict=True):
            self.candidates.append(readings(one, other, (_ROWS, _FEWER)))
            if not self.candidates[-1] and one.shape != other.shape:
                shapes = f"{tuple(one.shape)} for {_ROWS} examples, {tuple(other.shape)} for 3"
                self._accuse([""], "unreadable", shapes)
        moved = self.subject.run(self.two).per_example
        if agree(values, moved, self.subject.fine):
            self._accuse([""], "blind", "two different batches")
        return not self.culprits

    # --- comparisons of one example in two batches

    def _agrees(self, pairing: Pairing, first: RunOutcome, second: RunOutcome) -> bool:
        kept = []
        for one, other, candidates in zip(
            first.per_example, second.per_example, self.candidates, strict=True
        ):
            scale = size_of(one)
            if not candidates:
                if not close(one, other, scale=scale, tolerance=pairing.tolerance):
                    return False
                kept.append(candidates)
                continue
            kept.append(
                [
                    reading
                    for reading in candidates
                    if close(
                        reading.part(one, pairing.first_row, pairing.rows[0]),
                        reading.part(other, pairing.second_row, pairing.rows[1]),
                        scale=scale,
                        tolerance=pairing.tolerance,
                    )
                ]
            )
            if not kept[-1]:
                return False
        self.candidates = kept
        return True

    def _compare(self, pairing: Pairing, kind: str, evidence: str) -> bool:
        first, second = self.base, self.subject.run(pairing.second)
        if len(second.per_example) == len(first.per_example) and self._agrees(
            pairing, first, second
        ):
            return True
        names = mixers(self.subject, pairing, small=self.few, sizes=(_ROWS, _FEWER))
        self._accuse(names or ["loss" if self.subject.loss else ""], kind, evidence)
        return False

    def _vary_others(self) -> None:
        description = self.subject.description
        copies = [self._take(self.one, [row] * _ROWS) for row in range(_ROWS)]
        variants = {
            "others replaced": [self.two] * _ROWS,
            "others scaled": [floats(description, self.two, lambda x: 1000.0 * x)] * _ROWS,
            "others equal to it": copies,
        }
        if any(spec.dtype.is_floating_point for spec in description.specs()):
            for special in _SPECIALS:
                filled = floats(description, self.two, partial(torch.full_like, fill_value=special))
                variants[f"others {special}"] = [filled] * _ROWS
        for evidence, others in variants.items():
            self.tried.append(evidence)
            for row in (0, _ROWS - 1):
                second = join(description, self.one, row, others[row])
                pairing = Pairing(self.one, row, second, row, (_ROWS, _ROWS), self.subject.fine)
                try:
                    agrees = self._compare(pairing, "mixes", evidence)
                except (ValueError, RuntimeError, IndexError) as error:
                    self.skipped.append(f"{evidence}, because the model raised {error!r}")
                    break
                if not agrees:
                    break

    def _order(self) -> None:
        self.tried.append("order")
        order = [3, 0, 4, 1, 2]
        shuffled = self._take(self.one, order)
        self._vary_places(shuffled, order, "order", f"the order {order}")

    def _sizes(self) -> None:
        self.tried.append("batch size")
        for rows in ([0, 1, 2], [4], [3, 1], [2, 0, 4, 3]):
            evidence = f"{len(rows)} of {_ROWS} examples"
            try:
                self._vary_places(self._take(self.one, rows), rows, "batch size", evidence)
            except (ValueError, RuntimeError, IndexError) as error:
                self._accuse([""], "batch size", f"{evidence}: {error}")

    def _vary_places(self, batch: Batch, rows: list[int], kind: str, evidence: str) -> None:
        for place, row in enumerate(rows):
            pairing = Pairing(self.one, row, batch, place, (_ROWS, len(rows)), self.subject.coarse)
            if not self._compare(pairing, kind, evidence):
                return

    # --- gradients

    def _gradient(
        self, batch: Batch, row: int | range, rows: int, *, factor: float = 1.0
    ) -> list[torch.Tensor]:
        """The gradients of a fixed combination of all values that belong to some examples."""
        outcome = self.subject.run(batch)
        total = torch.zeros((), dtype=torch.float64)
        for one, candidates in zip(outcome.per_example, self.candidates, strict=True):
            if candidates and one.requires_grad:
                for at in [row] if isinstance(row, int) else row:
                    part = candidates[0].part(one, at, rows).reshape(-1).double()
                    weights = torch.arange(1, part.numel() + 1, dtype=torch.float64).cos()
                    total = total + factor * (weights * part).sum()
        return self._differentiate(total)

    def _differentiate(self, total: torch.Tensor) -> list[torch.Tensor]:
        parameters = list(self.subject.trainable().values())
        if not total.requires_grad:
            return [torch.zeros_like(one) for one in parameters]
        found = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
        return [gradient.to_dense() for gradient in found]

    def _gradients(self) -> None:
        if not self.subject.trainable():
            self.skipped.append("gradients, because no parameter is trainable")
            return
        self.tried.append("gradients")
        for row in (0, _ROWS - 1):
            second = join(self.subject.description, self.one, row, self.two)
            one = self._gradient(self.one, row, _ROWS)
            other = self._gradient(second, row, _ROWS)
            self._match(one, other, self.subject.fine, "others replaced")
        one = self._gradient(self.one, 0, _ROWS)
        other = self._gradient(self.few, 0, _FEWER)
        self._match(one, other, self.subject.coarse, f"{_FEWER} of {_ROWS} examples")
        # A backward pass or a hook may look at the gradients of all examples at once.
        for factor in (1.0, _STEEP):
            together = self._gradient(self.one, range(_ROWS), _ROWS, factor=factor)
            alone = [
                self._gradient(self._take(self.one, [row]), 0, 1, factor=factor)
                for row in range(_ROWS)
            ]
            summed = [torch.stack(parts).sum(0) for parts in zip(*alone, strict=True)]
            self._match(together, summed, self.subject.coarse, "all at once and one by one")

    def _match(
        self, one: list[torch.Tensor], other: list[torch.Tensor], tolerance: float, evidence: str
    ) -> None:
        scale = max(map(size_of, one))
        names = [
            name
            for name, a, b in zip(self.subject.trainable(), one, other, strict=True)
            if not close(a, b, scale=scale, tolerance=tolerance)
        ]
        if names:
            modules = dict.fromkeys(name.rpartition(".")[0] for name in names)
            self._accuse(list(modules), "gradient", f"{evidence}: {', '.join(names)}")

    # --- a loss that was already reduced

    def _scalar_loss(self) -> None:
        if self.base.loss is None or self.base.loss.dim() > 0:
            if self.declared in ("mean", "sum"):
                self.reduction = "none"
            return
        self.tried.append("reduction of the loss")
        possible = ["mean", "sum"] if self.declared in (None, "none") else [self.declared]
        for batch, rows in ((self.one, _ROWS), (self.two, _ROWS), (self.few, _FEWER)):
            whole = self._loss(batch)
            single = sum(
                (self._loss(self._take(batch, [row])) for row in range(rows)), torch.zeros(())
            )
            whole_gradient = self._differentiate(whole)
            single_gradient = self._differentiate(single)
            scale = max([size_of(single), *map(size_of, single_gradient)])
            possible = [
                name
                for name in possible
                if self._adds_up(
                    [whole, *whole_gradient],
                    [single, *single_gradient],
                    rows if name == "mean" else 1,
                    scale,
                )
            ]
        if not possible:
            self._accuse(["loss"], "reduction", "one batch against its examples one by one")
        self.reduction = possible[0] if possible else None

    def _loss(self, batch: Batch) -> torch.Tensor:
        loss = self.subject.run(batch).loss
        assert loss is not None
        return loss.double()

    def _adds_up(
        self, whole: list[torch.Tensor], single: list[torch.Tensor], factor: int, scale: float
    ) -> bool:
        return all(
            close(factor * one.double(), other.double(), scale=scale, tolerance=self.subject.coarse)
            for one, other in zip(whole, single, strict=True)
        )

    # --- what stays behind

    def _state(self) -> None:
        self.tried.append("state")
        after = []
        for batch in (self.one, self.two):
            model = self.subject.fresh()
            self.subject.run(batch, model=model)
            state = state_of(model)
            self._note_writes(model)
            after.append((state, self.subject.run(self.later, model=model).per_example))
        (one, answer), (other, different_answer) = after
        for (module, key), values in one.items():
            if not agree(values, other.get((module, key), []), self.subject.fine):
                self._accuse([module], "state", f"{key} after different batches")
        self.tried.append("buffers after other sizes")
        self._counted_rows()
        accused = {name for name, kind in self.culprits if kind == "state"}
        self.writes = [name for name in self.writes if name.rpartition(".")[0] not in accused]
        self.tried.append("earlier batches")
        if not agree(answer, different_answer, self.subject.fine):
            names = find_carriers(self.subject, (self.one, self.two), self.later)
            self._accuse(names, "carried", "one batch after different earlier batches")

    def _counted_rows(self) -> None:
        """Buffers go out with the model: how many examples a batch had must not show in them."""
        after = []
        for batch in (self.one, self.few):
            model = self.subject.fresh()
            self.subject.run(batch, model=model)
            after.append(dict(model.named_buffers()))
        for name, buffer in after[0].items():
            other = after[1].get(name)
            if other is None or not agree([buffer], [other], self.subject.coarse):
                module, _, key = name.rpartition(".")
                sizes = f"{_ROWS} or {_FEWER} examples"
                self._accuse([module], "state", f"{key} after batches of {sizes}")

    def _note_writes(self, model: nn.Module) -> None:
        before = dict(self.subject.prototype.named_buffers())
        for name, buffer in model.named_buffers():
            kept = name in before and torch.equal(buffer, before[name])
            if not kept and name not in self.writes:
                self.writes.append(name)
