"""``discreet audit-mechanism``: try to refute the bundled mechanisms, and the broken ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from discreet._rounding import at_least, at_most
from discreet.cli._app import Command, print_json, print_lines, print_table, tracked
from discreet.cli._options import Count, Real
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.audit import MechanismAudit
    from discreet.audit.zoo import Specimen


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
        for specimen in tracked(chosen, "auditing")
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
                raise InvalidValue("name", name, f"a name from --list, or {', '.join(groups)}")
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
