"""``discreet ledger migrate``, ``restore`` and ``repair``: old files, backups, failed disks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, shown
from discreet.cli.tables import print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.privacy import Loss, Relation

__all__ = ["migrate", "repair", "restore"]


def migrate(
    place: Annotated[str, typer.Argument(metavar="FILE", help="A ledger in a single file.")],
    *,
    as_json: Json = False,
) -> None:
    r"""Make a directory of a ledger in a single file, as version 0.1 kept it.

    The ledger is verified first, and every entry stays as it is. Close it everywhere before.
    The old file is kept beside it as FILE.before-4; older programs refuse it. A migration that
    was cut short can be repeated.

    \b
    Example:
      discreet ledger migrate study.ledger
    """
    from discreet.ledger import Ledger

    kept = str(Ledger.migrate(place))
    if as_json:
        print_json({"ledger": place, "old": kept})
    else:
        print_lines([f"{shown(place)}: migrated; the old file is {shown(kept)}"])


def restore(
    place: Annotated[str, typer.Argument(metavar="LEDGER", help="A backup, or a URL.")],
    *,
    receipts: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="A directory with all receipts since the backup."),
    ] = None,
    spent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATASET=EPSILON[,DELTA]",
            help="What was spent of a dataset since the backup, at most; repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Let a backup be charged, after telling what was spent since it was made.

    A backup has forgotten every charge that was made after it. Receipts of these charges are
    spent again; a loss is spent from every budget of its dataset. A dataset of which nothing is
    told has its budgets closed. An entry on every chain says what was done.

    \b
    Examples:
      discreet ledger restore study.ledger --receipts kept-receipts
      discreet ledger restore study.ledger --spent census=0.3 --spent survey=1/2,1e-6
    """
    from discreet.cli.ledger_text import budgets_as_json
    from discreet.ledger import Ledger, read_signed_document

    found: list[Mapping[str, Any]] = []
    for path in sorted(Path(receipts).glob("*.json")) if receipts is not None else ():
        try:
            found.append(read_signed_document(path.read_text(encoding="utf-8"))[0])
        except (OSError, ValueError) as error:
            raise InvalidValue("receipts", str(path), f"a receipt in JSON ({error})") from None
    if receipts is not None and not found:
        raise InvalidValue("receipts", receipts, "a directory with receipts (*.json)")
    with Ledger.open(place, read_only=True) as book:
        relations = {name: book.show(name).relation for name in book.datasets()}
    losses = dict(_declared_loss(text, relations) for text in spent or ())
    with Ledger.restore(place, receipts=found, spent=losses) as book:
        views = [book.show(name) for name in book.datasets()]
    if as_json:
        print_json({"ledger": place, "datasets": [budgets_as_json(view) for view in views]})
        return
    closed = {view.name: all(budget.closed for budget in view.budgets) for view in views}
    print_lines(
        f"{name}: {'closed, it refuses every further charge' if shut else 'restored'}"
        for name, shut in closed.items()
    )


def _declared_loss(text: str, relations: Mapping[str, Relation]) -> tuple[str, Loss]:
    """Read ``DATASET=EPSILON`` or ``DATASET=EPSILON,DELTA``."""
    from discreet.ledger import check_amount
    from discreet.privacy import ApproxDP, PureDP

    name, _, amounts = text.rpartition("=")
    epsilon, _, delta = amounts.partition(",")
    if name not in relations:
        raise InvalidValue("spent", text, "DATASET=EPSILON[,DELTA], with a dataset of the ledger")
    for value in (epsilon, delta or "0"):
        check_amount("spent", value)
    if delta:
        return name, ApproxDP(epsilon, delta, relation=relations[name])
    return name, PureDP(epsilon, relation=relations[name])


def repair(
    place: Annotated[str, typer.Argument(metavar="LEDGER", help="The directory.")],
    *,
    as_json: Json = False,
) -> None:
    r"""Copy a ledger into a new file, after the disk failed to confirm what was written.

    Until then every process refuses to charge: what was written later would rest on what may
    be lost. Run discreet ledger verify afterwards.

    \b
    Example:
      discreet ledger repair study.ledger
    """
    from discreet.ledger import Ledger

    done = Ledger.repair(place)
    if as_json:
        print_json({"ledger": place, "repaired": done})
    else:
        words = (
            "copied into a new file; run discreet ledger verify" if done else "nothing to repair"
        )
        print_lines([f"{shown(place)}: {words}"])
