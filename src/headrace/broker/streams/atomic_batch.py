"""Atomic batches: messages that become part of the stream together, in one frame, or not at all.

Members are staged in memory, invisible to clients, until the one that commits. Then every check is made against the stream
as it was before the batch; the first that fails rejects the whole batch. Staging is bounded: messages per batch, batches
per stream and per server, bytes per server, and time: a batch without traffic is abandoned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from headrace._native import ByteBudget, OpenBatch
from headrace.broker.streams import publish_checks
from headrace.broker.streams.atomic_commit_checks import CommitCheck
from headrace.code_probes import sometimes
from headrace.jetstream_api import advisories
from headrace.jetstream_api.encode import dumps
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.required_api_level import REQUIRED_LEVEL, requires_newer_api
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext
    from headrace.broker.timers import TimerHandle

ID, ID_ALT = b"Nats-Batch-Id", b"Nats-Batch-ID"
SEQUENCE, SEQUENCE_ALT = b"Nats-Batch-Sequence", b"Nats-Batch-Seq"
COMMIT = b"Nats-Batch-Commit"
#: A member with only these headers cannot be rejected, except for lack of space.
PLAIN_HEADERS = frozenset((ID, ID_ALT, SEQUENCE, SEQUENCE_ALT, COMMIT))
#: A member with these headers may only be rejected as a duplicate.
_ID_HEADERS = PLAIN_HEADERS | {publish_checks.MSG_ID}
_SUBJECT = itemgetter(0)
_ID_BYTES_MAX = 64
_U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much may be staged, and for how long: nats-server's values, and a limit on bytes that it lacks."""

    per_stream: int = 50
    per_server: int = 1000
    messages: int = 1000
    timeout_ns: int = 10_000_000_000
    bytes_per_server: int = 256 * 1024 * 1024


DEFAULT_LIMITS = BatchLimits()


@dataclass(slots=True)
class BatchMember:
    subject: bytes
    header: bytes
    payload: bytes
    header_map: Mapping[bytes, bytes]
    rollup: bytes = b""
    ttl_s: int = 0


class AtomicBatch(OpenBatch):
    """An open batch.

    Its members are plain tuples (subject, header, payload), except for those that may be rejected: they are
    `BatchMember`s.
    """

    __slots__ = ("needs_checks", "timer", "with_ids")

    def __init__(self, name: bytes, budget: AtomicBatchBudget) -> None:
        limits = budget.limits
        super().__init__(name, budget, limits.messages, limits.timeout_ns)
        self.needs_checks = False
        #: Which members are `BatchMember`s only because of a message id.
        self.with_ids: list[int] = []
        self.timer: TimerHandle | None = None

    def iter_runs(self) -> Iterator[BatchMember | list[tuple[bytes, bytes, bytes]]]:
        """Yield the members with message ids, and those between them together."""
        start = 0
        for index in self.with_ids:
            if start < index:
                yield self.members[start:index]
            yield self.members[index]
            start = index + 1
        if start < len(self.members):
            yield self.members[start:]

    def expand_members(self) -> list[BatchMember]:
        """Return every member as a BatchMember."""
        return [each if isinstance(each, BatchMember) else _expand_member(*each) for each in self.members]


def _expand_member(subject: bytes, header: bytes, payload: bytes) -> BatchMember:
    return BatchMember(subject, header, payload, publish_checks.parse_nats_headers(header))


class AtomicBatchBudget(ByteBudget):
    """The bytes and batches that all streams of a server have staged, in all accounts."""

    __slots__ = ("limits", "open_batches")

    def __init__(self, limits: BatchLimits) -> None:
        super().__init__(limits.bytes_per_server)
        self.limits = limits
        self.open_batches = 0


def get_batch_id(header_map: Mapping[bytes, bytes]) -> bytes:
    """Return the batch that a message belongs to, by either spelling of the header; b"" for none."""
    return header_map.get(ID) or header_map.get(ID_ALT, b"")


class AtomicBatches:
    """The open batches of one stream."""

    __slots__ = (
        "_advisories",
        "_budget",
        "_clock",
        "_limits",
        "_open",
        "_quota",
        "_stream",
        "_timers",
        "_totals",
    )

    def __init__(self, stream: StreamContext, budget: AtomicBatchBudget) -> None:
        self._stream = stream
        self._clock = stream.clock
        self._quota = stream.quota
        self._timers = stream.jetstream.timers
        self._advisories = stream.jetstream.advisories
        self._budget = budget
        self._limits = budget.limits
        self._open: dict[bytes, AtomicBatch] = {}
        self._totals = stream.jetstream.totals

    def __len__(self) -> int:
        return len(self._open)

    def on_member(self, member: BatchMember, name: bytes) -> bytes:
        """Handle one message of a batch: stage it and return b"", or commit and return the reply for the batch."""
        self._check_message(member, name)
        position = self._parse_position(member.header_map)
        commit = member.header_map.get(COMMIT)
        end_only = commit == b"eob"
        batch = self._get_or_open(name, position, end_only)
        self._check_next(batch, member, position, commit)
        if end_only:
            _append_commit_header(batch)
        else:
            self._stage(batch, member)
        if commit is None:
            return b""
        self._close(batch)
        return self._commit(batch)

    # Checks of one message, in nats-server's order

    def _check_message(self, member: BatchMember, name: bytes) -> None:
        config, limits = self._stream.config, self._limits
        if config.sealed:
            raise ApiError.STREAM_SEALED()
        size = len(member.header) + len(member.payload)
        if self._budget.bytes + size > limits.bytes_per_server:
            raise ApiError.INSUFFICIENT_RESOURCES()
        if self._quota.has_limit(config.storage):
            publish_checks.check_account_quota(self._stream, member.subject, member.header, member.payload)
        if 0 <= config.max_msg_size < size:
            raise ApiError.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
        if not config.allow_atomic:
            raise ApiError.ATOMIC_PUBLISH_DISABLED()
        if len(name) > _ID_BYTES_MAX:
            raise ApiError.ATOMIC_PUBLISH_INVALID_BATCH_ID()

    @staticmethod
    def _parse_position(header_map: Mapping[bytes, bytes]) -> int:
        text = header_map.get(SEQUENCE, header_map.get(SEQUENCE_ALT, b""))
        position = publish_checks.parse_number(text)
        if position is None or position > _U64_MAX:
            raise ApiError.ATOMIC_PUBLISH_MISSING_SEQ()
        return position

    def _get_or_open(self, name: bytes, position: int, end_only: bool) -> AtomicBatch:
        """Return the open batch with that name, or open it if this is a first message."""
        batch = self._open.get(name)
        if batch is not None:
            return batch
        limits = self._limits
        if position != 1:
            if position - end_only > limits.messages:
                raise ApiError.ATOMIC_PUBLISH_TOO_LARGE_BATCH(size=limits.messages)
            sometimes("batch message without an open batch")
            self._send_abandoned_advisory(name, "unknown")
            raise ApiError.ATOMIC_PUBLISH_INCOMPLETE_BATCH()
        if len(self._open) >= limits.per_stream or self._budget.open_batches >= limits.per_server:
            sometimes("too many open atomic batches")
            raise ApiError.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT()
        batch = self._open[name] = AtomicBatch(name, self._budget)
        self._totals.add_batch(batch)
        self._budget.open_batches += 1
        return batch

    def _check_next(
        self, batch: AtomicBatch, member: BatchMember, position: int, commit: bytes | None
    ) -> None:
        """Check that the message is the next of its batch; any error ends the batch."""
        end_only = commit == b"eob"
        limits = self._limits
        if commit is not None and commit not in (b"1", b"eob"):
            self._close(batch)
            raise ApiError.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT()
        if requires_newer_api(member.header):
            self._abandon(batch, "unsupported")
            raise ApiError.REQUIRED_API_LEVEL()
        if position != len(batch.members) + 1 or (end_only and position == 1):
            sometimes("gap in an atomic batch")
            self._abandon(batch, "incomplete")
            raise ApiError.ATOMIC_PUBLISH_INCOMPLETE_BATCH()
        if position - end_only > limits.messages:
            sometimes("atomic batch too large")
            self._abandon(batch, "large")
            raise ApiError.ATOMIC_PUBLISH_TOO_LARGE_BATCH(size=limits.messages)

    # Life of a batch

    def _stage(self, batch: AtomicBatch, member: BatchMember) -> None:
        size, names = len(member.header) + len(member.payload), member.header_map.keys()
        is_short = len(member.header) <= publish_checks.HEADER_BYTES_MAX
        if is_short and names <= PLAIN_HEADERS:
            batch.add((member.subject, member.header, member.payload), size)
        else:
            if is_short and names <= _ID_HEADERS:
                batch.with_ids.append(len(batch.members))
            else:
                batch.needs_checks = True
            batch.add(member, size)
        fast_path, timeout_ns = self._stream.fast_path, self._limits.timeout_ns
        fast_path.open_batch = batch
        batch.deadline_ns = self._clock.wall_ns() + timeout_ns
        if batch.timer is None:
            batch.timer = self._timers.after(timeout_ns, lambda: self._check_timeout(batch))

    def _check_timeout(self, batch: AtomicBatch) -> None:
        """Abandon the batch if nothing arrived since, else arm the timer again."""
        left_ns = batch.deadline_ns - self._clock.wall_ns()
        # More than the whole timeout can only be left if the clock was set back; then nothing arrived since.
        if 0 < left_ns <= self._limits.timeout_ns:
            batch.timer = self._timers.after(left_ns, lambda: self._check_timeout(batch))
            return
        sometimes("atomic batch timed out")
        self._abandon(batch, "timeout")

    def _close(self, batch: AtomicBatch) -> None:
        batch.open = False
        if self._open.pop(batch.name, None) is None:
            return
        self._totals.remove_batch(batch)
        fast_path = self._stream.fast_path
        if fast_path.open_batch is batch:
            fast_path.open_batch = None
        self._budget.open_batches -= 1
        self._budget.bytes -= batch.bytes
        if batch.timer is not None:
            batch.timer.cancel()

    def _abandon(self, batch: AtomicBatch, reason: str) -> None:
        self._close(batch)
        self._send_abandoned_advisory(batch.name, reason)

    def _send_abandoned_advisory(self, name: bytes, reason: str) -> None:
        stream, batch_name = self._stream, name.decode("utf-8", "replace")
        self._advisories.publish(advisories.make_batch_abandoned, "", stream.name, batch_name, reason)
        stream.record_event("abandoned", f"{batch_name}: {reason}")

    def clear(self) -> None:
        """Drop all batches without advisories: the stream is deleted, or batches were disabled."""
        for batch in list(self._open.values()):
            self._close(batch)

    # Commit

    def _commit(self, batch: AtomicBatch) -> bytes:
        stream, count = self._stream, len(batch.members)
        config, fast_path = stream.config, stream.fast_path
        skips_limit_checks = config.discard != "new" and not config.allow_msg_counter
        if batch.needs_checks or not skips_limit_checks or not fast_path.enabled:
            members = batch.expand_members()
            CommitCheck(stream, members).check()
            self._reserve(batch)
            seq = self._store_each(members)
        else:
            CommitCheck(stream, [batch.members[index] for index in batch.with_ids]).check_ids()
            self._reserve(batch)
            seq = self._store_runs(batch)
        batch_name = batch.name.decode("utf-8", "replace")
        stream.record_event("batch", f"{batch_name}: {count} messages")
        return b'%b%d,"batch":%b,"count":%d}' % (stream.pub_ack_prefix, seq, dumps(batch_name), count)

    def _reserve(self, batch: AtomicBatch) -> None:
        if batch.needs_checks:
            subjects = sum(len(m.subject) if isinstance(m, BatchMember) else len(m[0]) for m in batch.members)
        else:
            subjects = sum(
                len(run.subject) if isinstance(run, BatchMember) else sum(map(len, map(_SUBJECT, run)))
                for run in batch.iter_runs()
            )
        self._stream.reserve_frame_space(subjects + batch.bytes, len(batch.members))

    def _store_plain(self, members: list[tuple[bytes, bytes, bytes]]) -> int:
        """Store members that need no checks; return the sequence of the last."""
        stream, fast_path = self._stream, self._stream.fast_path
        time_ns = stream.clock.reserve_times(len(members))
        first = stream.log.append_many(members, time_ns, step_ns=1)
        fast_path.last_message_id = b""
        if fast_path.calls_after_append:
            retention = stream.retention
            for index, member in enumerate(members):
                retention.after_append(member[0], first + index, time_ns + index, 0)
        return stream.log.last_seq

    def _store_runs(self, batch: AtomicBatch) -> int:
        """Store the members with message ids one by one, and those between them together."""
        seq = 0
        for run in batch.iter_runs():
            seq = self._store_each([run]) if isinstance(run, BatchMember) else self._store_plain(run)
        return seq

    def _store_each(self, members: list[BatchMember]) -> int:
        """Store members one by one, with all side effects; return the sequence of the last."""
        stream, seq = self._stream, 0
        for member in members:
            header = headers.strip(member.header, REQUIRED_LEVEL)
            header, ttl_s = publish_checks.apply_min_ttl(stream, header, member.ttl_s)
            time_ns = stream.clock.now_ns()
            message_id = member.header_map.get(publish_checks.MSG_ID, b"")
            if stream.retention.has_interest(member.subject):
                seq = stream.store(
                    member.subject, header, member.payload, time_ns, ttl_s, message_id, member.rollup
                )
            else:
                seq = stream.skip(member.subject, message_id, time_ns, member.rollup, member.header_map)
        return seq


def _append_commit_header(batch: AtomicBatch) -> None:
    """Add the commit header to the last member, because the commit came without a message of its own."""
    last = batch.members[-1]
    header = headers.append(last.header if isinstance(last, BatchMember) else last[1], [(COMMIT, b"1")])
    if isinstance(last, BatchMember):
        last.header = header
    else:
        batch.members[-1] = (last[0], header, last[2])


__all__ = ["AtomicBatchBudget", "AtomicBatches", "BatchLimits", "BatchMember", "get_batch_id"]
