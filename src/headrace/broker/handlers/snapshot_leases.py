"""Snapshot leases for readers in other processes, granted by API requests.

Owns the two endpoints, the end of leases, and the tokens that let a reader fetch a pin's files over HTTP. Permissions on
the endpoints' subjects decide which users may call them, so the broker grants direct reads, never access to the files
alone. A token is valid for one pin, as long as that pin exists, also after a restart of the broker.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from headrace.broker.handlers.api_dispatch import ApiEndpoint, ApiRequest
from headrace.errors import StoreError
from headrace.jetstream_api.errors import ApiError
from headrace.protocol.json_exceptions import JSON_ERRORS
from headrace.storage.snapshot import leases
from headrace.storage.snapshot import manifest as manifests
from headrace.storage.snapshot.manifest import Manifest

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext

LEASE_S_DEFAULT = 3600.0
LEASE_S_MAX = 24 * 3600.0
_SECRET = b"pins/secret"
_NAME = re.compile(r"[0-9a-f]{1,32}-[0-9]{1,9}")


def create_lease(jetstream: ApiContext, request: ApiRequest) -> bytes:
    """Pin a stream as it is now; the response is sent when everything in the pin is durable.

    With `pin` nothing new is pinned: the request asks for a token of an existing pin. With `grant` the response has a
    token.
    """
    body = _parse_body(request)
    existing = body.get("pin")
    manifest = (
        _create(jetstream, request, body) if existing is None else _get_existing(jetstream, request, existing)
    )
    token = {"token": make_token(jetstream, manifest.pin)} if body.get("grant") is True else {}
    return _encode_response(
        "stream_pin_response",
        pin=manifest.pin,
        last_seq=manifest.committed_seq,
        messages=manifest.messages,
        expires_ns=manifest.expires_ns,
        **token,
    )


def _create(jetstream: ApiContext, request: ApiRequest, body: dict[str, Any]) -> Manifest:
    stream = jetstream.get_stream(request.names[0])
    lease_s = body.get("lease", LEASE_S_DEFAULT)
    if not isinstance(lease_s, int | float) or not 0 < lease_s <= LEASE_S_MAX:
        raise ApiError.BAD_REQUEST()
    stream.retention.enforce()
    _remove_expired(jetstream)
    lease = leases.create_pin(jetstream.store, stream.log, lease_s, jetstream.clock_ns())
    timer = jetstream.timers.at_wall_time(
        lease.manifest.expires_ns, lambda: _on_lease_expired(jetstream, lease.id)
    )
    jetstream.pin_leases[lease.id] = timer
    return lease.manifest


def _get_existing(jetstream: ApiContext, request: ApiRequest, name: object) -> Manifest:
    jetstream.get_stream(request.names[0])
    found = find_lease(jetstream, name) if isinstance(name, str) else None
    if found is None or found.stream != request.names[0]:
        raise ApiError.BAD_REQUEST()
    return found


def find_lease(jetstream: ApiContext, name: str) -> Manifest | None:
    """Return the manifest of a pin; None if it expired, was released, or the name is not valid."""
    if not _NAME.fullmatch(name):
        return None
    try:
        found = manifests.load(jetstream.store.disk, name)
    except StoreError:
        return None
    return found if found.expires_ns > jetstream.clock_ns() else None


def make_token(jetstream: ApiContext, name: str) -> str:
    """Return the token with which a reader may fetch the files of a pin."""
    metadata = jetstream.store.metadata
    secret = metadata.get(_SECRET)
    if secret is None:
        secret = secrets.token_bytes(32)
        metadata.put(_SECRET, secret)
    return hmac.new(secret, name.encode(), sha256).hexdigest()


def is_valid_token(jetstream: ApiContext, name: str, token: str) -> bool:
    """Whether a token belongs to a pin."""
    metadata = jetstream.store.metadata
    if metadata.get(_SECRET) is None:
        return False
    return hmac.compare_digest(make_token(jetstream, name).encode(), token.encode("utf-8", "replace"))


def release_lease(jetstream: ApiContext, request: ApiRequest) -> bytes:
    """Release a pin before its lease ends; not an error if it is already gone."""
    jetstream.get_stream(request.names[0])
    name = _parse_body(request).get("pin")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError.BAD_REQUEST()
    leases.release_pin(jetstream.store, name)
    _cancel_timer(jetstream, name)
    return _encode_response("stream_unpin_response", success=True)


def _on_lease_expired(jetstream: ApiContext, name: str) -> None:
    _cancel_timer(jetstream, name)
    _remove_expired(jetstream)


def _remove_expired(jetstream: ApiContext) -> None:
    for name in leases.sweep_expired(jetstream.store, jetstream.clock_ns()):
        _cancel_timer(jetstream, name)


def _cancel_timer(jetstream: ApiContext, name: str) -> None:
    """Cancel the timer of a lease that has ended."""
    timer = jetstream.pin_leases.pop(name, None)
    if timer is not None:
        timer.cancel()


def _parse_body(request: ApiRequest) -> dict[str, Any]:
    try:
        body = json.loads(request.body or b"{}")
    except JSON_ERRORS:
        raise ApiError.INVALID_JSON() from None
    if not isinstance(body, dict):
        raise ApiError.INVALID_JSON()
    return body


def _encode_response(kind: str, **values: object) -> bytes:
    return json.dumps({"type": f"io.headrace.api.v1.{kind}", **values}).encode()


ENDPOINTS: dict[tuple[str, ...], ApiEndpoint] = {
    ("STREAM", "PIN"): ApiEndpoint(
        "stream_pin_response", create_lease, names=1, private=True, audit="errors"
    ),
    ("STREAM", "UNPIN"): ApiEndpoint(
        "stream_unpin_response", release_lease, names=1, private=True, audit="errors"
    ),
}
