"""Train a network by DP-SGD in a loop of your own.

Run it with `python examples/train_network.py`; it needs the extra `torch`.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.learn import dpsgd

torch.manual_seed(0)  # the data and the first weights only; noise and batches are never seeded
features = torch.randn(500, 8)
people = TensorDataset(features, (features[:, 0] + features[:, 1] > 0).long())

# Sampler, clipping, noise, normaliser and charge all follow from one plan.
plan = dpsgd.Plan(
    examples=500,
    expected_batch_size=50,
    steps=40,
    clip_norm=1.0,
    epsilon=4.0,
    delta=1e-4,
    unit="person",
)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
private = dpsgd.make_private(model, optimizer, plan)

for inputs, labels in private.batches(people):
    losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
    private.backward(losses)
    optimizer.step()

private.detach()  # private training ends here; the model is an ordinary one again
fresh = torch.randn(1000, 8)
right = (model(fresh).argmax(dim=1) == (fresh[:, 0] + fresh[:, 1] > 0).long()).float().mean()
print(f"epsilon at most {plan.epsilon():.2f} at delta {plan.delta:g}")
print(f"right about {right:.0%} of new people")
