"""Message tracing: which messages are traced, and the record of one message's way through the server.

Owns the trace headers and the format of the event that is sent to the trace destination, both as in nats-server. The
way itself is in `traced_delivery`. A message without trace headers never gets here.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headrace.jetstream_api.times import format_time
from headrace.protocol import headers, subjects

DEST: Final = b"Nats-Trace-Dest"
ONLY: Final = b"Nats-Trace-Only"
HOP: Final = b"Nats-Trace-Hop"
#: A header of servers before tracing was released; it disables tracing.
ORIGIN_ACCOUNT: Final = b"Nats-Trace-Origin-Account"
#: The value of `DEST` in a message that must not be traced any more. It is no valid subject.
DISABLED: Final = b"trace disabled"
KIND_CLIENT: Final = 0
KIND_LEAFNODE: Final = 4

_TRACE_PARENT = b"traceparent"
_TRUE = (b"1", b"true", b"on")
_SAMPLED = 1
_EVERY_MESSAGE = 100

NO_ECHO = "Not delivered because of no echo"
SUBSCRIPTION_DENIED = "Not delivered because subscription denies this subject"
SUBSCRIPTION_CLOSED = "Not delivered because subscription is closed"
TRACE_ONLY_UNSUPPORTED = "Not delivered because remote does not support message tracing"
TRACE_UNSUPPORTED = (
    "Message delivered but remote does not support message tracing so no trace event generated from there"
)


class TraceServer:
    """What traces show about the server; set by the server when it starts."""

    __slots__ = ("make_server_info", "now_ns", "system_account")

    def __init__(self) -> None:
        self.make_server_info: Callable[[], dict[str, Any]] = dict
        self.now_ns: Callable[[], int] = int
        self.system_account = ""


class AccountTracing:
    """The trace settings of one account: where messages with a sampled `traceparent` are traced to; b"" is nowhere."""

    __slots__ = ("account", "dest", "sampling", "server")

    def __init__(self, account: str, server: TraceServer) -> None:
        self.account = account
        self.server = server
        self.dest = b""
        self.sampling = _EVERY_MESSAGE


class TraceRequest:
    """The trace headers of a message; `external`: only `traceparent` asks for the trace."""

    __slots__ = ("external", "fields")

    def __init__(self, fields: dict[bytes, list[bytes]], external: bool) -> None:
        self.fields = fields
        self.external = external

    def get(self, name: bytes) -> bytes:
        """Return the first value of a header, or b""."""
        return self.fields.get(name, [b""])[0]

    @property
    def trace_only(self) -> bool:
        """Whether the message must not be delivered."""
        return not self.external and self.get(ONLY).lower() in _TRUE


def parse_trace_request(header: bytes) -> TraceRequest | None:
    """Return the trace headers of a message; None if it is not to be traced."""
    fields: dict[bytes, list[bytes]] = {}
    sampled = False
    for key, value in headers.parse_pairs(header):
        if key and value:
            fields.setdefault(key, []).append(value)
            sampled = sampled or (key.lower() == _TRACE_PARENT and _is_sampled(value))
    dest = fields.get(DEST, [b""])[0]
    if dest == DISABLED or not (dest or sampled):
        return None
    return TraceRequest(fields, external=not dest)


def _is_sampled(trace_parent: bytes) -> bool:
    parts = trace_parent.split(b"-")
    try:
        return len(parts) == 4 and len(parts[3]) == 2 and bool(int(parts[3], 16) & _SAMPLED)
    except ValueError:
        return False


def is_sampled_here(tracing: AccountTracing) -> bool:
    """Draw whether this message is one of those that the account traces."""
    return not 0 < tracing.sampling < _EVERY_MESSAGE or random.randrange(_EVERY_MESSAGE) < tracing.sampling


class MessageTrace:
    """The trace of one message in this server. `kind` is how it arrived, `hop` which of the traced servers this is."""

    __slots__ = ("_encoding", "_event", "_server", "account", "dest", "hop", "hops", "kind", "trace_only")

    def __init__(
        self, tracing: AccountTracing, request: TraceRequest, dest: bytes, kind: int, size: int
    ) -> None:
        self._server = tracing.server
        self._encoding = request.get(b"Accept-Encoding").lower()
        self.account = tracing.account
        self.dest = dest
        self.kind = kind
        self.trace_only = request.trace_only
        self.hop = b"" if kind == KIND_CLIENT else request.get(HOP)
        self.hops = 0
        self._event: list[dict[str, Any]] = []
        self._event.append(
            {"header": {_text(k): [_text(v) for v in vs] for k, vs in sorted(request.fields.items())}}
        )
        self._event[0]["msgsize"] = size

    # Events

    def add(self, event_type: str, /, **fields: Any) -> dict[str, Any]:
        """Add an event; fields that are empty are left out."""
        event = {"type": event_type, "ts": format_time(self._server.now_ns())}
        event |= {key: value for key, value in fields.items() if value != "" and value is not False}
        self._event.append(event)
        return event

    def add_ingress(self, cid: int, name: str, subject: bytes) -> None:
        self.add("in", kind=self.kind, cid=cid, name=name, acc=self.account, subj=_text(subject))

    def set_ingress_error(self, text: str) -> None:
        """Record why the message was rejected on arrival."""
        self._event[1]["error"] = text

    def add_subject_mapping(self, subject: bytes) -> None:
        self.add("sm", to=_text(subject))

    def add_stream_export(self, account: str, subject: bytes) -> None:
        self.add("se", acc=account, to=_text(subject))

    def add_service_import(self, account: str, subject: bytes, to: bytes) -> None:
        self.add("si", acc=account, **{"from": _text(subject)}, to=_text(to))

    def add_system_service(self, subject: bytes) -> None:
        """Record a request that the server itself serves, from the system account."""
        self.add_service_import(self._server.system_account, subject, subject)

    def add_egress(self, sub: Any, account: str, error: str = "", pattern: bytes = b"") -> None:
        """Record the delivery to a client's subscription; `pattern` replaces its own, which may be in other terms."""
        client = sub.client
        self.add(
            "eg",
            kind=KIND_CLIENT,
            cid=client.cid,
            name=client.name,
            acc="" if account == self.account else account,
            sub=_text(pattern or sub.pattern),
            queue=_text(sub.queue or b""),
            error=error,
        )

    def add_hop(self, sender: Any, hop: bytes, error: str = "") -> None:
        """Record the delivery to another server."""
        account = "" if sender.account == self.account else sender.account
        hop_text = _text(hop)
        self.add(
            "eg", kind=KIND_LEAFNODE, cid=sender.cid, name=sender.name, hop=hop_text, acc=account, error=error
        )

    def next_hop(self) -> bytes:
        """Return the number of the next server that gets the message, below the number of this one."""
        self.hops += 1
        return b"%s.%d" % (self.hop, self.hops) if self.hop else b"%d" % self.hops

    # The result

    def encode(self) -> tuple[bytes, bytes]:
        """Return the header and the payload of the message for the trace destination."""
        request, *events = self._event
        fields: dict[str, Any] = {"server": self._server.make_server_info(), "request": request}
        if self.hops:
            fields["hops"] = self.hops
        payload = msgspec.json.encode(fields | {"events": events})
        if b"gzip" in self._encoding and b"snappy" not in self._encoding and b"s2" not in self._encoding:
            return headers.build([(b"Content-Encoding", b"gzip")]), gzip.compress(payload)
        return b"", payload


def is_valid_dest(dest: bytes) -> bool:
    """Return whether a message can be published to this subject."""
    return subjects.is_valid_publish(dest) and not any(blank in dest for blank in (b" ", b"\t"))


def disable(header: bytes) -> bytes:
    """Return the header with tracing disabled, so that other servers and consumers do not start it again."""
    return headers.replace(header, DEST, DISABLED)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
