"""References: the format of what a stream carries instead of a payload, and the key under which the payload is stored.

Owns the format of references, keys, ids and metadata. A key is `{namespace}/{topic}/{yyyymmddHH of expiry}/{id}`: a
sweep lists only what is due, and a namespace is a prefix. Ids are random or derived from the message id, never from the
content alone: two messages never share an object. If the id is derived, `.{attempt}` follows it in the key, so that two
attempts at the same message do not share an object either. It knows no store and no server.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.claims.clock import SECOND_NS, format_rfc3339, to_datetime
from headrace.claims.config import COMPRESSIONS, ClaimConfig
from headrace.claims.errors import Corrupt, Expired, Forbidden, TooLarge

FORMAT_VERSION = 1
CLAIM_HEADER = "prism-claim-check"
CONTENT_TYPE = "Content-Type"
MSG_ID = "Nats-Msg-Id"
TTL = "Nats-TTL"
#: The TTL that a sender gave, if the message has a shorter one because of its claim.
SENT_TTL = "Claim-Sent-TTL"
_ADDED_HEADERS = (CLAIM_HEADER, TTL, SENT_TTL)
DEFAULT_CONTENT_TYPE = "application/octet-stream"
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
_ID = re.compile(r"[\w-]+", re.ASCII)
_KEY = re.compile(
    r"(?P<namespace>[\w-]+)/(?P<topic>[\w=~-]+)/(?P<hour>\d{10})/(?P<id>[\w-]+)(\.(?P<attempt>\w{1,8}))?",
    re.ASCII,
)
#: The same for regex engines that have no named groups, and search.
KEY_PATTERN = r"^[A-Za-z0-9_-]+/[A-Za-z0-9_=~-]+/[0-9]{10}/[A-Za-z0-9_-]+(\.[A-Za-z0-9_]{1,8})?$"
#: The first second of the year 10000, beyond every Python date.
TIME_END = 253_402_300_800
_HOUR = re.compile(r"\d{10}", re.ASCII)
_TOPIC_LENGTH_MAX = 160
_HOUR_FORMAT = "%Y%m%d%H"
_HOUR_NS = 3600 * SECOND_NS
_MESSAGE_EXTRA_S = 60


@dataclass(frozen=True, slots=True)
class Reference:
    """The message's payload: everything a consumer needs to fetch, check and restore. Times are unix seconds."""

    claim_id: str
    bucket: str
    object_key: str
    original_size: int
    compression: str
    checksum: str
    stored_size: int
    stored_checksum: str
    created_at: int
    expires_at: int
    content_type: str = DEFAULT_CONTENT_TYPE
    version: int = FORMAT_VERSION

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def encode(self) -> bytes:
        return json.dumps(self.as_dict(), separators=(",", ":")).encode()


_DECODER = msgspec.json.Decoder(Reference)


def decode(payload: bytes) -> Reference:
    """Decode the reference in a message; raise `Corrupt` if there is none."""
    try:
        found = _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupt(f"a message with header {CLAIM_HEADER} contains no valid reference: {error}") from error
    for name in ("created_at", "expires_at"):
        if not 0 <= getattr(found, name) < TIME_END:
            raise Corrupt(
                f"{name} of a reference is not a valid time: {getattr(found, name)}", found.claim_id
            )
    return found


def is_claim(headers: Mapping[str, str] | None) -> bool:
    return bool(headers) and headers.get(CLAIM_HEADER) == "true"  # type: ignore[union-attr]


def check(reference: Reference, config: ClaimConfig, now_ns: int) -> None:
    """Reject what must not be fetched: a message decides neither which bucket nor which key is read."""
    claim_id = reference.claim_id
    if reference.version != FORMAT_VERSION or reference.compression not in COMPRESSIONS:
        raise Corrupt(
            f"claim {claim_id} has version {reference.version}, compression {reference.compression!r}: "
            "a newer producer wrote it",
            claim_id,
            may_pass=True,
        )
    key = parse_key(reference.object_key)
    is_own = (
        key is not None
        and key.belongs_to(config.namespace, claim_id)
        and key.hour == hour_of(reference.expires_at)
    )
    if reference.bucket not in config.buckets or not is_own:
        raise Forbidden(
            f"claim {claim_id} points to {reference.bucket}/{reference.object_key}, "
            f"outside of {'|'.join(sorted(config.buckets))}/{config.namespace}/",
            claim_id,
        )
    if reference.original_size > config.max_size or reference.original_size < 0:
        raise TooLarge(
            f"claim {claim_id} has {reference.original_size} bytes, max_size is {config.max_size}", claim_id
        )
    if now_ns >= (reference.expires_at + config.end_grace_s) * SECOND_NS:
        raise Expired(
            f"claim {claim_id} expired at {format_rfc3339(reference.expires_at * SECOND_NS)}, and its grace period "
            "is over",
            claim_id,
        )


def restore_headers(headers: Mapping[str, str], claim_id: str) -> dict[str, str]:
    """Return the headers that a producer was given, without those that it added."""
    found = {name: value for name, value in headers.items() if name not in _ADDED_HEADERS}
    if found.get(MSG_ID) == claim_id:
        del found[MSG_ID]
    if SENT_TTL in headers:
        found[TTL] = headers[SENT_TTL]
    return found


def compute_message_ttl_s(expires_at: int, config: ClaimConfig, now_ns: int) -> int:
    """Return the TTL of a message: until its claim has ended, and a minute more.

    In that minute a late reader gets an error and a dead letter, and a collector still finds consumers that wait for an
    ack of the message: no claim ends unread without being counted.
    """
    return max(expires_at + config.end_grace_s + _MESSAGE_EXTRA_S - now_ns // SECOND_NS, 1)


def make_random_id() -> str:
    return uuid.uuid4().hex


def make_claim_id(
    namespace: str, msg_id: str = "", make_random: Callable[[], str] = make_random_id, *, subject: str = ""
) -> str:
    """Return a random id, or the one derived from a message id: a retry finds the claim of the first attempt.

    A message id is unique in its stream only, so callers without a better name for a message also pass its subject.
    """
    if not msg_id:
        return make_random()
    parts = (namespace, subject, msg_id) if subject else (namespace, msg_id)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def encode_topic(subject: str) -> str:
    """Encode a subject as one segment of a key; long ones end in a digest."""
    text = _UNSAFE_CHARACTERS.sub(
        lambda match: "".join(f"={byte:02X}" for byte in match[0].encode()), subject
    )
    if len(text) <= _TOPIC_LENGTH_MAX:
        return text
    return f"{text[:_TOPIC_LENGTH_MAX]}~{hashlib.sha256(subject.encode()).hexdigest()[:16]}"


def make_key(namespace: str, subject: str, expires_at: int, claim_id: str, attempt: str = "") -> str:
    return f"{namespace}/{encode_topic(subject)}/{hour_of(expires_at)}/{claim_id}{f'.{attempt}' if attempt else ''}"


def hour_of(expires_at: int) -> str:
    """Return the hour in the key of a claim that expires then."""
    return to_datetime(expires_at * SECOND_NS).strftime(_HOUR_FORMAT)


@dataclass(frozen=True, slots=True)
class Key:
    """The parts of a claim's object key; `attempt` is empty if the claim's id is random."""

    namespace: str
    topic: str
    hour: str
    claim_id: str
    attempt: str

    def belongs_to(self, namespace: str, claim_id: str) -> bool:
        return self.namespace == namespace and self.claim_id == claim_id


def parse_key(key: str) -> Key | None:
    """Split a key into its parts; None if no producer makes such a key."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return Key(match["namespace"], match["topic"], match["hour"], match["id"], match["attempt"] or "")


def is_claim_id(text: str) -> bool:
    """Whether a claim can have this id: one token of a subject, without wildcards."""
    return _ID.fullmatch(text) is not None


def parse_claim_id(key: str) -> str:
    """Return the claim that a key belongs to."""
    return key.rpartition("/")[2].partition(".")[0]


def is_key_for(key: str, namespace: str, claim_id: str) -> bool:
    found = parse_key(key)
    return found is not None and found.belongs_to(namespace, claim_id)


def parse_hour_end_ns(hour: str) -> int | None:
    """Return when everything under an hour's prefix has expired; None if it is not a valid hour."""
    if not _HOUR.fullmatch(hour):
        return None
    try:
        start = datetime.strptime(hour, _HOUR_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(start.timestamp()) * SECOND_NS + _HOUR_NS


def make_object_metadata(
    namespace: str, created_ns: int, compression: str, details: Mapping[str, Any]
) -> dict[str, str]:
    """Make the object's metadata, for audit and recovery; values not known yet are omitted."""
    known = {f"prism-{name}": str(value) for name, value in details.items() if value is not None}
    return {
        "prism-namespace": namespace,
        "prism-created-at": format_rfc3339(created_ns),
        "prism-compression": compression,
        **known,
    }
