"""The tables of docs/attack-results.md, made from what benchmarks/reproduce_attacks.py recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attack_shokri import SETTINGS
from discreet._confidence import proportion
from discreet.attacks._roc import area_interval

NOTHING = "*Not recorded yet.*"


def share(part: dict[str, Any] | None, digits: int = 3) -> str:
    """A share with its interval."""
    if part is None:
        return "nobody called"
    return f"{part['share']:.{digits}f} [{part['low']:.{digits}f}, {part['high']:.{digits}f}]"


def area(value: float, low: float, high: float) -> str:
    """An area under the curve with its interval."""
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def signed(part: dict[str, Any]) -> str:
    """A difference with its interval."""
    return f"{part['value']:+.3f} [{part['low']:+.3f}, {part['high']:+.3f}]"


def rows_of(results: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    parts = results["parts"]
    return [row for name in names if name in parts for row in parts[name]["found"]]


def measured(entry: dict[str, Any]) -> str:
    """What was measured, if anything was."""
    return "-" if entry["measured"] is None else f"{entry['measured']:.4g}"


def table(head: tuple[str, ...], right: int, rows: list[tuple[str, ...]]) -> str:
    """A table whose last ``right`` columns are numbers."""
    if not rows:
        return NOTHING
    rule = ["---"] * (len(head) - right) + ["---:"] * right
    lines = [head, tuple(rule), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shokri(results: dict[str, Any]) -> str:
    head = ("setting", "train", "test", "precision, paper", "the paper's attack", "`shokri()`")
    paper = {one.name: one.paper for one in SETTINGS}
    rows = [
        (
            row["setting"],
            f"{row['train']:.3f} ({paper[row['setting']][0]:.3f})",
            f"{row['test']:.3f} ({paper[row['setting']][1]:.3f})",
            f"{paper[row['setting']][2]:.3f}",
            share(row["as_in_the_paper"]["precision"]),
            share(row["ours"]["precision"]),
            f"{row['training_seconds'] + row['ours']['seconds']:.0f}",
        )
        for row in rows_of(results, "location", "adult", "mnist", "purchases", "hospital")
    ]
    return table((*head, "seconds"), 6, rows)


def purchases(results: dict[str, Any]) -> str:
    """The picture alone: the figures are in the table of all settings."""
    if "purchases" not in results["parts"]:
        return NOTHING
    return "![Precision by the number of classes](images/attacks-purchases.png)"


def sides(found: dict[str, Any]) -> tuple[int, int]:
    """How many members and how many others were judged."""
    members = found["recall"]["trials"]
    return members, found["accuracy"]["trials"] - members


def networks(results: dict[str, Any]) -> str:
    head = ("shadow models", "precision", "recall", "AUC", "accuracy")
    rows = [
        (
            row["shadows"],
            share(row["ours"]["precision"]),
            share(row["ours"]["recall"]),
            area(row["ours"]["auc"], *area_interval(row["ours"]["auc"], *sides(row["ours"]))),
            share(row["ours"]["accuracy"]),
        )
        for row in rows_of(results, "networks")
    ]
    return table(head, 4, rows)


def epochs(results: dict[str, Any]) -> str:
    head = ("attack model trained", "precision", "mean over classes", "median", "recall")
    at = "precision at a recall of 99.5 %"
    rows = [
        (
            each["trained"],
            share(each["precision"]),
            f"{each['mean_over_classes']:.3f}",
            f"{each['median_over_classes']:.3f}",
            share(each["recall"]),
            ", ".join(f"{p['precision']:.3f}" for p in each["at_recall"] if p["wanted"] == 0.995),
        )
        for row in rows_of(results, "location")
        for each in [
            {"trained": "100 epochs, judged", **row["as_in_the_paper"]},
            *row["other_training"],
        ]
    ]
    return table((*head, at), 5, rows)


def lira(results: dict[str, Any]) -> str:
    if "lira" not in results["parts"]:
        return NOTHING
    found = results["parts"]["lira"]["found"]
    head = ("attack", "AUC", "TPR at 10 % FPR", "at 1 %", "at 0.1 %", "single targets at 0.1 %")
    rows = [
        (
            row["attack"],
            area(**row["auc"]),
            *(share(point, 4) for point in row["tpr_at_fpr"]),
            f"{row['single_targets']['lowest']:.4f} to {row['single_targets']['highest']:.4f}",
            f"{row['seconds']:.0f}",
        )
        for row in found["attacks"]
    ]
    return table((*head, "seconds"), 6, rows)


def middle(row: dict[str, Any], figure: str) -> dict[str, Any]:
    """The median run's accuracy or precision, with its interval."""

    def counts(run: dict[str, Any]) -> tuple[int, int]:
        hits, false = run["true_positives"], run["false_positives"]
        if figure == "precision":
            return hits, hits + false
        return hits + run["nonmembers"] - false, run["members"] + run["nonmembers"]

    runs = sorted((counts(run) for run in row["runs"]), key=lambda one: one[0] / one[1])
    return proportion(*runs[len(runs) // 2]).to_json()


def art(results: dict[str, Any]) -> str:
    if "art" not in results["parts"]:
        return NOTHING
    found = results["parts"]["art"]["found"]
    mine = next(row["seconds"] for row in found["rows"] if row["who"] == "discreet")
    rows = [
        (
            row["who"],
            row["attack_model"],
            *(share(middle(row, figure)) for figure in ("accuracy", "precision")),
            f"{row['training_seconds']:.1f}",
            f"{row['seconds']:.1f}",
            f"{row['processor_seconds']:.1f}",
            f"{row['seconds'] / mine:.1f}",
        )
        for row in found["rows"]
    ]
    head = ("who", "attack model", "accuracy", "precision", "seconds, shadows", "in all")
    return table((*head, "processor seconds", "times"), 6, rows)


def certificates(results: dict[str, Any]) -> str:
    head = ("epsilon", "accuracy", "best attack by AUC", "AUC", "best TPR at 1 % FPR", "outside")
    rows = []
    for row in rows_of(results, "certificates"):
        attacks = row["attacks"]
        best = max(attacks, key=lambda name: attacks[name]["auc"]["value"])
        low = [
            point
            for each in attacks.values()
            for point in each["tpr_at_fpr"]
            if point["fpr"] == 0.01
        ]
        outside = sum(each["outside"] for each in attacks.values())
        points = sum(each["points"] for each in attacks.values())
        rows.append(
            (
                "no privacy" if row["epsilon"] is None else f"{row['epsilon']:g}",
                f"{row['accuracy_on_public']:.3f}",
                best,
                area(**attacks[best]["auc"]),
                share(max(low, key=lambda point: point["share"])),
                "-" if row["epsilon"] is None else f"{outside} of {points}",
                f"{row['seconds']:.0f}",
            )
        )
    return table((*head, "seconds"), 4, rows)


def attribute(results: dict[str, Any]) -> str:
    head = ("model", "attribute", "prior", "attack, members", "attack, others", "imputation")
    rows = [
        (
            row["model"],
            row["attribute"],
            row["prior"],
            share(row["attack_on_members"]),
            share(row["attack_on_nonmembers"]),
            share(row["imputation_on_members"]),
            signed(row["excess"]),
            f"{row['seconds']:.1f}",
        )
        for row in rows_of(results, "attribute")
    ]
    return table((*head, "excess", "seconds"), 5, rows)


def held_out(row: dict[str, Any]) -> tuple[int, int]:
    """How many models with and without the property were judged."""
    return row["with_property"]["trials"], row["without_property"]["trials"]


def properties(results: dict[str, Any]) -> str:
    rows = [
        (
            row["property"],
            row["access"],
            share(row["accuracy"]),
            area(row["auc"], *area_interval(row["auc"], *held_out(row))),
            f"{row['training_seconds'] + row['seconds']:.0f}",
        )
        for row in rows_of(results, "property")
    ]
    return table(("property", "the attacker sees", "accuracy", "AUC", "seconds"), 3, rows)


def inversion(results: dict[str, Any]) -> str:
    head = ("attacked model", "judge", "recognised", "photographs recognised", "seconds")
    rows = [
        (
            row["model"],
            row["judge"],
            share(row["rate"]),
            share(row["photographs"]),
            f"{row['seconds']:.0f}",
        )
        for row in rows_of(results, "inversion")
    ]
    return table(head, 3, rows)


def targets(results: dict[str, Any]) -> str:
    said = {True: "yes", False: "**no**"}
    rows = [
        (each["what"], each["target"], measured(each), said[each["met"]])
        for each in results["targets"]
    ]
    return table(("target", "asked for", "measured", "met"), 2, rows)


def pictured(
    name: str, text: str, under: Callable[[dict[str, Any]], str]
) -> Callable[[dict[str, Any]], str]:
    """A table under its picture, which exists once its part was recorded."""

    def both(results: dict[str, Any]) -> str:
        if name not in results["parts"]:
            return under(results)
        return f"![{text}](images/attacks-{name}.png)\n\n{under(results)}"

    return both


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "targets": targets,
    "shokri": shokri,
    "purchases": purchases,
    "networks": networks,
    "epochs": epochs,
    "lira": pictured("lira", "Curves on logarithmic axes", lira),
    "art": art,
    "certificates": pictured(
        "certificates", "Curves of all attacks, one panel for each epsilon", certificates
    ),
    "attribute": pictured("attribute", "Attack and imputation by model", attribute),
    "property": pictured("property", "Accuracy of the attack by property", properties),
    "inversion": pictured("inversion", "Photographs above what was read off the models", inversion),
}
