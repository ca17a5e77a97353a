"""Finding and fetching files: order of places, digests, broken servers, nothing half-written."""

import gzip
import hashlib
import http.server
import os
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from discreet.data import DataCorrupt, DataUnavailable, _downloads, cache_directory
from discreet.data._downloads import UNVERIFIED, Found, SourceFile, find
from discreet.errors import DiscreetError

CONTENT = b"the made-up content of a file\n" * 1000
PACKED = gzip.compress(CONTENT, mtime=0)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers that a test has planned, by path; counts the requests."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        status, content, claimed = self.server.planned.get(self.path, (404, b"", None))
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if claimed is None else claimed))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def web_server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        running.planned, running.asked = {}, []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine: no data directory, an empty cache, no proxies, the web allowed."""
    for name in ("DISCREET_DATA", "DISCREET_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path


def url(web_server: http.server.ThreadingHTTPServer, path: str) -> str:
    return f"http://127.0.0.1:{web_server.server_port}{path}"


def source(web_server: http.server.ThreadingHTTPServer, **changes: object) -> SourceFile:
    settings = {
        "digests": {digest(PACKED): "one", digest(CONTENT): "one"},
        "urls": {"one": url(web_server, "/things.gz")},
        **changes,
    }
    return SourceFile("toys", "things", **settings)


def files_below(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


# --- fetching ----------------------------------------------------------------------------


def test_a_file_is_fetched_once_checked_and_kept(web_server, places: Path) -> None:
    web_server.planned["/things.gz"] = (200, PACKED, None)
    found = find(source(web_server))
    assert found == Found(places / "cache" / "discreet" / "toys" / "one" / "things.gz", "one")
    assert found.path.read_bytes() == PACKED
    assert found.read(lambda stream: stream.read()) == CONTENT
    assert files_below(places) == ["cache/discreet/toys/one/things.gz"]
    assert find(source(web_server)) == found
    assert find(source(web_server), download=False) == found
    assert web_server.asked == ["/things.gz"]


def test_a_plain_file_may_be_published_uncompressed(web_server, places: Path) -> None:
    web_server.planned["/raw"] = (200, CONTENT, None)
    found = find(source(web_server, urls={"one": url(web_server, "/raw")}))
    assert found.path.name == "things"
    assert found.read(lambda stream: stream.read()) == CONTENT


def test_the_content_counts_not_the_compressor(web_server, places: Path) -> None:
    other = gzip.compress(CONTENT, compresslevel=1, mtime=1)
    assert digest(other) != digest(PACKED)
    web_server.planned["/things.gz"] = (200, other, None)
    assert find(source(web_server)).revision == "one"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((200, PACKED[:-1] + b"x", None), DataCorrupt, "cannot be unpacked|SHA-256"),
        ((200, b"<html>please log in</html>", None), DataCorrupt, "SHA-256"),
        ((200, gzip.compress(b"other"), None), DataCorrupt, "not revision 'one'"),
        ((200, PACKED[:50], len(PACKED)), DiscreetError, "unpacked|failed|SHA-256"),
        ((200, b"", None), DataCorrupt, "SHA-256"),
        ((404, b"", None), DataUnavailable, "404"),
        ((500, b"", None), DataUnavailable, "500"),
    ],
)
def test_what_is_not_right_is_not_kept(web_server, places: Path, answer, error, message) -> None:
    web_server.planned["/things.gz"] = answer
    with pytest.raises(error, match=message):
        find(source(web_server))
    assert files_below(places) == []
    web_server.planned["/things.gz"] = (200, PACKED, None)
    assert find(source(web_server)).revision == "one"


def test_a_flood_is_broken_off(web_server, places: Path) -> None:
    web_server.planned["/things.gz"] = (200, bytes(5000), None)
    with pytest.raises(DataCorrupt, match="more than 4999 bytes"):
        find(source(web_server, most_bytes=4999))
    assert files_below(places) == []


def test_an_interruption_leaves_nothing(web_server, places: Path, monkeypatch) -> None:
    web_server.planned["/things.gz"] = (200, PACKED, None)

    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        find(source(web_server))
    assert files_below(places) == []


def test_nobody_answers(places: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as closed:
        port = closed.server_port
    file = SourceFile("toys", "things", {}, {"one": f"http://127.0.0.1:{port}/things.gz"})
    with pytest.raises(DataUnavailable) as caught:
        find(file)
    told = str(caught.value)
    for part in ("toys/things", f":{port}/things.gz", "DISCREET_DATA", str(places / "cache")):
        assert part in told
    assert isinstance(caught.value, FileNotFoundError)
    assert files_below(places) == []


def test_a_cache_that_cannot_be_written(web_server, places: Path) -> None:
    (places / "cache").write_text("a file where the directory should be")
    with pytest.raises(DataUnavailable, match="the cache cannot be written"):
        find(source(web_server))
    assert web_server.asked == []


def test_several_may_fetch_at_once(web_server, places: Path) -> None:
    web_server.planned["/things.gz"] = (200, PACKED, None)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: find(source(web_server)), range(8)))
    assert {file.path.read_bytes() == PACKED for file in found} == {True}
    assert files_below(places) == ["cache/discreet/toys/one/things.gz"]


# --- places and revisions ------------------------------------------------------------------


def test_the_named_directory_comes_first(web_server, places: Path, monkeypatch) -> None:
    web_server.planned["/things.gz"] = (200, PACKED, None)
    kept = find(source(web_server))
    (places / "mine" / "toys").mkdir(parents=True)
    own = places / "mine" / "toys" / "things"
    own.write_bytes(CONTENT)
    monkeypatch.setenv("DISCREET_DATA", str(places / "mine"))
    assert find(source(web_server)) == Found(own, "one")
    own.unlink()
    assert find(source(web_server)) == kept


def test_a_wrong_file_is_refused_wherever_it_lies(web_server, places: Path, monkeypatch) -> None:
    web_server.planned["/things.gz"] = (200, PACKED, None)
    find(source(web_server)).path.write_bytes(b"changed")
    with pytest.raises(DataCorrupt, match="remove it to have it fetched"):
        find(source(web_server))
    with pytest.raises(DataCorrupt):
        find(source(web_server), verify=False)
    (places / "mine" / "toys").mkdir(parents=True)
    (places / "mine" / "toys" / "things").write_bytes(b"mine")
    monkeypatch.setenv("DISCREET_DATA", str(places / "mine"))
    with pytest.raises(DataCorrupt, match=re.escape(digest(b"mine"))):
        find(source(web_server))
    assert find(source(web_server), verify=False).revision == UNVERIFIED


def test_revisions_lie_side_by_side(web_server, places: Path) -> None:
    newer = gzip.compress(b"newer")
    web_server.planned = {"/old.gz": (200, PACKED, None), "/new.gz": (200, newer, None)}
    file = source(
        web_server,
        digests={digest(PACKED): "old", digest(newer): "new"},
        urls={"new": url(web_server, "/new.gz"), "old": url(web_server, "/old.gz")},
    )
    assert find(file, revision="old").revision == "old"
    assert find(file).revision == "old", "what is on this machine comes before the web"
    assert find(file, revision="new").revision == "new"
    assert find(file).revision == "new", "the first revision that is named comes first"
    with pytest.raises(DataUnavailable):
        find(file, revision="never")


def test_a_place_that_serves_another_revision_is_refused(web_server, places: Path) -> None:
    newer = gzip.compress(b"newer")
    web_server.planned["/old.gz"] = (200, newer, None)
    file = source(
        web_server,
        digests={digest(PACKED): "old", digest(newer): "new"},
        urls={"old": url(web_server, "/old.gz")},
    )
    with pytest.raises(DataCorrupt, match="not revision 'old'"):
        find(file)
    assert files_below(places) == []


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_offline_means_offline(web_server, places: Path, monkeypatch, how: str) -> None:
    if how == "variable":
        monkeypatch.setenv("DISCREET_OFFLINE", "1")
    with pytest.raises(DataUnavailable, match="not looked for on the web"):
        find(source(web_server), download=how != "argument")
    assert web_server.asked == []
    monkeypatch.setenv("DISCREET_OFFLINE", "0")
    web_server.planned["/things.gz"] = (200, PACKED, None)
    assert find(source(web_server)).revision == "one"


def test_the_first_form_that_can_be_had(web_server, places: Path, monkeypatch) -> None:
    web_server.planned["/things.gz"] = (200, PACKED, None)
    local_only = SourceFile("toys", "small.npz", {digest(b"npz"): "one"})
    forms = (local_only, source(web_server))
    assert find(forms).path.name == "things.gz"
    (places / "mine" / "toys").mkdir(parents=True)
    (places / "mine" / "toys" / "small.npz").write_bytes(b"npz")
    monkeypatch.setenv("DISCREET_DATA", str(places / "mine"))
    assert find(forms).path.name == "small.npz"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c/discreet"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/h/.cache/discreet"),
        ("linux", {}, "/h/.cache/discreet"),
        ("darwin", {}, "/h/Library/Caches/discreet"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/discreet/Cache"),
        ("win32", {}, "/h/AppData/Local/discreet/Cache"),
    ],
)
def test_cache_directories(monkeypatch, platform: str, variables: dict, expected: str) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/h", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_directory() == Path(expected)


# --- the catalogue -----------------------------------------------------------------------


def catalogued() -> list[SourceFile]:
    entries = [one for one in vars(_downloads).values() if isinstance(one, SourceFile | dict)]
    return [
        file
        for entry in entries
        for file in ([entry] if isinstance(entry, SourceFile) else entry.values())
        if isinstance(file, SourceFile)
    ]


def test_the_catalogue_is_sound() -> None:
    files = catalogued()
    assert len(files) == 18
    digests = [known for file in files for known in file.digests]
    assert len(set(digests)) == len(digests), "two files with one digest"
    assert all(re.fullmatch(r"[0-9a-f]{64}", known) for known in digests)
    for file in files:
        assert set(file.urls) <= set(file.digests.values()), file.name
        assert all(link.startswith(("https://", "http://")) for link in file.urls.values())
    assert len({(file.folder, file.name) for file in files}) == len(files)
