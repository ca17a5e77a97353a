"""Categories of a column, learned privately: a histogram that shows stable counts only.

Which categories there are is not public, so noise on every possible text is out of the question.
Instead each text that occurs gets discrete Laplace noise of scale 1 / epsilon on its count, and is
released if the noisy count reaches a threshold (Korolova, Kenthapadi, Mishra and Ntoulas 2009;
Bun, Nissim and Stemmer 2016); the test is the one of M_stab (S16).

**Guarantee.** (epsilon, delta')-DP under add_remove, delta' = P(1 + noise >= threshold) as
:func:`discreet.mechanisms.stability_test` certifies it. Proof: one record changes one count by
one, and the texts are treated independently of one another. A text that occurs in both data sets
has a noisy count of sensitivity 1: epsilon-DP, and what follows is post-processing. A text
with count 1 against 0 is released with probability delta' in the one and never in the other, and
1 <= e^epsilon (1 - delta') + delta'. Under replace two texts change, and the loss is that of
two such releases.

Released are texts in UTF-8 of at most 100 bytes; whether a text is one depends on it alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, final

import numpy as np

from discreet.mechanisms import Release, StabilityTest, stability_test
from discreet.privacy import ApproxDP, Loss, Relation
from discreet.randomness import Source, discrete_laplace

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["StableCategories", "TextCounts", "category_text"]

LONGEST_CATEGORY = 100
_WHOLE_WITH_POINT = re.compile(rb"([+-]?[0-9]+)\.0*")


def category_text(text: bytes) -> str | None:
    r"""Return the category that a text could be, or None.

    >>> category_text(b"Male"), category_text(b"3.0"), category_text(b"\xff")
    ('Male', '3', None)
    """
    whole = _WHOLE_WITH_POINT.fullmatch(text)
    text = text if whole is None else whole[1]
    if not text or len(text) > LONGEST_CATEGORY:
        return None
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


@final
class TextCounts:
    """How often each possible category occurs, counted over batches; memory for each of them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, codes: NDArray[np.int64], texts: list[bytes]) -> None:
        """Count rows, given which of the distinct texts each one has."""
        times = np.bincount(codes, minlength=len(texts))
        for text, count in zip(texts, times.tolist(), strict=True):
            category = category_text(text)
            if category is not None and count:
                self.counts[category] = self.counts.get(category, 0) + count


@final
@dataclass(frozen=True)
class StableCategories:
    """The plan for one column: (epsilon, delta), split where two texts may change."""

    test: StabilityTest
    relation: Relation

    @classmethod
    def planned(cls, *, epsilon: Fraction, delta: Fraction, relation: Relation) -> StableCategories:
        """Fix noise and threshold before anything is looked at."""
        changed = _changed(relation)
        return cls(stability_test(epsilon=epsilon / changed, delta=delta / changed), relation)

    @property
    def threshold(self) -> int:
        """The least noisy count that is released: 1 + noise >= threshold is the rare event."""
        return self.test.threshold + 1

    @property
    def loss(self) -> Loss:
        """What the histogram costs, whatever comes out."""
        return _changed(self.relation) * ApproxDP(self.test.epsilon, self.test.delta, self.relation)

    def choose(self, counts: Mapping[str, int], source: Source) -> Release[dict[str, int]]:
        """Return the categories that are stable with their noisy counts, largest first."""
        present = {category: count for category, count in counts.items() if count > 0}
        draws = discrete_laplace(1 / self.test.epsilon, len(present), source=source)
        noisy = {
            category: count + int(draw)
            for (category, count), draw in zip(present.items(), draws, strict=True)
        }
        stable = [item for item in noisy.items() if item[1] >= self.threshold]
        stable.sort(key=lambda item: (-item[1], item[0]))
        provenance = {
            "mechanism": "stable_categories",
            "scale": str(1 / self.test.epsilon),
            "threshold": self.threshold,
            "relation": self.relation.value,
            **source.provenance,
        }
        return Release(dict(stable), self.loss, provenance)


def _changed(relation: Relation) -> int:
    """How many counts one neighbour changes."""
    return 1 if relation is Relation.ADD_REMOVE else 2
