"""Publishes advisories to their subscribers, once the frame with the change they report is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace._native import AccountClock
from headrace.broker.commit.group_commit import GroupCommit
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.session import Session
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api.advisories import ClientInfo, EncodedEvent, EventStamp
from headrace.jetstream_api.times import format_time
from headrace.protocol.nuid import nuid


class AdvisorySource(Protocol):
    """Fields about the account that every advisory has, and how advisories are published."""

    router: SubjectRouter
    group_commit: GroupCommit
    server_name: str
    account: str
    domain: str
    clock: AccountClock


class Advisories:
    """Publishes advisories about the streams of one account."""

    __slots__ = ("_clock", "_jetstream")

    def __init__(self, jetstream: AdvisorySource) -> None:
        self._jetstream = jetstream
        self._clock = jetstream.clock

    def publish(self, make: Callable[..., EncodedEvent], *fields: object) -> None:
        """Publish an event of `headrace.jetstream_api.advisories`, after everything accepted so far is durable."""
        jetstream = self._jetstream
        subject, body = make(EventStamp(nuid(), self._clock.now_ns(), jetstream.domain), *fields)
        if jetstream.router.has_interest(subject):
            jetstream.group_commit.publish_when_all_durable(subject, b"", b"", body)

    def audit(self, session: Any, subject: bytes, request: bytes, response: bytes) -> None:
        """Publish an audit advisory for an API request and its response."""
        jetstream = self._jetstream
        if not jetstream.router.has_interest(events.AUDIT_SUBJECT):
            return
        client = self.client_info(session)
        self.publish(events.make_api_audit, jetstream.server_name, client, subject, request, response)

    def client_info(self, session: Any) -> ClientInfo:
        """Describe the client that sent a request."""
        client = ClientInfo(server=self._jetstream.server_name, acc=self._jetstream.account)
        if session is not None:
            client.host = session.transport.client_ip
            client.id, client.name, client.lang, client.ver = (
                session.cid,
                session.name,
                session.lang,
                session.version,
            )
            client.user = session.identity.user if session.identity is not None else ""
        if isinstance(session, Session):
            client.start, client.rtt = (
                format_time(session.connected_at(self._clock.wall_ns())),
                session.rtt_ns,
            )
        return client
