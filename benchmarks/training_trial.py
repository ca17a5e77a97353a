"""What the trial of a large model costs: ``make_private`` and the first batch, once.

    python benchmarks/training_trial.py plain|private

prints seconds and the peak resident megabytes of a process that does it and nothing else. The
model is a BERT of 22 million parameters with LoRA; plain training takes one step.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.learn import dpsgd
from harness import target
from training_memory import megabytes
from training_models import adapted_bert, tokens

TRIAL = "trial"
SECONDS, MEMORY = 30.0, 2.0
EXAMPLES, BATCH, LENGTH, WORDS = 64, 16, 64, 30_522


def measure_trial() -> dict[str, Any]:
    """Seconds and megabytes of both ways, each in a process of its own."""
    done = {}
    for way in ("plain", "private"):
        command = [sys.executable, __file__, way]
        text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        done[way] = json.loads(text.splitlines()[-1])
        print(f"{way} first batch of a BERT with LoRA: {done[way]}", flush=True)
    return done


def trial_targets(part: dict[str, Any]) -> list[dict[str, Any]]:
    if not part:
        return []
    ratio = part["private"]["megabytes"] / part["plain"]["megabytes"]
    return [
        target("trial of a BERT with LoRA: seconds", part["private"]["seconds"], at_most=SECONDS),
        target("trial of a BERT with LoRA: memory over plain", ratio, at_most=MEMORY),
    ]


def main() -> int:
    torch.manual_seed(0)
    model = adapted_bert().train()
    ids, labels = tokens(WORDS, LENGTH)(EXAMPLES), torch.randint(2, (EXAMPLES,))
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    loss = nn.CrossEntropyLoss(reduction="none")
    start = time.perf_counter()
    if sys.argv[1] == "plain":
        loss(model(ids[:BATCH]), labels[:BATCH]).mean().backward()
        optimizer.step()
    else:
        plan = dpsgd.Plan(
            examples=EXAMPLES,
            expected_batch_size=BATCH,
            steps=5,
            clip_norm=1.0,
            noise_multiplier=1.0,
            delta=1e-4,
        )
        words = dpsgd.TensorSpec((LENGTH,), torch.int64, values=WORDS)
        private = dpsgd.make_private(model, optimizer, plan, inputs=words)
        for batch in private.batches(TensorDataset(ids, labels)):
            private.step(loss, *batch)
            break
    took = time.perf_counter() - start
    found = {"seconds": took, "megabytes": megabytes("VmHWM")}
    print(json.dumps({**found, "parameters": sum(one.numel() for one in model.parameters())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
