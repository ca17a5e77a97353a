"""Where public data sets are found, and how they get onto this machine.

A file is looked for in three places, in this order:

1. the directory that the environment variable ``DISCREET_DATA`` names,
2. the cache directory of the platform (:func:`cache_directory`),
3. its place on the web, unless ``download=False`` was asked for or ``DISCREET_OFFLINE`` is set
   to anything but the empty string or ``0``; what arrives is kept in the cache.

Every file has known SHA-256 digests, one or more for each *revision* of its data set, and an
unknown digest is refused. A digest may be that of the file as it lies there or, for gzip files,
that of its content: the same data compressed by another program is the same data. Which
revision was read is part of what a loader returns.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from discreet.errors import DataCorrupt, DataUnavailable

__all__ = ["DataCorrupt", "DataUnavailable", "Found", "SourceFile", "cache_directory", "find"]

DIRECTORY = "DISCREET_DATA"
OFFLINE = "DISCREET_OFFLINE"
UNVERIFIED = "unverified"

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 30.0
_GZIP = b"\x1f\x8b"

T = TypeVar("T")


@dataclass(frozen=True)
class SourceFile:
    """One file of a public data set.

    :param folder: its directory below ``DISCREET_DATA`` and below the cache.
    :param name: its name, without ``.gz``; compressed and plain files are both found.
    :param digests: SHA-256 of the file or of what it unpacks to -> revision.
    :param urls: revision -> place on the web. The first revision is the one that is fetched
        when none is asked for.
    :param most_bytes: a download that grows beyond this is broken off.
    """

    folder: str
    name: str
    digests: Mapping[str, str]
    urls: Mapping[str, str] = field(default_factory=dict)
    most_bytes: int = 1 << 28

    @property
    def names(self) -> tuple[str, ...]:
        """The file names under which the file may lie in a directory."""
        archive = self.name.endswith((".gz", ".tgz", ".npz", ".mat", ".zip"))
        return (self.name,) if archive else (f"{self.name}.gz", self.name)


@dataclass(frozen=True)
class Found:
    """A file on this machine whose digest is known."""

    path: Path
    revision: str

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The content as a stream; gzip is undone, recognised by its first two bytes."""
        with self.path.open("rb") as plain:
            packed = plain.read(2) == _GZIP
            plain.seek(0)
            if not packed:
                yield plain
                return
            with gzip.GzipFile(fileobj=plain) as unpacked:
                yield cast("BinaryIO", unpacked)

    def read(self, reader: Callable[[BinaryIO], T]) -> T:
        """What ``reader`` makes of the content; broken compression is reported as such."""
        try:
            with self.open() as stream:
                return reader(stream)
        except (EOFError, gzip.BadGzipFile) as error:
            raise DataCorrupt(f"{self.path} cannot be unpacked: {error}") from error


def cache_directory() -> Path:
    r"""Where downloads are kept: the user's cache directory by the habit of the platform.

    ``$XDG_CACHE_HOME/discreet`` (if that is an absolute path, as its specification demands) or
    ``~/.cache/discreet``, on macOS ``~/Library/Caches/discreet``, on Windows
    ``%LOCALAPPDATA%\discreet\Cache``. It is not made before something is kept in it.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Local") / "discreet" / "Cache"
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if configured.is_absolute():
        return configured / "discreet"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "discreet"
    return Path.home() / ".cache" / "discreet"


def find(
    forms: SourceFile | Sequence[SourceFile],
    *,
    revision: str | None = None,
    verify: bool = True,
    download: bool = True,
) -> Found:
    """Return the first of ``forms`` that can be had, downloading it if need be.

    :param forms: a file, or several that carry the same data in different formats.
    :param revision: accept and fetch this revision only.
    :param verify: ``False`` takes whatever lies in ``DISCREET_DATA`` under the right name, as
        revision ``"unverified"``. The cache and the web are checked always.
    :param download: ``False`` looks on this machine only.
    :raises DataUnavailable: it is nowhere; the message lists where it was looked for.
    :raises DataCorrupt: a file of that name was there or arrived, but is another one.
    """
    files = [forms] if isinstance(forms, SourceFile) else list(forms)
    looked: list[str] = []
    for file, path, checked in _places(files, revision, verify):
        looked.append(str(path))
        if not path.is_file():
            continue
        known = _revision(file, path) if checked else UNVERIFIED
        if revision in (None, known):
            return Found(path, known)
        looked[-1] += f" (there, but revision {known!r} and not {revision!r})"
    if download and os.environ.get(OFFLINE, "") in ("", "0"):
        for file in files:
            wanted = revision if revision is not None else next(iter(file.urls), "")
            if wanted in file.urls:
                return _downloaded(file, wanted, looked)
    raise DataUnavailable(_where_to_put_it(files, looked, "it was not looked for on the web"))


def _places(
    files: Sequence[SourceFile], revision: str | None, verify: bool
) -> Iterator[tuple[SourceFile, Path, bool]]:
    """Files and where each may lie on this machine, and whether its digest is asked for."""
    configured = os.environ.get(DIRECTORY)
    if configured:
        for file in files:
            for name in file.names:
                yield file, Path(configured) / file.folder / name, verify
    for file in files:
        for kept in file.urls if revision is None else (revision,):
            yield file, _kept(file, kept), True


def _kept(file: SourceFile, revision: str) -> Path:
    """Where a download is kept: revisions lie side by side."""
    packed = file.urls.get(revision, "").endswith(".gz")
    name = next((each for each in file.names if each.endswith(".gz") == packed), file.names[0])
    return cache_directory() / file.folder / revision / name


def _revision(file: SourceFile, path: Path) -> str:
    digest = _digest(path, unpack=False)
    known = file.digests.get(digest) or file.digests.get(_digest(path, unpack=True))
    if known is None:
        raise DataCorrupt(
            f"{path} has SHA-256 {digest}, which is none of the known revisions of "
            f"{file.folder}/{file.name}; replace the file, or remove it to have it fetched"
        )
    return known


def _digest(path: Path, *, unpack: bool) -> str:
    def hashed(stream: BinaryIO) -> str:
        digest = hashlib.sha256()
        while block := stream.read(_BLOCK):
            digest.update(block)
        return digest.hexdigest()

    if unpack:
        return Found(path, "").read(hashed)
    with path.open("rb") as stream:
        return hashed(stream)


def _downloaded(file: SourceFile, revision: str, looked: list[str]) -> Found:
    """Fetch into a temporary file beside the goal; it gets its name only when it is right."""
    url = file.urls[revision]
    goal = _kept(file, revision)
    directory = goal.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".", suffix=".part")
    except OSError as error:
        reason = f"the cache cannot be written ({error})"
        raise DataUnavailable(_where_to_put_it([file], looked, reason)) from error
    part = Path(temporary)
    try:
        with os.fdopen(descriptor, "wb") as out:
            _copy(url, out, file.most_bytes)
            out.flush()
            os.fsync(out.fileno())
        _checked_download(file, part, revision, url)
        part.replace(goal)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = f"fetching {url} failed ({error})"
        raise DataUnavailable(_where_to_put_it([file], looked, reason)) from error
    finally:
        part.unlink(missing_ok=True)
    return Found(goal, revision)


def _copy(url: str, out: BinaryIO, most_bytes: int) -> None:
    received = 0
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
        while block := response.read(_BLOCK):
            received += len(block)
            if received > most_bytes:
                raise DataCorrupt(f"{url} sent more than {most_bytes} bytes; nothing was kept")
            out.write(block)


def _checked_download(file: SourceFile, part: Path, revision: str, url: str) -> None:
    digest = _digest(part, unpack=False)
    unpacked = digest if digest in file.digests else _digest(part, unpack=True)
    if file.digests.get(unpacked) != revision:
        raise DataCorrupt(
            f"{url} sent a file with SHA-256 {digest}, which is not revision {revision!r} of "
            f"{file.folder}/{file.name}; nothing was kept"
        )


def _where_to_put_it(files: list[SourceFile], looked: list[str], reason: str) -> str:
    webs = [url for file in files for url in file.urls.values()]
    lines = [
        f"{files[0].folder}/{files[0].name} is not on this machine, and {reason}.",
        "Looked for: " + ", ".join(looked) + ".",
    ]
    if webs:
        lines.append("It is published at: " + ", ".join(webs) + ".")
    lines.append(f"Put it into one of these places, or set {DIRECTORY} to a directory that has it.")
    return "\n".join(lines)
