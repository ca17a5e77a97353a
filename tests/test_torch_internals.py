"""docs/architecture.md lists every private interface of torch that src uses, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
# Names that torch gives to what it makes; the first owner of a name counts.
OWNERS = {
    "Module": vars(torch.nn.Module()),
    "Optimizer": vars(torch.optim.SGD([torch.zeros(1)])),
    "Tensor": dir(torch.Tensor),
}
OWNER_OF = {name: owner for owner, names in reversed(OWNERS.items()) for name in names}
SAVED = re.compile(r"_saved_\w+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def shorten(dotted: str) -> str:
    """Name what is private, without what hangs on it: torch.utils._pytree, not its functions."""
    parts = dotted.split(".")
    if parts[:2] == ["torch", "_C"]:
        return dotted
    first = next((k for k, part in enumerate(parts) if is_private(part)), len(parts))
    return ".".join(parts[: first + 1])


def uses(source: str) -> Iterator[str]:
    """Private interfaces of torch that a module names."""
    tree = ast.parse(source)
    inside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "torch":
                for alias in node.names:
                    if any(map(is_private, f"{module}.{alias.name}".split("."))):
                        yield shorten(f"{module}.{alias.name}")
            case ast.Import():
                for alias in node.names:
                    parts = alias.name.split(".")
                    if parts[0] == "torch" and any(map(is_private, parts)):
                        yield shorten(alias.name)
            case ast.Attribute(attr=attr, value=value):
                dotted = ast.unparse(node)
                if re.fullmatch(r"torch(\.\w+)+", dotted):
                    if id(node) not in inside and any(map(is_private, dotted.split("."))):
                        yield shorten(dotted)
                elif SAVED.fullmatch(attr):
                    yield f"grad_fn.{attr}"
                elif is_private(attr) and attr in OWNER_OF and ast.unparse(value) != "self":
                    yield f"{OWNER_OF[attr]}.{attr}"
                elif attr == "_cdata":  # of a storage
                    yield f"Tensor.{attr}"
                elif attr == "_DropoutNd":
                    yield f"torch.nn.modules.dropout.{attr}"
            case ast.Constant(value=str(text)):
                if SAVED.fullmatch(text):
                    yield f"grad_fn.{text}"
                elif re.fullmatch(r"torch\._[\w.]+", text):
                    yield text
                elif text == "_compiled_call_impl":
                    yield f"Module.{text}"


def used() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    return {use for text in texts if "torch" in text for use in uses(text)}


def test_the_page_lists_what_the_source_uses() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## What torch does not promise")[1]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert all(len(cell.strip()) > 10 for row in rows for cell in row.split("|")[2:4])
    assert listed == used()


def test_every_place_to_add_things_names_a_test_and_a_page() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Where to add things")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| a")]
    assert len(rows) > 5
    for row in rows:
        assert (ROOT / row[3].strip(" `")).is_file(), row[3]
        for page, heading in re.findall(r"\]\(([\w-]+\.md)#([\w-]+)\)", row[2]):
            text = (PAGE.parent / page).read_text(encoding="utf-8")
            titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert heading in {title.lower().replace(" ", "-") for title in titles}, heading


def test_the_check_sees_planted_uses() -> None:
    planted = {
        "from torch._C import x": {"torch._C.x"},
        "import torch.utils._pytree as p": {"torch.utils._pytree"},
        "import torch\ntorch.utils._pytree.tree_map(1)": {"torch.utils._pytree"},
        "import torch\ntorch._foreach_mul_(1, 2)": {"torch._foreach_mul_"},
        "x._version": {"Tensor._version"},
        "self._version": set(),
        "torch.isfinite(self._norms)": set(),
        "node._saved_self": {"grad_fn._saved_self"},
        "getattr(node, '_saved_self')": {"grad_fn._saved_self"},
        "module._modules.values()": {"Module._modules"},
        "import torch\ntorch.nn.Linear(1, 2)": set(),
    }
    assert {source: set(uses(source)) for source in planted} == planted
