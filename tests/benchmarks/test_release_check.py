"""What a release is asked: every extra for users has a use, and the uses run."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import release_check


def test_every_extra_for_users_is_tried() -> None:
    stated = distribution("discreet").metadata.get_all("Provides-Extra")
    assert stated is not None
    inner = {"dev", "docs", "judges", "models", "test"}
    assert set(stated) - inner == release_check.USES.keys() - {""}


@pytest.mark.slow
@pytest.mark.parametrize("extra", release_check.USES)
def test_the_use_of_an_extra_runs_where_it_is_installed(extra: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", release_check.USES[extra]]
    subprocess.run(command, cwd=tmp_path, check=True)
