"""``discreet compare``: every accountant over the steps of one run (the lectures' figure)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from discreet.cli.files import Output, picture_file
from discreet.cli.options import Json, count, real
from discreet.cli.tables import at_most, finite, print_json, print_lines, print_table, tracked

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Epsilon by accountant and number of steps, for one Poisson-sampled Gaussian.

    ``epsilons`` holds one value for each entry of ``steps``, infinite where no finite
    epsilon holds; an accountant that does not apply is in ``reasons`` instead.
    """

    noise_multiplier: float
    rate: float
    delta: float
    steps: list[int]
    epsilons: dict[str, list[float]]
    reasons: dict[str, str]


def compare(
    *,
    noise_multiplier: Annotated[
        str, typer.Option(metavar="NUMBER", help="Noise over the clip norm.")
    ] = "4",
    rate: Annotated[
        str, typer.Option(metavar="NUMBER", help="Probability that a record is in a step.")
    ] = "0.01",
    delta: Annotated[str, typer.Option(metavar="NUMBER", help="0 <= delta < 1.")] = "1e-5",
    max_steps: Annotated[
        str, typer.Option(metavar="INTEGER", help="Where the comparison ends.")
    ] = "40000",
    points: Annotated[
        str, typer.Option(metavar="INTEGER", help="How many numbers of steps, evenly in ratio.")
    ] = "20",
    output: Output = None,
    as_json: Json = False,
) -> None:
    r"""Every accountant over the steps of DP-SGD, as a table and as a picture.

    Noise multiplier, rate and delta default to those of the lectures' figure (after Abadi
    et al. 2016); 40000 steps at rate 0.01 are 400 epochs.

    \b
    Examples:
      discreet compare --output compare.png
      discreet compare --noise-multiplier 1.1 --rate 256/60000 --max-steps 1e5 --json
    """
    noise = real("noise_multiplier", noise_multiplier, above=0)
    probability = real("rate", rate, above=0, at_most=1)
    allowed = real("delta", delta, at_least=0, below=1)
    last = count("max_steps", max_steps, at_least=1)
    grid = _geometric(last, count("points", points, at_least=1, at_most=1000))
    with picture_file(output) as place:
        comparison = _compute(noise, probability, allowed, grid)
        if place is not None:
            from discreet.report import draw_comparison

            draw_comparison(comparison, place)
    if as_json:
        print_json(_as_json(comparison, output))
    else:
        _print(comparison, output)


def _geometric(last: int, points: int) -> list[int]:
    """Distinct integers from 1 to ``last``, about evenly spaced in ratio; ``last`` is exact.

    >>> _geometric(1000, 4), _geometric(3, 10), _geometric(500, 1)
    ([1, 10, 100, 1000], [1, 2, 3], [500])
    """
    inner = {round(math.exp(math.log(last) * i / (points - 1))) for i in range(points - 1)}
    return sorted(inner | {last})


def _compute(noise: float, rate: float, delta: float, grid: list[int]) -> Comparison:
    from discreet.privacy import Gaussian, every_accountant

    step = Gaussian(noise).poisson(rate=rate)
    answers = [
        every_accountant(steps * step, delta=delta) for steps in tracked(grid, "accountants")
    ]
    epsilons: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    for name in answers[-1]:
        column = [answer[name] for answer in answers]
        refusals = [value for value in column if isinstance(value, str)]
        if refusals:
            reasons[name] = refusals[-1]
        if len(refusals) < len(column):
            epsilons[name] = [math.inf if isinstance(value, str) else value for value in column]
    return Comparison(
        noise_multiplier=noise,
        rate=rate,
        delta=delta,
        steps=grid,
        epsilons=epsilons,
        reasons=reasons,
    )


def _as_json(comparison: Comparison, output: str | None) -> dict[str, object]:
    epsilons = {
        name: [finite(value) for value in values] for name, values in comparison.epsilons.items()
    }
    return {**asdict(comparison), "epsilons": epsilons, "picture": output}


def _print(comparison: Comparison, output: str | None) -> None:
    step = f"noise multiplier {comparison.noise_multiplier!r}, rate {comparison.rate!r}"
    print_lines([f"epsilon for {step}, delta {comparison.delta!r}, relation add_remove", ""])
    names = list(comparison.epsilons)
    rows = [
        [str(steps), *(at_most(comparison.epsilons[name][i], digits=4) for name in names)]
        for i, steps in enumerate(comparison.steps)
    ]
    print_table(["steps", *names], rows, numeric=[True] * (1 + len(names)))
    reasons = [f"{name} does not apply: {why}" for name, why in comparison.reasons.items()]
    if reasons:
        print_lines(["", *reasons])
    if output is not None:
        print_lines(["", f"picture: {output}"])
