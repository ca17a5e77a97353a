"""Norms that are upper bounds in floating point, and examples that cannot drown others in it.

Where the gradient of an example, ``g = sum_t left_t right_t^T``, is never formed, its norm and
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

import torch
from torch import Tensor

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


def lost(width: int, like: Tensor) -> float:
    """How much smaller a computed sum of ``width`` squares may be because squares underflow."""
    return width * torch.finfo(like.dtype).tiny


def floor(width: int, like: Tensor) -> float:
    """The same, large enough to still count after multiplication by a roundoff."""
    return lost(width, like) / unit_roundoff(like)


def outer_squared_norms(left: Tensor, right: Tensor) -> Tensor:
    """``|left_i|^2 |right_i|^2`` for matrices (examples, p) and (examples, d)."""
    square = lengths(left).square_().add_(lost(left.shape[1], left)).mul_(allowance(left))
    return square.mul_(lengths(right).square_().add_(lost(right.shape[1], right)))


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
