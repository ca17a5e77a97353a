"""How many files of Discreet a user's call walks through; too many is a miss.

Functions count that the call goes through, not what runs once while modules are loaded: each walk
is gone once before, but the demonstration, of which class bodies are left out.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import discreet
from harness import Run, Suite, target

SOURCE = str(Path(discreet.__file__).parent)


@contextmanager
def traced(files: set[str]) -> Iterator[None]:
    """Add every file of the package in which a function is called meanwhile, in any thread."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        # The bodies of modules and classes have no optimized locals; functions do.
        function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and name.startswith(SOURCE) and function:
            files.add(name)

    threading.setprofile_all_threads(note) if sys.version_info >= (3, 12) else (
        threading.setprofile(note)
    )
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def dpsgd_pieces() -> tuple[Any, ...]:
    import torch

    from discreet.learn import dpsgd

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(features, (features[:, 0] > 0).long())
    plan = dpsgd.Plan(
        examples=64,
        expected_batch_size=16,
        steps=4,
        clip_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-5,
    )
    return dpsgd, torch, model, optimizer, data, plan


def walk_private_step(files: set[str]) -> None:
    dpsgd, torch, model, optimizer, data, plan = dpsgd_pieces()
    private = dpsgd.make_private(model, optimizer, plan)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    for number, (inputs, labels) in enumerate(private.batches(data)):
        if number < 3:
            private.step(loss, inputs, labels)
        else:
            with traced(files):
                private.step(loss, inputs, labels)


def walk_make_private(files: set[str]) -> None:
    for seen in (set(), files):
        dpsgd, torch, model, optimizer, data, plan = dpsgd_pieces()
        with traced(seen):
            private = dpsgd.make_private(model, optimizer, plan)
            for inputs, labels in private.batches(data):
                losses = torch.nn.functional.cross_entropy(model(inputs), labels, reduction="none")
                private.backward(losses)
                optimizer.step()
                break


def walk_curator_count(files: set[str]) -> None:
    from discreet.curator import Count, CuratedDataset, Curator
    from discreet.data import Categorical, Schema
    from discreet.ledger import Ledger

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        book = Ledger.create(folder / "study.ledger")
        book.create_dataset("visits", epsilon=10, unit="row")
        schema = Schema({"ill": Categorical(["no", "yes"])}, expected_rows=100)
        held = CuratedDataset("visits", schema=schema, source={"ill": ["no", "yes"] * 50})
        desk = Curator(book, {"visits": held})
        with closing(book), closing(held):
            desk.ask("visits", Count(epsilon="1/10"), analyst="ann")
            with traced(files):
                desk.ask("visits", Count(epsilon="1/5"), analyst="ann")


def walk_train(files: set[str]) -> None:
    from discreet.cli import main

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = "\n".join(f"{20 + n % 60},{'yes' if n % 60 > 30 else 'no'}" for n in range(400))
        (folder / "visits.csv").write_text("age,ill\n" + rows + "\n", encoding="utf-8")
        (folder / "visits.toml").write_text(
            'target = "ill"\nexpected_rows = 400\n[columns.age]\ntype = "integer"\n'
            'bounds = [0, 100]\n[columns.ill]\ntype = "categorical"\ncategories = ["no", "yes"]\n'
            'other = "no"\n',
            encoding="utf-8",
        )
        words = ["train", str(folder / "visits.csv"), "--schema", str(folder / "visits.toml")]
        run_command(main, [*words, "--epsilon", "2", "--out", str(folder / "first")], set())
        run_command(main, [*words, "--epsilon", "2", "--out", str(folder / "model")], files)


def walk_demo(files: set[str]) -> None:
    from discreet.cli import main

    with tempfile.TemporaryDirectory() as place:
        run_command(main, ["demo", "--out", str(Path(place) / "demo")], files)


def run_command(main: Callable[[], object], words: list[str], files: set[str]) -> None:
    before, sys.argv = sys.argv, ["discreet", *words]
    try:
        with traced(files):
            main()
    except SystemExit as end:
        if end.code not in (0, None):
            raise
    finally:
        sys.argv = before


WALKS: dict[str, tuple[Callable[[set[str]], None], int]] = {
    "`private.step` of an MLP": (walk_private_step, 10),
    "`make_private` and the first batch": (walk_make_private, 22),
    "a count at the curator": (walk_curator_count, 25),
    "`discreet train`": (walk_train, 40),
    "`discreet demo`": (walk_demo, 90),
}


def measure(_: Run) -> dict[str, Any]:
    """The files of each walk, by name."""
    walks = {}
    for name, (walk, _most) in WALKS.items():
        files: set[str] = set()
        walk(files)
        walks[name] = sorted(path.removeprefix(SOURCE).lstrip("/") for path in files)
    return {"walks": walks}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        target(f"files of {name}", len(files), at_most=WALKS[name][1])
        for name, files in record["walks"].items()
    ]


def table(record: dict[str, Any]) -> str:
    walks = record["walks"]
    rows = [f"| {name} | {len(walks[name])} | {WALKS[name][1]} |" for name in walks]
    return "\n".join(["| walk | files | at most |", "|---|---|---|", *rows])


SUITE = Suite("walks", measure, targets, tables={("docs/architecture.md", "walks"): table})
