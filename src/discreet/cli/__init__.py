"""The command line: commands read options, call the library and print.

They compute nothing of their own. Heavy imports happen inside the commands, so that
``discreet --help`` needs neither numpy nor matplotlib.
"""

from __future__ import annotations

from discreet.cli._app import main

__all__ = ["main"]
