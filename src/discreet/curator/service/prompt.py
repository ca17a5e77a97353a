"""Connections that send at once what they are given, and do not wait for ever to be asked.

With several workers uvicorn listens on a socket of which asyncio does not know that it speaks TCP,
and leaves Nagle's algorithm on: the body of an answer then waits until the client has acknowledged
its head, up to 40 ms.

A client that opens connections and asks nothing would hold them as long as it likes. The head of
a request must arrive within :data:`HEAD_SECONDS` and in about :data:`HEAD_BYTES`. Where a process
has :data:`MOST_CONNECTIONS`, the one that has waited longest for a request makes room for a new
one.
"""

from __future__ import annotations

import asyncio
import socket
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HEAD_BYTES", "HEAD_SECONDS", "MOST_CONNECTIONS", "PromptProtocol"]

HEAD_BYTES = 65_536
HEAD_SECONDS = 10.0
MOST_CONNECTIONS = 256


class PromptProtocol(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, over connections that are neither late nor idle for long."""

    # Connections without a request, the one that has waited longest first.
    _idle: ClassVar[dict[PromptProtocol, None]] = {}
    _deadline: asyncio.TimerHandle | None = None
    _head = 0  # bytes that came after those in which a head began

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        line = transport.get_extra_info("socket")
        if line is not None and line.family in {socket.AF_INET, socket.AF_INET6}:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            longest = next(iter(self._idle))
            longest._stop_waiting()
            longest.connections.discard(longest)  # it is lost in the next turn of the loop
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        # The parser itself would take any number.
        if self._deadline is not None and self._head > HEAD_BYTES:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._head = 0
        if self._deadline is None:
            self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._idle[self] = None

    def _wait(self) -> None:
        self._idle.setdefault(self)
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        self._idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
