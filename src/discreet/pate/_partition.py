"""Parts of private data, one for each teacher: disjoint, or with few teachers for each record.

**Which teacher a record has.** Under ``add_remove`` it follows from the record alone: a keyed
hash of its content, or of its person's name, with a secret key that is drawn once. Nothing else
about the data is looked at, so a record that is added or removed changes the data of one
teacher and of no other. Shuffling and cutting would not do: all later parts would shift.
Of records that are equal the k-th has teacher hash(content, k): removing any of them is
removing the last, and tables with few distinct rows still reach all teachers. Every teacher is
given its records in the order of their hashes, so that its data follow from the set of all
records and not from their order.

Under ``replace`` the number of records is public, and the teacher is a keyed hash of the
record's position: a replaced record changes one teacher.

**Teachers that share records.** With a ``cap`` above 1 each record has ``cap`` such hashes and
goes to the teachers they name, at most ``cap``. A record that is added, removed or replaced then
changes up to ``cap`` votes: the histogram moves by 2 cap in L1 and sqrt(2) cap in L2, where all of
them leave one class for another. Only :class:`SampledVotes` pays for that.

**What is public.** The number of teachers, the rule, and a commitment to the key (a hash, by
which whoever holds the key can show later that it was used). How many records a teacher has is
private, and an empty part is no error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._files import write_file
from discreet.data import RawBatch, column_array
from discreet.errors import FileUnusable, InvalidValue, NotApplicable
from discreet.privacy import Relation
from discreet.randomness import Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray


_KEY_BYTES = 32
_KEY_FILE = "partition.key"
_NAME, _PLACE = 16, 8
_MOST_TEACHERS = 10**6


@final
@dataclass(frozen=True, eq=False)
class Partition:
    """Which records each teacher has. Private, but for ``record``; it cannot be pickled."""

    teachers: int
    unit: str
    relation: Relation
    commitment: str
    _members: tuple[NDArray[np.int64], ...]
    _key: bytes
    cap: int = 1

    def __repr__(self) -> str:
        return f"<Partition into {self.teachers} teachers by {self.unit}: private>"

    def __reduce__(self) -> Any:
        raise NotApplicable("a partition of private records cannot be pickled")

    def members(self, teacher: int) -> NDArray[np.int64]:
        """The records of one teacher, in the order in which it is to see them. Private."""
        place = _validate.integer("teacher", teacher, at_least=0, at_most=self.teachers - 1)
        return self._members[place]

    def seed(self, teacher: int) -> int:
        """The seed of one teacher's training; it follows from the key and from nothing else."""
        place = _validate.integer("teacher", teacher, at_least=0, at_most=self.teachers - 1)
        content = place.to_bytes(8, "little")
        digest = hashlib.blake2b(content, digest_size=4, key=self._key, person=b"seed").digest()
        return int.from_bytes(digest, "little") >> 1

    @property
    def record(self) -> dict[str, Any]:
        """What a certificate says about the partition: public facts only."""
        rule = "keyed hash of the position"
        if self.relation is Relation.ADD_REMOVE:
            rule = f"keyed hash of the {self.unit}"
        return {
            "teachers": self.teachers,
            "unit": self.unit,
            "rule": rule,
            "disjoint": self.cap == 1,
            **({"teachers_per_record": self.cap} if self.cap > 1 else {}),
            "key_commitment": self.commitment,
        }


def partition_records(
    *columns: NDArray[Any],
    teachers: int,
    persons: Any = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    cap: int = 1,
    key: bytes | None = None,
    source: Source | None = None,
    insecure_seed: int | None = None,
) -> Partition:
    """Assign every record to one teacher, or to at most ``cap`` of them.

    ``columns`` are arrays of numbers with one entry, or one row, for each record: features and
    labels. With ``persons`` all rows of a person have the same teacher, however many they are,
    and rows without a name are left out. ``key`` makes an earlier partition again.

    >>> import numpy as np
    >>> ages = np.array([31, 47, 52, 28])
    >>> parts = partition_records(ages, teachers=2, insecure_seed=1)
    >>> others = ages[1:]
    >>> fewer = partition_records(others, teachers=2, insecure_seed=1)
    >>> before = [sorted(ages[parts.members(t)].tolist()) for t in range(2)]
    >>> after = [sorted(others[fewer.members(t)].tolist()) for t in range(2)]
    >>> sum(a != b for a, b in zip(before, after))
    1

    Parameters
    ----------
    *columns
        Arrays of records, by which equal ones are recognised.
    teachers
        How many parts.
    persons
        Whose row each one is, if persons are protected.
    relation
        What the guarantee compares.
    cap
        How many teachers a record may have; above 1 only for :class:`SampledVotes`.
    key
        The secret key, drawn if it is not given.
    source, insecure_seed
        Where the key is drawn from.

    Returns
    -------
    Partition
        Which rows each teacher has.

    Raises
    ------
    InvalidValue
        If an argument is wrong.
    """
    count = _validate.integer("teachers", teachers, at_least=1, at_most=_MOST_TEACHERS)
    most = _validate.integer("cap", cap, at_least=1, at_most=count)
    neighbours = Relation.parse(relation)
    tables = [_plain(column) for column in columns]
    if not tables or any(len(table) != len(tables[0]) for table in tables):
        raise InvalidValue("columns", f"{len(tables)} arrays", "arrays of one length")
    rows = len(tables[0])
    bits = choose_source(source, insecure_seed)
    secret = draw_key(bits) if key is None else _check_key(key)
    if neighbours is Relation.REPLACE:
        if persons is not None:
            raise InvalidValue("relation", "replace", "add_remove where records have persons")
        numbers = [position.to_bytes(_PLACE, "little") for position in range(rows)]
        places = _places(numbers, count, most, secret)
        return _make(places, np.arange(rows), count, "record", neighbours, secret)
    names = _digests(tables, secret)
    if persons is None:
        places = _teachers_of_row(names, count, most, secret)
        order = np.lexsort((names[:, 1], names[:, 0]))
        return _make(places, order, count, "record", neighbours, secret)
    who, places = _teachers_of_person(persons, rows, count, most, secret)
    order = np.lexsort((names[:, 1], names[:, 0], who[:, 1], who[:, 0]))
    return _make(places, order, count, "person", neighbours, secret)


def draw_key(source: Source) -> bytes:
    """A fresh secret key."""
    return source.read(_KEY_BYTES)


def keep_key(directory: Path, source: Source) -> bytes:
    """Return the key that this cache was begun with, or keep a fresh one."""
    path = directory / _KEY_FILE
    fresh = draw_key(source)
    try:
        if not path.exists():
            write_file(path, fresh, private=True)
        key = path.read_bytes()
    except OSError:
        key = b""
    if len(key) != len(fresh):
        raise FileUnusable("cache", str(directory), f"a cache whose {_KEY_FILE} is not damaged")
    return key


def check_disjoint(members: Sequence[NDArray[np.int64]], *, rows: int, cap: int = 1) -> None:
    """Raise if any record has more than ``cap`` teachers, or there is no such record.

    Run on what teachers are given: every guarantee rests on it.

    >>> check_disjoint([np.array([0, 2]), np.array([1, 2])], rows=3)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: partition = 'withheld': expected every record in at most one part

    Parameters
    ----------
    members
        The rows of each teacher.
    rows
        How many rows there are.
    cap
        How many teachers a row may have.

    Raises
    ------
    InvalidValue
        If a row is handed out too often, or does not exist.
    """
    together = np.concatenate([np.asarray(part, dtype=np.int64) for part in members])
    inside = bool(np.all((together >= 0) & (together < rows)))
    if not inside or np.bincount(together, minlength=1).max() > cap:
        parts = "one part" if cap == 1 else f"{cap} parts"
        raise InvalidValue("partition", "withheld", f"every record in at most {parts}")


def shared_records(private: Any, public: Any) -> NDArray[np.bool_]:
    """Return which public rows are private records as well. PRIVATE: not for release.

    For the keeper of the data, before anything is planned. :class:`PATEClassifier` never asks:
    whether it refused would tell who is in the data. The guarantee does not need it: it speaks of
    what the private copy adds. A public copy is not protected by anything.

    >>> shared_records([[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [5.0, 6.0]]).tolist()
    [True, False]

    Parameters
    ----------
    private, public
        Rows with the same columns.

    Returns
    -------
    array of bool
        Which public rows are private ones too. Private: keep it in the house.
    """
    key = bytes(_KEY_BYTES)
    ours, theirs = (
        _digests([np.asarray(table, dtype=np.float64) + 0.0], key) for table in (private, public)
    )
    known = set(map(tuple, ours.tolist()))
    return np.array([tuple(row) in known for row in theirs.tolist()], dtype=np.bool_)


def _plain(column: Any) -> NDArray[Any]:
    array = np.ascontiguousarray(column)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise InvalidValue("columns", f"an array of {array.dtype}", "arrays of numbers, by record")
    return array


def _check_key(key: object) -> bytes:
    if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
        raise InvalidValue("key", "withheld", f"{_KEY_BYTES} secret bytes")
    return key


def _digests(tables: Sequence[NDArray[Any]], key: bytes) -> NDArray[np.uint64]:
    """A keyed name of 128 bits for the content of each record."""
    parts = [
        np.ascontiguousarray(table).reshape(len(table), -1).view(np.uint8).reshape(len(table), -1)
        if table.size
        else np.empty((len(table), 0), dtype=np.uint8)
        for table in tables
    ]
    content = np.concatenate(parts, axis=1)
    named = [
        hashlib.blake2b(row.data, digest_size=_NAME, key=key, person=b"record").digest()
        for row in content
    ]
    return np.frombuffer(b"".join(named), dtype="<u8").reshape(-1, 2)


def _teachers_of_row(
    names: NDArray[np.uint64], teachers: int, cap: int, key: bytes
) -> NDArray[np.int64]:
    """hash(content, k) for the k-th record of equal content, ``cap`` rows of them."""
    order = np.lexsort((names[:, 1], names[:, 0]))
    listed = names[order]
    first = np.ones(len(listed), dtype=np.bool_)
    first[1:] = np.any(listed[1:] != listed[:-1], axis=1)
    starts = np.flatnonzero(first)
    ranks = np.arange(len(listed)) - np.repeat(starts, np.diff(np.append(starts, len(listed))))
    contents = [
        name.tobytes() + int(rank).to_bytes(8, "little")
        for name, rank in zip(listed, ranks, strict=True)
    ]
    places = np.empty((cap, len(names)), dtype=np.int64)
    places[:, order] = _places(contents, teachers, cap, key)
    return places


def person_column(persons: Any, rows: int) -> NDArray[Any]:
    """Return the persons of the records as one column, or raise about its form.

    >>> person_column(["ann", "bob"], 3)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: persons = 'another length than X': expected one person ...
    """
    try:
        column = column_array("persons", persons, argument="persons")
    except InvalidValue as error:
        raise InvalidValue("persons", error.value, error.expected) from None
    if column.size != rows:
        raise InvalidValue("persons", "another length than X", "one person for each row of X")
    return column


def _teachers_of_person(
    persons: Any, rows: int, teachers: int, cap: int, key: bytes
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    column = person_column(persons, rows)
    codes, texts = RawBatch({"persons": column}, column.size).texts("persons")
    if not texts:
        return np.empty((0, 2), dtype=np.uint64), np.empty((cap, 0), dtype=np.int64)
    names = [
        hashlib.blake2b(text, digest_size=_NAME, key=key, person=b"name").digest() for text in texts
    ]
    places = _places(names, teachers, cap, key)
    places[:, [not text for text in texts]] = -1
    return np.frombuffer(b"".join(names), dtype="<u8").reshape(-1, 2)[codes], places[:, codes]


def _places(contents: Sequence[bytes], teachers: int, cap: int, key: bytes) -> NDArray[np.int64]:
    """The teachers of each content, ``cap`` rows of keyed hashes; two may name one teacher."""
    marks = [b"", *(b"again" + copy.to_bytes(_PLACE, "little") for copy in range(1, cap))]
    places = [_place(content + mark, teachers, key) for mark in marks for content in contents]
    return np.array(places, dtype=np.int64).reshape(cap, len(contents))


def _place(content: bytes, teachers: int, key: bytes) -> int:
    digest = hashlib.blake2b(content, digest_size=_PLACE, key=key, person=b"teacher").digest()
    return int.from_bytes(digest, "little") % teachers


def _group(
    places: NDArray[np.int64], order: NDArray[np.int64], teachers: int
) -> tuple[NDArray[np.int64], ...]:
    """The members of each teacher, in the given order, each once; place -1 has no teacher."""
    rows = len(order)
    found = places[:, order] * rows + np.arange(rows)
    by_teacher = np.unique(found[found >= 0])
    ends = np.searchsorted(by_teacher, rows * np.arange(1, teachers))
    return tuple(np.split(order[by_teacher % max(1, rows)], ends))


def _make(
    places: NDArray[np.int64],
    order: NDArray[np.int64],
    teachers: int,
    unit: str,
    relation: Relation,
    key: bytes,
) -> Partition:
    members, cap = _group(places, order, teachers), len(places)
    check_disjoint(members, rows=len(order), cap=cap)
    commitment = hashlib.blake2b(key, digest_size=_NAME, person=b"commitment").hexdigest()
    return Partition(teachers, unit, relation, commitment, members, key, cap)
