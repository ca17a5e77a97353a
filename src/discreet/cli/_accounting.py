"""``discreet account``, ``calibrate``, ``compare`` and ``explain``: what a release costs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_least, at_most
from discreet._validate import one_of
from discreet.cli._app import Command, finite, print_json, print_lines, print_table, show_progress
from discreet.cli._options import (
    DELTA,
    Count,
    Mechanism,
    Real,
    count,
    mechanism_options,
    noise_option,
    output_file,
    picture_option,
    rate_option,
    real,
    relation_option,
    sensitivity_option,
    steps_option,
)
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.privacy import Relation

_ASSUMED = "warning: only if every batch was a Poisson sample, which the history does not say"
NO_FINITE_EPSILON = "no finite epsilon holds at this delta"

# The options that describe the run, for each parameter that can be found.
_USED = {
    "noise-multiplier": ("rate", "steps"),
    "steps": ("noise_multiplier", "rate"),
    "rate": ("noise_multiplier", "steps"),
    "laplace-scale": ("sensitivity", "steps"),
    "bands": ("rate", "steps"),
}


@click.command(cls=Command)
@click.option("--delta", type=DELTA, required=True, help="0 <= delta < 1.")
@mechanism_options
def account(delta: float, mechanism: Mechanism, as_json: bool) -> None:
    r"""What a release costs: epsilon by every accountant, and a certified bracket.

    The bracket holds the exact epsilon of the dominating pair. Where an accountant does
    not apply, its reason is printed. An Opacus history does not say whether its batches
    were Poisson samples; the numbers hold only if they were.

    Examples:
      DP-SGD with clipping and Poisson batches
        discreet account --noise-multiplier 1.1 --rate 256/60000 --steps 14062 --delta 1e-5
      the same with batches of fixed size
        discreet account --noise-multiplier 1.1 --sample 256 --population 60000 \
          --relation replace --steps 14062 --delta 1e-5
      twenty noisy counts
        discreet account --laplace-scale 10 --steps 20 --delta 1e-6
      local reports of ten thousand people behind a trusted shuffler
        discreet account --local-epsilon 1 --shuffled 10000 --delta 1e-6
      what an Opacus accountant recorded (json.dump(accountant.state_dict(), file))
        discreet account --from opacus.json --delta 1e-5
      any loss that was written with discreet.privacy.to_json
        discreet account --loss plan.json --delta 1e-6 --json
    """
    loss = mechanism.loss()

    from discreet.privacy import every_accountant, to_json

    bounds = loss.epsilon_bounds(delta=delta)
    accountants = every_accountant(loss, delta=delta)
    assumed = [] if mechanism.history_file is None else [_ASSUMED]
    if as_json:
        print_json(
            {
                "loss": to_json(loss),
                "description": repr(loss),
                "relation": loss.relation.value,
                "delta": delta,
                "epsilon_lower": finite(bounds.lower),
                "epsilon_upper": finite(bounds.upper),
                "tolerance_met": bounds.tolerance_met,
                "note": bounds.note,
                **({"assumption": _ASSUMED} if assumed else {}),
                "accountants": {
                    name: NO_FINITE_EPSILON if value == math.inf else value
                    for name, value in accountants.items()
                },
            }
        )
        return
    print_lines([repr(loss), f"relation {loss.relation.value}, delta {delta!r}", ""])
    rows = [
        (name, "-" if isinstance(value, str) else at_most(value))
        for name, value in accountants.items()
    ]
    print_table(("accountant", "epsilon"), rows, numbers=(1,))
    reasons = [f"{name}: {why}" for name, why in accountants.items() if isinstance(why, str)]
    bracket = f"certified: {at_least(bounds.lower)} <= epsilon <= {at_most(bounds.upper)}"
    note = [f"note: {bounds.note}"] if bounds.note else []
    print_lines([*(["", *reasons] if reasons else []), "", bracket, *note, *assumed])


@click.command(cls=Command)
@click.option("--epsilon", type=Real(above=0), required=True, help="The target: epsilon > 0.")
@click.option("--delta", type=DELTA, required=True, help="The target: 0 <= delta < 1.")
@click.option(
    "--solve-for",
    metavar="|".join(_USED),
    default="noise-multiplier",
    help="Which parameter to find.",
)
@noise_option
@sensitivity_option
@rate_option
@steps_option
@relation_option
def calibrate(
    epsilon: float,
    delta: float,
    solve_for: str,
    relation: str | None,
    as_json: bool,
    **typed: str | None,
) -> None:
    r"""The least noise, or the most steps or sampling, that meets (epsilon, delta).

    The answer always satisfies the target; what it costs is printed beside it.

    Examples:
      discreet calibrate --epsilon 2 --delta 1e-5 --rate 0.01 --steps 10000
      discreet calibrate --epsilon 2 --delta 1e-5 --rate 0.01 --noise-multiplier 1.1 \
        --solve-for steps
      discreet calibrate --epsilon 2 --delta 1e-5 --steps 10000 --noise-multiplier 1.1 \
        --solve-for rate
      discreet calibrate --epsilon 1 --delta 1e-6 --steps 20 --solve-for laplace-scale
      noise that is correlated over steps, for Plan(sampler="cyclic", noise=...)
        discreet calibrate --epsilon 4 --delta 1e-6 --rate 1/128 --steps 128 --solve-for bands
    """
    unknown = one_of("solve_for", solve_for, tuple(_USED))
    for name, text in typed.items():
        if text is not None and name not in _USED[unknown]:
            raise InvalidValue(name, text, f"no value when solving for {unknown}")
    if typed["noise_multiplier"] is None and "noise_multiplier" in _USED[unknown]:
        raise InvalidValue("noise_multiplier", None, f"a number when solving for {unknown}")

    from discreet.privacy import Relation

    neighbours = Relation.parse("add_remove" if relation is None else relation)
    if unknown == "bands":
        _print_bands(epsilon, delta, typed, neighbours, as_json)
        return
    found = _solve(unknown, epsilon, delta, typed, neighbours)
    run = {**typed, unknown.replace("-", "_"): repr(found)}
    loss = Mechanism(**run, relation=neighbours.value).loss()
    reached = loss.epsilon(delta=delta)
    if as_json:
        print_json(
            {
                "solved_for": unknown.replace("-", "_"),
                "value": found,
                "target": {"epsilon": epsilon, "delta": delta},
                "epsilon": finite(reached),
                "relation": neighbours.value,
                "description": repr(loss),
            }
        )
        return
    rounded = at_most if unknown in ("noise-multiplier", "laplace-scale") else at_least
    value = str(found) if isinstance(found, int) else rounded(found, digits=6)
    cost = f"epsilon: {at_most(reached)} (target {epsilon:g}) at delta {delta!r}"
    print_lines([f"{unknown.replace('-', ' ')}: {value}", f"{cost}, relation {neighbours.value}"])


def _print_bands(
    epsilon: float,
    delta: float,
    typed: dict[str, str | None],
    relation: Relation,
    as_json: bool,
) -> None:
    """Print the bands of correlated noise with the least error, beside independent noise."""
    from discreet.privacy import Gaussian, choose_bands

    rate = real("rate", typed["rate"] or "1", above=0, at_most=1)
    steps = count("steps", typed["steps"] or "1", at_least=1)
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "steps": steps, "rate": rate}
    plain, more = choose_bands(**budget, relation=relation, at_most=1)
    strategy, noise = choose_bands(**budget, relation=relation, at_most=128)
    bands = strategy.bands
    loss = Gaussian(noise, relation).correlated(
        strategy, steps=steps, separation=bands, rate=bands * rate
    )
    reached = loss.epsilon(delta=delta)
    gain = more * plain.error(steps=steps) / (noise * strategy.error(steps=steps))
    if as_json:
        print_json(
            {
                "solved_for": "bands",
                "value": bands,
                "noise_multiplier": noise,
                "gain": gain,
                "target": {"epsilon": epsilon, "delta": delta},
                "epsilon": finite(reached),
                "relation": relation.value,
                "description": repr(loss),
            }
        )
        return
    cost = f"epsilon: {at_most(reached)} (target {epsilon:g}) at delta {delta!r}"
    print_lines(
        [
            f"bands: {bands}",
            f"noise multiplier: {at_most(noise, digits=6)}",
            f"{cost}, relation {relation.value}",
            f"error of prefix sums: {at_least(gain)} times less than with independent noise",
        ]
    )


def _solve(
    unknown: str, epsilon: float, delta: float, typed: dict[str, str | None], relation: Relation
) -> float:
    from discreet import privacy

    target: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    rate = real("rate", typed["rate"] or "1", above=0, at_most=1)
    steps = count("steps", typed["steps"] or "1", at_least=1)
    if unknown == "noise-multiplier":
        return privacy.least_noise_multiplier(**target, rate=rate, steps=steps, relation=relation)
    if unknown == "laplace-scale":
        reach = real("sensitivity", typed["sensitivity"] or "1", above=0)
        return privacy.least_laplace_scale(
            **target, sensitivity=reach, count=steps, relation=relation
        )
    noise = real("noise_multiplier", typed["noise_multiplier"] or "", above=0)
    if unknown == "steps":
        return privacy.most_steps(**target, noise_multiplier=noise, rate=rate, relation=relation)
    return privacy.largest_rate(**target, noise_multiplier=noise, steps=steps, relation=relation)


@click.command(cls=Command)
@click.option(
    "--noise-multiplier", type=Real(above=0), default="4", help="Noise over the clip norm."
)
@click.option(
    "--rate",
    type=Real(above=0, at_most=1),
    default="0.01",
    help="Probability that a record is in a step.",
)
@click.option("--delta", type=DELTA, default="1e-5", help="0 <= delta < 1.")
@click.option(
    "--max-steps", type=Count(at_least=1), default="40000", help="Where the comparison ends."
)
@click.option(
    "--points",
    type=Count(at_least=1, at_most=1000),
    default="20",
    help="How many numbers of steps, evenly in ratio.",
)
@picture_option
def compare(
    noise_multiplier: float, rate: float, output: str | None, as_json: bool, **asked: Any
) -> None:
    """Every accountant over the steps of DP-SGD, as a table and as a picture.

    Noise multiplier, rate and delta default to those of a figure of Abadi et al. (2016); 40000
    steps at rate 0.01 are 400 epochs.

    Examples:
      discreet compare --output compare.png
      discreet compare --noise-multiplier 1.1 --rate 256/60000 --max-steps 1e5 --json
    """
    with output_file(output, ".png", ".svg") as place:
        from discreet.report import compare_accountants, draw_comparison

        found = compare_accountants(
            noise_multiplier, rate, **asked, track=lambda grid: show_progress(grid, "accountants")
        )
        if place is not None:
            draw_comparison(found, place)
    epsilons = found.epsilons
    if as_json:
        values = {name: list(map(finite, column)) for name, column in epsilons.items()}
        print_json({**asdict(found), "epsilons": values, "picture": output})
        return
    facts = f"noise multiplier {noise_multiplier!r}, rate {rate!r}, delta {found.delta!r}"
    print_lines([f"epsilon for {facts}, relation add_remove", ""])
    rows = [
        [str(steps), *(at_most(column[at], digits=4) for column in epsilons.values())]
        for at, steps in enumerate(found.steps)
    ]
    print_table(["steps", *epsilons], rows, numbers=range(1 + len(epsilons)))
    lines = [f"{name} does not apply: {why}" for name, why in found.reasons.items()]
    if lines:
        print_lines(["", *lines])
    if output is not None:
        print_lines(["", f"picture: {output}"])


@click.command(cls=Command)
@click.option("--epsilon", type=Real(at_least=0), required=True, help="epsilon >= 0.")
@click.option("--delta", type=DELTA, default="0", help="0 <= delta < 1.")
@click.option(
    "--prior",
    type=Real(at_least=0, at_most=1),
    default="0.5",
    help="What the attacker believes beforehand: 0 <= prior <= 1.",
)
@click.option(
    "--mechanism",
    metavar="noise|fraction",
    help="Explain Laplace and Gaussian noise, or two ways to a share, instead of the guarantee.",
)
@picture_option
def explain(
    epsilon: float,
    delta: float,
    prior: float,
    mechanism: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """What (epsilon, delta) means for one person, in plain words and as a picture.

    An attacker believes with probability --prior that the person's data was used. How far
    can the release move that belief, and how well can any test tell?

    Examples:
      discreet explain --epsilon 1 --delta 1e-6 --prior 0.4
      discreet explain --epsilon 8 --delta 1e-5 --output explain.png
      two densities, their log ratio, and where it leaves the band of epsilon
        discreet explain --epsilon 1 --delta 1e-5 --mechanism noise --output noise.png
      a share by noisy counts and by the exponential mechanism, over N
        discreet explain --epsilon 0.1 --mechanism fraction --output fraction.png
    """
    if mechanism is not None:
        chosen = one_of("mechanism", mechanism, ("noise", "fraction"))
        _explain_mechanism(chosen, epsilon, delta, output, as_json)
        return
    with output_file(output, ".png", ".svg") as place:
        from discreet.privacy import theorems

        explanation = theorems.explain(epsilon, delta, prior=prior)
        if place is not None:
            from discreet.report import draw_explanation

            draw_explanation(explanation, place)
    if as_json:
        print_json({**explanation.to_json(), "picture": output})
        return
    print_lines(explanation.sentences())
    if output is not None:
        print_lines(["", f"picture: {output}"])


def _explain_mechanism(
    mechanism: str, epsilon: float, delta: float, output: str | None, as_json: bool
) -> None:
    with output_file(output, ".png", ".svg") as place:
        from discreet import report

        found: report.NoiseComparison | report.FractionComparison
        if mechanism == "noise":
            found = report.NoiseComparison.at(epsilon, delta)
            if place is not None:
                report.draw_noise(found, place)
        else:
            found = report.FractionComparison.at(epsilon)
            if place is not None:
                report.draw_fractions(found, place)
    if as_json:
        print_json({**found.to_json(), "picture": output})
        return
    print_lines(found.sentences())
    if output is not None:
        print_lines(["", f"picture: {output}"])
