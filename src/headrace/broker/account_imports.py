"""Stream and service imports between accounts, and the routing of service replies back to the requester.

Owns the imports that are active and the map of pending replies; which imports are allowed is decided in `exports`. An
import is an entry in the router of the exporting account for streams, of the importing account for services; nothing
else of one account is visible in another. Knows no sockets and no files. See ADR 71.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.reply_map import ReplyMap
from headrace.broker.routing.exports import (
    RESPONSE_TIMEOUT_NS,
    Export,
    Import,
    check_import,
    map_to_exporter,
    map_to_importer,
    wildcard_form,
)
from headrace.broker.routing.message_trace import DEST, disable
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.subscription_trie import ImportPattern, ImportTarget, select_group
from headrace.broker.routing.traced_delivery import StreamExport, TracedDelivery, TracedMessage
from headrace.protocol import headers, subjects

if TYPE_CHECKING:
    from headrace.broker.accounts import Account, Accounts
    from headrace.broker.timers import Timers

REQUEST_INFO = b"Nats-Request-Info"
#: The line with the break before it. Clients of others also end lines at a single CR or LF.
_INFO_LINE = re.compile(rb"(?i)[\r\n]+nats-request-info[ \t]*:[^\r\n]*(?=[\r\n]|$)")


def get_account_name(router: SubjectRouter) -> str:
    """Return the name of a router's account, as message traces show it."""
    return router.tracing.account if router.tracing is not None else ""


# Streams


class StreamImport(ImportPattern):
    """An entry in the exporter's router; messages that match are published in the importer's."""

    __slots__ = (
        "_allow_trace",
        "_exporter_router",
        "_importer_router",
        "_local_pattern",
        "_map_subject",
        "_subject",
    )

    def __init__(
        self, exporter_router: SubjectRouter, importer_router: SubjectRouter, wanted: Import
    ) -> None:
        self._exporter_router, self._importer_router = exporter_router, importer_router
        self._subject, self._local_pattern = wanted.subject, wildcard_form(wanted.local)
        self._allow_trace = wanted.allow_trace
        self._map_subject = map_to_importer(wanted.subject, wanted.local)

    def open(self) -> None:
        self._exporter_router.subscribe_internal(self._subject, self)
        self._importer_router.watch_all(self._on_importer_interest)

    def close(self) -> None:
        self._exporter_router.unsubscribe_internal(self._subject, self)
        self._importer_router.unwatch_all(self._on_importer_interest)

    def _on_importer_interest(self, pattern: bytes) -> None:
        """Pass a change of interest on the importer's side to watchers in the exporting account."""
        if subjects.overlaps(pattern, self._local_pattern):
            self._exporter_router.notify_interest(self._subject)

    def resolve(self, subject: bytes) -> ImportTarget:
        export = StreamExport(get_account_name(self._importer_router), self._subject, self._allow_trace)
        return StreamImportTarget(self._importer_router, subject, self._map_subject(subject), export)


class StreamImportTarget(ImportTarget):
    __slots__ = ("_export", "_mapped_subject", "_router", "_subject")

    def __init__(
        self, router: SubjectRouter, subject: bytes, mapped_subject: bytes, export: StreamExport
    ) -> None:
        self._router, self._subject, self._mapped_subject = router, subject, mapped_subject
        self._export = export

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        if subject == self._subject:
            return self._router.publish(self._mapped_subject, reply, header, payload)
        return self._router.deliver(self._mapped_subject, subject, reply, header, payload)

    def on_traced(self, delivery: TracedDelivery, message: TracedMessage) -> int:
        mapped = message._replace(subject=self._mapped_subject)
        return delivery.publish(self._router.table, self._export.account, mapped, self._export)

    def has_interest(self, queue: bytes | None) -> bool:
        return self._router.has_interest(self._mapped_subject, queue)

    def for_queue(self, queue: bytes) -> ImportedGroup | None:
        route = self._router.get_route(self._mapped_subject)
        return (
            None
            if select_group(route, queue) is None
            else ImportedGroup(self._router, self._mapped_subject, queue)
        )


class ImportedGroup:
    """Sends to one member of a queue group in the importing account; an internal subscriber."""

    __slots__ = ("_mapped_subject", "_queue", "_router")

    def __init__(self, router: SubjectRouter, mapped_subject: bytes, queue: bytes) -> None:
        self._router, self._mapped_subject, self._queue = router, mapped_subject, queue

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        router = self._router
        route = select_group(router.get_route(self._mapped_subject), self._queue)
        return 0 if route is None else router.table.deliver(route, subject, reply, header, payload)


# Services


class ServiceImport(ImportPattern):
    """An entry in the importer's router; requests that match are sent in the exporter's."""

    __slots__ = (
        "_export",
        "_exporter_replies",
        "_exporter_router",
        "_importer",
        "_importer_replies",
        "_importer_router",
        "_in_request",
        "_local_pattern",
        "_map_subject",
        "_request_chain",
        "_share",
    )

    def __init__(
        self,
        importer: str,
        importer_replies: ReplyMap,
        exporter_replies: ReplyMap,
        request_chain: RequestChain,
        wanted: Import,
        export: Export,
    ):
        self._importer = importer
        self._importer_replies, self._importer_router = importer_replies, importer_replies.router
        self._exporter_replies, self._exporter_router = exporter_replies, exporter_replies.router
        self._request_chain = request_chain
        self._export = export
        self._share = wanted.share
        self._local_pattern = wildcard_form(wanted.local)
        self._map_subject = map_to_exporter(wanted.local, wanted.subject)
        self._in_request = False

    def open(self) -> None:
        self._importer_router.subscribe_internal(self._local_pattern, self)

    def close(self) -> None:
        self._importer_router.unsubscribe_internal(self._local_pattern, self)

    def resolve(self, subject: bytes) -> ImportTarget:
        return ServiceImportTarget(self, self._map_subject(subject))

    def has_interest(self, mapped_subject: bytes, queue: bytes | None) -> bool:
        return self._exporter_router.has_interest(mapped_subject, queue)

    def request(
        self, session: Any, mapped_subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int:
        """Send a request in the exporting account; return how many received it."""
        return self._request(
            session,
            reply,
            header,
            lambda mapped_reply, block: self._exporter_router.publish(
                mapped_subject, mapped_reply, block, payload
            ),
        )

    def request_traced(self, delivery: TracedDelivery, mapped_subject: bytes, message: TracedMessage) -> int:
        """Send a traced request; the trace continues in the exporting account if the export allows it."""
        trace, session = delivery.trace, delivery.source
        exporter = get_account_name(self._exporter_router)
        trace.add_service_import(exporter, message.subject, mapped_subject)
        if not self._export.allow_trace:
            if trace.trace_only:
                return 0
            header = disable(message.header)
            return self.request(session, mapped_subject, message.reply, header, message.payload)
        # Servers that get the message over a leafnode connection send their events to this subject.
        far, hops = self._exporter_replies, trace.hops
        dest = far.map_reply(self._importer_replies, trace.dest, many=True, timeout_ns=RESPONSE_TIMEOUT_NS)
        header = headers.replace(message.header, DEST, dest)
        received = self._request(
            session,
            message.reply,
            header,
            lambda mapped_reply, block: delivery.publish(
                self._exporter_router.table,
                exporter,
                TracedMessage(mapped_subject, mapped_reply, block, message.payload),
            ),
            drop_reply=trace.trace_only,
        )
        if trace.hops == hops:
            far.cancel(dest)
        return received

    def _request(
        self,
        session: Any,
        reply: bytes,
        header: bytes,
        publish: Callable[[bytes, bytes], int],
        *,
        drop_reply: bool = False,
    ) -> int:
        """Publish a request with a reply subject of the exporting account and information about the requester."""
        if self._in_request:
            return 0  # the request came back to where it started
        export, far = self._export, self._exporter_replies
        many = export.response != "singleton"
        mapped_reply = far.map_reply(
            self._importer_replies, reply, many=many, timeout_ns=export.response_timeout_ns
        )
        self._in_request = True
        try:
            with self._request_chain.enter(session, self._importer, self._share) as request_info:
                block = _add_request_info(header, request_info)
                received = publish(mapped_reply, block)
        finally:
            self._in_request = False
        if not received or drop_reply:
            far.cancel(mapped_reply)
        return received


class ServiceImportTarget(ImportTarget):
    __slots__ = ("_mapped_subject", "_service_import")

    def __init__(self, service_import: ServiceImport, mapped_subject: bytes) -> None:
        self._service_import, self._mapped_subject = service_import, mapped_subject

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        return self._service_import.request(session, self._mapped_subject, reply, header, payload)

    def on_traced(self, delivery: TracedDelivery, message: TracedMessage) -> int:
        return self._service_import.request_traced(delivery, self._mapped_subject, message)

    def has_interest(self, queue: bytes | None) -> bool:
        return self._service_import.has_interest(self._mapped_subject, queue)


def _add_request_info(header: bytes, info: dict[str, Any]) -> bytes:
    """Add information about the requester to the header; remove what a client put there itself, in any case or spacing."""
    clean = _INFO_LINE.sub(b"", header) if header else header
    return headers.append(clean, [(REQUEST_INFO, msgspec.json.encode(info))])


class _RequestScope:
    """Context of one request: its information is in the chain until the request has been sent."""

    __slots__ = ("_chain", "_info")

    def __init__(self, chain: list[dict[str, Any]], info: dict[str, Any]) -> None:
        self._chain, self._info = chain, info

    def __enter__(self) -> dict[str, Any]:
        self._chain.append(self._info)
        return self._info

    def __exit__(self, *_: object) -> None:
        self._chain.pop()


class RequestChain:
    """The requests that are being sent; nested ones form a chain, so that the last service sees the original requester."""

    __slots__ = ("_chain", "_server_name")

    def __init__(self, server_name: str) -> None:
        self._server_name = server_name
        self._chain: list[dict[str, Any]] = []

    def enter(self, session: Any, importer: str, share: bool) -> _RequestScope:
        """Return the context of a request, with the information that the service gets about the requester."""
        if self._chain:
            return _RequestScope(self._chain, self._chain[0] | {"svc": importer})
        info: dict[str, Any] = {"acc": importer}
        if share and session is not None:
            info |= self._client_info(session)
        return _RequestScope(self._chain, info)

    def _client_info(self, session: Any) -> dict[str, Any]:
        user = session.identity.user if session.identity is not None else ""
        fields = {
            "host": session.transport.client_ip,
            "id": session.cid,
            "user": user,
            "name": session.name,
            "lang": session.lang,
            "ver": session.version,
            "server": self._server_name,
            "kind": "Client",
            "client_type": "nats",
        }
        return {key: value for key, value in fields.items() if value}


class AccountImports:
    """All imports of a server."""

    def __init__(self, accounts: Accounts, timers: Timers, server_name: str = "") -> None:
        self._accounts = accounts
        self._timers = timers
        self._request_chain = RequestChain(server_name)
        self._imports: dict[str, list[StreamImport | ServiceImport]] = {}
        self._reply_maps: dict[str, ReplyMap] = {}

    def reply_map(self, account: Account) -> ReplyMap:
        """Return the map of an account's pending replies."""
        if account.name not in self._reply_maps:
            self._reply_maps[account.name] = ReplyMap(account.router, self._timers)
        return self._reply_maps[account.name]

    def set_imports(
        self, importer: str, imports: Iterable[Import], exports: Callable[[str], Iterable[Export]]
    ) -> None:
        """Replace an account's imports with these; `check_import` must accept each of them."""
        self.clear_imports(importer)
        made = [
            self._make_import(importer, wanted, check_import(exports(wanted.account), wanted, importer))
            for wanted in imports
        ]
        self._imports[importer] = made
        for account_import in made:
            account_import.open()

    def clear_imports(self, importer: str) -> None:
        """Remove an account's imports; pending replies still arrive."""
        for account_import in self._imports.pop(importer, ()):
            account_import.close()

    def close(self) -> None:
        for name in list(self._imports):
            self.clear_imports(name)
        for reply_map in self._reply_maps.values():
            reply_map.close()

    def _make_import(self, importer: str, wanted: Import, export: Export) -> StreamImport | ServiceImport:
        near, far = self._accounts.get_or_create(importer), self._accounts.get_or_create(wanted.account)
        if wanted.kind == "stream":
            return StreamImport(far.router, near.router, wanted)
        near_replies, far_replies = self.reply_map(near), self.reply_map(far)
        return ServiceImport(near.name, near_replies, far_replies, self._request_chain, wanted, export)
