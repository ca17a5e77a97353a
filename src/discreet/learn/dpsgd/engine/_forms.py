"""What one use of a parameter adds to its per-example gradients, in the cheapest form kept.

A gradient that is never formed costs nothing: :class:`Outer` keeps the two factors of
``sum_t left_t right_t^T``, :class:`Lookup` the rows that an embedding touched, and
:class:`PerExample` the gradients themselves. Each knows the squared norm of every
example's gradient and the weighted sum over examples (book-keeping: Bu, Wang, Zha and
Karypis 2022). :func:`merged` adds the uses of a shared parameter *before* the norm is
taken: the norm of the sum, not the sum of the norms. Norms are for clipping, so they are upper
bounds even where gradients are not formed: see :mod:`.rounding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from discreet.errors import InvalidValue
from discreet.learn.dpsgd.engine._rounding import (
    bounded_norms,
    gram_squared_norms,
    lengths,
    outer_squared_norms,
    spread,
    tied_squared_norms,
)

# So many numbers stay in a second-level cache while they are looked at again.
IN_CACHE = 1 << 18
# A copy of so many numbers is small beside the factors of a large layer.
WEIGHTED = 1 << 20
# From so many terms on, a second product over them is dearer than memory.
MANY_TERMS = 96


class Contribution(Protocol):
    """Per-example gradients of one parameter, in some form."""

    def squared_norms(self) -> Tensor:
        """Return the squared norm of each example's gradient, shape (examples,), for clipping."""

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        """Add ``factor * sum_i weights[i] gradient_i`` to ``total``, of the parameter's shape."""

    def per_example(self) -> Tensor:
        """Return all gradients, shape (examples, *parameter)."""

    def without(self, removed: Tensor) -> Contribution:
        """Return the same with the gradients of the examples ``removed`` (a mask) exactly zero."""


@final
class Versions:
    """How often the factors of a gradient were written to when it was made.

    Norms may have been taken long before the sum is: factors that changed in between, as when a
    loop overwrites its inputs after the backward pass, have other norms.
    """

    __slots__ = ("_count", "_factors")

    def __init__(self, *factors: Tensor) -> None:
        self._factors = factors
        self._count = sum([factor._version for factor in factors])

    def check(self) -> None:
        """Raise if any of them was written to since."""
        if sum([factor._version for factor in self._factors]) != self._count:
            raise InvalidValue(
                "inputs",
                "changed in place after backward()",
                "batches and activations that stay as they are until optimizer.step() is done: "
                "their gradients are clipped by norms that were taken before",
            )


def require_unchanged(part: Contribution | None) -> None:
    """Raise if the factors that a contribution keeps are not those that its norms are of."""
    if isinstance(part, Tied):
        part.lookup.versions.check()
        part = part.outer
    versions = getattr(part, "versions", None)
    if versions is not None:
        versions.check()


def add_into(total: Tensor, add: Callable[[Tensor], object]) -> None:
    """Let ``add`` change the entries of ``total`` as one row, wherever they lie in memory."""
    if total.ndim == 1:
        add(total)
    elif total.is_contiguous():
        add(total.view(-1))
    else:
        flat = total.reshape(-1)
        add(flat)
        total.copy_(flat.view(total.shape))


def pieces(examples: int, size: int, *, most: int = IN_CACHE) -> list[slice]:
    """Cut examples of ``size`` numbers each into pieces that stay in the cache."""
    step = max(1, min(examples, most // max(1, size)))
    return [slice(start, start + step) for start in range(0, examples, step)]


def erased(rows: Tensor, removed: Tensor) -> Tensor:
    return rows.masked_fill(removed.view(-1, *(1,) * (rows.ndim - 1)), 0)


@final
class PerExample:
    """The gradients themselves, perhaps with their norms taken while they were in the cache."""

    def __init__(self, values: Tensor, norms: Tensor | None = None) -> None:
        self.values = values
        self.versions = Versions(values)
        self._norms = norms

    def norms(self) -> Tensor:
        """Euclidean norms of the gradients."""
        return lengths(self.values) if self._norms is None else self._norms

    def squared_norms(self) -> Tensor:
        return self.norms().square()

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        values = self.values
        if values.ndim != 2:
            values = values.reshape(values.shape[0], math.prod(values.shape[1:]))
        add_into(total, lambda flat: flat.addmv_(values.t(), weights, alpha=factor))

    def per_example(self) -> Tensor:
        return self.values

    def without(self, removed: Tensor) -> PerExample:
        return PerExample(erased(self.values, removed))


def cheapest_form(examples: int, terms: int, left: int, right: int) -> str:
    """How to treat ``sum_t left_t right_t^T``: ``"store"``, ``"pass"`` or ``"gram"``.

    *Store* forms every gradient once (``terms * left * right`` multiplications, what plain
    training spends too) and keeps it for the weighted sum. *Pass* forms gradients a few examples
    at a time in the cache for their norms only, and spends a second product on the weighted
    sum. *Gram* takes norms from ``terms x terms`` matrices, ``terms^2 (left + right)``
    multiplications, and spends that product too.

    Storing an entry means writing it once and reading it twice: measured, it costs as much as a
    hundred multiplications, or some twenty where the second product is a small one. So
    gradients are stored if all of them fit into the cache, if the second product would be dearer
    than that, or if they take little more memory than their factors. Products for Gram matrices
    run at four fifths of the speed of the others, and give the lengths of all terms besides,
    which *pass* has to read all factors for.
    """
    formed = left * right
    factors = terms * (left + right)
    if (
        examples * formed <= IN_CACHE
        or (terms >= MANY_TERMS and formed <= 4 * factors)
        or (terms >= 24 and 4 * formed <= 5 * factors)
    ):
        return "store"
    return "gram" if factors <= formed else "pass"


@final
class Outer:
    """``gradient_i = sum_t left[i, t] right[i, t]^T``, kept as its factors.

    ``left`` is (examples, terms, p) and ``right`` (examples, terms, d); with one term both may
    be matrices.
    """

    def __init__(
        self, left: Tensor, right: Tensor, shape: torch.Size, norms: Tensor | None = None
    ) -> None:
        self.left = left
        self.right = right
        self.shape = shape
        self.versions = Versions(left, right)
        self._norms = norms

    def squared_norms(self) -> Tensor:
        left, right = self.left, self.right
        if self._norms is not None:
            return self._norms.square()
        if left.ndim == 2:
            return outer_squared_norms(left, right)
        return gram_squared_norms(left, right)

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        left, right = self.left, self.right
        if total.shape != (left.shape[-1], right.shape[-1]):
            flat = total.new_zeros(left.shape[-1], right.shape[-1])
            self.add_to(flat, weights, factor)
            total += flat.view(total.shape)
            return
        if left.ndim == 2:
            column = weights.unsqueeze(1)
            if left.shape[1] <= right.shape[1]:
                for part in pieces(left.shape[1], left.shape[0], most=WEIGHTED):
                    total[part].addmm_((left[:, part] * column).t(), right, alpha=factor)
            else:
                for part in pieces(right.shape[1], right.shape[0], most=WEIGHTED):
                    total[:, part].addmm_(left.t(), right[:, part] * column, alpha=factor)
            return
        column = weights.view(-1, 1, 1)
        p, d = total.shape
        if not left.is_contiguous() and left.transpose(0, 1).is_contiguous():
            # Time is outermost in memory; the order of a sum does not matter.
            left, right, column = (part.transpose(0, 1) for part in (left, right, column))
        column = column.expand(left.shape[0], left.shape[1], 1)
        for piece in pieces(left.shape[0], left.shape[1] * max(p, d)):
            rows, others = left[piece], right[piece]
            if p <= d:
                rows = rows * column[piece]
            else:
                others = others * column[piece]
            total.addmm_(rows.reshape(-1, p).t(), others.reshape(-1, d), alpha=factor)

    def per_example(self) -> Tensor:
        left, right = self.left, self.right
        if left.ndim == 2:
            left, right = left.unsqueeze(1), right.unsqueeze(1)
        return torch.bmm(left.transpose(1, 2), right).view(-1, *self.shape)

    def choose_form(self) -> Outer | PerExample:
        """Return the cheapest form, with the norms where forming gradients gives them."""
        left, right = self.with_terms()
        examples, p, d = left.shape[0], left.shape[2], right.shape[2]
        form = cheapest_form(examples, left.shape[1], p, d)
        if form == "gram":
            return self
        if examples * p * d <= IN_CACHE:
            return PerExample(self.per_example())
        norms = left.new_empty(examples)
        places = pieces(examples, p * d)
        values = left.new_empty(examples if form == "store" else places[0].stop, p, d)
        for piece in places:
            count = min(piece.stop, examples) - piece.start
            target = values[piece] if form == "store" else values[:count]
            torch.bmm(left[piece].transpose(1, 2), right[piece], out=target)
            norms[piece] = lengths(target)
        if form == "store" and left.shape[1] >= MANY_TERMS:
            return PerExample(values.view(examples, *self.shape), norms)
        # The weighted sum may form them once more, with other roundings.
        norms = bounded_norms(norms, spread(left, right), terms=left.shape[1])
        if form == "store":
            return PerExample(values.view(examples, *self.shape), norms)
        return Outer(left, right, self.shape, norms)

    def without(self, removed: Tensor) -> Outer:
        return Outer(erased(self.left, removed), erased(self.right, removed), self.shape)

    def transposed(self, shape: torch.Size) -> Outer:
        """Return the contribution to the transposed matrix."""
        return Outer(self.right, self.left, shape)

    def with_terms(self) -> tuple[Tensor, Tensor]:
        """Return both factors with their axis of terms."""
        if self.left.ndim == 2:
            return self.left.unsqueeze(1), self.right.unsqueeze(1)
        return self.left, self.right


@final
class Lookup:
    """Rows ``values[n]`` that example ``owner[n]`` adds at row ``ids[n]`` of a table."""

    def __init__(
        self, owner: Tensor, ids: Tensor, values: Tensor, *, examples: int, shape: torch.Size
    ) -> None:
        self.owner = owner
        self.ids = ids
        self.values = values
        self.versions = Versions(ids, values)
        self.examples = examples
        self.shape = shape
        self._merged = False

    def squared_norms(self) -> Tensor:
        self._merge()
        totals = self.values.new_zeros(self.examples)
        totals.index_add_(0, self.owner, lengths(self.values).square_())
        # A running sum of as many squares may have lost that much.
        return totals.mul_(1.0 + self.owner.shape[0] * torch.finfo(totals.dtype).eps)

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        self._merge()
        rows = self.values * weights[self.owner].unsqueeze(1)
        total.index_add_(0, self.ids, rows, alpha=factor)

    def _merge(self) -> None:
        """Add what an example adds to the same row: norms and sums must see the same numbers.

        Values that cancel must do so here, not in a sum with other examples and noise.
        """
        if self._merged:
            return
        self._merged = True
        keys = self.owner * self.shape[0] + self.ids
        keys, order = torch.sort(keys, stable=True)
        again = keys[1:] == keys[:-1]
        if not again.any():
            return
        again = torch.cat((again.new_zeros(1), again))
        first = ~again
        places = first.cumsum(0).sub_(1)[again]
        once = order[first]
        rows = self.values[once]
        self.values = rows.index_add_(0, places, self.values[order[again]])
        self.owner = self.owner[once]
        self.ids = self.ids[once]

    def per_example(self) -> Tensor:
        table = self.values.new_zeros(self.examples * self.shape[0], self.shape[1])
        table.index_add_(0, self.owner * self.shape[0] + self.ids, self.values)
        return table.view(self.examples, *self.shape)

    def without(self, removed: Tensor) -> Lookup:
        values = erased(self.values, removed[self.owner])
        return Lookup(self.owner, self.ids, values, examples=self.examples, shape=self.shape)


def total_squared_norms(parts: Sequence[Contribution], factor: float = 1.0) -> Tensor:
    """``factor`` times the squared norms of the gradients with respect to several parameters.

    Few calls rather than few multiplications: for small layers a call costs more than its work.
    """
    norms = [part.norms() for part in parts if isinstance(part, PerExample)]
    totals = [part.squared_norms() for part in parts if not isinstance(part, PerExample)]
    if norms:
        totals.append(squared_lengths(norms))
    whole = totals[0] if len(totals) == 1 else torch.stack(totals).sum(0)
    return whole if factor == 1.0 else whole.mul_(factor)


def squared_lengths(norms: Sequence[Tensor]) -> Tensor:
    """Squared norms of several parts of a gradient from the norms of each."""
    if len(norms) == 1:
        return norms[0].square()
    return torch.stack(list(norms)).square_().sum(0)


def merged(parts: Sequence[Contribution]) -> Contribution:
    """Return the sum of several contributions to one parameter, still as cheap as possible.

    It may be a copy, which nobody could tell from what the backward pass left if that changed.
    """
    for part in parts:
        require_unchanged(part)
    if len(parts) == 1:
        return parts[0]
    outers = [part for part in parts if isinstance(part, Outer)]
    if len(outers) == len(parts):
        factors = [outer.with_terms() for outer in outers]
        left = torch.cat([pair[0] for pair in factors], dim=1)
        right = torch.cat([pair[1] for pair in factors], dim=1)
        return Outer(left, right, outers[0].shape).choose_form()
    lookups = [part for part in parts if isinstance(part, Lookup)]
    if len(lookups) == len(parts):
        return Lookup(
            torch.cat([part.owner for part in lookups]),
            torch.cat([part.ids for part in lookups]),
            torch.cat([part.values for part in lookups]),
            examples=lookups[0].examples,
            shape=lookups[0].shape,
        )
    if outers and lookups and len(outers) + len(lookups) == len(parts):
        outer, lookup = merged(outers), merged(lookups)
        if isinstance(outer, Outer) and isinstance(lookup, Lookup):
            return Tied(outer, lookup)
    total = parts[0].per_example().clone()
    for part in parts[1:]:
        total += part.per_example()
    return PerExample(total)


@final
class Tied:
    """A table used for looking up rows and as a matrix (a tied output layer).

    The cross term needs only the entries of the left factor at the rows looked up, so no table
    per example is formed.
    """

    def __init__(self, outer: Outer, lookup: Lookup) -> None:
        self.outer = outer
        self.lookup = lookup

    def squared_norms(self) -> Tensor:
        left, right = self.outer.with_terms()
        lookup = self.lookup
        own = lookup.squared_norms()
        entries = left[lookup.owner, :, lookup.ids]
        products = torch.bmm(right[lookup.owner], lookup.values.unsqueeze(2)).squeeze(2)
        cross = left.new_zeros(lookup.examples)
        cross.index_add_(0, lookup.owner, (entries * products).sum(1))
        spreads = left.new_zeros(lookup.examples)
        spreads.index_add_(0, lookup.owner, lengths(lookup.values))
        return tied_squared_norms(
            self.outer.squared_norms() + own + 2 * cross,
            spread(left, right) + spreads,
            terms=left.shape[1],
            roundings=right.shape[2] + left.shape[1] + lookup.owner.shape[0],
        )

    def add_to(self, total: Tensor, weights: Tensor, factor: float) -> None:
        self.outer.add_to(total, weights, factor)
        self.lookup.add_to(total, weights, factor)

    def per_example(self) -> Tensor:
        return self.outer.per_example() + self.lookup.per_example()

    def without(self, removed: Tensor) -> Tied:
        return Tied(self.outer.without(removed), self.lookup.without(removed))
