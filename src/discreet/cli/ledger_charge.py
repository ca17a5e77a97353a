"""``discreet ledger charge``: spend a loss, then run the release if it fits."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.ledger_text import exact_at_least
from discreet.cli.mechanism import (
    LaplaceScale,
    LossFile,
    Mechanism,
    NoiseMultiplier,
    Population,
    Rate,
    Sample,
    Sensitivity,
    Steps,
)
from discreet.cli.options import Json, RelationName, shown
from discreet.cli.tables import print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.ledger import Charge, Ledger
    from discreet.privacy import Loss

__all__ = ["charge"]

Who = Annotated[str | None, typer.Option(metavar="NAME", help="Recorded, and its budget charged.")]


def charge(
    place: Annotated[str, typer.Argument(metavar="LEDGER", help="The file, or a URL.")],
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The name of the dataset.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="Run after the charge, never without it."),
    ] = None,
    *,
    epsilon: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="A stated epsilon, exact: 0.1 or 1/3.")
    ] = None,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="With --epsilon the stated delta; otherwise the accountant reads the plan at it.",
        ),
    ] = None,
    noise_multiplier: NoiseMultiplier = None,
    laplace_scale: LaplaceScale = None,
    sensitivity: Sensitivity = None,
    loss_file: LossFile = None,
    rate: Rate = None,
    sample: Sample = None,
    population: Population = None,
    steps: Steps = None,
    relation: RelationName = None,
    purpose: Who = None,
    analyst: Who = None,
    project: Who = None,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Idempotency: the same key is charged once.")
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Spend a loss; it is on the disk before anything else happens.

    A charge that does not fit is refused and changes nothing. With a command after -- the
    command runs only once the charge is durable, its exit code becomes ours, and a failure
    is recorded without a refund; 125 says that it could not be started. Under a key that was
    charged before it does not run.

    \b
    Examples:
      discreet ledger charge study.ledger census --epsilon 0.1 --purpose "median age"
      discreet ledger charge study.ledger census --noise-multiplier 1.1 --rate 256/60000 \
        --steps 1000 --delta 1e-7 --analyst ann -- python train.py
    """
    from discreet.ledger import Ledger

    mechanism = Mechanism(
        noise_multiplier=noise_multiplier,
        laplace_scale=laplace_scale,
        sensitivity=sensitivity,
        loss_file=loss_file,
        rate=rate,
        sample=sample,
        population=population,
        steps=steps,
        relation=relation,
    )
    with Ledger.open(place) as book:
        loss = _loss(mechanism, epsilon, delta)
        made = book.charge(
            dataset,
            loss,
            purpose=purpose,
            analyst=analyst,
            project=project,
            delta=None if epsilon is not None else delta,
            key=key,
        )
        code = _run(made, command)
        _report(book, made, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _loss(mechanism: Mechanism, epsilon: str | None, delta: str | None) -> Loss:
    if epsilon is None:
        return mechanism.loss()
    from discreet.privacy import ApproxDP, PureDP

    if mechanism != Mechanism(relation=mechanism.relation):
        raise InvalidValue("epsilon", epsilon, "only without --noise-multiplier and the like")
    relation = mechanism.relation or "add_remove"
    return PureDP(epsilon, relation) if delta is None else ApproxDP(epsilon, delta, relation)


class _CommandFailed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _run(made: Charge, command: list[str] | None) -> int:
    if not command or made.replayed:
        return 0
    try:
        with made:
            try:
                code = subprocess.run(command, check=False).returncode
            except OSError as error:
                reason = f"expected a program ({error.strerror}); the charge stays spent"
                print(f"command = {shown(command[0])}: {reason}", file=sys.stderr)
                raise _CommandFailed(125) from None
            if code:
                raise _CommandFailed(code if code > 0 else 128 - code)
    except _CommandFailed as failure:
        return failure.code
    return 0


def _report(book: Ledger, made: Charge, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "dataset": made.dataset,
                "entry": made.seq,
                "hash": made.hash,
                "replayed": made.replayed,
                "outcome": made.outcome,
                "receipt": made.receipt(),
            }
        )
        return
    view = book.remaining(made.dataset)
    said = "was charged before" if made.replayed else "charged"
    left = ", ".join(f"{name} {exact_at_least(value)}" for name, value in view.remaining.items())
    print_lines(
        [f"{said}: entry {made.seq} of {made.dataset}, {made.outcome}", f"left of it: {left}"]
    )
