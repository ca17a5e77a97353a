"""What one use of a parameter adds to its per-example gradients, in the cheapest form kept.

A gradient that is never formed costs nothing: :class:`Outer` keeps the two factors of
``sum_t left_t right_t^T``, :class:`Lookup` the rows that an embedding touched, and
:class:`PerExample` the gradients themselves. Each knows the squared norm of every
example's gradient and the weighted sum over examples (book-keeping: Bu, Wang, Zha and
Karypis 2022). :func:`merge` adds the uses of a shared parameter *before* the norm is
taken: the norm of the sum, not the sum of the norms. A :class:`Source` collects them.

Norms are for clipping, so they are upper bounds in floating point, and no example can drown others
in it. Where the gradient of an example, ``g = sum_t left_t right_t^T``, is not formed, its norm and
its place in the weighted sum come from different roundings. Huge terms may cancel in ``g``: then a
norm from inner products is mostly rounding error, the sum is off by another one, and terms that
are added to a sum one after the other wipe out what was in it, other examples and noise included.
All of these errors are bounded by the *spread*

    S = sum_t |left_t| |right_t|  >=  |g|,

so the norm N that clipping gets to see is made of both:

1. ``N >= |g|``, as the error bound of the computation, a multiple of ``u S``, is added to it (u the
   unit roundoff; the bounds hold for any order of summation, Higham 2002, chapter 3);
2. ``N >= S / R`` with ``R = max(64, 4 sqrt(terms))``. A clipped example has weight at most C / N,
   so its terms have total length at most R C. Adding them to a sum of n terms moves it by the
   example's gradient, of norm at most C, up to rounding of at most ``n u R C``: for float32 and
   R = 64, C / 1024 for n = 256 in the worst case, and for n = 2^16 if roundings are independent.

Both leave an ordinary example as it is: terms in unrelated directions have |g| near
S / sqrt(terms), four times more than 2. asks for. An example that cancels more than that is
clipped more.

Squares underflow long before the gradient does (1e-23 times 1e19). A squared length is taken
to be larger than computed by what may have been lost, ``width * tiny``, so that a factor that is
huge makes up for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from discreet.errors import InvalidValue

# So many numbers stay in a second-level cache while they are looked at again.
IN_CACHE = 1 << 18
# A copy of so many numbers is small beside the factors of a large layer.
WEIGHTED = 1 << 20
# From so many terms on, a second product over them is dearer than memory.
MANY_TERMS = 96


def wide(values: Tensor) -> Tensor:
    """The same numbers in single precision at least, for norms and sums.

    The product of two numbers of half precision (float16, bfloat16) is exact there, so all that is
    said above of rounding holds for gradients whose factors came in half precision.
    """
    return values.float() if values.dtype.itemsize < 4 else values


def wide_kind(kind: torch.dtype) -> torch.dtype:
    """The type in which gradients of a parameter are kept and summed."""
    return torch.float32 if kind.itemsize < 4 else kind


# Longer sums are cut: a running sum in float32 loses 0.7 % over ten million equal terms.
_LONG = 4096
_WIDE = 512


def lengths(rows: Tensor) -> Tensor:
    """Euclidean norm of each row; one pass, no temporary of the size of ``rows``."""
    if rows.ndim != 2:
        rows = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
    width = rows.shape[1]
    if width <= 2 * _LONG:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
        return norms
    whole = width - width % _LONG
    parts = torch.linalg.vector_norm(rows[:, :whole].reshape(rows.shape[0], -1, _LONG), dim=2)
    if whole != width:
        rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)
        parts = torch.cat((parts, rest), dim=1)
    return lengths(parts)


def unit_roundoff(like: Tensor) -> float:
    """The largest relative error of one operation."""
    return torch.finfo(like.dtype).eps / 2


def input_roundoff(like: Tensor) -> float:
    """The relative error that products may make in their inputs, where torch is allowed to."""
    if like.dtype != torch.float32:
        return 0.0
    precision = torch.get_float32_matmul_precision()
    if precision == "highest":
        loose = like.is_cuda and torch.backends.cudnn.allow_tf32
        return 2.0**-11 if loose else 0.0
    return 2.0**-11 if precision == "high" else 2.0**-8


def allowance(like: Tensor) -> float:
    """How much larger a squared norm may be where products round both of their inputs."""
    return (1.0 + input_roundoff(like)) ** 4


def bound_underflow(width: int, like: Tensor) -> float:
    """How much smaller a computed sum of ``width`` squares may be because squares underflow."""
    return width * torch.finfo(like.dtype).tiny


def floor(width: int, like: Tensor) -> float:
    """The same, large enough to still count after multiplication by a roundoff."""
    return bound_underflow(width, like) / unit_roundoff(like)


def outer_squared_norms(left: Tensor, right: Tensor) -> Tensor:
    """``|left_i|^2 |right_i|^2`` for matrices (examples, p) and (examples, d)."""
    square = (
        lengths(left).square_().add_(bound_underflow(left.shape[1], left)).mul_(allowance(left))
    )
    return square.mul_(lengths(right).square_().add_(bound_underflow(right.shape[1], right)))


def spread(left: Tensor, right: Tensor) -> Tensor:
    """``S`` of every example, from factors (examples, terms, width)."""
    first: Tensor = torch.linalg.vector_norm(left, dim=2)
    first.add_(math.sqrt(floor(left.shape[2], left)))
    second: Tensor = torch.linalg.vector_norm(right, dim=2)
    return first.mul_(second.add_(math.sqrt(floor(right.shape[2], right)))).sum(1)


def patch_spread(maps: Tensor, images: Tensor, overlap: int) -> Tensor:
    """An upper bound of ``S`` where the terms are positions of maps and patches of images.

    By Cauchy and Schwarz it is at most the length of all maps times that of all patches, in
    which an entry of an image occurs at most ``overlap`` times.
    """
    first = lengths(maps).add_(math.sqrt(floor(maps[:1].numel(), maps)))
    second = lengths(images).add_(math.sqrt(floor(images[:1].numel(), images)))
    return first.mul_(second).mul_(math.sqrt(overlap))


def spread_limit(terms: int) -> float:
    """``R``, by how much the spread of an example may exceed its norm."""
    return max(64.0, 4.0 * math.sqrt(terms))


def bounded_norms(norms: Tensor, spreads: Tensor, *, terms: int) -> Tensor:
    """Norms for clipping, from those of gradients that the weighted sum will form once more.

    Formed by other kernels, in another order, they may differ: each is off by at most
    ``(terms + 2) u S`` and what rounding of inputs does to both factors.
    """
    error = 2.2 * ((terms + 2) * unit_roundoff(norms) + 2 * input_roundoff(norms))
    bound = torch.add(norms, spreads, alpha=error)
    return torch.maximum(bound, spreads.mul(1.0 / spread_limit(terms)))


def tied_squared_norms(squares: Tensor, spreads: Tensor, *, terms: int, roundings: int) -> Tensor:
    """Squared norms for clipping, where ``squares`` were added up from parts of either sign.

    Each part came out of at most ``roundings`` roundings, and none is above ``spreads^2``.
    """
    error = 2.2 * ((roundings + 8) * unit_roundoff(squares) + 2 * input_roundoff(squares))
    square = spreads.square()
    bound = torch.add(squares, square, alpha=error)
    return torch.maximum(bound, square.mul_(spread_limit(terms) ** -2))


def gram_squared_norms(left: Tensor, right: Tensor) -> Tensor:
    """Squared norms for clipping from factors (examples, terms, width), by Gram matrices.

    ``|sum_t a_t b_t^T|^2 = sum_{t,s} <a_t, a_s> <b_t, b_s>``. An inner product of p numbers is off
    by at most ``p u |a_t| |a_s|`` (cut into pieces of 512, by ``512 + p / 512``), and the double
    sum adds ``2 terms`` roundings: in all at most ``k u S^2``, which is added.
    """
    if left.dtype.itemsize < 4:
        left, right = left.float(), right.float()
    terms = left.shape[1]
    if left.shape[2] < right.shape[2]:
        left, right = right, left
    least, other_least = floor(left.shape[2], left), floor(right.shape[2], right)
    other, more = inner_products(right)
    gram, steps = inner_products(left)
    # On the diagonals are the squared lengths of the terms.
    square = gram.diagonal(dim1=1, dim2=2) + least
    square = square.mul_(other.diagonal(dim1=1, dim2=2) + other_least)
    spread_square = square.sqrt_().sum(1).square_()
    total = gram.mul_(other).sum(2).sum(1)
    roundings = steps + more + 2 * terms + 8
    error = 1.1 * (roundings * unit_roundoff(left) + 4 * input_roundoff(left))
    total = total.add_(spread_square, alpha=error)
    return torch.maximum(total, spread_square.mul_(spread_limit(terms) ** -2))


def inner_products(rows: Tensor) -> tuple[Tensor, int]:
    """Gram matrices of (examples, terms, width), and the number of roundings in an entry."""
    width = rows.shape[2]
    if width <= _WIDE:
        return torch.bmm(rows, rows.transpose(1, 2)), width
    pieces = torch.split(rows, _WIDE, dim=2)
    total = torch.bmm(pieces[0], pieces[0].transpose(1, 2))
    for piece in pieces[1:]:
        total += torch.bmm(piece, piece.transpose(1, 2))
    return total, _WIDE + len(pieces)


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


def erase_rows(rows: Tensor, removed: Tensor) -> Tensor:
    return rows.masked_fill(removed.view(-1, *(1,) * (rows.ndim - 1)), 0)


@final
class PerExample:
    """The gradients themselves, perhaps with their norms taken while they were in the cache."""

    def __init__(self, values: Tensor, norms: Tensor | None = None) -> None:
        self.values = values = wide(values)
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
        return PerExample(erase_rows(self.values, removed))


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
        self.left = left = wide(left)
        self.right = right = wide(right)
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
        return Outer(erase_rows(self.left, removed), erase_rows(self.right, removed), self.shape)

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
        self.values = values = wide(values)
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
        values = erase_rows(self.values, removed[self.owner])
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


def merge(parts: Sequence[Contribution]) -> Contribution:
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
        outer, lookup = merge(outers), merge(lookups)
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


@final
class Site:
    """One use of a source in a forward pass; its name is made only when it is needed."""

    __slots__ = ("count", "source")

    def __init__(self, source: Source, count: int) -> None:
        self.source = source
        self.count = count

    def __str__(self) -> str:
        return f"{', '.join(self.source.root_names())} (use {self.count})"


@final
class Source:
    """A parameter, or a tensor derived from parameters and constants (a slice, a product).

    The forward pass uses ``tensor``; no gradient of plain autograd ever reaches it. Its uses
    leave contributions, and those of a derived tensor are carried on to the parameters by the
    derivative of the derivation (``origin`` with ``parents``), example by example.
    """

    def __init__(
        self,
        tensor: Tensor,
        *,
        name: str = "",
        origin: Tensor | None = None,
        parents: tuple[Source, ...] = (),
        transposes: Source | None = None,
        repeats: Source | None = None,
    ) -> None:
        self.tensor = tensor
        self.kind = wide_kind(tensor.dtype)
        self.name = name
        self.origin = origin
        self.parents = parents
        self.transposes = transposes
        self.repeats = repeats
        self.lookup_ids: Tensor | None = None
        self.row_copies: list[Tensor] = []
        self.contributions: list[Contribution] = []
        self.leaves: list[tuple[Tensor, int]] = []
        self.uses = 0
        self.rules: set[str] = set()

    def add_use(self, rule: str) -> Site:
        """Count and name one more use."""
        self.uses += 1
        if rule not in self.rules:
            self.note(rule)
        return Site(self, self.uses)

    def note(self, rule: str) -> None:
        """Remember which rules handled the parameters behind this tensor."""
        self.rules.add(rule)
        for parent in self.parents:
            parent.note(rule)

    def clear(self) -> None:
        """Forget the uses of one pass."""
        self.contributions = []
        self.leaves = []
        self.uses = 0

    def root_names(self) -> list[str]:
        """Names of the parameters behind this tensor."""
        if not self.parents:
            return [self.name]
        return sorted({name for parent in self.parents for name in parent.root_names()})

    def gather_leaves(self, units: int) -> None:
        """Turn gradients of per-example copies into contributions."""
        for leaf, axis in self.leaves:
            if leaf.grad is None:
                continue
            rows = wide(leaf.grad).movedim(axis, 0)
            per_unit = rows.reshape(units, rows.shape[0] // units, *self.tensor.shape)
            values = per_unit.squeeze(1) if per_unit.shape[1] == 1 else per_unit.sum(1)
            self.contributions.append(PerExample(values))
        self.leaves.clear()

    def hand_to_parents(self, units: int) -> None:
        """Move the contributions of a derived tensor to what it was derived from."""
        for leaf in self.row_copies:
            if leaf.grad is not None and self.lookup_ids is not None:
                table = self.parents[0]
                rows = leaf.grad.reshape(units, -1, leaf.shape[-1])
                ids = self.lookup_ids.reshape(units, -1)
                table.contributions.append(
                    rows_looked_up(ids, PerExample(rows), table.tensor.shape)
                )
        self.row_copies.clear()
        if not self.contributions or not self.parents:
            return
        whole = merge(self.contributions)
        self.contributions = []
        if self.transposes is not None and isinstance(whole, Outer):
            target = self.transposes
            target.contributions.append(whole.transposed(target.tensor.shape))
            return
        if self.lookup_ids is not None:
            target = self.parents[0]
            target.contributions.append(rows_looked_up(self.lookup_ids, whole, target.tensor.shape))
            return
        assert self.origin is not None
        gradients = torch.autograd.grad(
            self.origin,
            [parent.tensor for parent in self.parents],
            grad_outputs=whole.per_example().to(self.origin.dtype),
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        for parent, values in zip(self.parents, gradients, strict=True):
            if values is not None:
                parent.contributions.append(PerExample(values))


def make_leaf(tensor: Tensor) -> Tensor:
    """Have a tensor collect gradients, as one of the engine's own leaves of the graph."""
    tensor.of_engine = True  # type: ignore[attr-defined]
    return tensor.requires_grad_()


def rows_looked_up(ids: Tensor, whole: Contribution, shape: torch.Size) -> Lookup:
    """Carry gradients of looked-up rows to their table.

    ``ids`` are (examples, places), or of any shape that all examples looked up alike.
    """
    values = whole.per_example()
    examples = values.shape[0]
    places = values[:1].numel() // shape[1]
    flat = ids.reshape(-1, places).expand(examples, places).reshape(-1)
    owner = torch.arange(examples, device=ids.device).repeat_interleave(places)
    return Lookup(owner, flat.long(), values.reshape(-1, shape[1]), examples=examples, shape=shape)
