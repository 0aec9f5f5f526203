"""How far a consumer has got: what was delivered, what waits for its acknowledgement, how often, and the floor below.

Owns these facts and the record of what changed in them since they were last written down. Invariant: `pending` is in
ascending order of stream sequence, because first deliveries only go forward and a redelivery keeps its place. An
acknowledgement is a dictionary look-up; the floor is found when somebody asks. Knows no clock, no log, no receivers.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from headrace.broker import progress_codec as codec
from headrace.broker.deadlines import Deadlines
from headrace.broker.progress_codec import EMPTY, Delta, Seqs


class Progress:
    """The state of one consumer. `next_seq` is where new messages are looked for."""

    __slots__ = (
        "_acked",
        "_counted",
        "_floor_consumer",
        "_floor_moved",
        "_floor_stream",
        "_fresh",
        "_own",
        "_queue",
        "_runs",
        "acked_ns",
        "afresh",
        "changed",
        "consumer_seq",
        "counts",
        "deadlines",
        "delivered_ns",
        "initial",
        "next_seq",
        "pending",
        "queued",
        "resume",
        "stream_seq",
    )

    def __init__(self, next_seq: int) -> None:
        self.deadlines = Deadlines()
        self.pending: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.queued: set[int] = set()
        self._queue: deque[int] = deque()
        self.restart(next_seq)

    def restart(self, next_seq: int) -> None:
        """Forget everything; the next message is the first at or after `next_seq`."""
        self.next_seq = next_seq
        self.consumer_seq = self._floor_consumer = 0
        self.stream_seq = self._floor_stream = next_seq - 1
        self._floor_moved = False
        self.delivered_ns = self.acked_ns = 0
        self.initial: Seqs = EMPTY
        self.resume = 0
        self.pending.clear()
        self.counts.clear()
        self.queued.clear()
        self._queue.clear()
        self.deadlines.clear()
        self._acked: list[int] = []
        self._fresh: list[tuple[Seqs, int]] = []
        self._runs: list[tuple[int, int, int]] = []
        self._counted: set[int] = set()
        self._own: dict[int, int] = {}
        self.afresh = self.changed = True

    # Deliveries

    def deliver_run(self, seqs: Seqs, now_ns: int, wait_ns: int, *, acked: bool) -> None:
        """Messages went out for the first time, in this order."""
        count = len(seqs)
        first, last = int(seqs[0]), int(seqs[-1])
        cseq = self.consumer_seq + 1
        self.consumer_seq += count
        self.stream_seq = last
        self.delivered_ns = now_ns
        self.changed = True
        if len(self.initial):
            self._pass_initial(count)
        else:
            self.next_seq = last + 1
        if acked:
            self._floor_consumer, self._floor_stream = self.consumer_seq, last
            return
        self.pending.update(zip(seqs.tolist(), range(cseq, cseq + count), strict=True))
        self._fresh.append((seqs, cseq))
        if wait_ns:
            self.deadlines.add_run(now_ns + wait_ns, first, last)
            self._runs.append((now_ns + wait_ns, first, last))

    def _pass_initial(self, count: int) -> None:
        self.initial = self.initial[count:]
        self.next_seq = self.stream_seq + 1 if len(self.initial) else self.resume + 1

    def pass_over(self, seq: int) -> None:
        """The next message cannot be delivered at all."""
        following = seq + 1
        if len(self.initial):
            self.initial = self.initial[self.initial > seq]
            following = seq + 1 if len(self.initial) else self.resume + 1
        self.next_seq = max(self.next_seq, following)
        self.changed = True

    def deliver_again(self, seq: int, now_ns: int, wait_ns: int) -> None:
        """A pending message went out once more; its count has been raised."""
        self.consumer_seq += 1
        self.delivered_ns = now_ns
        self.changed = True
        if wait_ns:
            self.postpone(seq, now_ns + wait_ns)

    def postpone(self, seq: int, deadline_ns: int) -> None:
        """A pending message gets a deadline of its own."""
        self.deadlines.set(seq, deadline_ns)
        self._own[seq] = deadline_ns
        self.changed = True

    def shift(self, delta_ns: int, *, own: bool) -> None:
        """The time to wait has changed for what is under way; `own`: also for what has a deadline of its own."""
        self.deadlines.shift(delta_ns)
        self.afresh = self.changed = True  # runs are not written down again one by one
        if own:
            for seq, deadline_ns in list(self.deadlines.own.items()):
                self.postpone(seq, deadline_ns + delta_ns)

    def count(self, seq: int) -> int:
        """How often a message was delivered, once at least."""
        return self.counts.get(seq, 1)

    def set_count(self, seq: int, deliveries: int) -> None:
        self.counts[seq] = deliveries
        self._counted.add(seq)
        self.changed = True

    def overdue(self) -> list[int]:
        """What is pending without a deadline: it was about to be delivered again when the server ended."""
        seqs = np.fromiter(self.pending, dtype=np.uint64, count=len(self.pending))
        dated = np.zeros(len(seqs), dtype=bool)
        for _, first, last in self.deadlines.runs():
            dated |= (seqs >= first) & (seqs <= last)
        return [seq for seq in seqs[~dated].tolist() if seq not in self.deadlines.own]

    def delivered_at(self, seq: int, wait_ns: int) -> int:
        """When a pending message was last delivered, told from its deadline."""
        return self.deadlines.of(seq) - wait_ns

    # Redelivery

    def enqueue(self, seq: int) -> None:
        """Deliver a pending message again, after those that already wait for it."""
        if seq not in self.queued:
            self.queued.add(seq)
            self._queue.append(seq)

    def dequeue(self) -> int:
        """The next one to deliver again; 0 for none."""
        queue, queued = self._queue, self.queued
        while queue:
            seq = queue.popleft()
            if seq in queued:
                queued.discard(seq)
                return seq
        return 0

    def requeue(self, seq: int) -> None:
        """It could not be delivered after all: it is the next one again."""
        self.queued.add(seq)
        self._queue.appendleft(seq)

    # Acknowledgements

    def ack(self, seq: int) -> bool:
        """One message is done; whether it was pending."""
        if self.counts and self.counts.pop(seq, 0):
            self._counted.add(seq)
            self.changed = True
        if self.queued:
            self.queued.discard(seq)
        if self.pending.pop(seq, 0):
            self._acked.append(seq)
            self._floor_moved = self.changed = True
            return True
        return False

    def ack_through(self, seq: int, consumer_seq: int) -> list[int]:
        """Everything up to a sequence is done; what was pending of it."""
        gone = self._pending_through(seq)
        for each in gone:
            self.ack(each)
        self._floor_consumer, self._floor_stream = consumer_seq, seq
        self._floor_moved = not self.pending
        self.changed = True
        return gone

    def _pending_through(self, seq: int) -> list[int]:
        pending, floor = self.pending, self._floor_stream
        if seq - floor < len(pending):
            return [each for each in range(floor + 1, seq + 1) if each in pending]
        gone = []
        for each in pending:
            if each > seq:
                break
            gone.append(each)
        return gone

    def give_up(self, seq: int, deliveries: int) -> None:
        """No more deliveries of a message: it is pending no longer, but remembered until it leaves the stream."""
        if self.pending.pop(seq, 0):
            self._acked.append(seq)
        self.queued.discard(seq)
        self.set_count(seq, deliveries)

    def forget(self, seq: int) -> bool:
        """A message has left the stream; whether it was pending."""
        return self.ack(seq)

    def move_to(self, first_seq: int) -> None:
        """Everything below was purged."""
        for seq in self._pending_through(first_seq - 1):
            self.ack(seq)
        for seq in [seq for seq in self.counts if seq < first_seq]:
            del self.counts[seq]
            self._counted.add(seq)
        if self.next_seq < first_seq:
            self.next_seq = first_seq
            self.stream_seq = max(self.stream_seq, first_seq - 1)
        self.initial = self.initial[self.initial >= first_seq]
        if not self.pending or self._floor_stream < first_seq - 1:
            self._floor_stream = max(self._floor_stream, first_seq - 1)
        self._floor_moved = self.changed = True

    # The floor

    def floor(self) -> tuple[int, int]:
        """Consumer and stream sequence below which nothing is pending, as far as acknowledgements moved it."""
        if self._floor_moved:
            self._floor_moved = False
            self._floor_consumer, self._floor_stream = self.true_floor()
        return self._floor_consumer, self._floor_stream

    def true_floor(self) -> tuple[int, int]:
        """The same, messages given up included."""
        for seq, cseq in self.pending.items():
            self.deadlines.prune(seq)
            if cseq > self._floor_consumer + 1:
                return cseq - 1, seq - 1
            return self._floor_consumer, self._floor_stream
        return self.consumer_seq, max(self.stream_seq, self._floor_stream)

    # Writing down

    def delta(self, behind_ns: int = 0) -> bytes:
        """What changed since the last call, to be written down. Deadlines become dates: the clock is `behind_ns` behind
        the time they are in, and only the clock outlives the process.
        """
        fresh, consumer = self._take_fresh()
        gone = np.array(sorted(set(self._acked)), dtype=np.uint64)
        if len(gone) and len(fresh):
            # What came and went meanwhile stays among the removed: a checkpoint may have seen it come.
            still = ~np.isin(fresh, gone, assume_unique=True)
            fresh, consumer = fresh[still], consumer[still]
        delta = self._delta(gone, fresh, consumer)
        if self.afresh and len(self.initial):
            delta.initial, delta.resume = codec.pack_set(self.initial), self.resume
        delta.counts = [(seq, self.counts.get(seq, 0)) for seq in sorted(self._counted)]
        delta.runs = _dated(merged(self._runs), behind_ns)
        delta.own = [(seq, due_ns - behind_ns) for seq, due_ns in self._own.items() if seq in self.pending]
        delta.afresh = self.afresh
        self._written()
        return codec.encode(delta)

    def snapshot(self, behind_ns: int = 0) -> bytes:
        """Everything, on top of nothing; `behind_ns` as for `delta`."""
        count = len(self.pending)
        stream = np.fromiter(self.pending, dtype=np.uint64, count=count)
        consumer = np.fromiter(self.pending.values(), dtype=np.uint64, count=count)
        delta = self._delta(EMPTY, stream, consumer)
        delta.initial, delta.resume = codec.pack_set(self.initial), self.resume
        delta.counts = sorted(self.counts.items())
        own = self.deadlines.own
        delta.runs = _dated(self.deadlines.runs(), behind_ns)
        delta.own = [(seq, due_ns - behind_ns) for seq, due_ns in own.items() if seq in self.pending]
        delta.afresh = True
        return codec.encode(delta)

    def _delta(self, removed: Seqs, added: Seqs, consumer: Seqs) -> Delta:
        packed, offset, packed_consumer = codec.pack_pairs(added, consumer)
        return Delta(
            self.consumer_seq,
            self.stream_seq,
            self.next_seq,
            *self.floor(),
            removed=codec.pack_set(removed),
            added=packed,
            added_offset=offset,
            added_consumer=packed_consumer,
        )

    def _take_fresh(self) -> tuple[Seqs, Seqs]:
        if not self._fresh:
            return EMPTY, EMPTY
        stream = np.concatenate([seqs for seqs, _ in self._fresh])
        spans = [np.arange(cseq, cseq + len(seqs), dtype=np.uint64) for seqs, cseq in self._fresh]
        return stream, np.concatenate(spans)

    def _written(self) -> None:
        self._acked, self._fresh, self._runs = [], [], []
        self._counted, self._own = set(), {}
        self.afresh = self.changed = False

    def forget_changes(self) -> None:
        """What changed need not be written down: this consumer lives in memory only."""
        self._written()

    # Recovery

    def apply(self, data: bytes) -> None:
        """Bring a delta or snapshot in, as recovery reads them."""
        delta = codec.decode(data)
        if delta.afresh:
            self.restart(delta.next_seq)
            self.initial, self.resume = codec.unpack_set(delta.initial), delta.resume
        for seq in codec.unpack_set(delta.removed).tolist():
            self.pending.pop(seq, None)
            self.deadlines.forget(seq)
        self.pending.update(codec.unpack_pairs(delta.added, delta.added_offset, delta.added_consumer))
        for seq, deliveries in delta.counts:
            self.counts[seq] = deliveries
            if not deliveries:
                del self.counts[seq]
        for run in delta.runs:
            self.deadlines.add_run(*run)
        for seq, deadline in delta.own:
            self.deadlines.set(seq, deadline)
        self.consumer_seq, self.stream_seq, self.next_seq = (
            delta.consumer_seq,
            delta.stream_seq,
            delta.next_seq,
        )
        self._floor_consumer, self._floor_stream = delta.floor_consumer, delta.floor_stream
        self._floor_moved = False
        if len(self.initial):
            self.initial = self.initial[self.initial > self.stream_seq] if self.consumer_seq else self.initial
        self._written()


def _dated(runs: list[tuple[int, int, int]], behind_ns: int) -> list[tuple[int, int, int]]:
    return [(due_ns - behind_ns, first, last) for due_ns, first, last in runs]


def merged(runs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Runs of one stretch of time as one, due with the last of them."""
    return [(runs[-1][0], runs[0][1], runs[-1][2])] if runs else []
