"""What `make docs` does with docstrings before they become pages: a Griffe extension.

Examples that stand in the text become blocks of code, examples that follow a section get a heading
of their own, and roles such as :func:`~discreet.privacy.calibrate` become code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:\w+:)?\w+:`~?(?:[\w.]*\.)?([\w]+)`")
EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S?.*\S.*\n?)*)+", re.MULTILINE)
HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)


def prepared(text: str) -> str:
    """Return a docstring as the reference shows it."""
    text = ROLE.sub(r"`\1`", text)
    parts, end = [], 0
    for found in EXAMPLE.finditer(text):
        before = text[end : found.start()]
        parts.append(before)
        headings = HEADING.findall(text[: found.start()])
        block = found[0].rstrip("\n")
        if not headings or headings[-1] == "Notes":
            parts.append(f"```pycon\n{block}\n```\n")
        elif headings[-1] != "Examples" and before.strip():
            parts.append(f"Examples\n--------\n{block}\n")
        else:
            parts.append(f"{block}\n")
        end = found.end()
    return "".join([*parts, text[end:]]).rstrip("\n")


class PreparedDocstrings(griffe.Extension):
    """Prepare the docstring of every object."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = prepared(obj.docstring.value)
