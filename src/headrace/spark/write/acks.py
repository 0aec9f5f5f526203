"""Reads the replies to publishes: many acknowledgements at once, others one by one.

Owns the interpretation of replies: stored, duplicate, rejected for the row's sake, or to be tried again. Invariant:
replies of a server that cannot decide now (no leader, overload) raise ConnectionFailed, so that the caller tries again.
Must not know what was published.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, Msg
from headrace.reader.stream_admin import refuse

NO_RESPONDERS = "no stream has its subject"
BATCH_INCOMPLETE = 10176
DUPLICATE_IN_BATCH = 10201
#: The server has too many unfinished batches, or other requests; it accepts them later.
_BUSY = {10023, 10167, 10210, 10211}
#: The stream cannot store more (its limits or the disk); waiting does not help.
_STORE_FAILED = 10077
#: ... except that a subject has as many messages as the stream allows, which concerns the message.
_SUBJECT_FULL = "maximum messages per subject exceeded"
#: Rejections that concern the message, not the stream: size, expected stream, rollup, TTL, counter, header, schedule.
_ROW_CODES = {
    10054,
    10060,
    10111,
    10165,
    10166,
    *range(10168, 10173),
    10177,
    *range(10188, 10193),
    10203,
    10212,
}


@dataclass
class Acks:
    """The replies to some messages; `others` are all except plain acknowledgements."""

    stored: int = 0
    duplicates: int = 0
    #: The highest sequence.
    last_seq: int = 0
    others: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.stored + self.duplicates + len(self.others)


@lru_cache(maxsize=8)
def _ack_pattern(stream: str) -> re.Pattern[bytes]:
    """Match a run of acknowledgements at one inbox (group 1); a reply that looks different ends it."""
    ack = rb' 1 [0-9]+\r\n\{"stream":"%s","seq":[0-9]+(?:,"domain":"[^"]*")?(?:,"duplicate": ?true)?\}\r\n'
    rest = ack % re.escape(stream.encode())
    return re.compile(rb"MSG ([^ ]+)%s(?:MSG \1%s)*" % (rest, rest))


class AckReader:
    """Receives the replies to the messages that one task, or the driver, sends over a connection."""

    def __init__(self, connection: BlockingConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        #: Replies that arrived before their turn: a server may send errors before acknowledgements.
        self._early: dict[bytes, list[dict[str, Any]]] = {}

    def receive(self, inbox: bytes, count: int) -> Acks:
        """Receive the replies to `count` messages that were sent with one inbox."""
        acks = Acks()
        for reply in self._early.pop(inbox, ()):
            _add_reply(acks, reply, self._stream)
        pattern = _ack_pattern(self._stream)
        buffer = self._connection.buffer
        while len(acks) < count:
            found = pattern.match(buffer)
            if found is not None and found[1] == inbox:
                text = buffer[: found.end()]
                duplicates = text.count(b',"duplicate"')
                acks.duplicates += duplicates
                acks.stored += text.count(b'{"stream":') - duplicates
                acks.last_seq = max(acks.last_seq, _parse_last_seq(text))
                del found  # it holds the buffer
                del buffer[: len(text)]
                continue
            del found
            if buffer and not _is_partial_ack(buffer):
                self._receive_next()
                for reply in self._early.pop(inbox, ()):
                    _add_reply(acks, reply, self._stream)
            else:
                deadline = time.monotonic() + self._connection.address.timeout_s
                self._fill(len(buffer), deadline)
        return acks

    def receive_one(self, inbox: bytes) -> dict[str, Any]:
        """Receive the only reply at an inbox; {} if no stream has the subject."""
        while inbox not in self._early:
            self._receive_next()
        return self._early.pop(inbox)[0]

    def _fill(self, size: int, deadline: float) -> None:
        """Receive until there is more than `size` bytes."""
        while len(self._connection.buffer) <= size:
            self._connection.fill_buffer(deadline, f"messages for stream {self._stream!r}")

    def _receive_next(self) -> None:
        about = f"messages for stream {self._stream!r}"
        message = next(self._connection.iter_messages(self._connection.address.timeout_s, about))
        self._early.setdefault(message.subject, []).append(parse_reply(message))


def _parse_last_seq(text: bytearray) -> int:
    """Return the sequence of the last of some acknowledgements: servers store what one connection sends in order."""
    start = text.rfind(b'"seq":') + len(b'"seq":')
    return int(re.match(rb"[0-9]+", text[start : start + 20])[0])  # type: ignore[index]


def _is_partial_ack(buffer: bytearray) -> bool:
    """Return whether the buffer begins with a message that has not arrived completely."""
    end = buffer.find(b"\r\n")
    if end < 0:
        return True
    if not buffer.startswith(b"MSG "):
        return False
    return len(buffer) < end + 4 + int(buffer[buffer.rfind(b" ", 0, end) : end])


def _add_reply(acks: Acks, reply: dict[str, Any], stream: str) -> None:
    if reply.get("stream") != stream or "error" in reply:
        acks.others.append(reply)
    elif reply.get("duplicate"):
        acks.duplicates += 1
    else:
        acks.stored += 1
        acks.last_seq = max(acks.last_seq, int(reply["seq"]))


def parse_reply(message: Msg) -> dict[str, Any]:
    """Return a reply as a dictionary, {} if no stream has the subject; raise ConnectionFailed if it is not final."""
    if message.header[:12] == b"NATS/1.0 503":
        return {}
    reply: dict[str, Any] = json.loads(message.payload)
    error = reply.get("error")
    if error is not None:
        if int(error.get("err_code", 0)) in _BUSY:
            raise ConnectionFailed(f"the server is busy: {describe_error(error)}")
        refused = refuse(error)
        if isinstance(refused, ConnectionFailed) and error.get("err_code") != _STORE_FAILED:
            raise refused
    return reply


def describe_error(error: dict[str, Any]) -> str:
    """Return the text and code of an error of the API."""
    return f"{error.get('description')} [{error.get('err_code', error.get('code'))}]"


def _concerns_row(error: dict[str, Any]) -> bool:
    code = error.get("err_code")
    return code in _ROW_CODES or (code == _STORE_FAILED and error.get("description") == _SUBJECT_FULL)


def explain_refusal(reply: dict[str, Any], stream: str) -> str:
    """Return why a message is not in the stream; "" if it is, or if the reason is not the message."""
    if not reply:
        return NO_RESPONDERS
    error = reply.get("error")
    if error is not None:
        return describe_error(error) if _concerns_row(error) else ""
    if reply.get("stream") != stream:
        return f"stream {reply.get('stream')!r} stored it instead"
    return ""
