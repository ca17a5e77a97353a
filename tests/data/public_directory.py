"""Where the public data sets lie on a developer's machine, if they do."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def public_directory() -> Path | None:
    """``$DISCREET_DATA``, or ``shared/data`` beside the project, or nothing."""
    named = os.environ.get("DISCREET_DATA")
    candidate = Path(named) if named else ROOT.parent / "shared" / "data"
    return candidate if (candidate / "mnist").is_dir() else None
