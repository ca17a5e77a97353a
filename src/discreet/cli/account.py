"""``discreet account``: what a release costs, by every accountant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

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
from discreet.cli.options import Json, RelationName, real
from discreet.cli.tables import at_least, at_most, finite, print_json, print_lines, print_table

if TYPE_CHECKING:
    from discreet.privacy import Bounds, Loss

__all__ = ["account"]

NO_FINITE_EPSILON = "no finite epsilon holds at this delta"


def account(
    *,
    delta: Annotated[str, typer.Option(metavar="NUMBER", help="0 <= delta < 1.")],
    noise_multiplier: NoiseMultiplier = None,
    laplace_scale: LaplaceScale = None,
    sensitivity: Sensitivity = None,
    loss_file: LossFile = None,
    rate: Rate = None,
    sample: Sample = None,
    population: Population = None,
    steps: Steps = None,
    relation: RelationName = None,
    as_json: Json = False,
) -> None:
    r"""What a release costs: epsilon by every accountant, and a certified bracket.

    The bracket holds the exact epsilon of the dominating pair. Where an accountant does
    not apply, its reason is printed. With --rate and --relation replace, the run under
    add_remove is converted by the group bound (one removal and one addition).

    \b
    Examples:
      DP-SGD with clipping and Poisson batches
        discreet account --noise-multiplier 1.1 --rate 256/60000 --steps 14062 --delta 1e-5
      the same with batches of fixed size
        discreet account --noise-multiplier 1.1 --sample 256 --population 60000 \
          --relation replace --steps 14062 --delta 1e-5
      twenty noisy counts
        discreet account --laplace-scale 10 --steps 20 --delta 1e-6
      any loss that was written with discreet.privacy.to_json
        discreet account --loss plan.json --delta 1e-6 --json
    """
    allowed = real("delta", delta, at_least=0, below=1)
    loss = Mechanism(
        noise_multiplier=noise_multiplier,
        laplace_scale=laplace_scale,
        sensitivity=sensitivity,
        loss_file=loss_file,
        rate=rate,
        sample=sample,
        population=population,
        steps=steps,
        relation=relation,
    ).loss()

    from discreet.privacy import every_accountant

    bounds = loss.epsilon_bounds(delta=allowed)
    accountants = every_accountant(loss, delta=allowed)
    if as_json:
        print_json(_as_json(loss, allowed, bounds, accountants))
    else:
        _print(loss, allowed, bounds, accountants)


def _as_json(
    loss: Loss, delta: float, bounds: Bounds, accountants: dict[str, float | str]
) -> dict[str, object]:
    from discreet.privacy import to_json

    return {
        "loss": to_json(loss),
        "description": repr(loss),
        "relation": loss.relation.value,
        "delta": delta,
        "epsilon_lower": finite(bounds.lower),
        "epsilon_upper": finite(bounds.upper),
        "tolerance_met": bounds.tolerance_met,
        "note": bounds.note,
        "accountants": {
            name: NO_FINITE_EPSILON if value == math.inf else value
            for name, value in accountants.items()
        },
    }


def _print(loss: Loss, delta: float, bounds: Bounds, accountants: dict[str, float | str]) -> None:
    print_lines([repr(loss), f"relation {loss.relation.value}, delta {delta!r}", ""])
    rows = [
        (name, "-" if isinstance(value, str) else at_most(value))
        for name, value in accountants.items()
    ]
    print_table(("accountant", "epsilon"), rows, numeric=(False, True))
    reasons = [f"{name}: {why}" for name, why in accountants.items() if isinstance(why, str)]
    if reasons:
        print_lines(["", *reasons])
    bracket = f"certified: {at_least(bounds.lower)} <= epsilon <= {at_most(bounds.upper)}"
    print_lines(["", bracket, *([f"note: {bounds.note}"] if bounds.note else [])])
