"""Randomizers that report a vector over a prime field: OLH, Hadamard response and PGR.

Values are points x of the projective space over the field of r elements, a report is a vector u,
and u supports x if <u, x> = 0. Any two points are linearly independent, so all pairs of values look
the same, and the number of supporting reports of *all* values is one Fourier transform of the
counts of the reports:

    #{u: <u, x> = 0} = (1/r) sum_k G(k x),    G the transform over (Z_r)^t.

- With all r^t vectors this is local hashing by a random linear map to r buckets (Wang et al. 2017)
  with collisions of probability exactly 1/r, and for r = 2 the Hadamard response (Acharya, Sun and
  Zhang 2019).
- Without the zero vector it is the projective geometry response (Feldman, Nelson, Nguyen and
  Talwar 2022), which is a little more accurate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from scipy import fft

from discreet.errors import InvalidValue
from discreet.local._coins import Coins
from discreet.local._methods import Method, bytes_below, variance_at, write_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.local._methods import Bytes, Integers

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)
_MOST_VECTORS = 1 << 23


class LinearResponse(Method):
    """A vector u over the field of r elements that is orthogonal to the own point more often."""

    primes: ClassVar[tuple[int, ...]] = _PRIMES
    with_zero: ClassVar[bool] = True

    def __init__(self, values: int, root: float) -> None:
        self.values = values
        best = None
        for prime in self.primes:
            length = 2
            while (prime**length - 1) // (prime - 1) < values:
                length += 1
            if prime**length > _MOST_VECTORS:
                continue
            self.prime, self.length = prime, length
            variance = variance_at(self.chances(root))
            if best is None or variance < best[0]:
                best = variance, prime, length
        if best is None:
            raise InvalidValue(
                "domain", values - 1, f"a domain for which {self.name} has at most 2**23 reports"
            )
        _, self.prime, self.length = best
        self.cells = self.prime**self.length
        self.payload_bytes = bytes_below(self.cells)
        # The transform, spread over a million people.
        self.decoding = 1.0 + self.cells * self.length / 1e6
        points = _canonical_points(values, self.prime)
        digits = points[None, :] // self.prime ** np.arange(self.length)[:, None]
        self._digits = digits % self.prime
        # r to the power of the place of each point's leading 1.
        powers = self.prime ** np.arange(self.length, dtype=np.int64)
        self._leading = powers[np.searchsorted(powers, points, side="right") - 1]

    @property
    def parameters(self) -> dict[str, int]:
        return {"prime": self.prime, "length": self.length}

    def _sizes(self) -> tuple[int, int, int]:
        """Return how many reports there are, support one value, and support two given ones.

        Without zero the r - 1 multiples of a vector count as one report.
        """
        r, t = self.prime, self.length
        if self.with_zero:
            return r**t, r ** (t - 1), r ** (t - 2)
        every, one, two = (r**size - 1 for size in (t, t - 1, t - 2))
        return every // (r - 1), one // (r - 1), two // (r - 1)

    def chances(self, root: Any) -> tuple[Any, Any]:
        every, one, two = self._sizes()
        odds = root * root
        whole = odds * one + every - one
        return odds * one / whole, (odds * two + one - two) / whole

    def randomize(self, places: Integers, coins: Coins) -> Bytes:
        every, one, _ = self._sizes()
        r = self.prime
        orthogonal = coins.tilted(one, every - one, places.size)
        rest = r ** (self.length - 1)
        # All digits of u but the one at the point's leading 1, and the product that it must have.
        free = np.empty(places.size, dtype=np.int64)
        product = np.zeros(places.size, dtype=np.int64)
        count = int(orthogonal.sum())
        if self.with_zero:
            free[orthogonal] = coins.uniform(rest, count)
        else:
            free[orthogonal] = 1 + coins.uniform(rest - 1, count)
        other = coins.uniform((r - 1) * rest, places.size - count)
        free[~orthogonal] = other % rest
        product[~orthogonal] = 1 + other // rest
        leading = self._leading[places]
        high, low = np.divmod(free, leading)
        code = high * (r * leading) + low
        digits = code.copy()
        for row in self._digits:
            digits, digit = np.divmod(digits, r)
            product -= row[places] * digit
        return write_integers(code + product % r * leading, self.payload_bytes)

    def valid(self, payloads: Bytes) -> NDArray[np.bool_]:
        good = super().valid(payloads)
        return good if self.with_zero else good & payloads.any(axis=1)

    def supports(self, tally: Integers) -> Integers:
        r, half = self.prime, self.prime // 2 + 1
        transform = fft.rfftn(tally.reshape((r,) * self.length).astype(np.float64)).ravel()
        # The first digit is the last axis, of which the transform has half; the rest by symmetry.
        strides = np.concatenate(([1], half * r ** np.arange(self.length - 1)))
        total = np.full(self.values, float(tally.sum()))
        for multiple in range(1, r // 2 + 1):
            digits = self._digits * multiple % r
            digits = np.where(digits[0] >= half, -digits % r, digits)
            found = transform[strides @ digits].real
            total += found if r == 2 else 2.0 * found
        return np.rint(total / r).astype(np.int64)


@final
class LocalHashing(LinearResponse):
    """OLH: the bucket of the value under a random linear hash, by randomized response."""

    name = "OLH"


@final
class HadamardResponse(LinearResponse):
    """HR: a column of the Hadamard matrix in which the value's row has a 1; for epsilon <= 1."""

    name = "HR"
    primes = (2,)


@final
class ProjectiveGeometry(LinearResponse):
    """PGR: a point on the hyperplane of the value, or off it with odds 1 : e^epsilon."""

    name = "PGR"
    with_zero = False


def _canonical_points(count: int, prime: int) -> Integers:
    """Return vectors whose leading digit is 1, as numbers in base r: r^m to 2 r^m - 1."""
    parts, power, left = [], 1, count
    while left > 0:
        parts.append(power + np.arange(min(power, left), dtype=np.int64))
        left -= power
        power *= prime
    return np.concatenate(parts)
