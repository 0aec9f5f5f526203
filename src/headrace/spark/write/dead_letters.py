"""Rows that the server refuses: where they go, or the error that names one.

Owns the messages of the option `deadLetter`: the row with the reason in its headers. Invariants: a dead letter is stored
at least once, and within the duplicate window of its stream once, whatever the order of rows in a repeated attempt. A
payload that is too large is cut. Must not know Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256

from headrace.reader.blocking_connection import BlockingConnection
from headrace.reader.stream_admin import mark_reachable, with_retry
from headrace.spark.write.acks import describe_error, parse_reply
from headrace.spark.write.encode_rows import RawMessage
from headrace.spark.write.write_batches import HEADERS_ADDED, WriteError
from headrace.spark.write.write_target import WriteTarget

_PREFIX = "Headrace-Dead-Letter"
_HEADER_BYTES_MAX = 4096


@dataclass(frozen=True)
class RefusedRow:
    """A row that the server does not accept; `place` says which one it is."""

    place: str
    message: RawMessage
    reason: str

    @property
    def subject(self) -> str:
        return self.message[0].decode(errors="replace")


class DeadLetters:
    """The refused rows of one task, or of one commit on the driver."""

    def __init__(self, target: WriteTarget, *, is_committed: bool = False) -> None:
        #: Whether the rows of the epoch are decided, so that other rows cannot replace them.
        self._is_committed = is_committed
        # A connection of its own: replies to other messages are on their way to the task's.
        self._target = replace(target, address=replace(target.address, name="headrace-dead-letters"))
        mark_reachable(self._target.address)
        self._seen: Counter[bytes] = Counter()

    def refuse(self, row: RefusedRow) -> None:
        """Store a row as a dead letter; raise WriteError if there is no place for it."""
        target = self._target
        if not target.dead_letter:
            size = len(row.message[1]) + len(row.message[2])
            advice = (
                "The epoch is committed with this row, so filtering it out now does not help: change the stream so that it "
                "accepts the row, or set option `deadLetter` to a subject for such rows, and start again"
                if self._is_committed
                else "Filter such rows out, or set option `deadLetter` to a subject for them and start again"
            )
            raise WriteError(
                f"{row.place} of epoch {target.epoch} of {target.query} (subject {row.subject!r}, {size} bytes) cannot be "
                f"written to stream {target.stream!r}: {row.reason}. {advice}"
            )
        with_retry(target.address, target.reconnect_s, lambda connection: self._store(connection, row))

    def _store(self, connection: BlockingConnection, row: RefusedRow) -> None:
        subject = self._target.dead_letter
        header, payload = self._encode(row, int(connection.server_info.get("max_payload", 1 << 20)))
        inbox, size = connection.new_inbox(), len(header)
        line = (subject.encode(), inbox, size, size + len(payload), header, payload)
        connection.send(b"HPUB %s %s %d %d\r\n%s%s\r\n" % line)
        for message in connection.iter_messages(connection.address.timeout_s, subject):
            if message.subject == inbox:
                break
        reply = parse_reply(message)
        if "error" in reply or not reply:
            reason = describe_error(reply["error"]) if reply else "no stream has this subject"
            raise WriteError(
                f"{row.place} was refused ({row.reason}), and so was its dead letter to {subject!r}: {reason}"
            )

    def _encode(self, row: RefusedRow, limit: int) -> tuple[bytes, bytes]:
        _, header_lines, payload = row.message
        digest = sha256(json.dumps([self._target.query, self._target.epoch, row.reason]).encode())
        for part in row.message:
            digest.update(b"%d " % len(part) + part)
        key = digest.digest()
        self._seen[key] += 1
        own = b"".join(
            line + b"\r\n"
            for line in header_lines.split(b"\r\n")
            if line and not line.lower().startswith(b"nats-")
        )
        headers = {
            "Nats-Msg-Id": f"{digest.hexdigest()[:32]}.{self._seen[key]}",
            f"{_PREFIX}-Reason": row.reason.replace("\r", " ").replace("\n", " "),
            f"{_PREFIX}-Stream": self._target.stream,
            f"{_PREFIX}-Subject": " ".join(row.subject.split())[:_HEADER_BYTES_MAX],
            f"{_PREFIX}-Row": f"{self._target.query} epoch {self._target.epoch} {row.place}",
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        lines += own if len(own) <= _HEADER_BYTES_MAX else b""
        room = limit - len(lines) - HEADERS_ADDED
        if len(payload) > room:
            lines += f"{_PREFIX}-Size: {len(payload)}\r\n".encode()
        return b"NATS/1.0\r\n%s\r\n" % lines, payload[:room]
