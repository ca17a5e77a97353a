"""Shadow models in the place of the target: what an attack is worth, without asking the target.

Whose records a shadow model was trained on is known, so attacks and their settings can be tried
on it, with the other shadow models as references. What is chosen so has not seen the target: the
figures of the chosen attack on the target are as honest as if it had been named beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from discreet.attacks._roc import roc_curve
from discreet.attacks._shadow_scores import AlignedScores

if TYPE_CHECKING:
    from numpy.typing import NDArray


# A shadow model as the target, with its references, and which records it was trained on.
Trial = tuple[AlignedScores, "NDArray[np.bool_]"]

TRIED_FPR = 0.01
# Enough for some 8,000 non-members, of which 80 are accused.
_TARGETS, _RECORDS = 8, 2000


def trials(both: AlignedScores, *, fewest: int) -> list[Trial]:
    """Return trials on some of the references, spread evenly over models and records.

    A model's twins are not among its references. Records that fewer than ``fewest`` of these have
    inside, or outside, are left out; there may be no trial at all.
    """
    models, count = both.shadow.shape
    columns = _spread(count, _RECORDS)
    found = []
    for row in _spread(models, _TARGETS):
        members = both.inclusion[row]
        alike = (both.inclusion == members).sum(axis=1)
        rest = np.flatnonzero((alike > 0) & (alike < count))
        inside = both.inclusion[np.ix_(rest, columns)].sum(axis=0)
        here = columns[np.minimum(inside, len(rest) - inside) >= fewest]
        truth = members[here]
        if truth.any() and not truth.all():
            part = np.ix_(rest, here)
            scores = AlignedScores(both.shadow[row, here], both.shadow[part], both.inclusion[part])
            found.append((scores, truth))
    return found


def strength(
    attack: Callable[[AlignedScores], NDArray[np.float64]], tried: Sequence[Trial]
) -> float:
    """Return the share of members that an attack finds in all trials at 1 % of false positives."""
    scores = np.concatenate([attack(both) for both, _ in tried])
    truth = np.concatenate([members for _, members in tried])
    curve = roc_curve(scores[truth], scores[~truth])
    return float(curve.at(max(TRIED_FPR, curve.smallest_fpr)).tpr.share)


def _spread(count: int, most: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))
