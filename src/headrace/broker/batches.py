"""Atomic batches: messages that become part of the stream together, in one frame, or not at all.

Members wait in memory, invisible to everybody, until the one that commits. Then every check is made against the
stream as it was before the batch; the first that fails rejects all. What is staged is bounded: by count a batch, by
batches a stream and a server, by bytes a server, and by time: a batch without traffic is abandoned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.api import advisories, errors
from headrace.api.encode import dumps
from headrace.broker import admission
from headrace.broker.batch_checks import Commit
from headrace.broker.levels import REQUIRED_LEVEL, level_too_high
from headrace.kernel import Pool, Staged
from headrace.probes import probe
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.stream import Stream
    from headrace.broker.timers import Handle

ID, ID_SEED = b"Nats-Batch-Id", b"Nats-Batch-ID"
SEQUENCE, SEQUENCE_SEED = b"Nats-Batch-Sequence", b"Nats-Batch-Seq"
COMMIT = b"Nats-Batch-Commit"
#: A member with these headers only has nothing that could be refused, except for want of room.
PLAIN = frozenset((ID, ID_SEED, SEQUENCE, SEQUENCE_SEED, COMMIT))
_ID_BYTES_MAX = 64
_U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much may wait, and for how long; the reference's figures, and a bound on bytes that it lacks."""

    per_stream: int = 50
    per_server: int = 1000
    messages: int = 1000
    timeout_ns: int = 10_000_000_000
    bytes_per_server: int = 256 * 1024 * 1024


DEFAULT_LIMITS = BatchLimits()


@dataclass(slots=True)
class Member:
    subject: bytes
    header: bytes
    payload: bytes
    found: Mapping[bytes, bytes]
    rollup: bytes = b""
    ttl_s: int = 0


class Batch(Staged):
    """An open batch. Its members are plain ones, (subject, header, payload), until the first that may be refused: from
    then on there are `Member`s among them.
    """

    __slots__ = ("careful", "timer")

    def __init__(self, name: bytes, staging: Staging) -> None:
        limits = staging.limits
        super().__init__(name, staging, limits.messages, limits.timeout_ns)
        self.careful = False
        self.timer: Handle | None = None

    def all(self) -> list[Member]:
        """Every member in full."""
        return [each if isinstance(each, Member) else _in_full(*each) for each in self.members]


def _in_full(subject: bytes, header: bytes, payload: bytes) -> Member:
    return Member(subject, header, payload, admission.nats_headers(header))


class Staging(Pool):
    """What all streams of a server have staged together."""

    __slots__ = ("limits", "open")

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits.bytes_per_server)
        self.limits = limits
        self.open = 0


def batch_id(found: Mapping[bytes, bytes]) -> bytes:
    """The batch a message belongs to, by either spelling; b"" for none."""
    return found.get(ID) or found.get(ID_SEED, b"")


class Batches:
    """The open batches of one stream."""

    __slots__ = ("_open", "_staging", "_stream")

    def __init__(self, stream: Stream, staging: Staging) -> None:
        self._stream = stream
        self._staging = staging
        self._open: dict[bytes, Batch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def offer(self, member: Member, name: bytes) -> bytes:
        """One message of a batch: staged (the answer is empty) or, with the commit, the answer to all."""
        self._check_message(member, name)
        position = self._position(member.found)
        commit = member.found.get(COMMIT)
        end_only = commit == b"eob"
        batch = self._find(name, position, end_only)
        self._check_turn(batch, member, position, commit)
        if end_only:
            _mark_last(batch)
        else:
            self._stage(batch, member)
        if commit is None:
            return b""
        self._close(batch)
        return self._commit(batch)

    # Checks of one message, in the reference's order

    def _check_message(self, member: Member, name: bytes) -> None:
        config = self._stream.config
        if config.sealed:
            raise errors.error(10109)
        size = len(member.header) + len(member.payload)
        if self._staging.bytes + size > self._staging.limits.bytes_per_server:
            raise errors.error(10023)
        if self._stream.jetstream.bounded(config.storage):
            admission.check_account(self._stream, member.subject, member.header, member.payload)
        if 0 <= config.max_msg_size < size:
            raise errors.error(10054)
        if not config.allow_atomic:
            raise errors.error(10174)
        if len(name) > _ID_BYTES_MAX:
            raise errors.error(10179)

    @staticmethod
    def _position(found: Mapping[bytes, bytes]) -> int:
        text = found.get(SEQUENCE, found.get(SEQUENCE_SEED, b""))
        position = admission.number(text)
        if position is None or position > _U64_MAX:
            raise errors.error(10175)
        return position

    def _find(self, name: bytes, position: int, end_only: bool) -> Batch:
        """The open batch of that name, or a new one if this is a first message."""
        batch = self._open.get(name)
        if batch is not None:
            return batch
        limits = self._staging.limits
        if position != 1:
            if position - end_only > limits.messages:
                raise errors.error(10199, size=limits.messages)
            probe("a member of no batch")
            self._advise(name, "unknown")
            raise errors.error(10176)
        if len(self._open) >= limits.per_stream or self._staging.open >= limits.per_server:
            probe("too many batches")
            raise errors.error(10210)
        batch = self._open[name] = Batch(name, self._staging)
        self._staging.open += 1
        return batch

    def _check_turn(self, batch: Batch, member: Member, position: int, commit: bytes | None) -> None:
        """Whether the message is the next of its batch; whatever is wrong ends the batch."""
        end_only = commit == b"eob"
        limits = self._staging.limits
        if commit is not None and commit not in (b"1", b"eob"):
            self._close(batch)
            raise errors.error(10200)
        if level_too_high(member.header):
            self._abandon(batch, "unsupported")
            raise errors.error(10185)
        if position != len(batch.members) + 1 or (end_only and position == 1):
            probe("a batch has a gap")
            self._abandon(batch, "incomplete")
            raise errors.error(10176)
        if position - end_only > limits.messages:
            probe("a batch is too large")
            self._abandon(batch, "large")
            raise errors.error(10199, size=limits.messages)

    # Life of a batch

    def _stage(self, batch: Batch, member: Member) -> None:
        size = len(member.header) + len(member.payload)
        if member.found.keys() <= PLAIN and len(member.header) <= admission.HEADER_BYTES_MAX:
            batch.add((member.subject, member.header, member.payload), size)
        else:
            batch.careful = True
            batch.add(member, size)
        self._stream.lane.batch = batch
        jetstream, timeout_ns = self._stream.jetstream, self._staging.limits.timeout_ns
        batch.deadline_ns = jetstream.clock_ns() + timeout_ns
        if batch.timer is None:
            batch.timer = jetstream.timers.after(timeout_ns, lambda: self._look(batch))

    def _look(self, batch: Batch) -> None:
        """The timer rang: either nothing came since, or it has to ring again later."""
        jetstream = self._stream.jetstream
        left_ns = batch.deadline_ns - jetstream.clock_ns()
        # More than the whole of it can be left only if the clock was set back; then nothing came since.
        if 0 < left_ns <= self._staging.limits.timeout_ns:
            batch.timer = jetstream.timers.after(left_ns, lambda: self._look(batch))
            return
        probe("a batch is not finished in time")
        self._abandon(batch, "timeout")

    def _close(self, batch: Batch) -> None:
        batch.open = False
        if self._open.pop(batch.name, None) is None:
            return
        if self._stream.lane.batch is batch:
            self._stream.lane.batch = None
        self._staging.open -= 1
        self._staging.bytes -= batch.bytes
        if batch.timer is not None:
            batch.timer.cancel()

    def _abandon(self, batch: Batch, reason: str) -> None:
        self._close(batch)
        self._advise(batch.name, reason)

    def _advise(self, name: bytes, reason: str) -> None:
        stream, shown = self._stream, name.decode("utf-8", "replace")
        stream.jetstream.advisories.send(advisories.batch_abandoned, "", stream.name, shown, reason)
        stream.jetstream.diary.note(
            stream.jetstream.clock_ns(), "abandoned", stream.name, f"{shown}: {reason}"
        )

    def clear(self) -> None:
        """The stream goes, or batches were switched off: nothing staged is kept, and nobody is told."""
        for batch in list(self._open.values()):
            self._close(batch)

    # Commit

    def _commit(self, batch: Batch) -> bytes:
        stream, count = self._stream, len(batch.members)
        config, lane = stream.config, stream.lane
        roomy = config.discard != "new" and not config.allow_msg_counter
        if batch.careful or not roomy or not lane.open:
            members = batch.all()
            Commit(stream, members).check()
            self._reserve(batch)
            seq = self._keep(members)
        else:
            stream.retention.enforce()
            self._reserve(batch)
            seq = self._keep_plain(batch.members)
        shown = batch.name.decode("utf-8", "replace")
        stream.jetstream.diary.note(
            stream.jetstream.clock_ns(), "batch", stream.name, f"{shown}: {count} messages"
        )
        return b'%b%d,"batch":%b,"count":%d}' % (stream.ack_prefix, seq, dumps(shown), count)

    def _reserve(self, batch: Batch) -> None:
        subjects = sum(len(m.subject) if isinstance(m, Member) else len(m[0]) for m in batch.members)
        self._stream.reserve(subjects + batch.bytes, len(batch.members))

    def _keep_plain(self, members: list[tuple[bytes, bytes, bytes]]) -> int:
        """Store members that can all be kept as they are; the last one's sequence."""
        stream, lane = self._stream, self._stream.lane
        time_ns = stream.jetstream.times_ns(len(members))
        first = stream.log.append_many(members, time_ns, step_ns=1)
        lane.last_message_id = b""
        if lane.follow is not None:
            for index, member in enumerate(members):
                lane.follow(member[0], first + index, time_ns + index, 0)
        return stream.log.last_seq

    def _keep(self, members: list[Member]) -> int:
        """Store members one by one, with all that follows from each; the last one's sequence."""
        stream, seq = self._stream, 0
        for member in members:
            header = headers.strip(member.header, REQUIRED_LEVEL)
            header, ttl_s = admission.raise_ttl(stream, header, member.ttl_s)
            time_ns = stream.jetstream.now_ns()
            message_id = member.found.get(admission.MSG_ID, b"")
            if stream.retention.wanted(member.subject):
                seq = stream.keep(
                    member.subject, header, member.payload, time_ns, ttl_s, message_id, member.rollup
                )
            else:
                seq = stream.pass_over(member.subject, message_id, time_ns, member.rollup, member.found)
        return seq


def _mark_last(batch: Batch) -> None:
    """The commit came without a message of its own: the last one carries its mark."""
    last = batch.members[-1]
    header = headers.append(last.header if isinstance(last, Member) else last[1], [(COMMIT, b"1")])
    if isinstance(last, Member):
        last.header = header
    else:
        batch.members[-1] = (last[0], header, last[2])


__all__ = ["BatchLimits", "Batches", "Member", "Staging", "batch_id"]
