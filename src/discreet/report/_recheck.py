"""Find what version 0.1 wrote below a directory, and say which of its epsilons were too small."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from discreet.errors import DiscreetError, SchemaError
from discreet.learn import saved_certificate
from discreet.ledger import Ledger
from discreet.privacy import read_old

# Another version of the accountant may read the same loss a little differently.
_VERSIONS_AGREE = 1e-3
_LARGEST = 64 * 2**20
_OURS = {"certificate.json", "model.npz"}
_SQLITE = b"SQLite format 3\x00"
_NETWORK = (
    "the loss is charged rightly, but 0.1 did not look for padding that mixes examples, for "
    "trained parameters outside the model, or for a model that had been trained under an earlier "
    "plan: train again, or check these by hand (docs/pitfalls.md)"
)


@final
@dataclass(frozen=True)
class Rechecked:
    """One file of version 0.1: ``state`` is "sound", "affected" or "not checked".

    ``old`` is the epsilon that 0.1 stated or charged, ``new`` what the same loss costs; infinite
    where no theorem bounds it.
    """

    path: str
    kind: str
    state: str
    why: str = ""
    old: float | None = None
    new: float | None = None


def recheck(directory: str | Path) -> list[Rechecked]:
    """Look at every certificate, model and ledger of version 0.1 below ``directory``.

    Nothing is written. Files of later versions, and files of other programs, are not listed.

    Parameters
    ----------
    directory
        Where version 0.1 left ledgers and certificates.

    Returns
    -------
    list of Rechecked
        What was found, file by file.

    Raises
    ------
    SchemaError
        If there is no such directory.
    """
    top = Path(directory)
    if not top.is_dir():
        raise SchemaError(f"{directory} is not a directory")
    found: list[Rechecked] = []
    for path in sorted(top.rglob("*")):
        name = path.relative_to(top).as_posix()
        if path.is_symlink():
            if path.name in _OURS:
                found.append(Rechecked(name, "file", "not checked", "a symbolic link"))
        elif path.is_file():
            found += _look(path, name)
    return found


def _look(path: Path, name: str) -> Iterator[Rechecked]:
    start = b""
    try:
        with path.open("rb") as file:
            start = file.read(16)
        if start == _SQLITE:
            yield from _ledger(path, name)
        elif path.suffix == ".json" and path.stat().st_size > _LARGEST:
            if path.name in _OURS:
                yield Rechecked(name, "file", "not checked", "too large for a certificate")
        elif path.suffix == ".json":
            yield from _document(json.loads(path.read_text(encoding="utf-8")), name, "certificate")
        elif path.suffix == ".npz":
            yield from _document(saved_certificate(path), name, "model")
    except (OSError, ValueError, RecursionError, DiscreetError) as error:
        if path.name in _OURS or start == _SQLITE:
            yield Rechecked(name, "file", "not checked", f"cannot be read: {error}")


def _document(document: object, name: str, kind: str) -> Iterator[Rechecked]:
    if not isinstance(document, dict):
        return
    try:
        form = document.get("schema", document.get("kind")), document.get("version")
        if form[0] == "discreet.learn.certificate" and document["format"] == 1:
            yield _claim(document, name, kind)
        elif form == ("discreet.dpsgd.certificate", 1):
            yield _network(_claim(document, name, kind))
        elif form == ("discreet.certificate", 1) and document["part"] == "public":
            yield from _check_published(document, name)
    except (KeyError, TypeError, ValueError, DiscreetError) as error:
        yield Rechecked(name, kind, "not checked", f"cannot be read: {error}")


def _check_published(document: Mapping[str, Any], name: str) -> Iterator[Rechecked]:
    whole = _claim(document["guarantee"], name, "certificate")
    yield _network(whole) if document["released"]["learner"] == "DP-SGD" else whole
    for answer in document["answers"]:
        found = _claim(answer, f"{name}: {answer['question']}", "answer")
        if found.state != "sound":
            yield found


def _claim(said: Mapping[str, Any], name: str, kind: str) -> Rechecked:
    """Hold a stated epsilon against what its loss costs."""
    old, delta = said["epsilon"], float(said["delta"])
    read = read_old(said["loss"])
    new = read.loss.epsilon(delta=delta)
    if old is not None and new > old * (1.0 + _VERSIONS_AGREE):
        why = read.reason or "epsilon is below what the loss costs"
        return Rechecked(name, kind, "affected", why, old, new)
    return Rechecked(name, kind, "sound", "", old, new)


def _network(found: Rechecked) -> Rechecked:
    """A run of DP-SGD: what its certificate does not show was not checked by 0.1."""
    if found.state == "affected":
        return found
    return Rechecked(found.path, found.kind, "not checked", _NETWORK, found.old, found.new)


def _ledger(path: Path, name: str) -> Iterator[Rechecked]:
    """Verify a ledger: the database in its directory, or a copy of a single file of 0.1."""
    if path.name.endswith(".before-4"):  # what a migration keeps
        return
    try:
        with TemporaryDirectory() as folder:
            if path.match("ledger-*.sqlite"):
                place, name = path.parent, str(Path(name).parent)
            else:
                place = Path(folder) / "copy"
                for end in ("", "-wal"):
                    if Path(f"{path}{end}").exists():
                        shutil.copyfile(f"{path}{end}", f"{place}{end}")
                Ledger.migrate(place)
            with Ledger.open(place, read_only=True) as ledger:
                verdict = ledger.verify()
    except DiscreetError as error:
        if "not a ledger" not in str(error):
            yield Rechecked(name, "ledger", "not checked", str(error))
        return
    others = [str(problem) for problem in verdict.problems if not problem.undercharged]
    wrong = [problem for problem in verdict.problems if problem.undercharged]
    for problem in wrong:
        entry = f"{name}: {problem.dataset}, entry {problem.seq}"
        yield Rechecked(entry, "ledger", "affected", problem.what)
    if others:
        yield Rechecked(name, "ledger", "not checked", f"{others[0]} (run ledger verify)")
    elif not wrong:
        yield Rechecked(name, "ledger", "sound")
