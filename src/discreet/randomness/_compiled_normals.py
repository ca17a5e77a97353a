"""The Box-Muller transform for float32 in loops that numba compiles to vector instructions.

The same numbers as the numpy transform of :mod:`._normals` up to rounding: the smaller of ``u`` and
``1 - u`` is taken in single precision, whose exponent reaches further than 64 random bits do;
logarithm, sine and cosine are polynomials in single precision. A normal is off by at most
:data:`TOLERANCE` times its radius, about three units in the last place, as with numpy's own
functions. The source runs uncompiled, slowly, as a twin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

TOLERANCE = 4e-7
PAIRS = 1 << 12  # in a block: its words stay in the first cache
RARE = 1 << 22  # words this near to an end of their range have a second word

_CHUNK = 1024  # pairs whose intermediate results stay in the first cache
_LOOK = 64  # of them are looked at together

_f = np.float32
_i = np.int32
_u = np.uint32
_ONE, _HALF, _LOG_2 = _f(1), _f(0.5), _f(math.log(2))
_WORD, _HALF_WORD, _TWO_WORDS = _f(2.0**-32), _f(2.0**-33), _f(2.0**-64)
_IS_RARE = _f(RARE * 2.0**-32)
# Fitted on Chebyshev nodes: (log(1 + x) - x + x^2 / 2) / x^3 for sqrt(1/2) <= 1 + x < sqrt(2), and
# (sin(a) / a - 1) / a^2 and (cos(a) - 1) / a^2 in a^2 up to an eighth of a turn. The logarithm is
# off by 7e-9 relatively, the sine by 4e-9, the cosine by 4e-8.
_L0, _L1, _L2, _L3 = _f(0.33333355), _f(-0.25000852), _f(0.19999826), _f(-0.1662137)
_L4, _L5, _L6, _L7 = _f(0.14227115), _f(-0.13202104), _f(0.12620327), _f(-0.07362868)
_S1, _S2, _S3 = _f(-0.16666655), _f(0.0083321603), _f(-0.00019515282)
_C1, _C2, _C3 = _f(-0.49999896), _f(0.041656293), _f(-0.0013597823)
_TURN = _f(math.pi * 2.0**-33)
_EIGHTH, _QUARTER, _SIGN = _i(1 << 29), _i(1 << 30), _i(-(1 << 31))
_SQRT_HALF = _u(math.isqrt(1 << 63))  # sqrt(1/2) in units of 2^-32
_SQRT_HALF_BITS = _i(0x3F3504F3)  # of the single sqrt(1/2)
_FRACTION = _i(23)


def words_for(pairs: int) -> int:
    """Return how many random words a block of ``pairs`` pairs takes.

    Two for each pair, and spare ones for the rare pairs, of which there is one in 512: the
    spare words are used up with a probability below 1e-90.
    """
    return 2 * pairs + min(pairs, 64 + pairs // 64)


def box_muller(words: Any, stddev: Any, normals: Any) -> bool:
    """Fill ``normals`` (float32), at most a block, from :func:`words_for` random words (uint32).

    ``words`` are those of all radii, those of all angles, and spare ones; ``normals`` are all
    cosines, then all sines, of which there may be fewer by one. The radius is
    ``stddev sqrt(-2 log(u))``. For a word w, the smaller of u and 1 - u is ``(w + 1/2) / 2^32``, w
    being complemented for the second. If w is below :data:`RARE` that would be too coarse, in the
    tail above all: it is then ``(2^32 w + s + 1/2) / 2^64``, where s is the next spare word. The
    angle is its word over 2^32 of a turn. Returns whether there were enough spare words.
    """
    pairs = (normals.size + 1) // 2
    high, turns, spare = words[:pairs], words[pairs : 2 * pairs].view(np.int32), words[2 * pairs :]
    cosines, sines = normals[:pairs], normals[pairs:]
    scratch = np.empty(_CHUNK, dtype=np.float32)
    # Several short loops, because in one long one the processor has to wait for each result.
    factor = np.float32(-2.0 * stddev * stddev)
    used = 0
    for start in range(0, pairs, _CHUNK):
        upper = high[start : start + _CHUNK]
        for at in range(upper.size):
            smaller = ~upper[at] if upper[at] > _SQRT_HALF else upper[at]
            scratch[at] = _f(smaller) * _WORD + _HALF_WORD
        for look in range(0, upper.size, _LOOK):
            part = scratch[look : look + _LOOK]
            rare = _i(0)
            for at in range(_LOOK):  # also beyond the end: of a fixed length it takes no time
                rare |= _i(part[at] < _IS_RARE)
            if rare:
                for at in range(look, min(look + _LOOK, upper.size)):
                    if scratch[at] < _IS_RARE:
                        if used == spare.size:
                            return False
                        smaller = ~upper[at] if upper[at] > _SQRT_HALF else upper[at]
                        scratch[at] = _f(smaller) * _WORD + (_f(spare[used]) + _HALF) * _TWO_WORDS
                        used += 1
        # log(u) = exponent log(2) + log(1 + x), with exponent 0 and x = u - 1 near one.
        for at in range(upper.size):
            near_one = upper[at] > _SQRT_HALF
            small = scratch[at]
            word = np.float32(small).view(np.int32)
            exponent = _i(_i(word - _SQRT_HALF_BITS) >> _FRACTION)
            mantissa = np.int32(word - _i(exponent << _FRACTION)).view(np.float32)
            x = -small if near_one else mantissa - _ONE
            power = _f(_i(0) if near_one else exponent)
            z = x * x
            rest = z * z * ((_L4 + x * _L5) + z * (_L6 + x * _L7))
            rest = ((_L0 + x * _L1) + z * (_L2 + x * _L3)) + rest
            scratch[at] = factor * (power * _LOG_2 + (x - (z * _HALF - z * (x * rest))))
        angles = turns[start : start + _CHUNK]
        cosine_of, sine_of = cosines[start : start + _CHUNK], sines[start : start + _CHUNK]
        for at in range(sine_of.size):
            turn = angles[at]
            moved = _i(turn + _EIGHTH)  # its two upper bits are the quarter
            angle = _f(_i(turn << _i(2))) * _TURN  # from the middle of the quarter
            z = angle * angle
            sine = angle * (_ONE + z * (_S1 + z * (_S2 + z * _S3)))
            cosine = _ONE + z * (_C1 + z * (_C2 + z * _C3))
            swapped = _i(moved << _i(1)) < _i(0)
            first = sine if swapped else cosine
            second = cosine if swapped else sine
            radius = np.float32(np.sqrt(scratch[at])).view(np.int32)
            minus = _i(_i(moved + _QUARTER) & _SIGN)
            cosine_of[at] = first * np.int32(radius ^ minus).view(np.float32)
            sine_of[at] = second * np.int32(radius ^ _i(moved & _SIGN)).view(np.float32)
        for at in range(sine_of.size, cosine_of.size):
            exact = math.cos(np.float64(angles[at]) * (math.pi * 2.0**-31))
            cosine_of[at] = np.sqrt(scratch[at]) * _f(exact)
    return True


@lru_cache(maxsize=1)
def compiled_box_muller() -> Callable[..., bool]:
    """Return :func:`box_muller` compiled; its first call takes about a second."""
    import numba

    # Fused multiply-adds round less; nothing else about the arithmetic is relaxed.
    compile_function: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"contract"})
    compiled: Callable[..., bool] = compile_function(box_muller)
    return compiled
