"""Public tables and texts: Adult census income, Location-30, SST-2."""

from __future__ import annotations

import csv
import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from discreet.data import catalogue
from discreet.data.sources import DataCorrupt, find

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Census", "LabelledRecords", "Sentences", "adult", "location30", "sst2"]

ADULT_COLUMNS = {
    "age": int,
    "workclass": str,
    "fnlwgt": int,
    "education": str,
    "education-num": int,
    "marital-status": str,
    "occupation": str,
    "relationship": str,
    "race": str,
    "sex": str,
    "capital-gain": int,
    "capital-loss": int,
    "hours-per-week": int,
    "native-country": str,
    "income": str,
}
"""Column names and types, as its description (adult.names) gives them."""

_LOCATION_FEATURES = 446


@dataclass(frozen=True, eq=False)
class Census:
    """Two tables, each a mapping from column name to a numpy array of its values.

    Numbers are ``int64``; categories are strings, with ``"?"`` for an unknown one.
    """

    train: dict[str, NDArray[Any]]
    test: dict[str, NDArray[Any]]
    revision: str


@dataclass(frozen=True, eq=False)
class LabelledRecords:
    """Feature rows (n, d) and labels (n,)."""

    x: NDArray[np.uint8]
    y: NDArray[np.uint8]
    classes: tuple[str, ...]
    revision: str


@dataclass(frozen=True, eq=False)
class Sentences:
    """Texts and their labels for three parts: ``texts["train"][i]`` has ``labels["train"][i]``."""

    texts: dict[str, tuple[str, ...]]
    labels: dict[str, NDArray[np.uint8]]
    classes: tuple[str, ...]
    revision: str


def adult(*, verify: bool = True, download: bool = True) -> Census:
    """Census income: 32,561 and 16,281 people, 14 columns and ``income`` (Becker, Kohavi 1996).

    The test file marks its incomes with a full stop; here both parts have the same two values,
    ``"<=50K"`` and ``">50K"``.
    """
    train = find(catalogue.ADULT["train"], verify=verify, download=download)
    test = find(catalogue.ADULT["test"], verify=verify, download=download)
    return Census(train.read(_read_adult), test.read(_read_adult), train.revision)


def location30(*, verify: bool = True, download: bool = True) -> LabelledRecords:
    """Visits of 5010 people in Bangkok: 446 yes-or-no features, 30 groups (Shokri et al. 2017)."""
    found = find(catalogue.LOCATION30, verify=verify, download=download)
    x, y = found.read(_read_location)
    return LabelledRecords(x, y, tuple(f"group {k}" for k in range(1, 31)), found.revision)


def sst2(*, verify: bool = True, download: bool = True) -> Sentences:
    """Film reviews, negative or positive: 67,349 phrases, 872 and 1821 sentences.

    (Socher et al. 2013, binary task.) Unlike in the GLUE benchmark, the test part has labels.
    """
    found = {
        part: find(file, verify=verify, download=download) for part, file in catalogue.SST2.items()
    }
    parts = {part: file.read(_read_sentences) for part, file in found.items()}
    return Sentences(
        {part: texts for part, (texts, _) in parts.items()},
        {part: labels for part, (_, labels) in parts.items()},
        ("negative", "positive"),
        found["train"].revision,
    )


def _read_adult(stream: BinaryIO) -> dict[str, NDArray[Any]]:
    try:
        with io.TextIOWrapper(stream, "ascii") as text:
            # The first line of the test file is a remark; both end with an empty line.
            rows = [
                [*line[:-1], line[-1].removesuffix(".")]
                for line in csv.reader(text, skipinitialspace=True)
                if line and not line[0].startswith("|")
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataCorrupt(f"a file of Adult cannot be read: {error}") from error
    odd = next((row for row in rows if len(row) != len(ADULT_COLUMNS)), None)
    if odd is not None:
        raise DataCorrupt(f"a row of Adult has {len(odd)} values, not {len(ADULT_COLUMNS)}")
    columns: dict[str, NDArray[Any]] = {}
    for place, (name, kind) in enumerate(ADULT_COLUMNS.items()):
        values = [row[place] for row in rows]
        try:
            columns[name] = np.array(values, dtype=np.int64 if kind is int else np.str_)
        except ValueError as error:
            raise DataCorrupt(f"a value of {name} is not a number: {error}") from error
    return columns


def _read_location(stream: BinaryIO) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            content = next(
                (
                    archive.extractfile(member).read()  # type: ignore[union-attr]
                    for member in archive
                    if member.isfile() and member.name.rpartition("/")[2] == "bangkok"
                ),
                None,
            )
    except tarfile.TarError as error:
        raise DataCorrupt(f"not the archive of Location-30: {error}") from error
    if content is None:
        raise DataCorrupt("the archive of Location-30 has no member named bangkok")
    try:
        text = content.decode("ascii").replace('"', "")
        table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.uint8, ndmin=2)
    except ValueError as error:
        raise DataCorrupt(f"the table of Location-30 cannot be read: {error}") from error
    if table.shape[1] != 1 + _LOCATION_FEATURES or not 1 <= table[:, 0].min() <= 30:
        raise DataCorrupt(f"the table of Location-30 has {table.shape[1]} columns, not 447")
    return np.ascontiguousarray(table[:, 1:]), table[:, 0] - 1


def _read_sentences(stream: BinaryIO) -> tuple[tuple[str, ...], NDArray[np.uint8]]:
    """Lines of label, tab, text after one header line; nothing is quoted."""
    try:
        lines = stream.read().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataCorrupt(f"a file of SST-2 cannot be read: {error}") from error
    pairs = [line.rstrip("\r").split("\t", 1) for line in lines[1:] if line]
    if any(len(pair) != 2 or pair[0] not in ("0", "1") for pair in pairs):
        raise DataCorrupt("a line of SST-2 is not 0 or 1, a tab and a text")
    return tuple(text for _, text in pairs), np.array([label for label, _ in pairs], np.uint8)
