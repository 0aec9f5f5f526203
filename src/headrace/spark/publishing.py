"""Messages of one task are published so that a repetition of the task publishes nothing twice.

Owns the two ways. Atomic: every batch ends with a progress message of the task's (query, partition), which is stored only
if its predecessor is the one this task knows of; so a batch and the record of it are one fact, and a second attempt goes
on where the record ends; see `records`. By ids: each message carries the id of its place, and the server's duplicate
window does the rest, as long as it lasts. Invariant: a row is published by at most one of all attempts. Must not know
Spark.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.spark.chunks import Chunk, WriteError, check_size, chunks, lots_of
from headrace.spark.link import Link, LinkError, Refused
from headrace.spark.records import MARK, WRONG_SEQUENCE, Progress, Target, committed, recall
from headrace.spark.rows import Lot, Message, any_has, header
from headrace.spark.streams import persistently

if TYPE_CHECKING:
    from headrace.spark.depositing import Deposit, Depositor

__all__ = ["AtomicPublisher", "IdPublisher", "Target", "WriteError"]

_INCOMPLETE = 10176
_BUSY = 10210
_RETRY_S = 0.05
_ID = b"Nats-Msg-Id"


def exchanged(chunk: Chunk, claims: Depositor | None) -> tuple[Chunk, list[Deposit]]:
    """A chunk with claims in the place of large payloads. What is on record of it does not change by that."""
    if claims is None:
        return chunk, []
    lots, deposits = claims.exchange(chunk.lots, chunk.rows - len(chunk))
    return replace(chunk, lots=lots), deposits


@contextmanager
def withdrawing(claims: Depositor | None) -> Iterator[None]:
    """Claims of rows that are refused are removed; where it is not known what became of rows, their timers run."""
    try:
        yield
    except WriteError as error:
        # Of rows that changed an earlier attempt may have stored some, with the same claims.
        if claims is not None and not isinstance(error, Changed):
            claims.withdraw()
        raise


@contextmanager
def leaving(claims: Depositor | None) -> Iterator[None]:
    """Messages whose answers are lost may be stored: what was put away for them is not ours to remove any more."""
    try:
        yield
    except LinkError:
        if claims is not None:
            claims.leave()
        raise


class Changed(WriteError):
    """A repeated task has other rows than the attempt that wrote some of them."""


class AtomicPublisher:
    """Exactly once, without a time window."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._patiently = (target.address, target.reconnect_s)
        self._unsure = False
        self._claims = target.depositor()
        self._done = self._look()

    def publish(self, messages: Iterable[Message]) -> int:
        """The same for messages that come one by one."""
        return self.publish_lots(lots_of(messages))

    def publish_lots(self, lots: Iterable[Lot]) -> int:
        """Publish what earlier attempts have not; how many messages this one published."""
        target, published, rows = self._target, 0, 0
        whole = persistently(*self._patiently, lambda link: committed(link, target))
        if whole.epoch >= target.epoch or self._done.epoch > target.epoch:
            return 0
        with withdrawing(self._claims):
            for chunk in chunks(lots, target.batch_messages - 1):
                rows = chunk.rows
                if not self._recorded(chunk):
                    published += self._store(chunk)
        if self._done.epoch == target.epoch and self._done.rows > rows:
            raise self._changed(f"now it has {rows} rows")
        return published

    def _look(self) -> Progress:
        return persistently(*self._patiently, lambda link: recall(link, self._target))

    def _recorded(self, chunk: Chunk) -> bool:
        """Whether an earlier attempt stored this chunk; raises if it stored something else."""
        done, target = self._done, self._target
        if done.epoch > target.epoch:
            return True
        if done.epoch != target.epoch or chunk.rows > done.rows:
            if done.epoch == target.epoch and chunk.rows - len(chunk) < done.rows:
                raise self._changed("its rows are divided otherwise")
            return False
        if chunk.rows == done.rows and chunk.crc != done.crc:
            raise self._changed("its rows or their order differ")
        return True

    def _changed(self, how: str) -> Changed:
        target = self._target
        return Changed(
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
            before, self._done = self._done, self._look()
            if self._recorded(chunk):
                if self._claims is not None:
                    self._claims.leave()
                return 0
            if self._done == before and refusal.code in WRONG_SEQUENCE:
                raise WriteError(self._explain(refusal))

    def _try(self, chunk: Chunk) -> _Refused | None:
        """Send a chunk; None when it is stored, else a refusal after which looking again helps."""
        try:
            persistently(*self._patiently, lambda link: self._send(link, chunk))
        except _Refused as refusal:
            if refusal.code not in (_BUSY, *WRONG_SEQUENCE):
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
            self._done, self._unsure = recall(link, self._target), False
            if self._recorded(chunk):
                return
        sent, deposits = exchanged(chunk, self._claims)
        check_size(sent, _payload_max(link))
        reply = link.new_inbox()
        self._unsure = True
        with leaving(self._claims):
            link.send(self._frames(sent, reply))
            answer = json.loads(link.answer(reply, self._target.progress_subject).payload)
        self._unsure = False
        if "error" in answer:
            raise _Refused(answer["error"])
        self._done = Progress(answer["seq"], self._target.epoch, chunk.rows, chunk.crc, self._target.owner)
        if self._claims is not None:
            # The messages of a batch follow each other, and the record is the last of them.
            first = answer["seq"] - len(chunk)
            self._claims.confirm((each, self._target.stream, first + each.row) for each in deposits)

    def _frames(self, chunk: Chunk, reply: bytes) -> bytearray:
        target = self._target
        name = base64.b32encode(os.urandom(10)).rstrip(b"=")
        mark = b"Nats-Batch-Id: %s\r\nNats-Batch-Sequence: " % name
        out = chunk.frames(b"", mark, 1)
        payload = Progress(0, target.epoch, chunk.rows, chunk.crc, target.owner).encode()
        header = (
            b"NATS/1.0\r\n%sNats-Expected-Last-Subject-Sequence: %d\r\n%s%d\r\n"
            b"Nats-Batch-Commit: 1\r\n\r\n" % (MARK, self._done.seq, mark, len(chunk) + 1)
        )
        size = len(header)
        line = (target.progress_subject.encode(), reply, size, size + len(payload), header, payload)
        out += b"HPUB %s %s %d %d\r\n%s%s\r\n" % line
        return out


def _payload_max(link: Link) -> int:
    return int(link.info.get("max_payload", 1 << 20))


class _Refused(Exception):
    """A server's refusal."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('description')} [{error.get('err_code')}]")
        self.code = int(error.get("err_code", 0))


def _is_same(stored: bytes, sent: bytes) -> bool:
    """Whether two messages carry the same payload. A claim's id follows from it, the rest of a reference does not."""
    if stored == sent:
        return True
    try:
        return bool(json.loads(stored)["claim_id"] == json.loads(sent)["claim_id"])
    except (ValueError, TypeError, KeyError):
        return False


class IdPublisher:
    """Once within the stream's duplicate window; for streams without atomic batches."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._name = f"{target.name}:"
        self._claims = target.depositor()

    def publish(self, messages: Iterable[Message]) -> int:
        """The same for messages that come one by one."""
        return self.publish_lots(lots_of(messages))

    def publish_lots(self, lots: Iterable[Lot]) -> int:
        """Publish everything; the server drops what it has. How many messages were new."""
        target, new = self._target, 0
        with withdrawing(self._claims):
            for chunk in chunks(lots, target.batch_messages):
                new += persistently(target.address, target.reconnect_s, partial(self._send, chunk))
        return new

    def _send(self, chunk: Chunk, link: Link) -> int:
        chunk, deposits = exchanged(chunk, self._claims)
        check_size(chunk, _payload_max(link))
        reply = link.new_inbox()
        first = chunk.rows - len(chunk)
        mark = b"Nats-Msg-Id: %s" % self._name.encode()
        if any(any_has(each, _ID) for each in chunk.lots):
            chunk, mark = self._identified(chunk, first), b""
        # Refusals may overtake acknowledgements, so what stands for a claim is answered to an inbox of its own.
        own = {each.row: link.new_inbox() for each in deposits}
        with leaving(self._claims):
            link.send(chunk.frames(reply, mark, first, own))
            answers = self._answers(link, {reply, *own.values()}, len(chunk))
        if self._claims is not None:
            told = dict(answers)
            placed = [(each, told[own[each.row]]) for each in deposits]
            self._claims.confirm((each, at["stream"], at["seq"]) for each, at in placed if "seq" in at)
        for _, answer in answers:
            self._check(answer)
        known = max((answer["seq"] for _, answer in answers if answer.get("duplicate")), default=0)
        if known:
            self._compare(link, chunk, known)
        return sum(not answer.get("duplicate", False) for _, answer in answers)

    def _compare(self, link: Link, chunk: Chunk, seq: int) -> None:
        """What is stored under a row's id must be that row: another one would be dropped, and be nowhere.

        One of a chunk is looked at: rows that come in other partitions or in another order move together.
        """
        target = self._target
        try:
            found = link.request(f"{target.api}.STREAM.MSG.GET.{target.stream}", {"seq": seq}).payload
        except Refused:
            return  # who may only publish cannot compare
        message = json.loads(found).get("message", {})
        lines, stored = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
        name, _, place = (header(lines, _ID) or b"").rpartition(b":")
        is_ours = name == target.name.encode() and place.isdigit()
        row = int(place) - (chunk.rows - len(chunk)) if is_ours else -1
        if 0 <= row < len(chunk) and not _is_same(stored, chunk.payload(row)):
            raise Changed(
                f"row {int(place)} of partition {target.partition} of epoch {target.epoch} is not what it was when it was "
                f"written as message {seq}. Writing once needs a query that gives the same rows in the same partitions "
                "again, or column `msg_id` for ids that do not depend on that"
            )

    def _identified(self, chunk: Chunk, first: int) -> Chunk:
        """The same messages, each with an id: its own, else that of its place."""
        name, made = self._name.encode(), []
        for each in chunk.lots:
            lines = [b""] * len(each) if each.lines is None else each.lines.to_pylist()
            told = [
                line if header(line, _ID) is not None else b"%sNats-Msg-Id: %s%d\r\n" % (line, name, row)
                for row, line in enumerate(lines, first)
            ]
            made.append(replace(each, lines=pa.array(told, pa.binary())))
            first += len(each)
        return replace(chunk, lots=made)

    def _answers(self, link: Link, inboxes: set[bytes], count: int) -> list[tuple[bytes, dict[str, Any]]]:
        """All that was answered, and to which inbox."""
        found = []
        for frame in link.frames(link.address.timeout_s, f"messages for stream {self._target.stream!r}"):
            if frame.subject in inboxes:
                nobody = frame.header[:12] == b"NATS/1.0 503"
                found.append((frame.subject, {} if nobody else json.loads(frame.payload)))
                if len(found) == count:
                    return found
        raise LinkError("the acknowledgements ended")

    def _check(self, answer: dict[str, Any]) -> None:
        stream = self._target.stream
        if not answer:
            raise WriteError(f"a subject is not among those of stream {stream!r}")
        if "error" in answer:
            raise WriteError(f"stream {stream!r} refuses a message: {_Refused(answer['error'])}")
        if answer.get("stream") != stream:
            raise WriteError(
                f"a subject is not among those of stream {stream!r}: {answer.get('stream')!r} took a message that was "
                "meant for it. Add the subject to the one, or filter such rows out"
            )
