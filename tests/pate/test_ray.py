"""Teachers on a real Ray of this machine vote as they do at home, and none dies silently."""

from pathlib import Path

import pytest

from oracles.ray_process import run_with_ray

RAY = """
import os, sys, warnings
import joblib, numpy as np, ray
from ray.util.joblib import register_ray
from discreet.errors import InvalidValue
from discreet.pate import partition_records, teacher_votes

warnings.simplefilter("ignore")
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
register_ray()
rng = np.random.default_rng(0)
rows = rng.normal(size=(200, 3))
labels = (rows[:, 0] > 0).astype(np.int64)
queries = rng.normal(size=(10, 3))

class Nearest:
    cache_key = "nearest"
    driver = os.getpid()

    def __call__(self, X, y, queries, *, classes, seed):
        if os.getpid() == self.driver:
            raise RuntimeError("at home")
        noisy = queries + np.random.normal(size=queries.shape)  # the worker's generator
        return y[((noisy[:, None] - X[None]) ** 2).sum(axis=2).argmin(axis=1)]

def votes(teacher, **how):
    parts = partition_records(rows, labels, teachers=6, insecure_seed=1)
    return teacher_votes(parts, rows, labels, queries, teacher=teacher, classes=2, **how)

with joblib.parallel_config(backend="ray", n_jobs=2):
    away = votes(Nearest(), cache=sys.argv[2])
ray.shutdown()
assert len([name for name in os.listdir(sys.argv[2]) if name.startswith("votes-")]) == 6
Nearest.driver = -1
np.testing.assert_array_equal(away, votes(Nearest()))
print("same")
"""


@pytest.mark.slow
def test_teachers_on_a_real_ray_vote_the_same(tmp_path: Path) -> None:
    assert "same" in run_with_ray(RAY, tmp_path, str(tmp_path / "votes"))
