"""Small faults in the code that decides privacy, each against the tests of its module.

Comparisons, signs, constants and branches are changed one at a time, 600 in all, chosen by a fixed
seed. A change that no test notices is a survivor: a missing test, or a change that makes no
difference. Each survivor is listed with its reason in benchmarks/survivors.toml; one without a
reason is a miss.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from harness import ROOT, Run, Suite, target

SEED = 20261118
MUTANTS = 600
MOST_SECONDS = 240.0
# Each module with the tests that judge it, the quickest first.
TESTS = {
    "privacy/_pair.py": (
        "privacy/test_contract.py",
        "privacy/test_finite.py",
        "privacy/test_bracket.py",
    ),
    "privacy/_sampling.py": ("privacy/test_sampling.py", "privacy/test_readings.py"),
    "privacy/_composition.py": ("privacy/test_composition.py", "privacy/test_readings.py"),
    "privacy/_filters.py": ("privacy/test_filter_sums.py", "privacy/test_filters.py"),
    "learn/dpsgd/_clipping.py": ("learn/dpsgd/test_clipping.py",),
    "learn/dpsgd/_noise.py": ("learn/dpsgd/test_noise.py", "learn/dpsgd/test_noise_in_the_loop.py"),
    "learn/dpsgd/_step.py": ("learn/dpsgd/test_private.py", "learn/dpsgd/test_misuse.py"),
    "ledger/_charge.py": ("ledger/test_charge.py", "ledger/test_ledger.py"),
    "ledger/_replay.py": ("ledger/test_chain.py", "ledger/test_damage.py"),
    "curator/_plan.py": ("curator/test_plans.py", "curator/test_caps.py"),
}
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change: the node at ``place`` of a walk through the module becomes ``kind``."""

    module: str
    place: int
    kind: str
    line: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.before} -> {self.after}"


def changed(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Every change of one node, with its kind."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator, *_]) if type(operator) in COMPARISONS:
            new.ops[0] = COMPARISONS[type(operator)]()
            yield "comparison", new
        case ast.BinOp(op=operator) if type(operator) in SIGNS:
            new.op = SIGNS[type(operator)]()
            yield "sign", new
        case ast.BoolOp(op=operator):
            new.op = ast.And() if isinstance(operator, ast.Or) else ast.Or()
            yield "branch", new
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            new.test = ast.UnaryOp(ast.Not(), test)
            yield "branch", new
        case ast.Call(func=ast.Name(id=name)) if name in EXTREMES:
            new.func = ast.Name(EXTREMES[name], ast.Load())
            yield "extreme", new
        case ast.Constant(value=bool() as value):
            new.value = not value
            yield "constant", new
        case ast.Constant(value=int() | float() as value):
            new.value = value + 1
            yield "constant", new


def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    source = (ROOT / "src" / "discreet" / module).read_text(encoding="utf-8")
    found = []
    for place, node in enumerate(ast.walk(ast.parse(source))):
        for kind, new in changed(node):
            shown = new.test if isinstance(new, ast.If | ast.While) else new
            old = node.test if isinstance(node, ast.If | ast.While) else node
            before, after = (" ".join(ast.unparse(each).split()) for each in (old, shown))
            found.append(Mutant(module, place, kind, node.lineno, before, after))
    return found


def text_of(mutant: Mutant) -> str:
    """The module with the change made."""
    tree = ast.parse((ROOT / "src" / "discreet" / mutant.module).read_text(encoding="utf-8"))
    node = list(ast.walk(tree))[mutant.place]
    new = next(each for kind, each in changed(node) if kind == mutant.kind)

    class Exchange(ast.NodeTransformer):
        def visit(self, seen: ast.AST) -> Any:
            return new if seen is node else self.generic_visit(seen)

    return ast.unparse(ast.fix_missing_locations(Exchange().visit(tree)))


def chosen(count: int) -> list[Mutant]:
    """As many of each module as its share of all; the same for the same code and seed."""
    pools = {module: mutants_of(module) for module in TESTS}
    everything = sum(map(len, pools.values()))
    chance = random.Random(SEED)
    found = []
    for pool in pools.values():
        share = min(len(pool), max(1, round(count * len(pool) / everything)))
        found += sorted(chance.sample(pool, share), key=lambda each: each.place)
    return found


def verdict(mutant: Mutant, place: Path) -> dict[str, Any]:
    """Whether a test notices; ``place`` is a copy of src that this worker has for itself."""
    file = place / "discreet" / mutant.module
    right = file.read_text(encoding="utf-8")
    start = time.perf_counter()
    try:
        file.write_text(text_of(mutant), encoding="utf-8")
        done = tests(mutant.module, place)
    finally:
        file.write_text(right, encoding="utf-8")
    said = {0: "survived", None: "no end"}.get(done, "noticed")
    print(f"{said:9} {mutant.module}:{mutant.line} {mutant.before} -> {mutant.after}", flush=True)
    return {
        "mutant": mutant.name,
        "kind": mutant.kind,
        "line": mutant.line,
        "verdict": said,
        "seconds": round(time.perf_counter() - start, 1),
    }


def tests(module: str, place: Path) -> int | None:
    """The exit code of the tests of a module on a copy of the sources; None if they do not end."""
    files = [str(ROOT / "tests" / name) for name in TESTS[module]]
    words = ["-x", "-q", "-m", "not slow and not judge", "-p", "no:cacheprovider", "-p", "no:xdist"]
    around = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    around["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *files],
            cwd=ROOT,
            env=around,
            capture_output=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def measure(asked: Run) -> dict[str, Any]:
    mutants = chosen(10 if asked.quick else MUTANTS)
    places: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory() as folder:
        for worker in range(2):
            place = Path(folder) / str(worker)
            shutil.copytree(
                ROOT / "src", place, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
            places.put(place)
        for module in dict.fromkeys(mutant.module for mutant in mutants):
            if tests(module, Path(folder) / "0") != 0:
                raise SystemExit(f"{module}: its tests fail without a change")

        def one(mutant: Mutant) -> dict[str, Any]:
            place = places.get()
            try:
                return verdict(mutant, place)
            finally:
                places.put(place)

        with ThreadPoolExecutor(2) as pool:
            rows = list(pool.map(one, mutants))
    return {"seed": SEED, "rows": rows}


def reasons() -> dict[str, str]:
    """Why survivors make no difference, by mutant."""
    file = ROOT / "benchmarks" / "survivors.toml"
    return dict(tomllib.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    known = reasons()
    survived = [row["mutant"] for row in record["rows"] if row["verdict"] == "survived"]
    unknown = [mutant for mutant in survived if mutant not in known]
    return [
        target("mutants that were tried", len(record["rows"]), at_least=0.9 * MUTANTS),
        target("survivors without a reason", len(unknown), at_most=0),
    ]


SUITE = Suite("mutants_code", measure, targets)
