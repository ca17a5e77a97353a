"""When a shadow model may be taken from the cache (S28)."""

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.attacks.shadow_identity import data_digest, shadow_name, train_key
from discreet.errors import InvalidValue

RATE = 0.5


def helper(x: float) -> float:
    return x * RATE


def uses_helper(indices: object) -> float:
    return helper(1.0)


def closing_over(value: Any) -> Callable[[object], Any]:
    def train(indices: object) -> Any:
        return value, math.pi

    return train


def test_values_that_a_function_uses_are_part_of_it() -> None:
    assert train_key(closing_over(1)) == train_key(closing_over(1))
    values = [1, 2, 1.0, True, "1", (1, 2), [1, 2], {"a": 1}, np.arange(3), np.arange(4), None]
    assert len({train_key(closing_over(value)) for value in values}) == len(values)


def test_globals_and_functions_of_the_same_module_are_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = train_key(uses_helper)
    assert train_key(uses_helper) == before
    monkeypatch.setitem(uses_helper.__globals__, "RATE", 0.25)
    assert train_key(uses_helper) != before


def test_defaults_are_part_of_it() -> None:
    def one(indices: object, rate: float = 0.1) -> float:
        return rate

    before = train_key(one)
    one.__defaults__ = (0.2,)
    assert train_key(one) != before

    def two(indices: object, *, rate: float = 0.1, size: int = 3) -> object:
        return rate, size

    before = train_key(two)
    two.__kwdefaults__ = {"rate": 0.2, "size": 3}
    assert train_key(two) != before
    two.__kwdefaults__ = {"rate": 3, "size": 0.1}
    assert train_key(two) != before
    two.__kwdefaults__ = {"size": 3, "rate": 0.1}
    assert train_key(two) == before


def test_recursion_ends() -> None:
    def again(count: int) -> int:
        return 0 if count == 0 else again(count - 1)

    assert train_key(again) == train_key(again)


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(InvalidValue, match="value, which train uses, is a object"):
        train_key(closing_over(object()))
    with pytest.raises(InvalidValue, match="is a partial"):
        train_key(partial(uses_helper, 1))
    with pytest.raises(InvalidValue, match="calls eval"):
        train_key(lambda _: eval("RATE"))
    with pytest.raises(InvalidValue, match="is importlib"):
        train_key(lambda _: importlib.import_module("math"))
    with pytest.raises(InvalidValue, match=r"is importlib\.import_module"):
        train_key(closing_over(importlib.import_module))

    def declared(indices: object) -> object:
        return closing_over(object())

    declared.key = "declared by hand"  # type: ignore[attr-defined]
    assert train_key(declared) == "declared:declared by hand"


OUTSIDE = (
    "import os\ndef train(i): return os.environ['RATE']",
    "import os\ndef train(i): return os.getenv('RATE')",
    "from os import getenv\ndef train(i): return getenv('RATE')",
    "from os import environ\ndef train(i): return environ['RATE']",
    "def train(i):\n    import os\n    return os.environ.get('RATE')",
    "def train(i):\n    import os.path\n    return os.environ.get('RATE')",
    "def train(i):\n    from os import environ\n    return environ['RATE']",
    "def train(i): return open('rates').read()",
    "import io\ndef train(i): return io.open('rates').read()",
    "import gzip\ndef inner(): return gzip.open('rates')\ndef train(i): return inner()",
    "import numpy as np\ndef train(i): return np.load('rates.npy')[i]",
    "import numpy as np\ndef train(i):\n    n = np\n    return n.load('rates.npy')[i]",
    "import numpy as np\ndef train(i): return (lambda: np.loadtxt('rates'))()",
    "from numpy import genfromtxt\ndef train(i): return genfromtxt('rates')",
    "import numpy as np\ndef train(i): return np.fromfile('rates')",
    "from numpy import memmap\ndef train(i): return memmap('rates')",
    "def train(i):\n    import numpy as np\n    return np.load('rates.npy')[i]",
    "import torch\ndef train(i): return torch.load('model.pt')",
    "import pandas as pd\ndef train(i): return pd.read_csv('rates.csv')",
    "from pandas import read_parquet\ndef train(i): return read_parquet('rates')",
    "from pathlib import Path\ndef train(i): return Path('rates').read_text()",
    "import pathlib\ndef train(i): return pathlib.Path('rates').read_text()",
    "import joblib\ndef train(i): return joblib.load('model')",
    "import sys\ndef train(i): return sys.argv[1]",
    "import subprocess\ndef train(i): return subprocess.run(['rates'])",
)


@pytest.mark.parametrize("text", OUTSIDE)
def test_what_lies_outside_of_the_code_is_refused(text: str) -> None:
    namespace: dict[str, Any] = {"__name__": "ff_outside"}
    exec(text, namespace)
    with pytest.raises(InvalidValue, match=r"key = None: .*(from outside by|is a _Environ)"):
        train_key(namespace["train"])
    namespace["train"].key = "rates of Monday"
    assert train_key(namespace["train"]) == "declared:rates of Monday"


def test_names_of_the_users_own_are_not_taken_for_reading() -> None:
    text = "import json\nimport numpy as np\ndef load(i): return np.mean(i)\n"
    text += "def train(i): return load(i), json.loads('1'), np.arange(3).input"
    namespace: dict[str, Any] = {"__name__": "ff_inside"}
    exec(text, namespace)
    assert train_key(namespace["train"]).startswith("code:")


def test_code_without_source_is_known_by_what_it_runs() -> None:
    def made(body: str) -> Any:
        namespace: dict[str, Any] = {}
        exec(f"def made(indices):\n{body}", namespace)
        return namespace["made"]

    assert train_key(made(" return 1")) == train_key(made("\n\n return 1"))
    assert train_key(made(" return 1")) != train_key(made(" return 2"))
    assert train_key(made(" return lambda: 1")) != train_key(made(" return lambda: 2"))


class Base:
    depth = 1


class Sub(Base):
    def make(self) -> float:
        return RATE

    @staticmethod
    def shared() -> float:
        return helper(2.0)


@dataclass
class Settings:
    sizes: list[int] = field(default_factory=lambda: [int(RATE * 8)])


def nested(indices: object) -> object:
    def inner() -> float:
        return RATE

    return inner()


def by_lambda(indices: object) -> object:
    return (lambda: RATE)()


def by_class(indices: object) -> object:
    return Sub().make()


def by_settings(indices: object) -> object:
    return Settings()


@pytest.mark.parametrize("train", [nested, by_lambda, by_class, by_settings])
def test_globals_are_found_in_whatever_is_nested(
    train: Callable[[object], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = train_key(train)
    assert train_key(train) == before
    monkeypatch.setitem(train.__globals__, "RATE", 0.25)  # type: ignore[attr-defined]
    assert train_key(train) != before


def test_attributes_of_bases_are_part_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    before = train_key(by_class)
    monkeypatch.setattr(Base, "depth", 9)
    assert train_key(by_class) != before


HELPER = "SIZE = 3\ndef fit(x):\n    return x * {0}\nclass Maker:\n    width = {0}\n"
USERS = (
    "from ff_helper import fit\ndef train(i): return fit(i)",
    "import ff_helper\ndef train(i): return ff_helper.fit(i)",
    "import ff_helper as h\ndef train(i): return [h.Maker().width for _ in i]",
    "def train(i):\n    from ff_helper import fit\n    return fit(i)",
    "import functools, ff_helper\n@functools.lru_cache\ndef train(i): return ff_helper.fit(i)",
    (
        "import math, ff_helper\ndef around(f):\n    @__import__('functools').wraps(f)\n"
        "    def run(*a): return f(*a)\n    return run\ntrain = around(ff_helper.fit)"
    ),
)


def in_other_modules(
    user: str, factor: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """The function ``train`` of ``user``, which uses a module in which ``factor`` is written."""
    place = home / str(factor)
    place.mkdir(exist_ok=True)
    (place / "ff_helper.py").write_text(HELPER.format(factor), encoding="utf-8")
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, "ff_helper", raising=False)
    namespace: dict[str, Any] = {"__name__": "ff_user"}
    exec(user, namespace)
    found: Callable[..., Any] = namespace["train"]
    return found


@pytest.mark.parametrize("user", USERS)
def test_other_modules_of_the_user_are_followed(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [
        train_key(in_other_modules(user, factor, tmp_path, monkeypatch)) for factor in (1, 2, 1)
    ]
    monkeypatch.delitem(sys.modules, "ff_helper", raising=False)
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize(
    "user",
    [
        "import ff_helper\ndef train(i): return getattr(ff_helper, 'fit')(i)",
        "def train(i):\n    import ff_helper\n    return ff_helper.fit(i)",
        "import ff_helper\ndef train(i): return ff_helper.absent(i)",
    ],
)
def test_modules_that_are_used_as_a_whole_are_refused(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = in_other_modules(user, 1, tmp_path, monkeypatch)
    with pytest.raises(InvalidValue, match="the module ff_helper"):
        train_key(train)
    monkeypatch.delitem(sys.modules, "ff_helper", raising=False)


SETS = """
from typing import NamedTuple
from sklearn.base import BaseEstimator, ClassifierMixin
from discreet.attacks.shadow_identity import train_key

class Mine(ClassifierMixin, BaseEstimator):
    def fit(self, x, y, weight=None):
        return self

class Pair(NamedTuple):
    one: int = 1

PAIR, WORDS = Pair(3), {"these", "have", "no", "order"}

def train(i):
    return Mine().fit(i, i), PAIR, i in {"nor", "do", "these"}, WORDS

print(train_key(train))
"""


@pytest.mark.slow
def test_another_process_finds_the_same_key() -> None:
    keys = {
        subprocess.run(
            [sys.executable, "-c", SETS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(keys) == 1
    assert keys.pop().startswith("code:")


def test_libraries_are_known_by_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(indices: object) -> object:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(), math.pi, np.mean(0.0), enum_of.A

    class enum_of(Enum):  # noqa: N801
        A = 1

    before = train_key(train)
    assert train_key(train) == before
    monkeypatch.setattr("sklearn.__version__", "0.0.1")
    assert train_key(train) != before


def test_names_depend_on_everything() -> None:
    row = np.array([True, False, True, False])
    names = {
        shadow_name("d", row, 1, "k"),
        shadow_name("e", row, 1, "k"),
        shadow_name("d", ~row, 1, "k"),
        shadow_name("d", np.append(row, False), 1, "k"),
        shadow_name("d", row, 2, "k"),
        shadow_name("d", row, 1, "l"),
    }
    assert len(names) == 6


def test_data_of_all_kinds() -> None:
    import pandas as pd
    import torch

    y = np.array([0, 1])
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    frame = pd.DataFrame({"a": [1.0, 3.0], "b": ["x", "y"]})
    digests = {
        data_digest(x, y),
        data_digest(x[::-1], y),
        data_digest(x, y[::-1]),
        data_digest(x.astype(np.float32), y),
        data_digest(frame, y),
        data_digest(frame.rename(columns={"a": "c"}), y),
        data_digest(np.array([["a"], ["b"]], dtype=object), y),
    }
    assert len(digests) == 7
    assert data_digest(torch.tensor(x), y) == data_digest(x, y)
