"""The public surface as a whole: every public name with its parameters, in tests/surface.txt.

A change of it is a decision. As a program this writes the file: ``python tests/test_surface.py``.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import discreet

FILE = Path(__file__).with_name("surface.txt")


def packages() -> list[str]:
    """Return the packages whose name has no underscore, the top one first."""
    found = pkgutil.walk_packages(discreet.__path__, "discreet.")
    return ["discreet", *sorted(one.name for one in found if one.ispkg and "._" not in one.name)]


def parameters(thing: Any) -> str:
    """Return the parameters of a function or of a constructor, with their defaults."""
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = [
        one.replace(
            annotation=one.empty,
            default=one.default
            if isinstance(one.default, type(one.empty) | bool | int | float | str | None)
            else ...,
        )
        for one in found
    ]
    return str(inspect.Signature(plain))


def members(owner: type) -> Iterator[str]:
    """Describe what a class itself adds: its methods, and properties by their names."""
    for name, value in sorted(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, classmethod | staticmethod):
            yield name + parameters(value.__func__)
        elif inspect.isfunction(value):
            yield name + parameters(value)
        elif not inspect.ismemberdescriptor(value):
            yield name


def describe(name: str, thing: Any) -> Iterator[str]:
    """Describe a public name, one line each for it and its members."""
    if not isinstance(thing, type):
        yield name + (parameters(thing) if callable(thing) else "")
        return
    ours = thing.__module__.startswith("discreet.") and not getattr(thing, "_is_protocol", False)
    yield name + (parameters(thing) if ours else "")
    if ours:
        yield from (f"{name}.{member}" for member in members(thing))


def surface() -> list[str]:
    """Return the whole surface."""
    found = []
    for package in packages():
        module = importlib.import_module(package)
        for name in sorted(getattr(module, "__all__", ())):
            found += describe(f"{package}.{name}", getattr(module, name))
    return found


def render() -> str:
    return "\n".join(surface()) + "\n"


def test_the_surface_is_the_recorded_one() -> None:
    recorded, now = FILE.read_text(encoding="utf-8").splitlines(), surface()
    changed = sorted(set(recorded) ^ set(now))
    assert not changed, "if this is meant, run python tests/test_surface.py"
    assert recorded == now


def test_other_parameters_and_defaults_are_seen() -> None:
    def one(a: int, *, b: float = 1.0) -> None: ...
    def two(a: int, *, b: float = 2.0) -> None: ...
    def three(a: int, *, c: float = 1.0) -> None: ...

    assert parameters(one) == "(a, *, b=1.0)"
    assert len({parameters(each) for each in (one, two, three)}) == 3


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
