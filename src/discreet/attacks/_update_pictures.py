"""Pictures from an update: analytic inversion, and search for what would have the same gradient.

``analytic``
    A linear layer that sees the input has the gradient g_b x^T: the input is a ratio of the
    gradient of the weights and that of the bias, taken over all rows by least squares.
``match``
    Search for pictures and labels whose gradient is near the one seen, by L-BFGS (Zhu et al. 2019);
    where the last layer gives the label of a single picture it is taken (Zhao et al. 2020).
``cosine``
    The same with the angle between gradients and the roughness of the picture for a distance, by
    Adam on signs (Geiping et al. 2020).

A failed search proves nothing: these attacks die of noise that guarantees nothing at all. What a
guarantee is worth is shown by :func:`~discreet.attacks.prior_informed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet._json import HIDDEN
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._training import Generator, seeded_generator
from discreet.attacks._update_labels import guess_labels
from discreet.attacks._updates import (
    check_answers,
    check_updates,
    linear_layer,
    local_change,
    split_update,
)
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Pictures = np.ndarray[Any, np.dtype[np.float64]]

METHODS = ("analytic", "match", "cosine")


@final
@dataclass(frozen=True, eq=False)
class UpdatePicturesResult(Result):
    """What was found of the pictures behind updates.

    ``identified`` counts pictures whose reconstruction is nearer to them than to every public one:
    chance is at most one over their number plus one for each reconstruction that could be matched
    with the picture. ``clearer`` counts those that are nearer to the truth
    than the best constant and than the mean of public pictures of their class. ``psnr`` is the
    median, in decibels, with an interval that assumes nothing; ``blind_psnr`` that of the better
    one of constant and class mean. ``reconstructions`` run like the records. Internal: they are
    about people.
    """

    json_kind = "update_pictures"
    json_properties = ("leaks",)
    without_interval = MappingProxyType(
        {"blind_psnr": "what is reached without an update", "ssim": "a description"}
    )

    method: str
    identified: Proportion
    chance: float
    clearer: Proportion
    psnr: float
    psnr_interval: tuple[float, float]
    blind_psnr: float
    ssim: float | None
    reconstructions: Pictures = field(repr=False, metadata=HIDDEN)
    psnr_each: Pictures = field(repr=False, metadata=HIDDEN)

    @property
    def finding(self) -> Finding:
        """The share of pictures that are identified among public ones."""
        measure = "pictures nearer to their reconstruction than all public ones"
        return Finding.of_share("update_pictures", measure, self.identified, self.chance)


@attack(family="reconstruction", access="gradients")
def update_pictures(
    target: Any,
    updates: ArrayLike,
    records: ArrayLike,
    labels: ArrayLike,
    auxiliary: tuple[ArrayLike, ArrayLike],
    *,
    method: str = "analytic",
    steps: int = 300,
    restarts: int = 1,
    total_variation: float = 1e-4,
    local_steps: int = 1,
    local_rate: float = 1.0,
    bounds: tuple[float, float] = (0.0, 1.0),
    confidence: float = 0.95,
    seed: int | None = None,
) -> UpdatePicturesResult:
    """Find the pictures behind each update, of the clients' own or of a sum.

    Parameters
    ----------
    target : nn.Module
        The weights that the server sent.
    updates : array
        One row for each client, see :func:`client_updates`.
    records, labels : array
        Clients x examples x shape, and clients x examples. The attack is judged by them; it knows
        how many there are and their shape.
    auxiliary : pair of array
        Public pictures of the same kind with their labels, which no client has.
    method : str
        ``analytic``, ``match`` or ``cosine``.
    steps, restarts : int
        Of a search.
    total_variation : float
        The weight of roughness, for ``cosine``.
    local_steps, local_rate
        How clients train; searches go through all of their steps.
    bounds : pair of float
        The range of a number of a picture.
    confidence : float
        The confidence of the intervals; they treat pictures as independent.
    seed : int, optional
        Makes the starts repeatable.

    Returns
    -------
    UpdatePicturesResult
        How many pictures were identified, how near they are, and the pictures.

    Raises
    ------
    InvalidValue
        If an argument is out of range, or does not fit the model.
    NotApplicable
        If ``analytic`` finds no linear layer that sees the input.
    """
    _validate.one_of("method", method, METHODS)
    rows = check_updates(target, updates)
    truth = np.asarray(check_answers(rows, "records", records, least=3), dtype=np.float64)
    classes = check_answers(rows, "labels", labels, least=2)
    shape = truth.shape[1:]
    if method == "analytic":
        found = np.stack([analytic(target, row, shape) for row in rows])
    else:
        rounds = _validate.integer("steps", steps, at_least=1)
        tries = _validate.integer("restarts", restarts, at_least=1)
        change = local_change(target, local_steps=local_steps, local_rate=local_rate)
        draws = seeded_generator(seed)
        found = np.stack(
            [
                _search(target, change, row, shape, method=method, steps=rounds, restarts=tries,
                        roughness=total_variation, bounds=bounds, draws=draws)
                for row in rows
            ]
        )  # fmt: skip
    found = np.clip(np.nan_to_num(found, nan=sum(bounds) / 2), *bounds)
    return judge_pictures(method, found, truth, classes, auxiliary, confidence=confidence)


def judge_pictures(
    method: str,
    found: Pictures,
    truth: Pictures,
    classes: Any,
    auxiliary: tuple[ArrayLike, ArrayLike],
    *,
    confidence: float,
) -> UpdatePicturesResult:
    """Match reconstructions with the pictures of each update, and compare them with public ones."""
    from scipy.optimize import linear_sum_assignment
    from scipy.stats import binom

    public, known = np.asarray(auxiliary[0], dtype=np.float64), np.asarray(auxiliary[1])
    if public.shape[1:] != truth.shape[2:] or known.shape != (len(public),) or not len(public):
        raise InvalidValue("auxiliary", public.shape, f"public pictures {truth.shape[2:]}, labels")
    flat = public.reshape(len(public), -1)
    sizes = (flat**2).sum(axis=1)
    best, errors, nearest = np.empty_like(truth), [], []
    for place, own in enumerate(truth):
        real = own.reshape(len(own), -1)
        made = found[place].reshape(len(found[place]), -1)
        apart = ((real[:, None] - made[None]) ** 2).mean(axis=2)
        which = linear_sum_assignment(apart)[1]
        best[place] = found[place][which]
        errors += apart[np.arange(len(own)), which].tolist()
        chosen = made[which]
        squares = sizes[:, None] + (chosen**2).sum(axis=1) - 2.0 * flat @ chosen.T
        nearest += (squares.min(axis=0) / flat.shape[1]).tolist()
    reached, others = np.array(errors), np.array(nearest)
    pictures = truth.reshape(len(reached), -1)
    means = {label: flat[known == label].mean(axis=0) for label in np.unique(known)}
    everything = flat.mean(axis=0)
    of_class = np.stack([means.get(one, everything) for one in np.ravel(classes)])
    blind = np.minimum(
        ((pictures - of_class) ** 2).mean(axis=1),
        ((pictures - pictures.mean(axis=1, keepdims=True)) ** 2).mean(axis=1),
    )
    count = len(reached)
    ordered = np.sort(_decibels(reached))
    rank = int(binom.ppf((1 - confidence) / 2, count, 0.5))
    low = ordered[rank - 1] if rank >= 1 else 0.0
    high = ordered[count - rank] if rank >= 1 else np.inf
    return UpdatePicturesResult(
        method,
        proportion(int((reached < others).sum()), count, confidence=confidence),
        min(1.0, found.shape[1] / (len(public) + 1)),
        proportion(int((reached < blind).sum()), count, confidence=confidence),
        float(np.median(ordered)),
        (float(low), float(high)),
        float(np.median(_decibels(blind))),
        _similarity(truth, best),
        best,
        _decibels(reached),
    )


def _decibels(errors: Pictures) -> Pictures:
    decibels: Pictures = -10.0 * np.log10(np.maximum(errors, 1e-30))
    return decibels


def _similarity(truth: Pictures, found: Pictures) -> float | None:
    """Return the median structural similarity (Wang et al. 2004), windows of 7 by 7 pixels."""
    from scipy.ndimage import uniform_filter

    height, width = truth.shape[-2:]
    if truth.ndim < 4 or min(height, width) < 7:
        return None
    scores = []
    pairs = zip(truth.reshape(-1, height, width), found.reshape(-1, height, width), strict=True)
    for one, other in pairs:
        products = (one, other, one * one, other * other, one * other)
        a, b, aa, bb, ab = (uniform_filter(values, 7) for values in products)
        top = (2 * a * b + 1e-4) * (2 * (ab - a * b) + 9e-4)
        scores.append(
            float((top / ((a * a + b * b + 1e-4) * (aa - a * a + bb - b * b + 9e-4))).mean())
        )
    return float(np.median(scores))


def analytic(model: Any, row: Pictures, shape: tuple[int, ...]) -> Pictures:
    """Return the input of the first linear layer: that of one example, or a mixture of several."""
    name = linear_layer(model, first=True)
    parts = split_update(model, row)
    weights, bias = parts[f"{name}weight"], parts[f"{name}bias"]
    if weights.shape[1] != int(np.prod(shape[1:])):
        raise NotApplicable("analytic inversion needs a linear layer that sees the whole input")
    whole = bias @ weights / max(float(bias @ bias), 1e-300)
    return np.broadcast_to(whole.reshape(shape[1:]), shape).copy()


def _search(
    model: Any,
    change: Callable[[Any, Any], Any],
    row: Pictures,
    shape: tuple[int, ...],
    *,
    method: str,
    steps: int,
    restarts: int,
    roughness: float,
    bounds: tuple[float, float],
    draws: Generator,
) -> Pictures:
    """Return the pictures whose update is nearest to the one seen, of all restarts."""
    torch = import_module("torch")
    batch = shape[0]
    guessed = guess_labels(model, row[None], batch)[0]
    labels = torch.from_numpy(np.repeat(np.arange(len(guessed)), guessed))
    kind = next(model.parameters()).dtype
    seen = torch.as_tensor(row, dtype=kind)
    best: tuple[float, Any] = (np.inf, np.full(shape, sum(bounds) / 2))
    for _ in range(restarts):
        x = torch.as_tensor(draws.uniform(*bounds, shape), dtype=kind).requires_grad_(True)

        def distance(x: Any = x) -> Any:
            made = change(x, labels)
            if method == "match":
                return ((made - seen) ** 2).sum()
            alike = torch.dot(made, seen) / (made.norm() * seen.norm()).clamp_min(1e-20)
            return 1.0 - alike + roughness * _roughness(x)

        if method == "match":
            _descend(torch, x, distance, steps)
        else:
            _climb_signs(torch, x, distance, steps, bounds)
        reached = float(distance().detach())
        if reached < best[0]:
            best = reached, x.detach().double().numpy().copy()
    return np.asarray(best[1])


def _descend(torch: Any, x: Any, distance: Callable[[], Any], steps: int) -> None:
    search = torch.optim.LBFGS([x], lr=1.0, max_iter=20, tolerance_grad=1e-14,
                               tolerance_change=1e-16, history_size=100)  # fmt: skip

    def closure() -> Any:
        search.zero_grad()
        value = distance()
        (x.grad,) = torch.autograd.grad(value, [x])
        return value

    for _ in range(max(1, steps // 20)):
        search.step(closure)


def _climb_signs(
    torch: Any, x: Any, distance: Callable[[], Any], steps: int, bounds: tuple[float, float]
) -> None:
    search = torch.optim.Adam([x], lr=0.1)
    falls = [steps * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(search, milestones=falls, gamma=0.1)
    for _ in range(steps):
        search.zero_grad()
        (slope,) = torch.autograd.grad(distance(), [x])
        x.grad = slope.sign()
        search.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(*bounds)


def _roughness(x: Any) -> Any:
    if x.ndim < 3:
        return 0.0
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
