"""Records and answers from files: NPZ without pickle, CSV and Parquet with named columns.

Files of one experiment are joined by the names of their columns, never by their places.
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.attacks._coded_table import CodedTable, read_coded
from discreet.data import CsvFormat, CsvInput, ParquetInput
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PREFIX = "probability of "
_MOST_CELLS = 500_000_000  # 4 GB of dense numbers


@dataclass(frozen=True)
class Records:
    """Records as numbers, their labels, and the names of the columns where there are any."""

    values: NDArray[Any]
    labels: NDArray[Any]
    columns: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Records and labels as attacks take them."""
        return self.values, self.labels

    def place(self, argument: str, column: str, given: str) -> int:
        """Return the place of a column by its name, or by its number if there are no names."""
        if self.columns is not None:
            if column not in self.columns:
                expected = f"one of the columns {', '.join(self.columns)}"
                raise InvalidValue(argument, given, expected)
            return self.columns.index(column)
        found = _number(argument, column)
        if self.values.ndim != 2 or found >= self.values.shape[1]:
            raise InvalidValue(argument, given, "numbers of columns of records, from 0")
        return found

    def reorder(self, places: Sequence[int]) -> Records:
        """Return the same with the columns at these places, in this order."""
        names = None if self.columns is None else tuple(self.columns[place] for place in places)
        return replace(self, values=self.values[:, list(places)], columns=names)


@dataclass(frozen=True)
class Answers(Records):
    """Answers of a model: ``labels`` are columns of ``values``, by name or by ``numbers``."""

    numbers: bool = False

    def reorder(self, places: Sequence[int]) -> Records:
        """Return the same, where every label still means the class that it meant."""
        return replace(super().reorder(places), labels=np.argsort(places)[self.labels])


def align_columns(
    columns: Sequence[str] | None, argument: str, path: str, records: Records, *, of: str
) -> Records:
    """Return records whose columns are those of ``columns`` in that order, or raise.

    ``columns`` are the names that ``of`` has: another file, or the model; ``None`` if its columns
    have no names, as in NPZ files, which are joined with each other only.

    Parameters
    ----------
    columns
        The order to bring them to, or None for files without names.
    argument, path, of
        Whose columns these are, and whose the others, for errors.
    records
        What was read.

    Returns
    -------
    Records
        The same, in that order.

    Raises
    ------
    InvalidValue
        If a column is missing, further or repeated.
    """
    if records.columns == (None if columns is None else tuple(columns)):
        return records
    if columns is None or records.columns is None:
        named = "no names" if columns is None else f"the names {', '.join(columns)}"
        raise InvalidValue(argument, path, f"columns as in {of}, which have {named}")
    found = {_plain_name(name): place for place, name in enumerate(records.columns)}
    wanted = {_plain_name(name): name for name in columns}
    missing = [name for plain, name in wanted.items() if plain not in found]
    surplus = [name for name in records.columns if _plain_name(name) not in wanted]
    if missing or surplus:
        wrong = [f"lacks {', '.join(missing)}"] if missing else []
        wrong += [f"has also {', '.join(surplus)}"] if surplus else []
        raise InvalidValue(argument, path, f"the columns of {of}; it {' and '.join(wrong)}")
    places = [found[plain] for plain in wanted]
    if isinstance(records, Answers) and records.numbers and places != sorted(places):
        # The number of a class is a place in this file, or in the first one: who knows?
        expected = f"labels that are names of classes: its columns are in another order than {of}"
        raise InvalidValue(argument, path, expected)
    return records.reorder(places)


def read_records(argument: str, path: str, *, label: str, text: str | None = None) -> Records:
    """Read ``records`` and ``labels`` of an NPZ file, or the columns of a table.

    In a table every column but ``label`` must hold numbers. The arrays ``data``, ``indices``,
    ``indptr`` and ``shape`` of a sparse matrix by rows may stand for ``records``; the model is
    asked about dense rows.

    Parameters
    ----------
    argument, path
        The name of an option, for errors, and its file.
    label
        The column of the true class.
    text
        The column of a table with the texts that the model is asked about; others are left out.

    Returns
    -------
    Records
        Records and labels.

    Raises
    ------
    InvalidValue
        If the file cannot be read.
    """
    if path.lower().endswith(".npz"):
        values, labels = _arrays(argument, path, ("records", "labels"))
        return _check_records(argument, path, Records(values, labels))
    table, names = _table(argument, path, label)
    if text is not None:
        if text == label or text not in names:
            raise InvalidValue("text", text, f"a column of {path} beside {label}")
        return _check_records(argument, path, Records(_texts(table, text), _labels(table, label)))
    features = [name for name in names if name != label]
    values = np.column_stack([_numbers(argument, path, table, name) for name in features])
    _refuse_twice(argument, path, features)
    return _check_records(argument, path, Records(values, _labels(table, label), tuple(features)))


def read_answers(argument: str, path: str, *, label: str) -> Records:
    """Read ``probabilities`` and ``labels`` of an NPZ file, or columns of probabilities.

    In a table every column but ``label`` is the probability of a class. Labels are the names of
    these columns, with or without the words "probability of", or their numbers from 0; only
    names if any of the names is itself a number. 1 and 1.0 are one name.

    Parameters
    ----------
    argument, path
        The name of an option, for errors, and its file.
    label
        The column of the true class.

    Returns
    -------
    Records
        Probabilities and labels.

    Raises
    ------
    InvalidValue
        If the file cannot be read.
    """
    if path.lower().endswith(".npz"):
        values, labels = _arrays(argument, path, ("probabilities", "labels"))
        return _check_records(argument, path, Answers(values, labels, numbers=True))
    table, names = _table(argument, path, label)
    classes = [name for name in names if name != label]
    values = np.column_stack([_numbers(argument, path, table, name) for name in classes])
    labels = _labels(table, label)
    short = [name.removeprefix(_PREFIX) for name in classes]
    _refuse_twice(argument, path, short)
    numbers = np.issubdtype(labels.dtype, np.integer) and not any(map(_is_number, short))
    if not numbers:
        labels = _positions_by_name(argument, path, labels, classes, short)
    return _check_records(argument, path, Answers(values, labels, tuple(short), numbers=numbers))


def _positions_by_name(
    argument: str, path: str, labels: NDArray[Any], classes: Sequence[str], short: Sequence[str]
) -> NDArray[np.int64]:
    place = {_plain_name(name): at for names in (short, classes) for at, name in enumerate(names)}
    texts = [_plain_name(str(label)) for label in labels.tolist()]
    unknown = next((text for text in texts if text not in place), None)
    if unknown is not None:
        expected = f"labels that name one of the columns {', '.join(classes)}; {unknown!r} does not"
        raise InvalidValue(argument, path, expected)
    return np.array([place[text] for text in texts], dtype=np.int64)


def _refuse_twice(argument: str, path: str, names: Sequence[str]) -> None:
    counts = Counter(map(_plain_name, names))
    twice = next((name for name in names if counts[_plain_name(name)] > 1), None)
    if twice is not None:
        raise InvalidValue(argument, path, f"each column once; {twice!r} is there twice")


def _number(argument: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidValue(argument, text, "the number of a column, from 0")
    return int(text)


def _plain_name(name: str) -> str:
    """The name by which columns are compared: many tools write the class 1 as 1.0."""
    whole = re.fullmatch(r"([+-]?[0-9]+)\.0*", name)
    return name if whole is None else whole[1]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _arrays(argument: str, path: str, names: tuple[str, str]) -> tuple[Any, Any]:
    expected = f"an NPZ file with the arrays {names[0]} and {names[1]}, without pickled objects"
    try:
        with np.load(path, allow_pickle=False) as file:
            if "indptr" in file.files and names[0] not in file.files:
                return _dense(argument, path, file), file[names[1]]
            return file[names[0]], file[names[1]]
    except InvalidValue:
        raise
    except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        raise InvalidValue(argument, path, expected) from None


def _dense(argument: str, path: str, file: Any) -> NDArray[Any]:
    """The rows of a sparse matrix, as scipy.sparse.save_npz writes it."""
    from scipy import sparse

    rows, columns = (int(size) for size in file["shape"])
    if rows * columns > _MOST_CELLS:
        raise InvalidValue(
            argument, path, f"at most {_MOST_CELLS:,} cells; it has {rows * columns:,}"
        )
    matrix = sparse.csr_matrix(
        (file["data"], file["indices"], file["indptr"]), shape=(rows, columns)
    )
    matrix.check_format(full_check=True)
    return np.asarray(matrix.toarray())


def _table(argument: str, path: str, label: str) -> tuple[CodedTable, list[str]]:
    place = Path(path)
    try:
        if place.name.lower().endswith((".parquet", ".pq")):
            names = list(ParquetInput(place).names())
        else:
            names = list(CsvInput(place, CsvFormat()).names() or [])
    except InvalidValue as error:
        renamed = error.argument.replace("data", argument, 1)
        raise InvalidValue(renamed, error.value, error.expected) from None
    if label not in names:
        raise InvalidValue("label", label, f"a column of {path}")
    if len(names) < 2:
        raise InvalidValue(argument, path, f"a table with other columns than {label}")
    return read_coded(path, names, argument=argument), names


def _numbers(argument: str, path: str, table: CodedTable, name: str) -> NDArray[np.float64]:
    column = table.columns[name]
    values = column.numbers()[column.codes] if column.texts else np.empty(0)
    if np.isnan(values).any():
        expected = f"numbers in every cell of the column {name!r}; --text says that it has texts"
        raise InvalidValue(argument, path, expected)
    return values


def _texts(table: CodedTable, name: str) -> NDArray[Any]:
    column = table.columns[name]
    texts = [text.decode("utf-8", "replace") for text in column.texts]
    return np.array(texts, dtype=object)[column.codes]


def _labels(table: CodedTable, label: str) -> NDArray[Any]:
    found = _texts(table, label)
    if all(text.isascii() and text.isdecimal() for text in found):
        return found.astype(np.int64)
    return found


def _check_records(argument: str, path: str, records: Records) -> Records:
    shape = records.values.shape
    if records.labels.ndim != 1:
        shown = f"{path} with labels of shape {records.labels.shape}"
        raise InvalidValue(argument, shown, "one label for each record")
    texts = records.values.dtype.kind in "OU"
    if records.values.ndim < 2 - texts or len(records) == 0 or shape[0] != len(records):
        shown = f"{path} with shapes {shape} and {records.labels.shape}"
        raise InvalidValue(argument, shown, "one or more records with a label each")
    return records
