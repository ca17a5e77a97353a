"""Choose which canaries take part, by fair independent coins that guesses cannot depend on.

The theorems about one run need that every canary is included by a fair coin of its own, and
that how many guesses are made does not depend on how they turn out. An :class:`Inclusion` is made
with the numbers of guesses, draws the coins itself, and can be judged only as often as was said
when it was made: a second audit of the same coins, chosen after the first, would be a second
chance.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from discreet import _validate
from discreet._files import write_file
from discreet._json import read_json
from discreet.audit._many_runs import check_scores
from discreet.errors import FileUnusable, InvalidValue, NotApplicable, SchemaError
from discreet.randomness import Source, bernoulli, choose_source, permutation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray


_ELSEWHERE = {"coins": "tossed elsewhere: fairness and independence are not checked"}
_SCHEMA = "discreet.audit.coins"


@final
class Inclusion:
    """Fair coins for ``canaries`` canaries, to be judged ``audits`` times.

    ``guesses`` are the numbers of canaries that will be called included and excluded: those
    with the largest and the smallest scores. All others are abstained from. With several
    ``audits``, the false-alarm rate of each call is divided by their number, so that all
    their bounds hold together.

    >>> coins = Inclusion(8, guesses=(2, 2))
    >>> coins.included.shape, coins.included.dtype, coins.audits_left
    ((8,), dtype('bool'), 1)
    """

    __slots__ = ("_audits", "_coins", "_guesses", "_left", "_provenance")

    def __init__(
        self,
        canaries: int,
        *,
        guesses: tuple[int, int],
        audits: int = 1,
        source: Source | None = None,
    ) -> None:
        count = _validate.integer("canaries", canaries, at_least=1)
        self._guesses = check_guesses(guesses, count)
        self._audits = self._left = _validate.integer("audits", audits, at_least=1)
        bits = choose_source(source)
        # On top of bytes an array stays read-only, whatever is done to its flags.
        coins = np.asarray(bernoulli("1/2", count, source=bits), dtype=np.bool_)
        self._coins: NDArray[np.bool_] = np.frombuffer(coins.tobytes(), dtype=np.bool_)
        self._provenance = bits.provenance

    @classmethod
    def from_coins(
        cls, included: ArrayLike, *, guesses: tuple[int, int], audits: int = 1
    ) -> Inclusion:
        """Take the coins of a run elsewhere; that they were fair is then an assumption.

        >>> Inclusion.from_coins([1, 0, 0, 1], guesses=(1, 1)).provenance["coins"]
        'tossed elsewhere: fairness and independence are not checked'

        Parameters
        ----------
        included
            A 0 or 1, or False or True, for each canary.
        guesses, audits
            As they were chosen before the coins were tossed.

        Returns
        -------
        Inclusion
            To be judged ``audits`` times.

        Raises
        ------
        InvalidValue
            If the coins are not zeros and ones.
        """
        coins = np.asarray(included)
        if coins.ndim != 1 or not coins.size or not np.isin(coins, (0, 1)).all():
            shown = f"{coins.dtype} of shape {coins.shape}"
            raise InvalidValue("included", shown, "a 0 or a 1 for each canary")
        count = _validate.integer("audits", audits, at_least=1)
        return cls._of(coins, check_guesses(guesses, coins.size), count, count, _ELSEWHERE)

    @classmethod
    def _of(
        cls,
        coins: NDArray[Any],
        guesses: tuple[int, int],
        audits: int,
        left: int,
        provenance: Mapping[str, str],
    ) -> Inclusion:
        made = cls.__new__(cls)
        made._guesses, made._audits, made._left = guesses, audits, left
        made._coins = np.frombuffer(coins.astype(np.bool_).tobytes(), dtype=np.bool_)
        made._provenance = dict(provenance)
        return made

    @property
    def canaries(self) -> int:
        """The number of canaries."""
        return int(self._coins.size)

    @property
    def guesses(self) -> tuple[int, int]:
        """How many will be called included, and how many excluded."""
        return self._guesses

    @property
    def audits(self) -> int:
        """Among how many audits the false-alarm rate is divided."""
        return self._audits

    @property
    def audits_left(self) -> int:
        """How many audits may still be made."""
        return self._left

    @property
    def included(self) -> NDArray[np.bool_]:
        """Who takes part: for the trainer, never for the attacker who computes the scores."""
        return self._coins

    @property
    def provenance(self) -> dict[str, str]:
        """Where the coins came from."""
        return dict(self._provenance)

    def save(self, path: str | Path) -> Path:
        """Write the coins to a JSON file, with how many audits are left; see :func:`read_coins`.

        Parameters
        ----------
        path
            A file that is written or replaced; only its owner may read it.

        Returns
        -------
        Path
            The file.
        """
        body = {
            "schema": _SCHEMA,
            "version": 1,
            "guesses": list(self._guesses),
            "audits": self._audits,
            "audits_left": self._left,
            "provenance": self._provenance,
            "included": self._coins.astype(int).tolist(),
        }
        return write_file(path, json.dumps(body) + "\n", private=True)

    def split_scores(self, scores: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Use up the only audit: the scores of the included and of the excluded canaries.

        Coins for several audits are refused: a caller who splits the scores to judge them
        elsewhere would not divide the false-alarm rate.
        """
        if self._audits > 1:
            raise NotApplicable(
                f"these coins were made for {self._audits} audits, which share one false-alarm "
                "rate; split_scores() needs coins of a single audit"
            )
        values = self._check(scores)
        if self._coins.all() or not self._coins.any():
            raise NotApplicable("all coins show the same side: there is nothing to compare")
        self._spend()
        return values[self._coins], values[~self._coins]

    def correct(self, scores: ArrayLike) -> int:
        """Use up one audit: how many of the guesses are right.

        Equal scores are ranked by the place of the canary, which the coins do not know; where they
        were tossed elsewhere, places may be in their order, and then equal scores are ranked at
        random.
        """
        values = self._check(scores)
        self._spend()
        places = np.arange(values.size)
        if self._provenance == _ELSEWHERE:
            places = permutation(values.size)
        order = np.lexsort((places, values))
        called_in, called_out = self._guesses
        right = int(self._coins[order[order.size - called_in :]].sum())
        return right + called_out - int(self._coins[order[:called_out]].sum())

    @property
    def most_right(self) -> int:
        """How many guesses can be right: calling more canaries included than are is an error.

        For the judge alone: it tells how many were included.
        """
        inside = int(self._coins.sum())
        called_in, called_out = self._guesses
        return min(called_in, inside) + min(called_out, self.canaries - inside)

    def _check(self, scores: ArrayLike) -> NDArray[np.float64]:
        values = check_scores("scores", scores)
        if values.size != self.canaries:
            raise InvalidValue(
                "scores", f"{values.size} scores", f"one for each of {self.canaries}"
            )
        return values

    def _spend(self) -> None:
        if self._left == 0:
            raise NotApplicable(
                f"these coins were made for {self._audits} audit(s), which are used up; another "
                "one needs a new run with new coins"
            )
        self._left -= 1

    def __reduce__(self) -> NoReturn:
        raise NotApplicable("coins cannot be copied: a copy could be judged again")


def read_coins(path: str | Path) -> Inclusion:
    """Read what :meth:`Inclusion.save` wrote; save it again after an audit of it.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Inclusion
        With as many audits left as when it was saved.

    Raises
    ------
    FileUnusable
        If it cannot be read.
    SchemaError
        If it is another file.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        expected = f"a readable file ({error.strerror or error})"
        raise FileUnusable("coins", str(path), expected) from None
    body = read_json(content, "the file of coins")
    if not isinstance(body, dict) or body.get("schema") != _SCHEMA or body.get("version") != 1:
        raise SchemaError(f"{Path(path).name} is no file of coins ({_SCHEMA}, version 1)")
    try:
        made = Inclusion.from_coins(
            body["included"], guesses=tuple(body["guesses"]), audits=body["audits"]
        )
        left = _validate.integer(
            "audits_left", body["audits_left"], at_least=0, at_most=made.audits
        )
        return made._of(made.included, made.guesses, made.audits, left, body["provenance"])
    except (KeyError, TypeError, ValueError, InvalidValue) as error:
        raise SchemaError(f"{Path(path).name} is damaged: {error}") from None


def check_guesses(guesses: Any, canaries: int) -> tuple[int, int]:
    """Two numbers of guesses that are not both 0 and fit among the canaries."""
    expected = f"two integers >= 0, together between 1 and the {canaries} canaries"
    if not isinstance(guesses, tuple | list) or len(guesses) != 2:
        raise InvalidValue("guesses", guesses, expected)
    first, second = (_validate.integer("guesses", one, at_least=0) for one in guesses)
    if not 1 <= first + second <= canaries:
        raise InvalidValue("guesses", guesses, expected)
    return first, second
