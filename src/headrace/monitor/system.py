"""What the server answers and tells on `$SYS.>`: the monitoring pages as requests, and who comes and goes.

Every account may ask who it is (`$SYS.REQ.USER.INFO`); the rest is seen in the system account alone. Figures are
those of the monitoring pages. It changes nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import COMPATIBLE_VERSION
from headrace.broker.advisories import nuid
from headrace.monitor.connz import account_of
from headrace.monitor.health import ailment
from headrace.monitor.query import Query
from headrace.monitor.varz import rfc3339, varz
from headrace.monitor.watched import Figures, Watched, figures
from headrace.protocol.bodies import UNREADABLE

if TYPE_CHECKING:
    from headrace.broker import Account, Permissions, Session

_REQUEST = b"$SYS.REQ."
_USER_INFO = b"$SYS.REQ.USER.INFO"


class SystemDesk:
    """The sink of all requests about the server."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._readers = {name.upper(): read for name, read in figures(server).items()}
        self._readers |= {"ACCOUNTZ": self._accountz, "HEALTHZ": self._healthz}

    def open(self) -> None:
        """Answer from now on; accounts that come later are greeted with `welcome`."""
        hub = self._server.accounts.system.hub
        here = self._server.server_id.encode()
        for who in (b"PING", here):
            for name in ("STATSZ", "IDZ", *self._readers):
                hub.subscribe_internal(_REQUEST + b"SERVER.%b.%b" % (who, name.encode()), self)
        hub.subscribe_internal(_REQUEST + b"SERVER.PING", self)
        for about in (b"INFO", b"CONNZ", b"SUBSZ", b"JSZ", b"LEAFZ", b"STATZ"):
            hub.subscribe_internal(_REQUEST + b"ACCOUNT.*." + about, self)
        for account in self._server.accounts:
            self.welcome(account)

    def welcome(self, account: Account) -> None:
        """Let the members of an account ask who they are."""
        account.hub.subscribe_internal(_USER_INFO, UserInfo(self, account))

    # Requests

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if not reply:
            return
        words = subject.decode("utf-8", "replace").split(".")
        if words[2] == "SERVER":
            answer = self._about_server(words[4] if len(words) > 4 else "STATSZ", payload)
        else:
            answer = self._about_account(words[3], words[4], payload)
        if answer is not None:
            self._server.accounts.system.hub.publish(reply, b"", b"", msgspec.json.encode(answer))

    def _about_server(self, name: str, payload: bytes) -> dict[str, Any] | None:
        server = self._server
        if name == "IDZ":
            return {"name": server.server_name, "host": server.listener.host, "id": server.server_id}
        if name == "STATSZ":
            return {"server": self.stamp(), "statsz": self._statsz()}
        return self._framed(self._readers[name], payload)

    def _about_account(self, account: str, name: str, payload: bytes) -> dict[str, Any] | None:
        if name == "STATZ":
            return self._framed(lambda _: self._statz(account), payload)
        found = self._server.accounts.get(account)
        if account == "PING" or found is None:
            return self._failure(404, "account not found")
        if name == "INFO":
            return self._framed(lambda _: self._account(found), payload)
        return self._framed(lambda query: self._readers[name]({**query, "acc": account}), payload)

    def _framed(self, read: Figures, payload: bytes) -> dict[str, Any]:
        try:
            return {"server": self.stamp(), "data": read(_query(payload))}
        except UNREADABLE as error:
            return self._failure(400, str(error))

    def _failure(self, code: int, text: str) -> dict[str, Any]:
        return {"server": self.stamp(), "error": {"code": code, "description": text}}

    def stamp(self) -> dict[str, Any]:
        """Which server answers, and when."""
        server = self._server
        fields: dict[str, Any] = {
            "name": server.server_name,
            "host": server.listener.host,
            "id": server.server_id,
            "ver": COMPATIBLE_VERSION,
            "jetstream": server.options.jetstream,
            "flags": 1 if server.options.jetstream else 0,
            "seq": next(self._numbers),
            "time": rfc3339(server.now_ns()),
        }
        if server.options.domain:
            fields["domain"] = server.options.domain
        if server.options.server_tags:
            fields["tags"] = list(server.options.server_tags)
        return fields

    # Figures

    def _statsz(self) -> dict[str, Any]:
        vitals = self._server.vitals()
        general = varz(self._server.options, vitals)
        sent = {"msgs": vitals.out_msgs, "bytes": vitals.out_bytes}
        received = {"msgs": vitals.in_msgs, "bytes": vitals.in_bytes}
        shared = ("start", "mem", "cores", "cpu", "connections", "total_connections", "subscriptions")
        return {key: general[key] for key in shared} | {
            "active_accounts": sum(1 for account in self._server.accounts if account.sessions),
            "sent": sent,
            "received": received,
            "slow_consumers": vitals.slow_consumers,
            "active_servers": 1,
        }

    def _accountz(self, query: Query) -> dict[str, Any]:
        server = self._server
        wanted = query.get("account", "")
        fields: dict[str, Any] = {
            "server_id": server.server_id,
            "now": rfc3339(server.now_ns()),
            "system_account": server.accounts.system.name,
        }
        if not wanted:
            return fields | {"accounts": [account.name for account in server.accounts]}
        found = server.accounts.get(wanted)
        if found is None:
            raise ValueError(f"account {wanted!r} is not known")
        return fields | {"account_detail": self._account(found)}

    def _account(self, account: Account) -> dict[str, Any]:
        return {
            "account_name": account.name,
            "name_tag": account.title,
            "is_system": account is self._server.accounts.system,
            "expired": False,
            "complete": True,
            "jetstream_enabled": account.jetstream is not None,
            "leafnode_connections": 0,
            "client_connections": len(account.sessions),
            "subscriptions": account.hub.subscriptions,
        }

    def _statz(self, wanted: str) -> dict[str, Any]:
        server = self._server
        chosen = [
            a for a in server.accounts if wanted in ("PING", a.name) and (a.sessions or wanted == a.name)
        ]
        return {
            "server_id": server.server_id,
            "now": rfc3339(server.now_ns()),
            "account_statz": [_figures(account) for account in chosen],
        }

    def _healthz(self, _: Query) -> dict[str, Any]:
        if why := ailment(self._server.accounts):
            return {"status": "unavailable", "status_code": 503, "error": why}
        return {"status": "ok", "status_code": 200}

    # Events

    def came(self, session: Session) -> None:
        """A client was let in."""
        self._event(session, "CONNECT", "client_connect", {})

    def went(self, session: Session) -> None:
        """A client is gone."""
        figures = {
            "sent": {"msgs": session.out_msgs, "bytes": session.out_bytes},
            "received": {"msgs": session.in_msgs, "bytes": session.in_bytes},
            "reason": "Client Closed",
        }
        self._event(session, "DISCONNECT", "client_disconnect", figures)

    def _event(self, session: Session, verb: str, kind: str, more: dict[str, Any]) -> None:
        server = self._server
        hub = server.accounts.system.hub
        subject = f"$SYS.ACCOUNT.{account_of(session)}.{verb}".encode()
        if not hub.interest(subject):
            return
        now = rfc3339(server.now_ns())
        event = {
            "type": f"io.nats.server.advisory.v1.{kind}",
            "id": nuid(),
            "timestamp": now,
            "server": self.stamp(),
            "client": _client(session) | ({"stop": now} if more else {}),
        }
        hub.publish(subject, b"", b"", msgspec.json.encode(event | more))


class UserInfo:
    """Tells a client who it is."""

    __slots__ = ("_account", "_desk")

    def __init__(self, desk: SystemDesk, account: Account) -> None:
        self._desk, self._account = desk, account

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if not reply:
            return
        identity = getattr(session, "identity", None)
        account = self._account
        data: dict[str, Any] = {
            "user": identity.user if identity is not None else "",
            "account": account.name,
            "account_name": account.title,
        }
        if identity is not None and identity.permissions is not None:
            data["permissions"] = _shown(identity.permissions)
        account.hub.publish(
            reply, b"", b"", msgspec.json.encode({"server": self._desk.stamp(), "data": data})
        )


def _shown(rules: Permissions) -> dict[str, Any]:
    def texts(entries: Any) -> list[str]:
        return [
            b" ".join(filter(None, entry)).decode() if isinstance(entry, tuple) else entry.decode()
            for entry in entries
        ]

    def part(allow: Any, deny: Any) -> dict[str, list[str]]:
        found = {"allow": texts(allow or ()), "deny": texts(deny)}
        return {key: value for key, value in found.items() if value}

    shown: dict[str, Any] = {
        "publish": part(rules.publish_allow, rules.publish_deny),
        "subscribe": part(rules.subscribe_allow, rules.subscribe_deny),
    }
    if rules.responses is not None:
        shown["responses"] = {"max": rules.responses.most, "ttl": rules.responses.expires_ns}
    return shown


def _client(session: Session) -> dict[str, Any]:
    fields = {
        "host": session.owner.client_ip,
        "id": session.cid,
        "acc": account_of(session),
        "user": session.identity.user if session.identity is not None else "",
        "name": session.name,
        "lang": session.lang,
        "ver": session.version,
        "kind": "Client",
        "client_type": "nats",
    }
    return {key: value for key, value in fields.items() if value}


def _figures(account: Account) -> dict[str, Any]:
    sessions = tuple(account.sessions)
    return {
        "acc": account.name,
        "name": account.title,
        "conns": len(sessions),
        "leafnodes": 0,
        "total_conns": len(sessions),
        "num_subscriptions": account.hub.subscriptions,
        "sent": {"msgs": sum(s.out_msgs for s in sessions), "bytes": sum(s.out_bytes for s in sessions)},
        "received": {"msgs": sum(s.in_msgs for s in sessions), "bytes": sum(s.in_bytes for s in sessions)},
        "slow_consumers": 0,
    }


def _query(payload: bytes) -> Query:
    """What was asked for, in the words of the pages' addresses."""
    if not payload.strip():
        return {}
    asked = msgspec.json.decode(payload, type=dict[str, Any])
    plain = {key: value for key, value in asked.items() if isinstance(value, str | int | bool)}
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in plain.items()
    }
