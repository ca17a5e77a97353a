"""Words from an update: the gradient of an embedding has a row for each token of the text.

A table of embeddings has a gradient only where a token occurs, so the rows that are not zero are
the words of the client (Melis et al. 2019). Noise hides rows; then the attacker takes those that
are longer than noise would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._updates import check_answers, check_updates, split_update
from discreet.errors import NotApplicable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@final
@dataclass(frozen=True)
class UpdateTokensResult(Result):
    """How many updates gave a word away.

    ``one`` counts updates whose surest token is in the text; ``chance`` is what the token that most
    texts have would reach. ``whole`` counts updates of which exactly the tokens were found.
    """

    json_kind = "update_tokens"
    json_properties = ("leaks",)

    one: Proportion
    chance: float
    whole: Proportion

    @property
    def finding(self) -> Finding:
        """The share of updates whose surest token is right."""
        measure = "updates whose surest token is in the text"
        return Finding.of_share("update_tokens", measure, self.one, self.chance)


@attack(family="reconstruction", access="gradients")
def update_tokens(
    target: Any,
    updates: ArrayLike,
    records: ArrayLike,
    *,
    padding: int | None = None,
    stddev: float = 0.0,
    confidence: float = 0.95,
) -> UpdateTokensResult:
    """Find the tokens of the texts behind each update, by the rows of an embedding's gradient.

    Parameters
    ----------
    target : nn.Module
        The weights that the server sent; its first embedding is read.
    updates : array
        One row for each client, see :func:`client_updates`.
    records : array of int
        Clients x examples x tokens. The attack is judged by them and does not see them.
    padding : int, optional
        The token that stands for none.
    stddev : float
        Of the noise on each number, as published.
    confidence : float
        The confidence of the intervals; they treat updates as independent.

    Returns
    -------
    UpdateTokensResult
        How many updates gave one token away, and how many all of them.

    Raises
    ------
    InvalidValue
        If an argument does not fit the model.
    NotApplicable
        If the model has no embedding.
    """
    from scipy.stats import chi

    torch = import_module("torch")
    rows = check_updates(target, updates)
    truth = check_answers(rows, "records", records, least=2)
    spread = _validate.real("stddev", stddev, at_least=0)
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    names = [name for name, one in target.named_modules() if isinstance(one, kinds)]
    if not names:
        raise NotApplicable("the model has no embedding")
    key = f"{names[0]}.weight" if names[0] else "weight"
    texts = [set(np.unique(one).tolist()) - {padding} for one in truth]
    first, whole = 0, 0
    size = 0
    for row, text in zip(rows, texts, strict=True):
        table = split_update(target, row)[key]
        size = len(table)
        lengths = np.linalg.norm(table, axis=1)
        if padding is not None:
            lengths[padding] = 0.0
        # One row of noise in a thousand tables is as long as this.
        limit = spread * float(chi.isf(1e-3 / len(table), table.shape[1]))
        found = set(np.flatnonzero(lengths > limit).tolist())
        first += lengths.max() > 0 and int(lengths.argmax()) in text
        whole += found == text
    common = [sum(token in text for text in texts) for token in range(size)]
    return UpdateTokensResult(
        proportion(first, len(rows), confidence=confidence),
        max(common) / len(rows),
        proportion(whole, len(rows), confidence=confidence),
    )
