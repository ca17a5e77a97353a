"""Runs with noise too small to be seen, and the slow and obvious step to compare them with."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from discreet.learn.dpsgd import Plan, make_private
from discreet.learn.dpsgd._batches import draws
from discreet.randomness import source

EXAMPLES = 40
QUIET = 1e-9  # noise that is there, but too small to be seen


def plan(*, noise_multiplier=QUIET, batch=8.0, steps=6, clip_norm=1.0, **others):
    return Plan(
        examples=others.pop("examples", EXAMPLES),
        expected_batch_size=batch,
        steps=steps,
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        delta=1e-3,
        **others,
    )


def data(examples=EXAMPLES, features=4):
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(examples, features, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def seeded(model, scale=0.4):
    """The same parameters in every call, whatever torch's generator did before."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model.double()


def network(*layers):
    return seeded(nn.Sequential(*layers) if layers else nn.Linear(4, 2))


def under(model, the_plan, *, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
    return make_private(model, optimizer, the_plan, **options), optimizer


def train(private, dataset, **options):
    sizes = []
    for inputs, targets in private.batches(dataset, **options):
        sizes.append(len(inputs))
        private.backward(functional.cross_entropy(private.model(inputs), targets, reduction="none"))
        private.optimizer.step()
    private.detach()
    return sizes


def parameters(model):
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


class Words(Dataset):
    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        return torch.arange(index, index + 5) % 30, index % 2


def by_hand(model, dataset, *, seed):
    """The slow and obvious step: one example at a time, clipped, summed, divided by 8."""
    chosen = [p for p in model.parameters() if p.requires_grad]
    sampling = source(insecure_seed=seed).derive("sampling", 0)
    for indices in draws(plan(), population=len(dataset), source=sampling):
        total = [torch.zeros_like(p) for p in chosen]
        for index in indices.tolist():
            *inputs, target = dataset[index]
            output = model(*(torch.as_tensor(one).unsqueeze(0) for one in inputs))
            loss = functional.cross_entropy(output, torch.as_tensor(target).reshape(1))
            gradients = torch.autograd.grad(loss, chosen, allow_unused=True)
            gradients = [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(chosen, gradients, strict=True)
            ]
            norm = torch.sqrt(sum(g.square().sum() for g in gradients))
            factor = min(1.0, 1.0 / float(norm))
            for one, gradient in zip(total, gradients, strict=True):
                one += factor * gradient
        with torch.no_grad():
            for parameter, one in zip(chosen, total, strict=True):
                parameter -= one / 8.0


def compared(make, dataset, seed):
    trained, reference = make(), make()
    chosen = [p for p in trained.parameters() if p.requires_grad]
    private, _ = under(
        trained,
        plan(),
        optimizer=torch.optim.SGD(chosen, lr=1.0),
        source=source(insecure_seed=seed),
    )
    train(private, dataset)
    by_hand(reference, dataset, seed=seed)
    # The clipping rules stay 3e-5 below the clip norm.
    assert torch.allclose(parameters(trained), parameters(reference), atol=5e-4)
    assert not torch.allclose(parameters(trained), parameters(make()), atol=1e-2)
    return trained
