"""Connections that send at once what they are given.

With several workers uvicorn listens on a socket of which asyncio does not know that it speaks TCP,
and leaves Nagle's algorithm on: the body of an answer then waits until the client has acknowledged
its head, up to 40 ms.
"""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["PromptProtocol"]


class PromptProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """HTTP as uvicorn speaks it, over connections without that pause."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        line = transport.get_extra_info("socket")
        if line is not None and line.family in {socket.AF_INET, socket.AF_INET6}:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
