"""Messages of one task are published so that a repetition of the task publishes nothing twice.

Owns the two ways. Atomic: every batch ends with a progress message of the task's (query, partition), which is stored only
if its predecessor is the one this task knows of; so a batch and the record of it are one fact, and a second attempt goes
on where the record ends. By ids: each message carries the id of its place, and the server's duplicate window does the
rest, as long as it lasts. Invariant: a row is published by at most one of all attempts. Must not know Spark.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.kernel import twin
from headrace.spark.link import Address, Link, LinkError
from headrace.spark.rows import Lot, Message, ends_and_bytes, lot_of
from headrace.spark.streams import StreamError, persistently

if TYPE_CHECKING:
    from headrace.kernel.frames import publishes
else:
    publishes = twin("frames").publishes

_NO_MESSAGE = 10037
_WRONG_SEQUENCE = {10071, 10164}
_INCOMPLETE = 10176
_BUSY = 10210
_CHUNK_BYTES = 4 << 20
_RETRY_S = 0.05
#: What the publishers' own headers take at most.
_HEADERS_ADDED = 200
_GATHERED = 1000
_ID = b"Nats-Msg-Id: "


class WriteError(HeadraceError):
    """Rows that could not be written, or not once."""


@dataclass(frozen=True)
class Target:
    """Where a task writes, and as whom. The same task of a repeated epoch has the same name and number."""

    address: Address
    api: str
    stream: str
    progress: str
    query: str
    epoch: int
    partition: int
    batch_messages: int = 1000
    reconnect_s: float = 30.0

    @property
    def progress_subject(self) -> str:
        return f"{self.progress}.{self.query}.{self.partition}"


@dataclass(frozen=True)
class Progress:
    """How far the task of a partition has come: in which epoch, how many rows, and what they were."""

    seq: int = 0
    epoch: int = -1
    rows: int = 0
    crc: int = 0


@dataclass(frozen=True)
class Chunk:
    """Messages that are stored together, and where the task stands behind them."""

    lots: list[Lot]
    rows: int
    crc: int

    def __len__(self) -> int:
        return sum(len(each) for each in self.lots)

    def frames(self, reply: bytes, mark: bytes, first: int) -> bytearray:
        """The publishes of all messages; each one's number completes the header that `mark` begins."""
        out = bytearray()
        for each in self.lots:
            try:
                out += publishes(*each.columns(), reply, mark, first)
            except ValueError as error:
                raise WriteError(f"{error}; set one, or filter such rows out") from error
            first += len(each)
        return out


def lots_of(messages: Iterable[Message]) -> Iterator[Lot]:
    """Messages that come one by one, gathered."""
    held = iter(messages)
    while some := list(islice(held, _GATHERED)):
        yield lot_of(some)


def chunks(lots: Iterable[Lot], size: int) -> Iterator[Chunk]:
    """Messages in pieces that one atomic batch takes; the same messages make the same pieces, however they come."""
    held: list[Lot] = []
    rows = crc = count = length = 0
    for each in lots:
        at = 0
        while at < len(each):
            taken, weight = _fitting(each, at, size - count, _CHUNK_BYTES - length)
            held.append(each.part(at, at + taken))
            at, count, length = at + taken, count + taken, length + weight
            if count == size or length >= _CHUNK_BYTES:
                rows, crc = rows + count, _crc(held, crc)
                yield Chunk(held, rows, crc)
                held, count, length = [], 0, 0
    if held:
        yield Chunk(held, rows + count, _crc(held, crc))


def _fitting(lot: Lot, at: int, rows: int, room: int) -> tuple[int, int]:
    """How many messages from `at` on still fit, and their bytes; the one that fills the room fits too."""
    ends, _ = ends_and_bytes(lot.payloads)
    reach = ends[at + 1 : at + 1 + rows]
    taken = min(int(np.searchsorted(reach, int(ends[at]) + room)) + 1, len(reach))
    return taken, int(reach[taken - 1] - ends[at])


def _crc(lots: list[Lot], crc: int) -> int:
    """What the messages were: their lengths and bytes, column by column."""
    columns = [0] * 6
    for each in lots:
        for place, column in enumerate(each.columns()):
            if column:
                ends, data = column
                columns[2 * place] = crc32(np.diff(ends), columns[2 * place])
                columns[2 * place + 1] = crc32(data[ends[0] : ends[-1]], columns[2 * place + 1])
    return crc32(np.array(columns, np.int64).tobytes(), crc)


def check_size(chunk: Chunk, link: Link) -> None:
    """A message beyond the server's limit would end the connection."""
    limit = int(link.info.get("max_payload", 1 << 20))
    largest = max(_largest(each) for each in chunk.lots) + _HEADERS_ADDED
    if largest > limit:
        raise WriteError(
            f"a message of {largest} bytes with its headers is larger than the server takes ({limit}); "
            "raise its max_payload, or send the payload as a claim"
        )


def _largest(lot: Lot) -> int:
    sizes = np.diff(ends_and_bytes(lot.payloads)[0])
    if lot.lines is not None:
        sizes = sizes + np.diff(ends_and_bytes(lot.lines)[0])
    return int(sizes.max())


class AtomicPublisher:
    """Exactly once, without a time window."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._patiently = (target.address, target.reconnect_s)
        self._unsure = False
        self._done = persistently(*self._patiently, self._recall)

    def publish(self, messages: Iterable[Message]) -> int:
        """The same for messages that come one by one."""
        return self.publish_lots(lots_of(messages))

    def publish_lots(self, lots: Iterable[Lot]) -> int:
        """Publish what earlier attempts have not; how many messages this one published."""
        target, published, rows = self._target, 0, 0
        if self._done.epoch > target.epoch:
            return 0
        for chunk in chunks(lots, target.batch_messages - 1):
            rows = chunk.rows
            if not self._recorded(chunk):
                published += self._store(chunk)
        if self._done.epoch == target.epoch and self._done.rows > rows:
            raise self._changed(f"now it has {rows} rows")
        return published

    def _recorded(self, chunk: Chunk) -> bool:
        """Whether an earlier attempt stored this chunk; raises if it stored something else."""
        done, target = self._done, self._target
        if done.epoch != target.epoch or chunk.rows > done.rows:
            if done.epoch == target.epoch and chunk.rows - len(chunk) < done.rows:
                raise self._changed("its rows are divided otherwise")
            return False
        if chunk.rows == done.rows and chunk.crc != done.crc:
            raise self._changed("its rows or their order differ")
        return True

    def _changed(self, how: str) -> WriteError:
        target = self._target
        return WriteError(
            f"partition {target.partition} of epoch {target.epoch} is not what it was when {self._done.rows} of its rows "
            f"were written: {how}. Writing once needs a query that gives the same rows again: sort or repartition by a "
            "key before the sink, and keep the number of partitions"
        )

    def _store(self, chunk: Chunk) -> int:
        """Store a chunk with its record; how many messages, 0 if another attempt was first."""
        while True:
            refusal = self._try(chunk)
            if refusal is None:
                return len(chunk)
            time.sleep(_RETRY_S)
            before, self._done = self._done, persistently(*self._patiently, self._recall)
            if self._done.epoch > self._target.epoch or self._recorded(chunk):
                return 0
            if self._done == before and refusal.code in _WRONG_SEQUENCE:
                raise WriteError(self._explain(refusal))

    def _try(self, chunk: Chunk) -> _Refused | None:
        """Send a chunk; None when it is stored, else a refusal after which looking again helps."""
        try:
            persistently(*self._patiently, lambda link: self._send(link, chunk))
        except _Refused as refusal:
            if refusal.code not in (_BUSY, *_WRONG_SEQUENCE):
                raise WriteError(self._explain(refusal)) from refusal
            return refusal
        return None

    def _explain(self, refusal: _Refused) -> str:
        text = f"stream {self._target.stream!r} refuses a batch: {refusal}"
        if refusal.code == _INCOMPLETE:
            text += "; is every subject among those of the stream?"
        return text

    def _send(self, link: Link, chunk: Chunk) -> None:
        if self._unsure:
            # The link broke while a batch was under way: look whether it arrived.
            self._done, self._unsure = self._recall(link), False
            if self._done.epoch == self._target.epoch and self._recorded(chunk):
                return
        check_size(chunk, link)
        reply = link.new_inbox()
        self._unsure = True
        link.send(self._frames(chunk, reply))
        answer = json.loads(link.answer(reply, self._target.progress_subject).payload)
        self._unsure = False
        if "error" in answer:
            raise _Refused(answer["error"])
        self._done = Progress(answer["seq"], self._target.epoch, chunk.rows, chunk.crc)

    def _frames(self, chunk: Chunk, reply: bytes) -> bytearray:
        target = self._target
        name = base64.b32encode(os.urandom(10)).rstrip(b"=")
        mark = b"Nats-Batch-Id: %s\r\nNats-Batch-Sequence: " % name
        out = chunk.frames(b"", mark, 1)
        record = {"epoch": target.epoch, "rows": chunk.rows, "crc": chunk.crc}
        payload = json.dumps(record).encode()
        header = (
            b"NATS/1.0\r\nHeadrace-Progress: spark\r\nNats-Expected-Last-Subject-Sequence: %d\r\n%s%d\r\n"
            b"Nats-Batch-Commit: 1\r\n\r\n" % (self._done.seq, mark, len(chunk) + 1)
        )
        size = len(header)
        line = (target.progress_subject.encode(), reply, size, size + len(payload), header, payload)
        out += b"HPUB %s %s %d %d\r\n%s%s\r\n" % line
        return out

    def _recall(self, link: Link) -> Progress:
        """What is on record; read from the stream's leader, never from a copy."""
        target = self._target
        wanted = {"last_by_subj": target.progress_subject}
        answer = json.loads(link.request(f"{target.api}.STREAM.MSG.GET.{target.stream}", wanted).payload)
        if "error" in answer:
            if answer["error"].get("err_code") == _NO_MESSAGE:
                return Progress()
            raise StreamError(f"the progress on {target.progress_subject} cannot be read: {answer['error']}")
        message = answer["message"]
        return Progress(seq=message["seq"], **json.loads(base64.b64decode(message["data"])))


class _Refused(Exception):
    """A server's refusal."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('description')} [{error.get('err_code')}]")
        self.code = int(error.get("err_code", 0))


class IdPublisher:
    """Once within the stream's duplicate window; for streams without atomic batches."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._name = f"{target.query}:{target.epoch}:{target.partition}:"

    def publish(self, messages: Iterable[Message]) -> int:
        """The same for messages that come one by one."""
        return self.publish_lots(lots_of(messages))

    def publish_lots(self, lots: Iterable[Lot]) -> int:
        """Publish everything; the server drops what it has. How many messages were new."""
        target, new = self._target, 0
        for chunk in chunks(lots, target.batch_messages):
            new += persistently(target.address, target.reconnect_s, partial(self._send, chunk))
        return new

    def _send(self, chunk: Chunk, link: Link) -> int:
        check_size(chunk, link)
        reply = link.new_inbox()
        first = chunk.rows - len(chunk)
        mark = b"Nats-Msg-Id: %s" % self._name.encode()
        if any(_has_ids(each) for each in chunk.lots):
            chunk, mark = self._identified(chunk, first), b""
        link.send(chunk.frames(reply, mark, first))
        return self._acks(link, reply, len(chunk))

    def _identified(self, chunk: Chunk, first: int) -> Chunk:
        """The same messages, each with an id: its own, else that of its place."""
        name, made = self._name.encode(), []
        for each in chunk.lots:
            lines = [b""] * len(each) if each.lines is None else each.lines.to_pylist()
            told = [
                line if _ID in line else b"%sNats-Msg-Id: %s%d\r\n" % (line, name, row)
                for row, line in enumerate(lines, first)
            ]
            made.append(replace(each, lines=pa.array(told, pa.binary())))
            first += len(each)
        return replace(chunk, lots=made)

    def _acks(self, link: Link, reply: bytes, count: int) -> int:
        new = 0
        for frame in link.frames(link.address.timeout_s, f"messages for stream {self._target.stream!r}"):
            if frame.subject != reply:
                continue
            if frame.header[:12] == b"NATS/1.0 503":
                raise WriteError(f"a subject is not among those of stream {self._target.stream!r}")
            answer = json.loads(frame.payload)
            if "error" in answer:
                raise WriteError(
                    f"stream {self._target.stream!r} refuses a message: {_Refused(answer['error'])}"
                )
            new += not answer.get("duplicate", False)
            count -= 1
            if not count:
                return new
        raise LinkError("the acknowledgements ended")


def _has_ids(lot: Lot) -> bool:
    return lot.lines is not None and bool(pc.any(pc.match_substring(lot.lines, _ID)).as_py())
