"""What brings something in from outside: files, the environment, the network.

A hash of a function's code does not know what a file holds or what a variable is set to. The
list is of names and cannot be complete: libraries read files under names of all kinds.
"""

from __future__ import annotations

__all__ = ["reads_outside"]

_MODULES = (
    "configparser",
    "dbm",
    "fileinput",
    "ftplib",
    "glob",
    "h5py",
    "http",
    "mmap",
    "pathlib",
    "pyarrow.dataset",
    "requests",
    "shelve",
    "socket",
    "sqlite3",
    "subprocess",
    "tarfile",
    "torch.hub",
    "torchvision.datasets",
    "urllib",
    "zipfile",
)
_NAMES = frozenset(
    {"open", "input", "load", "environ", "environb", "getenv", "getenvb", "argv", "stdin"}
    | {"listdir", "scandir", "popen", "system", "loadtxt", "genfromtxt", "fromfile", "from_file"}
    | {"memmap", "open_memmap", "imread", "loadmat", "urlopen", "mmread", "loadarff"}
    | {"load_file", "load_files", "load_dataset", "load_model", "from_pretrained"}
    | {"load_svmlight_file", "load_svmlight_files", "HDFStore", "ExcelFile"}
    | {"ParquetFile", "ParquetDataset", "safe_open"}
)
_BEGINNINGS = ("read_", "fetch_", "scan_")


def reads_outside(module: str, name: str) -> bool:
    """Whether ``name``, of a library's ``module``, may read what lies outside of the code.

    >>> reads_outside("numpy", "load"), reads_outside("pandas", "read_csv")
    (True, True)
    >>> reads_outside("pathlib", "Path"), reads_outside("numpy", "loads")
    (True, False)
    """
    known = any(module == one or module.startswith(f"{one}.") for one in _MODULES)
    return known or name in _NAMES or name.startswith(_BEGINNINGS)
