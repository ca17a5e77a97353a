"""The notebooks of examples/ run, and the docs show what they showed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import notebooks


def test_the_docs_show_the_notebooks() -> None:
    assert len(notebooks.notebooks()) >= 3
    assert notebooks.stale_pages() == []


@pytest.mark.slow
@pytest.mark.parametrize("notebook", notebooks.notebooks(), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_something_in_every_cell_that_did(notebook: Path) -> None:
    kept = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for before, after in zip(kept, notebooks.run(notebook)["cells"], strict=True):
        kinds = [
            [sorted(one.get("data", "printed")) for one in cell.get("outputs", [])]
            for cell in (before, after)
        ]
        assert kinds[0] == kinds[1], "".join(before["source"])


def test_the_runner_of_notebooks_shows_what_jupyter_shows() -> None:
    space: dict[str, object] = {}
    assert notebooks.run_cell("x = 2", space) == []
    printed, value = notebooks.run_cell("print('a'); print('b')\nx + 1", space)
    assert printed["text"] == ["a\n", "b\n"]
    assert value["data"] == {"text/plain": ["3"]}
    assert notebooks.run_cell("None", space) == []
    with pytest.raises(ZeroDivisionError):
        notebooks.run_cell("1 / 0", space)
