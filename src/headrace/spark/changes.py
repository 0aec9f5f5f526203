"""Changes of a bucket are published so that a repetition of the task changes nothing twice.

Owns publishing to buckets: each change carries the id of its place in the query, so that the bucket's duplicate window
drops what is repeated; a value that was created by an earlier attempt is known by that id as long as it is there.
Invariant: a `create` stores its value only where the key has none. Must not know Spark.
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
from headrace.spark.link import Address, Link, LinkError
from headrace.spark.streams import persistently

OPERATIONS = ("put", "create", "delete", "purge")
_LINES = {
    "put": b"",
    "create": b"",
    "delete": b"KV-Operation: DEL\r\n",
    "purge": b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n",
}
_WRONG_SEQUENCE = (10071, 10164)
_NO_MESSAGE = 10037
_CHUNK = 1000
_CHUNK_BYTES = 4 << 20
_ATTEMPTS = 5


class ChangeError(HeadraceError):
    """A bucket refuses a change."""


@dataclass(frozen=True)
class Bucket:
    """Where changes go, and as whom: the same task of a repeated epoch has the same name."""

    address: Address
    bucket: str
    writer: str
    conflict: str = "error"
    api: str = "$JS.API"
    reconnect_s: float = 30.0

    @property
    def stream(self) -> str:
        return f"KV_{self.bucket}"


@dataclass(frozen=True)
class Change:
    """What happens to a key."""

    key: str
    operation: str = "put"
    value: bytes = b""
    ttl: str = ""


Numbered = tuple[int, Change]


class Changer:
    """Publishes the changes of one task."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def publish(self, changes: Iterable[Change]) -> int:
        """Publish them all, in order; how many were new."""
        bucket, done = self._bucket, 0
        for chunk in _chunks(enumerate(changes)):
            done += persistently(bucket.address, bucket.reconnect_s, partial(self._send, chunk))
        return done

    def _send(self, chunk: list[Numbered], link: Link) -> int:
        """A chunk at once. A key that has two changes in it gets them in this order, as a server takes them in it."""
        waiting = {}
        frames = []
        for number, change in chunk:
            reply = link.new_inbox()
            waiting[reply] = (number, change)
            frames.append(self._frame(number, change, reply, 0 if change.operation == "create" else None))
        link.send(b"".join(frames))
        new = 0
        conflicts: list[Numbered] = []
        for frame in link.frames(link.address.timeout_s, f"changes of bucket {self._bucket.bucket!r}"):
            numbered = waiting.pop(frame.subject, None)
            if numbered is None:
                continue
            outcome = self._outcome(frame.header, frame.payload, numbered[1])
            if outcome is None:
                conflicts.append(numbered)
            else:
                new += outcome
            if not waiting:
                return new + sum(self._settle(link, *conflict) for conflict in conflicts)
        raise LinkError("the acknowledgements ended")

    def _outcome(self, header: bytes, payload: bytes, change: Change) -> int | None:
        """Whether a change was new (1) or there already (0); None when a key that was to be created exists."""
        bucket = self._bucket.bucket
        if header[:12] == b"NATS/1.0 503":
            raise ChangeError(f"bucket {bucket!r} does not take key {change.key!r}: nobody answers")
        answer = json.loads(payload)
        if "error" not in answer:
            return int(not answer.get("duplicate", False))
        error = answer["error"]
        if change.operation == "create" and error.get("err_code") in _WRONG_SEQUENCE:
            return None
        raise ChangeError(
            f"bucket {bucket!r} refuses key {change.key!r}: {error.get('description')} [{error.get('err_code')}]"
        )

    def _settle(self, link: Link, number: int, change: Change) -> int:
        """A key that was to be created has something: our own value, a deletion, or somebody's value."""
        for _ in range(_ATTEMPTS):
            seq, headers = self._newest(link, change)
            if b"Nats-Msg-Id: %s\r\n" % self._id(number) in headers:
                return 0
            if seq and b"\r\nKV-Operation: " not in headers and b"\r\nNats-Marker-Reason: " not in headers:
                break
            reply = link.new_inbox()
            link.send(self._frame(number, change, reply, seq))
            frame = link.answer(reply, change.key)
            outcome = self._outcome(frame.header, frame.payload, change)
            if outcome is not None:
                return outcome
        if self._bucket.conflict == "ignore":
            return 0
        raise ChangeError(
            f"key {change.key!r} exists in bucket {self._bucket.bucket!r}, so it cannot be created; "
            "conflict=ignore leaves such keys as they are"
        )

    def _newest(self, link: Link, change: Change) -> tuple[int, bytes]:
        """Sequence and headers of what a key has; (0, b"") when it has nothing."""
        bucket = self._bucket
        wanted = {"last_by_subj": f"$KV.{bucket.bucket}.{change.key}"}
        answer: dict[str, Any] = json.loads(
            link.request(f"{bucket.api}.STREAM.MSG.GET.{bucket.stream}", wanted).payload
        )
        if "error" in answer:
            if answer["error"].get("err_code") == _NO_MESSAGE:
                return 0, b""
            raise ChangeError(f"key {change.key!r} cannot be looked up: {answer['error']}")
        message = answer["message"]
        return int(message["seq"]), base64.b64decode(message.get("hdrs", ""))

    def _frame(self, number: int, change: Change, reply: bytes, expected: int | None) -> bytes:
        lines = _LINES[change.operation] + b"Nats-Msg-Id: %s\r\n" % self._id(number)
        if change.ttl:
            lines += b"Nats-TTL: %s\r\n" % change.ttl.encode()
        if expected is not None:
            lines += b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % expected
        header = b"NATS/1.0\r\n%s\r\n" % lines
        subject = f"$KV.{self._bucket.bucket}.{change.key}".encode()
        size = len(header)
        sizes = (subject, reply, size, size + len(change.value), header, change.value)
        return b"HPUB %s %s %d %d\r\n%s%s\r\n" % sizes

    def _id(self, number: int) -> bytes:
        return b"%s:%d" % (self._bucket.writer.encode(), number)


def _chunks(changes: Iterator[Numbered]) -> Iterator[list[Numbered]]:
    """Changes in pieces of bounded number and size."""
    while held := list(islice(changes, _CHUNK)):
        start = size = 0
        for place, (_, change) in enumerate(held, 1):
            size += len(change.value)
            if size >= _CHUNK_BYTES:
                yield held[start:place]
                start, size = place, 0
        if start < len(held):
            yield held[start:]
