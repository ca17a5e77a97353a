"""A source that plays back given bytes: decisions can be enumerated and rare paths forced."""

from __future__ import annotations

from discreet.randomness import Source


class ScriptExhausted(AssertionError):
    """The sampler asked for more bytes than the script holds."""


class ScriptedSource(Source):
    def __init__(self, script: bytes = b"") -> None:
        self.script = script
        self.used = 0

    def read(self, count: int) -> bytes:
        if self.used + count > len(self.script):
            raise ScriptExhausted(f"{count} bytes after {self.used} of {len(self.script)}")
        self.used += count
        return self.script[self.used - count : self.used]

    @property
    def provenance(self) -> dict[str, str]:
        return {"randomness": "scripted"}

    def derive(self, *labels: str | int) -> Source:
        return self


def words(*values: int, size: int = 4) -> bytes:
    """Return little-endian words of ``size`` bytes."""
    return b"".join(value.to_bytes(size, "little") for value in values)
