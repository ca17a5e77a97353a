"""The project keeps its own promises: layout, documents, examples, build files.

Checks that read source text are themselves tried on planted offences, so that none of
them can pass by looking at nothing.
"""

import ast
import doctest
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import discreet
import discreet.privacy

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

MAX_LINES = 800
DOCTEST_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# Source files that may use `random` or `numpy.random`, each with the reason. None may today.
RANDOM_ALLOWED: dict[str, str] = {
    "src/discreet/attacks/_training.py": "attacks repeat experiments; they hide nothing",
    "src/discreet/learn/_evaluation.py": "replays of released counts, for intervals",
    "src/discreet/learn/_replays.py": "replays of fits on made-up rows, to see how large noise is",
    "src/discreet/learn/_unsupervised.py": "starting centres, made of released moments",
    "src/discreet/learn/dpsgd/_collating.py": "what a collate draws while it is tried out",
    "src/discreet/pate/_teacher_task.py": "sets the shared generators aside, draws nothing",
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def test_the_files_to_look_at_were_found() -> None:
    assert {"src/discreet/errors.py", "src/discreet/privacy/__init__.py"} <= set(map(name, SOURCES))
    assert {"tests/conftest.py", "tests/test_project.py"} <= set(map(name, TESTS))
    assert {"README.md", "docs/index.md", "docs/coverage.md"} <= set(map(name, DOCUMENTS))


# --- coverage of the specification ------------------------------------------------------

S_NUMBERS = [*(f"S{n}" for n in range(1, 10)), "S9a", *(f"S{n}" for n in range(10, 39))]


def coverage_rows(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if re.match(r"\| *S\d", line)]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


COVERAGE = coverage_rows((ROOT / "docs" / "coverage.md").read_text(encoding="utf-8"))


def coverage_faults(row: list[str], root: Path) -> list[str]:
    """What is wrong with one row: (S number, topic, state, lives in, shown by)."""
    if len(row) != 5:
        return [f"{len(row)} cells instead of 5"]
    number, topic, state, lives_in, shown_by = row
    sources = re.findall(r"`([^`]+)`", lives_in)
    tests = re.findall(r"`([^`]+)`", shown_by)
    faults = [] if topic else ["no topic"]
    if not sources and not tests:
        if state != "not built yet":
            faults.append("neither paths nor 'not built yet'")
        return faults
    if not any(path.startswith("src/") for path in sources):
        faults.append("no source path")
    if not any(path.startswith("tests/") for path in tests):
        faults.append("no test path")
    missing = [path for path in [*sources, *tests] if not (root / path).is_file()]
    faults += [f"{path} does not exist" for path in missing]
    # Source files cite papers; the numbers of the specification stand here and in tests.
    present = [root / path for path in tests if path not in missing]
    if not any(cites(path.read_text(encoding="utf-8"), number) for path in present):
        faults.append(f"no test file cites {number}")
    return faults


def cites(text: str, number: str) -> bool:
    return re.search(rf"\b{number}\b", text) is not None


def test_coverage_has_one_row_for_every_number_in_order() -> None:
    assert [row[0] for row in COVERAGE] == S_NUMBERS


@pytest.mark.parametrize("row", COVERAGE, ids=lambda row: row[0])
def test_coverage_row_is_true(row: list[str]) -> None:
    assert coverage_faults(row, ROOT) == []


def test_coverage_check_sees_planted_faults(tmp_path: Path) -> None:
    for folder, text in (("src", "S1"), ("tests", "S11")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(text, encoding="utf-8")
    good, bad = "`src/a.py`", "`src/b.py`"
    assert coverage_faults(["S1", "x", "whole", good, ""], tmp_path) == [
        "no test path",
        "no test file cites S1",
    ]
    assert "src/b.py does not exist" in coverage_faults(
        ["S1", "x", "whole", bad, "`tests/a.py`"], tmp_path
    )
    assert coverage_faults(["S1", "x", "whole", good, "`tests/a.py`"], tmp_path) == [
        "no test file cites S1"
    ]
    assert coverage_faults(["S11", "x", "whole", good, "`tests/a.py`"], tmp_path) == []
    assert coverage_faults(["S1", "x", "whole", "later", ""], tmp_path) == [
        "neither paths nor 'not built yet'"
    ]
    assert coverage_faults(["S1", "x", "not built yet", "", ""], tmp_path) == []
    assert coverage_faults(["S1", "x", good], tmp_path) == ["3 cells instead of 5"]


# --- documents: examples, commands, links -----------------------------------------------


def blocks(text: str, *languages: str) -> list[tuple[int, str]]:
    """The fenced blocks of the given languages, each with the line on which it starts."""
    fence = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        (text.count("\n", 0, match.start(2)), match.group(2))
        for match in fence.finditer(text)
        if match.group(1) in languages
    ]


def run_examples(text: str, filename: str) -> int:
    """Run the Python blocks of a document in one namespace; return how many there were."""
    namespace: dict[str, object] = {"__name__": "__example__"}
    found = blocks(text, "python", "pycon")
    for line, block in found:
        if ">>>" not in block:
            exec(compile("\n" * line + block, filename, "exec"), namespace)
            continue
        example = doctest.DocTestParser().get_doctest(block, namespace, filename, filename, line)
        assert example.examples
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=DOCTEST_FLAGS)
        failed, attempted = runner.run(example, out=report.append, clear_globs=False)
        assert attempted == len(example.examples)
        assert failed == 0, "".join(report)
        namespace.update(example.globs)
    return len(found)


# Documents whose examples train, attack or audit for several seconds.
LONG = {f"docs/{page}.md" for page in ("attacks", "auditing-mechanisms", "pate", "projected-sgd")}
LONG |= {"docs/training.md"}


def with_examples() -> list[Path]:
    return [path for path in DOCUMENTS if blocks(path.read_text(encoding="utf-8"), "python")]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name(path), marks=[pytest.mark.slow] if name(path) in LONG else [])
        for path in with_examples()
    ],
)
def test_examples_in_documents_run(path: Path) -> None:
    assert run_examples(path.read_text(encoding="utf-8"), name(path)) > 0


def test_examples_were_found_where_they_must_be() -> None:
    assert {"README.md", "docs/index.md"} <= set(map(name, with_examples()))


def test_a_wrong_example_fails() -> None:
    right = "```python\nx = 2\n```\ntext\n```python\n>>> x + 1\n3\n\n```\n"
    assert run_examples(right, "right.md") == 2
    with pytest.raises(AssertionError, match="Expected"):
        run_examples(right.replace("\n3\n", "\n4\n"), "wrong.md")
    with pytest.raises(ZeroDivisionError):
        run_examples("```python\n1 / 0\n```\n", "wrong.md")


def commands() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line for _, block in blocks(text, "console") for line in block.splitlines()]
    return [line for line in lines if line.startswith("discreet ")]


def test_the_readme_shows_every_command() -> None:
    assert {line.split()[1] for line in commands()} >= {
        "account",
        "calibrate",
        "compare",
        "explain",
    }


@pytest.mark.slow  # tests/cli asks the same of every command, without a process for each
@pytest.mark.parametrize("command", commands())
def test_commands_in_the_readme_work(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    program = Path(sys.executable).with_name(words[0])
    done = subprocess.run(
        [str(program), *words[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "--output" in words:
        picture = tmp_path / words[words.index("--output") + 1]
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name
)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith("https://"):
            assert (path.parent / target).is_file(), f"{name(path)}: {target}"


def test_readme_starts_with_purpose_commands_and_picture() -> None:
    head = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    assert head.index("privacy") < head.index("make demo") < head.index("make test")
    assert head.index("make test") < head.index("![")


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- .*?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    )


def test_the_map_draws_the_layers_of_the_contract() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = page.partition("```text\n")[2].partition("```")[0].splitlines()
    drawn = [set(re.split(" {3,}", line)[0].split()) for line in picture]
    (contract,) = [one for one in PROJECT["tool"]["importlinter"]["contracts"] if "layers" in one]
    names = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    here = {path.name.removesuffix(".py") for path in (ROOT / "src" / "discreet").iterdir()}
    assert drawn == [here.intersection(layer) for layer in names]


def test_changelog_has_a_privacy_heading_for_every_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert versions
    for version in versions:
        assert re.search(r"^### Privacy$\n\n- ", version, re.MULTILINE), version.splitlines()[0]


# --- source -----------------------------------------------------------------------------


def random_uses(tree: ast.AST) -> list[int]:
    """Lines that import `random` or `numpy.random`, or reach it through numpy."""

    def banned(module: str) -> bool:
        return re.match(r"(random|numpy\.random)(\.|$)", module) is not None

    numpy_names = {
        alias.asname or "numpy"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] == "numpy" and (not alias.asname or alias.name == "numpy")
    }

    def uses(node: ast.AST) -> bool:
        match node:
            case ast.Import():
                return any(banned(alias.name) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                return any(
                    banned(full) for full in (module, *(f"{module}.{a.name}" for a in node.names))
                )
            case ast.Attribute(value=ast.Name(id=root), attr="random"):
                return root in numpy_names
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="__import__")):
                arguments = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                return any(isinstance(arg, str) and banned(arg) for arg in arguments)
        return False

    return [node.lineno for node in ast.walk(tree) if uses(node)]


def test_no_source_uses_insecure_randomness() -> None:
    # Whatever random_uses looks for has the word in it.
    word = re.compile(r"\brandom\b")
    named = [path for path in SOURCES if word.search(path.read_text(encoding="utf-8"))]
    uses = {name(path): random_uses(parse(path)) for path in named}
    found = {path: lines for path, lines in uses.items() if lines}
    assert set(found) == set(RANDOM_ALLOWED), found


def test_allow_list_names_files_and_reasons() -> None:
    assert set(RANDOM_ALLOWED) <= set(map(name, SOURCES))
    assert all(RANDOM_ALLOWED.values())


@pytest.mark.parametrize(
    "source",
    [
        "import random",
        "import random as r",
        "from random import gauss",
        "import numpy.random",
        "import numpy.random as nr",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import numpy as np\nnp.random.default_rng()",
        "import numpy\nnumpy.random.seed(0)",
        "import numpy.linalg\nnumpy.random.seed(0)",
        "import importlib\nimportlib.import_module('numpy.random')",
        "__import__('random')",
        "def f():\n    import random",
    ],
)
def test_randomness_check_sees_planted_use(source: str) -> None:
    assert random_uses(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "from discreet import randomness",
        "import os\nos.urandom(8)",
        "import numpy as np\nnp.sort([1])",
        "import torch\ntorch.random",
        "from discreet.randomness import bits",
    ],
)
def test_randomness_check_passes_innocent_source(source: str) -> None:
    assert random_uses(ast.parse(source)) == []


def faults_of_file(path: str, text: str) -> list[str]:
    """Whatever makes a file hard to read: its length, its name, a missing first sentence."""
    lines = text.count("\n")
    faults = [] if 0 < lines <= MAX_LINES else [f"{path}: {lines} lines, more than {MAX_LINES}"]
    if path.startswith("src/"):
        if not re.match(r'r?"""[^"]{10}', text):
            faults.append(f"{path}: no docstring says what it is for")
        words = {part.strip("_") for part in Path(path).with_suffix("").parts[-2:]}
        if words & {"utils", "util", "common", "helpers", "core", "manager", "misc"}:
            faults.append(f"{path}: the name says nothing")
    return faults


def test_every_file_can_be_read() -> None:
    texts = {name(path): path.read_text(encoding="utf-8") for path in [*SOURCES, *TESTS]}
    assert [fault for path, text in texts.items() for fault in faults_of_file(path, text)] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/discreet/a.py", "x = 1\n"),
        ("src/discreet/a.py", '"""Short."""\n'),
        ("src/discreet/_utils.py", '"""Round numbers for people."""\n'),
        ("src/discreet/core/a.py", '"""Round numbers for people."""\n'),
        ("tests/test_a.py", "x = 1\n" * (MAX_LINES + 1)),
        ("tests/test_a.py", ""),
    ],
)
def test_the_check_of_files_sees_planted_faults(path: str, text: str) -> None:
    assert len(faults_of_file(path, text)) == 1


# --- the public surface -----------------------------------------------------------------


def undocumented(exported: str, thing: object) -> Iterator[str]:
    """Public classes, functions, methods and properties that no docstring describes.

    A class needs its own words; an override may rely on those of its interface.
    """
    docstring = thing.__doc__ or ""
    generated = docstring.startswith(f"{exported}(")  # what dataclass writes by itself
    if len(docstring) < 10 or generated:
        yield exported
    if not inspect.isclass(thing):
        return
    kinds = (FunctionType, property, classmethod, staticmethod)
    for member, value in vars(thing).items():
        if isinstance(value, kinds) and not member.startswith("_"):
            told = [vars(base)[member].__doc__ for base in thing.__mro__ if member in vars(base)]
            if not any(told):
                yield f"{exported}.{member}"


@cache
def docstrings() -> str:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    trees = [parse(path) for path in SOURCES if "privacy" in path.parts]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


@pytest.mark.parametrize("exported", discreet.privacy.__all__)
def test_public_name_is_importable_and_documented(exported: str) -> None:
    thing = getattr(discreet.privacy, exported)
    if inspect.isclass(thing) or callable(thing):
        assert list(undocumented(exported, thing)) == []
    else:
        assert re.search(rf"\b{exported}\b", docstrings()), "no docstring mentions this constant"


def test_public_names_include_what_the_readme_promises() -> None:
    assert {"Bounds", "Gaussian", "Laplace", "RandomizedResponse"} <= set(discreet.privacy.__all__)
    assert len(set(discreet.privacy.__all__)) == len(discreet.privacy.__all__)


def test_documentation_check_sees_planted_gaps() -> None:
    class Base:
        """A documented interface."""

        def told(self) -> None:
            """Say what it is."""

    class Derived(Base):
        """A documented class."""

        def told(self) -> None:
            pass

        def untold(self) -> None:
            pass

        @property
        def unread(self) -> int:
            return 0

    assert list(undocumented("Base", Base)) == []
    assert list(undocumented("Derived", Derived)) == ["Derived.untold", "Derived.unread"]
    Derived.__doc__ = "Derived(x: int)"
    assert "Derived" in list(undocumented("Derived", Derived))


def test_the_calculus_imports_only_what_it_needs() -> None:
    # torch and matplotlib are installed here, so an import of them would succeed and show.
    assert importlib.util.find_spec("torch") is not None
    assert importlib.util.find_spec("matplotlib") is not None
    program = "import sys, discreet.privacy; print(*sorted(m.split('.')[0] for m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"discreet", "numpy"} <= loaded
    assert not loaded & {"torch", "sklearn", "matplotlib", "pandas", "click", "rich"}


def inner_imports(source: str, package: str) -> list[tuple[str, str]]:
    """Return (package, inner name) for each import of another package's inner name."""
    found = []
    lines = re.findall(r"^ *from discreet\.[^(\n]*(?:\([^)]*\))?", source, re.MULTILINE)
    for node in (ast.parse(line.strip()).body[0] for line in lines):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("discreet."):
            for name in node.names:
                _, other, *inner = (*str(node.module).split("."), name.name)
                private = other.startswith("_") or any(part.startswith("_") for part in inner)
                if private and other != package and not other.startswith("_"):
                    found.append((other, ".".join(inner)))
    return found


def test_packages_use_only_public_names_of_one_another() -> None:
    offenders = []
    for path in SOURCES:
        package = path.relative_to(ROOT / "src" / "discreet").parts[0]
        offenders += [
            f"{path.name}: {other}.{name}"
            for other, name in inner_imports(path.read_text(encoding="utf-8"), package)
        ]
    assert offenders == []
    planted = "if True:\n    from discreet.ledger._entry import (\n        Entry,\n    )\n"
    assert inner_imports(planted, "curator") == [("ledger", "_entry.Entry")]
    assert inner_imports(planted, "ledger") == []


# Pairs of modules that import each other, the base first; docs/decisions.md says why.
BACK_AND_FORTH = {
    "curator._plan": {"curator._groups", "curator._numbers", "curator._workload"},
    "federated._certificate": {"federated._silos"},
    "privacy._accountants": {"privacy._composition"},
    "privacy._gaussian": {"privacy._allocation", "privacy._correlation"},
    "privacy._loss": {
        "privacy._accountants",
        "privacy._composition",
        "privacy._renyi",
        "privacy._sampling",
        "privacy._selection",
        "privacy._shuffling",
    },
    "privacy._sampling": {"privacy._composition"},
    "synth._plan": {"synth._adaptive", "synth._model"},
}


def modules_imported(path: Path, modules: Container[str]) -> set[str]:
    """The modules that are imported when a module runs, in functions too."""
    tree = parse(path)
    tree.body = [part for part in tree.body if not ast.unparse(part).startswith("if TYPE_CHECKING")]
    return {
        inner if (inner := f"{node.module}.{one.name}") in modules else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }


def test_few_modules_import_each_other() -> None:
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path for path in SOURCES
    }
    imported = {title: modules_imported(path, modules) for title, path in modules.items()}
    known = {
        frozenset((f"discreet.{base}", f"discreet.{other}"))
        for base, others in BACK_AND_FORTH.items()
        for other in others
    }
    found = {
        frozenset((one, other))
        for one, names in imported.items()
        for other in names & imported.keys()
        if one in imported[other]
    }
    assert found == known


@pytest.mark.parametrize("title", ["Cells", "Certificate", "Comparison", "Outcome", "Plan"])
def test_one_name_is_one_thing(title: str) -> None:
    places = [
        name(path)
        for path in SOURCES
        for node in parse(path).body
        if isinstance(node, ast.ClassDef) and node.name == title
    ]
    assert len(places) == 1, places


# --- build files ------------------------------------------------------------------------


def test_ci_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("#!")
    assert "set -euo pipefail" in lines
    assert "for lane in test test-slow test-zoo test-flower; do" in lines
    assert '  make "$lane"' in lines
    subprocess.run(["bash", "-n", str(script)], check=True)


def recipe(target: str, *settings: str) -> str:
    """The commands of a target on a machine where nothing is installed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "VENV=.absent", target, *settings],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_make_test_runs_every_stage_in_order() -> None:
    stages = [
        "-m venv",
        "pip install",
        "/ruff check",
        "/ruff format --check",
        "/codespell",
        "/mypy",
        "/lint-imports",
        "/pytest",
    ]
    commands_run = recipe("test")
    places = [commands_run.find(stage) for stage in stages]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["dpsgd settings", "pate teachers", "theory shokri"])
def test_a_page_is_measured_whole_by_one_target(name: str) -> None:
    whole, part = name.split()
    both = [f"benchmarks run {whole}_{part}", f"benchmarks run {whole}"]
    assert re.findall(r"benchmarks run \w+", recipe(f"reproduce-{whole}")) == both
    alone = recipe(f"reproduce-{whole}", "ONLY=adult")
    assert re.findall(r"benchmarks run \w+", alone) == both[1:]


def test_coverage_has_a_floor() -> None:
    assert "--few-cases --cov" in recipe("coverage")
    floor = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert floor["tool"]["coverage"]["report"]["fail_under"] >= 85


def test_make_demo_installs_only_what_the_demo_needs_and_runs_it() -> None:
    commands_run = recipe("demo")
    assert "--constraint constraints.txt --editable '.[demo]'" in commands_run
    assert "/discreet demo --out discreet-demo" in commands_run
    extras = PROJECT["project"]["optional-dependencies"]
    assert extras["demo"] == ["discreet[tables,torch]"]


def test_every_direct_dependency_is_pinned_inside_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(key): Version(value) for key, value in pins.items()}
    assert pinned["torch"] == Version("2.13.0")
    extras = PROJECT["project"]["optional-dependencies"].values()
    texts = [*PROJECT["project"]["dependencies"], *(text for extra in extras for text in extra)]
    requirements = [Requirement(text) for text in texts]
    external = [r for r in requirements if r.name != "discreet"]
    assert len(external) > 15
    for requirement in external:
        assert requirement.specifier, requirement.name
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_lowest_versions_that_are_tried_are_the_lowest_allowed() -> None:
    named = re.search(r"^LOWEST := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named is not None
    tried = dict(text.split("==") for text in named.group(1).split())
    extras = PROJECT["project"]["optional-dependencies"]["tables"]
    for requirement in map(Requirement, [*PROJECT["project"]["dependencies"], *extras]):
        if requirement.name in tried:
            lowest = {str(one.version) for one in requirement.specifier if one.operator == ">="}
            assert {tried.pop(requirement.name).removesuffix(".0")} == lowest
    assert tried == {}


def test_warnings_are_errors_and_types_are_strict() -> None:
    assert PROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"][0] == "error"
    assert PROJECT["tool"]["mypy"]["strict"] is True
    assert "overrides" not in PROJECT["tool"]["mypy"]


def test_version_is_stated_once() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert Version(discreet.__version__) >= Version("0.1.0")


def test_no_machine_paths_in_project_files() -> None:
    paths = re.compile(r"(?<![\w.])/(?:opt|root|home|work|tmp|Users)/\w|file://" + r"/\w")
    assert paths.search("see " + "/home/" + "someone")
    files = [*SOURCES, *TESTS, *DOCUMENTS, *(ROOT / "benchmarks").rglob("*.py")]
    names = ("pyproject.toml", "constraints.txt", "Makefile", "mkdocs.yml", ".ci/run")
    names += ("constraints-federated.txt",)
    for path in [*files, *(ROOT / file for file in names)]:
        found = paths.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{name(path)}: {found}"
