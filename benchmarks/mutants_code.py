"""Small faults in the code that decides privacy, each against the tests of its module.

Comparisons, signs, constants and branches are changed one at a time, 600 in all, chosen by a fixed
seed. A change that no test notices is a survivor: a missing test, or a change that makes no
difference. Each survivor is listed with its reason in benchmarks/survivors.toml; one without a
reason is a miss.

A worker loads the packages once and forks for every mutant. The fork gets the changed text of one
module instead of the file, and runs the module's tests: first those that pass through the changed
line, the quickest first, then the others for as long as REST allows. Limits are of processor time,
so that a busy machine changes no verdict. Programs that a test starts see the unchanged module.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from harness import ROOT, Run, Suite, target

SEED = 20261118
MUTANTS = 600
WORKERS = 2
REST = 20  # seconds for tests that do not pass through the changed line
MOST_SECONDS = 3600  # of waiting: a lock that is never let go takes no processor time
HOURS = 2.0
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
MUTABLE = (
    ast.BinOp,
    ast.BoolOp,
    ast.Call,
    ast.Compare,
    ast.Constant,
    ast.If,
    ast.IfExp,
    ast.While,
)
EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change: the node at ``place`` of a walk through the module becomes ``kind``."""

    module: str
    place: int
    kind: str
    line: int
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.before} -> {self.after}"


def changed(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Every change of one node, with its kind."""
    if not isinstance(node, MUTABLE):
        return
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


@cache
def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    source = (ROOT / "src" / "discreet" / module).read_text(encoding="utf-8")
    found = []
    for place, node in enumerate(ast.walk(ast.parse(source))):
        for kind, new in changed(node):
            shown = new.test if isinstance(new, ast.If | ast.While) else new
            old = node.test if isinstance(node, ast.If | ast.While) else node
            before, after = (" ".join(ast.unparse(each).split()) for each in (old, shown))
            end = old.end_lineno or old.lineno
            found.append(Mutant(module, place, kind, old.lineno, end, before, after))
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


# --- a worker: one process that forks for each mutant -----------------------------------


class Changed(SourceFileLoader):
    """Gives one module another text, in this process."""

    def __init__(self, mutant: Mutant) -> None:
        dotted = "discreet." + mutant.module.removesuffix(".py").replace("/", ".")
        super().__init__(dotted, str(ROOT / "src" / "discreet" / mutant.module))
        self.text = text_of(mutant)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec")


class Learn:
    """Writes the processor time of every test and the lines of a module that it passes through."""

    def __init__(self, module: str, out: Path) -> None:
        self.file, self.out = str(ROOT / "src" / "discreet" / module), out
        self.lines: set[int] = set()
        self.judges: dict[str, Any] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        self.lines.add(frame.f_lineno)
        return self.trace

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.lines, start = set(), time.process_time()
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            taken = time.process_time() - start
            self.judges[item.nodeid] = {"seconds": taken, "lines": sorted(self.lines)}

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(json.dumps(self.judges), encoding="utf-8")


class Order:
    """Runs the tests in a given order, and those after the first few only while there is time."""

    def __init__(self, order: Sequence[str], first: int) -> None:
        self.rank = {test: number for number, test in enumerate(order)}
        self.first, self.start = first, time.process_time()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.rank.get(item.nodeid, len(self.rank)))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        late = self.rank.get(item.nodeid, len(self.rank)) >= self.first
        if late and time.process_time() - self.start > REST:
            pytest.exit("no test noticed", returncode=0)


def run_tests(module: str, plugin: Any, seconds: float, mutant: Mutant | None = None) -> int | None:
    """Run the tests of a module in a fork; return their exit code, None if they did not end."""
    child = os.fork()
    if not child:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(MOST_SECONDS)
        code = 99
        try:
            if mutant is not None:
                sys.meta_path.insert(0, Changed(mutant))
            words = ["-x", "-q", "-m", "not slow and not judge", "-p", "no:cacheprovider"]
            words += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:xdist"]
            files = [str(ROOT / "tests" / name) for name in TESTS[module]]
            code = pytest.main([*words, *files], plugins=[plugin])
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def learn(module: str) -> dict[str, Any]:
    """Return which tests pass through which lines of a module, and how long they take."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "judges.json"
        if run_tests(module, Learn(module, out), 600) != 0:
            raise SystemExit(f"{module}: its tests fail without a change")
        return dict(json.loads(out.read_text(encoding="utf-8")))


def verdict(mutant: Mutant, judges: dict[str, Any]) -> dict[str, Any]:
    """Say whether a test notices the mutant."""
    changed_lines = set(range(mutant.line, mutant.end + 1))
    near = {test for test, found in judges.items() if changed_lines & set(found["lines"])}
    order = sorted(judges, key=lambda test: (test not in near, judges[test]["seconds"]))
    seconds = 10 * sum(judges[test]["seconds"] for test in near) + REST + 20
    start = time.perf_counter()
    done = run_tests(mutant.module, Order(order, len(near)), seconds, mutant)
    said = {0: "survived", None: "no end"}.get(done, "noticed")
    return {
        "mutant": mutant.name,
        "kind": mutant.kind,
        "line": mutant.line,
        "tests": len(near),
        "verdict": said,
        "seconds": round(time.perf_counter() - start, 1),
    }


def work(part: int, count: int, out: Path, seconds: float) -> None:
    """Judge every second mutant, in an order of chance, and write a line for each."""
    for package in ("hypothesis", "mpmath", "numpy", "scipy.stats", "sklearn", "torch"):
        import_module(package)
    judges: dict[str, dict[str, Any]] = {}
    mutants = chosen(count)
    random.Random(SEED).shuffle(mutants)
    start = time.monotonic()
    with out.open("a", encoding="utf-8") as rows:
        for mutant in mutants[part::WORKERS]:
            if time.monotonic() - start > seconds:
                break
            if mutant.module not in judges:
                judges[mutant.module] = learn(mutant.module)
            row = verdict(mutant, judges[mutant.module])
            rows.write(json.dumps(row) + "\n")
            rows.flush()


def measure(asked: Run) -> dict[str, Any]:
    count = 10 if asked.quick else MUTANTS
    around = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(part) for part in range(WORKERS)]
        words = [sys.executable, str(Path(__file__))]
        workers = [
            subprocess.Popen([*words, str(part), str(count), str(out)], cwd=ROOT, env=around)
            for part, out in enumerate(outs)
        ]
        codes = [worker.wait() for worker in workers]
        if any(codes):
            raise SystemExit(f"workers ended with {codes}")
        rows = [json.loads(line) for out in outs for line in out.read_text().splitlines()]
    return {"seed": SEED, "rows": sorted(rows, key=lambda row: (row["mutant"], row["line"]))}


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

if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), 3600 * HOURS)
