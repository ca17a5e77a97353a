"""Scattering features for teachers of images, projected by what public images have in common."""

# ruff: noqa: N803 (scikit-learn calls the features X)

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin  # type: ignore[import-untyped]

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.learn.features import Scattering, contrasts

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ScatteringView", "principal_axes", "scattered"]

_GROUPS = 27
_AT_ONCE = 1000
_AXES = 500


def scattered(rows: NDArray[Any], size: tuple[int, int]) -> torch.Tensor:
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


_latest: dict[str, PublicAxes] = {}


def principal_axes(rows: NDArray[Any], size: tuple[int, int]) -> PublicAxes:
    """Find the principal axes of *public* images, and where these lie on them.

    Teachers' view and student ask for the same ones, so the latest are remembered.
    """
    table = np.ascontiguousarray(rows)
    name = hashlib.sha256(f"{size}{table.shape}{table.dtype}".encode() + table.tobytes())
    key = name.hexdigest()
    if key not in _latest:
        features = scattered(table, size)
        mean = features.mean(dim=0)
        centred = features - mean
        few = min(_AXES, *centred.shape)
        _, vectors = torch.linalg.eigh(centred.T @ centred)
        axes = vectors.flip(1)[:, :few].contiguous()
        _latest.clear()
        _latest[key] = PublicAxes(mean.numpy(), axes.numpy(), (centred @ axes).numpy())
    return _latest[key]


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
        table = scattered(X, (self.size[0], self.size[1])).numpy()
        places = (table - self.mean_) @ self.axes_
        lengths = np.maximum(np.linalg.norm(places, axis=1, keepdims=True), 1e-12)
        return np.asarray(places / lengths, dtype=np.float64)
