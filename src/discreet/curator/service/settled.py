"""What an analyst learns of stored answers: nothing new while a question may still be running.

An answer is stored when its computation ends, and how long that took may depend on the records.
Whoever could ask at any moment whether the answer is there would measure it. So a quote tells of an
answer when a declared time has passed since its charge, a moment that is known beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, final

from discreet.curator.answers import Answer, AnswerStore

__all__ = ["REFERENCE", "SettledAnswers", "as_seen_by"]

REFERENCE = "discreet.curator.reference"


@final
class SettledAnswers:
    """A store of answers that tells who received which only ``delay`` seconds after the charge.

    Answers are found, kept and given again at once: only ``received``, which a quote asks for, is
    held back. If every computation ends within the delay, what quotes say does not depend on it.
    """

    def __init__(
        self, inner: AnswerStore, *, delay: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._inner = inner
        self._delay = delay
        self.clock = clock

    def received(self, dataset: str, name: str, *, analyst: str) -> bool:
        """Whether this analyst was given the answer, if its charge is old enough."""
        if not self._inner.received(dataset, name, analyst=analyst):
            return False
        answer = self._inner.find(dataset, name)
        if answer is None:
            return False
        # An answer is dated by its charge, in whole seconds; one more covers what was cut off.
        charged = datetime.fromisoformat(answer.at).timestamp() + 1
        return self.clock() >= charged + self._delay

    def identity(self) -> str:
        return self._inner.identity()

    def find(self, dataset: str, name: str) -> Answer | None:
        return self._inner.find(dataset, name)

    def keep(
        self, dataset: str, name: str, answer: Answer, *, analyst: str, key: str | None
    ) -> Answer:
        return self._inner.keep(dataset, name, answer, analyst=analyst, key=key)

    def note(self, dataset: str, name: str, *, analyst: str, key: str | None) -> None:
        self._inner.note(dataset, name, analyst=analyst, key=key)

    def check_key(self, dataset: str, key: str, name: str) -> None:
        self._inner.check_key(dataset, key, name)

    def last_receipts(self) -> list[Mapping[str, Any]]:
        return self._inner.last_receipts()

    def close(self) -> None:
        self._inner.close()


def as_seen_by(analyst: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as JSON for one analyst: whoever did not pay for it gets no names of who did.

    The receipt of somebody else's charge says who that was, for which project, under which key and
    what they have spent. It becomes a reference: the number and the hash of the entry.

    >>> entry = {"dataset": "people", "seq": 4, "content": {"analyst": "ann", "key": "k"}}
    >>> answer = {"value": 7, "receipt": {"hash": "ab", "entry": entry}}
    >>> as_seen_by("ann", answer) == answer
    True
    >>> as_seen_by("bob", answer)["receipt"]["entry"]
    {'dataset': 'people', 'seq': 4}
    """
    receipt = answer["receipt"]
    entry = receipt["entry"]
    if entry["content"].get("analyst") == analyst:
        return dict(answer)
    reference = {
        "schema": REFERENCE,
        "version": 1,
        "hash": receipt["hash"],
        "entry": {"dataset": entry["dataset"], "seq": entry["seq"]},
    }
    return {**answer, "receipt": reference}
