"""Print the lines that stand twice in src, found as pylint finds them; fail if there are any.

Pylint's own run builds trees of every file for more than a minute, only to leave out imports,
signatures and docstrings. Here Python's parser leaves them out, and pylint compares the rest. A
function with a comment ``duplicate-code: reason`` is left out as a whole.
"""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from pylint.checkers.symilar import Symilar

MIN_LINES = 8
ALLOWED = re.compile(r"# duplicate-code: \w+")


def without_interfaces(text: str) -> list[str]:
    """Return the lines of a module, those of imports, signatures and docstrings empty."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        for number in _left_out(node, lines):
            lines[number - 1] = "\n"
    return lines


def _left_out(node: ast.AST, lines: list[str]) -> Iterator[int]:
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from range(node.lineno, (node.end_lineno or 0) + 1)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            inside = range(node.lineno, (node.end_lineno or 0) + 1)
            allowed = any(ALLOWED.search(lines[number - 1]) for number in inside)
            yield from inside if allowed else range(node.lineno, node.body[0].lineno)
        case ast.Expr(value=ast.Constant(value=str())):
            yield from range(node.lineno, (node.end_lineno or 0) + 1)


def report_duplicates(texts: dict[str, str]) -> str:
    """Return pylint's report of the lines that stand twice, or an empty text."""
    checker = Symilar(min_lines=MIN_LINES, ignore_comments=True)
    for name, text in texts.items():
        checker.append_stream(name, io.StringIO("".join(without_interfaces(text))))
    out = io.StringIO()
    with redirect_stdout(out):
        checker.run()
    report = out.getvalue()
    return "" if re.search(r"\bduplicates=0 ", report) else report


if __name__ == "__main__":
    paths = [path for folder in sys.argv[1:] for path in sorted(Path(folder).rglob("*.py"))]
    found = report_duplicates({str(path): path.read_text(encoding="utf-8") for path in paths})
    print(found or f"{len(paths)} files, and nothing stands in two of them")
    sys.exit(bool(found))
