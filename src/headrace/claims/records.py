"""Decodes the records that claims keep in the broker: claim records, reader leases, configurations.

Any user who may publish below `$CLAIMS` can write anything there, so nothing that is read is trusted. A claim record
must name the namespace and id of its subject, and an object key that a producer of this namespace makes for this claim,
with its topic, hour and id. `MalformedRecord` is the only error raised here. It knows no connection and no store.
See ADR 34.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec

from headrace.claims.clock import SECOND_NS
from headrace.claims.reference import TIME_END, Reference, encode_topic, hour_of, parse_key
from headrace.errors import ClaimError

_LOG = logging.getLogger("headrace.claims")
_INT_MAX = 2**63 - 1
#: Maximum number of streams that carry one reference. A record with more would make a collector send as many requests.
_PLACES_MAX = 256
_STREAM = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_SUBJECT = re.compile(r"[^\s\x00-\x1f\x7f]+")
_Size = Annotated[int, msgspec.Meta(ge=0, le=_INT_MAX)]
_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=_INT_MAX)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, lt=TIME_END)]
_Sequence = Annotated[int, msgspec.Meta(ge=1, le=_INT_MAX)]


class MalformedRecord(ClaimError):
    """A record cannot be read, or names an object that it must not: it is reported and left alone."""


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that is ignored: `kind` is claim, due, lease or config."""

    kind: str
    subject: str
    seq: int
    reason: str


OnRejected = Callable[[RejectedRecord], Awaitable[None]]


async def log_rejected(rejected: RejectedRecord) -> None:
    """Only log a rejected record: for programs that have neither metrics nor an audit trail."""
    _LOG.warning("ignored an invalid %s record: %s", rejected.kind, rejected.reason)


@dataclass(frozen=True, slots=True)
class ClaimEntry:
    """A claim record. `state` is pending (not known to be published), live or released."""

    claim_id: str
    namespace: str
    subject: str
    bucket: str
    object_key: str
    original_size: int
    stored_size: int
    created_ns: int
    expires_at: int
    state: str = "pending"
    released_ns: int = 0
    #: Known positions of the reference: stream -> (sequence, subject there). Mirrors count.
    places: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    reference: Mapping[str, Any] | None = None
    #: More than one message refers to the claim, or may later: it is only removed by age, not after reading.
    shared: bool = False
    #: A deletion was tried, and the store may still carry it out: nothing new may refer to the object.
    doomed: bool = False
    #: Sequence of this record in the registry, and when the server stored it; not part of the record.
    revision: int = 0
    updated_ns: int = 0

    @property
    def expires_ns(self) -> int:
        return self.expires_at * SECOND_NS

    def with_place(self, stream: str, seq: int, subject: str) -> ClaimEntry:
        """Return the same claim with one more known position of its reference."""
        return replace(self, places={**self.places, stream: (seq, subject)})


class _ClaimRecord(msgspec.Struct, frozen=True):
    """A `ClaimEntry` as stored in the registry."""

    claim_id: str
    namespace: str
    subject: str
    bucket: str
    object_key: str
    original_size: _Size
    stored_size: _Size
    created_ns: _Nanoseconds
    expires_at: _Seconds
    state: Literal["pending", "live", "released"] = "pending"
    released_ns: _Nanoseconds = 0
    places: dict[str, tuple[_Sequence, str]] = {}
    reference: Reference | None = None
    shared: bool = False
    doomed: bool = False


#: Fields of an entry that are stored.
RECORD_FIELDS = _ClaimRecord.__struct_fields__


class Lease(msgspec.Struct, frozen=True):
    """What a reader that does not ack has finished, where it began, and which subjects it reads."""

    acked: Annotated[int, msgspec.Meta(ge=-1, le=_INT_MAX)]
    start: Annotated[int, msgspec.Meta(ge=0, le=_INT_MAX)] | None = None
    filters: tuple[str, ...] = ()


class _PublishedTtl(msgspec.Struct, frozen=True, omit_defaults=True):
    max_age: int | None = None
    delete_after_read: bool | None = None
    retention_after_read: int | None = None
    grace_period: int | None = None


class _Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """A namespace's configuration as other programs see it; a later version may add keys."""

    namespace: str
    ttl: _PublishedTtl
    enabled: bool | None = None
    required: bool | None = None
    threshold: int | None = None
    bucket: str | None = None
    backend: str | None = None
    compression: str | None = None


_RECORD_DECODER = msgspec.json.Decoder(_ClaimRecord)
_LEASE_DECODER = msgspec.json.Decoder(Lease)
_PUBLISHED_DECODER = msgspec.json.Decoder(_Published)
_TROUBLE = (msgspec.MsgspecError, ValueError, RecursionError)


def claim_subject(namespace: str, claim_id: str) -> str:
    return f"$CLAIMS.claim.{namespace}.{claim_id}"


def due_subject(namespace: str, claim_id: str) -> str:
    return f"$CLAIMS.due.{namespace}.{claim_id}"


def decode_entry(subject: str, data: bytes, revision: int, updated_ns: int) -> ClaimEntry:
    """Decode a claim record; raise `MalformedRecord` unless it is of the claim that `subject` names."""
    try:
        record = _RECORD_DECODER.decode(data)
        _check_fields(subject, record)
    except _TROUBLE as error:
        raise MalformedRecord(f"{subject} (sequence {revision}): {error}") from error
    values = {name: getattr(record, name) for name in RECORD_FIELDS}
    if record.reference is not None:
        values["reference"] = record.reference.as_dict()
    return ClaimEntry(**values, revision=revision, updated_ns=updated_ns)


def _check_fields(subject: str, record: _ClaimRecord) -> None:
    """Raise ValueError for a record that no program of its namespace can have written for this claim."""
    if subject != claim_subject(record.namespace, record.claim_id):
        raise ValueError(f"the record belongs to claim {record.claim_id!r} in namespace {record.namespace!r}")
    key = parse_key(record.object_key)
    if (
        key is None
        or not key.belongs_to(record.namespace, record.claim_id)
        or key.topic != encode_topic(record.subject)
        or key.hour != hour_of(record.expires_at)
    ):
        raise ValueError(f"{record.object_key!r} is not an object key of this claim")
    _check_places(record.places)
    _check_reference(record)


def _check_places(places: Mapping[str, tuple[int, str]]) -> None:
    if len(places) > _PLACES_MAX:
        raise ValueError(f"{len(places)} streams refer to it, more than {_PLACES_MAX}")
    for stream, (_, subject) in places.items():
        if not _STREAM.fullmatch(stream) or not _SUBJECT.fullmatch(subject):
            raise ValueError(f"{stream!r} with subject {subject!r} is not a valid stream and subject")


def _check_reference(record: _ClaimRecord) -> None:
    """Check the reference in a record: a retry publishes it again, so it must belong to this claim."""
    reference = record.reference
    names = ("claim_id", "bucket", "object_key", "original_size", "stored_size", "expires_at")
    if reference is not None and any(getattr(reference, name) != getattr(record, name) for name in names):
        raise ValueError("its reference belongs to another claim")


def is_stream_name(text: str) -> bool:
    """Return whether a stream can have this name; anything else must not become part of a request's subject."""
    return _STREAM.fullmatch(text) is not None


def decode_lease(subject: str, data: bytes) -> Lease:
    """Decode a reader's lease; raise `MalformedRecord` if it is invalid."""
    try:
        return _LEASE_DECODER.decode(data)
    except _TROUBLE as error:
        raise MalformedRecord(f"{subject}: {error}") from error


def decode_config(subject: str, data: bytes) -> dict[str, Any]:
    """Decode a namespace's published configuration, omitting missing keys; raise `MalformedRecord` if it is invalid."""
    try:
        found = _PUBLISHED_DECODER.decode(data)
    except _TROUBLE as error:
        raise MalformedRecord(f"{subject}: {error}") from error
    if subject != f"$CLAIMS.namespace.{found.namespace}":
        raise MalformedRecord(f"{subject}: the configuration belongs to namespace {found.namespace!r}")
    values: dict[str, Any] = msgspec.to_builtins(found)
    return values


def decode_audit_event(data: bytes) -> dict[str, Any]:
    """Decode an audit event; an unreadable event is returned as such."""
    try:
        return dict(msgspec.json.decode(data or b"{}", type=dict[str, Any]))
    except _TROUBLE as error:
        return {"unreadable": str(error)[:200]}
