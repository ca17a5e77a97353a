"""Networks of one hidden layer under the defences that act in training, many at once.

Weights of several networks are stacked and trained by one sequence of operations; each sees its own
records in its own order. With no defence this is plain training by Adam on cross-entropy.

- Weight decay, dropout, label smoothing and fewer epochs are the usual regularisers.
- RelaxLoss (Chen, Yu and Fritz 2022) keeps the loss near a target: above it descends; below, it
  ascends in every second epoch and flattens the answers in the others.
- HAMP (Chen and Pattabiraman 2024) trains on soft labels of high entropy, and rewards entropy.
- Adversarial regularisation (Nasr, Shokri and Houmansadr 2018) trains against an attacker who tells
  members from reference records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from scipy.optimize import brentq
from torch import nn
from torch.nn import functional

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

Part = tuple["NDArray[Any]", "NDArray[Any]"]
_ATTACKER = 32


@final
@dataclass(frozen=True, eq=False)
class NetworkTraining:
    """``train(records, labels, seed)`` for networks of one hidden layer, with the defences named.

    ``labels`` are classes, or rows of probabilities to be imitated. ``reference`` are records with
    labels that the adversary of ``adversary`` compares members with.
    """

    classes: int
    hidden: int = 128
    epochs: int = 40
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    dropout: float = 0.0
    smoothing: float = 0.0
    relax: float | None = None
    entropy: float | None = None
    adversary: float | None = None
    reference: Part | None = None

    def __post_init__(self) -> None:
        _validate.integer("classes", self.classes, at_least=2)
        for name in ("hidden", "epochs", "batch_size"):
            _validate.integer(name, getattr(self, name), at_least=1)
        _validate.real("learning_rate", self.learning_rate, above=0)
        _validate.real("weight_decay", self.weight_decay, at_least=0)
        for name in ("dropout", "smoothing"):
            _validate.real(name, getattr(self, name), at_least=0, below=1)
        for name in ("relax", "adversary"):
            if getattr(self, name) is not None:
                _validate.real(name, getattr(self, name), above=0)
        if self.relax is not None and self.relax >= math.log(self.classes):
            most = f"below {math.log(self.classes):.3g}, the loss of guessing among the classes"
            raise InvalidValue("relax", self.relax, most)
        if self.entropy is not None:
            _validate.real("entropy", self.entropy, above=0, below=1)
        if (self.adversary is None) != (self.reference is None):
            raise InvalidValue("reference", self.reference, "records for an adversary, or neither")

    @property
    def cache_key(self) -> str:
        """All settings, as a text."""
        names = [name for name in self.__dataclass_fields__ if name != "reference"]
        return ",".join(f"{name}={getattr(self, name)!r}" for name in names)

    def __call__(self, records: NDArray[Any], labels: NDArray[Any], seed: int) -> nn.Module:
        """Return one network."""
        return self.many([(records, labels)], [seed])[0]

    def many(self, parts: Sequence[Part], seeds: Sequence[int]) -> list[nn.Module]:
        """Return one network for each set of records, all trained at once."""
        with torch.enable_grad():
            return _Stack(self, parts, seeds).train()


class _Stack:
    """Weights of all networks, and what they are trained on."""

    def __init__(self, asked: NetworkTraining, parts: Sequence[Part], seeds: Sequence[int]) -> None:
        self.asked = asked
        self.records = [_as_rows(x) for x, _ in parts]
        self.targets = [_as_targets(y, asked.classes) for _, y in parts]
        self.draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        columns = self.records[0].shape[1]
        self.weights = self._start((columns, asked.hidden, asked.classes))
        self.attacker: list[torch.Tensor] = []
        self.soft = asked.entropy is not None and _soft_share(asked.classes, asked.entropy)
        if asked.adversary is not None:
            assert asked.reference is not None
            self.attacker = self._start((2 * asked.classes, _ATTACKER, 1))
            self.others = (
                _as_rows(asked.reference[0]),
                _as_targets(asked.reference[1], asked.classes),
            )

    def _start(self, widths: tuple[int, int, int]) -> list[torch.Tensor]:
        """First weights as torch's dense layers have them."""
        found = []
        for left, right in ((widths[0], widths[1]), (widths[1], widths[2])):
            bound = 1 / math.sqrt(left)
            for shape in ((left, right), (1, right)):
                drawn = [torch.rand(shape, generator=one) * 2 - 1 for one in self.draws]
                found.append((bound * torch.stack(drawn)).requires_grad_())
        return found

    def train(self) -> list[nn.Module]:
        asked = self.asked
        size = asked.batch_size
        steps = math.ceil(max(len(x) for x in self.records) / size)
        optimizer = torch.optim.Adam(
            self.weights, lr=asked.learning_rate, weight_decay=asked.weight_decay, fused=True
        )
        against = torch.optim.Adam(self.attacker, lr=1e-3) if self.attacker else None
        for epoch in range(asked.epochs):
            orders = [self._order(place, steps * size) for place in range(len(self.draws))]
            for step in range(steps):
                chosen = [order[step * size : (step + 1) * size] for order in orders]
                x = torch.stack([own[rows] for own, rows in zip(self.records, chosen, strict=True)])
                y = torch.stack([own[rows] for own, rows in zip(self.targets, chosen, strict=True)])
                if against is not None:
                    self._train_attacker(against, x, y)
                optimizer.zero_grad()
                logits = _forward(self.weights, x, self._mask(x.shape[1]))
                self._losses(logits, y, epoch).sum().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return [self._network(place) for place in range(len(self.draws))]

    def _order(self, place: int, wanted: int) -> torch.Tensor:
        """As many places as an epoch of the largest set has, each set as often as it takes."""
        count = len(self.records[place])
        rounds = math.ceil(wanted / count)
        drawn = [torch.randperm(count, generator=self.draws[place]) for _ in range(rounds)]
        return torch.cat(drawn)[:wanted]

    def _mask(self, rows: int) -> torch.Tensor | None:
        rate = self.asked.dropout
        if not rate:
            return None
        shape = (rows, self.asked.hidden)
        kept = torch.stack([torch.rand(shape, generator=one) >= rate for one in self.draws])
        return kept / (1 - rate)

    def _losses(self, logits: torch.Tensor, y: torch.Tensor, epoch: int) -> torch.Tensor:
        """The loss of each network: the mean over its batch."""
        asked = self.asked
        logs = functional.log_softmax(logits, dim=-1)
        wanted = y
        if asked.smoothing:
            wanted = (1 - asked.smoothing) * y + asked.smoothing / asked.classes
        elif self.soft:
            wanted = self.soft * y + (1 - self.soft) / (asked.classes - 1) * (1 - y)
        losses = -(wanted * logs).sum(dim=-1).mean(dim=-1)
        if self.soft:
            losses = losses + 0.01 * (logs.exp() * logs).sum(dim=-1).mean(dim=-1)
        if asked.relax is not None:
            losses = _relax(losses, logs, y, asked.relax, epoch)
        if self.attacker:
            assert asked.adversary is not None
            logit = _forward(self.attacker, torch.cat([logs.exp(), y], dim=-1))
            losses = losses + asked.adversary * functional.logsigmoid(logit).mean(dim=(1, 2))
        return losses

    def _train_attacker(
        self, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
    ) -> None:
        records, targets = self.others
        chosen = [torch.randint(len(records), (x.shape[1],), generator=one) for one in self.draws]
        rows = torch.stack(chosen)
        with torch.no_grad():
            inside = torch.cat([_forward(self.weights, x).softmax(dim=-1), y], dim=-1)
            answers = _forward(self.weights, records[rows]).softmax(dim=-1)
            outside = torch.cat([answers, targets[rows]], dim=-1)
        optimizer.zero_grad()
        gain = functional.logsigmoid(_forward(self.attacker, inside)).mean(dim=(1, 2))
        gain = gain + functional.logsigmoid(-_forward(self.attacker, outside)).mean(dim=(1, 2))
        (-gain.sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def _network(self, place: int) -> nn.Module:
        first, first_bias, second, second_bias = (one[place].detach() for one in self.weights)
        left, right = nn.Linear(*first.shape), nn.Linear(*second.shape)
        left.load_state_dict({"weight": first.T.contiguous(), "bias": first_bias[0]})
        right.load_state_dict({"weight": second.T.contiguous(), "bias": second_bias[0]})
        return nn.Sequential(nn.Flatten(), left, nn.ReLU(), right).eval()


def _forward(
    weights: Sequence[torch.Tensor], x: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    first, first_bias, second, second_bias = weights
    hidden = torch.relu(torch.baddbmm(first_bias, x, first))
    if mask is not None:
        hidden = hidden * mask
    return torch.baddbmm(second_bias, hidden, second)


def _relax(
    losses: torch.Tensor, logs: torch.Tensor, y: torch.Tensor, target: float, epoch: int
) -> torch.Tensor:
    if epoch % 2 == 0:
        return (losses - target).abs()
    sure = (logs.exp() * y).sum(dim=-1, keepdim=True).detach()
    flat = y * sure + (1 - y) * (1 - sure) / (y.shape[-1] - 1)
    flattened = -(flat * logs).sum(dim=-1).mean(dim=-1)
    return torch.where(losses > target, losses, flattened)


def _soft_share(classes: int, entropy: float) -> float:
    """The probability of the true class for soft labels of this share of the most entropy."""

    def excess(share: float) -> float:
        rest = 1 - share
        own = -share * math.log(share) - rest * math.log(rest / (classes - 1))
        return own - entropy * math.log(classes)

    return float(brentq(excess, 1 / classes, 1 - 1e-12))


def _as_rows(records: NDArray[Any]) -> torch.Tensor:
    flat = np.asarray(records).reshape(len(records), -1)
    return torch.from_numpy(np.ascontiguousarray(flat, dtype=np.float32))


def _as_targets(labels: NDArray[Any], classes: int) -> torch.Tensor:
    array = np.asarray(labels)
    if array.ndim == 1:
        array = np.eye(classes, dtype=np.float32)[array]
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
