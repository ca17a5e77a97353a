"""The notebooks of examples/ run, and the docs show what they showed."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

import notebooks

PUBLISHED = [
    path
    for path in notebooks.notebooks()
    if re.search(r"\b(adult|mnist)\(\)", path.read_text(encoding="utf-8"))
]
SHIPPED = [path for path in notebooks.notebooks() if path not in PUBLISHED]


def test_the_docs_show_the_notebooks() -> None:
    assert len(SHIPPED) + len(PUBLISHED) >= 8
    assert notebooks.stale_pages() == []


def check(notebook: Path) -> None:
    """Run a notebook; every cell must show what it showed, up to chance."""
    kept = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for before, after in zip(kept, notebooks.run(notebook)["cells"], strict=True):
        kinds = [
            [sorted(one.get("data", "printed")) for one in cell.get("outputs", [])]
            for cell in (before, after)
        ]
        assert kinds[0] == kinds[1], "".join(before["source"])


@pytest.mark.slow
@pytest.mark.parametrize("notebook", SHIPPED, ids=lambda path: path.stem)
def test_a_notebook_on_data_of_scikit_learn_runs(notebook: Path) -> None:
    check(notebook)


@pytest.mark.usefixtures("public_data")
@pytest.mark.parametrize("notebook", PUBLISHED, ids=lambda path: path.stem)
def test_a_notebook_on_published_data_runs(notebook: Path) -> None:
    check(notebook)


def test_the_runner_of_notebooks_shows_what_jupyter_shows() -> None:
    space: dict[str, object] = {}
    assert notebooks.run_cell("x = 2", space) == []
    printed, value = notebooks.run_cell("print('a'); print('b')\nx + 1", space)
    assert printed["text"] == ["a\n", "b\n"]
    assert value["data"] == {"text/plain": ["3"]}
    assert notebooks.run_cell("None", space) == []
    (picture,) = notebooks.run_cell(
        "from discreet.report import new_figure\nnew_figure(1, 1)", space
    )
    assert base64.b64decode(picture["data"]["image/png"]).startswith(b"\x89PNG")
    with pytest.raises(ZeroDivisionError):
        notebooks.run_cell("1 / 0", space)
