"""Starts the members of a process group and reads what they saw."""

import json
import os
import subprocess
import sys


def run_members(script, folder, *, ranks=2):
    """Run ``script RANK RANKS STORE FOLDER`` once for each rank; what each wrote, by rank."""
    store = "file://" + str(folder / "store")
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": paths,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(ranks), store, str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        texts = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(texts)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(ranks)]
