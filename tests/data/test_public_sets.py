"""The loaders: on the published files where they are, and always on made-up ones."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from data.made_up_sets import (
    IDX_NAMES,
    cifar_archive,
    idx_bytes,
    idx_parts,
    images,
    labels,
    tar_bytes,
    write_all,
)
from data.public_directory import public_directory
from discreet import data
from discreet.data import _downloads
from discreet.data._downloads import UNVERIFIED
from discreet.data._public_sets import read_idx

PUBLIC = public_directory()


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with small versions of all sets; nothing is cached, nothing is fetched."""
    directory = tmp_path / "data"
    write_all(directory)
    monkeypatch.setenv("DISCREET_DATA", str(directory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DISCREET_OFFLINE", "1")
    return directory


@pytest.fixture
def published(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Point the loaders at the published files, or leave them with the made-up ones."""
    if PUBLIC is not None:
        monkeypatch.setenv("DISCREET_DATA", str(PUBLIC))
    return PUBLIC is not None


# --- every layout ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_sets(published: bool, name: str) -> None:
    read = getattr(data, name)(verify=published)
    train, test = (60_000, 10_000) if published else (20, 6)
    assert (read.x_train.shape, read.y_train.shape) == ((train, 28, 28), (train,))
    assert (read.x_test.shape, read.y_test.shape) == ((test, 28, 28), (test,))
    assert read.x_train.dtype == read.y_train.dtype == np.uint8
    assert len(read.classes) == 10
    if published:
        mean = {"mnist": 33.318421, "fashion_mnist": 72.956831}[name]
        assert float(read.x_train.mean()) == pytest.approx(mean, abs=1e-6)
        assert np.bincount(read.y_test).min() >= 892
        assert read.revision == {"mnist": "1998", "fashion_mnist": "2017-08-26"}[name]
    else:
        assert all(np.array_equal(getattr(read, k), v) for k, v in idx_parts().items())
        assert read.revision == UNVERIFIED


def test_cifar10(published: bool) -> None:
    read = data.cifar10(verify=published)
    assert read.x_train.shape == ((16_000 if published else 8), 32, 32, 3)
    assert read.x_test.shape == ((4_000 if published else 3), 32, 32, 3)
    assert read.classes[6] == "frog"
    if published:
        assert set(np.bincount(read.y_train)) == {1600}
        assert set(np.bincount(read.y_test)) == {400}


def test_faces(published: bool) -> None:
    read = data.faces(verify=published)
    assert read.x.shape == ((400 if published else 4), 64, 64)
    assert len(read.classes) == (40 if published else 2)


def test_adult(published: bool) -> None:
    read = data.adult(verify=published)
    for part, rows, rich in (("train", 32_561, 7_841), ("test", 16_281, 3_846)):
        table = getattr(read, part)
        assert list(table) == list(data._public_sets.ADULT_COLUMNS)
        assert {len(column) for column in table.values()} == (
            {rows} if published else {5 if part == "train" else 3}
        )
        assert set(table["income"]) == {"<=50K", ">50K"}
        if published:
            assert int((table["income"] == ">50K").sum()) == rich
    assert read.train["age"].dtype == np.int64
    assert "?" in read.train["workclass"]


def test_location30(published: bool) -> None:
    read = data.location30(verify=published)
    assert read.x.shape == ((5_010 if published else 7), 446)
    assert set(np.unique(read.x)) == {0, 1}
    assert read.y.max() < len(read.classes) == 30
    if published:
        with np.load(PUBLIC / "location30" / "location30.npz", allow_pickle=False) as recorded:
            assert np.array_equal(recorded["x"], read.x)
            assert np.array_equal(recorded["y"], read.y)


def test_sst2(published: bool) -> None:
    read = data.sst2(verify=published)
    counts = {part: len(texts) for part, texts in read.texts.items()}
    assert counts == {part: len(marks) for part, marks in read.labels.items()}
    if published:
        assert counts == {"train": 67_349, "dev": 872, "test": 1_821}
        positive = {part: int(marks.sum()) for part, marks in read.labels.items()}
        assert positive == {"train": 37_569, "dev": 444, "test": 909}
    else:
        assert read.texts["dev"] == ('a "fine" film', "no ,\tnever é")
        assert read.labels["dev"].tolist() == [1, 0]


def test_digits_need_no_file(made_up: Path) -> None:
    read = data.digits()
    assert read.x.shape == (1797, 8, 8)
    assert (read.x.dtype, int(read.x.max())) == (np.uint8, 16)
    assert read.y[:5].tolist() == [0, 1, 2, 3, 4]


# --- other forms of the same data ------------------------------------------------------


def test_the_reduced_cifar10_is_cut_from_the_full_archive(made_up: Path) -> None:
    generator = np.random.default_rng(5)
    train = generator.integers(0, 256, (50, 3073), dtype=np.uint8)
    test = generator.integers(0, 256, (10, 3073), dtype=np.uint8)
    train[:, 0], test[:, 0] = np.arange(50) % 10, 3
    (made_up / "cifar10" / "cifar10_16k_4k.npz").unlink()
    (made_up / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(cifar_archive(train, test))
    full = data.cifar10(reduced=False, verify=False)
    assert full.x_train.shape == (50, 32, 32, 3)
    assert full.y_test.tolist() == [3] * 10
    row, column, colour = 5, 7, 2
    assert full.x_train[9, row, column, colour] == train[9, 1 + 1024 * colour + 32 * row + column]
    reduced = data.cifar10(verify=False)
    assert np.array_equal(reduced.x_train, full.x_train)
    firsts = data._public_sets._first_of_each_class(full.y_train, 2)
    assert firsts.tolist() == list(range(20))


def test_the_reduced_cifar10_has_the_recorded_rows(published: bool) -> None:
    """Where the published file is: its rows are the first of each class in official order."""
    if published:
        with np.load(PUBLIC / "cifar10" / "cifar10_16k_4k.npz", allow_pickle=False) as recorded:
            rows, marks = recorded["idx_train"], recorded["y_train"]
    else:
        rows, marks = np.arange(30), np.arange(30) % 10
    assert np.all(np.diff(rows) > 0)
    assert len(np.unique(np.bincount(marks))) == 1


def test_faces_from_the_usual_matrix(made_up: Path) -> None:
    x = images(400, 64, 64, seed=6)
    (made_up / "faces" / "olivetti64.npz").unlink()
    columns = x.transpose(0, 2, 1).reshape(400, -1).T.astype(np.float64)
    savemat(made_up / "faces" / "olivettifaces.mat", {"faces": columns})
    read = data.faces(verify=False)
    assert np.array_equal(read.x, x)
    assert read.y.tolist() == [person for person in range(40) for _ in range(10)]


# --- what is refused --------------------------------------------------------------------


def test_unknown_content_is_refused_unless_asked_for(made_up: Path) -> None:
    with pytest.raises(data.DataCorrupt, match="none of the known revisions of mnist"):
        data.mnist()
    assert data.mnist(verify=False).revision == UNVERIFIED


def digests_of(monkeypatch: pytest.MonkeyPatch, revisions: dict[str, str]) -> None:
    """Make the content of the made-up Fashion-MNIST known, part by part."""
    import hashlib

    files = {}
    for part, array in idx_parts().items():
        digest = hashlib.sha256(idx_bytes(array)).hexdigest()
        known = _downloads.FASHION_MNIST[part]
        files[part] = type(known)(known.folder, known.name, {digest: revisions[part]}, known.urls)
    monkeypatch.setattr(_downloads, "FASHION_MNIST", files)


def test_revisions_are_named_and_never_mixed(
    made_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests_of(monkeypatch, dict.fromkeys(IDX_NAMES, "2017-08-26"))
    assert data.fashion_mnist().revision == "2017-08-26"
    assert data.fashion_mnist(revision="2017-08-26").revision == "2017-08-26"
    with pytest.raises(data.DataUnavailable, match="revision '2017-08-26' and not 'dedup"):
        data.fashion_mnist(revision="deduplicated")
    mixed = dict.fromkeys(IDX_NAMES, "2017-08-26") | {"y_test": "deduplicated"}
    digests_of(monkeypatch, mixed)
    with pytest.raises(data.DataUnavailable, match="t10k-labels"):
        data.fashion_mnist()
    with pytest.raises(ValueError, match="revision = '2018'"):
        data.fashion_mnist(revision="2018")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00\x08",
        b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00",
        b"\x00\x00\x08\x01\x00\x00",
        b"\x00\x00\x08\x01\x00\x00\x00\x03\x01\x02",
        b"\x00\x00\x08\x01\x00\x00\x00\x01\x01\x02",
        b"\x00\x00\x08\x02\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x00\x08\x09" + bytes(36),
    ],
)
def test_broken_idx_files(made_up: Path, content: bytes) -> None:
    (made_up / "fashion_mnist" / IDX_NAMES["y_train"]).write_bytes(content)
    with pytest.raises(data.DataCorrupt, match="idx"):
        data.fashion_mnist(verify=False)


def test_idx_of_every_dimension() -> None:
    import io

    for shape in [(0,), (5,), (2, 3), (2, 3, 4), (1, 2, 3, 4)]:
        array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        assert np.array_equal(read_idx(io.BytesIO(idx_bytes(array))), array)


def test_broken_compression(made_up: Path) -> None:
    path = made_up / "mnist" / f"{IDX_NAMES['x_train']}.gz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(data.DataCorrupt, match="cannot be unpacked"):
        data.mnist(verify=False)
    with pytest.raises(data.DataCorrupt):
        data.mnist()


@pytest.mark.parametrize(
    ("part", "array"),
    [("y_train", labels(19)), ("y_test", np.full(6, 10)), ("x_test", images(6, 28))],
)
def test_parts_that_do_not_belong_together(made_up: Path, part: str, array: np.ndarray) -> None:
    path = made_up / "mnist" / f"{IDX_NAMES[part]}.gz"
    path.write_bytes(gzip.compress(idx_bytes(array)))
    with pytest.raises(data.DataCorrupt, match=r"belong together|classes"):
        data.mnist(verify=False)


def replace(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_broken_tables(made_up: Path) -> None:
    replace(made_up / "adult" / "adult.data", b"39, Private\n")
    with pytest.raises(data.DataCorrupt, match="2 values, not 15"):
        data.adult(verify=False)
    row = (made_up / "adult" / "adult.test.gz").read_bytes()
    text = gzip.decompress(row).decode().replace("30,", "old,", 1)
    replace(made_up / "adult" / "adult.data", text.encode())
    with pytest.raises(data.DataCorrupt, match="age is not a number"):
        data.adult(verify=False)
    place = made_up / "location30" / "dataset_location.tgz"
    for content, message in (
        (b"not an archive", "not the archive"),
        (tar_bytes({"other": b"1"}), "no member named bangkok"),
        (tar_bytes({"bangkok": b"1,0,1\n"}), "3 columns, not 447"),
        (tar_bytes({"bangkok": b"a,b\n"}), "cannot be read"),
    ):
        replace(place, content)
        with pytest.raises(data.DataCorrupt, match=message):
            data.location30(verify=False)
    replace(made_up / "sst2" / "dev.tsv.gz", gzip.compress(b"label\ttext\n2\thm\n"))
    with pytest.raises(data.DataCorrupt, match="0 or 1, a tab"):
        data.sst2(verify=False)


def test_broken_arrays(made_up: Path) -> None:
    np.savez(made_up / "faces" / "olivetti64.npz", x=images(4, 64, 64))
    with pytest.raises(data.DataCorrupt, match="cannot be read"):
        data.faces(verify=False)
    np.savez(made_up / "faces" / "olivetti64.npz", x=images(4, 64, 63), y=labels(4))
    with pytest.raises(data.DataCorrupt, match="shape"):
        data.faces(verify=False)
    np.savez(made_up / "faces" / "olivetti64.npz", x=images(4, 64, 64) * 1.0, y=labels(4))
    with pytest.raises(data.DataCorrupt, match="float64"):
        data.faces(verify=False)
    replace(made_up / "cifar10" / "cifar10_16k_4k.npz", b"PK\x03\x04 nonsense")
    with pytest.raises(data.DataCorrupt, match="cannot be read"):
        data.cifar10(verify=False)
    replace(made_up / "cifar10" / "cifar-10-binary.tar.gz", tar_bytes({"a.bin": bytes(3073)}))
    with pytest.raises(data.DataCorrupt, match="CIFAR-10"):
        data.cifar10(reduced=False, verify=False)


def test_arrays_with_pickles_are_not_opened(made_up: Path) -> None:
    harmful = np.array([{"code": "runs"}], dtype=object)
    np.savez(made_up / "faces" / "olivetti64.npz", x=harmful, y=labels(1))
    with pytest.raises(data.DataCorrupt, match="allow_pickle"):
        data.faces(verify=False)


# --- the package -----------------------------------------------------------------------


def test_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, discreet.data as d\n"
        "heavy = ['sklearn', 'torch', 'pandas', 'pyarrow', 'polars', 'duckdb']\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "for name in d.__all__: assert getattr(d, name) is not None\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
