"""Charge a ledger without its own flushes, and print what SQLite writes and flushes, in order.

``python watched_sqlite.py PLACE SYNCHRONOUS``. Files are watched where SQLite hands them to the
system: its default layer (a ``sqlite3_vfs``) opens them, and writes and flushes of what it opened
go through a copy of the table of their methods.
"""

import _sqlite3
import ctypes
import json
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast

from discreet._store import _sqlite
from discreet.ledger import Ledger
from discreet.privacy import PureDP

# SQLite keeps the pointer to the name: it is handed on, and not a copy of the text.
OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
METHODS = 18  # pointers in the table of a file, after its version


class Layer(Structure):
    """The beginning of a ``sqlite3_vfs``."""

    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", OPEN),
    )


class Methods(Structure):
    """A ``sqlite3_io_methods``: close, read, write, truncate, sync and the others."""

    _fields_ = (("version", c_int), ("calls", c_void_p * METHODS))


class Watch:
    """What is written and flushed through SQLite from now on, as (what, file, offset)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []
        self._names: dict[int, str] = {}
        self._kept: list[object] = []
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        library.sqlite3_vfs_find.restype = POINTER(Layer)
        layer = library.sqlite3_vfs_find(None).contents
        # The callback replaces the pointer in place: the first one has to be read out before.
        original = OPEN(cast(layer.open, c_void_p).value)

        def opened(of: int, name: int | None, file: int, flags: int, out: object) -> int:
            code = original(of, name, file, flags, out)
            table = cast(file, POINTER(POINTER(Methods)))
            if code == 0 and table[0]:
                self._names[file] = ctypes.string_at(name).decode() if name else ""
                table[0] = self._watched(table[0].contents)
            return code

        layer.open = OPEN(opened)
        self._kept += [layer, original, layer.open, opened]

    def _watched(self, methods: Methods) -> object:
        write = WRITE(methods.calls[2])
        sync = SYNC(methods.calls[4])

        def note_write(file: int, data: int, size: int, offset: int) -> int:
            self.events.append(("write", self._names[file], offset))
            return write(file, data, size, offset)

        def note_sync(file: int, flags: int) -> int:
            self.events.append(("flush", self._names[file], 0))
            return sync(file, flags)

        held = Methods(methods.version, methods.calls)
        calls = (WRITE(note_write), SYNC(note_sync))
        held.calls[2], held.calls[4] = (cast(call, c_void_p).value for call in calls)
        self._kept += [held, calls]
        return ctypes.pointer(held)


def main(place: str, synchronous: str) -> None:
    watch = Watch()
    _sqlite.sync = lambda descriptor: None
    run = _sqlite.Link.run

    def changed(link: _sqlite.Link, statement: str, *values: object) -> int:
        statement = statement.replace("synchronous = NORMAL", f"synchronous = {synchronous}")
        return run(
            link, statement.replace("wal_autocheckpoint = 4000", "wal_autocheckpoint = 40"), *values
        )

    _sqlite.Link.run = changed
    with Ledger.create(place) as book:
        book.create_dataset("census", epsilon=1, unit="person")
        watch.events.clear()
        for _ in range(60):
            with book.charge("census", PureDP("1/100")):
                pass
        book_path = str(book.store.database)
    print(json.dumps([event for event in watch.events if event[1].startswith(book_path)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
