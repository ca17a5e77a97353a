"""A person's own budget: what she has sent, what she may still send, and answers she repeats."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, Self, final

from discreet import _validate
from discreet._files import lock_file, write_file
from discreet._json import canonical, read_json
from discreet.errors import BudgetExceeded, DataCorrupt, InvalidValue, MechanismHalted
from discreet.local._plans import LocalPlan
from discreet.local._rappor import Rappor
from discreet.privacy import read_fraction
from discreet.randomness import Source, choose_source

_KIND = "discreet.person"


@final
class PersonLedger:
    """The budget of one person over all collectors, which lives on her device.

    Every report is paid for, and the payment is on the disk, before anything is drawn. A crash may
    cost her a report that was never sent; it never gives her one for nothing.

    With ``repeat`` the first report about a value is remembered and sent again for nothing, so that
    averaging many reports shows no more than one; another value is then refused, since the change
    itself would be seen. A :class:`Rappor` is paid once: the ledger remembers her noisy bits.

    :param epsilon: what all her reports may cost together, read exactly
    :param file: where the ledger is written; several processes may share it
    :raises InvalidValue: if epsilon is not above 0, or the file exists

    Examples
    --------
    >>> from discreet.local import FrequencyOracle
    >>> person = PersonLedger(3)
    >>> plan = FrequencyOracle(["tea", "coffee"], epsilon=2)
    >>> first = person.report(plan, "tea", repeat=True)
    >>> first == person.report(plan, "tea", repeat=True), person.spent, person.left
    (True, Fraction(2, 1), Fraction(1, 1))
    """

    def __init__(self, epsilon: object, *, file: str | Path | None = None) -> None:
        self.epsilon = _validate.fraction("epsilon", epsilon, above=0)
        self.spent = Fraction(0)
        self.sent: Counter[str] = Counter()
        self._answers: dict[str, Any] = {}
        self._guard = threading.Lock()
        self._file = None if file is None else Path(file)
        if self._file is not None and self._file.exists():
            raise InvalidValue("file", str(file), "a new file; PersonLedger.open reads an old one")
        self._save()

    @property
    def left(self) -> Fraction:
        """What she may still spend."""
        return self.epsilon - self.spent

    def report(
        self, plan: object, value: Any, *, repeat: bool = False, source: Source | None = None
    ) -> bytes:
        """Pay for a report of this value and return it.

        :param plan: what is collected, a :class:`LocalPlan`
        :param value: her value
        :param repeat: whether the same report is sent again for the same value, at no cost
        :param source: where the bits come from; the operating system by default
        :raises BudgetExceeded: if it would cost more than she has left; nothing was drawn
        :raises MechanismHalted: if another value was reported before and changes are not paid for
        """
        if not isinstance(plan, LocalPlan):
            raise InvalidValue("plan", plan, "a plan of discreet.local")
        bits, name = choose_source(source), plan._format.plan_id.hex()
        with self._lock():
            answer: Any
            known = self._answers.get(name) if repeat or isinstance(plan, Rappor) else None
            if known is None:
                self._pay(plan)
            else:
                self.sent[name] += 1
            if isinstance(plan, Rappor):
                client = plan.client(memory=known, source=bits)
                report, answer = client.randomize(value), client.memory
            elif known is None:
                report = plan._report(value, bits)
                answer = [plan._identify(value), report.hex()] if repeat else None
            elif known[0] != plan._identify(value):
                raise MechanismHalted(
                    "another value was reported under this plan: go on reporting the old one"
                )
            else:
                report, answer = bytes.fromhex(known[1]), known
            if answer is not None:
                self._answers[name] = answer
                self._save()
        return report

    def _pay(self, plan: LocalPlan) -> None:
        cost, _ = plan.loss.claim() or (None, None)
        if cost is None or cost > self.left:
            raise BudgetExceeded(
                f"a report costs epsilon {cost} and {self.left} of {self.epsilon} is left"
            )
        self.spent += cost
        self.sent[plan._format.plan_id.hex()] += 1
        self._save()

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON; it holds her values and stays on her device."""
        numbers = {"epsilon": str(self.epsilon), "spent": str(self.spent)}
        lists = {"sent": dict(self.sent), "answers": dict(self._answers)}
        return {"kind": _KIND, "version": 1, **numbers, **lists}

    def _save(self) -> None:
        if self._file is not None:
            write_file(self._file, canonical(self.to_json()), private=True)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Shut out other threads and processes, and read what they have written."""
        with self._guard:
            if self._file is None:
                yield
                return
            with lock_file(self._file):
                self._load(self._file)
                yield

    def _load(self, file: Path) -> None:
        document = read_json(file.read_bytes(), "the ledger of a person")
        try:
            if (document["kind"], document["version"]) != (_KIND, 1):
                raise DataCorrupt(f"{file} is no ledger of a person in version 1")
            self.epsilon = read_fraction(document["epsilon"], "epsilon")
            self.spent = read_fraction(document["spent"], "spent")
            self.sent = Counter({str(k): int(v) for k, v in document["sent"].items()})
            self._answers = {str(name): answer for name, answer in document["answers"].items()}
            if self.epsilon <= 0 or self.spent < 0:
                raise ValueError("a budget is positive")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataCorrupt(f"{file} is a damaged ledger of a person") from error

    @classmethod
    def open(cls, file: str | Path) -> Self:
        """Return the ledger that was written to a file, which goes on writing there.

        :param file: where the ledger is
        :raises DataCorrupt: if the file is damaged
        """
        ledger = cls(1)
        ledger._load(Path(file))
        ledger._file = Path(file)
        return ledger
