"""A student for images: labels spread over scattering features, then a network on the images.

First the released labels flow along the graph of nearest neighbours in features that are fixed
beforehand. Then a small convolutional network learns these pseudo-labels from images that are
jittered anew in every step, so that it must answer alike for all versions of an image
(consistency). Half way, the pseudo-labels are mixed with what the average network says, on several
versions of each image, and the least certain ones are left out.

Teachers of images see scattering features, projected by what public images have in common
(:class:`ScatteringView`).
"""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin  # type: ignore[import-untyped]
from torch import Tensor, nn

from discreet import _validate
from discreet._cache import fingerprint
from discreet.errors import InvalidValue
from discreet.learn.features import Scattering, contrasts
from discreet.pate._student import neighbour_graph, spread_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray


_DIMENSIONS = 300
_BATCH = 64
_VERSIONS = 4
_AVERAGE = 0.998


@final
class ImageStudent:
    """Learns from public images of ``size`` pixels with grey values 0 to 255, as flat rows."""

    kind = "images"

    def __init__(
        self,
        *,
        size: tuple[int, int],
        epochs: int = 20,
        neighbours: int = 8,
        rate: float = 2e-3,
        seed: int = 0,
    ) -> None:
        height, width = size
        self.size = (
            _validate.integer("size", height, at_least=8),
            _validate.integer("size", width, at_least=8),
        )
        if self.size[0] % 4 or self.size[1] % 4:
            raise InvalidValue("size", size, "height and width, both multiples of 4")
        self.epochs = _validate.integer("epochs", epochs, at_least=2)
        self.neighbours = _validate.integer("neighbours", neighbours, at_least=1)
        self.rate = _validate.real("rate", rate, above=0)
        self.seed = _validate.integer("seed", seed, at_least=0)
        self._network: nn.Module | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """What it is, as JSON."""
        return {
            "size": list(self.size),
            "epochs": self.epochs,
            "neighbours": self.neighbours,
            "rate": self.rate,
            "seed": self.seed,
        }

    def features(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Features by which public images are compared: scattering, projected and scaled.

        The projection is the principal components of the public images themselves.
        """
        places = principal_axes(rows, self.size).places[:, :_DIMENSIONS].astype(np.float64)
        scaled = places / np.maximum(places.std(axis=0), 1e-12) ** 0.25
        lengths = np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-12)
        return np.asarray(scaled / lengths)

    def fit(
        self,
        rows: NDArray[np.float64],
        examples: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        features: NDArray[np.float64] | None = None,
    ) -> ImageStudent:
        """Learn from public ``rows`` of which ``examples`` have released ``labels``."""
        table = self.features(rows) if features is None else features
        graph = neighbour_graph(table, neighbours=self.neighbours)
        spread = spread_labels(graph, examples, labels, classes=classes)
        self.spread_ = spread
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self._network = _small_network(self.size, classes)
            images = _scale(self._bytes(rows))
            self._train(images, torch.tensor(_sharp(spread), dtype=torch.float32))
        return self

    def scores(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a score for each class, rows x classes, whose softmax are the probabilities."""
        if self._network is None:
            raise InvalidValue("student", "one that has learned nothing", "a fitted student")
        images = _scale(self._bytes(rows))
        return np.asarray(_outputs(self._network, images).double().numpy())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The weights, as plain arrays."""
        if self._network is None:
            raise InvalidValue("student", "one that has learned nothing", "a fitted student")
        return {name: value.numpy() for name, value in self._network.state_dict().items()}

    def set_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take the weights that :meth:`arrays` gave."""
        classes = len(arrays["6.bias"])
        network = _small_network(self.size, classes)
        network.load_state_dict({name: torch.tensor(value) for name, value in arrays.items()})
        self._network = network.eval()

    def _bytes(self, rows: NDArray[np.float64]) -> NDArray[np.uint8]:
        table = np.asarray(rows)
        if table.ndim != 2 or table.shape[1] != self.size[0] * self.size[1]:
            expected = f"rows of {self.size[0]} x {self.size[1]} pixels"
            raise InvalidValue("X", f"shape {table.shape}", expected)
        grey = np.clip(np.nan_to_num(table, nan=0.0), 0, 255)
        return np.rint(grey).astype(np.uint8).reshape(-1, *self.size)

    def _train(self, images: Tensor, goals: Tensor) -> None:
        network = self._network
        assert network is not None
        network.train()
        average = copy.deepcopy(network).eval()
        generator = torch.Generator().manual_seed(self.seed)
        steps = self.epochs * max(1, len(images) // _BATCH)
        optimizer = torch.optim.AdamW(network.parameters(), lr=self.rate, weight_decay=1e-4)
        # A tenth of the steps to warm up; more than one step, or the schedule divides by zero.
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.rate, total_steps=steps, pct_start=max(0.1, 1.5 / steps)
        )
        weights = _certainty(goals)
        for step in range(steps):
            if step == steps // 2:
                said = _on_versions(average, images, generator)
                mixed = 0.5 * (goals + said)
                goals, weights = mixed, _certainty(mixed)
            some = torch.randint(len(images), (_BATCH,), generator=generator)
            outputs = network(jitter(images[some], generator=generator))
            losses = nn.functional.cross_entropy(outputs, goals[some], reduction="none")
            optimizer.zero_grad()
            (losses * weights[some]).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            held = min(_AVERAGE, (step + 1) / (step + 10))
            with torch.no_grad():
                for old, new in zip(average.parameters(), network.parameters(), strict=True):
                    old.lerp_(new, 1.0 - held)
        self._network = average


def _small_network(size: tuple[int, int], classes: int) -> nn.Module:
    places = (size[0] // 4) * (size[1] // 4)
    return nn.Sequential(
        nn.Conv2d(1, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(24, 48, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Sequential(nn.Linear(48 * places, 128), nn.ReLU()),
        nn.Linear(128, classes),
    )


def _scale(images: NDArray[np.uint8]) -> Tensor:
    return torch.tensor(images).unsqueeze(1).to(torch.float32) / 127.5 - 1.0


def _outputs(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(some) for some in torch.split(images, 1000)])


def _on_versions(network: nn.Module, images: Tensor, generator: torch.Generator) -> Tensor:
    """The mean answer on several versions of each image."""
    total = torch.softmax(_outputs(network, images), dim=1)
    for _ in range(_VERSIONS - 1):
        versions = torch.cat(
            [jitter(some, generator=generator) for some in torch.split(images, 1000)]
        )
        total = total + torch.softmax(_outputs(network, versions), dim=1)
    return total / _VERSIONS


def _sharp(chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread labels are nearly flat; their ratios are what counts."""
    powers = (chances / chances.max(axis=1, keepdims=True)) ** 4
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _certainty(goals: Tensor) -> Tensor:
    """1 where one class is far ahead, less where two are close; the worst 2 % count for nothing."""
    two = goals.topk(2, dim=1).values
    margin = two[:, 0] - two[:, 1]
    floor = torch.quantile(margin, 0.02)
    return torch.where(margin > floor, margin, torch.zeros_like(margin))


_GROUPS = 27
_AT_ONCE = 1000
_AXES = 500


def scattering_coefficients(rows: NDArray[Any], size: tuple[int, int]) -> torch.Tensor:
    """Scattering coefficients of flat images with grey values 0 to 255, image by image."""
    table = np.asarray(rows)
    if table.ndim != 2 or table.shape[1] != size[0] * size[1]:
        raise InvalidValue("X", f"shape {table.shape}", f"rows of {size[0]} x {size[1]} pixels")
    grey = np.rint(np.clip(np.nan_to_num(table, nan=0.0), 0, 255)).astype(np.uint8)
    images = grey.reshape(-1, *size)
    module = Scattering(size)
    parts = [
        contrasts(
            module.transform(images[start : start + _AT_ONCE]), groups=_GROUPS, blocks=module.blocks
        ).flatten(1)
        for start in range(0, max(len(images), 1), _AT_ONCE)
    ]
    return torch.cat(parts)


@final
@dataclass(frozen=True, eq=False)
class PublicAxes:
    """The mean and the principal axes of the scattering features of public images."""

    mean: NDArray[np.float32]
    axes: NDArray[np.float32]
    places: NDArray[np.float32]


# Teachers' view and student ask for the axes of the same images: the latest are remembered.
_latest: dict[str, PublicAxes] = {}


def principal_axes(rows: NDArray[Any], size: tuple[int, int]) -> PublicAxes:
    """Find the principal axes of *public* images, and where these lie on them."""
    table = np.ascontiguousarray(rows)
    name = fingerprint(repr(size), table)
    if name not in _latest:
        features = scattering_coefficients(table, size)
        mean = features.mean(dim=0)
        centred = features - mean
        few = min(_AXES, *centred.shape)
        _, vectors = torch.linalg.eigh(centred.T @ centred)
        axes = vectors.flip(1)[:, :few].contiguous()
        _latest.clear()
        _latest[name] = PublicAxes(mean.numpy(), axes.numpy(), (centred @ axes).numpy())
    return _latest[name]


class ScatteringView(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scattering features on the principal axes of *public* images, at length one.

    ``fit`` must be given public images only. ``transform`` acts image by image.
    """

    def __init__(self, *, size: tuple[int, int] = (28, 28), dimensions: int = 500) -> None:
        self.size = size
        self.dimensions = dimensions

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the principal axes of public images."""
        few = _validate.integer("dimensions", self.dimensions, at_least=1, at_most=_AXES)
        found = principal_axes(X, (self.size[0], self.size[1]))
        self.mean_, self.axes_ = found.mean, found.axes[:, :few]
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the features of any images."""
        table = scattering_coefficients(X, (self.size[0], self.size[1])).numpy()
        places = (table - self.mean_) @ self.axes_
        lengths = np.maximum(np.linalg.norm(places, axis=1, keepdims=True), 1e-12)
        return np.asarray(places / lengths, dtype=np.float64)


def jitter(images: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return images (n, 1, height, width), each turned, scaled, sheared, shifted and bent.

    Up to 15 degrees, 12 % of size, 0.2 of shear, 8 % of the width, and a smooth bend.
    """
    count = len(images)

    def between(limit: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2.0 - 1.0) * limit

    angle, shear = between(math.pi / 12), between(0.2)
    across, along = 1.0 + between(0.12), 1.0 + between(0.12)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    rows = torch.stack(
        [
            torch.stack([across * cosine, across * (shear * cosine - sine), between(0.16)], dim=1),
            torch.stack([along * sine, along * (shear * sine + cosine), between(0.16)], dim=1),
        ],
        dim=1,
    )
    grid = nn.functional.affine_grid(rows, list(images.shape), align_corners=False)
    bend = torch.rand(count, 2, 4, 4, generator=generator) * 0.24 - 0.12
    smooth = nn.functional.interpolate(
        bend, size=images.shape[-2:], mode="bicubic", align_corners=True
    )
    return nn.functional.grid_sample(
        images, grid + smooth.permute(0, 2, 3, 1), align_corners=False, padding_mode="border"
    )
