"""From records to the rows of a bounded table: cells read once, persons numbered, rows in line.

Cells are read by the rules of :mod:`discreet.data`, wherever the records are, so that every engine
stores the same integers. A text that is not UTF-8 or has more than 100 characters is ``other``.

**The line.** The rows of each person stand in a line, by that person's own rows and a secret key
alone. A query keeps the rows that satisfy ``where``, and of those the first ``cap`` in line of each
person; then it makes groups, bins or counts of what is left. So for every key, adding or removing
a person adds or removes at most ``cap`` of the rows that a query uses, over all its groups
and questions together, and leaves all others as they were. Privacy rests on nothing else: a poor
choice or a key that leaked would make it less random, never less capped.

A row is identified by its content and its occurrence: the n-th of a person's rows that are
equal after reading has the number n, and as they are equal it does not matter which one is called
the n-th. Its place is a CBC-MAC (AES-256; all messages of a table have one length) of person,
content and number, so the first m in line of any rows that a filter leaves are a random subset of
them. It depends neither on the order of rows nor on the engine.

A row that names no person cannot be protected and is left out. Persons are
told apart by their names, exactly; the numbers that stand for them mean nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from discreet.data import Categorical, RawBatch, Schema, import_arrow
from discreet.engines._lowering import StoredColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

PERSON = "person"
RANK = "rank"
OWNED = "owned"  # in a database: how many rows the person of a row has in the whole table
RULES = 3  # the version of the rules by which rows are read and put in line
LONGEST_TEXT = 100
_NAME = "name"


def read_rows(batch: RawBatch, schema: Schema, columns: Mapping[str, StoredColumn]) -> Any:
    """Return the stored columns of some records, and the name of each person, as an Arrow table."""
    pa = import_arrow("pyarrow")
    arrays: dict[str, Any] = {}
    for name, column in schema.columns.items():
        stored = columns[name]
        if isinstance(column, Categorical) and stored.is_text:
            codes, texts = batch.texts(name)
            kept = [_stored_text(text, column) for text in texts]
            arrays[stored.stored_name] = _take(pa.array(kept, pa.string()), codes)
            continue
        values = column.to_domain(batch.numbers(name, column))
        if stored.labels is None:
            assert stored.grid is not None
            values = np.rint(values / float(stored.grid.step))
        assert stored.storage is not None
        arrays[stored.stored_name] = pa.array(values.astype(stored.storage))
    if schema.person is None:
        return pa.table(arrays)
    codes, names = batch.texts(schema.person)
    arrays[_NAME] = _take(pa.array(names, pa.binary()), codes)
    named = np.array([bool(name) for name in names] or [False], dtype=bool)
    return pa.table(arrays).filter(named[codes])


def _take(values: Any, codes: NDArray[np.int64]) -> Any:
    return values.take(import_arrow("pyarrow").array(codes))


def _stored_text(text: bytes, column: Categorical) -> str:
    if not text:
        return column.other if column.missing is None else column.missing
    try:
        read = text.decode()
    except UnicodeDecodeError:
        return column.other
    return read if len(read) <= LONGEST_TEXT else column.other


def rank_rows(table: Any, key: bytes, *, bucket: int = 0) -> Any:
    """Number the persons of some rows and put the rows of each in line.

    Parameters
    ----------
    table
        What :func:`read_rows` made; all rows of each person in it.
    key
        The secret that decides the lines.
    bucket
        The number of this part of a larger table, so that persons of two parts differ.

    Returns
    -------
    pyarrow.Table
        The stored columns, ``person`` and ``rank`` (from 1), ordered by both. A table without
        names is returned as it is.

    """
    pa = import_arrow("pyarrow")
    if _NAME not in table.column_names:
        return table
    names = table.column(_NAME).combine_chunks().dictionary_encode()
    persons = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    table = table.drop_columns([_NAME])
    places = _places(_digests(names.dictionary.to_pylist())[persons], table, key)
    order = np.lexsort((places[:, 1], places[:, 0], persons))
    # Rows of one person with the same content have the same place so far: mix in their number.
    same = np.zeros(order.size, dtype=bool)
    same[1:] = (persons[order][1:] == persons[order][:-1]) & np.all(
        places[order][1:] == places[order][:-1], axis=1
    )
    occurrence = np.empty(order.size, dtype=np.uint64)
    occurrence[order] = _from_start(~same).astype(np.uint64)
    places[:, 0] ^= occurrence
    lines = _encrypt(places, key)
    order = np.lexsort((lines[:, 1], lines[:, 0], persons))
    owners = persons[order]
    first = np.ones(order.size, dtype=bool)
    first[1:] = owners[1:] != owners[:-1]
    ranked = table.take(pa.array(order)).combine_chunks()
    ranked = ranked.append_column(PERSON, pa.array((bucket << 40) + owners))
    return ranked.append_column(RANK, pa.array((_from_start(first) + 1).astype(np.int32)))


def _from_start(first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many rows ago the last ``first`` row was."""
    at = np.arange(first.size)
    return np.asarray(at - np.maximum.accumulate(np.where(first, at, 0)), dtype=np.int64)


def _digests(texts: list[bytes]) -> NDArray[np.uint64]:
    joined = b"".join(hashlib.sha256(text).digest()[:16] for text in texts)
    return np.frombuffer(joined, dtype=np.uint64).reshape(-1, 2)


def _places(start: NDArray[np.uint64], table: Any, key: bytes) -> NDArray[np.uint64]:
    """Return the CBC-MAC of each row: two integers a block, a text as its digest."""
    pa = import_arrow("pyarrow")
    halves: list[NDArray[np.uint64]] = []
    for column in table.columns:
        if pa.types.is_string(column.type):
            coded = column.combine_chunks().dictionary_encode()
            texts = [text.encode() for text in coded.dictionary.to_pylist()]
            codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            digests = _digests(texts)[codes] if texts else np.empty((0, 2), dtype=np.uint64)
            halves += [digests[:, 0], digests[:, 1]]
        else:
            halves.append(column.to_numpy().astype(np.int64).view(np.uint64))
    if len(halves) % 2:
        halves.append(np.zeros(len(start), dtype=np.uint64))
    state = _encrypt(np.ascontiguousarray(start), key)
    for at in range(0, len(halves), 2):
        state[:, 0] ^= halves[at]
        state[:, 1] ^= halves[at + 1]
        state = _encrypt(state, key)
    return state


def _encrypt(blocks: NDArray[np.uint64], key: bytes) -> NDArray[np.uint64]:
    cipher = Cipher(algorithms.AES(hashlib.sha256(key).digest()), modes.ECB()).encryptor()
    done = bytearray(blocks.nbytes + 15)
    cipher.update_into(np.ascontiguousarray(blocks).tobytes(), done)
    return np.frombuffer(done, dtype=np.uint64, count=blocks.size).reshape(-1, 2).copy()
