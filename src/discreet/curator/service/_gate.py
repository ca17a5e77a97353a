"""Check requests before the application sees them, and decide when a response leaves.

It is plain ASGI, so that nothing of a request is read before its token was found valid, no more
of it than the limit is ever held, and an answer leaves when its quantum says so.

The time that a computation takes may depend on the records. Whoever measures it sees only which
power of two quanta it stayed under, so T seconds of work tell at most log2(T / quantum) + 1
different things, and nothing while all work stays within one quantum. That holds for the answer
itself; what else changes when a question ends is kept from analysts (``quote_delay``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, final

from discreet.curator.service._bodies import (
    BUSY,
    FAILED,
    NO_TOKEN,
    TOO_FAST,
    TOO_LARGE,
    TOO_SLOW,
    UNKNOWN_TOKEN,
    Problem,
    Unanswered,
    problem_of,
)
from discreet.curator.service._registry import Holder
from discreet.curator.service._settings import Settings
from discreet.errors import LedgerError


def release_after(elapsed: float, quantum: float) -> float:
    """The first of quantum, 2 quanta, 4 quanta ... that is not before ``elapsed``.

    >>> [release_after(seconds, 0.5) for seconds in (0.0, 0.5, 0.51, 1.2, 2.1)]
    [0.5, 0.5, 1.0, 2.0, 4.0]
    """
    moment = quantum
    while moment < elapsed:
        moment *= 2
    return moment


_MOST_CALLERS = 100_000


@final
class Limiter:
    """At most ``burst`` requests of one caller at once and ``rate`` a second in the long run.

    >>> now = [0.0]
    >>> limiter = Limiter(rate=2, burst=3, clock=lambda: now[0])
    >>> [limiter.wait_for("ann") for _ in range(4)]
    [0.0, 0.0, 0.0, 0.5]
    >>> now[0] = 0.5
    >>> limiter.wait_for("ann"), limiter.wait_for("bob")
    (0.0, 0.0)
    """

    def __init__(
        self, *, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._guard = threading.Lock()
        # When each bucket will be full again: one number says both how full and since when.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def wait_for(self, caller: str) -> float:
        """Take one request out of the bucket; 0, or the seconds after which to come again."""
        with self._guard:
            now = self._clock()
            full_at = max(now, self._full_at.pop(caller, now))
            lacking = (full_at - now) * self._rate  # requests that the bucket is short of
            short = lacking + 1.0 - self._burst
            granted = short <= 1e-9
            self._full_at[caller] = full_at + 1.0 / self._rate if granted else full_at
            self._forget(now)
        return 0.0 if granted else short / self._rate

    def add(self, caller: str, requests: float) -> None:
        """Count a request that was let in as this many more; its caller waits for them later.

        >>> now = [0.0]
        >>> limiter = Limiter(rate=2, burst=3, clock=lambda: now[0])
        >>> limiter.add("ann", 6)
        >>> limiter.wait_for("ann"), limiter.wait_for("bob")
        (2.0, 0.0)
        """
        if requests > 0:
            with self._guard:
                now = self._clock()
                full_at = max(now, self._full_at.pop(caller, now))
                self._full_at[caller] = full_at + requests / self._rate

    def _forget(self, now: float) -> None:
        """Drop the callers that were away for longest; full buckets first cost nothing."""
        while self._full_at:
            caller, full_at = next(iter(self._full_at.items()))
            if full_at > now and len(self._full_at) <= _MOST_CALLERS:
                return
            del self._full_at[caller]


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_log = logging.getLogger("discreet.curator")
HOLDER, BODY = "discreet.holder", "discreet.body"
_TIMED = re.compile(r"/v1/datasets/[^/]*/(ask|quote)")
_BYTES_A_REQUEST = 512
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_NOT_KEPT = (b"cache-control", b"no-store")


class _Refused(Exception):
    def __init__(self, problem: Problem, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(problem.kind)
        self.problem = problem
        self.headers = headers


@final
class Gate:
    """An ASGI application around another one; ``authenticate`` may take a while."""

    def __init__(
        self,
        inner: Application,
        *,
        settings: Settings,
        authenticate: Callable[[str], Awaitable[Holder | None]],
    ) -> None:
        self._inner = inner
        self._settings = settings
        self._authenticate = authenticate
        share = settings.workers
        self._rates = Limiter(rate=settings.rate / share, burst=settings.burst / share)
        self._refusals = Limiter(
            rate=settings.refusal_rate / share, burst=settings.refusal_burst / share
        )
        self._under_way = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        guarded = scope["path"].startswith("/v1/")
        leaving = _with_headers(send, cacheable=not guarded)
        if not guarded:
            await self._inner(scope, receive, leaving)
            return
        try:
            scope[HOLDER] = await self._admit(scope)
            scope[BODY] = body = await self._body(scope, receive)
            if _TIMED.fullmatch(scope["path"]) is not None:
                # A long question is planned before it is charged, and that takes time as well.
                self._rates.add(scope[HOLDER].token, len(body) // _BYTES_A_REQUEST)
        except _Refused as refusal:
            await _send_problem(leaving, refusal.problem, refusal.headers)
            return
        if self._under_way >= self._settings.threads + self._settings.waiting:
            await _send_problem(leaving, BUSY, ((b"retry-after", b"1"),))
            return
        self._under_way += 1
        try:
            await self._answer(scope, _replay(body, receive), leaving)
        finally:
            self._under_way -= 1

    async def _admit(self, scope: MutableMapping[str, Any]) -> Holder:
        given = _header(scope, b"authorization")
        scheme, _, text = given.partition(" ")
        if not given or scheme.lower() != "bearer":
            raise self._refuse_stranger(scope, NO_TOKEN)
        try:
            holder = await self._authenticate(text.strip())
        except (LedgerError, Unanswered) as error:  # the registry cannot be read just now
            problem = error.problem if isinstance(error, Unanswered) else problem_of(error)
            raise _Refused(problem, (b"retry-after", b"1")) from None
        if holder is None:
            raise self._refuse_stranger(scope, UNKNOWN_TOKEN)
        pause = self._rates.wait_for(holder.token)
        if pause:
            raise _too_fast(pause)
        return holder

    def _refuse_stranger(self, scope: MutableMapping[str, Any], problem: Problem) -> _Refused:
        # Only those without a valid token meet this limit, so others cannot be locked out.
        client = scope.get("client") or ("unknown", 0)
        pause = self._refusals.wait_for(str(client[0]))
        if pause:
            return _too_fast(pause)
        return _Refused(problem, (b"www-authenticate", b"Bearer"))

    async def _body(self, scope: MutableMapping[str, Any], receive: Receive) -> bytes:
        limit = self._settings.body_limit
        declared = _header(scope, b"content-length")
        if declared.isdecimal() and int(declared[:20]) > limit:
            raise _Refused(TOO_LARGE, (b"connection", b"close"))
        parts: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refused(TOO_SLOW)
                    part = message.get("body", b"")
                    held += len(part)
                    if held > limit:
                        raise _Refused(TOO_LARGE, (b"connection", b"close"))
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise _Refused(TOO_SLOW, (b"connection", b"close")) from None

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        arrived = time.monotonic()
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        try:
            await self._inner(scope, receive, hold)
        except Exception as error:  # noqa: BLE001 - whatever it is, it leaves as any answer does
            # The type, never the text: it may hold something of a record.
            _log.error("%s in the application", type(error).__name__)
            held.clear()
            await _send_problem(hold, FAILED)
        if _TIMED.fullmatch(scope["path"]) is not None:
            elapsed = time.monotonic() - arrived
            leaves = arrived + release_after(elapsed, self._settings.quantum)
            await asyncio.sleep(leaves - time.monotonic())
        for message in held:
            await send(message)


def _too_fast(pause: float) -> _Refused:
    return _Refused(TOO_FAST, (b"retry-after", str(math.ceil(pause)).encode()))


def _header(scope: MutableMapping[str, Any], name: bytes) -> str:
    """The one header of a name; one that is given twice counts as absent."""
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return the body that was read already, then what arrives later."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def _with_headers(send: Send, *, cacheable: bool) -> Send:
    async def leaving(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = SECURITY_HEADERS if cacheable else (*SECURITY_HEADERS, _NOT_KEPT)
            message["headers"] = [*message.get("headers", ()), *extra]
        await send(message)

    return leaving


async def _send_problem(
    send: Send, problem: Problem, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    body = json.dumps(problem.as_json()).encode()
    about = (
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    )
    start = {"type": "http.response.start", "status": problem.status}
    await send({**start, "headers": [*about, *headers]})
    await send({"type": "http.response.body", "body": body})
