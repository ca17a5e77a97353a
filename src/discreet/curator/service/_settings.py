"""How a service is run: every limit in one frozen object, checked before anything starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import final

from discreet import _validate
from discreet.errors import InvalidValue


@final
@dataclass(frozen=True)
class Settings:
    """``ledger`` is the file or the URL of the ledger; everything else has a default.

    ``quantum`` is the unit of time in seconds: an answer leaves one quantum after its question
    arrived, or 2, 4, 8 and so on. It should be longer than a usual query takes. ``quote_delay`` is
    how many seconds after its charge a quote tells that a question was answered; it should be
    longer than any query takes. ``rate`` is how many requests a second one token may make in the
    long run and ``burst`` how many at once. ``body_limit`` is the largest request in bytes,
    ``body_seconds`` how long it may take to arrive. ``threads`` is how many requests are worked on
    at the same time; ``waiting`` is how many more may wait before others have to come back.
    ``engine_threads`` is how many threads DuckDB gives to one query: 1 answers most small queries
    a second, more answer large ones sooner. ``data`` is the directory from which owners may
    register files over the network; without it they register at the terminal. ``keep`` is a
    directory for bounded tables, so that a restart and further workers read no records again.
    """

    ledger: str
    data: str | None = None
    quantum: float = 0.05
    quote_delay: float = 300.0
    rate: float = 20.0
    burst: int = 40
    refusal_rate: float = 1.0
    refusal_burst: int = 20
    body_limit: int = 65_536
    body_seconds: float = 10.0
    threads: int = 8
    waiting: int = 256
    workers: int = 1
    engine_threads: int = 2
    keep: str | None = None

    def __post_init__(self) -> None:
        if not self.ledger:
            raise InvalidValue("ledger", self.ledger, "the file or the URL of a ledger")
        if self.data is not None and not Path(self.data).is_dir():
            raise InvalidValue("data", self.data, "a directory")
        _validate.real("quantum", self.quantum, at_least=0.001, at_most=60)
        _validate.real("quote_delay", self.quote_delay, at_least=1, at_most=86_400)
        _validate.real("rate", self.rate, above=0, at_most=1e6)
        _validate.integer("burst", self.burst, at_least=1, at_most=10**6)
        _validate.real("refusal_rate", self.refusal_rate, above=0, at_most=1e6)
        _validate.integer("refusal_burst", self.refusal_burst, at_least=1, at_most=10**6)
        _validate.integer("body_limit", self.body_limit, at_least=1024, at_most=2**24)
        _validate.real("body_seconds", self.body_seconds, above=0, at_most=600)
        _validate.integer("threads", self.threads, at_least=1, at_most=256)
        _validate.integer("waiting", self.waiting, at_least=0, at_most=10**5)
        _validate.integer("workers", self.workers, at_least=1, at_most=64)
        _validate.integer("engine_threads", self.engine_threads, at_least=1, at_most=256)

    def to_json(self) -> str:
        """The settings as text, for the processes of several workers."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read what :meth:`to_json` wrote.

        >>> settings = Settings("study.ledger", quantum=0.1)
        >>> Settings.from_json(settings.to_json()) == settings
        True
        """
        content = json.loads(text)
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(content) - known)
        if unknown:
            raise InvalidValue("settings", unknown[0], "one of " + ", ".join(sorted(known)))
        return cls(**content)
