"""A small network under DP-SGD: its plan from public facts, its training, and its forward pass.

Training is :mod:`discreet.learn.dpsgd` (Poisson sampling under add_remove, samples of a fixed size
under replace); its noise is that of :class:`discreet.randomness.NormalStream`, so the loss is
that of ideal real-valued noise. The fitted network is a list of matrices and predicts without
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.data.schema import MOST_ROWS
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.tabular.estimator import Track
from discreet.learn.tabular.plan import MOST_STEPS
from discreet.privacy import Loss, Relation
from discreet.privacy.theorems import gaussian_mu
from discreet.randomness import NormalStream, Source

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from discreet.learn.dpsgd import Plan

__all__ = ["NetworkPlan", "forward", "hidden_sizes", "train_network"]

Layers = list[tuple["NDArray[np.float64]", "NDArray[np.float64]"]]

_BATCH_SHARE = 16
_LEAST_BATCH, _MOST_BATCH = 256, 8192
_MOMENTUM = 0.9
_AVERAGED = 0.5
# Where a fit is good the curvature of logistic errors fades, and that of squared errors does not.
_SQUARED_SLOWER = 5.0
# Gradients are clipped to 1: larger steps carry single precision away in a few of them.
_LARGEST_STEP = 1e4
_LARGEST_WEIGHT = 1e30
_WIDEST_LAYER = 1 << 16


@final
@dataclass(frozen=True)
class NetworkPlan:
    """Public numbers of a run: a plan of DP-SGD, the shape of the network and the step size."""

    training: Plan
    hidden: tuple[int, ...]
    step_size: float

    @classmethod
    def make(
        cls,
        *,
        rows: int,
        features: int,
        outputs: int,
        hidden: Sequence[int],
        epsilon: float,
        delta: float,
        relation: Relation | str,
        contributions: int = 1,
        squared: bool = False,
        steps: int | None = None,
        step_size: float | None = None,
        unit: str | None = None,
    ) -> NetworkPlan:
        """Choose what is not given; defaults as in :mod:`discreet.learn.tabular.plan`.

        With several ``contributions`` a person, an example is a person with all rows. ``unit`` is
        whom the guarantee protects: a row, or a person where there are several contributions.
        """
        try:
            from discreet.learn.dpsgd import Plan, make_private  # noqa: F401 - what fit needs
        except ImportError as error:
            raise NotApplicable(
                f"networks need torch to be trained: pip install 'discreet[torch]' ({error})"
            ) from None

        cap = _validate.integer("rows_per_person", contributions, at_least=1, at_most=MOST_ROWS)
        declared = _validate.integer("expected_rows", rows, at_least=1, at_most=MOST_ROWS)
        n = -(-declared // cap)
        target = _validate.real("epsilon", epsilon, above=0)
        point = _validate.real("delta", delta, above=0, below=1)
        kind = Relation.parse(relation)
        if kind is Relation.REPLACE and cap > 1:
            raise NotApplicable("replacing a person may change the number of rows: use add_remove")
        sizes = hidden_sizes(hidden)
        widths = [features, *sizes, outputs]
        weights = sum((a + 1) * b for a, b in pairwise(widths))
        signal = gaussian_mu(target, point) * n / math.sqrt(weights)
        count = min(400, max(20, round(25.0 * signal**0.5)))
        batch = min(n, _MOST_BATCH, max(_LEAST_BATCH, n // _BATCH_SHARE))
        plan = Plan(
            examples=n,
            expected_batch_size=batch,
            steps=_validate.integer(
                "max_iter", count if steps is None else steps, at_least=1, at_most=MOST_STEPS
            ),
            clip_norm=1.0,
            delta=point,
            epsilon=target,
            sampler="poisson" if kind is Relation.ADD_REMOVE else "without_replacement",
            relation=kind,
            unit=unit or ("row" if cap == 1 else "person"),
        )
        usual = min(32.0, max(4.0, 8.0 * (signal / 17.0) ** 0.3))
        usual /= _SQUARED_SLOWER if squared else 1.0
        pace = usual if step_size is None else step_size
        return cls(plan, sizes, _validate.real("step_size", pace, above=0, at_most=_LARGEST_STEP))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> NetworkPlan:
        """Return the plan that :meth:`to_json` wrote."""
        from discreet.learn.dpsgd import Plan

        training = Plan.from_json(document["training"])
        return cls(training, hidden_sizes(document["hidden"]), float(document["step_size"]))

    @property
    def epsilon(self) -> float | None:
        """The epsilon that was asked for."""
        return self.training.target_epsilon

    @property
    def steps(self) -> int:
        """The number of noisy steps."""
        return self.training.steps

    @property
    def loss(self) -> Loss:
        """What the whole run reveals about one row."""
        return self.training.loss

    @property
    def delta(self) -> float:
        """The delta at which the loss is read."""
        return self.training.delta

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "training": self.training.to_json(),
            "hidden": list(self.hidden),
            "step_size": self.step_size,
        }


def hidden_sizes(hidden: object) -> tuple[int, ...]:
    """Return the widths of the hidden layers.

    >>> hidden_sizes([32, 16]), hidden_sizes(8)
    ((32, 16), (8,))
    """
    expected = "the widths of one to four hidden layers"
    if isinstance(hidden, np.ndarray) and hidden.ndim == 1:
        hidden = hidden.tolist()
    sizes = [hidden] if isinstance(hidden, int | np.integer) else hidden
    if not isinstance(sizes, list | tuple) or not 1 <= len(sizes) <= 4:
        raise InvalidValue("hidden_layer_sizes", hidden, expected)
    return tuple(
        _validate.integer("hidden_layer_sizes", size, at_least=1, at_most=_WIDEST_LAYER)
        for size in sizes
    )


def forward(layers: Layers, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the outputs of the network for rows."""
    values = rows
    for number, (weights, shift) in enumerate(layers):
        values = values @ weights.T + shift
        if number < len(layers) - 1:
            values = np.tanh(values)
    return values


def train_network(
    plan: NetworkPlan,
    rows: NDArray[np.float32],
    targets: NDArray[Any],
    counts: NDArray[np.bool_],
    losses: Callable[[Tensor, Tensor], Tensor],
    *,
    outputs: int,
    bits: Source,
    track: Track,
) -> Layers:
    """Run the plan; rows for which ``counts`` is false have a loss of zero.

    The first axis counts examples; a second one, before that of the features, the rows of an
    example, whose losses are added up. Under add_remove an example of such rows is appended, so
    that no records at all are data like any other.
    """
    import torch
    from torch.utils.data import TensorDataset

    from discreet.learn.dpsgd import make_private

    if plan.training.relation is Relation.ADD_REMOVE:
        rows, targets, counts = (
            np.concatenate([part, np.zeros((1, *part.shape[1:]), dtype=part.dtype)])
            for part in (rows, targets, counts)
        )
    data = TensorDataset(
        torch.from_numpy(rows),
        torch.from_numpy(np.where(counts, targets, targets.dtype.type(0))),
        torch.from_numpy(counts.astype(np.float32)),
    )
    model = _network(rows.shape[-1], plan.hidden, outputs, bits.derive("weights"))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=plan.step_size * (1.0 - _MOMENTUM), momentum=_MOMENTUM
    )
    # Linear layers and tanh act on each row alone, so there is nothing to probe for mixing.
    private = make_private(
        model, optimizer, plan.training, isolation="vouched", source=bits.derive("training")
    )
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    first = plan.training.steps - math.ceil(_AVERAGED * plan.training.steps)
    batches = iter(private.batches(data))
    try:
        for number in track(range(plan.training.steps)):
            while True:
                inputs, goals, weights = next(batches)
                found = losses(model(inputs).flatten(0, -2), goals.flatten())
                private.backward((found * weights.flatten()).reshape(len(weights), -1).sum(1))
                optimizer.step()
                if private.stepped:
                    break
            if number >= first:
                for sum_, parameter in zip(total, model.parameters(), strict=True):
                    sum_ += parameter.detach()
    finally:
        private.detach()
    count = plan.training.steps - first
    means = [
        # A run that was carried away is a bad model, and not one that cannot be read back.
        np.nan_to_num(
            (sum_ / count).numpy().astype(np.float64),
            posinf=_LARGEST_WEIGHT,
            neginf=-_LARGEST_WEIGHT,
        )
        for sum_ in total
    ]
    return list(zip(means[::2], means[1::2], strict=True))


def _network(features: int, hidden: Sequence[int], outputs: int, bits: Source) -> Any:
    """Layers of tanh; the last one starts at zero, the others at random and data-independent."""
    import torch
    from torch import nn

    normals = NormalStream(source=bits)
    parts: list[nn.Module] = []
    width = features
    for size in hidden:
        parts += [nn.Linear(width, size), nn.Tanh()]
        width = size
    parts.append(nn.Linear(width, outputs))
    with torch.no_grad():
        for number, layer in enumerate(parts):
            if isinstance(layer, nn.Linear):
                layer.bias.zero_()
                layer.weight.zero_()
                if number < len(parts) - 1:
                    # Whole rows have length one, not each feature, so the first layer is wide.
                    gain = 2.0 if number == 0 else 1.0 / math.sqrt(layer.in_features)
                    layer.weight += normals.tensor(tuple(layer.weight.shape), stddev=gain)
    return nn.Sequential(*parts)
