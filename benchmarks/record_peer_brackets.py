"""Record the brackets of two other accountants on random settings.

Run ``python benchmarks/record_peer_brackets.py``; it takes a few minutes and writes
``tests/oracles/peer_brackets.json``, against which ``tests/privacy/test_bracket_judges.py``
holds the brackets of this library. A peer that fails on a setting is recorded as ``null``.
"""

import argparse
import json
import math
import time
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np

SEED = 20_240_611
SAMPLED, LAPLACE = 230, 30
TARGET = Path(__file__).resolve().parents[1] / "tests" / "oracles" / "peer_brackets.json"


def settings() -> list[dict]:
    """Random settings: log-uniform in every parameter."""
    rng = np.random.default_rng(SEED)

    def between(low: float, high: float) -> float:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}")

    found: list[dict] = []
    while len(found) < SAMPLED:
        setting = {
            "kind": "gaussian",
            "noise": between(0.4, 20),
            "rate": between(1e-4, 0.5),
            "steps": round(between(1, 1e4)),
            "delta": between(1e-9, 1e-2),
        }
        # Beyond this the peers' grids do not fit into memory.
        if total_mu(setting) < 15.0:
            found.append(setting)
    while len(found) < SAMPLED + LAPLACE:
        setting = {
            "kind": "laplace",
            "noise": between(0.3, 50),
            "rate": 1.0,
            "steps": round(between(1, 1e3)),
            "delta": between(1e-9, 1e-2),
        }
        if total_mu(setting) < 15.0:
            found.append(setting)
    return found


def total_mu(setting: dict) -> float:
    """The central-limit mu of the setting: the scale on which its epsilon lives."""
    noise, rate, steps = setting["noise"], setting["rate"], setting["steps"]
    if setting["kind"] == "laplace":
        return math.sqrt(steps) / noise
    return rate * math.sqrt(steps * math.expm1(min(1.0 / noise**2, 50.0)))


def dp_accounting_bracket(setting: dict) -> list[float] | None:
    """Optimistic and pessimistic epsilon of dp-accounting."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval = min(max(3e-3 * total_mu(setting), 1e-6), 5e-3)
    ends = []
    for pessimistic in (False, True):
        options = {
            "value_discretization_interval": interval,
            "pessimistic_estimate": pessimistic,
            "use_connect_dots": pessimistic,
        }
        if setting["kind"] == "laplace":
            one = pld.from_laplace_mechanism(setting["noise"], **options)
        else:
            one = pld.from_gaussian_mechanism(
                setting["noise"], sampling_prob=setting["rate"], **options
            )
        whole = one.self_compose(setting["steps"])
        ends.append(float(whole.get_epsilon_for_delta(setting["delta"])))
    return ends


def prv_bracket(setting: dict) -> list[float] | None:
    """Lower and upper epsilon of prv_accountant."""
    from prv_accountant import (
        LaplaceMechanism,
        PoissonSubsampledGaussianMechanism,
        PRVAccountant,
    )

    if setting["kind"] == "laplace":
        mechanism = LaplaceMechanism(mu=1.0 / setting["noise"])
    else:
        mechanism = PoissonSubsampledGaussianMechanism(
            noise_multiplier=setting["noise"], sampling_probability=setting["rate"]
        )
    accountant = PRVAccountant(
        prvs=[mechanism],
        max_self_compositions=[setting["steps"]],
        eps_error=min(max(0.15 * total_mu(setting), 2e-3), 0.2),
        delta_error=setting["delta"] / 1000,
    )
    low, _, high = accountant.compute_epsilon(
        delta=setting["delta"], num_self_compositions=[setting["steps"]]
    )
    return [float(low), float(high)] if math.isfinite(high) else None


def record(setting: dict) -> dict:
    """The setting together with what each peer says about it."""
    row = dict(setting)
    for name, peer in (("dp_accounting", dp_accounting_bracket), ("prv_accountant", prv_bracket)):
        try:
            row[name] = peer(setting)
        except (ArithmeticError, MemoryError, RuntimeError, ValueError) as failure:
            print(f"{name} failed on {setting}: {failure}")
            row[name] = None
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=TARGET)
    target = parser.parse_args().target
    warnings.simplefilter("ignore")
    rows = []
    for setting in settings():
        start = time.perf_counter()
        rows.append(record(setting))
        print(f"{len(rows):4d} {time.perf_counter() - start:6.2f} s  {rows[-1]}", flush=True)
    versions = {
        name: metadata.version(name) for name in ("dp-accounting", "prv_accountant", "numpy")
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    target.write_text(
        f'{{"versions": {json.dumps(versions)},\n "rows": [\n{lines}\n]}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
