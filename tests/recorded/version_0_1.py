"""What version 0.1 wrote, for tests that read it."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from discreet.ledger import Ledger

__all__ = ["HERE", "LOSSES", "open_ledger"]

HERE = Path(__file__).parent / "v0_1"
LOSSES: list[dict[str, Any]] = json.loads((HERE / "losses.json").read_text(encoding="utf-8"))


def open_ledger(name: str, place: Path) -> Ledger:
    """The recorded ledger, migrated to a directory of its own."""
    file = place / name
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript((HERE / f"{name}.sql").read_text(encoding="utf-8"))
    Ledger.migrate(file)
    return Ledger.open(file)
