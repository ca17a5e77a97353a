"""``discreet calibrate``: the parameter that meets a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from discreet._validate import one_of
from discreet.cli.mechanism import Mechanism, NoiseMultiplier, Rate, Sensitivity, Steps
from discreet.cli.options import Json, RelationName, count, real
from discreet.cli.tables import at_least, at_most, finite, print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.privacy import Relation

__all__ = ["calibrate"]

# The options that describe the run, for each parameter that can be found.
_USED = {
    "noise-multiplier": ("rate", "steps"),
    "steps": ("noise_multiplier", "rate"),
    "rate": ("noise_multiplier", "steps"),
    "laplace-scale": ("sensitivity", "steps"),
}


def calibrate(
    *,
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="The target: epsilon > 0.")],
    delta: Annotated[str, typer.Option(metavar="NUMBER", help="The target: 0 <= delta < 1.")],
    solve_for: Annotated[
        str,
        typer.Option(metavar="|".join(_USED), help="Which parameter to find.", show_default=True),
    ] = "noise-multiplier",
    noise_multiplier: NoiseMultiplier = None,
    sensitivity: Sensitivity = None,
    rate: Rate = None,
    steps: Steps = None,
    relation: RelationName = None,
    as_json: Json = False,
) -> None:
    r"""The least noise, or the most steps or sampling, that meets (epsilon, delta).

    The answer always satisfies the target; what it costs is printed beside it.

    \b
    Examples:
      discreet calibrate --epsilon 2 --delta 1e-5 --rate 0.01 --steps 10000
      discreet calibrate --epsilon 2 --delta 1e-5 --rate 0.01 --noise-multiplier 1.1 \
        --solve-for steps
      discreet calibrate --epsilon 2 --delta 1e-5 --steps 10000 --noise-multiplier 1.1 \
        --solve-for rate
      discreet calibrate --epsilon 1 --delta 1e-6 --steps 20 --solve-for laplace-scale
    """
    target = real("epsilon", epsilon, above=0)
    allowed = real("delta", delta, at_least=0, below=1)
    unknown = one_of("solve_for", solve_for, tuple(_USED))
    typed = {
        "noise_multiplier": noise_multiplier,
        "sensitivity": sensitivity,
        "rate": rate,
        "steps": steps,
    }
    for name, text in typed.items():
        if text is not None and name not in _USED[unknown]:
            raise InvalidValue(name, text, f"no value when solving for {unknown}")
    if noise_multiplier is None and "noise_multiplier" in _USED[unknown]:
        raise InvalidValue("noise_multiplier", "none", f"a number when solving for {unknown}")

    from discreet.privacy import Relation

    neighbours = Relation.parse("add_remove" if relation is None else relation)
    found = _solve(unknown, target, allowed, typed, neighbours)
    run = {**typed, unknown.replace("-", "_"): repr(found)}
    loss = Mechanism(**run, relation=neighbours.value).loss()
    reached = loss.epsilon(delta=allowed)
    if as_json:
        print_json(
            {
                "solved_for": unknown.replace("-", "_"),
                "value": found,
                "target": {"epsilon": target, "delta": allowed},
                "epsilon": finite(reached),
                "relation": neighbours.value,
                "description": repr(loss),
            }
        )
    else:
        rounded = at_most if unknown in ("noise-multiplier", "laplace-scale") else at_least
        value = str(found) if isinstance(found, int) else rounded(found, digits=6)
        cost = f"epsilon: {at_most(reached)} (target {target:g}) at delta {allowed!r}"
        print_lines(
            [f"{unknown.replace('-', ' ')}: {value}", f"{cost}, relation {neighbours.value}"]
        )


def _solve(
    unknown: str,
    epsilon: float,
    delta: float,
    typed: dict[str, str | None],
    relation: Relation,
) -> float:
    from discreet.privacy import (
        largest_rate,
        least_laplace_scale,
        least_noise_multiplier,
        most_steps,
    )

    rate = real("rate", typed["rate"] or "1", above=0, at_most=1)
    steps = count("steps", typed["steps"] or "1", at_least=1)
    if relation.value != "add_remove" and (rate < 1.0 or unknown == "rate"):
        # Poisson amplification is proved from add_remove to add_remove (S6).
        raise InvalidValue("relation", relation, "add_remove with a sampling rate")
    if unknown == "noise-multiplier":
        return least_noise_multiplier(
            epsilon=epsilon, delta=delta, rate=rate, steps=steps, relation=relation
        )
    if unknown == "laplace-scale":
        reach = real("sensitivity", typed["sensitivity"] or "1", above=0)
        return least_laplace_scale(
            epsilon=epsilon, delta=delta, sensitivity=reach, count=steps, relation=relation
        )
    noise = real("noise_multiplier", typed["noise_multiplier"] or "", above=0)
    if unknown == "steps":
        return most_steps(
            epsilon=epsilon, delta=delta, noise_multiplier=noise, rate=rate, relation=relation
        )
    return largest_rate(epsilon=epsilon, delta=delta, noise_multiplier=noise, steps=steps)
