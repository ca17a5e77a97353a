"""The table "beside other libraries" of the documentation, from the records of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import learners
import training
from harness import Suite


def measured(results: Mapping[str, Any], suite: str, begin: str, digits: int) -> str:
    """What was measured for the target whose name begins so."""
    found = [one for one in results[suite]["targets"] if one["what"].startswith(begin)]
    assert len(found) == 1, (suite, begin)
    return f"{found[0]['measured']:.{digits}f}"


def table(results: Mapping[str, Any]) -> str:
    """One row for each comparison, with the page that says how it was made."""
    of = partial(measured, results)
    judged = learners.SUITE.judge(results["learners"])
    lines = [
        (
            "a certified bracket of epsilon",
            "dp-accounting (grid of 1e-4)",
            (
                f"at least {of('accounting', 'least speed-up over dp-accounting', 1)} times as "
                "fast, no bracket wider"
            ),
            "[accounting](accounting.md)",
        ),
        (
            "discrete Gaussian noise, exact",
            "OpenDP",
            f"{of('noise', 'discrete Gaussian on a', 0)} times as fast on the same grid",
            "[randomness](randomness.md)",
        ),
        (
            "a private step of a network",
            "plain SGD",
            (
                f"{training.SUITE.numbers['call'](results['training'])} times as long in one call; "
                "Opacus beside it on the page"
            ),
            "[training](training.md#layers-and-speed)",
        ),
        (
            "learners for tables",
            "diffprivlib",
            (f"{learners.met(judged)} targets are met: at least as accurate at every epsilon"),
            "[learners](learners.md#figures)",
        ),
        (
            "Shokri's attack",
            "ART",
            (
                f"accuracy {of('attacks', 'accuracy ahead of the best', 2)} higher, at least "
                f"{of('attacks', 'speed over ART' + chr(39) + 's fastest', 1)} times as fast"
            ),
            "[attacks](attack-results.md#the-same-attack-by-art)",
        ),
    ]
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join(["| what | beside | measured | how |", "|---|---|---|---|", *rows])


def table_of_readme(results: Mapping[str, Any]) -> str:
    """The same table, with links from the directory above."""
    return table(results).replace("](", "](docs/")


SUITE = Suite(
    "peers",
    reads=("accounting", "noise", "training", "learners", "attacks"),
    tables={
        ("docs/which-method.md", "peers table"): table,
        ("README.md", "peers table"): table_of_readme,
    },
)
