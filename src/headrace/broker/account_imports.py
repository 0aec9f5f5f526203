"""Stream and service imports between accounts, and the routing of service replies back to the requester.

Owns the imports that are active and the map of pending replies; which imports are allowed is decided in `exports`. An
import is an entry in the router of the exporting account for streams, of the importing account for services; nothing
else of one account is visible in another. Knows no sockets and no files.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.routing.exports import (
    Export,
    Import,
    check_import,
    map_to_exporter,
    map_to_importer,
    wildcard_form,
)
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.subscription_trie import ImportPattern, ImportTarget
from headrace.protocol import headers, subjects

if TYPE_CHECKING:
    from headrace.broker.accounts import Account, Accounts
    from headrace.broker.timers import TimerHandle, Timers

REQUEST_INFO = b"Nats-Request-Info"
_ACK = b"$JS.ACK."
_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NAME_SIZE = 6
_REPLY_SIZE = 8
_INFO_LINE = re.compile(rb"(?im)^nats-request-info[ \t]*:.*\r\n")


# Streams


class StreamImport(ImportPattern):
    """An entry in the exporter's router; messages that match are published in the importer's."""

    __slots__ = ("_exporter_router", "_importer_router", "_local_pattern", "_map_subject", "_subject")

    def __init__(
        self, exporter_router: SubjectRouter, importer_router: SubjectRouter, wanted: Import
    ) -> None:
        self._exporter_router, self._importer_router = exporter_router, importer_router
        self._subject, self._local_pattern = wanted.subject, wildcard_form(wanted.local)
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
        return StreamImportTarget(self._importer_router, subject, self._map_subject(subject))


class StreamImportTarget(ImportTarget):
    __slots__ = ("_mapped_subject", "_router", "_subject")

    def __init__(self, router: SubjectRouter, subject: bytes, mapped_subject: bytes) -> None:
        self._router, self._subject, self._mapped_subject = router, subject, mapped_subject

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        if subject == self._subject:
            return self._router.publish(self._mapped_subject, reply, header, payload)
        return self._router.deliver(self._mapped_subject, subject, reply, header, payload)

    def has_interest(self, queue: bytes | None) -> bool:
        return self._router.has_interest(self._mapped_subject, queue)


# Services


class PendingReply(ImportTarget):
    """A reply expected in one account that belongs to a requester in another."""

    __slots__ = (
        "_many",
        "_reply",
        "_reply_map",
        "_requester",
        "_router",
        "deadline_ns",
        "subject",
        "timeout_ns",
    )

    def __init__(
        self,
        reply_map: ReplyMap,
        router: SubjectRouter,
        requester: ReplyMap,
        reply: bytes,
        many: bool,
        timeout_ns: int,
    ) -> None:
        self._reply_map, self._router, self._requester = reply_map, router, requester
        self._reply = reply
        self._many = many
        self.timeout_ns = timeout_ns
        self.deadline_ns = 0
        self.subject = reply_map.new_subject()
        router.subscribe_internal(self.subject, self)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        requester = self._requester
        onward_reply = requester.map_reply(self._reply_map, reply, many=False, timeout_ns=self.timeout_ns)
        if subject == self.subject:
            received = requester.router.publish(self._reply, onward_reply, header, payload)
        else:
            received = requester.router.deliver(self._reply, subject, onward_reply, header, payload)
        if not received or not self._many or not (header or payload):
            self._reply_map.remove(self)
            if not received:
                requester.cancel(onward_reply)
        else:
            self._reply_map.extend(self)
        return received

    def has_interest(self, queue: bytes | None) -> bool:
        return self._requester.router.has_interest(self._reply, queue)

    def close(self) -> None:
        self._router.unsubscribe_internal(self.subject, self)


class ReplyMap:
    """The pending replies of one account to requesters in other accounts."""

    def __init__(self, router: SubjectRouter, timers: Timers) -> None:
        self.router = router
        self._timers = timers
        self._prefix = b"_R_." + _random_name(_NAME_SIZE) + b"."
        self._pending: dict[bytes, PendingReply] = {}
        self._expiry_timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def new_subject(self) -> bytes:
        return self._prefix + _random_name(_REPLY_SIZE)

    def map_reply(self, requester: ReplyMap, reply: bytes, *, many: bool, timeout_ns: int) -> bytes:
        """Return the reply subject to use in this account, so that the reply reaches `reply` in the requester's account."""
        if not reply or reply.startswith(_ACK):
            return reply
        pending = PendingReply(self, self.router, requester, reply, many, timeout_ns)
        self._pending[pending.subject] = pending
        pending.deadline_ns = self._timers.now_ns() + timeout_ns
        if self._expiry_timer is None:
            self._expiry_timer = self._timers.after(timeout_ns, self._expire)
        return pending.subject

    def extend(self, pending: PendingReply) -> None:
        """Extend the deadline: more replies may come."""
        pending.deadline_ns = self._timers.now_ns() + pending.timeout_ns

    def remove(self, pending: PendingReply) -> None:
        """Stop waiting for this reply."""
        if self._pending.pop(pending.subject, None) is not None:
            pending.close()

    def cancel(self, subject: bytes) -> None:
        """Remove the pending reply of a request that nobody received."""
        pending = self._pending.get(subject)
        if pending is not None:
            self.remove(pending)

    def _expire(self) -> None:
        self._expiry_timer = None
        now_ns = self._timers.now_ns()
        for pending in list(self._pending.values()):
            if pending.deadline_ns <= now_ns:
                self.remove(pending)
        if self._pending:
            soonest = min(pending.deadline_ns for pending in self._pending.values())
            self._expiry_timer = self._timers.at_monotonic(soonest, self._expire)

    def close(self) -> None:
        for pending in list(self._pending.values()):
            self.remove(pending)
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()


def _random_name(size: int) -> bytes:
    return bytes(random.SystemRandom().choices(_ALPHABET, k=size))


class ServiceImport(ImportPattern):
    """An entry in the importer's router; requests that match are sent in the exporter's."""

    __slots__ = (
        "_export",
        "_exporter_replies",
        "_importer",
        "_importer_replies",
        "_in_request",
        "_local_pattern",
        "_map_subject",
        "_share",
        "account_imports",
    )

    def __init__(
        self,
        account_imports: AccountImports,
        importer: Account,
        exporter: Account,
        wanted: Import,
        export: Export,
    ):
        self.account_imports = account_imports
        self._importer = importer
        self._importer_replies, self._exporter_replies = (
            account_imports.reply_map(importer),
            account_imports.reply_map(exporter),
        )
        self._export = export
        self._share = wanted.share
        self._local_pattern = wildcard_form(wanted.local)
        self._map_subject = map_to_exporter(wanted.local, wanted.subject)
        self._in_request = False

    def open(self) -> None:
        self._importer_replies.router.subscribe_internal(self._local_pattern, self)

    def close(self) -> None:
        self._importer_replies.router.unsubscribe_internal(self._local_pattern, self)

    def resolve(self, subject: bytes) -> ImportTarget:
        return ServiceImportTarget(self, self._map_subject(subject))

    def has_interest(self, mapped_subject: bytes, queue: bytes | None) -> bool:
        return self._exporter_replies.router.has_interest(mapped_subject, queue)

    def request(
        self, session: Any, mapped_subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int:
        """Send a request in the exporting account; return how many received it."""
        if self._in_request:
            return 0  # the request came back to where it started
        export, far = self._export, self._exporter_replies
        many = export.response != "singleton"
        mapped_reply = far.map_reply(
            self._importer_replies, reply, many=many, timeout_ns=export.response_timeout_ns
        )
        self._in_request = True
        try:
            with self.account_imports.request_scope(session, self._importer, self._share) as request_info:
                block = _add_request_info(header, request_info)
                received = far.router.publish(mapped_subject, mapped_reply, block, payload)
        finally:
            self._in_request = False
        if not received:
            far.cancel(mapped_reply)
        return received


class ServiceImportTarget(ImportTarget):
    __slots__ = ("_mapped_subject", "_service_import")

    def __init__(self, service_import: ServiceImport, mapped_subject: bytes) -> None:
        self._service_import, self._mapped_subject = service_import, mapped_subject

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        return self._service_import.request(session, self._mapped_subject, reply, header, payload)

    def has_interest(self, queue: bytes | None) -> bool:
        return self._service_import.has_interest(self._mapped_subject, queue)


def _add_request_info(header: bytes, info: dict[str, Any]) -> bytes:
    """Add information about the requester to the header; remove what a client put there itself, in any case or spacing."""
    clean = _INFO_LINE.sub(b"", header) if header else header
    return headers.append(clean, [(REQUEST_INFO, msgspec.json.encode(info))])


class _RequestScope:
    """Context of one request; nested requests form a chain, so that a chain of services shows the original requester."""

    __slots__ = ("_account_imports", "_info")

    def __init__(self, account_imports: AccountImports, info: dict[str, Any]) -> None:
        self._account_imports, self._info = account_imports, info

    def __enter__(self) -> dict[str, Any]:
        self._account_imports.request_chain.append(self._info)
        return self._info

    def __exit__(self, *_: object) -> None:
        self._account_imports.request_chain.pop()


class AccountImports:
    """All imports of a server."""

    def __init__(self, accounts: Accounts, timers: Timers, server_name: str = "") -> None:
        self._accounts = accounts
        self._timers = timers
        self._server_name = server_name
        self._imports: dict[str, list[StreamImport | ServiceImport]] = {}
        self._reply_maps: dict[str, ReplyMap] = {}
        self.request_chain: list[dict[str, Any]] = []

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
        return ServiceImport(self, near, far, wanted, export)

    def request_scope(self, session: Any, importer: Account, share: bool) -> _RequestScope:
        """Return the context of a request, with the information that the service gets about the requester."""
        if self.request_chain:
            return _RequestScope(self, self.request_chain[0] | {"svc": importer.name})
        info: dict[str, Any] = {"acc": importer.name}
        if share and session is not None:
            info |= self._client_info(session)
        return _RequestScope(self, info)

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
