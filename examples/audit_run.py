"""Audit one run of DP-SGD by canaries: a lower bound of epsilon beside the proved upper bound.

Run it with `python examples/audit_run.py`; it needs the extra `torch`.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.audit import Inclusion, audit_one_run, suggest_guesses
from discreet.learn.dpsgd import Plan
from discreet.learn.dpsgd.canaries import train_with_gradient_canaries

people = TensorDataset(torch.randn(500, 4), torch.randint(0, 2, (500,)))
canaries = 200
plan = Plan(
    examples=500 + canaries // 2,
    expected_batch_size=100,
    steps=6,
    clip_norm=1.0,
    noise_multiplier=1.0,
    delta=1e-5,
)

# A fair coin decides for each canary whether it takes part; the number of guesses is fixed before.
coins = Inclusion(canaries, guesses=suggest_guesses(plan.loss, canaries=canaries, delta=plan.delta))
run = train_with_gradient_canaries(
    nn.Linear(4, 2),
    people,
    plan,
    included=coins.included,
    loss=nn.CrossEntropyLoss(reduction="none"),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
audit = audit_one_run(coins, run.scores, loss=plan.loss, delta=plan.delta)
print(f"proved: at most {plan.epsilon():.2f}; audited: at least {audit.epsilon_lower:.2f}", end=" ")
print(f"with confidence {audit.confidence:.0%}, of {audit.ceiling:.2f} that it could have shown")
print("verdict:", audit.verdict)
