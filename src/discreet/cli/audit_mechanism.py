"""``discreet audit-mechanism``: try to refute the bundled mechanisms, and the broken ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.options import Json, count, real
from discreet.cli.tables import at_least, at_most, print_json, print_lines, print_table, tracked
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.audit import MechanismAudit
    from discreet.audit.zoo import Specimen

__all__ = ["audit_mechanism"]

GROUPS = ("bundled", "right", "broken", "all")


def audit_mechanism(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Names from --list, or a group: bundled (the mechanisms of this package), "
            "broken and right (the zoo), all.  [default: bundled]",
        ),
    ] = None,
    list_names: Annotated[
        bool, typer.Option("--list", help="List the names, and audit nothing.")
    ] = False,
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER",
            help="Outputs drawn for each of the two inputs.  [default: set for each mechanism]",
        ),
    ] = None,
    false_alarm_rate: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help="How often a right mechanism may be refuted, for each audit: 0 < rate <= 1/2.",
        ),
    ] = "1e-3",
    insecure_seed: Annotated[
        str | None,
        typer.Option(metavar="INTEGER", help="Make the audit reproducible."),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Try to refute that a mechanism keeps its claim on two neighbouring inputs.

    Half of the outputs choose an event, the other half testifies, so the lower bound on
    epsilon is wrong at most as often as --false-alarm-rate says. Ceiling is the most that
    the audit could have shown. A verdict of "consistent" proves nothing.

    Exit code: 0 if every claim could have been refuted and none was, 1 if one was, 6 if none was
    and an audit was too weak to tell.

    \b
    Examples:
      discreet audit-mechanism
      discreet audit-mechanism laplace_integer AboveThreshold --samples 10000
      discreet audit-mechanism broken --json
      discreet audit-mechanism --list
    """
    drawn = None if samples is None else count("samples", samples, at_least=4, at_most=10**8)
    rate = real("false_alarm_rate", false_alarm_rate, above=0, at_most=0.5)
    seed = None if insecure_seed is None else count("insecure_seed", insecure_seed)

    from discreet.audit.zoo import SPECIMENS, bundled

    known = {**bundled(), **SPECIMENS}
    chosen = _chosen(names or ["bundled"], known, set(bundled()))
    if list_names:
        _print_names(list(known.values()) if not names else chosen, as_json=as_json)
        return
    audits = [
        (specimen, specimen.audit(samples=drawn, false_alarm_rate=rate, insecure_seed=seed))
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
        raise typer.Exit(1)
    if any(audit.verdict == "too weak to tell" for _, audit in audits):
        raise typer.Exit(6)


def _chosen(names: list[str], known: dict[str, Specimen], own: set[str]) -> list[Specimen]:
    groups = {
        "bundled": [name for name in known if name in own],
        "broken": [name for name, specimen in known.items() if specimen.broken],
        "right": [
            name for name, specimen in known.items() if not specimen.broken and name not in own
        ],
        "all": list(known),
    }
    picked: dict[str, Specimen] = {}
    for name in names:
        for member in groups.get(name, [name]):
            if member not in known:
                raise InvalidValue("name", name, f"a name from --list, or {', '.join(GROUPS)}")
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
        rows = [
            {"name": specimen.name, "broken": specimen.broken, "about": specimen.about}
            for specimen in specimens
        ]
        print_json({"mechanisms": rows})
        return
    print_table(
        ("name", "", "about"),
        [(each.name, "broken" if each.broken else "", each.about) for each in specimens],
        numeric=(False, False, False),
    )


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
    print_table(headings, rows, numeric=(False, False, True, True, True, False))
    violated = sum(audit.violated for _, audit in audits)
    rate = audits[0][1].false_alarm_rate
    summary = (
        f"{violated} of {len(audits)} claims violated; false alarms at most {rate:g} for each."
    )
    print_lines(["", summary])
