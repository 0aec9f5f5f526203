"""Receives an upstream's deliveries for a replicator: nothing may be missing, everything is stored once and in order.

Owns the count of what arrived and what of it is stored. Invariant: a flow-control request is answered only when
everything before it is durable here, because that reply lets the upstream remove messages. Creating the consumer is the
replicator's task.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._native.record_header import iter_selected_records
from headrace.broker.routing.ack_subject import parse_ack_subject
from headrace.broker.sourcing.copy_writer import MESSAGE_OVERHEAD, CopyWriter
from headrace.broker.sourcing.upstream_requests import Upstream
from headrace.code_probes import sometimes
from headrace.errors import RequestError, StoreError
from headrace.protocol import headers
from headrace.storage.sequence_arrays import Seqs, to_seqs

if TYPE_CHECKING:
    from headrace.broker.commit.disk_backpressure import DiskBackpressure
    from headrace.broker.commit.group_commit import GroupCommit
    from headrace.broker.sourcing.replicator import Replicator
    from headrace.broker.timers import TimerHandle, Timers

_STATUS = b"NATS/1.0 100 "
_STALLED = b"Nats-Consumer-Stalled"
_DIGITS_MAX = 20
_LAST_CONSUMER = b"Nats-Last-Consumer"
#: How soon deliveries are tried again while too much waits for the disk.
_RETRY_NS = 2_000_000


class UpstreamReceiver:
    """Receives the deliveries of one consumer after another."""

    __slots__ = (
        "_ack_prefix",
        "_consumer_name",
        "_disk_backpressure",
        "_group_commit",
        "_last_consumer_seq",
        "_replicator",
        "_retry_timer",
        "_stored_position",
        "_timers",
        "_upstream",
        "_writer",
        "acked_seq",
        "active",
        "lag",
        "last_received_ns",
        "num_pending",
    )

    def __init__(
        self,
        replicator: Replicator,
        upstream: Upstream,
        writer: CopyWriter,
        timers: Timers,
        group_commit: GroupCommit,
        disk_backpressure: DiskBackpressure,
    ) -> None:
        self._replicator = replicator
        self._upstream = upstream
        self._writer = writer
        self._timers = timers
        self._group_commit = group_commit
        self._disk_backpressure = disk_backpressure
        self._retry_timer: TimerHandle | None = None
        self.active = False  # False while the replicator restarts
        self.lag = 0
        self.num_pending = -1  # what the upstream last reported; -1 before that
        self.last_received_ns = 0
        #: Everything up to this was acknowledged to the upstream; -1 before its start is known.
        self.acked_seq = -1
        self._consumer_name = b""
        self._ack_prefix = b"$JS.ACK."  # prefix of the ack subject of a first delivery
        self._last_consumer_seq = 0
        self._stored_position = (0, 0)  # consumer and stream sequence up to which everything is stored

    def start(self, consumer_name: bytes, delivered_seq: int) -> None:
        """Receive from this consumer; it has delivered everything up to `delivered_seq`."""
        self._consumer_name = consumer_name
        stream_name = self._upstream.stream_name
        self._ack_prefix = b"$JS.ACK.%s.%s.1." % (stream_name.encode(), consumer_name)
        self._last_consumer_seq = 0
        self.acked_seq = delivered_seq
        self._stored_position = (0, delivered_seq)
        self.active = True

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle a message or a status on the deliver subject."""
        if not self.active:
            return
        self.last_received_ns = self._timers.now_ns()
        if not payload and header.startswith(_STATUS):
            if reply:
                self._on_flow_request(reply)
            else:
                self._on_heartbeat(header)
            return
        if reply.startswith(self._ack_prefix):
            numbers = reply[len(self._ack_prefix) :].split(b".")
            if len(numbers) == 4 and all(map(bytes.isdigit, numbers)):
                seq, consumer_seq, time_ns, num_pending = map(int, numbers)
                self._on_delivery(seq, consumer_seq, time_ns, num_pending, subject, header, payload)
            return
        delivery = parse_ack_subject(reply)
        if delivery is not None and delivery.consumer == self._consumer_name and delivery.delivery_count <= 1:
            _, _, seq, consumer_seq, time_ns, num_pending = delivery
            self._on_delivery(seq, consumer_seq, time_ns, num_pending, subject, header, payload)

    def is_ready(self, call: Callable[[], None]) -> bool:
        """Whether it takes a run; if too much waits for the disk, `call` is made later."""
        if not self._disk_backpressure.is_high():
            return True
        if self._retry_timer is None:
            self._retry_timer = self._timers.after(_RETRY_NS, partial(self._retry, call))
        return False

    def _retry(self, call: Callable[[], None]) -> None:
        self._retry_timer = None
        call()

    @property
    def added_bytes(self) -> int:
        """By how much a copy is larger than the message; with thousands of transforms that takes most of the time."""
        return self._writer.added_bytes

    def take_run(
        self,
        ack_prefix: bytes,
        view: memoryview,
        seqs: Seqs,
        at: int,
        limit: int,
        consumer_seq: int,
        num_pending: int,
        size_max: int,
    ) -> tuple[int, int]:
        """Store a run of records of an upstream in this server; return how many were taken and their size.

        The records are those of `view` that are in `seqs` from `at` on; the first has consumer sequence `consumer_seq`.
        `ack_prefix` is the ack subject up to the stream sequence.
        """
        if (
            not self.active
            or consumer_seq != self._last_consumer_seq + 1
            or ack_prefix.split(b".")[3] != self._consumer_name
        ):
            return 0, 0
        if int(seqs[at]) <= self._writer.received_seq:
            return 0, 0
        self.last_received_ns = self._timers.now_ns()
        count = size = 0
        try:
            count, size = self._writer.store_plain_run(view, seqs, at, limit, size_max)
            if not count:
                for stored_size in self._store_records(iter_selected_records(view, seqs, at, limit)):
                    count += 1
                    size += stored_size
                    if 0 <= size_max < size:
                        break
        except (RequestError, StoreError):
            self._replicator.on_store_error()
        if count:
            self._on_stored(self._last_consumer_seq + count, int(seqs[at + count - 1]), num_pending - count)
        return count, size

    def take_deliveries(
        self, ack_prefix: bytes, records: bytearray, seqs: array[int], consumer_seq: int, num_pending: int
    ) -> tuple[int, int]:
        """Store a run of deliveries of another server; return how many were taken, and the size of their contents.

        The arguments are those of `LeafnodeHandler.on_deliveries`. What is not taken has to be delivered one by one.
        """
        if ack_prefix != self._ack_prefix:
            return 0, 0
        taken, size, stream_seqs = 0, 0, to_seqs(seqs)
        with memoryview(records) as view:
            while taken < len(seqs):
                left = len(seqs) - taken
                count, run_size = self.take_run(
                    ack_prefix, view, stream_seqs, taken, left, consumer_seq + taken, num_pending + left, -1
                )
                if not count:
                    break
                taken += count
                size += run_size - count * MESSAGE_OVERHEAD
        return taken, size

    def _store_records(self, records: Iterable[tuple[int, int, bytes, bytes, bytes]]) -> Iterator[int]:
        """Store one record after the other, and yield its size."""
        for seq, time_ns, subject, header, payload in records:
            self._writer.store(seq, time_ns, subject, header, payload)
            yield len(header) + len(payload) + MESSAGE_OVERHEAD

    def _on_delivery(
        self,
        seq: int,
        consumer_seq: int,
        time_ns: int,
        num_pending: int,
        subject: bytes,
        header: bytes,
        payload: bytes,
    ) -> None:
        """Store a delivery, or restart if there is a gap.

        Gap detection follows nats-server, except that a source restarts like a mirror when the consumer
        sequence goes back. nats-server waits for a heartbeat, whose sequence may by then be the expected one.
        """
        writer, expected_seq = self._writer, self._last_consumer_seq + 1
        if seq <= writer.received_seq:
            if consumer_seq == expected_seq:
                self._advance(expected_seq, seq)
            elif consumer_seq < expected_seq:
                sometimes("upstream consumer sequence restarted")
                self._replicator.restart()  # the consumer was reset: its sequence starts from one again
            return
        if consumer_seq != expected_seq and not (self._upstream.is_mirror and seq == writer.stored_seq + 1):
            sometimes("gap in upstream deliveries")
            self._replicator.restart()
            return
        try:
            writer.store(seq, time_ns, subject, header, payload)
        except (RequestError, StoreError):
            self._replicator.on_store_error()
            return
        self._on_stored(consumer_seq, seq, num_pending)

    def _on_stored(self, consumer_seq: int, seq: int, num_pending: int) -> None:
        self._advance(consumer_seq, seq)
        self.num_pending = num_pending
        self.lag = num_pending - 1 if num_pending > 0 else 0

    def _advance(self, consumer_seq: int, seq: int) -> None:
        self._last_consumer_seq = consumer_seq
        if self._writer.durable_seq >= seq:
            self._stored_position = (consumer_seq, seq)

    def _on_heartbeat(self, header: bytes) -> None:
        last = headers.get(header, _LAST_CONSUMER) or b""
        if not last.isdigit() or len(last) > _DIGITS_MAX:
            return
        if int(last) not in (0, self._last_consumer_seq):
            sometimes("gap reported by an upstream heartbeat")
            self._replicator.restart()
            return
        stalled_reply = headers.get(header, _STALLED)
        try:
            # If nothing is left to come, or nothing came for long, missing members of a batch will not come either.
            self._writer.flush_incomplete_batch(idle=not stalled_reply and self.num_pending == 0)
        except (RequestError, StoreError):
            self._replicator.on_store_error()
            return
        if self._writer.durable_seq > self._stored_position[1]:
            self._stored_position = (self._last_consumer_seq, self._writer.durable_seq)
        if stalled_reply:  # also before the first delivery: a reset consumer still waits for an earlier reply
            self._group_commit.publish_when_all_durable(stalled_reply, b"", b"", b"")

    def _on_flow_request(self, reply: bytes) -> None:
        """Reply once everything that arrived before the request is durable."""
        template = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
        self._group_commit.publish_when_all_durable(reply, b"", template % self._stored_position, b"")
        self.acked_seq = max(self.acked_seq, self._stored_position[1])
