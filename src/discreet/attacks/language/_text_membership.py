"""Membership of texts: whether a language model was trained on a text, or on a person's texts.

Every score is higher for members. ``loss`` is the mean log-probability of a token; ``zlib`` is the
total one for each bit that the text has when it is compressed (Carlini and others 2021); ``min_k``
is the mean over the least likely tokens of a text (Shi and others 2024), and ``min_k_plus`` that of
log-probabilities in standard deviations from their mean under the model (Zhang and others 2024);
``reference`` is by how much the text is likelier than under a model that surely did not see it.

Non-members must come from the same draw: with texts of another year or another style the curve says
how well years or styles are told apart. A text that is on both sides is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from discreet import _validate
from discreet.attacks._contract import attack
from discreet.attacks._membership import MembershipResult
from discreet.attacks.language._extraction import check_owners, refuse_shared
from discreet.attacks.language._model import LanguageModel, TextScores
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCORES = ("loss", "zlib", "min_k", "min_k_plus", "reference")
_SMALLEST_SPREAD = 1e-6
_DIGITS = 9


@attack(family="memorisation", access="probabilities")
def text_membership(
    language_model: LanguageModel,
    members: Sequence[str],
    nonmembers: Sequence[str],
    *,
    score: str = "loss",
    reference: LanguageModel | None = None,
    least_likely: float = 0.2,
    member_owners: Sequence[object] | None = None,
    nonmember_owners: Sequence[object] | None = None,
) -> MembershipResult:
    """Call a text a member if the model finds it likely.

    Parameters
    ----------
    language_model
        The model; see :func:`as_language_model`.
    members, nonmembers
        Texts that were used, and texts of the same kind that were not.
    score
        ``"loss"``, ``"zlib"``, ``"min_k"``, ``"min_k_plus"`` or ``"reference"``.
    reference
        A model that saw none of the texts, for ``"reference"``.
    least_likely
        The share of tokens that ``min_k`` and ``min_k_plus`` look at.
    member_owners, nonmember_owners
        Whose each text is. Then one score is given for each person: the mean of those of their
        texts.

    Returns
    -------
    MembershipResult
        Scores and the curve, no decisions. ``result.roc.exceeds(loss)`` holds it against a
        guarantee, with a false-alarm rate of one in a million. It is internal.

    Raises
    ------
    InvalidValue
        If a text is on both sides or has no token that is predicted, or an argument is missing.
    """
    _validate.one_of("score", score, SCORES)
    if (reference is None) != (score != "reference"):
        expected = 'a model if and only if the score is "reference"'
        raise InvalidValue("reference", reference and "a model", expected)
    share = _validate.real("least_likely", least_likely, above=0, at_most=1)
    if (member_owners is None) != (nonmember_owners is None):
        raise InvalidValue("nonmember_owners", nonmember_owners, "owners of both kinds or of none")
    refuse_shared(members, nonmembers, member_owners, nonmember_owners)
    groups = (
        ("members", members, "member_owners", member_owners),
        ("nonmembers", nonmembers, "nonmember_owners", nonmember_owners),
    )
    found = []
    for argument, texts, owners_argument, given in groups:
        if not len(texts):
            raise InvalidValue(argument, "no text", "at least one")
        scores = _score(language_model, argument, texts, score, share)
        if reference is not None:
            scores = scores - _score(reference, argument, texts, "loss", share)
        if given is not None:
            scores = _by_person(check_owners(owners_argument, given, len(texts)), scores)
        found.append(scores)
    scores = np.concatenate(found)
    inside = np.arange(len(scores)) < len(found[0])
    nothing, places = np.zeros(len(scores), dtype=np.int64), np.arange(len(scores))
    about = {"score": score, "unit": "text" if member_owners is None else "person"}
    return MembershipResult(
        f"text_membership ({score})", scores, inside, nothing, places, metadata=about
    )


def _score(
    model: LanguageModel, argument: str, texts: Sequence[str], score: str, share: float
) -> NDArray[np.float64]:
    said = model.score([model.read(argument, text) for text in texts])
    if any(not len(one.log_probabilities) for one in said):
        raise InvalidValue(argument, "a text without a predicted token", "texts of two tokens")
    found = [_one(text, one, score, share) for text, one in zip(texts, said, strict=True)]
    # The rounding of a mean depends on the length of the text, which must not rank equal scores.
    return np.round(found, _DIGITS)


def _one(text: str, said: TextScores, score: str, share: float) -> float:
    logs = said.log_probabilities
    if score == "zlib":
        return float(logs.sum()) / (8 * len(zlib.compress(text.encode())))
    if score in ("loss", "reference"):
        return float(logs.mean())
    if score == "min_k_plus":
        logs = (logs - said.means) / np.maximum(said.deviations, _SMALLEST_SPREAD)
    least = max(1, round(share * len(logs)))
    return float(np.partition(logs, least - 1)[:least].mean())


def _by_person(owners: Sequence[str], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    people: dict[str, list[float]] = {}
    for owner, score in zip(owners, scores.tolist(), strict=True):
        people.setdefault(owner, []).append(score)
    return np.array([np.mean(one) for one in people.values()])
