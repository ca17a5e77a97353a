"""What must hold before a release: files, docs, extras, licences, vulnerabilities, parts.

python benchmarks/release_check.py [QUESTION ...]     such as build extras

Builds both distributions into build/release, looks into them, builds the documentation, installs
the wheel with each extra into an environment of its own and uses it there, reads the licence of
every package that Discreet or an extra needs, asks pip whether they resolve for other versions of
Python, asks pip-audit for known vulnerabilities if its database can be had, and writes a software
bill of materials (CycloneDX). Prints one line for each; what could not be asked is *not checked*.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path

import notebooks

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"
# Not part of a distribution: how the repository is hosted.
OUTSIDE = (".github/",)
USERS_EXTRAS = ("torch", "tables", "jit", "curator", "serve", "postgres", "ray", "spark")
OTHER_PYTHONS = ("3.12", "3.13")
# What each extra is for, in one line that needs it; "" is the wheel without extras.
USES = {
    "": "from discreet.privacy import PureDP; PureDP(1.0).epsilon(delta=0)",
    "tables": "from discreet.learn import *; PrivateLogisticRegression(classes=[0, 1], "
    "bounds=(0, 1), expected_rows=4).fit([[0], [1]] * 2, [0, 1] * 2)",
    "torch": "from discreet.learn.dpsgd import Plan; import torch, safetensors; Plan(examples=9, "
    "expected_batch_size=3, steps=1, clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)",
    "jit": "import numba; import discreet.learn.projected_sgd",
    "curator": "from discreet.curator import *; from discreet.data import *; CuratedDataset('a', "
    "schema=Schema({'x': Real(0, 1)}, expected_rows=2), source={'x': [0.0, 1.0]}).close()",
    "serve": "import discreet.curator.service, fastapi, httptools, httpx, uvicorn",
    "postgres": "import psycopg; import discreet.ledger",
    "ray": "import ray; import discreet.engines",
    "spark": "import pyspark; import discreet.engines",
    "demo": "import discreet.demo, sklearn, torch",
}


class NotChecked(Exception):
    """A question that could not be asked here."""


def run(*words: object) -> str:
    done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotChecked((done.stderr or done.stdout).strip().splitlines()[-1][:200])
    return done.stdout


def build() -> Iterator[str]:
    """Both distributions can be built."""
    shutil.rmtree(OUT, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", OUT, ROOT)
    yield from (f"{kind} is missing" for kind in ("*.tar.gz", "*.whl") if not list(OUT.glob(kind)))


def source_files() -> Iterator[str]:
    """The source distribution holds every file of the repository."""
    (archive,) = OUT.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        held = {name.partition("/")[2] for name in found.getnames()}
    tracked = run("git", "ls-files").splitlines()
    yield from (
        f"without {one}" for one in tracked if not one.startswith(OUTSIDE) and one not in held
    )


def wheel_files() -> Iterator[str]:
    """The wheel holds every file of the package."""
    (archive,) = OUT.glob("*.whl")
    with zipfile.ZipFile(archive) as found:
        held = set(found.namelist())
    tracked = run("git", "ls-files", "src").splitlines()
    yield from (f"without {one}" for one in tracked if one.removeprefix("src/") not in held)


def documentation() -> Iterator[str]:
    """The documentation is built without a warning, and shows what its notebooks showed."""
    yield from (f"{page} is not that of its notebook" for page in notebooks.stale_pages())
    with tempfile.TemporaryDirectory() as site:
        run(sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", site)


def extras() -> Iterator[str]:
    """The wheel works with every extra, each in an environment of its own, outside of here."""
    (wheel,) = OUT.glob("*.whl")
    stated = set(distribution("discreet").metadata.get_all("Provides-Extra") or [])
    inner = {"dev", "docs", "judges", "models", "test"}
    yield from (f"{extra} is not tried" for extra in sorted(stated - inner - USES.keys()))
    for extra, use in USES.items():
        with tempfile.TemporaryDirectory() as name:
            python = Path(name, "env", "bin", "python")
            run(sys.executable, "-m", "venv", Path(name, "env"))
            install = (python, "-m", "pip", "install", "--quiet", "--no-input", "--constraint")
            run(*install, ROOT / "constraints.txt", f"{wheel}[{extra}]" if extra else wheel)
            for words in (("-c", use), ("-m", "discreet.cli", "--version")):
                done = subprocess.run(
                    [python, "-I", *words], cwd=name, capture_output=True, text=True, check=False
                )
                if done.returncode:
                    yield f"{extra or 'no extra'}: {done.stderr.strip().splitlines()[-1][:200]}"


def needed() -> dict[str, Distribution | None]:
    """Return every package that Discreet or an extra for users needs, if it is installed here."""
    found: dict[str, Distribution | None] = {}
    queue = ["discreet"]
    while queue:
        for line in requires(queue.pop()) or []:
            name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower().replace("_", "-")
            extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
            wanted = extra is None or extra[1] in USERS_EXTRAS
            if name == "discreet" or not wanted or name in found or "sys_platform" in line:
                continue
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:
                found[name] = None
                continue
            if extra is None or found[name] is not None:
                queue.append(name)
    return found


def licence_of(package: Distribution) -> str:
    about = package.metadata
    stated = about.get("License-Expression") or ""
    named = [
        one.rpartition("::")[2].strip()
        for one in about.get_all("Classifier") or []
        if "License ::" in one
    ]
    plain = (about.get("License") or "").strip().splitlines()
    return stated or ", ".join(named) or (plain[0][:60] if plain else "")


def licences() -> Iterator[str]:
    """Every package that is needed states a licence, and none is under the GPL alone."""
    for name, package in needed().items():
        if package is not None:
            stated = licence_of(package)
            if not stated:
                yield f"{name} states no licence"
            elif re.search(r"\bA?GPL", stated) and "LGPL" not in stated and " OR " not in stated:
                yield f"{name} is under {stated}"


def resolution() -> Iterator[str]:
    """What Discreet needs resolves for other versions of Python (installing is not tried)."""
    (wheel,) = OUT.glob("*.whl")
    for version in OTHER_PYTHONS:
        options = ("--dry-run", "--ignore-installed", "--only-binary=:all:", "--python-version")
        target = ("--target", OUT / "nowhere", f"{wheel}[tables]")
        run(sys.executable, "-m", "pip", "install", "--quiet", *options, version, *target)
    yield from ()


def vulnerabilities() -> Iterator[str]:
    """pip-audit knows no vulnerability of what is installed."""
    words = (sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise NotChecked((done.stderr.strip().splitlines() or ["no answer"])[-1][:200])
    for one in json.loads(done.stdout)["dependencies"]:
        yield from (
            f"{one['name']} {one['version']}: {each['id']}" for each in one.get("vulns", [])
        )


def bill_of_materials() -> Iterator[str]:
    """The software bill of materials is written."""
    parts = [
        {
            "type": "library",
            "name": name,
            "version": package.version,
            "purl": f"pkg:pypi/{name}@{package.version}",
            "licenses": [{"license": {"name": licence_of(package)}}],
        }
        for name, package in sorted(needed().items())
        if package is not None
    ]
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": parts}
    (OUT / "sbom.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if len(parts) < 10:
        yield f"only {len(parts)} packages"


def changelog() -> Iterator[str]:
    """The version has its part of the changelog, with a Privacy heading."""
    version = distribution("discreet").version
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if "dev" in version:
        yield f"{version} is no release"
    elif f"## [{version}]" not in text:
        yield f"no part for {version}"


QUESTIONS: tuple[Callable[[], Iterator[str]], ...] = (
    *(build, source_files, wheel_files, documentation, extras, licences, resolution),
    *(vulnerabilities, bill_of_materials, changelog),
)


def main() -> int:
    wrong = 0
    asked = sys.argv[1:]
    for question in QUESTIONS:
        if asked and question.__name__ not in asked:
            continue
        what = (question.__doc__ or "").splitlines()[0]
        try:
            faults = list(question())
        except (NotChecked, ValueError) as reason:
            print(f"not checked  {what} {reason}", flush=True)
            continue
        wrong += bool(faults)
        print(f"{'WRONG      ' if faults else 'right      '}  {what}", *faults[:20], sep="\n    ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
