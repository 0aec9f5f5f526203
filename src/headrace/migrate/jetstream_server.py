"""A server as a move sees it: API requests that are repeated while it restarts or elects a leader.

Owns the rule which errors are temporary. Invariant: every request of a move may be sent twice, so a request without a
reply is repeated until the time for it is over. A cluster drops requests while a stream or a consumer gets its leader, and
publishers may be waiting: the first reply is awaited for a second, later ones twice as long each time, up to the timeout.
Must not know what the requests are for.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import nats.errors

from headrace.client.errors import JetStreamError, make_error
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection

_PAUSE_S = 0.1
_FIRST_TIMEOUT_S = 1.0
#: JetStream is temporarily unavailable, for example because a stream or the cluster has no leader.
_TEMPORARY = {10008, 10009, 10023}
_TEMPORARY_HTTP = 503
NO_STREAM, NO_CONSUMER, NO_MESSAGE = 10059, 10014, 10037


class NoReply(HeadraceError):
    """A server did not reply, however often it was asked."""


class JetStreamServer:
    """A connection to a server, and the prefix of its JetStream API."""

    def __init__(
        self, connection: Connection, name: str, *, prefix: str = "$JS.API", timeout_s: float = 5.0
    ) -> None:
        self.connection = connection
        self.name = name
        self.prefix = prefix
        self._timeout_s = timeout_s

    @property
    def max_payload(self) -> int:
        return self.connection.max_payload

    @property
    def version(self) -> tuple[int, int, int]:
        found = self.connection.connected_server_version
        return found.major, found.minor, found.patch

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def is_clustered(self) -> bool:
        return bool(self._info.get("cluster"))

    @property
    def server_id(self) -> str:
        return str(self._info.get("server_id", ""))

    @property
    def _info(self) -> dict[str, Any]:
        found: dict[str, Any] = self.connection._server_info  # noqa: SLF001  (nats-py has no other way)
        return found

    async def api(
        self,
        call: str,
        body: Mapping[str, Any] | None = None,
        *,
        retry_s: float = 60.0,
        prefix: str | None = None,
        is_slow: bool = False,
    ) -> dict[str, Any]:
        """Return the reply to an API request; raise its error, or `NoReply` after `retry_s` without one.

        With `is_slow` a reply is awaited for the whole timeout from the beginning.
        """
        subject = f"{prefix or self.prefix}.{call}"
        payload = json.dumps(body).encode() if body else b""
        reply = await self.request(subject, payload, retry_s=retry_s, is_slow=is_slow)
        if error := reply.get("error"):
            raise make_error(error)
        return reply

    async def find(self, call: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Like `api`; return None if the stream, consumer or message does not exist."""
        try:
            return await self.api(call, body)
        except JetStreamError as error:
            if error.err_code in (NO_STREAM, NO_CONSUMER, NO_MESSAGE):
                return None
            raise

    async def list_all(self, call: str, part: str) -> list[Any]:
        """Return all items of a listing, page by page."""
        found: list[Any] = []
        while True:
            page = await self.api(call, {"offset": len(found)})
            items = page.get(part) or []
            found += items
            if not items or len(found) >= page["total"]:
                return found

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        retry_s: float = 60.0,
        is_slow: bool = False,
    ) -> dict[str, Any]:
        """Return the decoded reply; repeat the request while there is none or the error is temporary."""
        deadline_s = time.monotonic() + retry_s
        timeout_s = self._timeout_s if is_slow else min(_FIRST_TIMEOUT_S, self._timeout_s)
        while True:
            reason = "no reply"
            try:
                message = await self.connection.request(subject, payload, timeout=timeout_s, headers=headers)
                reply: dict[str, Any] = json.loads(message.data)
                error = reply.get("error") or {}
                if error.get("err_code") not in _TEMPORARY and error.get("code") != _TEMPORARY_HTTP:
                    return reply
                reason = str(error.get("description"))
            except nats.errors.NoRespondersError:
                reason = "no responders"
            except (nats.errors.TimeoutError, nats.errors.ConnectionReconnectingError, OSError) as error:
                reason = str(error) or "no reply"
                timeout_s = min(2 * timeout_s, self._timeout_s)
            if time.monotonic() >= deadline_s or self.connection.is_closed:
                raise NoReply(f"{self.name}: {reason} to {subject}")
            await asyncio.sleep(_PAUSE_S)
