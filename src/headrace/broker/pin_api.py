"""Pins for readers in other processes: a lease on a snapshot of a stream's files, granted over the wire.

Owns the two endpoints, the end of leases, and the tokens that let a reader fetch a pin's files over HTTP. Who may call
the endpoints is a matter of permissions on their subjects, so the direct path is granted by the broker and never by
access to files alone. A token is good for one pin, as long as that is held, also after a restart of the broker.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from headrace.api import errors
from headrace.broker.door import Endpoint, Request
from headrace.errors import StoreError
from headrace.protocol.bodies import UNREADABLE
from headrace.store import manifest as manifests
from headrace.store import pins
from headrace.store.manifest import Manifest

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream

LEASE_S_DEFAULT = 3600.0
LEASE_S_MAX = 24 * 3600.0
_SECRET = b"pins/secret"
_NAME = re.compile(r"[0-9a-f]{1,32}-[0-9]{1,9}")


def pin(jetstream: JetStream, request: Request) -> bytes:
    """Hold a stream as it is; the answer leaves when what the pin shows is durable.

    With `pin` nothing new is held: it asks for a token of a pin that is. With `grant` the answer has a token.
    """
    body = _body(request)
    known = body.get("pin")
    shown = _new(jetstream, request, body) if known is None else _known(jetstream, request, known)
    token = {"token": token_of(jetstream, shown.pin)} if body.get("grant") is True else {}
    return _answer(
        "stream_pin_response",
        pin=shown.pin,
        last_seq=shown.committed_seq,
        messages=shown.messages,
        expires_ns=shown.expires_ns,
        **token,
    )


def _new(jetstream: JetStream, request: Request, body: dict[str, Any]) -> Manifest:
    stream = jetstream.lookup(request.names[0])
    lease_s = body.get("lease", LEASE_S_DEFAULT)
    if not isinstance(lease_s, int | float) or not 0 < lease_s <= LEASE_S_MAX:
        raise errors.error(10003)
    stream.retention.enforce()
    _sweep(jetstream)
    held = pins.pin(jetstream.store, stream.log, lease_s, jetstream.clock_ns())
    end = jetstream.timers.at(held.manifest.expires_ns, lambda: _expire(jetstream, held.id))
    jetstream.leases[held.id] = end
    return held.manifest


def _known(jetstream: JetStream, request: Request, name: object) -> Manifest:
    jetstream.lookup(request.names[0])
    found = find(jetstream, name) if isinstance(name, str) else None
    if found is None or found.stream != request.names[0]:
        raise errors.error(10003)
    return found


def find(jetstream: JetStream, name: str) -> Manifest | None:
    """What a pin shows; None if it is not held (any more), or the name is none."""
    if not _NAME.fullmatch(name):
        return None
    try:
        found = manifests.load(jetstream.store.disk, name)
    except StoreError:
        return None
    return found if found.expires_ns > jetstream.clock_ns() else None


def token_of(jetstream: JetStream, name: str) -> str:
    """What a reader shows to be served the files of a pin."""
    facts = jetstream.store.facts
    secret = facts.get(_SECRET)
    if secret is None:
        secret = secrets.token_bytes(32)
        facts.put(_SECRET, secret)
    return hmac.new(secret, name.encode(), sha256).hexdigest()


def granted(jetstream: JetStream, name: str, token: str) -> bool:
    """Whether a token is that of a pin."""
    if jetstream.store.facts.get(_SECRET) is None:
        return False
    return hmac.compare_digest(token_of(jetstream, name).encode(), token.encode("utf-8", "replace"))


def unpin(jetstream: JetStream, request: Request) -> bytes:
    """Let go of a pin before its lease ends; one that is gone already is no error."""
    jetstream.lookup(request.names[0])
    name = _body(request).get("pin")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise errors.error(10003)
    pins.unpin(jetstream.store, name)
    _forget(jetstream, name)
    return _answer("stream_unpin_response", success=True)


def _expire(jetstream: JetStream, name: str) -> None:
    _forget(jetstream, name)
    _sweep(jetstream)


def _sweep(jetstream: JetStream) -> None:
    for name in pins.sweep(jetstream.store, jetstream.clock_ns()):
        _forget(jetstream, name)


def _forget(jetstream: JetStream, name: str) -> None:
    """There is no lease to end any more."""
    end = jetstream.leases.pop(name, None)
    if end is not None:
        end.cancel()


def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(request.body or b"{}")
    except UNREADABLE:
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
