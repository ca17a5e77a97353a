"""The page of renamed names follows from its list, the list is true, and it is complete since 0.1.

As a program it writes the page: ``python tests/test_upgrade_page.py [FILE ...]`` adds the lines
``old new`` (or ``old -``) of the files to docs/upgrade.toml, then makes docs/upgrade.md from it.
"""

import inspect
import pkgutil
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "docs" / "upgrade.toml"
PAGE = ROOT / "docs" / "upgrade.md"
NAMES_OF_0_1 = (ROOT / "tests/recorded/v0_1/names.txt").read_text(encoding="utf-8").split()
HEAD = """\
# Upgrading

Public names that were renamed or removed, old beside new. There are no aliases: an old name raises
an `ImportError`, an `AttributeError` or a `TypeError`. What reports another number now, or behaves
otherwise, is in `CHANGELOG.md` of the repository; what was wrong in version 0.1 is in
[pitfalls](pitfalls.md).
"""


def changes() -> dict[str, dict[str, str]]:
    """Return the changed names of each version, old to new; a removed name has no new one."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def render(versions: dict[str, dict[str, str]]) -> str:
    """Return the page: a table for each version, in the order of the old names."""
    parts = [HEAD]
    for version, names in versions.items():
        rows = [
            f"| `{old}` | {f'`{new}`' if new else 'removed'} |"
            for old, new in sorted(names.items(), key=lambda item: item[0].lower())
        ]
        parts.append("\n".join([f"## Version {version}", "", "| old | new |", "|---|---|", *rows]))
    return "\n".join(parts) + "\n"


def exists(name: str) -> bool:
    """Whether a dotted name can be imported; ``name(parameter=)`` asks for the parameter too."""
    dotted, _, parameter = name.removesuffix("=)").partition("(")
    try:
        thing = pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        owner, _, field = dotted.rpartition(".")  # a field of a dataclass is no attribute of it
        try:
            return field in inspect.get_annotations(pkgutil.resolve_name(owner))
        except (ImportError, AttributeError, TypeError, ValueError):
            return False
    return not parameter or parameter in inspect.signature(thing).parameters


def faults(old: str, new: str) -> list[str]:
    """Return what is wrong with one line of the list."""
    found = [f"the old name {old} still exists"] if exists(old) else []
    if new and re.search(r"\._", new):
        found.append(f"the new name {new} is private")
    elif new and not exists(new):
        found.append(f"the new name {new} does not exist")
    return found


def test_the_page_follows_from_the_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(changes()), (
        "run python tests/test_upgrade_page.py"
    )


def test_every_old_name_is_gone_and_every_new_one_can_be_imported() -> None:
    lines = [item for names in changes().values() for item in names.items()]
    assert len(lines) > 50
    assert [fault for old, new in lines for fault in faults(old, new)] == []


def test_every_public_name_of_0_1_exists_or_is_listed() -> None:
    listed = {old for names in changes().values() for old in names}
    assert len(NAMES_OF_0_1) == 330
    lost = [name for name in NAMES_OF_0_1 if name not in listed and not exists(name)]
    assert lost == [], "add these to docs/upgrade.toml"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("discreet.privacy.Gaussian", "", "still exists"),
        ("discreet.randomness.NormalStream.fill(stddev=)", "", "still exists"),
        ("discreet.data.SchemaPlan.cells", "", "still exists"),
        ("discreet.privacy.Nothing", "discreet.privacy.Nothing", "does not exist"),
        ("discreet.nothing.x", "discreet.randomness.NormalStream.fill(x=)", "does not exist"),
        ("discreet.privacy.Nothing", "discreet._validate.fraction", "is private"),
    ],
)
def test_the_check_of_names_sees_planted_faults(old: str, new: str, fault: str) -> None:
    assert [found for found in faults(old, new) if found.endswith(fault)] != []


def add_lines(files: list[str]) -> None:
    """Append the lines ``old new`` of the files that the list does not have yet."""
    listed = {old for names in changes().values() for old in names}
    with LIST.open("a", encoding="utf-8") as stream:
        for file in files:
            for line in filter(None, map(str.split, Path(file).read_text("utf-8").splitlines())):
                old, new = line
                if old not in listed:
                    listed.add(old)
                    stream.write(f'"{old}" = "{new.removeprefix("-")}"\n')


if __name__ == "__main__":
    add_lines(sys.argv[1:])
    PAGE.write_text(render(changes()), encoding="utf-8")
