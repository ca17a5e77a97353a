"""``python -m discreet.cli`` is the ``discreet`` command."""

from __future__ import annotations

from discreet.cli._app import main

if __name__ == "__main__":
    main()
