"""Which source a mechanism draws from: the system's, one given, or an insecure seed."""

from __future__ import annotations

from discreet.errors import InvalidValue
from discreet.randomness import Source, SystemSource
from discreet.randomness import source as make_source

__all__ = ["choose_source"]


def choose_source(source: Source | None, insecure_seed: int | None) -> Source:
    """Return the source to draw from; at most one of the two may be given.

    >>> choose_source(None, None).provenance
    {'randomness': 'operating system'}
    >>> choose_source(None, 7).provenance
    {'randomness': 'INSECURE seed 7'}
    """
    if source is None:
        return SystemSource() if insecure_seed is None else make_source(insecure_seed=insecure_seed)
    if insecure_seed is not None:
        raise InvalidValue("insecure_seed", insecure_seed, "None where a source is given")
    if not isinstance(source, Source):
        raise InvalidValue("source", source, "a Source, such as discreet.randomness.source()")
    return source
