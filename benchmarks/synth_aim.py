"""AIM by its authors on the Adult of the suite, to its end or for two hours: a part of synth.

McKenna's mbi is no dependency: a checkout of it (MBI says where it is cloned from) and an
environment of its own are made in build/mbi. Run as a program, this file is what that environment
runs: it draws rows from the last model, and the suite computes their error as it does its own.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

REVISION = "361705d7f05f8c0ac4d5b3640e688eb4f692346e"
FOLDER = Path(__file__).resolve().parents[1] / "build" / "mbi"
SECONDS = 2 * 3600


def aim(run: Any) -> Any:
    """Return how far AIM came, and the error of its rows."""
    from synth_tables import BINS, BOUNDS, DELTA, codes_of, errors, table_of_aim

    python = FOLDER / "environment" / "bin" / "python"
    if not python.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        place = os.environ.get("MBI", "https://github.com/ryan112358/mbi")
        git = ["git", "-C", str(FOLDER)]
        subprocess.run([*git, "clone", "--quiet", place, "checkout"], check=True)
        subprocess.run([*git, "-C", "checkout", "checkout", "--quiet", REVISION], check=True)
        venv.create(FOLDER / "environment", with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, str(FOLDER / "checkout"), "pandas", "matplotlib"], check=True)
    schema, data = table_of_aim()
    true = codes_of(data, schema)
    sizes = [
        BINS.get(name, BOUNDS[name][1] - BOUNDS[name][0] + 1)
        if name in BOUNDS
        else len(column.labels)
        for name, column in schema.columns.items()
    ]
    np.savez(FOLDER / "adult.npz", np.array(sizes), *true)
    seconds = 10 if run.quick else SECONDS
    command = [str(python), __file__, str(seconds), str(DELTA)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with np.load(FOLDER / "rows.npz") as file:
        made = [file[name].astype(np.int64) for name in file.files]
    found: dict[str, Any] = json.loads((FOLDER / "found.json").read_text())
    return {**found, "two_way": errors(true, made, 2), "three_way": errors(true, made, 3)}


def _run_aim(seconds: float, delta: float) -> None:
    """Run AIM until its end or until the seconds are over, and write rows of its last model."""
    import resource

    sys.path.insert(0, str(FOLDER / "checkout" / "mechanisms"))
    from aim import AIM
    from mbi import Dataset, Domain

    class Watched(AIM):
        """AIM that stops before a round when its time is over."""

        rounds_begun = 0
        used = 0.0

        def worst_approximated(
            self, candidates: Any, answers: Any, model: Any, eps: float, sigma: float
        ) -> Any:
            self.last = model
            if time.process_time() > seconds:
                raise TimeoutError
            if not self.rounds_begun:
                self.used = len(model.domain) * 0.5 / sigma**2
            self.rounds_begun += 1
            self.used += eps**2 / 8 + 0.5 / sigma**2
            return super().worst_approximated(candidates, answers, model, eps, sigma)

    with np.load(FOLDER / "adult.npz") as file:
        sizes, *columns = (file[name] for name in file.files)
    names = [f"c{at}" for at in range(len(columns))]
    domain = Domain(names, sizes.tolist())
    data = Dataset(dict(zip(names, columns, strict=True)), domain)
    workload = [(one, 1.0) for one in itertools.combinations(names, 3)]
    method = Watched(1.0, delta, prng=np.random.RandomState(0))
    try:
        model, _ = method.run(data, workload)
        ended = True
    except TimeoutError:
        model, ended = method.last, False
    made = model.synthetic_data(rows=columns[0].size).to_dict()
    np.savez(FOLDER / "rows.npz", *(np.asarray(made[name]) for name in names))
    found = {
        "ended": ended,
        "rounds": method.rounds_begun,
        "budget_used": method.used / method.rho,
        "cpu_seconds": time.process_time(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    (FOLDER / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    _run_aim(float(sys.argv[1]), float(sys.argv[2]))
