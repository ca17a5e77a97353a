"""Public data sets as numpy arrays.

Images: MNIST, Fashion-MNIST, CIFAR-10, Olivetti faces, digits. Tables and texts: Adult census
income, Location-30, SST-2.

The function :func:`made_up_purchases` stands in for the Purchase data of Shokri et al. (2017). The
original, 197,324 customers and 600 products, may not be passed on. There the classes are clusters
of customers by what they buy, and the same customers are divided into 2, 10, 20, 50 or 100 of
them. Here as well: a customer has some shopping habits and is more or less busy, every product is
bought with a chance that depends on both, and k-means divides the baskets. More classes divide the
same people more finely, so that the task becomes harder and a model has to memorise more: the
trend of the paper can be repeated, its figures cannot.
"""

from __future__ import annotations

import csv
import io
import math
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, final

import numpy as np

from discreet import _validate
from discreet.data import _downloads
from discreet.data._downloads import UNVERIFIED, SourceFile, find
from discreet.errors import DataCorrupt, DataUnavailable, InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNSIGNED_BYTE = 8
_MOST_VALUES = 1 << 30


def read_idx(stream: BinaryIO) -> NDArray[np.uint8]:
    """Return the bytes of an idx file: two zeros, a type, a number of dimensions, sizes, values.

    It is filled in place, so that nothing is held twice.

    >>> import io
    >>> read_idx(io.BytesIO(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])))
    array([7, 8, 9], dtype=uint8)
    """
    head = stream.read(4)
    if len(head) < 4 or head[0] or head[1] or head[2] != _UNSIGNED_BYTE or not 1 <= head[3] <= 4:
        raise DataCorrupt(f"not an idx file of bytes: it begins with {head.hex(' ') or 'nothing'}")
    sizes = stream.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise DataCorrupt("an idx file that ends inside its header")
    shape = tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))
    count = math.prod(shape)
    if count > _MOST_VALUES:
        raise DataCorrupt(f"an idx file that claims {count} values")
    values = np.empty(count, dtype=np.uint8)
    view = values.data
    filled = 0
    while filled < count:
        received = stream.readinto(view[filled:])  # type: ignore[attr-defined]
        if not received:
            raise DataCorrupt(f"an idx file of {filled} values that claims {count}")
        filled += received
    if stream.read(1):
        raise DataCorrupt(f"an idx file with more than the {count} values it claims")
    return values.reshape(shape)


FASHION_CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
DIGIT_CLASSES = tuple("0123456789")

_CIFAR10_RECORD = 1 + 32 * 32 * 3


@dataclass(frozen=True, eq=False)
class SplitImages:
    """Images and labels, divided by their publisher into training and test data.

    Images are bytes: (n, height, width), or (n, height, width, 3) in colour; labels are bytes
    below ``len(classes)``. ``revision`` says which of the published versions this is.
    """

    x_train: NDArray[np.uint8]
    y_train: NDArray[np.uint8]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.uint8]
    classes: tuple[str, ...]
    revision: str


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images (n, height, width) and labels (n,) without a published division."""

    x: NDArray[np.uint8]
    y: NDArray[np.uint8]
    classes: tuple[str, ...]
    revision: str


def mnist(*, verify: bool = True, download: bool = True) -> SplitImages:
    """Handwritten digits: 60,000 and 10,000 images of 28 x 28 (LeCun, Cortes and Burges 1998)."""
    return _idx_set(_downloads.MNIST, DIGIT_CLASSES, None, verify=verify, download=download)


def fashion_mnist(
    *, revision: str | None = None, verify: bool = True, download: bool = True
) -> SplitImages:
    """Pieces of clothing, in the format of MNIST (Xiao, Rasul and Vollgraf 2017).

    Two revisions exist. ``"2017-08-26"`` is the first; ``"deduplicated"``, published days later
    and fetched by most libraries, has another order and split and a few other images. Scores on
    them are close but not equal. Either is accepted if ``revision`` is not given, and the result
    says which one it is; what is not on this machine is fetched as ``"deduplicated"``. Files of
    different revisions are never combined.
    """
    if revision is not None:
        _validate.one_of("revision", revision, ("2017-08-26", "deduplicated"))
    return _idx_set(
        _downloads.FASHION_MNIST, FASHION_CLASSES, revision, verify=verify, download=download
    )


def cifar10(*, reduced: bool = True, verify: bool = True, download: bool = True) -> SplitImages:
    """Small colour photographs, 32 x 32 x 3 (Krizhevsky 2009).

    The reduced set has the first 1600 training and 400 test images of every class in official
    order, 16,000 and 4,000 in all: enough for demonstrations and a third of the download. It is
    read from its own file or cut from the full archive, with the same result. The full set
    (``reduced=False``) is read from the archive in the binary format, never from pickles.
    """
    forms = [_downloads.CIFAR10]
    if reduced:
        forms.insert(0, _downloads.CIFAR10_REDUCED)
    found = find(forms, verify=verify, download=download)
    if found.path.suffix == ".npz":
        arrays = _read_npz(found.path, ("x_train", "y_train", "x_test", "y_test"))
        parts = (arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"])
    else:
        parts = found.read(_read_cifar10)
        if reduced:
            kept_train = _first_of_each_class(parts[1], 1600)
            kept_test = _first_of_each_class(parts[3], 400)
            parts = (
                parts[0][kept_train],
                parts[1][kept_train],
                parts[2][kept_test],
                parts[3][kept_test],
            )
    return _split_images(parts, CIFAR10_CLASSES, found.revision)


def faces(*, verify: bool = True, download: bool = True) -> LabelledImages:
    """Ten 64 x 64 photographs of each of 40 people (Olivetti Research Laboratory, 1992 to 1994).

    Two matrices of this set are in circulation; ``revision`` is ``"Roweis"`` for the usual one.
    The faces are those of real people: research use, with credit to the laboratory (Samaria and
    Harter 1994).
    """
    forms = (_downloads.OLIVETTI, _downloads.OLIVETTI_MATRIX)
    found = find(forms, verify=verify, download=download)
    if found.path.suffix == ".npz":
        arrays = _read_npz(found.path, ("x", "y"))
        x, y = arrays["x"], arrays["y"]
    else:
        x, y = _read_olivetti_matrix(found.path), np.repeat(np.arange(40, dtype=np.uint8), 10)
    if x.ndim != 3 or x.shape[1:] != (64, 64) or len(x) != len(y):
        raise DataCorrupt(f"{found.path} holds faces of shape {x.shape} and {len(y)} labels")
    people = tuple(f"person {number}" for number in range(1, int(y.max(initial=0)) + 2))
    return LabelledImages(x, y, people, found.revision)


def digits() -> LabelledImages:
    """The 1797 digits of 8 x 8 pixels, values 0 to 16, that come with scikit-learn.

    Needs no download; for demonstrations and tests.
    """
    try:
        datasets = import_module("sklearn.datasets")
    except ImportError as error:
        raise DataUnavailable("the digits come with scikit-learn: it is not installed") from error
    bunch = datasets.load_digits()
    return LabelledImages(
        bunch.images.astype(np.uint8), bunch.target.astype(np.uint8), DIGIT_CLASSES, "1998"
    )


def _idx_set(
    files: Mapping[str, SourceFile],
    classes: tuple[str, ...],
    revision: str | None,
    *,
    verify: bool,
    download: bool,
) -> SplitImages:
    # The first file decides: parts of two revisions do not belong together.
    first = find(files["x_train"], revision=revision, verify=verify, download=download)
    wanted = revision if first.revision == UNVERIFIED else first.revision
    found = {
        part: find(files[part], revision=wanted, verify=verify, download=download)
        for part in ("y_train", "x_test", "y_test")
    }
    parts = (
        first.read(read_idx),
        found["y_train"].read(read_idx),
        found["x_test"].read(read_idx),
        found["y_test"].read(read_idx),
    )
    return _split_images(parts, classes, first.revision)


def _split_images(
    parts: tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]],
    classes: tuple[str, ...],
    revision: str,
) -> SplitImages:
    for images, labels in (parts[:2], parts[2:]):
        if images.ndim not in (3, 4) or labels.ndim != 1 or len(images) != len(labels):
            shapes = f"images of shape {images.shape} with labels of shape {labels.shape}"
            raise DataCorrupt(f"{shapes} do not belong together")
        if labels.size and labels.max() >= len(classes):
            raise DataCorrupt(f"a label is {labels.max()}, and there are {len(classes)} classes")
    return SplitImages(*parts, classes, revision)


def _read_npz(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[np.uint8]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in names}
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataCorrupt(f"{path} cannot be read: {error}") from error
    for name, array in arrays.items():
        if array.dtype != np.uint8:
            raise DataCorrupt(f"{path} holds {name} as {array.dtype}, not as bytes")
    return arrays


def _read_cifar10(
    stream: BinaryIO,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Records of one label byte and 3 x 32 x 32 bytes, plane by plane, in six members."""
    batches: dict[str, NDArray[np.uint8]] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                content = archive.extractfile(member) if name.endswith(".bin") else None
                if content is not None:
                    values = np.frombuffer(content.read(), dtype=np.uint8)
                    batches[name] = values.reshape(-1, _CIFAR10_RECORD)
        train = np.concatenate([batches[f"data_batch_{i}.bin"] for i in range(1, 6)])
        test = batches["test_batch.bin"]
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise DataCorrupt(f"not the binary archive of CIFAR-10: {error}") from error
    return (*_images_and_labels(train), *_images_and_labels(test))


def _images_and_labels(
    records: NDArray[np.uint8],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0].copy()


def _first_of_each_class(labels: NDArray[np.uint8], count: int) -> NDArray[np.intp]:
    """Row numbers of the first ``count`` of each class, in the order of the file."""
    firsts = [np.flatnonzero(labels == label)[:count] for label in range(10)]
    return np.sort(np.concatenate(firsts))


def _read_olivetti_matrix(path: Path) -> NDArray[np.uint8]:
    from scipy.io import loadmat

    try:
        columns = np.asarray(loadmat(str(path))["faces"])
        images = columns.T.reshape(-1, 64, 64).transpose(0, 2, 1)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise DataCorrupt(f"{path} cannot be read: {error}") from error
    return np.ascontiguousarray(images).astype(np.uint8)


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
    train = find(_downloads.ADULT["train"], verify=verify, download=download)
    test = find(_downloads.ADULT["test"], verify=verify, download=download)
    return Census(train.read(_read_adult), test.read(_read_adult), train.revision)


def location30(*, verify: bool = True, download: bool = True) -> LabelledRecords:
    """Visits of 5010 people in Bangkok: 446 yes-or-no features, 30 groups (Shokri et al. 2017)."""
    found = find(_downloads.LOCATION30, verify=verify, download=download)
    x, y = found.read(_read_location)
    return LabelledRecords(x, y, tuple(f"group {k}" for k in range(1, 31)), found.revision)


def sst2(*, verify: bool = True, download: bool = True) -> Sentences:
    """Film reviews, negative or positive: 67,349 phrases, 872 and 1821 sentences.

    (Socher et al. 2013, binary task.) Unlike in the GLUE benchmark, the test part has labels.
    """
    found = {
        part: find(file, verify=verify, download=download) for part, file in _downloads.SST2.items()
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


# Classes need to be divisions that can be repeated, not the best ones: k-means may end early.
_ROUNDS = 15
_CUSTOMERS_AT_ONCE = 2048  # their chances to buy are in memory together


class Chance(Protocol):
    """Draws numbers, as a generator of numpy does."""

    def normal(self, *, size: tuple[int, ...]) -> Any: ...
    def random(self, *, size: tuple[int, ...]) -> Any: ...


@final
@dataclass(frozen=True, eq=False)
class MadeUpPurchases:
    """Baskets ``x`` (customers, products) of 0 and 1, and the class of each customer in ``y``."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    classes: int


def made_up_purchases(
    customers: int,
    *,
    draw: Chance,
    classes: int = 100,
    products: int = 600,
    habits: int = 15,
    strength: float = 3.0,
) -> MadeUpPurchases:
    """Return made-up customers, divided into ``classes`` kinds by what they buy.

    Each product is bought with probability 1 / (1 + exp(-(b + a + strength * w.z))), where z
    are the habits of the customer (standard normal), w those that the product meets (normal,
    with an expected length of 1), b is the popularity of the product and a how much the customer
    buys. ``draw`` is a generator of numpy; the classes are drawn last, so that from an equal
    start another number of them divides the same customers anew. Classes differ in size.

    >>> start = np.random.default_rng
    >>> few, many = (made_up_purchases(50, draw=start(1), classes=k) for k in (2, 10))
    >>> few.x.shape, bool((few.x == many.x).all()), int(many.y.max())
    ((50, 600), True, 9)
    """
    count = _validate.integer("customers", customers, at_least=2)
    kinds = _validate.integer("classes", classes, at_least=2, at_most=count)
    wide = _validate.integer("products", products, at_least=1)
    deep = _validate.integer("habits", habits, at_least=1)
    pull = _validate.real("strength", strength, at_least=0)
    if not (hasattr(draw, "normal") and hasattr(draw, "random")):
        raise InvalidValue("draw", draw, "a generator of numpy, such as default_rng(1)")
    meets = pull / np.sqrt(deep) * draw.normal(size=(deep, wide))
    popularity = draw.normal(size=(wide,)) - 2.5
    own = draw.normal(size=(count, deep))
    busy = draw.normal(size=(count, 1))
    x = np.empty((count, wide), dtype=np.uint8)
    for start in range(0, count, _CUSTOMERS_AT_ONCE):
        some = slice(start, start + _CUSTOMERS_AT_ONCE)
        chance = 1.0 / (1.0 + np.exp(-(popularity + busy[some] + own[some] @ meets)))
        x[some] = draw.random(size=chance.shape) < chance
    order = np.argsort(draw.random(size=(count,)), kind="stable")
    return MadeUpPurchases(x, _clusters(x.astype(np.float32), order[:kinds]), kinds)


def _clusters(x: NDArray[np.float32], first: NDArray[np.intp]) -> NDArray[np.int64]:
    """Run Lloyd's k-means from the records ``first``; a centre without records stays."""
    kinds = len(first)
    centres = x[first].copy()
    nearest = np.full(len(x), -1)
    for _ in range(_ROUNDS):
        # |x - c|^2 without |x|^2, which all candidates share.
        again = np.argmin((centres**2).sum(axis=1) - 2.0 * (x @ centres.T), axis=1)
        if np.array_equal(again, nearest):
            break
        nearest = again
        for kind in range(kinds):
            mine = nearest == kind
            if mine.any():
                centres[kind] = x[mine].mean(axis=0)
    return nearest.astype(np.int64)
