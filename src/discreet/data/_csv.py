r"""CSV as bytes: where records end, where cells end. No bytes are an error.

- A record ends with ``\n`` or ``\r\n``; with ``quoted_newlines`` only outside of quotes. The
  end of the file ends the last record. Records without a byte are none.
- Of a record longer than 1 MiB only the first MiB is read.
- A cell that begins with a quote, after spaces or none, ends with the next single quote; two
  quotes are one. What follows up to the delimiter belongs to it. A quote that is not closed ends
  with its record. A quote elsewhere is a character.
- A record with too few cells has empty ones at its end; surplus cells are ignored.

Each rule looks at one record, apart from ``quoted_newlines`` in a file whose quotes are not
closed. Records with the right number of cells, quoted as a whole or not at all, are cut by Arrow;
the others, with quotes inside of cells or none to close them, by :func:`split_cells`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from discreet.data._cells import import_arrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 1 << 22
LONGEST_RECORD = 1 << 20

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34


class Readable(Protocol):
    """An object that gives bytes in turn, as an open file does."""

    def read(self, count: int, /) -> bytes:
        """Return the next bytes, at most ``count``; none at the end."""


class RecordBlock(NamedTuple):
    """Bytes, and where the records in them start and end; none is empty."""

    data: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def record(self, at: int) -> bytes:
        """Return one record."""
        return self.data[self.starts[at] : self.ends[at]]

    def rows(self, first: int, last: int) -> RecordBlock:
        """Return some of the records, with no more bytes than they need."""
        starts, ends = self.starts[first:last], self.ends[first:last]
        if starts.size == 0:
            return RecordBlock(b"", starts, ends)
        data = self.data[int(starts[0]) : int(ends[-1])]
        return RecordBlock(data, starts - starts[0], ends - starts[0])


def record_blocks(
    stream: Readable,
    *,
    quoted_newlines: bool,
    block_bytes: int = BLOCK_BYTES,
    longest: int = LONGEST_RECORD,
) -> Iterator[RecordBlock]:
    """Yield the records of a stream, a block of them at a time.

    The records do not depend on ``block_bytes``. Memory is a few times
    ``block_bytes + longest``, however long a line is.
    """
    rest = b""  # a record whose end has not been seen
    cut_short: bytes | None = None  # the same, known to be too long
    odd = False  # whether the part of it that was dropped ends inside quotes
    while block := stream.read(block_bytes):
        if cut_short is not None:
            ends = _record_ends(block, quoted_newlines, odd)
            if ends.size == 0:
                odd ^= quoted_newlines and block.count(b'"') % 2 == 1
                continue
            yield from _block(cut_short, np.array([len(cut_short)]), longest)
            cut_short, block = None, block[int(ends[0]) + 1 :]
        data = rest + block
        ends = _record_ends(data, quoted_newlines, False)
        if ends.size:
            yield from _block(data, ends, longest)
            data = data[int(ends[-1]) + 1 :]
        rest = data
        if len(rest) > longest:
            odd = quoted_newlines and rest.count(b'"') % 2 == 1
            cut_short, rest = rest[:longest], b""
    last = rest if cut_short is None else cut_short
    yield from _block(last, np.array([len(last)]), longest)


def split_cells(record: bytes, delimiter: bytes) -> list[bytes]:
    """Cut one record into its cells.

    >>> split_cells(b'1, "a, ""b"" c", 5" pipe', b",")
    [b'1', b'a, "b" c', b' 5" pipe']
    >>> split_cells(b'"never closed, 2', b",")
    [b'never closed, 2']
    """
    if b'"' not in record:
        return record.split(delimiter)
    cells: list[bytes] = []
    at, size = 0, len(record)
    while at <= size:
        opening = at
        while delimiter != b" " and record[opening : opening + 1] == b" ":
            opening += 1
        if record[opening : opening + 1] == b'"':
            cell, end = _quoted_cell(record, opening + 1, delimiter)
        else:
            end = record.find(delimiter, at)
            end = size if end < 0 else end
            cell = record[at:end]
        cells.append(cell)
        at = end + 1
    return cells


def cut(block: RecordBlock, *, width: int, delimiter: bytes, wanted: Sequence[int]) -> list[Any]:
    """Return the wanted columns of a block of records as binary Arrow arrays."""
    pa = import_arrow("pyarrow")
    plain = _plain(block, width, delimiter)
    slow = np.flatnonzero(~plain)
    fast = np.flatnonzero(plain)
    columns = _cut_by_arrow(block, fast, width, delimiter, wanted)
    if slow.size == 0:
        return columns
    rows = [split_cells(block.record(int(at)), delimiter) for at in slow]
    back = pa.array(np.argsort(np.concatenate([fast, slow]), kind="stable"))
    merged = []
    for place, column in zip(wanted, columns, strict=True):
        cells = [row[place] if place < len(row) else b"" for row in rows]
        merged.append(pa.concat_arrays([column, pa.array(cells, pa.binary())]).take(back))
    return merged


def misshapen(block: RecordBlock, width: int, delimiter: bytes) -> int:
    """Return how many records have another number of cells than ``width``."""
    if block.starts.size == 0:
        return 0
    unsure = np.flatnonzero(~_plain(block, width, delimiter))
    return sum(len(split_cells(block.record(int(at)), delimiter)) != width for at in unsure)


def _record_ends(data: bytes, quoted_newlines: bool, odd: bool) -> NDArray[np.int64]:
    array = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(array == _NEWLINE)
    if quoted_newlines and (odd or b'"' in data):
        quotes = np.cumsum(array == _QUOTE, dtype=np.int64)[ends] + odd
        ends = ends[quotes % 2 == 0]
    return ends


def _block(data: bytes, ends: NDArray[np.int64], longest: int) -> Iterator[RecordBlock]:
    """Cut long records short, take off a return before the newline, drop empty ones."""
    starts = np.concatenate([[0], ends[:-1] + 1])
    ends = np.minimum(ends, starts + longest)
    if not data:
        return
    array = np.frombuffer(data, dtype=np.uint8)
    returns = (ends > starts) & (array[np.maximum(ends - 1, 0)] == _RETURN)
    ends = ends - returns
    kept = ends > starts
    if kept.any():
        yield RecordBlock(data, starts[kept], ends[kept])


def _quoted_cell(record: bytes, at: int, delimiter: bytes) -> tuple[bytes, int]:
    """Return the cell whose opening quote is just before ``at``, and where it ends."""
    pieces = []
    while True:
        quote = record.find(b'"', at)
        if quote < 0:
            pieces.append(record[at:])
            return b"".join(pieces), len(record)
        pieces.append(record[at:quote])
        if record[quote + 1 : quote + 2] != b'"':
            break
        pieces.append(b'"')
        at = quote + 2
    end = record.find(delimiter, quote + 1)
    end = len(record) if end < 0 else end
    pieces.append(record[quote + 1 : end])
    return b"".join(pieces), end


def _plain(block: RecordBlock, width: int, delimiter: bytes) -> NDArray[np.bool_]:
    """Which records Arrow reads as :func:`split_cells` does, with exactly ``width`` cells.

    They have neither returns nor newlines inside, and each of their quotes either opens a
    cell or, alternating with those, closes it.
    """
    array = np.frombuffer(block.data, dtype=np.uint8)
    starts, ends, mark = block.starts, block.ends, delimiter[0]
    plain = np.ones(starts.size, dtype=np.bool_)
    for byte in (_RETURN, _NEWLINE):
        places = np.flatnonzero(array == byte)
        plain &= np.searchsorted(places, ends) == np.searchsorted(places, starts)
    delimiters, quotes = np.flatnonzero(array == mark), np.flatnonzero(array == _QUOTE)
    if quotes.size == 0:
        cells = 1 + np.searchsorted(delimiters, ends) - np.searchsorted(delimiters, starts)
        return np.asarray(plain & (cells == width), dtype=np.bool_)
    quotes, line = _locate(quotes, block)
    first = np.searchsorted(quotes, starts)
    opens = (np.arange(quotes.size) - first[line]) % 2 == 0
    at_start = (quotes == starts[line]) | (array[quotes - 1] == mark)
    after = array[np.minimum(quotes + 1, array.size - 1)]
    at_end = (quotes + 1 == ends[line]) | (after == mark)
    plain[line[~np.where(opens, at_start, at_end)]] = False
    plain &= np.bincount(line, minlength=starts.size) % 2 == 0
    delimiters, line = _locate(delimiters, block)
    outside = (np.searchsorted(quotes, delimiters) - first[line]) % 2 == 0
    plain &= np.bincount(line[outside], minlength=starts.size) == width - 1
    return plain


def _locate(
    places: NDArray[np.int64], block: RecordBlock
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places that lie in a record, and in which one."""
    line = np.searchsorted(block.starts, places, side="right") - 1
    inside = (line >= 0) & (places < block.ends[line])
    return places[inside], line[inside]


def _join(block: RecordBlock, rows: NDArray[np.int64]) -> bytes:
    """Return records on lines of their own."""
    starts, ends = block.starts[rows], block.ends[rows]
    if rows.size == block.starts.size and np.all(starts[1:] == ends[:-1] + 1):
        return block.data[int(starts[0]) : int(ends[-1])]
    lines = zip(starts.tolist(), ends.tolist(), strict=True)
    return b"\n".join([block.data[start:end] for start, end in lines])


def _cut_by_arrow(
    block: RecordBlock,
    rows: NDArray[np.int64],
    width: int,
    delimiter: bytes,
    wanted: Sequence[int],
) -> list[Any]:
    pa, csv = import_arrow("pyarrow"), import_arrow("pyarrow.csv")
    names = [str(place) for place in range(width)]
    # The first line is ours and is dropped again: Arrow would take a byte-order mark off it, and
    # has no opinion on an empty input.
    first = b"x" + delimiter * (width - 1)
    text = b"\n".join([first, _join(block, rows), b""]) if rows.size else first + b"\n"
    table = csv.read_csv(
        pa.py_buffer(text),
        read_options=csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=names
        ),
        parse_options=csv.ParseOptions(
            delimiter=delimiter.decode(),
            quote_char='"',
            double_quote=False,
            escape_char=False,
            newlines_in_values=False,
            ignore_empty_lines=False,
        ),
        convert_options=csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.binary()),
            include_columns=[str(place) for place in wanted],
            null_values=[],
            strings_can_be_null=False,
            auto_dict_encode=False,
        ),
    )
    return [table.column(at).combine_chunks()[1:] for at in range(len(wanted))]
