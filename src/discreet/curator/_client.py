"""A small client of the service: one idempotency key for all attempts of one question.

A question that got no answer, because the connection broke or the service was busy, is asked
again under the same key. It is charged once at most, and every attempt gets the same answer.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, final
from urllib.parse import quote as quoted

from discreet import _validate
from discreet.errors import BudgetExceeded, DiscreetError, InvalidValue, KeyConflict, NotApplicable

if TYPE_CHECKING:
    import httpx

    from discreet.curator._queries import Query

__all__ = ["Client", "ServiceRefused", "ServiceUnreachable"]

_AGAIN = frozenset((408, 429, 500, 502, 503, 504))
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


class ServiceRefused(DiscreetError, RuntimeError):
    """The service said no; ``status`` and ``kind`` say how."""

    def __init__(self, message: str, *, status: int, kind: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class ServiceUnreachable(DiscreetError, ConnectionError):
    """No attempt got an answer; a question may have been charged under its ``key``."""

    def __init__(self, message: str, *, key: str | None) -> None:
        super().__init__(message)
        self.key = key


@final
class Client:
    """Asks a service at ``url`` with a ``token``; ``attempts`` is how often at most."""

    def __init__(
        self,
        url: str,
        *,
        token: str,
        timeout: float = 60.0,
        attempts: int = 6,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise NotApplicable("the client needs httpx: pip install 'discreet[serve]'") from None
        if not url.startswith(("http://", "https://")):
            raise InvalidValue("url", url, "an address that begins with http:// or https://")
        if not token.isascii() or not token.isprintable():
            raise InvalidValue("token", "(not shown)", "a token as the service gave it")
        self._attempts = _validate.integer("attempts", attempts, at_least=1, at_most=100)
        self._failures: tuple[type[Exception], ...] = (httpx.TransportError,)
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_validate.real("timeout", timeout, above=0),
            transport=transport,
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- questions ---------------------------------------------------------------------

    def ask(
        self, dataset: str, query: Query | Mapping[str, Any], *, key: str | None = None
    ) -> dict[str, Any]:
        """Return the answer to a query, as JSON; charged once, however often it has to be sent."""
        used = secrets.token_hex(16) if key is None else key
        body = {"query": _as_json(query)}
        return self._send("POST", f"{_at(dataset)}/ask", body=body, key=used)

    def quote(self, dataset: str, query: Query | Mapping[str, Any]) -> dict[str, Any]:
        """Return what a query would cost, and its expected error; nothing is charged."""
        return self._send("POST", f"{_at(dataset)}/quote", body={"query": _as_json(query)})

    # --- looking -----------------------------------------------------------------------

    def whoami(self) -> dict[str, Any]:
        """Say who holds the token, and what it opens."""
        return self._send("GET", "/v1/whoami")

    def datasets(self) -> list[dict[str, Any]]:
        """Return all datasets that exist for the token, with their budgets."""
        found: list[dict[str, Any]] = self._send("GET", "/v1/datasets")["datasets"]
        return found

    def facts(self, dataset: str) -> dict[str, Any]:
        """Return the public facts of one dataset, and its budgets."""
        return self._send("GET", _at(dataset))

    def history(self, dataset: str) -> list[dict[str, Any]]:
        """Return every charge that the token may see, the newest first."""
        rows: list[dict[str, Any]] = []
        more, before = True, ""
        while more:
            page = self._send("GET", f"{_at(dataset)}/history?limit=500{before}")
            rows += page["charges"]
            more = page["more"]
            before = f"&before={rows[-1]['entry']}" if rows else ""
        return rows

    def receipt(self, dataset: str, entry: int) -> dict[str, Any]:
        """Return one entry of the ledger, to be filed elsewhere."""
        return self._send("GET", f"{_at(dataset)}/receipts/{int(entry)}")

    def verify(self, receipts: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Say whether the ledger replays without a fault and still holds these receipts."""
        return self._send("POST", "/v1/verify", body={"receipts": list(receipts)})

    # --- sending -----------------------------------------------------------------------

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        headers = {} if key is None else {"Idempotency-Key": key}
        pause, reason = _FIRST_PAUSE, ""
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                response = self._http.request(method, path, json=body, headers=headers)
            except self._failures as error:
                reason = type(error).__name__
                continue
            if response.status_code not in _AGAIN or attempt + 1 == self._attempts:
                return _read(response)
            reason = f"status {response.status_code}"
            pause = max(pause, min(_seconds(response), _LONGEST_PAUSE))
        advice = "" if key is None else f"; ask again under the key {key!r}, which is charged once"
        raise ServiceUnreachable(
            f"no answer after {self._attempts} attempts ({reason}){advice}", key=key
        )


def _read(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        content = {}
    if response.is_success and isinstance(content, dict):
        return content
    fields = content if isinstance(content, dict) else {}
    kind = str(fields.get("kind", "unknown"))
    message = str(fields.get("message", f"status {response.status_code}"))
    if kind == "budget_exceeded":
        raise BudgetExceeded(message)
    if kind == "key_conflict":
        raise KeyConflict(message)
    raise ServiceRefused(message, status=response.status_code, kind=kind)


def _seconds(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0


def _as_json(query: Query | Mapping[str, Any]) -> Mapping[str, Any]:
    return query if isinstance(query, Mapping) else query.to_json()


def _at(dataset: str) -> str:
    return f"/v1/datasets/{quoted(dataset, safe='')}"
