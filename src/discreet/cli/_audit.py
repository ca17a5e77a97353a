"""``discreet audit``: a training run of one's own. ``discreet audit-mechanism``: mechanisms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from discreet._rounding import at_least, at_most
from discreet.cli._app import Command, Group, print_json, print_lines, print_table, show_progress
from discreet.cli._options import Count, Real, combine_options, count, output_file
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.audit import MechanismAudit
    from discreet.audit.zoo import Specimen

_claim_options = combine_options(
    click.option("--epsilon", type=Real(at_least=0), required=True, help="What is claimed."),
    click.option(
        "--delta", type=Real(at_least=0, below=1), default="1e-5", help="Where it is claimed."
    ),
)
_rate_option = click.option(
    "--false-alarm-rate",
    type=Real(above=0, at_most=0.5),
    default="0.05",
    help="How often a right claim may be called violated.",
)


@click.group(cls=Group)
def audit() -> None:
    """Try to refute what is claimed about a training run, by canaries that coins include."""


@audit.command(short_help="Toss the coins, before the run.")
@click.option("--out", metavar="FILE", required=True, help="The coins (.json).")
@click.option("--included", metavar="FILE", help="A 0 or 1 for each canary, for the run (.csv).")
@click.option("--canaries", type=Count(at_least=2), default="1000", help="How many there are.")
@click.option(
    "--guesses",
    metavar="IN,OUT",
    help="How many to call included and excluded.  [default: the best against the claim]",
)
@_claim_options
@_rate_option
def coins(
    out: str,
    included: str | None,
    canaries: int,
    guesses: str | None,
    epsilon: float,
    delta: float,
    false_alarm_rate: float,
    as_json: bool,
) -> None:
    """Toss a fair coin for each canary, and fix how many guesses will be made.

    The run adds the canaries whose coin is 1 to its training data, one record each, and nothing
    else may depend on the coins. Whoever scores the canaries afterwards must not see them.

    Example:
      discreet audit coins --canaries 1000 --epsilon 8 --out coins.json --included included.csv
    """
    from discreet.audit import Inclusion, suggest_guesses
    from discreet.privacy import ApproxDP

    with (
        output_file(out, ".json", argument="out") as draft,
        output_file(included, ".csv", argument="included") as listed,
    ):
        if guesses is not None:
            pair = _read_guesses(guesses)
        else:
            claim, settings = ApproxDP(epsilon, delta), {"false_alarm_rate": false_alarm_rate}
            pair = suggest_guesses(claim, canaries=canaries, delta=delta, **settings)
        tossed = Inclusion(canaries, guesses=pair)
        assert draft is not None
        tossed.save(draft)
        if listed is not None:
            lines = "".join(f"{int(one)}\n" for one in tossed.included)
            listed.write_text(lines, encoding="ascii")
    if as_json:
        print_json({"out": out, "canaries": canaries, "guesses": list(pair)})
        return
    print_lines(
        [
            f"{int(tossed.included.sum())} of {canaries} canaries are included",
            f"{pair[0]} will be called included, {pair[1]} excluded",
            f"Written: {out} (the coins are a secret until the canaries are scored)",
        ]
    )


@audit.command(short_help="Judge the scores, after the run.")
@click.argument("scores", metavar="SCORES", help="A score for each canary (.csv or .npy).")
@click.option("--coins", "tossed", metavar="FILE", help="What discreet audit coins wrote.")
@click.option(
    "--included",
    metavar="FILE",
    help="Instead: the coins of a run elsewhere, a 0 or 1 for each canary (.csv or .npy).",
)
@click.option(
    "--guesses",
    metavar="IN,OUT",
    help="With --included: how many to call included and excluded, fixed before the coins.",
)
@_claim_options
@_rate_option
def training(
    scores: str,
    tossed: str | None,
    included: str | None,
    guesses: str | None,
    epsilon: float,
    delta: float,
    false_alarm_rate: float,
    as_json: bool,
) -> int:
    """Bound the epsilon of a run from below, and compare it with the claim.

    A score is larger if the canary seems included; it must come from what the run released, and
    from nothing else. The canaries with the largest scores are called included. The coins are
    judged as often as was said when they were tossed, which the file remembers; coins from
    elsewhere are trusted to be fair and independent, and the output says so.

    Exit code: 0 if the claim could have been refuted and was not, 1 if it was, 6 if the audit was
    too weak to tell.

    Examples:
      discreet audit training scores.csv --coins coins.json --epsilon 8
      discreet audit training scores.npy --included included.csv --guesses 200,200 --epsilon 8
    """
    from discreet.attacks import read_numbers
    from discreet.audit import Inclusion, audit_one_run, read_coins

    if (tossed is None) == (included is None):
        raise InvalidValue("coins", tossed, "--coins or --included, not both")
    if tossed is not None:
        inclusion = read_coins(tossed)
    else:
        if guesses is None:
            raise InvalidValue("guesses", guesses, "two numbers with a comma, as in 200,200")
        found = read_numbers("included", str(included))
        inclusion = Inclusion.from_coins(found, guesses=_read_guesses(guesses))
    values = np.asarray(read_numbers("scores", scores), dtype=np.float64)
    judged = audit_one_run(
        inclusion, values, epsilon=epsilon, delta=delta, false_alarm_rate=false_alarm_rate
    )
    if tossed is not None:
        inclusion.save(Path(tossed))
    if as_json:
        print_json(judged.to_json())
    else:
        lines = str(judged).splitlines()
        elsewhere = inclusion.provenance.get("coins")
        print_lines([*lines, f"coins: {elsewhere}"] if elsewhere else lines)
    return 1 if judged.violated else 6 if judged.verdict == "too weak to tell" else 0


def _read_guesses(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2:
        raise InvalidValue("guesses", text, "two numbers with a comma, as in 200,200")
    first, second = (count("guesses", one, at_least=0) for one in parts)
    return first, second


@click.command(cls=Command)
@click.argument(
    "names",
    metavar="[NAME]...",
    nargs=-1,
    help="Names from --list, or a group: bundled (the mechanisms of this package), broken and "
    "right (the zoo), all.  [default: bundled]",
)
@click.option("--list", "list_names", is_flag=True, help="List the names, and audit nothing.")
@click.option(
    "--samples",
    type=Count(at_least=4, at_most=10**8),
    help="Outputs drawn for each of the two inputs.  [default: set for each mechanism]",
)
@click.option(
    "--false-alarm-rate",
    type=Real(above=0, at_most=0.5),
    default="1e-3",
    help="How often a right mechanism may be refuted, for each audit: 0 < rate <= 1/2.",
)
@click.option("--insecure-seed", type=Count(), help="Make the audit reproducible.")
def audit_mechanism(
    names: tuple[str, ...],
    list_names: bool,
    samples: int | None,
    false_alarm_rate: float,
    insecure_seed: int | None,
    as_json: bool,
) -> int:
    """Try to refute that a mechanism keeps its claim on two neighbouring inputs.

    Half of the outputs choose an event, the other half testifies, so the lower bound on
    epsilon is wrong at most as often as --false-alarm-rate says. Ceiling is the most that
    the audit could have shown. A verdict of "consistent" proves nothing.

    Exit code: 0 if every claim could have been refuted and none was, 1 if one was, 6 if none was
    and an audit was too weak to tell.

    Examples:
      discreet audit-mechanism
      discreet audit-mechanism laplace_integer AboveThreshold --samples 10000
      discreet audit-mechanism broken --json
      discreet audit-mechanism --list
    """
    from discreet.audit.zoo import SPECIMENS, bundled

    known = {**bundled(), **SPECIMENS}
    chosen = _choose_specimens(names or ("bundled",), known, set(bundled()))
    if list_names:
        _print_names(chosen if names else list(known.values()), as_json=as_json)
        return 0
    asked = {"false_alarm_rate": false_alarm_rate, "insecure_seed": insecure_seed}
    audits = [
        (specimen, specimen.audit(samples=samples, **asked))  # type: ignore[arg-type]
        for specimen in show_progress(chosen, "auditing")
    ]
    if as_json:
        print_json({"audits": [_as_json(specimen, audit) for specimen, audit in audits]})
    elif len(audits) == 1:
        specimen, audit = audits[0]
        print_lines([f"{specimen.name}: {specimen.about}", *str(audit).splitlines()])
    else:
        _print_audits(audits)
    if any(audit.violated for _, audit in audits):
        return 1
    return 6 if any(audit.verdict == "too weak to tell" for _, audit in audits) else 0


def _choose_specimens(
    names: tuple[str, ...], known: dict[str, Specimen], own: set[str]
) -> list[Specimen]:
    groups = {
        "bundled": [name for name in known if name in own],
        "right": [n for n, one in known.items() if not one.broken and n not in own],
        "broken": [name for name, specimen in known.items() if specimen.broken],
        "all": list(known),
    }
    picked: dict[str, Specimen] = {}
    for name in names:
        for member in groups.get(name, [name]):
            if member not in known:
                raise InvalidValue("names", name, f"a name from --list, or {', '.join(groups)}")
            picked[member] = known[member]
    return list(picked.values())


def _as_json(specimen: Specimen, audit: MechanismAudit) -> dict[str, object]:
    return {
        "name": specimen.name,
        "about": specimen.about,
        "broken": specimen.broken,
        "loss": repr(specimen.loss),
        **audit.to_json(),
    }


def _print_names(specimens: list[Specimen], *, as_json: bool) -> None:
    if as_json:
        rows = [{"name": s.name, "broken": s.broken, "about": s.about} for s in specimens]
        print_json({"mechanisms": rows})
        return
    cells = [(each.name, "broken" if each.broken else "", each.about) for each in specimens]
    print_table(("name", "", "about"), cells)


def _print_audits(audits: list[tuple[Specimen, MechanismAudit]]) -> None:
    rows = [
        (
            specimen.name,
            "broken" if specimen.broken else "",
            at_most(audit.claimed_epsilon, digits=4),
            at_least(audit.epsilon_lower, digits=4),
            at_least(audit.ceiling, digits=4),
            audit.verdict,
        )
        for specimen, audit in audits
    ]
    headings = ("mechanism", "", "claimed", "shown", "ceiling", "verdict")
    print_table(headings, rows, numbers=(2, 3, 4))
    violated = sum(audit.violated for _, audit in audits)
    rate = audits[0][1].false_alarm_rate
    print_lines(
        [
            "",
            f"{violated} of {len(audits)} claims violated; false alarms at most {rate:g} for each.",
        ]
    )
