"""A message to publish, with its options and the headers that carry them.

Owns the header names and their values; must not know connections or batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from nats.js.api import Header

from headrace.client.durations import Duration, format_ttl
from headrace.deprecation import RenamedAttribute

BATCH_ID = Header.BATCH_ID.value
BATCH_SEQUENCE = Header.BATCH_SEQUENCE.value
BATCH_COMMIT = Header.BATCH_COMMIT.value
EXPECTED_SEQUENCE = Header.EXPECTED_LAST_SEQUENCE.value
EXPECTED_SUBJECT_SEQUENCE = Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_MSG_ID = Header.EXPECTED_LAST_MSG_ID.value
EXPECTED_STREAM = Header.EXPECTED_STREAM.value
MSG_ID = Header.MSG_ID.value
ROLLUP = Header.ROLLUP.value
TTL = Header.MSG_TTL.value


class MessageExpectations(TypedDict, total=False):
    """What a publisher may ask of the stream, as keyword arguments; `Message` says what each means."""

    expect_last_sequence: int | None
    expect_last_subject_sequence: int | None
    expect_last_subject: str | None
    ttl: Duration | None
    msg_id: str | None


class MessageOptions(MessageExpectations, total=False):
    """The same, with the stream that the message must be stored in."""

    stream: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish, with what its publisher asks of the stream.

    - `expect_last_sequence`: store only if this is the stream's last sequence;
    - `expect_last_subject_sequence`: ... the last sequence of the message's subject (0: the subject is new), or of
      `expect_last_subject`;
    - `ttl`: how long the message lives: seconds, a timedelta, "1h30m" or "never";
    - `msg_id`: store only once within the stream's duplicate window;
    - `stream`: store only in this stream.

    ::

        Message("orders.1", b"3 pears", expect_last_subject_sequence=0, ttl="1h")
    """

    subject: str
    payload: bytes = b""
    headers: Mapping[str, str] | None = None
    expect_last_sequence: int | None = None
    expect_last_subject_sequence: int | None = None
    expect_last_subject: str | None = None
    ttl: Duration | None = None
    msg_id: str | None = None
    stream: str | None = None

    wire_headers = RenamedAttribute("encode_headers")

    def encode_headers(self) -> dict[str, str]:
        """Return all its headers; raise ValueError for a TTL that no server accepts."""
        values = {
            EXPECTED_STREAM: self.stream,
            EXPECTED_SEQUENCE: self.expect_last_sequence,
            EXPECTED_SUBJECT_SEQUENCE: self.expect_last_subject_sequence,
            EXPECTED_SUBJECT: self.expect_last_subject,
            TTL: None if self.ttl is None else format_ttl(self.ttl),
            MSG_ID: self.msg_id,
        }
        options = {name: str(value) for name, value in values.items() if value is not None}
        return {**normalize_headers(self.headers), **options}


def normalize_headers(headers: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return headers with plain text names: nats-py's `Header` names are an enumeration."""
    return {str(getattr(name, "value", name)): str(value) for name, value in (headers or {}).items()}


def to_messages(messages: Iterable[Message | tuple[Any, ...]]) -> list[Message]:
    """Convert messages, or tuples (subject, payload) or (subject, payload, headers), to messages."""
    return [each if isinstance(each, Message) else Message(*each) for each in messages]
