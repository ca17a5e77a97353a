"""Ask mbi 2.0.0 for the marginals of a model, and for a fit: ``mbi.json`` is what it said.

It needs a Python of its own, because mbi brings jax:

    python -m venv build/mbi && build/mbi/bin/pip install mbi==2.0.0
    build/mbi/bin/python tests/synth/ask_mbi.py > tests/synth/mbi.json
"""

import json
from typing import Any

SIZES = [3, 4, 2, 3]
CLIQUES = [[0, 1], [1, 2], [2, 3]]
TOTAL = 1000.0


def numbers(seed: int, count: int) -> list[float]:
    """Numbers in [0, 1) by a rule that needs no library."""
    found = []
    for _ in range(count):
        seed = (1103515245 * seed + 12345) % 2**31
        found.append(seed / 2**31)
    return found


def table(seed: int, clique: list[int], scale: float) -> list[list[float]]:
    """A table of some columns, by rows."""
    rows, columns = (SIZES[at] for at in clique)
    flat = [scale * one for one in numbers(seed, rows * columns)]
    return [flat[at * columns : (at + 1) * columns] for at in range(rows)]


def noisy_tables(exact: list[list[float]]) -> list[list[float]]:
    """Tables that nearly agree, flat: those of a model, each cell off by at most 2."""
    return [
        [value + 4.0 * one - 2.0 for value, one in zip(table, numbers(at, len(table)), strict=True)]
        for at, table in enumerate(exact, 7)
    ]


def main() -> None:
    """Print what mbi says."""
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    import mbi

    names = [str(at) for at in range(len(SIZES))]
    domain = mbi.Domain(names, SIZES)
    said: dict[str, Any] = {"mbi": "2.0.0"}
    for scale in (1.0, 300.0):
        factors = {
            tuple(str(at) for at in one): mbi.Factor(
                domain.project([str(at) for at in one]), np.array(table(at, one, scale))
            )
            for at, one in enumerate(CLIQUES)
        }
        potentials = mbi.CliqueVector(domain, list(factors), factors)
        found = mbi.marginal_oracles.message_passing_stable(potentials, total=TOTAL)
        said[f"marginals at {scale:g}"] = [
            np.asarray(found.project(tuple(str(at) for at in one)).datavector()).tolist()
            for one in CLIQUES
        ]
    measured = [
        mbi.LinearMeasurement(np.array(one), tuple(str(at) for at in clique), stddev=2.0)
        for one, clique in zip(noisy_tables(said["marginals at 1"]), CLIQUES, strict=True)
    ]
    model = mbi.estimation.LBFGS().estimate(domain, measured, known_total=TOTAL, iters=2_000)
    said["fit"] = [
        np.asarray(model.project(tuple(str(at) for at in one)).datavector()).tolist()
        for one in CLIQUES
    ]
    lines = [f" {json.dumps(name)}: {json.dumps(one)}" for name, one in said.items()]
    print("{", ",\n".join(lines), "}", sep="\n")


if __name__ == "__main__":
    main()
