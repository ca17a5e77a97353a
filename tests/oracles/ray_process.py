"""A script on a real local Ray, in a process of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["run_with_ray"]


def run_with_ray(script: str, home: Path, *arguments: str) -> str:
    """What the script prints; its first argument is a directory for Ray, then come ``arguments``.

    Sockets have short names, and the directory of pytest may be too deep for Ray.
    """
    short = tempfile.mkdtemp(prefix="ray")
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, short, *arguments],
            env={**os.environ, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
