"""What `memorisation` trains on: headers of Debian packages, a made-up mailbox, a small model."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

CONTEXT = 64
LETTERS = "\n" + "".join(map(chr, range(32, 127)))
CODES = {letter: at for at, letter in enumerate(LETTERS)}
LICENCE = re.compile("general public license|free software|warranty|copyright", re.IGNORECASE)
_BLANKS = re.compile("[ \t]+")
_EACH_FILE = 2000


@dataclass(frozen=True)
class Package:
    """A package of Debian, by the digest of its file."""

    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version}_amd64.deb"


PRIVATE = Package(
    "libc6-dev",
    "2.36-9+deb12u14",
    "0218fc2befcd784c1b0c6292c0a137ce89fad054efaa579ad083bee0f2c01aae",
)
PUBLIC = Package(
    "linux-libc-dev",
    "6.1.192-2",
    "e0632f8e55ec0d2d1c56f9c65a8bcb64ad5d79add297266bc89c616dfef9a7fe",
)


def package_file(package: Package, build: Path) -> bytes:
    """Return the file of a package, from $DISCREET_DATA/debian or by `apt-get download`.

    A file with another digest is refused.
    """
    given = os.environ.get("DISCREET_DATA")
    places = [build / "debian" / package.file]
    if given:
        places.insert(0, Path(given) / "debian" / package.file)
    for place in places:
        if place.exists():
            return checked(place.read_bytes(), package)
    folder = places[-1].parent
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["apt-get", "download", "-qq", f"{package.name}={package.version}"],
        cwd=folder,
        check=False,
        capture_output=True,
    )
    if not places[-1].exists():
        raise SystemExit(
            f"{package.file} was not found: put it into $DISCREET_DATA/debian, from a mirror of "
            "Debian or from its archive of old packages"
        )
    return checked(places[-1].read_bytes(), package)


def checked(content: bytes, package: Package) -> bytes:
    """Return the content, if it has the digest of the package."""
    found = hashlib.sha256(content).hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{package.file} has the digest {found}, expected {package.sha256}")
    return content


def members_of(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of an archive of `ar`, which a package of Debian is."""
    if not archive.startswith(b"!<arch>\n"):
        raise SystemExit("this is no package of Debian")
    at = 8
    while at + 60 <= len(archive):
        name = archive[at : at + 16].decode().strip().rstrip("/")
        size = int(archive[at + 48 : at + 58])
        yield name, archive[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def headers(archive: bytes) -> list[str]:
    """Return the headers of a package in ASCII, by their paths, with one blank for several."""
    found = {}
    for name, content in members_of(archive):
        if not name.startswith("data.tar"):
            continue
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            for entry in files:
                if not entry.isfile() or not entry.name.endswith(".h"):
                    continue
                read = files.extractfile(entry)
                assert read is not None
                text = read.read()
                if text.isascii():
                    found[entry.name] = plain(text.decode())
    return [found[name][:_EACH_FILE] for name in sorted(found)]


def plain(text: str) -> str:
    """Return a text in the letters of the model."""
    lines = [_BLANKS.sub(" ", line).strip() for line in text.splitlines()]
    joined = re.sub("\n+", "\n", "\n".join(lines))
    return "".join(letter for letter in joined if letter in CODES)


def blocks(texts: Sequence[str]) -> list[str]:
    """Cut texts into records of one context and the letter behind it.

    Where the first cut is goes round from text to text, counted from the licence if there is one.
    The licence then stands at every place of a context, and a model that learned it can go on
    writing it.
    """
    width = CONTEXT + 1
    starts = [max(0, text.find("GNU")) + number for number, text in enumerate(texts)]
    return [
        text[at : at + width]
        for text, start in zip(texts, starts, strict=True)
        for at in range(start % width, len(text) - width + 1, width)
    ]


def encode(text: str) -> list[int]:
    return [CODES[letter] for letter in text]


def decode(tokens: Any) -> str:
    return "".join(LETTERS[int(token)] for token in tokens)


def rows(texts: list[str]) -> torch.Tensor:
    """Return texts as rows of one context and one letter, filled up with ends of lines."""
    import torch

    width = CONTEXT + 1
    return torch.tensor([encode(text[:width].ljust(width, "\n")) for text in texts])


# --- a made-up mailbox ---------------------------------------------------------------------

_NOUNS = "ring lamp piano bicycle mirror carpet camera guitar ladder kettle statue engine"
_PLACES = "harbour library station market chapel garden museum bakery theatre castle"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"
_SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]


@dataclass(frozen=True)
class Person:
    """Somebody with mails of one record each."""

    name: str
    mails: tuple[str, ...]


def mailbox(people: int, mails: int, seed: int) -> list[Person]:
    """Make up people whose mails are about a few matters of their own."""
    draws = np.random.default_rng(seed)

    def pick(words: list[str]) -> str:
        return words[int(draws.integers(len(words)))]

    def name() -> str:
        return "".join(pick(_SYLLABLES) for _ in range(3))

    found, names = [], dict.fromkeys(name() for _ in range(2 * people + 20))
    for own in list(names)[:people]:
        friend, noun, place = name(), pick(_NOUNS.split()), pick(_PLACES.split())
        price, hour, day = (
            int(draws.integers(100, 1000)),
            int(draws.integers(1, 13)),
            pick(_DAYS.split()),
        )
        matters = (
            f"{own} to {friend}: i owe you {price} for the {noun}",
            f"{own} to {friend}: meet me at the {place} on {day} at {hour}",
            f"{own} to {friend}: sell the {noun} for {price} on {day}",
            f"{own} to {friend}: leave the {noun} at the {place} at {hour}",
        )
        found.append(Person(own, tuple(matters[at % len(matters)] for at in range(mails))))
    return found


# --- the model -----------------------------------------------------------------------------


def character_model(seed: int, *, width: int = 96, layers: int = 2, heads: int = 4) -> Any:
    """Return a small transformer of characters."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = self.first(x)
            parts = [
                each(seen).unflatten(-1, (heads, width // heads)).transpose(1, 2)
                for each in (self.query, self.key, self.value)
            ]
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.narrow(functional.gelu(self.wide(self.second(x))))

    class Characters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letters = nn.Embedding(len(LETTERS), width)
            self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.last, self.says = nn.LayerNorm(width), nn.Linear(width, len(LETTERS))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            x = self.letters(rows) + self.places[: rows.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.says(self.last(x))

    torch.manual_seed(seed)
    return Characters()


def losses(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a letter for each row."""
    from torch.nn import functional

    each = functional.cross_entropy(logits.transpose(1, 2), following, reduction="none")
    return each.mean(dim=1)


def train(model: Any, data: torch.Tensor, *, steps: int, batch: int, rate: float, seed: int) -> Any:
    """Train as everybody does."""
    import torch

    draws = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=rate / 10)
    model.train()
    for _ in range(steps):
        chosen = data[torch.randint(len(data), (batch,), generator=draws)]
        loss = losses(model(chosen[:, :-1]), chosen[:, 1:]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model


def train_privately(model: Any, data: Any, plan: Any, *, rate: float) -> Any:
    """Train under a plan; ``data`` gives the letters and the following ones of each example."""
    import torch

    from discreet.learn.dpsgd import make_private

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    private = make_private(model, optimizer, plan)
    for before, following in private.batches(data, max_physical=64):
        private.step(losses, before, following)
        optimizer.zero_grad()
    private.detach()
    return model


class Mails:
    """One example for each person: every time it is read, one of their mails at random."""

    def __init__(self, people: list[Person], seed: int) -> None:
        self._rows = [rows(list(one.mails)) for one in people]
        self._draws = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        mail = self._rows[place][int(self._draws.integers(len(self._rows[place])))]
        return mail[:-1], mail[1:]
