"""What the accountants must reach, judged on the measured results."""

from __future__ import annotations

import math
import statistics
from typing import Any

from accountants import OPTIMISTIC, OURS, PEER
from accounting_judges import ALLOCATION_PEER, FINE_ALLOCATION_PEER, RISK_PEER
from harness import target

TIMES_FASTER = 5.0
SLOWEST_ROW_SECONDS = 1.0
PLAIN_MEDIAN_SECONDS = 0.05
PLAIN_SLOWEST_SECONDS = 0.3
ALLOCATION_SECONDS = 2.0
ALLOCATION_WIDTH = 2e-3
CALIBRATION_QUERIES = 12.0
# riskcal stops within 0.001 of the risk, on either side.
RISK_NOISE = 1.02
IMPORT_RATIO = 1.2
# Over seven decades of steps, a cost that is flat or logarithmic has a log-log slope near 0
# (a square root would have 0.5) and grows by no more than the number of decades does, from any
# number of steps to any larger one. Few steps with rare large losses are the dearest, so the
# cost mostly falls.
STEPS_SLOPE = 0.1
STEPS_GROWTH = 8.0


def targets(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target of the parts that were run; ``where`` names the deciding row."""
    rows = [*results["rows"], *results["mixtures"]]
    answered = [row for row in rows if usable(row["answers"].get(PEER))]
    listed = []
    if answered:
        speed = min(answered, key=times_faster)
        listed.append(
            target(
                "least speed-up over " + PEER,
                times_faster(speed),
                at_least=TIMES_FASTER,
                where=speed["row"],
            )
        )
        with_bracket = [row for row in answered if peer_width(row) is not None]
        loose = max(with_bracket, key=relative_width, default=None)
        if loose is not None:
            listed.append(
                target(
                    "widest bracket as a share of that of " + PEER,
                    relative_width(loose),
                    at_most=1.0,
                    where=loose["row"],
                )
            )
    if rows:
        slow = max(rows, key=our_seconds)
        listed.append(
            target(
                "slowest row, seconds",
                our_seconds(slow),
                at_most=SLOWEST_ROW_SECONDS,
                where=slow["row"],
            )
        )
    plain = [our_seconds(row) for row in results["rows"]]
    if plain:
        where, middle = f"{len(plain)} rows", statistics.median(plain)
        listed.append(
            target("a plain row, median", middle, at_most=PLAIN_MEDIAN_SECONDS, where=where)
        )
        listed.append(
            target("a plain row, slowest", max(plain), at_most=PLAIN_SLOWEST_SECONDS, where=where)
        )
    allocated = results["allocation"]
    if allocated:
        slow, wide = max(allocated, key=our_seconds), max(allocated, key=share_of_upper)
        limit, width = ALLOCATION_SECONDS, ALLOCATION_WIDTH
        listed.append(
            target("shuffled epochs, seconds", our_seconds(slow), at_most=limit, where=slow["row"])
        )
        listed.append(
            target("shuffled epochs, width", share_of_upper(wide), at_most=width, where=wide["row"])
        )
        listed += allocation_targets(allocated)
    risks = results["risk"]
    if risks:
        listed += risk_targets(risks)
    queries = [entry["queries"] or math.inf for entry in results["calibration"]]
    if queries:
        listed.append(
            target(
                "calibration in queries, median",
                statistics.median(queries),
                at_most=CALIBRATION_QUERIES,
                where=f"{len(queries)} settings, most {max(queries):.1f}",
            )
        )
    if results["import_seconds"]:
        listed.append(
            target(
                "import discreet.privacy over import numpy, scipy.special",
                results["import_seconds"]["ratio"],
                at_most=IMPORT_RATIO,
                where="fresh processes",
            )
        )
    for curve in results["steps_curves"]:
        listed.append(
            target(
                "log-log slope of seconds over steps",
                curve["slope"],
                at_most=STEPS_SLOPE,
                where=curve["curve"],
            )
        )
        listed.append(
            target(
                "most growth of seconds from fewer to more steps",
                curve["most_growth"],
                at_most=STEPS_GROWTH,
                where=curve["curve"],
            )
        )
    return listed


def allocation_targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The judge contradicts no bracket, and takes longer for a wider one."""
    contradicted = [
        row["row"]
        for row in rows
        for name in (ALLOCATION_PEER, FINE_ALLOCATION_PEER)
        if usable(row["answers"].get(name)) and apart(row["answers"][OURS], row["answers"][name])
    ]
    answered = [row for row in rows if usable(row["answers"].get(FINE_ALLOCATION_PEER))]
    if not answered:
        return []
    slow = min(answered, key=lambda row: times_faster(row, FINE_ALLOCATION_PEER))
    return [
        target(
            "shuffled epochs that PLD_accounting contradicts",
            len(contradicted),
            at_most=0,
            where=contradicted[0] if contradicted else f"{len(answered)} rows",
        ),
        target(
            "least speed-up over " + FINE_ALLOCATION_PEER,
            times_faster(slow, FINE_ALLOCATION_PEER),
            at_least=TIMES_FASTER,
            where=slow["row"],
        ),
    ]


def apart(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return bool(theirs["upper"] < ours["lower"] or theirs["lower"] > ours["upper"])


def risk_targets(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is asked for is not exceeded, with little more noise than riskcal finds."""
    over = max(entries, key=lambda one: one["answers"][OURS]["reached"] / one["most"])
    listed = [
        target(
            "risk at our noise over the risk asked for",
            over["answers"][OURS]["reached"] / over["most"],
            at_most=1.0,
            where=over["risk"],
        )
    ]
    judged = [one for one in entries if one["answers"][RISK_PEER]["noise"] is not None]
    if judged:
        noisy = max(judged, key=noise_over_the_peer)
        listed.append(
            target(
                "noise for a risk over that of riskcal",
                noise_over_the_peer(noisy),
                at_most=RISK_NOISE,
                where=noisy["risk"],
            )
        )
    return listed


def noise_over_the_peer(entry: dict[str, Any]) -> float:
    return float(entry["answers"][OURS]["noise"] / entry["answers"][RISK_PEER]["noise"])


def usable(answer: dict[str, Any] | None) -> bool:
    """A finite epsilon within the time allowed is an answer."""
    return answer is not None and answer["seconds"] is not None and answer["upper"] is not None


def our_seconds(row: dict[str, Any]) -> float:
    seconds = row["answers"][OURS]["seconds"]
    return math.inf if seconds is None else float(seconds)


def times_faster(row: dict[str, Any], peer: str = PEER) -> float:
    return float(row["answers"][peer]["seconds"]) / our_seconds(row)


def our_width(row: dict[str, Any]) -> float:
    ours = row["answers"][OURS]
    return float(ours["upper"] - ours["lower"]) if usable(ours) else math.inf


def share_of_upper(row: dict[str, Any]) -> float:
    return our_width(row) / float(row["answers"][OURS]["upper"] or math.inf)


def peer_width(row: dict[str, Any]) -> float | None:
    """From the peer's optimistic to its pessimistic estimate; None if it has no lower one."""
    optimistic = row["answers"].get(OPTIMISTIC)
    if optimistic is None or optimistic["lower"] is None:
        return None
    return float(row["answers"][PEER]["upper"] - optimistic["lower"])


def relative_width(row: dict[str, Any]) -> float:
    """Our bracket over the peer's; 1 where both are as tight as a millionth."""
    width, theirs = our_width(row), peer_width(row)
    assert theirs is not None
    if width <= 1e-6 and theirs <= 1e-6:
        return min(1.0, width / theirs) if theirs > 0.0 else 1.0
    return width / theirs if theirs > 0.0 else math.inf
