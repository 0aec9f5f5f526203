"""Advisories: what happened, told to whoever listens; they leave with the frame that holds what they speak of."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.api import advisories as events
from headrace.api.advisories import ClientInfo, Event, Stamp
from headrace.api.times import text
from headrace.broker.session import Session

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def nuid() -> str:
    """A unique id of 22 characters, in the alphabet that NATS uses."""
    return "".join(_ALPHABET[b % 62] for b in secrets.token_bytes(22))


class Advisories:
    """Publishes events about the streams of one server."""

    __slots__ = ("_jetstream",)

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream

    def send(self, make: Callable[..., Event], *facts: object) -> None:
        """One event of `headrace.api.advisories`, after everything admitted so far is durable."""
        jetstream = self._jetstream
        subject, body = make(Stamp(nuid(), jetstream.now_ns(), jetstream.domain), *facts)
        if jetstream.hub.interest(subject):
            jetstream.ticker.send_settled(subject, b"", b"", body)

    def audit(self, session: Any, subject: bytes, request: bytes, response: bytes) -> None:
        """An API call was made and answered."""
        jetstream = self._jetstream
        if not jetstream.hub.interest(events.AUDIT_SUBJECT):
            return
        client = self.client(session)
        self.send(events.audit, jetstream.server_name, client, subject, request, response)

    def client(self, session: Any) -> ClientInfo:
        """Who is behind a request."""
        client = ClientInfo(server=self._jetstream.server_name, acc=self._jetstream.account)
        if session is not None:
            client.host = session.owner.client_ip
            client.id, client.name, client.lang, client.ver = (
                session.cid,
                session.name,
                session.lang,
                session.version,
            )
            client.user = session.identity.user if session.identity is not None else ""
        if isinstance(session, Session):
            client.start, client.rtt = text(session.since(self._jetstream.clock_ns())), session.rtt_ns
        return client
