"""The experiment on memorisation, on made-up headers and mails: S36."""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest

import memorisation
import memorisation_corpora as corpora
from harness import Run

LICENCE = (
    "/* Copyright (C) 1999 Nobody. This file is part of {name}.\n{name} is free software; you can\n"
    "\tredistribute it under the terms of the GNU Lesser General Public License. */\n"
)
CODE = "#ifndef {name}_H\nextern int {name}_open (const char *path, int flags);\n#endif\n"


def package(files: dict[str, bytes]) -> bytes:
    """A package of Debian, made here."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "data.tar.xz": lzma.compress(held.getvalue())}
    made = b"!<arch>\n"
    for name, content in parts.items():
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        made += head + content + b"\n" * (len(content) % 2)
    return made


def made_up(name: str, count: int, *, licensed: bool) -> bytes:
    files = {}
    for at in range(count):
        words = f"{name}{at}"
        text = (LICENCE if licensed else "") + CODE * 6
        files[f"usr/include/{words}.h"] = text.replace("{name}", words).encode()
    files["usr/include/umlaut.h"] = "ä".encode()
    files["usr/share/doc/readme"] = b"not a header"
    return package(files)


def test_headers_are_read_from_a_package() -> None:
    found = corpora.headers(made_up("a", 3, licensed=True))
    assert len(found) == 3
    assert "GNU Lesser General Public License" in found[0]
    assert "\t" not in found[0]
    assert set("".join(found)) <= set(corpora.LETTERS)
    text, other = found[:2]
    cut = text.find("GNU") % 65
    first, both = corpora.blocks([text]), corpora.blocks([text, other])
    assert first == [text[at : at + 65] for at in range(cut, len(text) - 64, 65)]
    cut = (other.find("GNU") + 1) % 65  # the licence of the next text is cut one letter earlier
    assert both[len(first)] == other[cut : cut + 65]
    with pytest.raises(SystemExit, match="no package of Debian"):
        corpora.headers(b"PK")


def test_a_package_with_another_digest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = made_up("a", 2, licensed=False)
    known = corpora.Package("made-up-dev", "1.0", hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    place = tmp_path / "debian" / known.file
    place.parent.mkdir()
    place.write_bytes(content)
    assert corpora.package_file(known, tmp_path) == content
    place.write_bytes(content + b"x")
    with pytest.raises(SystemExit, match="has the digest"):
        corpora.package_file(known, tmp_path)


def test_people_of_the_mailbox_are_all_different() -> None:
    people = corpora.mailbox(200, 8, 1)
    assert len({one.name for one in people}) == 200
    assert all(len(one.mails) == 8 and len(set(one.mails)) == 4 for one in people)
    assert max(len(mail) for one in people for mail in one.mails) <= corpora.CONTEXT
    assert corpora.mailbox(5, 8, 1) == corpora.mailbox(5, 8, 1)


def test_records_of_both_sides_are_left_out() -> None:
    members, twins = memorisation.apart(["a", "b", "b", "c"], ["c", "d"], 5)
    assert (members, twins) == (["a", "b"], ["d"])
    rows = corpora.rows(["ab", "x" * 80])
    assert rows.shape == (2, corpora.CONTEXT + 1)
    assert corpora.decode(rows[0][:4]) == "ab\n\n"


@pytest.mark.slow
def test_a_quick_run_measures_all_that_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = {
        corpora.PRIVATE: made_up("private", 12, licensed=True),
        corpora.PUBLIC: made_up("public", 12, licensed=False),
    }
    monkeypatch.setattr(memorisation, "package_file", lambda package, _: sources[package])
    measured = memorisation.measure(Run(quick=True))
    record = {"parts": {name: {"found": measured[name]} for name in measured}}
    licence = measured["licence"]
    assert licence["epsilon"] <= memorisation.EPSILON
    assert licence["group"][16] > licence["group"][4] > licence["epsilon"]
    for way in licence["ways"].values():
        assert set(way["exposure"]) == {"0", "1", "4", "16"}
        assert 0 <= way["audit"]["epsilon_lower"] <= way["audit"]["ceiling"]
    assert measured["mailbox"]["unit"] == "person"
    for table in memorisation.SUITE.tables.values():
        assert table(record).count("\n") > 3
    assert len(memorisation.targets(record)) == 7
    memorisation.draw(record, tmp_path / "memorisation.png")
    assert np.isfinite(licence["ways"]["plain"]["loss"])
