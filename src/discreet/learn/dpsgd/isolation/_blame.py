"""Which module lets the examples of a batch touch.

Two runs share one example and differ in all others. In the second run every tensor that enters
or leaves a module is compared, for that one example, with the first run, and is then put back
to what it was there. Whatever differs can therefore only come from the code in between, and all
culprits are found at once, not just the first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import nn

from discreet.learn.dpsgd._tensors import Reading, close, readings, size_of, tensors
from discreet.learn.dpsgd.isolation._subject import Batch, Subject, agree

# The n-th call of a module, and whether its input or its output.
_Place = tuple[str, int, str]


@final
@dataclass(frozen=True)
class Pairing:
    """Two batches with one example in common, and where it is in each."""

    first: Batch
    first_row: int
    second: Batch
    second_row: int
    rows: tuple[int, int]
    tolerance: float


@final
@dataclass
class _Tape:
    """Copies of all tensors at the doors of all modules, in the order of the run."""

    places: dict[_Place, list[torch.Tensor]] = field(default_factory=dict)

    def visit(self, place: _Place, found: list[torch.Tensor], _: str) -> None:
        self.places[place] = [one.detach().clone() for one in found]


@final
@dataclass
class _Editor:
    """Compares with a tape, restores what differs and notes in whose code it arose."""

    tape: _Tape
    small: _Tape
    sizes: tuple[int, int]
    pairing: Pairing
    blamed: list[str] = field(default_factory=list)

    def visit(self, place: _Place, found: list[torch.Tensor], responsible: str) -> None:
        before, shapes = self.tape.places.get(place), self.small.places.get(place)
        if before is None or shapes is None or not len(before) == len(found) == len(shapes):
            return
        for one, known, smaller in zip(found, before, shapes, strict=True):
            if not self._agrees(one, known, smaller) and responsible not in self.blamed:
                self.blamed.append(responsible)

    def _agrees(self, one: torch.Tensor, known: torch.Tensor, smaller: torch.Tensor) -> bool:
        pairing, scale = self.pairing, size_of(known)
        candidates: list[Reading | None] = [*readings(known, smaller, self.sizes)]
        if not candidates:
            if known.shape != smaller.shape or known.shape != one.shape:
                return True  # no reading: nothing can be said about a single example
            candidates = [None]
        for reading in candidates:
            here, there = self._parts(one, known, reading)
            if close(there, here, scale=scale, tolerance=pairing.tolerance):
                return True
        here, there = self._parts(one, known, candidates[0])
        if here.shape == there.shape:
            _put_back(here, there)
        return False

    def _parts(
        self, one: torch.Tensor, known: torch.Tensor, reading: Reading | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if reading is None:
            return one, known
        pairing = self.pairing
        return (
            reading.part(one, pairing.second_row, pairing.rows[1]),
            reading.part(known, pairing.first_row, pairing.rows[0]),
        )


def _put_back(here: torch.Tensor, there: torch.Tensor) -> None:
    try:
        here.copy_(there)
    except RuntimeError:
        # An expanded tensor cannot be written to; later culprits may then hide behind this one.
        return


def _watch(model: nn.Module, visitor: _Tape | _Editor) -> None:
    calls: Counter[str] = Counter()
    inside: list[tuple[str, int]] = []

    def enters(name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            owner = inside[-1][0] if inside else name
            number = calls[name]
            calls[name] += 1
            inside.append((name, number))
            visitor.visit((name, number, "input"), list(tensors((args, kwargs))), owner)

        return hook

    def leaves(_: nn.Module, __: Any, output: Any) -> None:
        name, number = inside.pop()
        visitor.visit((name, number, "output"), list(tensors(output)), name)

    for name, module in model.named_modules():
        module.register_forward_pre_hook(enters(name), with_kwargs=True)
        module.register_forward_hook(leaves)


def _record(subject: Subject, batch: Batch, model: nn.Module | None = None) -> _Tape:
    tape = _Tape()
    model = subject.fresh() if model is None else model
    _watch(model, tape)
    subject.run(batch, model=model)
    return tape


def mixers(
    subject: Subject, pairing: Pairing, *, small: Batch, sizes: tuple[int, int]
) -> list[str]:
    """Names of the modules in whose own code the shared example feels the others."""
    tape = _record(subject, pairing.first)
    shapes = _record(subject, small)
    editor = _Editor(tape, shapes, sizes, pairing)
    model = subject.fresh()
    _watch(model, editor)
    # Without a graph, so that the parts may be written to.
    subject.run(pairing.second, model=model, graph=False)
    return editor.blamed


def find_carriers(subject: Subject, histories: tuple[Batch, Batch], batch: Batch) -> list[str]:
    """The first module that answers one batch differently after different earlier batches."""
    tapes = []
    for earlier in histories:
        model = subject.fresh()
        subject.run(earlier, model=model)
        tapes.append(_record(subject, batch, model))
    one, other = (tape.places for tape in tapes)
    for place, outputs in one.items():
        name, number, door = place
        entrance = (name, number, "input")
        if (
            door == "output"
            and place in other
            and not agree(outputs, other[place], subject.fine)
            and agree(one[entrance], other[entrance], subject.fine)
        ):
            return [name]
    return [""]
