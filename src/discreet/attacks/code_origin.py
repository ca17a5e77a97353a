"""Where code comes from: a released library, known by its version, or the user's own files."""

from __future__ import annotations

import dis
import importlib.metadata
import platform
import site
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["Use", "attributes_of", "library_version", "released", "uses_of"]

Use = tuple[str, str, tuple[str, ...]]
"""How a name is read (``"global"``, ``"closure"``, ``"import"``), the name, what is read of it."""

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_CLOSURE = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
_FILLERS = {"CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL"}


def library_version(module: str) -> str | None:
    """Return the version of the library that a module belongs to; ``None`` for user's code.

    A library lies where Python or its installer put it. A package that is installed in place,
    from the directory it is edited in, is user's code whatever its version says.
    """
    top = module.partition(".")[0]
    if top == "discreet":
        from discreet import __version__

        return __version__
    if top in sys.builtin_module_names:
        return platform.python_version()
    found = sys.modules.get(top)
    file = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), None)
    if file is None:
        known = found is not None and top in sys.stdlib_module_names
        return platform.python_version() if known else None
    place = Path(str(file)).resolve()
    if any(place.is_relative_to(home) for home in _installed()):
        version = getattr(found, "__version__", None)
        return version if isinstance(version, str) else _distribution_version(top)
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    if top in sys.stdlib_module_names and place.is_relative_to(standard):
        return platform.python_version()
    return None


def released(module: str, qualified: str, value: object) -> str | None:
    """Return the version of the library that has ``value`` under this very name, if one has."""
    version = library_version(module)
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return version if found is value else None


@cache
def _installed() -> tuple[Path, ...]:
    homes = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    homes |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(Path(home).resolve() for home in homes)


@cache
def _distribution_version(top: str) -> str | None:
    names = importlib.metadata.packages_distributions().get(top, [])
    return ",".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(names)) or None


def uses_of(code: CodeType) -> list[Use]:
    """Return what a function and all functions inside it read from outside, in order.

    An import inside a function is a use of the module's full name, with ``level`` dots before
    it; each name that it takes is one attribute, and none stands for the whole module.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _FILLERS]
    uses: list[Use] = []
    for place, step in enumerate(steps):
        if step.opname in _GLOBAL or step.opname in _CLOSURE:
            kind = "global" if step.opname in _GLOBAL else "closure"
            chain = []
            for after in steps[place + 1 :]:
                if after.opname not in _ATTRIBUTE:
                    break
                chain.append(str(after.argval))
            uses.append((kind, str(step.argval), tuple(chain)))
        elif step.opname == "IMPORT_NAME":
            taken = steps[place - 1].argval or (None,)
            dots = "." * int(steps[place - 2].argval or 0)
            uses += [("import", f"{dots}{step.argval}", (one,) if one else ()) for one in taken]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            uses += uses_of(constant)
    return uses


def attributes_of(code: CodeType) -> set[str]:
    """Return the names of all attributes that a function and all functions inside it read."""
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in _ATTRIBUTE}
    inside = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return names.union(*map(attributes_of, inside))
