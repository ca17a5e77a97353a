"""Poisoning of a local collection: people who send made-up reports (Cao, Jia and Gong 2021).

A report of a fake that supports the target adds (1 - q) / (p - q) / n to its estimated share, where
an honest one adds about its own value. Epsilon does not limit that: the smaller it is,
the more a fake moves. What limits it is how many fakes a collector lets in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.local import FrequencyEstimate, FrequencyOracle

_TRIES = 1 << 12


@final
@dataclass(frozen=True)
class PoisoningResult:
    """How far fakes moved the share of the target, and how far they can at most.

    ``clean`` and ``poisoned`` are the estimates without and with the fakes, on the same honest
    reports. ``bound`` holds for every attack of as many fakes on this target.
    """

    target: Any
    fakes: int
    clean: FrequencyEstimate
    poisoned: FrequencyEstimate
    gain: float
    bound: float


def poison_shares(
    oracle: FrequencyOracle, values: Any, *, target: Any, fakes: int, insecure_seed: int
) -> PoisoningResult:
    """Let fakes promote one value in a simulated collection, and measure what they gain.

    Parameters
    ----------
    oracle
        The plan of the collection.
    values
        One value of each honest person.
    target
        The value to promote, one of the domain.
    fakes
        How many made-up reports come on top.
    insecure_seed
        The seed of the simulation, which protects nobody.

    Returns
    -------
    PoisoningResult
        The gain, and the most that any such attack can gain.

    Raises
    ------
    InvalidValue
        If the target is not in the domain, or there are no fakes.
    """
    count = _validate.integer("fakes", fakes, at_least=1)
    labels = list(oracle.domain.labels)
    if target not in labels:
        raise InvalidValue("target", target, "a value of the domain")
    place = labels.index(target)
    honest = oracle.randomize_each(values, insecure_seed=insecure_seed)
    fake = _find_supporting(oracle, target, place, insecure_seed + 1)
    server = oracle.server()
    server.aggregate(honest)
    clean = server.estimate()
    server.aggregate(np.tile(fake, (count, 1)))
    poisoned = server.estimate()
    p, q = oracle.chances()
    share = float(clean.shares[place])
    # The fakes are a part f of all reports and each of them supports the target at most once.
    part = count / (count + clean.people)
    bound = part * ((1.0 - q) / (p - q) - share)
    gain = float(poisoned.shares[place]) - share
    return PoisoningResult(target, count, clean, poisoned, gain, bound)


def _find_supporting(
    oracle: FrequencyOracle, target: Any, place: int, seed: int
) -> NDArray[np.uint8]:
    """Return a report that supports the target: every second honest one of its own does."""
    tried = oracle.randomize_each([target] * _TRIES, insecure_seed=seed)
    for row in tried:
        server = oracle.server()
        server.aggregate(row[None, :])
        if server.estimate().shares[place] > 0.0:
            return np.asarray(row)
    raise AssertionError(f"none of {_TRIES} reports supports its own value")
