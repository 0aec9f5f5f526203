"""The publish checks of one stream, in the reference's order; the first that fails answers.

A message that asks for nothing, or has nothing but an id or a lifetime, on a stream without special limits never comes
here unless it is a duplicate (see `kernel.Lane`). The checks run against what is admitted, not what is committed: the
answer leaves only after everything it depends on is durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.api import errors
from headrace.api.times import SECOND, TTL_INVALID, TTL_NEVER, TTL_SECONDS, TTL_ZERO, parse_ttl
from headrace.kernel import nats_headers as nats_headers
from headrace.probes import probe
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.api.configs import StreamConfig
    from headrace.broker.jetstream import JetStream
    from headrace.broker.stream import Stream

HEADER_BYTES_MAX = 65_535
NEVER = 0xFFFF_FFFF
#: Deadlines further away than the record format can say are as good as none.
TTL_SECONDS_MAX = NEVER - 1

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


#: Headers that make no sense for a counter.
UNCOUNTABLE = (
    ROLLUP,
    EXPECTED_STREAM,
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SUBJECT,
    EXPECTED_LAST_SEQ,
    EXPECTED_LAST_SUBJECT_SEQ,
)
#: Headers that need none of the checks about expectations, roll-ups and counters.
LIGHT = frozenset((MSG_ID, TTL))


_DIGITS_MAX = 20


def plain_block(header: bytes) -> bool:
    """Whether a header block carries no status and is of a size that can be stored."""
    return header.startswith(b"NATS/1.0\r\n") and len(header) <= HEADER_BYTES_MAX


def number(text: bytes) -> int | None:
    """A decimal number of at most 64 bits as a header may carry it; None for anything else."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else None


class Duplicate(Exception):
    """Not a failure: the message is already stored, under this sequence."""

    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


def check_increment(value: bytes) -> None:
    """An integer of any length, with or without a sign."""
    digits = value[1:] if value[:1] in (b"+", b"-") else value
    if value and not digits.isdigit():
        raise errors.error(10171)


def check_counter(stream: Stream, found: Mapping[bytes, bytes], payload: bytes) -> None:
    """`Nats-Incr` belongs to counter streams, and goes with nothing that replaces or expects."""
    value = found.get(INCREMENT)
    if not value:
        return
    check_increment(value)
    if not stream.config.allow_msg_counter:
        raise errors.error(10168)
    if payload:
        raise errors.error(10170)
    if any(found.get(name) for name in UNCOUNTABLE):
        raise errors.error(10171)


def check_light(stream: Stream, found: Mapping[bytes, bytes]) -> None:
    """What `check_expectations` has to say about a message with nothing but an id and a TTL."""
    if (ttl := found.get(TTL)) and not stream.config.allow_msg_ttl:
        _check_ttl_disabled(ttl)


def check_expectations(stream: Stream, subject: bytes, found: Mapping[bytes, bytes]) -> None:
    """`Nats-Expected-Stream`, a TTL where none is allowed, then the expected sequences."""
    expected = found.get(EXPECTED_STREAM)
    if expected and expected != stream.name_bytes:
        raise errors.error(10060)
    if (ttl := found.get(TTL)) and not stream.config.allow_msg_ttl:
        _check_ttl_disabled(ttl)
    if expected := found.get(EXPECTED_LAST_SUBJECT_SEQ):
        last = stream.last_matching(found.get(EXPECTED_LAST_SUBJECT) or subject)
        if number(expected) != last:
            probe("another last sequence of the subject")
            raise errors.error(10071, seq=last)
    elif found.get(EXPECTED_LAST_SUBJECT):
        raise errors.error(10193)
    expected = found.get(EXPECTED_LAST_SEQ)
    if expected and number(expected) != stream.log.last_seq:
        probe("another last sequence")
        raise errors.error(10071, seq=stream.log.last_seq)
    if found.get(STREAM_SOURCE):
        raise errors.error(10227)


def check_identity(stream: Stream, found: Mapping[bytes, bytes], now_ns: int) -> bytes:
    """De-duplication and the expected last message id; returns the id to remember (b"" for none)."""
    message_id = found.get(MSG_ID, b"")
    if message_id and stream.duplicates is not None:
        seq = stream.duplicates.find(message_id, now_ns)
        if seq:
            raise Duplicate(seq)
    expected = found.get(EXPECTED_LAST_MSG_ID)
    if expected and expected != stream.lane.last_message_id:
        probe("another last id")
        raise errors.error(10070, id=stream.lane.last_message_id.decode("utf-8", "replace"))
    return message_id


def check_rollup(stream: Stream, found: Mapping[bytes, bytes]) -> bytes:
    """b"sub", b"all" or b"" for none."""
    value = found.get(ROLLUP)
    if not value:
        return b""
    config = stream.config
    if not config.allow_rollup_hdrs or config.deny_purge:
        raise errors.error(10111, err="rollup not permitted")
    rollup = value.lower()
    if rollup not in (b"sub", b"all"):
        text = rollup.decode("utf-8", "replace")
        raise errors.error(10111, err=f'rollup value invalid: "{text}"')
    return rollup


def needs_care(jetstream: JetStream, config: StreamConfig) -> bool:
    """Whether even a message without headers has to pass the checks one by one."""
    fills = config.max_msgs > 0 or config.max_bytes > 0 or config.discard_new_per_subject
    return bool(
        config.sealed
        or config.max_msg_size >= 0
        or (config.discard == "new" and fills)
        or config.subject_delete_marker_ttl > 0
        or config.allow_msg_counter
        or config.allow_msg_schedules
        or config.persist_mode == "async"
        or config.retention == "interest"
        or jetstream.bounded(config.storage)
        or config.subject_transform
        or config.republish
    )


def check_account(stream: Stream, subject: bytes, header: bytes, payload: bytes) -> None:
    """Refuse what would bring the account over what it may keep of this kind of storage, or the server is full of."""
    jetstream, storage = stream.jetstream, stream.config.storage
    if storage in jetstream.room.full:
        raise errors.error(10023)
    cap = jetstream.cap(storage)
    if cap >= 0 and not jetstream.footprint.takes(storage, stream.stored_size(subject, header, payload), cap):
        probe("the account is full")
        raise errors.error(10002)


def check_size(stream: Stream, header: bytes, payload: bytes) -> None:
    """The stream's message size limit and the header limit of the format."""
    size_max = stream.config.max_msg_size
    if size_max >= 0 and len(header) + len(payload) > size_max:
        raise errors.error(10054)
    if len(header) > HEADER_BYTES_MAX:
        raise errors.error(10097)


def check_room(stream: Stream, subject: bytes, header: bytes, payload: bytes, rollup: bytes) -> None:
    """Discard policy `new`: refuse what does not fit."""
    config, log = stream.config, stream.log
    per_subject = config.max_msgs_per_subject
    replaces = per_subject > 0 and log.count_of(subject) >= per_subject
    if replaces and config.discard_new_per_subject and not rollup:
        raise errors.error(10077, err="maximum messages per subject exceeded")
    stream.retention.enforce()
    if 0 < config.max_msgs <= log.messages and not replaces:
        probe("the stream is full")
        raise errors.error(10077, err="maximum messages exceeded")
    if config.max_bytes <= 0:
        return
    size = stream.stored_size(subject, header, payload)
    if log.bytes + size > config.max_bytes and not (
        replaces and stream.size_of(log.first_of(subject)) >= size
    ):
        raise errors.error(10077, err="maximum bytes exceeded")


def read_ttl(stream: Stream, found: Mapping[bytes, bytes]) -> int:
    """Seconds to live: 0 for no limit of its own, NEVER for exempt from every age."""
    value = found.get(TTL)
    if not value:
        return 0
    kind, seconds = parse_ttl(value)
    if kind == TTL_INVALID or (kind == TTL_ZERO and not stream.config.allow_msg_ttl):
        raise errors.error(10165)
    return NEVER if kind == TTL_NEVER else min(seconds, TTL_SECONDS_MAX)


def raise_ttl(stream: Stream, header: bytes, ttl_s: int) -> tuple[bytes, int]:
    """With delete markers and more than one message a subject, no TTL is shorter than a marker's: otherwise a marker
    could be missed because an older one still stands."""
    config = stream.config
    least_s = config.subject_delete_marker_ttl // SECOND
    if not 0 < ttl_s < least_s or config.max_msgs_per_subject == 1:
        return header, ttl_s
    probe("a lifetime is raised")
    return headers.replace(header, TTL, b"%d" % least_s), least_s


def _check_ttl_disabled(value: bytes) -> None:
    kind, _ = parse_ttl(value)
    if kind in (TTL_SECONDS, TTL_NEVER):
        raise errors.error(10166)


def strip_status(header: bytes) -> bytes:
    """A status in the first line belongs to a reply, not to a stored message."""
    if header.startswith(b"NATS/1.0\r\n"):
        return header
    return b"NATS/1.0\r\n" + header.partition(b"\r\n")[2]
