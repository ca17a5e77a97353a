"""Running the command line in this process and as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from discreet.cli._app import app

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """``run("account", "--delta", "1e-5", stdin=None)``, with stdout, stderr and exit_code."""

    def invoke(*arguments: str, stdin: str | None = None) -> Any:
        result = CliRunner().invoke(app, list(arguments), input=stdin, prog_name="discreet")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def spawn() -> Run:
    """The same as a child process: ``returncode``, ``stdout``, ``stderr``, all in a pipe."""

    def invoke(
        *arguments: str, environment: Mapping[str, str] | None = None, **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "discreet.cli", *arguments],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **kwargs,
        )

    return invoke
