"""The publish checks of one stream, in nats-server's order; the first that fails determines the error.

A message without special headers, or with only an id or a TTL, on a stream without special limits never gets here unless
it is a duplicate (see `PublishFastPath`). The checks run against accepted, not committed, state: the reply is sent only
after everything it depends on is durable. See ADR 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace._native import parse_nats_headers as parse_nats_headers
from headrace.code_probes import sometimes
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.times import SECOND_NS, TTL_INVALID, TTL_NEVER, TTL_SECONDS, TTL_ZERO, parse_ttl
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.commit.account_quota import AccountQuota
    from headrace.broker.streams.stream_context import StreamContext
    from headrace.jetstream_api.configs import StreamConfig

HEADER_BYTES_MAX = 65_535
TTL_EXEMPT = 0xFFFF_FFFF
#: Longer TTLs than the record format can express are cut to this.
TTL_SECONDS_MAX = TTL_EXEMPT - 1

MSG_ID = b"Nats-Msg-Id"
EXPECTED_STREAM = b"Nats-Expected-Stream"
EXPECTED_LAST_SEQ = b"Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQ = b"Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT = b"Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_MSG_ID = b"Nats-Expected-Last-Msg-Id"
ROLLUP = b"Nats-Rollup"
TTL = b"Nats-TTL"
STREAM_SOURCE = b"Nats-Stream-Source"
INCREMENT = b"Nats-Incr"


#: Headers that are not valid on a counter.
COUNTER_INCOMPATIBLE = (
    ROLLUP,
    EXPECTED_STREAM,
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SUBJECT,
    EXPECTED_LAST_SEQ,
    EXPECTED_LAST_SUBJECT_SEQ,
)
#: Headers that need no checks of expectations, rollups and counters.
CHEAP_HEADERS = frozenset((MSG_ID, TTL))


_DIGITS_MAX = 20


def is_storable_header(header: bytes) -> bool:
    """Whether a header block has no status and is small enough to be stored."""
    return header.startswith(b"NATS/1.0\r\n") and len(header) <= HEADER_BYTES_MAX


def parse_number(text: bytes) -> int | None:
    """Parse a decimal number of at most 20 digits from a header; None for anything else."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else None


class DuplicateMessage(Exception):
    """Not a failure: the message is already stored, with this sequence."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


def check_increment(value: bytes) -> None:
    """Raise unless the value is an integer of any length, with or without a sign."""
    digits = value[1:] if value[:1] in (b"+", b"-") else value
    if value and not digits.isdigit():
        raise ApiError.MESSAGE_INCR_INVALID()


def check_counter(stream: StreamContext, header_map: Mapping[bytes, bytes], payload: bytes) -> None:
    """Check `Nats-Incr`: only valid on counter streams, and not with rollup or expected-sequence headers."""
    value = header_map.get(INCREMENT)
    if not value:
        return
    check_increment(value)
    if not stream.config.allow_msg_counter:
        raise ApiError.MESSAGE_INCR_DISABLED()
    if payload:
        raise ApiError.MESSAGE_INCR_PAYLOAD()
    if any(header_map.get(name) for name in COUNTER_INCOMPATIBLE):
        raise ApiError.MESSAGE_INCR_INVALID()


def check_id_and_ttl(stream: StreamContext, header_map: Mapping[bytes, bytes]) -> None:
    """Do what `check_expectations` does, for a message with no other headers than an id and a TTL."""
    if (ttl := header_map.get(TTL)) and not stream.config.allow_msg_ttl:
        _check_ttl_disabled(ttl)


def check_expectations(stream: StreamContext, subject: bytes, header_map: Mapping[bytes, bytes]) -> None:
    """Check `Nats-Expected-Stream`, a TTL where none is allowed, then the expected sequences."""
    expected = header_map.get(EXPECTED_STREAM)
    if expected and expected != stream.name_bytes:
        raise ApiError.STREAM_NOT_MATCH()
    if (ttl := header_map.get(TTL)) and not stream.config.allow_msg_ttl:
        _check_ttl_disabled(ttl)
    if expected := header_map.get(EXPECTED_LAST_SUBJECT_SEQ):
        last = stream.find_last_seq(header_map.get(EXPECTED_LAST_SUBJECT) or subject)
        if parse_number(expected) != last:
            sometimes("wrong last sequence of the subject")
            raise ApiError.STREAM_WRONG_LAST_SEQUENCE(seq=last)
    elif header_map.get(EXPECTED_LAST_SUBJECT):
        raise ApiError.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID()
    expected = header_map.get(EXPECTED_LAST_SEQ)
    if expected and parse_number(expected) != stream.log.last_seq:
        sometimes("wrong last sequence")
        raise ApiError.STREAM_WRONG_LAST_SEQUENCE(seq=stream.log.last_seq)
    if header_map.get(STREAM_SOURCE):
        raise ApiError.MESSAGE_SOURCE_HDR_NOT_ALLOWED()


def check_message_id(stream: StreamContext, header_map: Mapping[bytes, bytes], now_ns: int) -> bytes:
    """Check for a duplicate and the expected last message id; return the id to record (b"" for none)."""
    message_id = header_map.get(MSG_ID, b"")
    if message_id and stream.dedup is not None:
        seq = stream.dedup.find(message_id, now_ns)
        if seq:
            raise DuplicateMessage(seq)
    expected = header_map.get(EXPECTED_LAST_MSG_ID)
    last_id = stream.fast_path.last_message_id
    if expected and expected != last_id:
        sometimes("wrong last message id")
        raise ApiError.STREAM_WRONG_LAST_MSG_ID(id=last_id.decode("utf-8", "replace"))
    return message_id


def check_rollup(stream: StreamContext, header_map: Mapping[bytes, bytes]) -> bytes:
    """Return the kind of rollup: b"sub", b"all" or b"" for none."""
    value = header_map.get(ROLLUP)
    if not value:
        return b""
    config = stream.config
    if not config.allow_rollup_hdrs or config.deny_purge:
        raise ApiError.STREAM_ROLLUP_FAILED(err="rollup not permitted")
    rollup = value.lower()
    if rollup not in (b"sub", b"all"):
        text = rollup.decode("utf-8", "replace")
        raise ApiError.STREAM_ROLLUP_FAILED(err=f'rollup value invalid: "{text}"')
    return rollup


def requires_slow_path(quota: AccountQuota, config: StreamConfig) -> bool:
    """Whether even a message without headers has to pass all checks."""
    has_limits = config.max_msgs > 0 or config.max_bytes > 0 or config.discard_new_per_subject
    return bool(
        config.sealed
        or config.max_msg_size >= 0
        or (config.discard == "new" and has_limits)
        or config.subject_delete_marker_ttl > 0
        or config.allow_msg_counter
        or config.allow_msg_schedules
        or config.persist_mode == "async"
        or config.retention == "interest"
        or quota.has_limit(config.storage)
        or config.subject_transform
        or config.republish
    )


def check_account_quota(stream: StreamContext, subject: bytes, header: bytes, payload: bytes) -> None:
    """Raise if a message would exceed the account's quota for this kind of storage, or the server's is exhausted."""
    quota, storage = stream.quota, stream.config.storage
    if quota.is_server_full(storage):
        raise ApiError.INSUFFICIENT_RESOURCES()
    if not quota.reserve(storage, stream.compute_stored_size(subject, header, payload)):
        sometimes("account storage limit reached")
        raise ApiError.ACCOUNT_RESOURCES_EXCEEDED()


def check_size(stream: StreamContext, header: bytes, payload: bytes) -> None:
    """Check the stream's limit on the message size and the format's limit on headers."""
    size_max = stream.config.max_msg_size
    if size_max >= 0 and len(header) + len(payload) > size_max:
        raise ApiError.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
    if len(header) > HEADER_BYTES_MAX:
        raise ApiError.STREAM_HEADER_EXCEEDS_MAXIMUM()


def check_discard_new(
    stream: StreamContext, subject: bytes, header: bytes, payload: bytes, rollup: bytes
) -> None:
    """Apply discard policy `new`: raise if the message does not fit.

    Expired messages are removed before: here a marker could take the sequence that the message expects.
    """
    config, log = stream.config, stream.log
    per_subject = config.max_msgs_per_subject
    replaces_oldest = per_subject > 0 and log.get_subject_count(subject) >= per_subject
    if replaces_oldest and config.discard_new_per_subject and not rollup:
        raise ApiError.STREAM_STORE_FAILED(err="maximum messages per subject exceeded")
    stream.retention.apply_limits()
    if 0 < config.max_msgs <= log.messages and not replaces_oldest:
        sometimes("stream limit reached with discard new")
        raise ApiError.STREAM_STORE_FAILED(err="maximum messages exceeded")
    if config.max_bytes <= 0:
        return
    size = stream.compute_stored_size(subject, header, payload)
    if log.bytes + size > config.max_bytes and not (
        replaces_oldest and stream.get_stored_size(log.get_first_seq(subject)) >= size
    ):
        raise ApiError.STREAM_STORE_FAILED(err="maximum bytes exceeded")


def parse_ttl_header(stream: StreamContext, header_map: Mapping[bytes, bytes]) -> int:
    """Return the seconds to live: 0 for no TTL of its own, TTL_EXEMPT if it never expires."""
    value = header_map.get(TTL)
    if not value:
        return 0
    kind, seconds = parse_ttl(value)
    if kind == TTL_INVALID or (kind == TTL_ZERO and not stream.config.allow_msg_ttl):
        raise ApiError.MESSAGE_TTL_INVALID()
    return TTL_EXEMPT if kind == TTL_NEVER else min(seconds, TTL_SECONDS_MAX)


def apply_min_ttl(stream: StreamContext, header: bytes, ttl_s: int) -> tuple[bytes, int]:
    """Raise a TTL to the marker's, if the stream has delete markers and more than one message per subject.

    A shorter TTL could end while an older marker still exists; then its own marker would be missing.
    """
    config = stream.config
    min_ttl_s = config.subject_delete_marker_ttl // SECOND_NS
    if not 0 < ttl_s < min_ttl_s or config.max_msgs_per_subject == 1:
        return header, ttl_s
    sometimes("message TTL raised to the delete marker TTL")
    return headers.replace(header, TTL, b"%d" % min_ttl_s), min_ttl_s


def _check_ttl_disabled(value: bytes) -> None:
    kind, _ = parse_ttl(value)
    if kind in (TTL_SECONDS, TTL_NEVER):
        raise ApiError.MESSAGE_TTL_DISABLED()


def strip_status(header: bytes) -> bytes:
    """Remove a status from the first line: it belongs to a reply, not to a stored message."""
    if header.startswith(b"NATS/1.0\r\n"):
        return header
    return b"NATS/1.0\r\n" + header.partition(b"\r\n")[2]
