"""Snapshot leases for readers in other processes, granted by API requests.

Owns the two endpoints and the tokens that let a reader fetch a pin's files over HTTP. Permissions on
the endpoints' subjects decide which users may call them, so the broker grants direct reads, never access to the files
alone. A token is valid for one pin, as long as that pin exists, also after a restart of the broker.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Generator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from headrace.broker.handlers.api_dispatch import ApiEndpoint, ApiRequest, ApiSteps
from headrace.broker.handlers.lease_registry import LEASES_MAX, SnapshotLease
from headrace.jetstream_api.errors import ApiError
from headrace.protocol.json_exceptions import JSON_ERRORS
from headrace.storage.snapshot import leases

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext

LEASE_S_DEFAULT = 3600.0
LEASE_S_MAX = 24 * 3600.0
_SECRET = b"pins/secret"
_NAME = re.compile(r"[0-9a-f]{1,32}-[0-9]{1,9}")


def create_lease(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    """Pin a stream as it is now; the response is sent when everything in the pin is durable.

    With `pin` nothing new is pinned: the request asks for a token of an existing pin. With `grant` the response has a
    token.
    """
    body = _parse_body(request)
    existing = body.get("pin")
    if existing is None:
        lease = yield from _iter_create(jetstream, request, body)
    else:
        lease = _get_existing(jetstream, request, existing)
    token = {"token": make_token(jetstream, lease.pin)} if body.get("grant") is True else {}
    return _encode_response(
        "stream_pin_response",
        pin=lease.pin,
        last_seq=lease.last_seq,
        messages=lease.messages,
        expires_ns=lease.expires_ns,
        **token,
    )


def _iter_create(
    jetstream: ApiContext, request: ApiRequest, body: dict[str, Any]
) -> Generator[None, None, SnapshotLease]:
    stream = jetstream.registry.get_stream(request.names[0])
    lease_s = body.get("lease", LEASE_S_DEFAULT)
    if not isinstance(lease_s, int | float) or not 0 < lease_s <= LEASE_S_MAX:
        raise ApiError.BAD_REQUEST()
    stream.retention.enforce()
    now_ns = jetstream.clock.wall_ns()
    jetstream.pin_leases.release_expired(now_ns)
    if len(jetstream.pin_leases) >= LEASES_MAX:
        raise ApiError.STREAM_GENERAL_ERROR(
            err=f"the account has {LEASES_MAX} pins: release one with STREAM.UNPIN, or wait until a lease ends"
        )
    pin = yield from leases.iter_create_pin(jetstream.store, stream.log, lease_s, now_ns)
    return jetstream.pin_leases.add(pin.manifest)


def _get_existing(jetstream: ApiContext, request: ApiRequest, name: object) -> SnapshotLease:
    jetstream.registry.get_stream(request.names[0])
    found = find_lease(jetstream, name) if isinstance(name, str) else None
    if found is None or found.stream != request.names[0]:
        raise ApiError.BAD_REQUEST()
    return found


def find_lease(jetstream: ApiContext, name: str) -> SnapshotLease | None:
    """Return the lease of a pin; None if it expired, was released, or never existed."""
    return jetstream.pin_leases.find(name, jetstream.clock.wall_ns())


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
    """Release a pin of this stream before its lease ends; not an error if it is already gone."""
    name = _parse_body(request).get("pin")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError.BAD_REQUEST()
    lease = find_lease(jetstream, name)
    if lease is None:
        jetstream.registry.get_stream(request.names[0])
    elif lease.stream != request.names[0]:
        # Permissions are granted by stream: a user of one stream must not release the pins of another.
        raise ApiError.BAD_REQUEST()
    jetstream.pin_leases.release(name)
    return _encode_response("stream_unpin_response", success=True)


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
