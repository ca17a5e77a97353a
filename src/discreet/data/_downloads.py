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

The files of the public data sets: digests of every known revision, and where they live.

Digests of compressed files that are published as such come from their publishers or from the
checksum lists of TensorFlow Datasets and scikit-learn; digests of unpacked content were taken
from files whose origin is known. Where the same folder has several revisions, all files of one
read must belong to the same one.
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
    r"""Return the directory of downloads: the user's cache directory on this platform.

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
                return _download(file, wanted, looked)
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
            yield file, _path_of(file, kept), True


def _path_of(file: SourceFile, revision: str) -> Path:
    """Return where a download is stored: revisions lie side by side."""
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
    def hash_stream(stream: BinaryIO) -> str:
        digest = hashlib.sha256()
        while block := stream.read(_BLOCK):
            digest.update(block)
        return digest.hexdigest()

    if unpack:
        return Found(path, "").read(hash_stream)
    with path.open("rb") as stream:
        return hash_stream(stream)


def _download(file: SourceFile, revision: str, looked: list[str]) -> Found:
    """Fetch into a temporary file beside the goal; it gets its name only when it is right."""
    url = file.urls[revision]
    goal = _path_of(file, revision)
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


_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION_NOW = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_THEN = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
    "949006594cc2f804a93b9155849734564c3545ec/data/fashion/"
)
_ADULT = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_SST2 = (
    "https://raw.githubusercontent.com/awake020/pytorch_Bert_sst2/"
    "ce2ab1719d32182e6233b24b2de246bd32814fde/SST-2/"
)


def _mnist(name: str, packed: str, content: str) -> SourceFile:
    digests = {packed: "1998", content: "1998"}
    return SourceFile("mnist", name, digests, {"1998": f"{_MNIST}{name}.gz"})


def _fashion(name: str, now: str, then: str, content_then: str) -> SourceFile:
    digests = {now: "deduplicated", then: "2017-08-26", content_then: "2017-08-26"}
    urls = {
        "deduplicated": f"{_FASHION_NOW}{name}.gz",
        "2017-08-26": f"{_FASHION_THEN}{name}.gz",
    }
    return SourceFile("fashion_mnist", name, digests, urls)


def _adult(name: str, content: str) -> SourceFile:
    return SourceFile("adult", name, {content: "1996"}, {"1996": f"{_ADULT}{name}"})


def _sst2(name: str, content: str) -> SourceFile:
    return SourceFile("sst2", name, {content: "2013"}, {"2013": f"{_SST2}{name}"})


MNIST = {
    "x_train": _mnist(
        "train-images-idx3-ubyte",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "y_train": _mnist(
        "train-labels-idx1-ubyte",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "x_test": _mnist(
        "t10k-images-idx3-ubyte",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "y_test": _mnist(
        "t10k-labels-idx1-ubyte",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}

FASHION_MNIST = {
    "x_train": _fashion(
        "train-images-idx3-ubyte",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "08dc20ab1689590a0bcd66e874647b6ee8464e2d501b5a3f1f78831db19a3fdc",
        "f90068848beaee13588c5c0c129c5e016331db6251d78bd38dbdce4a89470f76",
    ),
    "y_train": _fashion(
        "train-labels-idx1-ubyte",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "b0197879cbda89f3dc7b894f9fd52b858e68ea4182b6947c9d8c2b67e5f18dcc",
        "c7673bb30764062aa9ddeaf6184d7043075ded6a31aee7d16f38402434ad395d",
    ),
    "x_test": _fashion(
        "t10k-images-idx3-ubyte",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "78dcbbfb5a27efaf1b6c1d616caca68560be8766c5bffcb2791df9273a534229",
        "e76e80ccadedb817f9ba1c884c08a396e650ec64e424af6a550b8db54d843a8b",
    ),
    "y_test": _fashion(
        "t10k-labels-idx1-ubyte",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "42bd18137a62d5998cdeae52bf3a0676ac6b706f5cf8439b47bb5b151ae3dccf",
        "0106d6dfb86a77b9299271c292262daad9001d5a44d251a3880227436b8ce3b1",
    ),
}

ADULT = {
    "train": _adult(
        "adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"
    ),
    "test": _adult(
        "adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"
    ),
}

LOCATION30 = SourceFile(
    "location30",
    "dataset_location.tgz",
    {"927203f85a868f8ee17a0ded1dc61699efe602167beabe34fbf45b4b1de94b33": "2017"},
    {
        "2017": "https://raw.githubusercontent.com/privacytrustlab/datasets/"
        "169de9de00de049dd2e571cf7279e64698ac046a/dataset_location.tgz"
    },
)

CIFAR10_REDUCED = SourceFile(
    "cifar10",
    "cifar10_16k_4k.npz",
    {"450a4b5230afdfe7837856bf4a207980e1ff95b50b7490ce53c90150b44b4c2a": "2009"},
)

CIFAR10 = SourceFile(
    "cifar10",
    "cifar-10-binary.tar.gz",
    {"c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd": "2009"},
    {"2009": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"},
)

OLIVETTI = SourceFile(
    "faces",
    "olivetti64.npz",
    {"1923dacf061977e73bd4e5700fcfe5c0e1c6e8c67242881c34e93c104a36557f": "DBM"},
)

OLIVETTI_MATRIX = SourceFile(
    "faces",
    "olivettifaces.mat",
    {"b612fb967f2dc77c9c62d3e1266e0c73d5fca46a4b8906c18e454d41af987794": "Roweis"},
    {"Roweis": "https://ndownloader.figshare.com/files/5976027"},
)

SST2 = {
    "train": _sst2("train.tsv", "e981ceb4fe6c9acd1c79851d0d091b9e78103f1f2a399ca83dda27915d41c56c"),
    "dev": _sst2("dev.tsv", "84207e6be5873fb18db798cc6faec86871f5a426554650ff64a1c34e87665f6f"),
    "test": _sst2("test.tsv", "fcd46f967b7b8efd8b5398481dadf873886298d092195167af907fd532e81e1c"),
}
