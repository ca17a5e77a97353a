"""What attacks find, beside published figures, a peer, and what certificates allow.

    python benchmarks/reproduce_attacks.py [--only PART ...] [--from-results]

Parts: location, adult, mnist and purchases (Shokri's attack in the paper's settings), lira, art
(the same attack by the Adversarial Robustness Toolbox, in an environment of its own), certificates
(all attacks against DP-SGD), attribute, property and inversion. Writes benchmarks/results/
attacks.json, pictures there and in docs/images, and the tables between the markers of
docs/attack-results.md; exits with 1 if a target is missed. With --only the other parts stay as they
were recorded; with --from-results everything recorded is judged, drawn and tabulated again.

The data sets are looked for in $DISCREET_DATA, in shared/data beside the project, in the cache,
and on the web.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import attack_art
import attack_attribute
import attack_certificates
import attack_inversion
import attack_lira
import attack_property
import attack_shokri
import attack_trend
from attack_tables import TABLES, measured
from attack_targets import judged

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RECORD = RESULTS / "attacks.json"
PAGE = ROOT / "docs" / "attack-results.md"
IMAGES = ROOT / "docs" / "images"


def places(name: str) -> tuple[Path, Path]:
    return RESULTS / f"attacks-{name}.png", IMAGES / f"attacks-{name}.png"


def inversion() -> list[dict[str, Any]]:
    """The pictures exist only while the part runs, so they are drawn here."""
    rows, pictures = attack_inversion.measure()
    for place in places("inversion"):
        attack_inversion.draw(rows, pictures, place)
    return rows


PARTS: dict[str, Callable[[], Any]] = {
    "location": lambda: attack_shokri.measure(only="Location"),
    "adult": lambda: attack_shokri.measure(only="Adult"),
    "mnist": lambda: attack_shokri.measure(only="MNIST"),
    "purchases": lambda: attack_shokri.measure(only="purchases"),
    "lira": attack_lira.measure,
    "art": attack_art.measure,
    "certificates": attack_certificates.measure,
    "attribute": attack_attribute.measure,
    "property": attack_property.measure,
    "inversion": inversion,
}


def draw(parts: dict[str, Any]) -> None:
    """All pictures but that of the inversion, from what is recorded."""
    if "purchases" in parts:
        attack_trend.draw(parts["purchases"]["found"], *places("purchases"))
    if "lira" in parts:
        attack_lira.draw(parts["lira"]["found"], *places("lira"))
    if "certificates" in parts:
        attack_certificates.draw(parts["certificates"]["found"], *places("certificates"))
    for name, module in (("attribute", attack_attribute), ("property", attack_property)):
        if name in parts:
            for place in places(name):
                module.draw(parts[name]["found"], place)


def write_between(text: str, marker: str, content: str) -> str:
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{PAGE.name} needs one {begin} and one {end}")
    head, rest = text.split(begin)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def publish(results: dict[str, Any]) -> None:
    """Pictures and tables; the record itself is written after each part."""
    draw(results["parts"])
    page = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        page = write_between(page, f"attacks {name}", table(results))
    PAGE.write_text(page, encoding="utf-8")


def recorded() -> dict[str, Any]:
    if not RECORD.exists():
        return {"targets": [], "parts": {}}
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def record(name: str, part: dict[str, Any]) -> dict[str, Any]:
    """Put one part into the record, in the order of PARTS, and judge all that is there."""
    parts = recorded()["parts"] | {name: part}
    return written({each: parts[each] for each in PARTS if each in parts})


def written(parts: dict[str, Any]) -> dict[str, Any]:
    results = {"targets": judged(parts), "parts": parts}
    RESULTS.mkdir(exist_ok=True)
    fresh = RECORD.with_suffix(".new")
    fresh.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    fresh.replace(RECORD)
    return results


def environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from-results", action="store_true", help="only judge and draw again")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="these parts only")
    options = parser.parse_args()
    attack_shokri.use_shared_data()
    IMAGES.mkdir(exist_ok=True)
    # Softmax gives tiny numbers; arithmetic on denormal ones is many times slower.
    torch.set_flush_denormal(True)
    threads = torch.get_num_threads()
    results = written(recorded()["parts"]) if options.from_results else recorded()
    for name in () if options.from_results else options.only or PARTS:
        print(f"--- {name}", flush=True)
        # Some parts leave torch with one thread.
        torch.set_num_threads(threads)
        around, start = environment(), time.perf_counter()
        found = PARTS[name]()
        seconds = time.perf_counter() - start
        results = record(name, {"seconds": seconds, "environment": around, "found": found})
    publish(results)
    for target in results["targets"]:
        verdict = "met" if target["met"] else "MISSED"
        print(f"{target['what']}: {measured(target)} ({target['target']}) {verdict}")
    return 0 if all(target["met"] for target in results["targets"]) else 1


if __name__ == "__main__":
    sys.exit(main())
