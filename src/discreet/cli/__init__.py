"""The command line: ``discreet account | calibrate | compare | explain``.

Commands read options, ask :mod:`discreet.privacy` and print; they compute nothing
of their own. Heavy imports happen inside the commands, so ``discreet --help`` needs
neither numpy nor matplotlib.
"""

from __future__ import annotations

from discreet.cli.app import main

__all__ = ["main"]
