"""Benchmarks import one another by name, as `python benchmarks` does."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
