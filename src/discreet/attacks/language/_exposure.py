"""Exposure: how far up a model ranks the secret of a canary (Carlini and others 2019).

The secrets of a space R are ranked by the model's probability behind the text before the secret.
With r the number of secrets that are at least as likely as the canary's own,

    p = r / |R|,    exposure = -log2 p, from 0 to log2 |R| bits.

The secret was drawn uniformly and a model that was not trained on it does not depend on it, so
P(p <= t) <= t for every t: ties count against the attack, else a model that finds all secrets alike
would seem to know each of them. This holds for every canary whatever the model, and for canaries
together, because their secrets were drawn independently. Two tests follow, exact for any number of
canaries: the number of canaries with p <= level is at most binomial, and the sum of -log p at most
Gamma distributed (Fisher 1925).

Three ways to find r. ``exact`` walks down the tree of all secrets, and leaves out branches that are
less likely already than the canary's secret. ``sampled`` draws n secrets; then
p = (1 + number as likely) / (n + 1), which is a p-value as well, as the canary's own secret is one
more draw; it cannot pass log2(n + 1) bits. ``distribution`` fits a skew normal distribution to
the losses of the n secrets and reads the canary's from it: an extrapolation, which is marked as
one, with the p-values of ``sampled``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from scipy import special, stats

from discreet import _validate
from discreet._confidence import Proportion, proportion
from discreet._json import HIDDEN, JsonRecord
from discreet.attacks._contract import Finding, Result, attack
from discreet.attacks._training import seeded_generator
from discreet.attacks.language._canaries import Canaries, Canary
from discreet.attacks.language._model import LanguageModel
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHODS = ("exact", "sampled", "distribution")
# Losses of one text in two batches differ by their rounding; a tie counts against the attack.
_TIE = 1e-5
_MOST_SECRETS = 1_000_000
_AT_ONCE = 4096


@final
@dataclass(frozen=True)
class ExposureOfCopies(JsonRecord):
    """The canaries that were planted equally often, together."""

    copies: int
    canaries: int
    mean_bits: float
    most_bits: float
    first_of_all: int
    likeliest: Proportion
    p_value: float


@final
@dataclass(frozen=True, eq=False, repr=False)
class Exposures(Result):
    """The exposure of canaries; entries run in the order of the canaries.

    ``p_values`` are valid for every model, ``bits`` is the exposure. ``limit_bits`` is the exposure
    of a secret that is likelier than all others that were looked at, and ``space_bits`` that of
    all. Single canaries stay out of JSON.
    """

    json_kind = "canary_exposure"
    json_properties = ("groups", "p_value")
    without_interval: ClassVar[Mapping[str, str]] = {
        "mean_bits": "p_value is exact; the canaries of a group need not have one distribution",
        "most_bits": "the largest of the canaries at hand",
        "p_value": "an exact bound on the probability of chance",
    }

    method: str
    p_values: NDArray[np.float64] = field(metadata=HIDDEN)
    bits: NDArray[np.float64] = field(metadata=HIDDEN)
    copies: NDArray[np.int64] = field(metadata=HIDDEN)
    limit_bits: float
    space_bits: float
    extrapolated: bool
    level: float
    confidence: float

    def __repr__(self) -> str:
        return f"Exposures({self.method!r}, canaries={len(self.bits)})"

    @property
    def planted(self) -> NDArray[np.bool_]:
        """Which canaries have a copy in the training data."""
        return self.copies > 0

    @property
    def p_value(self) -> float:
        """The chance that as many canaries, unseen, have as large a mean exposure or a larger one.

        Of those that were planted. At most this chance, exactly, for any model that has not
        seen them.
        """
        return _fisher(self.p_values[self._require_planted()])

    def share_at(self, level: float, *, copies: int | None = None) -> Proportion:
        """Return the share of canaries among the ``level`` likeliest of their space.

        Parameters
        ----------
        level
            The share of the space; for unseen canaries, the share that is expected at most.
        copies
            Of the canaries with this number of copies; by default of all that were planted.

        Returns
        -------
        Proportion
            With an exact interval.

        Raises
        ------
        NotApplicable
            If there is no such canary.
        """
        chance = _validate.real("level", level, above=0, below=1)
        chosen = self._require_planted() if copies is None else self.copies == copies
        if not chosen.any():
            raise NotApplicable(f"no canary was planted {copies} times")
        found = self.p_values[chosen] <= chance * (1 + 1e-12)
        return proportion(int(found.sum()), int(chosen.sum()), confidence=self.confidence)

    @property
    def groups(self) -> tuple[ExposureOfCopies, ...]:
        """The canaries by their number of copies; 0 are those that were never planted."""
        found = []
        for copies in sorted(set(self.copies.tolist())):
            chosen = self.copies == copies
            bits = self.bits[chosen]
            found.append(
                ExposureOfCopies(
                    copies,
                    int(chosen.sum()),
                    float(bits.mean()),
                    float(bits.max()),
                    int((bits >= self.limit_bits - 1e-9).sum()),
                    self.share_at(self.level, copies=copies),
                    _fisher(self.p_values[chosen]),
                )
            )
        return tuple(found)

    @property
    def finding(self) -> Finding:
        """The share of planted canaries among the ``level`` likeliest of their space."""
        measure = f"canaries among the {100 * self.level:g} % likeliest of their space"
        return Finding.of_share("canary_exposure", measure, self.share_at(self.level), self.level)

    def __str__(self) -> str:
        note = ", extrapolated" if self.extrapolated else ""
        lines = [
            f"  {one.copies} copies: {one.canaries} canaries, {one.mean_bits:.2f} bits on average, "
            f"at most {one.most_bits:.2f} of {self.space_bits:.2f}; first of all "
            f"{one.first_of_all}; by chance with probability {one.p_value:.2g}"
            for one in self.groups
        ]
        first = f"exposure, {self.method}{note}; unseen secrets have 1.44 bits on average"
        return "\n".join([first, *lines])

    def _require_planted(self) -> NDArray[np.bool_]:
        if not self.planted.any():
            raise NotApplicable("no canary was planted: there is nothing to find")
        return self.planted


@attack(family="memorisation", access="probabilities")
def canary_exposure(
    language_model: LanguageModel,
    canaries: Canaries,
    *,
    method: str = "exact",
    references: int = 1000,
    level: float = 0.01,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Exposures:
    """Rank the secret of each canary among all secrets that it could have been.

    Parameters
    ----------
    language_model
        The model; see :func:`as_language_model`.
    canaries
        What was planted, with controls if there are any.
    method
        ``"exact"``, ``"sampled"`` or ``"distribution"``.
    references
        How many secrets the last two draw for each canary.
    level
        The share of the space that the finding is about.
    confidence
        Of its interval. An interval that lies above ``level`` though the model saw no canary has a
        probability of at most half of what is missing to 1.
    seed
        Of the drawn secrets; by default they are fresh.

    Returns
    -------
    Exposures
        One exposure for each canary. It is internal, unless all texts are public.

    Raises
    ------
    InvalidValue
        If the model does not know the tokens of a canary, or a space is too large for ``exact``.
    """
    _validate.one_of("method", method, METHODS)
    model, planted = _check(language_model, canaries)
    share = _validate.real("level", level, above=0, below=1)
    sure = _validate.real("confidence", confidence, above=0, below=1)
    count = _validate.integer("references", references, at_least=10)
    rng = seeded_generator(seed)
    spaces = np.array([math.log2(one.space) for one in planted])
    if method == "exact":
        p_values = np.array([_exact(model, one) for one in planted])
        bits, most = -np.log2(p_values), float(spaces.min())
    else:
        p_values, bits = np.empty(len(planted)), np.empty(len(planted))
        for at, one in enumerate(planted):
            others = one.others(count, lambda below, size: rng.integers(below, size=size).tolist())
            losses = _losses(model, one, [one.secret, *others])
            own, drawn = float(losses[0]), losses[1:]
            p_values[at] = (1 + int((drawn <= own + _tie(own)).sum())) / (count + 1)
            bits[at] = -math.log2(p_values[at])
            if method == "distribution":
                bits[at] = min(_skew_normal_exposure(drawn, own), spaces[at])
        most = math.log2(count + 1) if method == "sampled" else float(spaces.min())
    return Exposures(
        method,
        p_values,
        bits,
        np.array([one.copies for one in planted]),
        most,
        float(spaces.min()),
        method == "distribution",
        share,
        sure,
    )


def _check(model: object, canaries: object) -> tuple[LanguageModel, Canaries]:
    if not isinstance(model, LanguageModel):
        expected = "what as_language_model returns"
        raise InvalidValue("language_model", type(model).__name__, expected)
    if not isinstance(canaries, Canaries):
        raise InvalidValue("canaries", type(canaries).__name__, "what make_canaries returns")
    return model, canaries


def _losses(model: LanguageModel, canary: Canary, secrets: Sequence[str]) -> NDArray[np.float64]:
    """The loss of each secret behind what stands before it."""
    head = len(model.read("canaries", canary.before))
    rows = [model.read("canaries", canary.before + secret) for secret in secrets]
    skipped = max(0, head - (model.start is None))
    return np.array([-one.log_probabilities[skipped:].sum() for one in model.score(rows)])


def _tie(loss: float) -> float:
    return _TIE * (1.0 + abs(loss))


def _exact(model: LanguageModel, canary: Canary) -> float:
    """The share of secrets that are at least as likely as the canary's own.

    By a tree of tokens where each letter of the alphabet is one token behind the text before;
    otherwise by asking for all secrets.
    """
    tokens = _letter_tokens(model, canary)
    if tokens is None:
        return _exact_by_list(model, canary)
    head = model.read("canaries", canary.before)
    places = [canary.alphabet.index(letter) for letter in canary.secret]
    own, path = 0.0, list(head)
    for place in places:
        logs = model.next_log_probabilities(np.array([path], dtype=np.int64))[0]
        own -= float(logs[tokens[place]])
        path.append(tokens[place])
    limit = own + _tie(own)
    rows, losses = np.array([head], dtype=np.int64), np.zeros(1)
    for depth in range(len(places)):
        reached, kept = [], []
        for begin in range(0, len(rows), _AT_ONCE):
            part = rows[begin : begin + _AT_ONCE]
            logs = model.next_log_probabilities(part)[:, tokens]
            sums = losses[begin : begin + _AT_ONCE, None] - logs
            # A branch that is less likely by now stays so.
            parents, letters = np.nonzero(sums <= limit)
            kept.append(sums[parents, letters])
            if depth + 1 < len(places):
                following = np.array(tokens, dtype=np.int64)[letters][:, None]
                reached.append(np.concatenate([part[parents], following], axis=1))
        losses = np.concatenate(kept)
        if depth + 1 < len(places):
            rows = np.concatenate(reached)
    return max(1, len(losses)) / canary.space


def _letter_tokens(model: LanguageModel, canary: Canary) -> list[int] | None:
    """The token of each letter, if a secret is written letter by letter behind the text before."""
    head = model.read("canaries", canary.before)
    found = []
    for letter in canary.alphabet:
        tokens = model.read("canaries", canary.before + letter * len(canary.secret))
        if tokens[: len(head)] != head or tokens[len(head) :] != tokens[-1:] * len(canary.secret):
            return None
        found.append(tokens[-1])
    own = model.read("canaries", canary.before + canary.secret)
    expected = [found[canary.alphabet.index(letter)] for letter in canary.secret]
    return found if own == [*head, *expected] and len(set(found)) == len(found) else None


def _exact_by_list(model: LanguageModel, canary: Canary) -> float:
    if canary.space > _MOST_SECRETS:
        expected = f'a space of at most {_MOST_SECRETS}, or method="sampled"'
        raise InvalidValue("canaries", f"a space of {canary.space}", expected)
    own = float(_losses(model, canary, [canary.secret])[0])
    letters, size, likely = canary.alphabet, len(canary.secret), 0
    for begin in range(0, canary.space, _AT_ONCE):
        numbers = np.arange(begin, min(begin + _AT_ONCE, canary.space))
        digits = np.stack([numbers // len(letters) ** at % len(letters) for at in range(size)], 1)
        secrets = ["".join(letters[one] for one in row) for row in digits.tolist()]
        likely += int((_losses(model, canary, secrets) <= own + _tie(own)).sum())
    return max(1, likely) / canary.space


def _skew_normal_exposure(losses: NDArray[np.float64], own: float) -> float:
    """The bits by a skew normal distribution of losses with their first three moments."""
    mean, spread = float(losses.mean()), float(losses.std())
    if spread <= _tie(mean):
        return 0.0
    # The largest skew of the family is 0.9953.
    skew = float(np.clip(((losses - mean) ** 3).mean() / spread**3, -0.99, 0.99))
    power = abs(skew) ** (2 / 3)
    share = math.sqrt(math.pi / 2 * power / (power + ((4 - math.pi) / 2) ** (2 / 3)))
    share = math.copysign(min(share, 0.9999), skew)
    shape = share / math.sqrt(1 - share**2)
    scale = spread / math.sqrt(1 - 2 * share**2 / math.pi)
    place = mean - scale * share * math.sqrt(2 / math.pi)
    log_tail = float(stats.skewnorm.logcdf(own, shape, place, scale))
    return max(0.0, -log_tail / math.log(2.0))


def _fisher(p_values: NDArray[np.float64]) -> float:
    """The chance that as many uniform p-values have as small a product."""
    return float(special.gammaincc(len(p_values), -np.log(p_values).sum()))
