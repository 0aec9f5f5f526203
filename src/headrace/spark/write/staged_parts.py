"""Parts of staged blocks as messages of the staging stream.

Owns the messages and reading them back, some ahead. A part carries its attempt and number, because a stream that was
deleted and created again gives its sequences to other messages. Must not know what a block contains.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, Msg
from headrace.reader.stream_admin import refuse, with_retry
from headrace.spark.write.progress_log import StagedAttempt
from headrace.spark.write.write_target import WriteTarget

_HEADER = "Headrace-Staged"
#: Parts that are requested ahead.
_REQUESTS_AHEAD = 4
_NO_MESSAGE = (10037, 10059)


@dataclass(frozen=True)
class PartToStage:
    """A part of a block."""

    block: int
    part: int
    data: bytes


def encode_part(part: PartToStage, subject: bytes, inbox: bytes, attempt: str) -> bytes:
    """Encode the publish of a part."""
    header = b"NATS/1.0\r\n%s\r\n\r\n" % _make_header(attempt, part.block, part.part)
    size = len(header)
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (
        *(subject, inbox, size, size + len(part.data)),
        *(header, part.data),
    )


def _make_header(attempt: str, block: int, part: int) -> bytes:
    return f"{_HEADER}: {attempt}.{block}.{part}".encode()


@dataclass
class _Wanted:
    seq: int
    header: bytes
    is_last: bool
    inbox: bytes = b""


class PartReader:
    """Reads the blocks of one attempt.

    A direct get by sequence returns the right message or none, from whichever replica; the leader has the last word.
    """

    def __init__(self, target: WriteTarget, attempt: StagedAttempt) -> None:
        self._target = target
        self._attempt = attempt
        self._replies: dict[bytes, Msg] = {}

    def iter_blocks(self, first: int) -> Iterator[bytes | None]:
        """Yield the blocks from number `first` on; None for one that is missing."""
        wanted = deque(
            _Wanted(seq, _make_header(self._attempt.attempt, block, part), part == len(seqs) - 1)
            for block, seqs in enumerate(self._attempt.blocks[first:], first)
            for part, seq in enumerate(seqs)
        )
        parts: list[bytes] = []
        while wanted:
            data = self._read_next(wanted)
            if data is None:
                yield None
                return
            parts.append(data)
            if wanted.popleft().is_last:
                yield parts[0] if len(parts) == 1 else b"".join(parts)
                parts = []

    def _read_next(self, wanted: deque[_Wanted]) -> bytes | None:
        return with_retry(
            self._target.address,
            self._target.reconnect_s,
            lambda connection: self._read_on(connection, wanted),
        )

    def _read_on(self, connection: BlockingConnection, wanted: deque[_Wanted]) -> bytes | None:
        for index, each in enumerate(wanted):
            if index > _REQUESTS_AHEAD:
                break
            if not each.inbox.startswith(connection.inbox_prefix):
                each.inbox = self._request(connection, each.seq)
        first = wanted[0]
        message = self._receive(connection, first.inbox)
        if first.header in message.header:
            return message.payload
        return self._read_from_leader(first)

    def _receive(self, connection: BlockingConnection, inbox: bytes) -> Msg:
        """Return the reply at an inbox; several replicas answer, so replies may arrive in any order."""
        about = f"staged rows in {self._target.staging_stream!r}"
        while inbox not in self._replies:
            message = next(connection.iter_messages(connection.address.timeout_s, about))
            if message.header[:12] == b"NATS/1.0 503":
                raise ConnectionFailed(f"no responders for {about}")
            self._replies[message.subject] = message
        return self._replies.pop(inbox)

    def _request(self, connection: BlockingConnection, seq: int) -> bytes:
        inbox = connection.new_inbox()
        body = json.dumps({"seq": seq}).encode()
        subject = f"{self._target.api_prefix}.DIRECT.GET.{self._target.staging_stream}".encode()
        connection.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, inbox, len(body), body))
        return inbox

    def _read_from_leader(self, wanted: _Wanted) -> bytes | None:
        # Other replies arrive on the shared connection, which must not drop them.
        connection = BlockingConnection(self._target.address)
        try:
            subject = f"{self._target.api_prefix}.STREAM.MSG.GET.{self._target.staging_stream}"
            response = json.loads(connection.request(subject, {"seq": wanted.seq}).payload)
        finally:
            connection.close()
        error = response.get("error")
        if error is not None:
            if error.get("err_code") in _NO_MESSAGE:
                return None
            raise refuse(error, f"stream {self._target.staging_stream!r}")
        message = response["message"]
        if wanted.header not in base64.b64decode(message.get("hdrs") or ""):
            return None
        return base64.b64decode(message.get("data") or "")
