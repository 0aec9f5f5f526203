"""The JetStream domain: `$JS.<domain>.API.X` is this account's `$JS.API.X`.

Requests for a domain come from clients that name it and, over leafnode connections, from other servers, whose own API is
meant where no domain is named. Owns the change of the subject only.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.router import Hub
from headrace.kernel import EXACT, Route

_API = b"$JS.API."
_TAILS = (b"INFO", b"STREAM.>", b"CONSUMER.>", b"DIRECT.>", b"META.>", b"SERVER.>", b"ACCOUNT.>")
_BUCKETS = (b"$KV.", b"$OBJ.")


class DomainDoor:
    """Takes what is meant for the domain and passes it on under the plain subject."""

    __slots__ = ("_hub", "_prefix")

    def __init__(self, hub: Hub, domain: str) -> None:
        self._hub = hub
        self._prefix = f"$JS.{domain}.API.".encode()

    def open(self) -> None:
        """Listen."""
        for tail in (*_TAILS, *(bucket + b">" for bucket in _BUCKETS)):
            self._hub.subscribe_internal(self._prefix + tail, self)

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Pass it on as if it had been published there; how many received it."""
        rest = subject[len(self._prefix) :]
        plain = rest if rest.startswith(_BUCKETS) else _API + rest
        route = self._hub.route(plain)
        received = 0
        if route.plain or route.groups:
            there = Route(plain, EXACT, route.plain, route.groups, [])
            received = self._hub.table.send(there, plain, reply, header, payload)
        for sink in tuple(route.sinks):
            count = sink.offer(session, plain, reply, header, payload)
            received += 1 if count is None else count
        return received
