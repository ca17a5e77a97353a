"""AES-256 in counter mode by the processor's own instructions, for compiled loops.

OpenSSL makes the same bytes, as fast, and does so wherever it can (:mod:`.keystream`). But
it is called from Python, by one thread at a time; here any number of threads make each their own
piece of the stream, right where they need it. The rounds are instructions of the processor (FIPS
197; their time does not depend on what they encrypt). Only counters and round keys are ours; each
key is compared with OpenSSL before it is used.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["AT_ONCE", "compiled_encrypt", "encrypt_primitive", "lanes_of_host", "round_keys"]

AT_ONCE = 32  # blocks of 16 bytes
_SIDE_BY_SIDE = 8  # vectors, because the processor begins with the next before one is done
_ROUNDS = 14
_ANY, _FIELD, _GENERATOR, _ITS_INVERSE, _AFFINE = 0xFF, 0x11B, 0x03, 0xF6, 0x63


def _times(first: int, second: int) -> int:
    """The product in the field of 256 elements (FIPS 197, section 4.2)."""
    product = 0
    while second:
        if second & 1:
            product ^= first
        first <<= 1
        if first > _ANY:
            first ^= _FIELD
        second >>= 1
    return product


@lru_cache(maxsize=1)
def _substitution() -> list[int]:
    """The table of section 5.1.1: the inverse in the field, then an affine map of its bits."""
    table = [_AFFINE] * 256  # zero has no inverse, and stays zero
    element = inverse = 1
    for _ in range(255):
        element, inverse = _times(element, _GENERATOR), _times(inverse, _ITS_INVERSE)
        mapped = _AFFINE
        for by in range(5):
            mapped ^= (inverse << by | inverse >> (8 - by)) & _ANY
        table[element] = mapped
    return table


def round_keys(key: bytes) -> NDArray[np.uint8]:
    """The round keys of a key of 32 bytes (section 5.2), one in each of 15 rows."""
    table = _substitution()
    words = [list(key[at : at + 4]) for at in range(0, 32, 4)]
    constant = 1
    for at in range(8, 4 * (_ROUNDS + 1)):
        word = words[-1]
        if at % 8 == 0:
            word = [table[byte] for byte in word[1:] + word[:1]]
            word[0] ^= constant
            constant = _times(constant, 2)
        elif at % 8 == 4:
            word = [table[byte] for byte in word]
        words.append([old ^ new for old, new in zip(words[-8], word, strict=True)])
    return np.array(words, dtype=np.uint8).reshape(_ROUNDS + 1, 16)


@lru_cache(maxsize=1)
def lanes_of_host() -> int:
    """How many blocks one instruction encrypts of those that numba may use here; 0 if none."""
    import numba
    from numba.core import codegen

    if platform.machine().lower() not in ("x86_64", "amd64"):
        return 0
    settings: Any = numba.config
    if settings.CPU_NAME or settings.CPU_FEATURES:  # it compiles for another processor
        return 0
    find_features: Any = codegen.get_host_cpu_features
    features = set(find_features().split(","))
    if "+aes" not in features:
        return 0
    if not {"+vaes", "+avx2"} <= features:
        return 1
    return 4 if "+avx512f" in features else 2


@lru_cache(maxsize=4)
def encrypt_primitive(lanes: int) -> Any:
    """``encrypt(keys, counter, result)`` for compiled code: :data:`AT_ONCE` counters from one on.

    Takes addresses of round keys and of the result. A counter is encrypted as twelve
    bytes of zero and its own four, the highest first: as GCM does with a nonce of zeros.
    """
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    word, index = ir.IntType(32), ir.IntType(64)
    block, blocks = ir.VectorType(index, 2), ir.VectorType(index, 2 * lanes)
    width = "" if lanes == 1 else f".{128 * lanes}"

    def vector(values: list[int]) -> Any:
        return ir.Constant(ir.VectorType(word, len(values)), [word(value) for value in values])

    def repeated(builder: Any, one: Any, places: list[int]) -> Any:
        return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined), vector(places))

    def call(builder: Any, name: str, *given: Any) -> Any:
        kind = ir.FunctionType(given[0].type, [one.type for one in given])
        declare: Any = cgutils.get_or_insert_function
        return builder.call(declare(builder.module, kind, name), given)

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        rows = builder.inttoptr(arguments[0], block.as_pointer())
        result = builder.inttoptr(arguments[2], blocks.as_pointer())
        keys = [
            repeated(builder, builder.load(builder.gep(rows, [index(at)]), align=1), [0, 1] * lanes)
            for at in range(_ROUNDS + 1)
        ]
        single = ir.Constant(ir.VectorType(word, 1), ir.Undefined)
        single = builder.insert_element(single, builder.trunc(arguments[1], word), word(0))
        first = repeated(builder, single, [0] * (4 * lanes))
        for start in range(0, AT_ONCE, _SIDE_BY_SIDE * lanes):
            states = []
            for at in range(start, start + _SIDE_BY_SIDE * lanes, lanes):
                offsets = vector([at + lane for lane in range(lanes) for _ in range(4)])
                counters = call(builder, f"llvm.bswap.v{4 * lanes}i32", builder.add(first, offsets))
                last_words = vector([0, 0, 0, 2**32 - 1] * lanes)
                state = builder.bitcast(builder.and_(counters, last_words), blocks)
                states.append(builder.xor(state, keys[0]))
            for key in keys[1:-1]:
                states = [call(builder, f"llvm.x86.aesni.aesenc{width}", s, key) for s in states]
            for at, state in enumerate(states, start // lanes):
                done = call(builder, f"llvm.x86.aesni.aesenclast{width}", state, keys[-1])
                builder.store(done, builder.gep(result, [index(at)]), align=1)
        return context.get_dummy_value()

    @intrinsic
    def encrypt(_: Any, keys: Any, counter: Any, result: Any) -> Any:  # noqa: ARG001
        return types.none(types.int64, types.int64, types.int64), generate

    return encrypt


@lru_cache(maxsize=4)
def compiled_encrypt(lanes: int) -> Callable[[int, int, int], None]:
    """The same for Python."""
    import numba

    encrypt = encrypt_primitive(lanes)

    def call(keys: int, counter: int, result: int) -> None:
        encrypt(keys, counter, result)

    compiled: Any = numba.njit(call)
    function: Callable[[int, int, int], None] = compiled
    return function
