"""What every benchmark shares: targets, records, tables, pictures and the commands on them.

A suite states what is special: how to measure, which targets to hold the measurements to, and which
tables, pictures and numbers of the documentation follow from them. `python benchmarks --help` lists
the commands; the Makefile has a target for each.

A run writes into build/bench, which git ignores. `record` takes a whole run into
benchmarks/results, and `figures` writes everything that README and docs quote from there. So
running a benchmark never changes what is published, and nothing that is published can fall behind
its record.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BUILD = ROOT / "build" / "bench"
IMAGES = ROOT / "docs" / "images"
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "opacus", "opendp", "dp-accounting")

# The module of each suite. Some are one experiment of a paper: `make reproduce-NAME` runs those.
SUITES = {
    "accounting": "accounting",
    "attacks": "reproduce_attacks",
    "audit": "audit_training",
    "audit_peers": "audit_peers",
    "correlated": "correlated",
    "curator_attacks": "curator_attacks",
    "curator_engine": "curator_engine",
    "curator_killing": "curator_killing",
    "curator_service": "curator_service",
    "defences": "defences",
    "detection": "detection_table",
    "dpsgd": "reproduce_dpsgd",
    "dpsgd_settings": "dpsgd_settings",
    "federated": "federated_rounds",
    "federated_model": "federated_model",
    "finetuning": "finetuning",
    "learners": "learners",
    "learners_auc": "learners_auc",
    "learners_defaults": "learners_defaults",
    "ledger": "stress_ledger",
    "local": "local",
    "local_model": "local_model",
    "memorisation": "memorisation",
    "methods": "readme_table",
    "models": "models",
    "mutants": "learner_mutants",
    "mutants_code": "mutants_code",
    "noise": "noise",
    "pate": "reproduce_pate",
    "pate_labels": "pate_labels",
    "pate_teachers": "pate_teachers",
    "peers": "peers_table",
    "schema_bounds": "schema_bounds",
    "synth": "synth_tables",
    "theory": "theory_practice",
    "theory_shokri": "theory_shokri",
    "training": "training",
    "walks": "walks",
}

Record = dict[str, Any]


def target(
    what: str,
    measured: float | None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    where: str = "",
) -> Record:
    """Return a target beside what was measured; what was not measured is not met."""
    if (at_least is None) == (at_most is None):
        raise ValueError(f"{what}: give one of at_least and at_most")
    known = measured is not None and not math.isnan(measured)
    if at_most is not None:
        met, asked = known and measured <= at_most, f"at most {at_most:g}"
    else:
        met, asked = known and measured >= at_least, f"at least {at_least:g}"
    found = {"what": what, "target": asked, "measured": measured, "met": bool(met)}
    return {**found, "where": where} if where else found


def claim(what: str, holds: bool) -> Record:
    """Return a target that is a statement, true or false."""
    return {"what": what, "target": "holds", "measured": float(holds), "met": bool(holds)}


@dataclass(frozen=True)
class Run:
    """What was asked for: a quick run, or some parts only."""

    quick: bool = False
    only: tuple[str, ...] = ()
    folder: Path = BUILD

    def wants(self, part: str) -> bool:
        return not self.only or part in self.only

    def resume(self, name: str) -> Record:
        """Return what an interrupted run of hours had saved, or nothing."""
        return read_record(f"{name}.partial", self.folder) or {}

    def save(self, name: str, partial: Record) -> None:
        """Save what is done so far, so that the next run goes on from there."""
        write_record(partial, f"{name}.partial", self.folder)


@dataclass(frozen=True)
class Suite:
    """One benchmark: how it is run and what follows from its record.

    ``run`` measures and returns plain JSON. With ``parts``, it returns one entry for each part that
    was asked for, and records are taken part by part. ``targets`` reads a whole record. ``tables``
    maps a page and a marker to a function of the record, ``pictures`` a file name to a function
    that draws the record to a path, ``numbers`` a key to the text that stands for it in prose.
    ``made`` lists pictures that only a run can make.
    """

    name: str
    run: Callable[[Run], Record] | None = None
    targets: Callable[[Record], Iterable[Record]] = lambda _: ()
    parts: tuple[str, ...] = ()
    tables: Mapping[tuple[str, str], Callable[[Record], str]] = field(default_factory=dict)
    pictures: Mapping[str, Callable[[Record, Path], None]] = field(default_factory=dict)
    numbers: Mapping[str, Callable[[Record], str]] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    def read(self) -> Record | None:
        """Return the record, or those of all suites that this one reads; None without one."""
        if self.reads:
            found = {name: read_record(name) for name in self.reads}
            return None if None in found.values() else found
        return read_record(self.name)

    def judge(self, record: Record) -> Record:
        """Return the record with its targets computed anew."""
        return {**record, "targets": [dict(each) for each in self.targets(record)]}


def load(name: str) -> Suite:
    """Import one suite."""
    found = import_module(SUITES[name]).SUITE
    assert isinstance(found, Suite)
    assert found.name == name
    return found


def read_record(name: str, folder: Path | None = None) -> Record | None:
    place = (folder or RESULTS) / f"{name}.json"
    if not place.exists():
        return None
    found: Record = json.loads(place.read_text(encoding="utf-8"))
    return found


def write_record(record: Record, name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{name}.json"
    fresh = place.with_suffix(".new")
    text = json.dumps(jsonable(record), indent=1, allow_nan=False) + "\n"
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(place)


def jsonable(value: Any) -> Any:
    """Return the same with infinities, which JSON does not know, as words."""
    if isinstance(value, dict):
        return {key: jsonable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def environment() -> Record:
    """Return what a reader must know about the machine, and nothing that names it."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "versions": versions,
    }


def revision() -> str:
    """Return the commit, with a plus where the tree has changes."""
    git = ["git", "-C", str(ROOT)]
    head, changed = (
        subprocess.run([*git, *words], capture_output=True, text=True, check=False)
        for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain"])
    )
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def found(record: Record, part: str) -> Any:
    """Return what a part of a record measured; a dictionary or list that is empty without it."""
    return record["parts"][part]["found"] if part in record["parts"] else {}


def number(part: str, show: Callable[[Any], str]) -> Callable[[Record], str]:
    """Return what writes a number of a part, or says that there is none yet."""
    return lambda record: show(found(record, part)) if part in record["parts"] else "(not measured)"


def use_shared_data() -> None:
    """Look for data sets beside the project, unless DISCREET_DATA says where they are."""
    beside = ROOT.parent / "shared" / "data"
    if beside.is_dir():
        os.environ.setdefault("DISCREET_DATA", str(beside))


# --- commands ------------------------------------------------------------------------------


def run_suite(name: str, *, quick: bool = False, only: Iterable[str] = ()) -> Record:
    """Run a suite, write what it measured into build/bench, and return it with its targets."""
    suite = load(name)
    chosen = tuple(only)
    unknown = [part for part in chosen if part not in suite.parts]
    if suite.run is None or unknown:
        allowed = ", ".join(suite.parts) or "nothing: it has no parts"
        raise SystemExit(f"{name}: cannot run {' '.join(unknown) or 'it'}; parts: {allowed}")
    use_shared_data()
    around, start = environment(), time.perf_counter()
    measured = suite.run(Run(quick, chosen, BUILD))
    about = {
        "revision": revision(),
        "quick": quick,
        "seconds": round(time.perf_counter() - start, 1),
        "environment": around,
    }
    if suite.parts:
        # Parts are measured at different times: each has its own surroundings.
        record = {"parts": {part: {**about, "found": measured[part]} for part in measured}}
    else:
        record = {**measured, "about": about}
    record = suite.judge(record)
    write_record(record, name, BUILD)
    (BUILD / f"{name}.partial.json").unlink(missing_ok=True)
    for picture, draw in suite.pictures.items():
        if not chosen:
            draw(record, BUILD / picture)
    return record


def report(record: Record) -> int:
    """Print every target beside what was measured; return 1 if one is missed."""
    for entry in record["targets"]:
        verdict = "met   " if entry["met"] else "MISSED"
        shown = "not measured" if entry["measured"] is None else f"{entry['measured']:.4g}"
        where = f"; {entry['where']}" if entry.get("where") else ""
        print(f"{verdict} {entry['what']}: {shown} ({entry['target']}{where})")
    return 0 if all(entry["met"] for entry in record["targets"]) else 1


def take(name: str, *, reason: str | None = None) -> None:
    """Take the last run into the records: a whole one, of a clean tree, that met its targets."""
    suite = load(name)
    fresh = read_record(name, BUILD)
    if fresh is None:
        raise SystemExit(f"{name} was not run: make bench-{name} or make reproduce-{name} first")
    abouts = list(fresh["parts"].values()) if suite.parts else [fresh["about"]]
    if any(about["quick"] for about in abouts):
        raise SystemExit(f"{name}: the last run was a quick one")
    if any(about["revision"].endswith("+") for about in abouts):
        raise SystemExit(f"{name}: the last run was made with changes that are not committed")
    if suite.parts:
        parts = (read_record(name) or {"parts": {}})["parts"] | fresh["parts"]
        fresh = {**fresh, "parts": {part: parts[part] for part in suite.parts if part in parts}}
    judged = suite.judge(fresh)
    missed = [entry["what"] for entry in judged["targets"] if not entry["met"]]
    if missed and not reason:
        raise SystemExit(f"{name} missed {'; '.join(missed)}: record it with REASON='...'")
    if missed:
        judged["missed_because"] = reason
    write_record(judged, name, RESULTS)
    for picture in suite.made:
        if (BUILD / picture).exists():
            shutil.copy(BUILD / picture, IMAGES / picture)


def figures(*, check: bool = False, names: Iterable[str] = SUITES) -> list[str]:
    """Write every table, picture and number of the docs; with ``check`` list what differs."""
    pages: dict[Path, str] = {}
    wrong: list[str] = []
    for suite in map(load, names):
        record = suite.read()
        if record is None:
            continue
        if not suite.reads:
            record = suite.judge(record)
        for (page, marker), table in suite.tables.items():
            path = ROOT / page
            text = pages.get(path) or path.read_text(encoding="utf-8")
            pages[path] = write_between(text, marker, table(record), page)
        for picture, draw in suite.pictures.items():
            digest = digest_of(record)
            shown = any(f"images/{picture}" in text for text in pages.values())
            if not check:
                draw_with_digest(draw, record, RESULTS / picture, digest)
            if not shown and not (RESULTS / picture).exists():
                continue  # its part was not measured yet
            places = [RESULTS / picture]
            if shown or (IMAGES / picture).exists():
                places.append(IMAGES / picture)
            if not check:
                for place in places[1:]:
                    shutil.copy(places[0], place)
            wrong += [
                f"{place.relative_to(ROOT)} is not that of {suite.name}.json"
                for place in places
                if digest_in(place) != digest
            ]
        wrong += write_numbers(suite, record, pages)
    for path, text in pages.items():
        if text != path.read_text(encoding="utf-8"):
            if check:
                wrong.append(f"{path.relative_to(ROOT)} does not show its records")
            else:
                path.write_text(text, encoding="utf-8")
    return wrong


def write_between(text: str, marker: str, content: str, page: str = "the page") -> str:
    """Return the text with what stands between the two marks replaced."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{page} needs one {begin} and one {end}")
    head, rest = text.split(begin)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def write_numbers(suite: Suite, record: Record, pages: dict[Path, str]) -> list[str]:
    """Replace each `<!--=suite.key-->text<!--/-->`; list keys that no page uses."""
    if not suite.numbers:
        return []
    unused = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if path not in pages:
            pages[path] = path.read_text(encoding="utf-8")
    for key, show in suite.numbers.items():
        mark = re.compile(
            rf"(<!--={re.escape(suite.name)}\.{re.escape(key)}-->).*?(<!--/-->)", re.DOTALL
        )
        text = show(record)
        found = 0
        for path, page in pages.items():
            pages[path], count = mark.subn(lambda m, text=text: m[1] + text + m[2], page)
            found += count
        if not found:
            unused.append(f"no page shows {suite.name}.{key}")
    return unused


def digest_of(record: Record) -> str:
    text = json.dumps(jsonable(record), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def draw_with_digest(
    draw: Callable[[Record, Path], None], record: Record, place: Path, digest: str
) -> None:
    """Draw, and note in the picture of which record it is."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    place.parent.mkdir(exist_ok=True)
    draw(record, place)
    if not place.exists():
        return
    notes = PngInfo()
    notes.add_text("record", digest)
    with Image.open(place) as image:
        image.load()
        image.save(place, pnginfo=notes, optimize=True)


def digest_in(place: Path) -> str | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(place) as image:
            return str(image.info.get("record"))
    except (FileNotFoundError, UnidentifiedImageError):
        return None
