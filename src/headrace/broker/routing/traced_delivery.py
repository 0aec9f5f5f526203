"""The way of a traced message: what the compiled fan-out does, one receiver at a time, with an event for each.

Owns the order of steps on the path of a traced message and nothing else: rare, so it is written for reading, not for
speed. With `Nats-Trace-Only` the same way is taken, but nothing is delivered.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple, Protocol

from headrace._native import KEY_EXACT, PublishFastPath, Route, RouteTable
from headrace._native.reserved_subjects import is_reserved_reply
from headrace.broker.routing import message_trace
from headrace.broker.routing.message_trace import AccountTracing, MessageTrace
from headrace.broker.routing.remote_interest import LeafnodeFanout
from headrace.broker.routing.subscription_trie import ImportTarget
from headrace.protocol import headers, subjects

_PERMISSIONS = "Permissions Violation for Publish"
_DENIED_PREFIXES = (b"$NRG.", b"_GR_.")
_LINE_BYTES = 24


class TracedMessage(NamedTuple):
    """A message on its way."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


class StreamExport(NamedTuple):
    """The import that a message goes through: `allowed` is whether its trace continues in the importing account."""

    account: str
    pattern: bytes
    allowed: bool


class TracedSource(Protocol):
    """The connection that a traced message arrived on."""

    cid: int
    router: Any

    @property
    def name(self) -> str: ...


class TraceStart(NamedTuple):
    """`trace` is None if the message is not traced; then `drop` is whether it must not be delivered either."""

    trace: MessageTrace | None
    header: bytes
    drop: bool = False


def start_trace(tracing: AccountTracing | None, source: Any, kind: int, message: TracedMessage) -> TraceStart:
    """Decide whether a message is traced, by its headers, the account and the permissions of the connection."""
    header = message.header
    request = message_trace.parse_trace_request(header) if tracing is not None else None
    if tracing is None or request is None:
        return TraceStart(None, header)
    if request.get(message_trace.ORIGIN_ACCOUNT):
        return TraceStart(None, message_trace.disable(header), request.trace_only)
    dest = tracing.dest if request.external else request.get(message_trace.DEST)
    if not dest:
        return TraceStart(None, header)
    if request.external and kind == message_trace.KIND_CLIENT and not message_trace.is_sampled_here(tracing):
        return TraceStart(None, message_trace.disable(header))
    if not message_trace.is_valid_dest(dest):
        return TraceStart(None, header, request.trace_only)
    if not source.may_trace_to(dest):
        source.deny_publish(dest)
        return TraceStart(None, header, drop=True)
    trace = MessageTrace(tracing, request, dest, kind, len(header) + len(message.payload))
    trace.add_ingress(source.cid, source.name, message.subject)
    return TraceStart(trace, header)


def publish_from_client(session: Any, message: TracedMessage) -> bool:
    """Publish a client's message that may have to be traced; return False, without any effect, if it need not be."""
    start = start_trace(session.router.tracing, session, message_trace.KIND_CLIENT, message)
    if start.trace is None and not start.drop and start.header is message.header:
        return False
    if start.drop:
        return True
    message = message._replace(header=start.header)
    error = _find_violation(session, message)
    if not error:
        if session.verbose:
            session.send(b"+OK\r\n")
        received = _fan_out(start.trace, session, message)
        size = len(message.header) + len(message.payload) + len(message.subject) + len(message.reply)
        session.fanout_bytes += received * (size + _LINE_BYTES)
        if not received and message.reply and session.no_responders:
            session.on_no_responders(message.subject, message.reply)
    if start.trace is not None:
        if error:
            start.trace.set_ingress_error(error)
        send_trace(session.router, start.trace)
    return True


def _find_violation(session: Any, message: TracedMessage) -> str:
    """Reject a message that the client may not publish; return the error text, or ""."""
    subject, reply = message.subject, message.reply
    if subject.startswith(_DENIED_PREFIXES) or (session.has_permissions and not session.may_publish(subject)):
        session.deny_publish(subject)
        return f'{_PERMISSIONS} to "{subject.decode("utf-8", "replace")}"'
    if reply and (is_reserved_reply(reply) or (session.has_permissions and not session.may_reply(reply))):
        session.deny_reply(reply)
        return f'{_PERMISSIONS} with Reply of "{reply.decode("utf-8", "replace")}"'
    return ""


def _fan_out(trace: MessageTrace | None, session: Any, message: TracedMessage) -> int:
    if trace is None:
        received: int = session.table.publish_for(session, *message)
        return received
    return TracedDelivery(trace, session).publish(session.table, trace.account, message)


def send_trace(router: Any, trace: MessageTrace) -> None:
    """Send the event of a trace that has ended here."""
    header, payload = trace.encode()
    router.publish(trace.dest, b"", header, payload)


class TracedDelivery:
    """The delivery of one traced message to all its receivers; `source` is the connection that it came from."""

    def __init__(self, trace: MessageTrace, source: Any) -> None:
        self.trace = trace
        self.source = source

    def publish(
        self, table: RouteTable, account: str, message: TracedMessage, export: StreamExport | None = None
    ) -> int:
        """Publish in an account; return how many received it."""
        if not subjects.is_well_formed(message.subject):
            return 0
        return self.deliver(table, table.find(message.subject), account, message, export)

    def deliver(
        self,
        table: RouteTable,
        route: Route,
        account: str,
        message: TracedMessage,
        export: StreamExport | None = None,
    ) -> int:
        """Deliver along a route; return how many received it."""
        received = 0
        for sub in tuple(route.subscribers):
            received += self._deliver_to_client(table, sub, account, message, export)
        for group in filter(None, tuple(route.queue_groups)):
            members = random.sample(group, len(group))
            received += any(self._deliver_to_client(table, sub, account, message, export) for sub in members)
        for subscriber in tuple(route.internal_subscribers):
            received += self.deliver_internal(subscriber, message, export)
        return received

    def _deliver_to_client(
        self, table: RouteTable, sub: Any, account: str, message: TracedMessage, export: StreamExport | None
    ) -> int:
        trace = self.trace
        if export is not None:
            trace.add_stream_export(export.account, message.subject)
        if export is None or export.allowed:
            error = self._find_delivery_error(sub, message)
            trace.add_egress(sub, account, error, export.pattern if export is not None else b"")
            if error:
                return 0
        if trace.trace_only:
            return 1
        return table.deliver(Route(message.subject, KEY_EXACT, [sub], [], []), *message)

    def _find_delivery_error(self, sub: Any, message: TracedMessage) -> str:
        client = sub.client
        if client is self.source and not client.echo:
            return message_trace.NO_ECHO
        if client.permissions is not None and client.permissions.denies_delivery(message.subject, sub.queue):
            return message_trace.SUBSCRIPTION_DENIED
        return message_trace.SUBSCRIPTION_CLOSED if sub.closed else ""

    def deliver_internal(
        self, subscriber: Any, message: TracedMessage, export: StreamExport | None = None
    ) -> int:
        """Deliver to a part of the server; return how many received it."""
        if isinstance(subscriber, ImportTarget):
            return subscriber.on_traced(self, message)
        if isinstance(subscriber, LeafnodeFanout):
            return self._send_to_servers(subscriber, message)
        if export is not None:
            self.trace.add_stream_export(export.account, message.subject)
            if not export.allowed and self.trace.trace_only:
                return 1
        if isinstance(subscriber, PublishFastPath) and (export is None or export.allowed):
            subscriber.handler.on_traced_publish(self.trace, self.source, message)
            return 1
        if getattr(subscriber, "is_system_service", False):
            self.trace.add_system_service(message.subject)
            if self.trace.trace_only:
                return 0
            message = message._replace(header=message_trace.disable(message.header))
        count = subscriber.on_message(self.source, *message)
        return 1 if count is None else int(count)

    def _send_to_servers(self, fanout: LeafnodeFanout, message: TracedMessage) -> int:
        trace, sent = self.trace, 0
        for sender, queues in fanout.choose_targets().items():
            hop = trace.next_hop()
            error = "" if sender.supports_tracing else message_trace.TRACE_UNSUPPORTED
            if error and trace.trace_only:
                trace.add_hop(sender, hop, message_trace.TRACE_ONLY_UNSUPPORTED)
                continue
            header = headers.replace(message.header, message_trace.HOP, hop)
            fanout.send_to(sender, queues, message.subject, message.reply, header, message.payload)
            trace.add_hop(sender, hop, error)
            sent += 1
        return sent
