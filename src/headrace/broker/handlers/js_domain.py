"""The JetStream domain: maps `$JS.<domain>.API.X` to this account's `$JS.API.X`.

Requests for a domain come from clients that name it and, over leafnode connections, from other servers: there, a request
without a domain is for the other server's own API. Owns only the change of the subject.
"""

from __future__ import annotations

from typing import Any

from headrace._native import KEY_EXACT, Route
from headrace.broker.routing.router import SubjectRouter

_API = b"$JS.API."
_TAILS = (b"INFO", b"STREAM.>", b"CONSUMER.>", b"DIRECT.>", b"META.>", b"SERVER.>", b"ACCOUNT.>")
_BUCKETS = (b"$KV.", b"$OBJ.")


class DomainPrefix:
    """Forwards requests for the domain to the plain API subject."""

    __slots__ = ("_prefix", "_router", "_table")

    def __init__(self, router: SubjectRouter, domain: str) -> None:
        self._router = router
        self._table = router.table
        self._prefix = f"$JS.{domain}.API.".encode()

    def subscribe(self) -> None:
        """Subscribe to the subjects of the domain."""
        for tail in (*_TAILS, *(bucket + b">" for bucket in _BUCKETS)):
            self._router.subscribe_internal(self._prefix + tail, self)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Forward a request as if it had been published there; return how many received it."""
        rest = subject[len(self._prefix) :]
        api_subject = rest if rest.startswith(_BUCKETS) else _API + rest
        route = self._router.get_route(api_subject)
        received = 0
        if route.subscribers or route.queue_groups:
            local_route = Route(api_subject, KEY_EXACT, route.subscribers, route.queue_groups, [])
            received = self._table.deliver(local_route, api_subject, reply, header, payload)
        for subscriber in tuple(route.internal_subscribers):
            count = subscriber.on_message(session, api_subject, reply, header, payload)
            received += 1 if count is None else count
        return received
