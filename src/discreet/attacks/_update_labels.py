"""Labels from an update: the last layer gives them away (Zhao et al. 2020, Yin et al. 2021).

For cross-entropy, the gradient of the last bias is the mean over the batch of the softmax less one
at the true class. With one example only that entry is negative. With more, the number of examples
of a class is the batch times the difference between the mean softmax and the entry; the attacker
takes the softmax of the bias that it sent for the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet._confidence import Proportion, proportion
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._updates import check_answers, check_updates, linear_layer, split_update
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@final
@dataclass(frozen=True)
class UpdateLabelsResult(Result):
    """Of how many updates all labels were found.

    ``chance`` is what the best guess without the update would reach, knowing how frequent the
    labels are. ``labels_found`` is the share of single labels.
    """

    json_kind = "update_labels"
    json_properties = ("leaks",)
    without_interval = MappingProxyType(
        {"labels_found": "labels of one update are found or missed together"}
    )

    found: Proportion
    chance: float
    labels_found: float
    batch: int

    @property
    def finding(self) -> Finding:
        """The share of updates of which all labels were found."""
        measure = "updates of which all labels were found"
        return Finding.of_share("update_labels", measure, self.found, self.chance)


@attack(family="reconstruction", access="gradients")
def update_labels(
    target: Any, updates: ArrayLike, labels: ArrayLike, *, confidence: float = 0.95
) -> UpdateLabelsResult:
    """Find the labels of the examples behind each update, by the gradient of the last bias.

    Parameters
    ----------
    target : nn.Module
        The weights that the server sent; its last linear layer gives logits.
    updates : array
        One row for each client, see :func:`client_updates`.
    labels : array of int
        Clients x examples. The attack is judged by them and does not see them.
    confidence : float
        The confidence of the interval; it treats updates as independent trials.

    Returns
    -------
    UpdateLabelsResult
        The share of updates of which all labels were found.

    Raises
    ------
    InvalidValue
        If updates or labels do not fit the model.
    NotApplicable
        If the model has no linear layer with a bias.
    """
    rows = check_updates(target, updates)
    truth = check_answers(rows, "labels", labels, least=2)
    guesses = guess_labels(target, rows, truth.shape[1])
    classes = guesses.shape[1]
    if truth.dtype.kind not in "iu" or truth.min() < 0 or truth.max() >= classes:
        raise InvalidValue("labels", truth.dtype, f"whole numbers from 0 to {classes - 1}")
    counts = np.stack([np.bincount(one, minlength=classes) for one in truth])
    common = np.minimum(guesses, counts).sum(axis=1)
    batch = truth.shape[1]
    return UpdateLabelsResult(
        proportion(int((common == batch).sum()), len(rows), confidence=confidence),
        _best_guess(counts.sum(axis=0) / counts.sum(), batch),
        float(common.mean()) / batch,
        batch,
    )


def guess_labels(model: Any, rows: NDArray[np.float64], batch: int) -> NDArray[np.int64]:
    """Return how often the attacker believes that each class occurs: updates x classes."""
    name = linear_layer(model, first=False)
    parameters = dict(model.named_parameters())
    sent = parameters[f"{name}bias"].detach().double().numpy()
    soft = np.exp(sent - sent.max())
    soft /= soft.sum()
    guesses = np.zeros((len(rows), len(sent)), dtype=np.int64)
    for place, row in enumerate(rows):
        slope = split_update(model, row)[f"{name}bias"]
        left = batch * (soft - slope)
        for _ in range(batch):
            best = int(np.argmin(slope)) if batch == 1 else int(np.argmax(left))
            guesses[place, best] += 1
            left[best] -= 1.0
    return guesses


def _best_guess(shares: NDArray[np.float64], batch: int) -> float:
    """Return the chance of the likeliest counts, which one example after another reaches."""
    from scipy.special import gammaln

    counts = np.zeros(len(shares))
    for _ in range(batch):
        counts[int(np.argmax(shares / (counts + 1.0)))] += 1.0
    used = counts > 0
    logs = gammaln(batch + 1.0) - gammaln(counts + 1.0).sum()
    return float(np.exp(logs + (counts[used] * np.log(shares[used])).sum()))
