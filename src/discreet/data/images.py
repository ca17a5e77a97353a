"""Public image sets as numpy arrays: MNIST, Fashion-MNIST, CIFAR-10, Olivetti faces, digits."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from discreet import _validate
from discreet.data import catalogue
from discreet.data.idx import read_idx
from discreet.data.sources import UNVERIFIED, DataCorrupt, DataUnavailable, SourceFile, find

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LabelledImages", "SplitImages", "cifar10", "digits", "faces", "fashion_mnist", "mnist"]

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
    return _idx_set(catalogue.MNIST, DIGIT_CLASSES, None, verify=verify, download=download)


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
        catalogue.FASHION_MNIST, FASHION_CLASSES, revision, verify=verify, download=download
    )


def cifar10(*, reduced: bool = True, verify: bool = True, download: bool = True) -> SplitImages:
    """Small colour photographs, 32 x 32 x 3 (Krizhevsky 2009).

    The reduced set has the first 1600 training and 400 test images of every class in official
    order, 16,000 and 4,000 in all: enough for demonstrations and a third of the download. It is
    read from its own file or cut from the full archive, with the same result. The full set
    (``reduced=False``) is read from the archive in the binary format, never from pickles.
    """
    forms = [catalogue.CIFAR10]
    if reduced:
        forms.insert(0, catalogue.CIFAR10_REDUCED)
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
    forms = (catalogue.OLIVETTI, catalogue.OLIVETTI_MATRIX)
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
        raise DataUnavailable("the digits come with scikit-learn, which is not there") from error
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
