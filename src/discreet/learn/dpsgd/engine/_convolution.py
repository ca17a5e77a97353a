"""Convolutions: a linear map on patches, shared by all positions.

The gradient of an example is the product of its output gradient (channels x positions) with
its patches (positions x kernel entries); for a transposed convolution the two sides change
roles. Gradients are formed a few examples at a time and their norms taken while they are in the
cache. Then they are kept, or, where memory costs more than a second product, forgotten; the
weighted sum then comes from torch's own fused product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.learn.dpsgd.engine._forms import (
    MANY_TERMS,
    PerExample,
    Versions,
    bounded_norms,
    cheapest_form,
    erase_rows,
    lengths,
    patch_spread,
    pieces,
)
from discreet.learn.dpsgd.engine._linear import Kept
from discreet.learn.dpsgd.engine._recorder import NoRule, Recorder, Rule


@dataclass(frozen=True)
class Geometry:
    """How a convolution slides; ``before`` and ``after`` are the zeros added on each side."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool

    def padded(self, images: Tensor) -> Tensor:
        """Return the images with their zeros, contiguous."""
        sides = [side for pair in zip(self.before, self.after, strict=True) for side in pair[::-1]]
        return F.pad(images, sides[::-1]).contiguous() if any(sides) else images.contiguous()

    def overlap(self) -> int:
        """Return in how many patches an entry of an image can be."""
        steps = [s // math.gcd(s, h) for s, h in zip(self.stride, self.dilation, strict=True)]
        return math.prod(-(-k // step) for k, step in zip(self.kernel, steps, strict=True))

    def patches(self, images: Tensor, positions: tuple[int, ...]) -> Tensor:
        """Copy the patches (examples * groups, positions, kernel entries * channels of a group).

        From images with the channels innermost, where whole rows of a patch lie side by side.
        """
        examples, channels, *sizes = images.shape
        inner = range(len(sizes))
        # A transposed convolution with output padding reaches beyond its images.
        needed = [
            (positions[at] - 1) * self.stride[at] + (self.kernel[at] - 1) * self.dilation[at] + 1
            for at in inner
        ]
        framed = [max(needed[at], sizes[at] + self.before[at] + self.after[at]) for at in inner]
        last = images.movedim(1, -1)
        if framed == sizes:
            last = last.contiguous()
        else:
            room = images.new_zeros(examples, *framed, channels)
            place = [slice(self.before[at], self.before[at] + sizes[at]) for at in inner]
            room[(slice(None), *place)] = last
            last = room
        per_example, *steps, _ = last.stride()
        width = channels // self.groups
        view = last.as_strided(
            (examples, self.groups, *positions, *self.kernel, width),
            (
                per_example,
                width,
                *(step * jump for step, jump in zip(steps, self.stride, strict=True)),
                *(step * hole for step, hole in zip(steps, self.dilation, strict=True)),
                1,
            ),
        )
        return view.reshape(examples * self.groups, math.prod(positions), -1)


@final
class Convolved:
    """The use of a kernel: ``maps`` (examples, channels, *positions) against patches of ``images``.

    For a convolution the maps are output gradients and the images inputs; transposed, the
    maps are inputs and the images output gradients. ``formed`` are the gradients, if they are
    kept, as :meth:`form` leaves them.
    """

    def __init__(
        self,
        maps: Tensor,
        images: Tensor,
        geometry: Geometry,
        shape: torch.Size,
        norms: Tensor | None = None,
        formed: Tensor | None = None,
    ) -> None:
        self.maps = maps
        self.images = images
        self.geometry = geometry
        self.shape = shape
        self.versions = Versions(*((maps, images) if formed is None else ()))
        self._norms = norms
        self._formed = formed

    def choose_form(self, units: int) -> Convolved | PerExample:
        """Return the cheapest form, with its norms; rows of one unit are added before that."""
        examples, channels = self.maps.shape[:2]
        width = self.images.shape[1] // self.geometry.groups * math.prod(self.geometry.kernel)
        terms = math.prod(self.maps.shape[2:])
        store = examples != units
        store = store or cheapest_form(examples, terms, channels, width) == "store"
        # Patches are written and read once each, products several times.
        places = pieces(examples, max(self.geometry.groups * width * terms // 2, channels * width))
        norms = self.maps.new_empty(examples)
        formed = self.maps.new_empty(examples if store else 0, channels, width)
        for piece in places:
            part = self.form(piece)
            norms[piece] = lengths(part)
            if store:
                formed[piece] = part
        if examples != units:
            return PerExample(self._kernel(formed).view(units, -1, *self.shape).sum(1))
        if not store or (terms < MANY_TERMS and len(places) > 1):
            # The weighted sum may form them once more, with other roundings.
            spreads = patch_spread(self.maps, self.images, self.geometry.overlap())
            norms = bounded_norms(norms, spreads, terms=terms)
        if store:  # the factors may go
            none = self.maps.new_empty(0)
            return Convolved(none, none, self.geometry, self.shape, norms, formed)
        return Convolved(self.maps, self.images, self.geometry, self.shape, norms)

    def form(self, piece: slice) -> Tensor:
        """Return gradients (examples, channels of maps, kernel entries * channels of a group)."""
        maps = self.maps[piece]
        groups, positions = self.geometry.groups, maps.shape[2:]
        rows = maps.reshape(maps.shape[0] * groups, -1, math.prod(positions))
        products = torch.bmm(rows, self.geometry.patches(self.images[piece], tuple(positions)))
        return products.view(*maps.shape[:2], -1)

    def _kernel(self, formed: Tensor) -> Tensor:
        """Bring what was formed into the order of the kernel."""
        wide = formed.view(*formed.shape[:2], *self.geometry.kernel, -1).movedim(-1, 2)
        return wide.reshape(-1, *self.shape)

    def squared_norms(self) -> Tensor:
        assert self._norms is not None
        return self._norms.square()

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        if self._formed is not None:
            part = torch.mv(self._formed.flatten(1).t(), weights).view(1, *self._formed.shape[1:])
            total.add_(self._kernel(part)[0], alpha=factor)
            return
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
        return self._kernel(self.form(slice(None)) if self._formed is None else self._formed)

    def without(self, removed: Tensor) -> Convolved:
        norms = None if self._norms is None else erase_rows(self._norms, removed)
        if self._formed is not None:
            formed = erase_rows(self._formed, removed)
            return Convolved(self.maps, self.images, self.geometry, self.shape, norms, formed)
        maps, images = erase_rows(self.maps, removed), erase_rows(self.images, removed)
        return Convolved(maps, images, self.geometry, self.shape, norms)


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
    holes = per_axis(dilation, axes)
    if isinstance(padding, str):
        total = [
            h * (k - 1) if padding == "same" else 0 for h, k in zip(holes, kernel, strict=True)
        ]
        before = tuple(t // 2 for t in total)
        after = tuple(t - t // 2 for t in total)
    else:
        before = after = per_axis(padding, axes)
    geometry = Geometry(kernel, per_axis(stride, axes), before, after, holes, groups, False)
    options = (stride, padding, dilation, groups)
    return record_convolution(recorder, func, input, weight, bias, geometry, options)


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
    zeros = per_axis(padding, axes)
    geometry = Geometry(
        tuple(weight.shape[2:]),
        per_axis(stride, axes),
        zeros,
        zeros,
        per_axis(dilation, axes),
        groups,
        True,
    )
    options = (stride, padding, output_padding, groups, dilation)
    return record_convolution(recorder, func, input, weight, bias, geometry, options)


def record_convolution(
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

    def receive(gradient: Tensor) -> None:
        if by_bias is not None:
            recorder.add_rows(by_bias, gradient.flatten(2).sum(2))
        if by_weight is not None and recorder.units:
            kind = by_weight.kind
            maps, images = gradient.to(kind), kept.take().detach().to(kind)
            if geometry.transposed:
                maps, images = images, maps
            use = Convolved(maps, images, geometry, by_weight.tensor.shape)
            with torch.no_grad():
                recorder.add(by_weight, use.choose_form(recorder.units))

    return recorder.record(lambda: func(data, plain_weight, plain_bias, *options), data, receive)


def per_axis(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
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
