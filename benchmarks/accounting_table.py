"""The table of docs/accounting.md."""

from __future__ import annotations

from typing import Any

from accountants import OPACUS_PRV, OPACUS_RDP, OPTIMISTIC, OURS, PEER, PRV
from accounting_judges import ALLOCATION_PEER, FINE_ALLOCATION_PEER, RISK_PEER


def table(results: dict[str, Any]) -> str:
    """Rows, targets and surroundings as Markdown."""
    head = (
        "| noise, rate, steps, delta | Discreet: lower, upper (s)"
        " | dp-accounting 1e-4: optimistic, pessimistic (s)"
        " | prv_accountant (s) | Opacus PRV (s) | Opacus RDP (s) |"
    )
    lines = [head, "|---|---|---|---|---|---|"]
    for row in results["rows"] + results["mixtures"]:
        answers = row["answers"]
        cells = [row["row"], bracket(answers.get(OURS))]
        cells.append(peer_bracket(answers.get(PEER), answers.get(OPTIMISTIC)))
        cells.append(bracket(answers.get(PRV)))
        cells += [upper_only(answers.get(name)) for name in (OPACUS_PRV, OPACUS_RDP)]
        lines.append("| " + " | ".join(cells) + " |")
    if results["allocation"]:
        heads = {
            OURS: "Discreet: lower, upper (s)",
            ALLOCATION_PEER: "PLD_accounting (s)",
            FINE_ALLOCATION_PEER: "PLD_accounting, asked for 1 % (s)",
        }
        names = [name for name in heads if name in results["allocation"][0]["answers"]]
        lines += ["", f"| shuffled epochs | {' | '.join(heads[name] for name in names)} |"]
        lines.append("|---" * (1 + len(names)) + "|")
        for row in results["allocation"]:
            cells = [row["row"], *(bracket(row["answers"].get(name)) for name in names)]
            lines.append("| " + " | ".join(cells) + " |")
    if results["risk"]:
        lines += [
            "",
            "| noise for a risk | Discreet: noise, risk (s) | riskcal: noise, risk (s) |",
            "|---|---|---|",
        ]
        for one in results["risk"]:
            cells = [one["risk"], *(noise_found(one["answers"][n]) for n in (OURS, RISK_PEER))]
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| target | measured | decided by | met |", "|---|---|---|---|"]
    for entry in results["targets"]:
        measured = entry["measured"]
        shown = measured if isinstance(measured, str) else f"{measured:.3g}"
        verdict = "yes" if entry["met"] else "**no**"
        lines.append(
            f"| {entry['what']}: {entry['target']} | {shown} | {entry.get('where', '')} "
            f"| {verdict} |"
        )
    return "\n".join(lines)


def bracket(answer: dict[str, Any] | None) -> str:
    if silent(answer):
        return "–"
    return f"{answer['lower']:.5g}, {answer['upper']:.5g} ({took(answer)})"


def peer_bracket(upper: dict[str, Any] | None, lower: dict[str, Any] | None) -> str:
    if silent(upper):
        return "–"
    known = lower is not None and lower["lower"] is not None
    least = f"{lower['lower']:.5g}" if known else "–"
    return f"{least}, {upper['upper']:.5g} ({took(upper)})"


def upper_only(answer: dict[str, Any] | None) -> str:
    return "–" if silent(answer) else f"{answer['upper']:.5g} ({took(answer)})"


def noise_found(answer: dict[str, Any]) -> str:
    """The noise, what an attacker reaches with it by our certified reading, and the seconds."""
    if answer["noise"] is None:
        return "–"
    return f"{answer['noise']:.4f}, {answer['reached']:.5f} ({took(answer)})"


def silent(answer: dict[str, Any] | None) -> bool:
    return answer is None or answer["seconds"] is None or answer["upper"] is None


def took(answer: dict[str, Any]) -> str:
    return f"{answer['seconds']:.2g}"
