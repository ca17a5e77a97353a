"""Run the notebooks of examples/notebooks, keep what they show, and render them into the docs.

python benchmarks/notebooks.py [NAME ...] run all of them, or these; write outputs and pages
python benchmarks/notebooks.py --check    list pages that are not those of their notebooks
python benchmarks/notebooks.py --render   write the pages without running anything

A notebook is run cell by cell in one namespace, without Jupyter: what its cells print and the value
of their last line are its outputs, as in Jupyter. So nothing but Discreet is needed to run them.
Public data come from $DISCREET_DATA, or ../shared/data beside the project, or a download.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

from harness import use_shared_data

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"
PAGES = ROOT / "docs"
PICTURES = PAGES / "images"


def notebooks() -> list[Path]:
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def page_of(notebook: Path) -> Path:
    return PAGES / f"notebook-{notebook.stem}.md"


def run_cell(source: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell; return what it prints and the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data: dict[str, Any] = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = [value._repr_html_()]
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
            data.pop("text/html", None)
        outputs.append(
            {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None}
        )
    return outputs


def run(notebook: Path) -> dict[str, Any]:
    """Return the notebook with its outputs made anew."""
    document: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = run_cell("".join(cell["source"]), namespace)
    return document


def write(document: dict[str, Any], notebook: Path) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    notebook.write_text(text, encoding="utf-8")


def render(notebook: Path) -> tuple[str, dict[Path, bytes]]:
    """Return a notebook as a page, and its pictures.

    Code blocks are marked so that tests do not run them twice.
    """
    document = json.loads(notebook.read_text(encoding="utf-8"))
    parts = []
    pictures: dict[Path, bytes] = {}
    for cell in document["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```py\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append("```text\n" + "".join(output["text"]).rstrip("\n") + "\n```")
            elif "image/png" in output["data"]:
                picture = PICTURES / f"notebook-{notebook.stem}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![{cell['metadata']['alt']}](images/{picture.name})")
            elif "text/html" in output["data"]:
                parts.append("".join(output["data"]["text/html"]))
            else:
                parts.append("```text\n" + "".join(output["data"]["text/plain"]) + "\n```")
    parts.append(
        f"*From `examples/notebooks/{notebook.name}`, run by `make notebooks`; noise comes from "
        "the operating system, so your numbers differ.*"
    )
    return "\n\n".join(parts) + "\n", pictures


def files_of(notebook: Path) -> dict[Path, bytes]:
    """Return the page of a notebook and its pictures, as they should stand in the docs."""
    page, pictures = render(notebook)
    return {page_of(notebook): page.encode(), **pictures}


def stale_pages() -> list[str]:
    """Return pages and pictures that are not those of the notebooks."""
    wanted = {place: text for each in notebooks() for place, text in files_of(each).items()}
    there = {*PAGES.glob("notebook-*.md"), *PICTURES.glob("notebook-*.png")}
    return sorted(
        place.name
        for place in there | wanted.keys()
        if place not in there or place.read_bytes() != wanted.get(place)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="these notebooks only")
    parser.add_argument("--check", action="store_true", help="only list stale pages")
    parser.add_argument("--render", action="store_true", help="write pages, run nothing")
    options = parser.parse_args()
    if options.check:
        stale = stale_pages()
        print("\n".join(stale) or "the pages show their notebooks")
        return 1 if stale else 0
    use_shared_data()
    for notebook in notebooks():
        if options.names and notebook.stem not in options.names:
            continue
        start = time.perf_counter()
        if not options.render:
            write(run(notebook), notebook)
        for place, text in files_of(notebook).items():
            place.write_bytes(text)
        print(f"{notebook.name} {time.perf_counter() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
