"""What attacks find, beside published figures, a peer, and what certificates allow.

Parts: location, adult, mnist, purchases and hospital (Shokri's attack in the paper's settings),
networks (shadow models of other architectures), lira, art (the same attack by the Adversarial
Robustness Toolbox, in an environment of its own), certificates (all attacks against DP-SGD),
attribute, property, inversion, prior (half a photograph and a generator of faces), subjects
(predicted numbers, checkpoints, persons and data sets), and rivals (LeakPro and ML Privacy Meter on
the same scores).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import attack_art
import attack_attribute
import attack_certificates
import attack_inversion
import attack_lira
import attack_prior
import attack_property
import attack_rivals
import attack_shokri
import attack_subjects
import attack_trend
from attack_tables import TABLES
from attack_targets import LOW, judged, tpr_at
from harness import Run, Suite, found


def inversion(folder: Path) -> list[dict[str, Any]]:
    """The pictures exist only while the part runs, so they are drawn here."""
    rows, pictures = attack_inversion.measure()
    folder.mkdir(parents=True, exist_ok=True)
    attack_inversion.draw(rows, pictures, folder / "attacks-inversion.png")
    return rows


def prior(folder: Path) -> list[dict[str, Any]]:
    """The pictures of this part exist only while it runs, too."""
    rows, pictures = attack_prior.measure()
    folder.mkdir(parents=True, exist_ok=True)
    attack_prior.draw(pictures, folder / "attacks-prior.png")
    return rows


PARTS: dict[str, Callable[[], Any]] = {
    "location": lambda: attack_shokri.measure(only="Location"),
    "adult": lambda: attack_shokri.measure(only="Adult"),
    "mnist": lambda: attack_shokri.measure(only="MNIST"),
    "purchases": lambda: attack_shokri.measure(only="purchases"),
    "hospital": lambda: attack_shokri.measure(only="hospital"),
    "networks": attack_shokri.other_networks,
    "lira": attack_lira.measure,
    "art": attack_art.measure,
    "certificates": attack_certificates.measure,
    "attribute": attack_attribute.measure,
    "property": attack_property.measure,
    "subjects": attack_subjects.measure,
    "rivals": attack_rivals.measure,
}
DRAWINGS: dict[str, Callable[[Any, Path], None]] = {
    "purchases": attack_trend.draw,
    "lira": attack_lira.draw,
    "certificates": attack_certificates.draw,
    "attribute": attack_attribute.draw,
    "property": attack_property.draw,
}


def draw(part: str, record: dict[str, Any], place: Path) -> None:
    DRAWINGS[part](found(record, part), place)


def measure(asked: Run) -> dict[str, Any]:
    # Softmax gives tiny numbers; arithmetic on denormal ones is many times slower.
    torch.set_flush_denormal(True)
    threads = torch.get_num_threads()
    parts = {}
    drawn = {"inversion": partial(inversion, asked.folder), "prior": partial(prior, asked.folder)}
    for name, run in {**PARTS, **drawn}.items():
        if asked.wants(name):
            print(f"--- {name}", flush=True)
            # Some parts leave torch with one thread.
            torch.set_num_threads(threads)
            parts[name] = run()
    return parts


def percent_found(attack: str, record: dict[str, Any]) -> str:
    """Members found at 0.1 % false accusations."""
    rows = found(record, "lira")["attacks"]
    share = next(tpr_at(row, LOW) for row in rows if row["attack"] == attack)
    return f"{100 * share:.1f} %"


SUITE = Suite(
    "attacks",
    measure,
    lambda record: [
        *judged(record["parts"]),
        *attack_rivals.judged(found(record, "rivals")),
        *attack_prior.judged(found(record, "prior")),
    ],
    parts=(*PARTS, "inversion", "prior"),
    tables={
        **{("docs/attack-results.md", f"attacks {name}"): table for name, table in TABLES.items()},
        ("docs/attack-results.md", "attacks subjects"): lambda record: attack_subjects.table(
            found(record, "subjects")
        ),
        ("docs/attack-results.md", "attacks prior"): lambda record: attack_prior.table(
            found(record, "prior")
        ),
        ("docs/attack-results.md", "attacks rivals"): lambda record: attack_rivals.table(
            found(record, "rivals")
        ),
    },
    pictures={f"attacks-{name}.png": partial(draw, name) for name in DRAWINGS},
    made=("attacks-inversion.png", "attacks-prior.png"),
    numbers={"yeom": partial(percent_found, "yeom"), "lira": partial(percent_found, "lira online")},
)
