"""Records and answers from files: NPZ without pickle, CSV and Parquet with named columns."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks.anonymity.coded import CodedTable

__all__ = ["Records", "read_answers", "read_records"]

_PREFIX = "probability of "


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


def read_records(argument: str, path: str, *, label: str) -> Records:
    """Read ``records`` and ``labels`` of an NPZ file, or the columns of a table.

    In a table every column but ``label`` must hold numbers.
    """
    if path.lower().endswith(".npz"):
        values, labels = _arrays(argument, path, ("records", "labels"))
        return _checked(argument, path, Records(values, labels))
    table, names = _table(argument, path, label)
    features = [name for name in names if name != label]
    values = np.column_stack([_numbers(argument, path, table, name) for name in features])
    return _checked(argument, path, Records(values, _labels(table, label), tuple(features)))


def read_answers(argument: str, path: str, *, label: str) -> Records:
    """Read ``probabilities`` and ``labels`` of an NPZ file, or columns of probabilities.

    In a table every column but ``label`` is the probability of a class. Labels are the names of
    these columns, with or without the words "probability of", or their numbers from 0; only
    names if any of the names is itself a number.
    """
    if path.lower().endswith(".npz"):
        values, labels = _arrays(argument, path, ("probabilities", "labels"))
        return _checked(argument, path, Records(values, labels))
    table, names = _table(argument, path, label)
    classes = [name for name in names if name != label]
    values = np.column_stack([_numbers(argument, path, table, name) for name in classes])
    labels = _labels(table, label)
    short = [name.removeprefix(_PREFIX) for name in classes]
    if not np.issubdtype(labels.dtype, np.integer) or any(_is_number(name) for name in short):
        labels = _by_name(argument, path, labels, classes, short)
    return _checked(argument, path, Records(values, labels, tuple(short)))


def _by_name(
    argument: str, path: str, labels: NDArray[Any], classes: Sequence[str], short: Sequence[str]
) -> NDArray[np.int64]:
    place = {name: at for names in (short, classes) for at, name in enumerate(names)}
    # Names win over numbers: 1 is the column "1" before it is the column "1.0".
    numbers = {str(int(float(name))): at for at, name in enumerate(short) if _is_whole(name)}
    place = {**numbers, **place}
    unknown = next((text for text in map(str, labels.tolist()) if text not in place), None)
    if unknown is not None:
        expected = f"labels that name one of the columns {', '.join(classes)}; {unknown!r} does not"
        raise InvalidValue(argument, path, expected)
    return np.array([place[str(text)] for text in labels.tolist()], dtype=np.int64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_whole(text: str) -> bool:
    return _is_number(text) and float(text).is_integer()


def _arrays(argument: str, path: str, names: tuple[str, str]) -> tuple[Any, Any]:
    expected = f"an NPZ file with the arrays {names[0]} and {names[1]}, without pickled objects"
    try:
        with np.load(path, allow_pickle=False) as file:
            return file[names[0]], file[names[1]]
    except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        raise InvalidValue(argument, path, expected) from None


def _table(argument: str, path: str, label: str) -> tuple[CodedTable, list[str]]:
    from discreet.attacks.anonymity.coded import read_coded
    from discreet.data.inputs import CsvInput, ParquetInput
    from discreet.data.schema import CsvFormat

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
        raise InvalidValue(argument, path, f"numbers in every cell of the column {name!r}")
    return values


def _labels(table: CodedTable, label: str) -> NDArray[Any]:
    column = table.columns[label]
    texts = [text.decode("utf-8", "replace") for text in column.texts]
    if all(text.isascii() and text.isdecimal() for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64)[column.codes]
    return np.array(texts, dtype=object)[column.codes]


def _checked(argument: str, path: str, records: Records) -> Records:
    shape = records.values.shape
    if records.values.ndim < 2 or len(records) == 0 or shape[0] != len(records):
        shown = f"{path} with shapes {shape} and {records.labels.shape}"
        raise InvalidValue(argument, shown, "one or more records with a label each")
    return records
