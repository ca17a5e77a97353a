"""The command line, as the tests of the commands run it."""

from cli.conftest import run

__all__ = ["run"]
