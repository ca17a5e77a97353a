"""What version 0.1 wrote, for tests that read it."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from discreet.ledger import Ledger

__all__ = ["HERE", "LOSSES", "open_ledger", "write_ledger"]

HERE = Path(__file__).parent / "v0_1"
LOSSES: list[dict[str, Any]] = json.loads((HERE / "losses.json").read_text(encoding="utf-8"))


def write_ledger(name: str, place: Path) -> Path:
    """The recorded ledger as a file of its own."""
    file = place / name
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript((HERE / f"{name}.sql").read_text(encoding="utf-8"))
    return file


def open_ledger(name: str, place: Path) -> Ledger:
    """The recorded ledger, migrated to a directory."""
    file = write_ledger(name, place)
    Ledger.migrate(file)
    return Ledger.open(file)
