"""Bits: where they come from, that they are never shared, and that a seed is always confessed."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import discreet.randomness
from discreet.errors import InvalidValue, NotApplicable
from discreet.randomness import (
    InsecureSeededSource,
    NormalStream,
    SystemSource,
    discrete_laplace,
    gaussian_on_grid,
    laplace_on_grid,
    source,
)
from randomness.scripted_source import ScriptedSource

PACKAGE = Path(discreet.randomness.__file__).parent


def run_python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bits_are_the_top_bits_of_little_endian_bytes() -> None:
    assert ScriptedSource(b"\xb4").bits(3) == 0b101
    assert ScriptedSource(b"\x01\x80").bits(16) == 0x8001
    assert ScriptedSource(b"").bits(0) == 0
    assert ScriptedSource(bytes(range(8))).words32(2).tolist() == [0x03020100, 0x07060504]
    assert ScriptedSource(bytes(range(8))).words64(1).tolist() == [0x0706050403020100]


def test_system_source_reads_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or bytes(n))
    assert source().read(5) == bytes(5)
    assert asked == [5]
    assert isinstance(source(), SystemSource)


def test_system_bytes_look_uniform() -> None:
    counts = np.bincount(source().words8(1 << 18), minlength=256)
    statistic = float(((counts - 1024) ** 2 / 1024).sum())
    assert statistic < 420, "chi-square with 255 degrees of freedom exceeds this once in 1e9"


def test_seeded_source_is_deterministic_and_confesses() -> None:
    one, two, other = (source(insecure_seed=seed) for seed in (7, 7, 8))
    assert one.read(100) == two.read(100) != other.read(100)
    assert one.provenance == {"randomness": "INSECURE seed 7"}
    assert one.derive("worker", 3).provenance == {"randomness": "INSECURE seed 7 / worker / 3"}
    assert source().provenance == {"randomness": "operating system"}


def test_seeded_stream_does_not_depend_on_the_cuts() -> None:
    whole = source(insecure_seed=1).read(64)
    parts = source(insecure_seed=1)
    assert b"".join(parts.read(n) for n in (1, 30, 33)) == whole


def test_derived_sources_differ_from_each_other_and_their_parent() -> None:
    parent = source(insecure_seed=5)
    streams = [
        parent.read(32),
        parent.derive(1).read(32),
        parent.derive("1").read(32),
        parent.derive(1, 1).read(32),
        source(insecure_seed=-5).read(32),
    ]
    assert len(set(streams)) == len(streams)
    assert parent.derive(1).read(32) == streams[1]
    assert source().derive("any") is source()


def test_the_seed_is_recorded_in_everything_it_touches() -> None:
    seeded = {"randomness": "INSECURE seed 7"}
    assert laplace_on_grid(1.0, scale=1, source=source(insecure_seed=7)).provenance == seeded
    assert gaussian_on_grid([1.0], stddev=1, source=source(insecure_seed=7)).provenance == seeded
    stream = NormalStream(source=source(insecure_seed=7))
    assert stream.provenance["randomness"] == seeded["randomness"]
    assert laplace_on_grid(1.0, scale=1).provenance == {"randomness": "operating system"}


@pytest.mark.parametrize("seed", [True, 1.0, "1", float("nan")])
def test_a_seed_is_an_integer(seed: object) -> None:
    with pytest.raises(InvalidValue, match="insecure_seed"):
        source(insecure_seed=seed)


def test_seeded_source_wants_its_argument_by_name() -> None:
    with pytest.raises(TypeError):
        InsecureSeededSource(7)
    with pytest.raises(InvalidValue, match="labels"):
        source(insecure_seed=7).derive()
    with pytest.raises(InvalidValue, match="labels"):
        source(insecure_seed=7).derive(True)
    with pytest.raises(InvalidValue, match="source"):
        discrete_laplace(1, source=7)


def test_seeded_source_refuses_to_be_copied() -> None:
    with pytest.raises(NotApplicable, match="pickled"):
        pickle.dumps(source(insecure_seed=7))
    assert pickle.loads(pickle.dumps(source())).provenance == source().provenance


FORK = """
import os, sys
from discreet.errors import NotApplicable
from discreet.randomness import NormalStream, discrete_laplace, source
import numpy as np

stream, seeded = NormalStream(), source(insecure_seed=7)
stream.array(10), seeded.read(10), discrete_laplace(2**40, 10)

def look():
    blocks = [source().read(16) for _ in range(200)]
    noise = discrete_laplace(2**40, 200).tolist()
    normals = stream.array(200).tolist()
    return {repr(x) for x in blocks + noise + normals}

reader, writer = os.pipe()
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        try:
            seeded.read(1)
            refused = False
        except NotApplicable:
            refused = True
        with os.fdopen(writer, "w") as out:
            out.write(repr((sorted(look()), refused)) + "\\n")
        os._exit(0)
    os.waitpid(child, 0)
os.close(writer)
mine = look()
lines = [eval(line) for line in os.fdopen(reader)]
sets = [mine, *(set(values) for values, _ in lines)]
assert len(lines) == 2 and all(len(s) == 600 for s in sets)
assert all(refused for _, refused in lines)
assert not (sets[0] & sets[1] or sets[0] & sets[2] or sets[1] & sets[2])
print("apart")
"""


def test_a_fork_shares_no_noise() -> None:
    assert run_python(FORK).strip() == "apart"


RECYCLED_PID = """
import os
os.getpid = lambda: 1  # a grandchild may inherit the number of a process that has ended
from discreet.randomness import NormalStream
stream = NormalStream()
stream.array(10)
stream._lock.acquire()  # as if another thread were drawing at the moment of the fork
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    with os.fdopen(writer, "w") as out:
        out.write(repr(stream.array(10).tolist()))
    os._exit(0)
os.waitpid(child, 0)
os.close(writer)
stream._lock.release()
theirs = eval(os.fdopen(reader).read())
assert len(theirs) == 10 and not set(theirs) & set(stream.array(10).tolist())
print("apart")
"""


def test_a_fork_is_noticed_without_its_number_and_with_the_lock_held() -> None:
    assert run_python(RECYCLED_PID).strip() == "apart"


def test_threads_share_no_noise() -> None:
    stream = NormalStream()
    seeded = source(insecure_seed=3)
    seen: list[list[object]] = [[] for _ in range(8)]

    def work(mine: list[object]) -> None:
        for _ in range(20):
            mine.append(source().read(16))
            mine.append(seeded.read(16))
            mine.extend(stream.array(50).tolist())
            mine.extend(discrete_laplace(2**40, 20).tolist())

    threads = [threading.Thread(target=work, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [value for mine in seen for value in mine]
    assert len(everything) == 8 * 20 * 72
    assert len(set(everything)) == len(everything)
    # Together the threads consumed exactly the seeded stream, each byte once.
    blocks = {value for mine in seen for value in mine[1::72] if isinstance(value, bytes)}
    whole = source(insecure_seed=3).read(16 * 160)
    assert blocks == {whole[at : at + 16] for at in range(0, len(whole), 16)}


# --- what the package may import --------------------------------------------------------


def forbidden_uses(tree: ast.AST) -> list[str]:
    """Name every use of ``random``, ``numpy.random`` or torch's own generators."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] == "random"]
            found += [a.name for a in node.names if a.name.startswith("numpy.random")]
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            module = node.module or ""
            if module in ("random", "numpy.random") or (module == "numpy" and "random" in names):
                found.append(module)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            drawing = node.attr in ("random", "randn", "rand", "normal")
            if drawing and node.value.id in ("np", "numpy", "torch"):
                found.append(f"{node.value.id}.{node.attr}")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_no_statistical_generator(path: Path) -> None:
    assert forbidden_uses(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import random",
        "from random import gauss",
        "import numpy.random as r",
        "from numpy import random",
        "x = np.random.default_rng()",
        "y = torch.randn(3)",
    ],
)
def test_the_check_sees_planted_offences(planted: str) -> None:
    assert forbidden_uses(ast.parse(planted))


def test_import_is_light() -> None:
    loaded = run_python("import sys, discreet.randomness; print(*sys.modules)").split()
    assert {"discreet.randomness", "numpy"} <= set(loaded)
    assert not {"torch", "scipy", "cryptography", "random", "matplotlib"} & (
        set(loaded) - set(run_python("import sys, numpy; print(*sys.modules)").split())
    )


def test_public_names_exist_and_are_sorted() -> None:
    names = discreet.randomness.__all__
    assert all(hasattr(discreet.randomness, name) for name in names)
    assert names == sorted(names, key=lambda name: (name[0].islower(), name))
