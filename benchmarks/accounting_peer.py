"""One query to PLD_accounting or riskcal; runs in an environment of their own.

Reads a query as JSON from standard input and writes the answer, with CPU seconds, as JSON. Before
the clock starts, the same function answers an easy query, which loads what numba compiled.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from functools import partial
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
warnings.simplefilter("ignore")
EASY = {
    "allocation": {"noise": 4.0, "batches": 4, "epochs": 1, "delta": 1e-3, "width": -1.0},
    "advantage": {"advantage": 0.2, "rate": 0.1, "steps": 10},
    "rates": {"tpr": 0.3, "fpr": 0.2, "rate": 0.1, "steps": 10},
}


def allocation(
    noise: float, batches: int, epochs: int, delta: float, width: float
) -> dict[str, Any]:
    from PLD_accounting import gaussian_allocation_epsilon_range

    upper, lower = gaussian_allocation_epsilon_range(
        delta=delta, sigma=noise, num_steps=batches, num_epochs=epochs, epsilon_accuracy=width
    )
    return {"lower": float(lower), "upper": float(upper)}


def advantage(advantage: float, rate: float, steps: int) -> dict[str, Any]:
    from riskcal.calibration.dpsgd import find_noise_multiplier_for_advantage as find

    return {"noise": float(find(advantage=advantage, sample_rate=rate, num_steps=steps))}


def rates(tpr: float, fpr: float, rate: float, steps: int) -> dict[str, Any]:
    from riskcal.calibration.dpsgd import find_noise_multiplier_for_err_rates as find

    return {"noise": float(find(alpha=fpr, beta=1 - tpr, sample_rate=rate, num_steps=steps))}


def main() -> None:
    asked = json.loads(sys.stdin.read())
    answer = {"allocation": allocation, "advantage": advantage, "rates": rates}[asked["what"]]
    answer(**EASY[asked["what"]])
    allowed = int(time.process_time() + asked["limit"])
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, allowed + 1))
    resource.setrlimit(resource.RLIMIT_AS, (asked["memory"], asked["memory"]))
    start = time.process_time()
    found = partial(answer, **asked["arguments"])()
    print(json.dumps(found | {"seconds": time.process_time() - start}))


if __name__ == "__main__":
    main()
