"""Normalisation layers: gradients as small as the layer, formed directly.

The gain's gradient is the output gradient times the normalised input, summed over an example's
positions; the shift's is the output gradient, summed likewise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.errors import NotApplicable
from discreet.learn.dpsgd.engine._forms import pieces
from discreet.learn.dpsgd.engine._linear import Kept
from discreet.learn.dpsgd.engine._recorder import NoRule, Recorder, Rule


def named_site(
    recorder: Recorder, rule: str, func: Any, data: Tensor, *affine: Tensor | None
) -> object:
    """Name the use of an affine layer, or raise where its input is made of parameters."""
    if recorder.source_of(data) is not None:
        raise NoRule(func, recorder.names_in((data, *affine), {}))
    site: object = None
    for tensor in affine:
        source = recorder.source_of(tensor)
        if source is not None:
            site = recorder.site(rule, source)
    return site


def plain(recorder: Recorder, tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or recorder.source_of(tensor) is None else tensor.detach()


def layer_norm(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer normalisation over the last axes."""
    site = named_site(recorder, "layer norm", func, input, weight, bias)
    features = len(normalized_shape)
    axis = recorder.axes.find(input, leading=input.ndim - features, site=site)
    by_weight, by_bias = recorder.source_of(weight), recorder.source_of(bias)
    gain, shift = plain(recorder, weight), plain(recorder, bias)
    kept = Kept(input, site)
    statistics: list[Tensor] = []

    def run() -> Tensor:
        result, mean, rstd = torch.native_layer_norm(
            input, list(normalized_shape), gain, shift, eps
        )
        statistics.extend((mean.detach(), rstd.detach()))
        return result

    def receive(gradient: Tensor) -> None:
        if by_weight is not None:
            parts = [
                recorder.by_units(recorder.axes.rows_first(part, axis), features)
                for part in (kept.take().detach(), *statistics, gradient)
            ]
            recorder.add_values(by_weight, gains(*parts, features=features))
        if by_bias is not None:
            add_summed(recorder, by_bias, recorder.axes.rows_first(gradient, axis), features)

    return recorder.record(run, input, receive)


def gains(data: Tensor, mean: Tensor, rstd: Tensor, gradient: Tensor, *, features: int) -> Tensor:
    """Gradient of the gain for each unit, a few units at a time so that they stay in the cache."""
    if data.ndim == features + 1:
        return (data - mean).mul_(rstd).mul_(gradient)
    units, terms = data.shape[:2]
    kind = torch.promote_types(data.dtype, mean.dtype)
    values = torch.empty(units, 1, math.prod(data.shape[2:]), dtype=kind, device=data.device)
    scales = rstd.reshape(units, 1, terms).to(kind)
    places = pieces(units, 2 * terms * values.shape[2])
    room = values.new_empty(places[0].stop if places else 0, *data.shape[1:])
    for piece in places:
        product = room[: min(piece.stop, units) - piece.start]
        torch.sub(data[piece], mean[piece], out=product).mul_(gradient[piece])
        torch.bmm(scales[piece], product.flatten(2), out=values[piece])
    return values.view(units, *data.shape[2:])


def add_summed(recorder: Recorder, source: Any, rows: Tensor, features: int) -> None:
    """Add gradients (rows, ..., *features), summed over all positions of a unit."""
    values = recorder.by_units(rows, features)
    recorder.add_values(source, values.sum(1) if values.ndim == features + 2 else values)


def rms_norm(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Root-mean-square normalisation over the last axes."""
    site = named_site(recorder, "rms norm", func, input, weight)
    features = len(normalized_shape)
    axis = recorder.axes.find(input, leading=input.ndim - features, site=site)
    normalized = F.rms_norm(input, list(normalized_shape), None, eps)
    source = recorder.source_of(weight)
    assert source is not None
    gain = source.tensor.detach()

    kept = Kept(normalized, site)

    def receive(gradient: Tensor) -> None:
        product = kept.take().detach() * gradient
        add_summed(recorder, source, recorder.axes.rows_first(product, axis), features)

    return recorder.record(lambda: normalized * gain, normalized, receive)


def group_norm(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Group normalisation of (examples, channels, ...)."""
    site = named_site(recorder, "group norm", func, input, weight, bias)
    recorder.axes.first(input, site=site)
    by_weight, by_bias = recorder.source_of(weight), recorder.source_of(bias)
    gain, shift = plain(recorder, weight), plain(recorder, bias)
    examples, channels = input.shape[:2]
    positions = math.prod(input.shape[2:])
    kept = Kept(input, site)
    statistics: list[Tensor] = []

    def run() -> Tensor:
        if not input.numel():
            return F.group_norm(input, num_groups, gain, shift, eps)
        result, mean, rstd = torch.native_group_norm(
            input.contiguous(), gain, shift, examples, channels, positions, num_groups, eps
        )
        statistics.extend((mean.detach(), rstd.detach()))
        return result  # not a view of it: an operation in place on a view drops its hooks

    def receive(gradient: Tensor) -> None:
        if not statistics:
            return
        flat = gradient.reshape(examples * channels, 1, positions)
        total = flat.sum(2).view(examples, channels)
        if by_weight is not None:
            images = kept.take().detach().reshape(examples * channels, positions, 1)
            products = torch.bmm(flat, images).view(examples, channels)
            mean, rstd = (
                statistic.view(examples, num_groups)
                .repeat_interleave(channels // num_groups, dim=1)
                .to(gradient.dtype)
                for statistic in statistics
            )
            recorder.add_rows(by_weight, products.sub_(mean * total).mul_(rstd))
        if by_bias is not None:
            recorder.add_rows(by_bias, total)

    return recorder.record(run, input, receive)


def instance_norm(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor:
    """Instance normalisation; with running statistics only in evaluation mode."""
    if use_input_stats and running_mean is not None:
        raise NotApplicable(
            "instance norm with track_running_stats=True stores statistics of the private "
            "batch in its buffers without noise; dpsgd.fix removes them"
        )
    if use_input_stats:
        return group_norm(recorder, func, input, input.shape[1], weight, bias, eps)
    return fixed_statistics(recorder, func, input, running_mean, running_var, weight, bias, eps)


def batch_norm(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalisation with fixed statistics; those of the batch mix its examples."""
    if training:
        raise NotApplicable(
            "batch norm in training mode mixes the examples of a batch, so no example has a "
            "gradient of its own; dpsgd.fix replaces it"
        )
    return fixed_statistics(recorder, func, input, running_mean, running_var, weight, bias, eps)


def fixed_statistics(
    recorder: Recorder,
    func: Any,
    data: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalise (examples, channels, ...) with given statistics, then gain and shift."""
    site = named_site(recorder, "fixed norm", func, data, weight, bias)
    recorder.axes.first(data, site=site)
    normalized = F.batch_norm(data, mean, variance, None, None, False, 0.0, eps)
    by_weight, by_bias = recorder.source_of(weight), recorder.source_of(bias)
    wide = (1, -1, *(1,) * (data.ndim - 2))
    gain, shift = plain(recorder, weight), plain(recorder, bias)

    def run() -> Tensor:
        result = normalized if gain is None else normalized * gain.view(wide)
        return result if shift is None else result + shift.view(wide)

    def summed(values: Tensor) -> Tensor:
        return values.flatten(2).sum(2) if values.ndim > 2 else values

    kept = Kept(normalized, site)

    def receive(gradient: Tensor) -> None:
        if by_weight is not None:
            recorder.add_rows(by_weight, summed(kept.take().detach() * gradient))
        if by_bias is not None:
            recorder.add_rows(by_bias, summed(gradient))

    return recorder.record(run, normalized, receive)


RULES: dict[Any, Rule] = {
    F.layer_norm: layer_norm,
    torch.layer_norm: lambda recorder, func, *args, **kwargs: layer_norm(
        recorder, func, *args[:5], **{k: v for k, v in kwargs.items() if k != "cudnn_enable"}
    ),
    F.rms_norm: rms_norm,
    F.group_norm: group_norm,
    F.instance_norm: instance_norm,
    F.batch_norm: batch_norm,
}
