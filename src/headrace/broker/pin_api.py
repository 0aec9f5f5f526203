"""Pins for readers in other processes: a lease on a snapshot of a stream's files, granted over the wire.

Owns the two endpoints and the end of leases. Who may call them is a matter of permissions on their subjects, so the
direct path is granted by the broker and never by access to files alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.api import errors
from headrace.broker.door import Endpoint, Request
from headrace.store import pins

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream

LEASE_S_DEFAULT = 3600.0
LEASE_S_MAX = 24 * 3600.0
_NS = 1_000_000_000


def pin(jetstream: JetStream, request: Request) -> bytes:
    """Hold a stream as it is; the answer leaves when what the pin shows is durable."""
    stream = jetstream.lookup(request.names[0])
    lease_s = _body(request).get("lease", LEASE_S_DEFAULT)
    if not isinstance(lease_s, int | float) or not 0 < lease_s <= LEASE_S_MAX:
        raise errors.error(10003)
    stream.retention.enforce()
    now = jetstream.clock_ns()
    pins.sweep(jetstream.store, now)
    held = pins.pin(jetstream.store, stream.log, lease_s, now)
    jetstream.timers.at(held.manifest.expires_ns, lambda: _expire(jetstream))
    return _answer(
        "stream_pin_response",
        pin=held.id,
        last_seq=held.manifest.committed_seq,
        messages=held.manifest.messages,
        expires_ns=held.manifest.expires_ns,
    )


def unpin(jetstream: JetStream, request: Request) -> bytes:
    """Let go of a pin before its lease ends; one that is gone already is no error."""
    jetstream.lookup(request.names[0])
    name = _body(request).get("pin")
    if not isinstance(name, str) or not name.replace("-", "").isalnum():
        raise errors.error(10003)
    pins.unpin(jetstream.store, name)
    return _answer("stream_unpin_response", success=True)


def _expire(jetstream: JetStream) -> None:
    pins.sweep(jetstream.store, jetstream.clock_ns())


def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(request.body or b"{}")
    except ValueError:
        raise errors.error(10025) from None
    if not isinstance(body, dict):
        raise errors.error(10025)
    return body


def _answer(kind: str, **values: object) -> bytes:
    return json.dumps({"type": f"io.headrace.api.v1.{kind}", **values}).encode()


ENDPOINTS: dict[tuple[str, ...], Endpoint] = {
    ("STREAM", "PIN"): Endpoint("stream_pin_response", pin, names=1, private=True, audit="errors"),
    ("STREAM", "UNPIN"): Endpoint("stream_unpin_response", unpin, names=1, private=True, audit="errors"),
}
