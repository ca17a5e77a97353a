"""The files of the public data sets: digests of every known revision, and where they live.

Digests of compressed files that are published as such come from their publishers or from the
checksum lists of TensorFlow Datasets and scikit-learn; digests of unpacked content were taken
from files whose origin is known. Where the same folder has several revisions, all files of one
read must belong to the same one.
"""

from __future__ import annotations

from discreet.data.sources import SourceFile

__all__ = [
    "ADULT",
    "CIFAR10",
    "CIFAR10_REDUCED",
    "FASHION_MNIST",
    "LOCATION30",
    "MNIST",
    "OLIVETTI",
    "OLIVETTI_MATRIX",
    "SST2",
]

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
