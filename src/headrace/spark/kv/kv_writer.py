"""Publishes changes to a bucket such that a repeated task applies no change twice.

Owns publishing to buckets: each change carries an id derived from its place in the query, so that the bucket's
duplicate window drops repetitions; a value that an earlier attempt created is recognised by that id as long as it
exists. Invariant: a `create` stores its value only if the key has none. Must not know Spark.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from headrace.errors import HeadraceError
from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, ServerAddress
from headrace.reader.stream_admin import refuse, with_retry

OPERATIONS = ("put", "create", "delete", "purge")
_OPERATION_HEADERS = {
    "put": b"",
    "create": b"",
    "delete": b"KV-Operation: DEL\r\n",
    "purge": b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n",
}
_WRONG_SEQUENCE = (10071, 10164)
_NO_MESSAGE = 10037
#: Also sent with code 503, but it is final: a limit of the stream.
_STORE_FAILED = 10077
_BATCH_CHANGES_MAX = 1000
_BATCH_BYTES_MAX = 4 << 20
_ATTEMPTS = 5


class KvWriteError(HeadraceError):
    """A bucket rejects a change."""


@dataclass(frozen=True)
class KvTarget:
    """Where changes go, and the identity of the task: the same task of a repeated epoch has the same name."""

    address: ServerAddress
    bucket: str
    writer_id: str
    conflict: str = "error"
    api_prefix: str = "$JS.API"
    reconnect_s: float = 30.0

    @property
    def stream(self) -> str:
        return f"KV_{self.bucket}"


@dataclass(frozen=True)
class KvChange:
    """A change of a key."""

    key: str
    operation: str = "put"
    value: bytes = b""
    ttl: str = ""


NumberedChange = tuple[int, KvChange]


class KvWriter:
    """Publishes the changes of one task."""

    def __init__(self, target: KvTarget) -> None:
        self._target = target

    def publish(self, changes: Iterable[KvChange]) -> int:
        """Publish all changes in order; return how many were new."""
        bucket, done = self._target, 0
        for batch in _make_batches(enumerate(changes)):
            done += with_retry(bucket.address, bucket.reconnect_s, partial(self._send, batch))
        return done

    def _send(self, batch: list[NumberedChange], connection: BlockingConnection) -> int:
        """Send a chunk at once.

        Two changes of one key are applied in order, because a server processes messages in order.
        """
        pending = {}
        publishes = []
        for number, change in batch:
            reply = connection.new_inbox()
            pending[reply] = (number, change)
            publishes.append(
                self._encode_publish(number, change, reply, 0 if change.operation == "create" else None)
            )
        connection.send(b"".join(publishes))
        new = 0
        conflicts: list[NumberedChange] = []
        for message in connection.iter_messages(
            connection.address.timeout_s, f"changes of bucket {self._target.bucket!r}"
        ):
            numbered = pending.pop(message.subject, None)
            if numbered is None:
                continue
            new_count = self._parse_ack(message.header, message.payload, numbered[1])
            if new_count is None:
                conflicts.append(numbered)
            else:
                new += new_count
            if not pending:
                return new + sum(self._resolve_conflict(connection, *conflict) for conflict in conflicts)
        raise ConnectionFailed("acknowledgements are missing")

    def _parse_ack(self, header: bytes, payload: bytes, change: KvChange) -> int | None:
        """Return 1 if a change was new, 0 if it was stored already; None if a key to be created exists."""
        bucket = self._target.bucket
        if header[:12] == b"NATS/1.0 503":
            # The bucket was there when the query started, so it has no leader now.
            raise ConnectionFailed(f"bucket {bucket!r} did not store key {change.key!r}: no responders")
        response = json.loads(payload)
        if "error" not in response:
            return int(not response.get("duplicate", False))
        error = response["error"]
        if change.operation == "create" and error.get("err_code") in _WRONG_SEQUENCE:
            return None
        _raise_if_unavailable(error, bucket)
        raise KvWriteError(
            f"bucket {bucket!r} rejected key {change.key!r}: {error.get('description')} [{error.get('err_code')}]"
        )

    def _resolve_conflict(self, connection: BlockingConnection, number: int, change: KvChange) -> int:
        """Handle a key to be created that exists: with our own value, a deletion, or another writer's value."""
        for _ in range(_ATTEMPTS):
            seq, headers = self._get_last(connection, change)
            if b"Nats-Msg-Id: %s\r\n" % self._make_msg_id(number) in headers:
                return 0
            if seq and b"\r\nKV-Operation: " not in headers and b"\r\nNats-Marker-Reason: " not in headers:
                break
            reply = connection.new_inbox()
            connection.send(self._encode_publish(number, change, reply, seq))
            message = connection.receive_reply(reply, change.key)
            new_count = self._parse_ack(message.header, message.payload, change)
            if new_count is not None:
                return new_count
        if self._target.conflict == "ignore":
            return 0
        raise KvWriteError(
            f"key {change.key!r} exists in bucket {self._target.bucket!r}, so it cannot be created; "
            "conflict=ignore leaves such keys as they are"
        )

    def _get_last(self, connection: BlockingConnection, change: KvChange) -> tuple[int, bytes]:
        """Return sequence and headers of a key's last entry; (0, b"") if it has none."""
        bucket = self._target
        request = {"last_by_subj": f"$KV.{bucket.bucket}.{change.key}"}
        response: dict[str, Any] = json.loads(
            connection.request(f"{bucket.api_prefix}.STREAM.MSG.GET.{bucket.stream}", request).payload
        )
        if "error" in response:
            if response["error"].get("err_code") == _NO_MESSAGE:
                return 0, b""
            _raise_if_unavailable(response["error"], bucket.bucket)
            raise KvWriteError(f"key {change.key!r} cannot be looked up: {response['error']}")
        message = response["message"]
        return int(message["seq"]), base64.b64decode(message.get("hdrs", ""))

    def _encode_publish(self, number: int, change: KvChange, reply: bytes, expected: int | None) -> bytes:
        header_lines = _OPERATION_HEADERS[change.operation] + b"Nats-Msg-Id: %s\r\n" % self._make_msg_id(
            number
        )
        if change.ttl:
            header_lines += b"Nats-TTL: %s\r\n" % change.ttl.encode()
        if expected is not None:
            header_lines += b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % expected
        header = b"NATS/1.0\r\n%s\r\n" % header_lines
        subject = f"$KV.{self._target.bucket}.{change.key}".encode()
        size = len(header)
        sizes = (subject, reply, size, size + len(change.value), header, change.value)
        return b"HPUB %s %s %d %d\r\n%s%s\r\n" % sizes

    def _make_msg_id(self, number: int) -> bytes:
        return b"%s:%d" % (self._target.writer_id.encode(), number)


def _raise_if_unavailable(error: dict[str, Any], bucket: str) -> None:
    """Raise ConnectionFailed, which is retried, if the server cannot decide now, as during an election."""
    refused = refuse(error, f"bucket {bucket!r}")
    if isinstance(refused, ConnectionFailed) and error.get("err_code") != _STORE_FAILED:
        raise refused


def _make_batches(changes: Iterator[NumberedChange]) -> Iterator[list[NumberedChange]]:
    """Group changes into chunks of bounded number and size."""
    while gathered := list(islice(changes, _BATCH_CHANGES_MAX)):
        start = size = 0
        for index, (_, change) in enumerate(gathered, 1):
            size += len(change.value)
            if size >= _BATCH_BYTES_MAX:
                yield gathered[start:index]
                start, size = index, 0
        if start < len(gathered):
            yield gathered[start:]
