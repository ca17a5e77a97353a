"""Small made-up files in the layouts of the public data sets."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np

from discreet.data._public_sets import ADULT_COLUMNS

IDX_NAMES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def images(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels(count: int, classes: int = 10, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, count, dtype=np.uint8)


def idx_parts() -> dict[str, np.ndarray]:
    return {
        "x_train": images(20, 28, 28),
        "y_train": labels(20),
        "x_test": images(6, 28, 28, seed=2),
        "y_test": labels(6, seed=3),
    }


def tar_bytes(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def cifar_archive(train: np.ndarray, test: np.ndarray) -> bytes:
    """The binary archive for records of (label, 3 x 32 x 32 bytes)."""
    batches = np.array_split(train, 5)
    members = {
        f"cifar-10-batches-bin/data_batch_{number}.bin": batch.tobytes()
        for number, batch in enumerate(batches, start=1)
    }
    members["cifar-10-batches-bin/readme.html"] = b"<html>"
    members["cifar-10-batches-bin/test_batch.bin"] = test.tobytes()
    return tar_bytes(members)


def adult_rows(count: int, stop: str) -> str:
    row = [
        str(30 + place) if kind is int else "?" for place, kind in enumerate(ADULT_COLUMNS.values())
    ]
    rows = [[*row[:-1], ("<=50K", ">50K")[number % 2] + stop] for number in range(count)]
    return "\n".join(", ".join(each) for each in rows) + "\n\n"


def location_table(count: int) -> str:
    rows = np.random.default_rng(4).integers(0, 2, (count, 446))
    names = labels(count, 30) + 1
    return "".join(
        f'"{name}",' + ",".join(map(str, row)) + "\n" for name, row in zip(names, rows, strict=True)
    )


def write_all(directory: Path) -> None:
    """One small version of every set, as the loaders look for it."""
    for folder in ("mnist", "fashion_mnist", "cifar10", "adult", "location30", "faces", "sst2"):
        (directory / folder).mkdir(parents=True)
    for part, array in idx_parts().items():
        name = IDX_NAMES[part]
        (directory / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
        (directory / "fashion_mnist" / name).write_bytes(idx_bytes(array))
    np.savez(
        directory / "cifar10" / "cifar10_16k_4k.npz",
        x_train=images(8, 32, 32, 3),
        y_train=labels(8),
        x_test=images(3, 32, 32, 3),
        y_test=labels(3),
    )
    (directory / "adult" / "adult.data").write_text(adult_rows(5, ""))
    test = "|1x3 Cross validator\n" + adult_rows(3, ".")
    (directory / "adult" / "adult.test.gz").write_bytes(gzip.compress(test.encode()))
    archive = tar_bytes({"bangkok": location_table(7).encode()})
    (directory / "location30" / "dataset_location.tgz").write_bytes(archive)
    np.savez(directory / "faces" / "olivetti64.npz", x=images(4, 64, 64), y=labels(4, 2))
    for part in ("train", "dev", "test"):
        text = 'label\tsentence\n1\ta "fine" film\n0\tno ,\tnever é\n'
        (directory / "sst2" / f"{part}.tsv.gz").write_bytes(gzip.compress(text.encode()))
