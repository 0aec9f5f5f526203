"""Requests and events on `$SYS.>`: the monitoring pages as requests, and clients that connect and disconnect.

Every account may send `$SYS.REQ.USER.INFO`; the rest is visible only in the system account. Figures are those of the
monitoring pages. It changes nothing; `ServerPins` beside it pins stores for backups.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import COMPATIBLE_VERSION
from headrace.monitor.connz import get_account_name
from headrace.monitor.health import find_unhealthy_reason
from headrace.monitor.monitored_server import MonitoredServer, PageReader, make_page_readers
from headrace.monitor.query import Query
from headrace.monitor.server_pins import ServerPins
from headrace.monitor.sliced_page import collect_parts, encode_small, iter_json
from headrace.monitor.varz import format_rfc3339, varz
from headrace.protocol.json_exceptions import JSON_ERRORS
from headrace.protocol.nuid import nuid

if TYPE_CHECKING:
    from headrace.broker import Account, Permissions, Session

_REQUEST_PREFIX = b"$SYS.REQ."
_USER_INFO = b"$SYS.REQ.USER.INFO"
#: Maximum number of large pages that are requested and not sent yet.
_PAGES_MAX = 64
_encode = msgspec.json.encode


class SystemAccountService:
    """Handles all requests about the server."""

    def __init__(self, server: MonitoredServer) -> None:
        self._server = server
        self._seqs = itertools.count(1)
        self._pages: deque[tuple[bytes, dict[str, Any]]] = deque()
        self._page_task: asyncio.Task[None] | None = None
        self._page_readers = {name.upper(): read for name, read in make_page_readers(server).items()}
        self._page_readers |= {"ACCOUNTZ": self._accountz, "HEALTHZ": self._healthz}
        self._server_pins = server.archive.pins if server.archive is not None else ServerPins(server)
        self._server_pins.make_server_info = self.make_server_info

    def subscribe(self) -> None:
        """Subscribe to the requests; for accounts created later call `add_account`."""
        trace_server = self._server.accounts.trace_server
        trace_server.make_server_info, trace_server.now_ns = self.make_server_info, self._server.now_ns
        router = self._server.accounts.system.router
        server_id = self._server.server_id.encode()
        for target in (b"PING", server_id):
            for name in ("STATSZ", "IDZ", *self._page_readers):
                router.subscribe_internal(_REQUEST_PREFIX + b"SERVER.%b.%b" % (target, name.encode()), self)
        router.subscribe_internal(_REQUEST_PREFIX + b"SERVER.PING", self)
        for request_name in (b"INFO", b"CONNZ", b"SUBSZ", b"JSZ", b"LEAFZ", b"STATZ"):
            router.subscribe_internal(_REQUEST_PREFIX + b"ACCOUNT.*." + request_name, self)
        self._server_pins.subscribe()
        for account in self._server.accounts:
            self.add_account(account)

    def add_account(self, account: Account) -> None:
        """Let clients of an account request information about their own user."""
        account.router.subscribe_internal(_USER_INFO, UserInfoResponder(self, account))

    # Requests

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if not reply:
            return
        tokens = subject.decode("utf-8", "replace").split(".")
        if tokens[2] == "SERVER":
            response = self._handle_server_request(tokens[4] if len(tokens) > 4 else "STATSZ", payload)
        else:
            response = self._handle_account_request(tokens[3], tokens[4], payload)
        if response is None:
            return
        body = encode_small(response)
        if body is not None:
            self._publish(reply, body)
        elif len(self._pages) < _PAGES_MAX:
            self._pages.append((reply, response))
            if self._page_task is None:
                self._page_task = asyncio.get_running_loop().create_task(self._publish_pages())
        else:
            self._publish(reply, _encode(self._make_error(503, "too many requests for large pages")))

    async def _publish_pages(self) -> None:
        """Respond with pages of many rows, one after the other; each is made in slices."""
        while self._pages:
            reply, response = self._pages.popleft()
            try:
                body = b"".join(await collect_parts(iter_json(response)))
            except Exception as error:  # a page that fails must not end the others
                body = _encode(self._make_error(500, f"{type(error).__name__}: {error}"))
            self._publish(reply, body)
        self._page_task = None

    def stop(self) -> None:
        """Stop responding with large pages: the server stops."""
        self._server_pins.stop()
        self._pages.clear()
        if self._page_task is not None:
            self._page_task.cancel()

    def _publish(self, reply: bytes, body: bytes) -> None:
        self._server.accounts.system.router.publish(reply, b"", b"", body)

    def _handle_server_request(self, name: str, payload: bytes) -> dict[str, Any] | None:
        server = self._server
        if name == "IDZ":
            return {"name": server.server_name, "host": server.listener.host, "id": server.server_id}
        if name == "STATSZ":
            return {"server": self.make_server_info(), "statsz": self._statsz()}
        return self._make_response(self._page_readers[name], payload)

    def _handle_account_request(self, account: str, name: str, payload: bytes) -> dict[str, Any] | None:
        if name == "STATZ":
            return self._make_response(lambda _: self._statz(account), payload)
        found = self._server.accounts.get(account)
        if account == "PING" or found is None:
            return self._make_error(404, "account not found")
        if name == "INFO":
            return self._make_response(lambda _: self._make_account_detail(found), payload)
        return self._make_response(lambda query: self._page_readers[name]({**query, "acc": account}), payload)

    def _make_response(self, read: PageReader, payload: bytes) -> dict[str, Any]:
        try:
            return {"server": self.make_server_info(), "data": read(_parse_query(payload))}
        except JSON_ERRORS as error:
            return self._make_error(400, str(error))

    def _make_error(self, code: int, text: str) -> dict[str, Any]:
        return {"server": self.make_server_info(), "error": {"code": code, "description": text}}

    def make_server_info(self) -> dict[str, Any]:
        """Return which server responds, and when."""
        server = self._server
        fields: dict[str, Any] = {
            "name": server.server_name,
            "host": server.listener.host,
            "id": server.server_id,
            "ver": COMPATIBLE_VERSION,
            "jetstream": server.options.jetstream,
            "flags": 1 if server.options.jetstream else 0,
            "seq": next(self._seqs),
            "time": format_rfc3339(server.now_ns()),
        }
        if server.options.domain:
            fields["domain"] = server.options.domain
        if server.options.server_tags:
            fields["tags"] = list(server.options.server_tags)
        return fields

    # Figures

    def _statsz(self) -> dict[str, Any]:
        stats = self._server.stats()
        general = varz(self._server.options, stats)
        sent = {"msgs": stats.out_msgs, "bytes": stats.out_bytes}
        received = {"msgs": stats.in_msgs, "bytes": stats.in_bytes}
        shared = ("start", "mem", "cores", "cpu", "connections", "total_connections", "subscriptions")
        return {key: general[key] for key in shared} | {
            "active_accounts": sum(1 for account in self._server.accounts if account.sessions),
            "sent": sent,
            "received": received,
            "slow_consumers": stats.slow_consumers,
            "active_servers": 1,
        }

    def _accountz(self, query: Query) -> dict[str, Any]:
        server = self._server
        requested = query.get("account", "")
        fields: dict[str, Any] = {
            "server_id": server.server_id,
            "now": format_rfc3339(server.now_ns()),
            "system_account": server.accounts.system.name,
        }
        if not requested:
            return fields | {"accounts": [account.name for account in server.accounts]}
        found = server.accounts.get(requested)
        if found is None:
            raise ValueError(f"account {requested!r} is not known")
        return fields | {"account_detail": self._make_account_detail(found)}

    def _make_account_detail(self, account: Account) -> dict[str, Any]:
        return {
            "account_name": account.name,
            "name_tag": account.display_name,
            "is_system": account is self._server.accounts.system,
            "expired": False,
            "complete": True,
            "jetstream_enabled": account.jetstream is not None,
            "leafnode_connections": 0,
            "client_connections": len(account.sessions),
            "subscriptions": account.router.subscriptions,
        }

    def _statz(self, requested: str) -> dict[str, Any]:
        server = self._server
        selected = [
            a
            for a in server.accounts
            if requested in ("PING", a.name) and (a.sessions or requested == a.name)
        ]
        return {
            "server_id": server.server_id,
            "now": format_rfc3339(server.now_ns()),
            "account_statz": [_make_account_stats(account) for account in selected],
        }

    def _healthz(self, _: Query) -> dict[str, Any]:
        if reason := find_unhealthy_reason(self._server.accounts):
            return {"status": "unavailable", "status_code": 503, "error": reason}
        return {"status": "ok", "status_code": 200}

    # Events

    def on_connect(self, session: Session) -> None:
        """Publish that a client connected."""
        self._publish_event(session, "CONNECT", "client_connect", {})

    def on_disconnect(self, session: Session) -> None:
        """Publish that a client disconnected."""
        traffic = {
            "sent": {"msgs": session.out_msgs, "bytes": session.out_bytes},
            "received": {"msgs": session.in_msgs, "bytes": session.in_bytes},
            "reason": "Client Closed",
        }
        self._publish_event(session, "DISCONNECT", "client_disconnect", traffic)

    def _publish_event(self, session: Session, verb: str, kind: str, extra: dict[str, Any]) -> None:
        server = self._server
        router = server.accounts.system.router
        subject = f"$SYS.ACCOUNT.{get_account_name(session)}.{verb}".encode()
        if not router.has_interest(subject):
            return
        now = format_rfc3339(server.now_ns())
        event = {
            "type": f"io.nats.server.advisory.v1.{kind}",
            "id": nuid(),
            "timestamp": now,
            "server": self.make_server_info(),
            "client": _make_client_info(session) | ({"stop": now} if extra else {}),
        }
        router.publish(subject, b"", b"", msgspec.json.encode(event | extra))


class UserInfoResponder:
    """Responds with information about the client's own user."""

    __slots__ = ("_account", "_service")

    def __init__(self, service: SystemAccountService, account: Account) -> None:
        self._service, self._account = service, account

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if not reply:
            return
        identity = getattr(session, "identity", None)
        account = self._account
        data: dict[str, Any] = {
            "user": identity.user if identity is not None else "",
            "account": account.name,
            "account_name": account.display_name,
        }
        if identity is not None and identity.permissions is not None:
            data["permissions"] = _encode_permissions(identity.permissions)
        account.router.publish(
            reply, b"", b"", msgspec.json.encode({"server": self._service.make_server_info(), "data": data})
        )


def _encode_permissions(permissions: Permissions) -> dict[str, Any]:
    def decode_all(entries: Any) -> list[str]:
        return [
            b" ".join(filter(None, entry)).decode() if isinstance(entry, tuple) else entry.decode()
            for entry in entries
        ]

    def make_allow_deny(allow: Any, deny: Any) -> dict[str, list[str]]:
        found = {"allow": decode_all(allow or ()), "deny": decode_all(deny)}
        return {key: value for key, value in found.items() if value}

    result: dict[str, Any] = {
        "publish": make_allow_deny(permissions.publish_allow, permissions.publish_deny),
        "subscribe": make_allow_deny(permissions.subscribe_allow, permissions.subscribe_deny),
    }
    if permissions.responses is not None:
        result["responses"] = {"max": permissions.responses.max_msgs, "ttl": permissions.responses.expires_ns}
    return result


def _make_client_info(session: Session) -> dict[str, Any]:
    fields = {
        "host": session.transport.client_ip,
        "id": session.cid,
        "acc": get_account_name(session),
        "user": session.identity.user if session.identity is not None else "",
        "name": session.name,
        "lang": session.lang,
        "ver": session.version,
        "kind": "Client",
        "client_type": "nats",
    }
    return {key: value for key, value in fields.items() if value}


def _make_account_stats(account: Account) -> dict[str, Any]:
    sessions = tuple(account.sessions)
    return {
        "acc": account.name,
        "name": account.display_name,
        "conns": len(sessions),
        "leafnodes": 0,
        "total_conns": len(sessions),
        "num_subscriptions": account.router.subscriptions,
        "sent": {"msgs": sum(s.out_msgs for s in sessions), "bytes": sum(s.out_bytes for s in sessions)},
        "received": {"msgs": sum(s.in_msgs for s in sessions), "bytes": sum(s.in_bytes for s in sessions)},
        "slow_consumers": 0,
    }


def _parse_query(payload: bytes) -> Query:
    """Parse a request body into the parameters of a page's query."""
    if not payload.strip():
        return {}
    fields = msgspec.json.decode(payload, type=dict[str, Any])
    scalars = {key: value for key, value in fields.items() if isinstance(value, str | int | bool)}
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in scalars.items()
    }
