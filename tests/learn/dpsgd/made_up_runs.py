"""Small models, data and plans that the tests of the loop share."""

import copy
from types import MappingProxyType

import torch
from torch import nn
from torch.utils.data import TensorDataset

from discreet.learn import dpsgd
from discreet.learn.dpsgd._batches import Chunk
from discreet.learn.dpsgd._clipping import ROUNDING_MARGIN
from discreet.learn.dpsgd.engine._forms import wide_kind
from discreet.randomness import source
from oracles import slow_dpsgd

CLASSES = 3
FEATURES = 6


def data(count, *, seed=0, features=FEATURES, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    inputs = scale * torch.randn(count, features, generator=draw)
    targets = torch.randint(0, CLASSES, (count,), generator=draw)
    return TensorDataset(inputs, targets)


def network(*, seed=0, features=FEATURES):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def plan(**changes):
    base = {
        "examples": 64,
        "expected_batch_size": 16,
        "steps": 4,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
    }
    return dpsgd.Plan(**{**base, **changes})


def each(outputs, targets):
    """One loss for each example."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def batch_of(rows):
    """A batch as a watch sees it, of a whole step."""
    return dpsgd.OpenBatch(step=0, rows=rows, reduction="mean", chunk=Chunk(rows, True, False))


class Silence:
    """A bank of zeros in place of noise: what is left is the clipped, normalised sum."""

    def __init__(self, parameters):
        self._parameters = list(parameters)
        self.taken = 0

    def take(self, step=None):
        self.taken += 1
        return [torch.zeros_like(one, dtype=wide_kind(one.dtype)) for one in self._parameters]

    def prepare(self, step):
        pass

    def scalar(self, stddev):
        return 0.0

    def close(self):
        pass

    provenance = MappingProxyType({"noise": "none"})


def silenced(private, dataset, **options):
    """The batches of a run whose noise is replaced by zeros."""
    if not isinstance(private._noise, Silence):
        private._noise = Silence(private._setup.trained)
    yield from private.batches(dataset, **options)


def wrap(model, made, *, lr=1.0, isolation="vouched", **options):
    """Put a model that is known not to mix examples under a plan, with repeatable draws.

    Pass ``source=None`` for the operating system's.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    options.setdefault("source", source(insecure_seed=1))
    return dpsgd.make_private(model, optimizer, made, isolation=isolation, **options), optimizer


def steps_of(private, optimizer, dataset, **options):
    """Run silently; yield each batch with the gradient that moved the model."""
    model = private.model
    for inputs, targets in silenced(private, dataset, **options):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        start = copy.deepcopy(model)
        private.backward(each(model(inputs), targets))
        optimizer.step()
        moved = {n: before[n] - p.detach() for n, p in model.named_parameters()}
        yield start, inputs, targets, moved


def clipped(gradient, clip_norm):
    """Flat clipping the slow way, with the margin of the fast one."""
    return slow_dpsgd.flat_clipped(gradient, clip_norm * (1 - ROUNDING_MARGIN))


def check(moved, expected):
    """Compare a step with the slow one, up to the rounding of single precision."""
    for name, part in expected.items():
        scale = float(part.abs().max())
        assert torch.allclose(moved[name], part, atol=1e-5 * scale + 3e-6), name
