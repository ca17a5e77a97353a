"""The targets of benchmarks/reproduce_attacks.py, held against what was recorded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from harness import target

LOW = 0.001
LIRA_OVER_YEOM = 10.0
TOP_OF_THE_TREND = 0.8
FASTER_THAN_ART = 5.0
# What ART does unless it is told otherwise.
ART_DEFAULT = "ART, nn"
# The parts that have targets.
JUDGED = ("location", "adult", "mnist", "purchases", "lira", "art", "certificates")


def judged(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target, with what was measured; that of a part that is not recorded is missed."""
    targets: list[dict[str, Any]] = []
    for name in ("location", "adult", "mnist"):
        targets += [_near_the_paper(row) for row in _found(parts, name, [])]
    targets += _trend(_found(parts, "purchases", []))
    if "lira" in parts:
        targets.append(_lira(parts["lira"]["found"]))
    if "art" in parts:
        targets += _art(parts["art"]["found"])
    for row in _found(parts, "certificates", []):
        if row["epsilon"] is not None:
            outside = sum(each["outside"] for each in row["attacks"].values())
            what = f"DP-SGD at epsilon {row['epsilon']:g}: points of curves outside the region"
            targets.append(target(what, outside, at_most=0))
    return targets + [_unrecorded(name) for name in JUDGED if not _found(parts, name, [])]


def precision_of(part: dict[str, Any]) -> float:
    """The share of members among those called members; 0 if nobody is."""
    share = part["precision"]
    return 0.0 if share is None else float(share["share"])


def tpr_at(row: dict[str, Any], fpr: float) -> float:
    return float(next(point["share"] for point in row["tpr_at_fpr"] if point["fpr"] == fpr))


def _found(parts: dict[str, Any], name: str, default: Any) -> Any:
    return parts[name]["found"] if name in parts else default


def _near_the_paper(row: dict[str, Any]) -> dict[str, Any]:
    recall = row["paper"].get("recall")
    if recall is None:
        precision, where = precision_of(row["as_in_the_paper"]), ""
    else:
        points = row["as_in_the_paper"]["at_recall"]
        precision = next(point["precision"] for point in points if point["wanted"] == recall)
        where = f" at a recall of {recall:.1%}"
    distance = abs(precision - row["paper"]["precision"])
    what = f"{row['setting']}: precision of the paper's attack{where}, distance from the paper"
    return target(what, distance, at_most=row["within"])


def _trend(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(rows) < 2:
        return [_unrecorded("purchases")] if rows else []
    precisions = [precision_of(row["as_in_the_paper"]) for row in rows]
    smallest = min(later - earlier for earlier, later in pairwise(precisions))
    return [
        target("made-up purchases: smallest rise of the precision", smallest, at_least=1e-9),
        target(
            "made-up purchases: precision with the most classes",
            precisions[-1],
            at_least=TOP_OF_THE_TREND,
        ),
    ]


def _lira(found: dict[str, Any]) -> dict[str, Any]:
    rows = {row["attack"]: tpr_at(row, LOW) for row in found["attacks"]}
    ratio = rows["lira online"] / max(rows["yeom"], 1e-9)
    return target("LiRA: TPR at 0.1 % FPR over Yeom's", ratio, at_least=LIRA_OVER_YEOM)


def _art(found: dict[str, Any]) -> list[dict[str, Any]]:
    rows = {row["who"]: row for row in found["rows"]}
    mine = rows["discreet"]
    peers = [row for who, row in rows.items() if who != "discreet"]
    lead = mine["accuracy"] - max(row["accuracy"] for row in peers)
    rivals = {
        "default attack": rows[ART_DEFAULT],
        "fastest attack": min(peers, key=lambda row: row["seconds"]),
        "most accurate attack": max(peers, key=lambda row: row["accuracy"]),
    }
    return [
        target("accuracy ahead of the best of ART's attack models by", lead, at_least=0.0),
        *(
            target(
                f"speed over ART's {name}",
                rival["seconds"] / mine["seconds"],
                at_least=FASTER_THAN_ART,
            )
            for name, rival in rivals.items()
        ),
    ]


def _unrecorded(name: str) -> dict[str, Any]:
    return {"what": f"part {name}", "measured": None, "target": "recorded", "met": False}
