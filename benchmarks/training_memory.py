"""Peak memory of a training step, each way in a process of its own.

    python benchmarks/training_memory.py TASK WAY

prints megabytes: the highest resident size during some steps, beyond that of the process with
all libraries loaded and the noise transform compiled, but neither model nor data. The allocator is
told to give memory back as soon as it is freed, so the resident size is what is in use, not how
it was fragmented.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import torch

from models_tasks import BROUGHT, LARGE_GPT2
from training_models import TASKS, Task, perceptron
from training_ways import WAYS, compile_noise

STEPS = 5


def megabytes(entry: str) -> float:
    """Read VmRSS or VmHWM of this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith(entry))
    return int(line.split()[1]) / 1024


def peak(task: Task, way: str) -> float:
    """Megabytes beyond those before the model was made."""
    small = Task("warm-up", 8, 1, 1, lambda: perceptron(4, 4, 10), lambda n: torch.ones(n, 4))
    step = WAYS[way](small)
    step()
    step()
    del step
    compile_noise()
    gc.collect()
    before = megabytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    step = WAYS[way](task)
    for _ in range(STEPS):
        step()
    return megabytes("VmHWM") - before


def measured(task: Task, way: str) -> float | None:
    """The same in a new process; None where the way cannot do the task."""
    done = subprocess.run(
        [sys.executable, __file__, task.name, way],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def main() -> int:
    name, way = sys.argv[1:]
    torch.set_num_threads(1)
    known = (*TASKS, *BROUGHT, LARGE_GPT2)
    print(peak(next(task for task in known if task.name == name), way))
    return 0


if __name__ == "__main__":
    sys.exit(main())
