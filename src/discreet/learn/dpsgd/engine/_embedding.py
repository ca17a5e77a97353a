"""Embeddings: an example's gradient touches only the rows that it looked up."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from discreet.errors import NotApplicable
from discreet.learn.dpsgd.engine._forms import Lookup
from discreet.learn.dpsgd.engine._recorder import NoRule, Recorder, Rule


def refuse(site: object, *, max_norm: float | None, by_frequency: bool, sparse: bool) -> None:
    """Raise for options under which examples change one another's gradients."""
    if max_norm is not None:
        raise NotApplicable(
            f"{site}: max_norm rewrites the rows that a batch looks up, which no noise covers"
        )
    if by_frequency:
        raise NotApplicable(
            f"{site}: scale_grad_by_freq scales by counts over the whole batch, "
            "so examples change one another's gradients"
        )
    if sparse:
        raise NotApplicable(f"{site}: noise is added to every row, so gradients cannot be sparse")


def embedding(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Look up rows for ids (examples, ...); ``padding_idx`` gets no gradient."""
    source = recorder.source_of(weight)
    if source is None:
        raise NoRule(func, recorder.names_in((input, weight), {}))
    site = recorder.site("embedding", source)
    refuse(site, max_norm=max_norm, by_frequency=scale_grad_by_freq, sparse=sparse)
    if recorder.is_constant(input):
        return constant(recorder, func, input, weight, padding_idx)
    axis = recorder.axes.find(input, leading=input.ndim, site=site)
    plain = weight.detach()
    version = input._version

    def receive(gradient: Tensor) -> None:
        if input._version != version:
            raise NotApplicable(f"{site}: its ids were changed in place after they were used")
        ids = recorder.axes.rows_first(input, axis)
        values = recorder.axes.rows_first(gradient, axis)
        if not recorder.units:
            return
        ids = ids.reshape(recorder.units, -1)
        owner = torch.arange(recorder.units, device=ids.device)
        owner = owner.unsqueeze(1).expand_as(ids).reshape(-1)
        add_lookup(recorder, weight, owner, ids.reshape(-1), values, padding_idx)

    return recorder.record(lambda: F.embedding(input, plain, padding_idx), None, receive)


def constant(
    recorder: Recorder, func: Any, ids: Tensor, weight: Tensor, padding_idx: int | None
) -> Tensor:
    """Look up ids that do not depend on the examples (positions): a derived tensor."""
    if padding_idx is not None:
        raise NoRule(func, recorder.names_in((weight,), {}))
    if ids.ndim > 1 and ids.shape[0] == recorder.axes.rows > 1 and ids.stride(0) == 0:
        # Positions repeated for every example: one row of them is enough.
        one = ids[:1]
        rows = recorder.derive(F.embedding, (one, weight), {})
        return recorder.derive(Tensor.expand, (rows, ids.shape[0], *rows.shape[1:]), {})  # type: ignore[no-any-return]
    return recorder.derive(F.embedding, (ids, weight), {})  # type: ignore[no-any-return]


def add_lookup(
    recorder: Recorder,
    weight: Tensor,
    owner: Tensor,
    ids: Tensor,
    values: Tensor,
    padding_idx: int | None,
) -> None:
    """Record rows that were looked up, without those of the padding."""
    source = recorder.source_of(weight)
    assert source is not None
    values = values.reshape(-1, weight.shape[1]).to(source.kind)
    if padding_idx is not None:
        kept = ids != padding_idx % weight.shape[0]
        owner, ids, values = owner[kept], ids[kept], values[kept]
    recorder.add(
        source, Lookup(owner, ids.long(), values, examples=recorder.units, shape=weight.shape)
    )


def embedding_bag(
    recorder: Recorder,
    func: Any,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums and means of looked-up rows, one bag (or several) for every example."""
    source = recorder.source_of(weight)
    if source is None:
        raise NoRule(func, recorder.names_in((input, weight), {}))
    site = recorder.site("embedding bag", source)
    refuse(site, max_norm=max_norm, by_frequency=scale_grad_by_freq, sparse=sparse)
    if mode not in ("sum", "mean"):
        raise NotApplicable(f"{site}: mode {mode!r}: expected 'sum' or 'mean'")
    plain = weight.detach()
    used = [one for one in (input, offsets, per_sample_weights) if one is not None]
    versions = [one._version for one in used]

    def run() -> Tensor:
        return F.embedding_bag(
            input,
            plain,
            offsets,
            mode=mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
        )

    def receive(gradient: Tensor) -> None:
        if [one._version for one in used] != versions:
            raise NotApplicable(f"{site}: its ids were changed in place after they were used")
        if not recorder.units:
            return
        bags = gradient.shape[0]
        bag = bag_of_each(input, offsets, bags, include_last_offset=include_last_offset)
        ids = input.reshape(-1)
        factor = torch.ones_like(ids, dtype=gradient.dtype)
        if per_sample_weights is not None:
            factor = per_sample_weights.detach().reshape(-1).to(gradient.dtype)
        if mode == "mean":
            counted = factor
            if padding_idx is not None:
                counted = factor.masked_fill(ids == padding_idx % weight.shape[0], 0)
            counts = gradient.new_zeros(bags).index_add_(0, bag, counted)
            factor = factor / counts.clamp(min=1)[bag]
        values = gradient[bag] * factor.unsqueeze(1)
        owner = torch.div(bag, bags // recorder.units, rounding_mode="floor")
        add_lookup(recorder, weight, owner, ids, values, padding_idx)

    bags = input.shape[0] if offsets is None else offsets.shape[0] - int(include_last_offset)
    recorder.axes.first(input if offsets is None else offsets[:bags], site=site)
    return recorder.record(run, per_sample_weights, receive)


def bag_of_each(
    ids: Tensor, offsets: Tensor | None, bags: int, *, include_last_offset: bool
) -> Tensor:
    """Return the number of the bag that each looked-up row belongs to."""
    if offsets is None:
        numbers = torch.arange(bags, device=ids.device)
        return numbers.unsqueeze(1).expand_as(ids).reshape(-1)
    starts = offsets[:-1] if include_last_offset else offsets
    places = torch.arange(ids.shape[0], device=ids.device)
    return torch.searchsorted(starts.contiguous(), places.to(starts.dtype), right=True) - 1


RULES: dict[Any, Rule] = {F.embedding: embedding, F.embedding_bag: embedding_bag}

# Rules that also judge calls without data: their options may touch the parameters.
ALWAYS: frozenset[Rule] = frozenset({embedding})
