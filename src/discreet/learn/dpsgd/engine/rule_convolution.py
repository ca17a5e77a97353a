"""Convolutions: a linear map on patches, shared by all positions.

The gradient of an example is the product of its output gradient (channels x positions) with
its patches (positions x kernel entries); for a transposed convolution the two sides change
roles. Where the patches come from is in :mod:`.patches`. Gradients are formed a few examples at
a time and their norms taken while they are in the cache. Then they are kept, or, where memory
costs more than a second product, forgotten; the weighted sum then comes from torch's own
fused product.
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from discreet.learn.dpsgd.engine.contributions import (
    MANY_TERMS,
    Contribution,
    PerExample,
    Versions,
    cheapest_form,
    erased,
    pieces,
)
from discreet.learn.dpsgd.engine.patches import Geometry, Patches
from discreet.learn.dpsgd.engine.recorder import NoRule, Recorder, Rule
from discreet.learn.dpsgd.engine.rounding import bounded_norms, lengths, patch_spread
from discreet.learn.dpsgd.engine.rule_linear import Kept
from discreet.learn.dpsgd.engine.scratch import Scratch
from discreet.learn.dpsgd.engine.sources import Source

__all__ = ["RULES"]


@final
class KernelRows:
    """Gradients of a kernel, one tensor (examples, channels, width) for each of its slices."""

    def __init__(self, slices: list[Tensor], norms: Tensor, patches: Patches) -> None:
        self.slices = slices
        self._norms = norms
        self._patches = patches

    def squared_norms(self) -> Tensor:
        return self._norms.square()

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        sums = [torch.mv(part.flatten(1).t(), weights).view(part.shape[1:]) for part in self.slices]
        kernel = self._patches.kernel([part.unsqueeze(0) for part in sums])
        total.add_(kernel.view(total.shape), alpha=factor)

    def per_example(self) -> Tensor:
        return self._patches.kernel(self.slices)

    def without(self, removed: Tensor) -> KernelRows:
        slices = [erased(part, removed) for part in self.slices]
        return KernelRows(slices, erased(self._norms, removed), self._patches)


@final
class Convolved:
    """The use of a kernel: ``maps`` (examples, channels, *positions) against patches of ``images``.

    For a convolution the maps are output gradients and the images inputs; transposed, the
    maps are inputs and the images output gradients.
    """

    def __init__(
        self,
        maps: Tensor,
        images: Tensor,
        geometry: Geometry,
        shape: torch.Size,
        norms: Tensor | None = None,
    ) -> None:
        self.maps = maps
        self.images = images
        self.geometry = geometry
        self.shape = shape
        self.versions = Versions(maps, images)
        self._norms = norms

    def settled(self, units: int, scratch: Scratch) -> Convolved | KernelRows | PerExample:
        """Return the cheapest form, with its norms; rows of one unit are added before that."""
        patches = Patches(self.geometry, self.maps.shape, self.images.shape, scratch)
        examples, channels = self.maps.shape[:2]
        count, width = patches.width()
        terms = math.prod(self.maps.shape[2:])
        store = examples != units
        store = store or cheapest_form(examples, terms, channels, count * width) == "store"
        norms = self.maps.new_zeros(examples)
        # Patches are written and read once each, products several times.
        places = pieces(examples, max(patches.size // 2, channels * count * width))
        room = examples if store else places[0].stop
        slices = [
            self.maps.new_empty(room, channels, width)
            if store
            else scratch.take(f"slice {at}", (room, channels, width), self.maps)
            for at in range(count)
        ]
        for piece in places:
            size = min(piece.stop, examples) - piece.start
            targets = [part[piece] if store else part[:size] for part in slices]
            patches.products(self.maps[piece], self.images[piece], targets)
            norms[piece] = torch.stack([lengths(part) for part in targets]).square_().sum(0)
        norms.sqrt_()
        if not store or (terms < MANY_TERMS and len(places) > 1):
            # The weighted sum may form them once more, with other roundings.
            spreads = patch_spread(self.maps, self.images, self.geometry.overlap())
            norms = bounded_norms(norms, spreads, terms=terms)
        if not store:
            return Convolved(self.maps, self.images, self.geometry, self.shape, norms)
        if examples == units:
            return KernelRows(slices, norms, patches)
        return PerExample(patches.kernel(slices).view(units, -1, *self.shape).sum(1))

    def squared_norms(self) -> Tensor:
        assert self._norms is not None
        return self._norms.square()

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        geometry = self.geometry
        maps = self.maps * weights.view(-1, *(1,) * (self.maps.ndim - 1))
        images = self.images
        before = geometry.before
        if geometry.before != geometry.after:
            images, before = geometry.padded(images), (0,) * len(before)
        shape = (self.maps.shape[1], self.images.shape[1] // geometry.groups, *geometry.kernel)
        _, kernel, _ = torch.ops.aten.convolution_backward(
            maps,
            images,
            images.new_empty(1).expand(shape),
            None,
            geometry.stride,
            before,
            geometry.dilation,
            False,
            (0,) * len(before),
            geometry.groups,
            (False, True, False),
        )
        total.add_(kernel.view(self.shape), alpha=factor)

    def per_example(self) -> Tensor:
        patches = Patches(self.geometry, self.maps.shape, self.images.shape)
        count, width = patches.width()
        examples, channels = self.maps.shape[:2]
        slices = [self.maps.new_empty(examples, channels, width) for _ in range(count)]
        patches.products(self.maps, self.images, slices)
        return patches.kernel(slices)

    def without(self, removed: Tensor) -> Convolved:
        maps, images = erased(self.maps, removed), erased(self.images, removed)
        norms = None if self._norms is None else erased(self._norms, removed)
        return Convolved(maps, images, self.geometry, self.shape, norms)


@final
class Deferred:
    """The use of a kernel whose gradients are formed once, later than the use became known.

    Until then its factors are kept as they are; if they were written to, settling raises.
    """

    def __init__(self, use: Convolved, units: int, scratch: Scratch) -> None:
        self._use: Convolved | None = use
        self._units = units
        self._scratch = scratch
        self._settled: Convolved | KernelRows | PerExample | None = None

    @property
    def versions(self) -> Versions | None:
        part = self._use or self._settled
        return getattr(part, "versions", None)

    def settled(self) -> Convolved | KernelRows | PerExample:
        """Form the gradients if that was not done yet, and let go of what is no longer needed."""
        if self._settled is None:
            assert self._use is not None
            self._use.versions.check()
            with torch.no_grad():
                self._settled = self._use.settled(self._units, self._scratch)
            self._use = None
        return self._settled

    def squared_norms(self) -> Tensor:
        return self.settled().squared_norms()

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        self.settled().add_to(total, weights, factor)

    def per_example(self) -> Tensor:
        return self.settled().per_example()

    def without(self, removed: Tensor) -> Contribution:
        return self.settled().without(removed)


def convolution(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: str | int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Tensor:
    """Conv1d, Conv2d and Conv3d with any stride, padding, dilation and groups."""
    axes = weight.ndim - 2
    kernel = tuple(weight.shape[2:])
    holes = spread(dilation, axes)
    if isinstance(padding, str):
        total = [
            h * (k - 1) if padding == "same" else 0 for h, k in zip(holes, kernel, strict=True)
        ]
        before = tuple(t // 2 for t in total)
        after = tuple(t - t // 2 for t in total)
    else:
        before = after = spread(padding, axes)
    geometry = Geometry(kernel, spread(stride, axes), before, after, holes, groups, False)
    options = (stride, padding, dilation, groups)
    return watched(recorder, func, input, weight, bias, geometry, options)


def transposed(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dilation: int | tuple[int, ...] = 1,
) -> Tensor:
    """ConvTranspose1d, 2d and 3d."""
    axes = weight.ndim - 2
    zeros = spread(padding, axes)
    geometry = Geometry(
        tuple(weight.shape[2:]),
        spread(stride, axes),
        zeros,
        zeros,
        spread(dilation, axes),
        groups,
        True,
    )
    options = (stride, padding, output_padding, groups, dilation)
    return watched(recorder, func, input, weight, bias, geometry, options)


def watched(
    recorder: Recorder,
    func: Any,
    data: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    options: tuple[Any, ...],
) -> Tensor:
    """Run a convolution of either kind and listen for its output gradient."""
    by_weight, by_bias = recorder.source_of(weight), recorder.source_of(bias)
    if recorder.source_of(data) is not None or data.ndim != weight.ndim:
        raise NoRule(func, recorder.names_in((data, weight, bias), {}))
    site: object = None
    for source in (by_weight, by_bias):
        if source is not None:
            site = recorder.site("convolution", source)
    recorder.axes.first(data, site=site)
    plain_weight = weight if by_weight is None else weight.detach()
    plain_bias = bias if bias is None or by_bias is None else bias.detach()
    kept = Kept(data, site)
    waiting: list[Deferred] = []
    later = data.requires_grad

    def receive(gradient: Tensor) -> None:
        if by_bias is not None:
            recorder.add_rows(by_bias, gradient.flatten(2).sum(2))
        if by_weight is not None and recorder.units:
            use = used(by_weight, gradient, kept.take().detach(), geometry)
            part = Deferred(use, recorder.units, recorder.scratch)
            recorder.add(by_weight, part)
            if later:
                waiting.append(part)
            else:
                part.settled()

    def passed(_: Tensor) -> None:
        while waiting:
            waiting.pop().settled()

    if later and by_weight is not None:
        # The layer's own backward pass takes working memory: gradients that are kept are formed
        # once that is over.
        data.register_hook(passed)  # type: ignore[no-untyped-call]
    return recorder.tap(lambda: func(data, plain_weight, plain_bias, *options), data, receive)


def used(source: Source, gradient: Tensor, inputs: Tensor, geometry: Geometry) -> Convolved:
    """What the gradients of a kernel are made of."""
    maps, images = (inputs, gradient) if geometry.transposed else (gradient, inputs)
    kind = source.tensor.dtype
    return Convolved(maps.to(kind), images.to(kind), geometry, source.tensor.shape)


def spread(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """One number for every axis."""
    if isinstance(value, int):
        return (value,) * axes
    return tuple(value) * axes if len(value) == 1 else tuple(value)


RULES: dict[Any, Rule] = {
    torch.conv1d: convolution,
    torch.conv2d: convolution,
    torch.conv3d: convolution,
    torch.conv_transpose1d: transposed,
    torch.conv_transpose2d: transposed,
    torch.conv_transpose3d: transposed,
}
