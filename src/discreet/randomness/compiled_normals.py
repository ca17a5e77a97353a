"""The Box-Muller transform for float32 in loops that numba compiles to vector instructions.

The same numbers as the numpy transform of :mod:`.tensor` up to rounding: the uniform has all its
64 random bits and is split in double precision, the logarithm of its mantissa, sine and cosine are
polynomials in single precision. A normal is off by at most :data:`TOLERANCE` times its radius,
about three units in the last place, as with numpy's own functions. The source runs uncompiled,
slowly, as a twin.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["TOLERANCE", "box_muller", "compiled_box_muller", "numba_is_installed"]

TOLERANCE = 4e-7

_f = np.float32
_i = np.int32
_ONE, _HALF, _LOG_2 = _f(1), _f(0.5), _f(math.log(2))
# (log(1 + x) - x + x^2 / 2) / x^3 for sqrt(1/2) <= 1 + x < sqrt(2), by weighted least squares on
# Chebyshev nodes: log(1 + x) is off by 7e-9 relatively.
_L0, _L1, _L2, _L3 = _f(0.33333355), _f(-0.25000852), _f(0.19999826), _f(-0.1662137)
_L4, _L5, _L6, _L7 = _f(0.14227115), _f(-0.13202104), _f(0.12620327), _f(-0.07362868)
# Taylor coefficients up to an eighth of a turn.
_S1, _S2, _S3, _S4 = (_f((-1) ** n / math.factorial(2 * n + 1)) for n in range(1, 5))
_C1, _C2, _C3, _C4, _C5 = (_f((-1) ** n / math.factorial(2 * n)) for n in range(1, 6))
_TURN = _f(math.pi * 2.0**-31)
_SQRT_HALF = np.int64(0x3FE6A09E667F3BCD)  # the bits of the double sqrt(1/2)
_FRACTION = np.int64(52)


@lru_cache(maxsize=1)
def numba_is_installed() -> bool:
    """Whether the extra ``jit`` is there."""
    return importlib.util.find_spec("numba") is not None


def box_muller(
    bits: Any,
    turns: Any,
    stddev: Any,
    uniforms: Any,
    words: Any,
    exponents: Any,
    radius: Any,
    cosines: Any,
    sines: Any,
) -> None:
    """Fill ``cosines`` and ``sines`` (float32) from 64 and 32 random bits for each pair.

    ``uniforms`` (float64) with its view ``words`` (int64), ``exponents`` (int32) and ``radius``
    (float32) are working memory. ``sines`` may be shorter by one.
    """
    for at in range(bits.size):
        uniforms[at] = (np.float64(bits[at]) + 0.5) * 2.0**-64
    # u = 2^exponent (1 + x) with 1 + x between sqrt(1/2) and sqrt(2), all exact.
    for at in range(bits.size):
        exponent = (words[at] - _SQRT_HALF) >> _FRACTION
        exponents[at] = _i(exponent)
        words[at] = words[at] - (exponent << _FRACTION)
    for at in range(bits.size):
        x = _f(uniforms[at] - 1.0)
        z = x * x
        rest = _L4 + x * (_L5 + x * (_L6 + x * _L7))
        rest = _L0 + x * (_L1 + x * (_L2 + x * (_L3 + x * rest)))
        logarithm = _f(exponents[at]) * _LOG_2 + (x - (z * _HALF - z * (x * rest)))
        radius[at] = np.sqrt(_f(-2) * logarithm) * stddev
    for at in range(sines.size):
        turn = turns[at]
        quarter = _i(_i(turn + _i(1 << 29)) >> _i(30))
        angle = _f(_i(turn - _i(quarter << _i(30)))) * _TURN
        z = angle * angle
        sine = angle * (_ONE + z * (_S1 + z * (_S2 + z * (_S3 + z * _S4))))
        cosine = _ONE + z * (_C1 + z * (_C2 + z * (_C3 + z * (_C4 + z * _C5))))
        swapped = (quarter & _i(1)) != 0
        first = sine if swapped else cosine
        second = cosine if swapped else sine
        length = radius[at]
        cosines[at] = first * (-length if (_i(quarter + _i(1)) & _i(2)) != 0 else length)
        sines[at] = second * (-length if (quarter & _i(2)) != 0 else length)
    for at in range(sines.size, cosines.size):
        cosines[at] = radius[at] * _f(math.cos(np.float64(turns[at]) * (math.pi * 2.0**-31)))


@lru_cache(maxsize=1)
def compiled_box_muller() -> Callable[..., None]:
    """Return :func:`box_muller` compiled; its first call takes about a second."""
    import numba

    # Fused multiply-adds round less; nothing else about the arithmetic is relaxed.
    compile_function: Any = numba.njit(error_model="numpy", nogil=True, fastmath={"contract"})
    compiled: Callable[..., None] = compile_function(box_muller)
    return compiled
