"""A person's own budget: what she has sent, what she may still send, and answers she repeats."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any, Self, final

from discreet import _validate
from discreet._files import write_file
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

    Every report is paid for before it is drawn. With ``repeat`` the first report about a value is
    remembered and sent again for nothing, so that averaging many reports shows no more than one;
    another value is then refused, since the change itself would be seen.

    Parameters
    ----------
    epsilon : number or str
        What all her reports may cost together, read exactly.
    file : path, optional
        Where the ledger is written before any report is returned.

    Raises
    ------
    InvalidValue
        If epsilon is not above 0.

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
        self._answers: dict[str, tuple[str, str]] = {}
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

        Parameters
        ----------
        plan : LocalPlan
            What is collected; a :class:`Rappor` has a memory of its own and is refused.
        value : object
            Her value.
        repeat : bool
            Whether the same report is sent again for the same value, at no cost.
        source : Source, optional
            Where the bits come from; the operating system by default.

        Returns
        -------
        bytes
            The report.

        Raises
        ------
        BudgetExceeded
            If it would cost more than she has left; nothing was drawn.
        MechanismHalted
            If another value was reported with ``repeat`` before.
        """
        if not isinstance(plan, LocalPlan) or isinstance(plan, Rappor):
            raise InvalidValue("plan", plan, "a plan whose reports are single")
        name = plan._format.plan_id.hex()
        own = plan._read([value]).tobytes().hex()
        known = self._answers.get(name) if repeat else None
        if known is not None:
            if known[0] != own:
                raise MechanismHalted(
                    "another value was reported under this plan: go on reporting the old one"
                )
            return bytes.fromhex(known[1])
        cost, _ = plan.loss.claim() or (None, None)
        if cost is None or cost > self.left:
            raise BudgetExceeded(
                f"a report costs epsilon {cost} and {self.left} of {self.epsilon} is left"
            )
        self.spent += cost
        self.sent[name] += 1
        self._save()
        report = plan.randomize_each([value], source=choose_source(source)).tobytes()
        if repeat:
            self._answers[name] = (own, report.hex())
            self._save()
        return report

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as JSON; it holds her values and stays on her device."""
        return {
            "kind": _KIND,
            "version": 1,
            "epsilon": str(self.epsilon),
            "spent": str(self.spent),
            "sent": dict(self.sent),
            "answers": {name: list(answer) for name, answer in self._answers.items()},
        }

    def _save(self) -> None:
        if self._file is not None:
            write_file(self._file, canonical(self.to_json()), private=True)

    @classmethod
    def open(cls, file: str | Path) -> Self:
        """Return the ledger that was written to a file.

        Parameters
        ----------
        file : path
            The file.

        Returns
        -------
        PersonLedger
            The same ledger, which goes on writing there.

        Raises
        ------
        DataCorrupt
            If the file is damaged.
        """
        document = read_json(Path(file).read_bytes(), "the ledger of a person")
        try:
            if (document["kind"], document["version"]) != (_KIND, 1):
                raise DataCorrupt(f"{file} is no ledger of a person in version 1")
            ledger = cls(read_fraction(document["epsilon"], "epsilon"))
            ledger.spent = read_fraction(document["spent"], "spent")
            ledger.sent = Counter({str(k): int(v) for k, v in document["sent"].items()})
            answers = document["answers"].items()
            ledger._answers = {str(k): (str(own), str(report)) for k, (own, report) in answers}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataCorrupt(f"{file} is a damaged ledger of a person") from error
        ledger._file = Path(file)
        return ledger
